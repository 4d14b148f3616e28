//! Operations on whole volumes: making them (empty or from files), scrubbing,
//! balancing, resizing and tuning them, changing their devices, explaining their
//! space, and making images of their metadata.

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
