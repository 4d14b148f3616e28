//! What the tests of all crates share: one enum of operations, one model that
//! says what they must do, and judges from outside.
//!
//! Owns: [`op::Op`] with its generator and the runner on a mounted directory,
//! [`oracle::Oracle`], [`manifest::Manifest`] of any tree of files, and the
//! wrappers of btrfs-progs and the kernel in [`judge`]. Knows nothing of how
//! the library works: it sees only files, paths and images.

pub mod capability;
pub mod content;
pub mod differential;
pub mod fuse_mount;
pub mod judge;
pub mod manifest;
pub mod memory_group;
pub mod mounted_tree;
pub mod op;
pub mod oracle;
pub mod random;
mod shell;
pub mod tree_view;

pub use capability::Capability;
pub use fuse_mount::{FuseMount, butterfs_program};
pub use manifest::Manifest;
pub use memory_group::MemoryGroup;
pub use op::Op;
pub use oracle::Oracle;
pub use random::Random;
pub use shell::run_script;
pub use tree_view::TreeView;
