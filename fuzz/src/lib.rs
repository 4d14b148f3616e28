//! What hostile bytes must not do: panic, hang, take memory without bound, or
//! make a volume be written that was refused.
//!
//! Owns one function for each fuzz target ([`targets`]), the volumes that
//! images are mutated from ([`volume`]), and the bound on memory ([`meter`]).
//! The binaries in `targets/` only bind these to libFuzzer.

pub mod commands;
pub mod meter;
pub mod mutation;
pub mod recoveries;
pub mod seeds;
pub mod tape;
pub mod targets;
pub mod volume;
