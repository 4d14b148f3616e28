//! Requests on open directories.
//!
//! Owns the structures alone.

use super::{FsyncKind, OFlags};
use crate::{FileHandle, NodeId};

/// Opens a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDir {
    /// The directory.
    pub node: NodeId,
    /// As given to open(2).
    pub flags: OFlags,
}

/// Lists a directory from a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDir {
    /// The directory.
    pub node: NodeId,
    /// What opendir returned; zero where opens are stateless.
    pub handle: FileHandle,
    /// Zero for the start, else the `next` of the last entry received. May be
    /// any such value seen before (seekdir).
    pub offset: u64,
}

/// Ends the use of a directory's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseDir {
    /// The directory.
    pub node: NodeId,
    /// The handle that ends.
    pub handle: FileHandle,
    /// As given to open(2).
    pub flags: OFlags,
}

/// Makes a directory's entries durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsyncDir {
    /// The directory.
    pub node: NodeId,
    /// What opendir returned.
    pub handle: FileHandle,
    /// How much must be durable.
    pub kind: FsyncKind,
}
