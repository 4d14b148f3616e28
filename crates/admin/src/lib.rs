//! What is done to whole volumes: making them, empty or from files.

pub mod archive;
pub mod build;
pub mod mkfs;
