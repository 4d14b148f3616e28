//! Extents: who refers to them, in memory and in the extent tree.

pub mod apply;
pub mod pending;
pub mod record;
pub(crate) mod share;
mod visit;
