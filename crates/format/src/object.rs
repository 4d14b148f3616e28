//! Objects of keys that are neither inodes nor trees nor addresses.
//!
//! The kernel counts them from the end of the number space: -4 for a balance
//! is `u64::MAX - 3`.
//!
//! Source: the on-disk format's documentation, and keys in real volumes.

/// The state of a balance, in the tree of roots (-4).
pub const BALANCE: u64 = u64::MAX - 3;
/// Orphan items: inodes and subvolumes that wait for their deletion (-5).
pub const ORPHAN: u64 = u64::MAX - 4;
/// Checksum items (-10).
pub const EXTENT_CSUM: u64 = u64::MAX - 9;
/// The space caches of old volumes (version 1), in the tree of roots; in a
/// subvolume, the space of its inode cache (-11).
pub const FREE_SPACE: u64 = u64::MAX - 10;
/// The inode cache of a subvolume, which old kernels wrote (-12).
pub const FREE_INO: u64 = u64::MAX - 11;
