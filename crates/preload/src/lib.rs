//! A library to be loaded into programs, for which FUSE mounts of ButterFS are
//! Btrfs then.
//!
//! Owns functions that stand in for those of the C library, and the state of the
//! process. The crate `supervisor` owns the answers.

mod functions;
mod inside;
mod state;
