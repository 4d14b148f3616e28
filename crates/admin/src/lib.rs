//! What is done to whole volumes: making them, scrubbing, balancing and
//! resizing them.

pub mod balance;
pub mod mkfs;
pub mod resize;
pub mod scrub;
