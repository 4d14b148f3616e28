//! Items of leaves, one file for each concept.

pub mod block_group;
pub mod chunk;
pub mod device;
pub mod dir;
pub mod file_extent;
pub mod inode;
pub mod root;
pub mod root_ref;
