//! What is done to whole volumes: making them, and archives of files.

pub mod archive;
pub mod mkfs;
