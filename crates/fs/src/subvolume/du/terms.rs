//! The limits, the progress and the results of a computation of space.

use std::ops::AddAssign;

/// Bytes as they lie on disk (compressed, whole extents), one copy of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Of file data.
    pub data: u64,
    /// Of tree nodes.
    pub metadata: u64,
}

impl Space {
    /// Both together.
    #[must_use]
    pub const fn sum(self) -> u64 {
        self.data.saturating_add(self.metadata)
    }

    /// What is left without `part`.
    #[must_use]
    pub const fn without(self, part: Self) -> Self {
        Self {
            data: self.data.saturating_sub(part.data),
            metadata: self.metadata.saturating_sub(part.metadata),
        }
    }
}

impl AddAssign for Space {
    fn add_assign(&mut self, other: Self) {
        self.data = self.data.saturating_add(other.data);
        self.metadata = self.metadata.saturating_add(other.metadata);
    }
}

/// What a computation may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Data extents that wait for more of their file extents, at most; about 40
    /// bytes each.
    pub extents: usize,
    /// Runs of all sets together, at most; about 30 bytes each.
    pub runs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            extents: 8 << 20,
            runs: 32 << 20,
        }
    }
}

/// How far a computation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Nodes that were read.
    pub nodes: u64,
    /// Number of nodes of all trees: an upper bound.
    pub nodes_max: u64,
    /// Sweeps begun. There are several if memory does not hold all extents.
    pub sweeps: u32,
}

/// How a member counts when asked what would be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A subvolume.
    Subvolume,
    /// A subvolume or part of one that is being deleted: holds nothing.
    Dying,
    /// Not a subvolume: never deleted.
    Kept,
}

/// A place in a list as an index.
pub(super) fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}
