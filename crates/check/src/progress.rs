//! The progress of a check.

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
    /// A second walk that finds the cause of a difference.
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

/// The progress of a check.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// What is being checked.
    pub phase: Phase,
    /// Bytes that were read in this phase.
    pub done: u64,
    /// Bytes to read in this phase; 0 if not known.
    pub total: u64,
}

/// Receives the progress of a check. The check calls it from any thread.
pub trait Progress: Sync {
    /// Takes the progress. Called when a phase begins, and about every thousand
    /// nodes.
    fn status(&self, status: Status);
}

/// Ignores the progress.
#[derive(Clone, Copy, Debug)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn status(&self, _: Status) {}
}
