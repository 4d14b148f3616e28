//! How far a check is.

use std::fmt;

/// What is being checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Superblocks, chunks, devices and roots.
    Chunks,
    /// Extents, checksums and free space.
    Extents,
    /// Subvolumes.
    Subvolumes,
    /// What a difference was made of.
    Diagnosis,
    /// Quota groups.
    Quotas,
    /// File data.
    Data,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chunks => "chunks and roots",
            Self::Extents => "extents",
            Self::Subvolumes => "subvolumes",
            Self::Diagnosis => "looking closer",
            Self::Quotas => "quotas",
            Self::Data => "file data",
        })
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// What is being checked.
    pub phase: Phase,
    /// Bytes of it that were read.
    pub done: u64,
    /// Bytes to read, 0 where that is not known.
    pub total: u64,
}

/// Who wants to know how far a check is. Called from any thread.
pub trait Progress: Sync {
    /// Called about every thousand nodes.
    fn status(&self, status: Status);
}

/// Nobody wants to know.
#[derive(Clone, Copy, Debug)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn status(&self, _: Status) {}
}
