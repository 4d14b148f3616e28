//! What is done to whole volumes: making them, empty or from files, scrubbing,
//! balancing, resizing and tuning them.

pub mod archive;
pub mod balance;
pub mod build;
pub mod devices;
pub mod explain;
pub mod image;
pub mod mkfs;
mod pack;
pub mod resize;
pub mod scrub;
pub mod tune;
