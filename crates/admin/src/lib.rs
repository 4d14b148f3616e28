//! What is done to whole volumes: making them, empty or from files, scrubbing,
//! balancing and resizing them.

pub mod archive;
pub mod balance;
pub mod build;
pub mod explain;
pub mod mkfs;
mod pack;
pub mod resize;
pub mod scrub;
