//! What is done to whole volumes: making them, for now.

pub mod mkfs;
