//! Extents, their references, checksums and free space.

pub(crate) mod charges;
pub(crate) mod checksums;
pub(crate) mod compare;
pub(crate) mod diagnose;
pub(crate) mod free_space;
pub(crate) mod item;
pub(crate) mod parents;
pub(crate) mod scan;
pub(crate) mod space_cache;
pub(crate) mod tally;
