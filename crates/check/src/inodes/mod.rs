//! Subvolumes: inodes, names and file extents.

pub(crate) mod diagnose;
pub(crate) mod file_extent;
pub(crate) mod name_sink;
pub(crate) mod names;
pub(crate) mod prealloc;
pub(crate) mod refs;
pub(crate) mod run;
pub(crate) mod scan;
pub(crate) mod subvolume;
