//! Reservation: no change begins that might run out of metadata space.

use crate::engine::{Engine, SpaceKind};
use crate::error::StoreError;

/// Changed nodes of a generation are committed above this many bytes.
const DIRTY_MAX: usize = 64 << 20;
/// Extents with pending changes are committed above this number.
const PENDING_MAX: usize = 150_000;
/// Bytes of waiting checksums above which a generation is committed.
const CHECKSUMS_MAX: usize = 32 << 20;

/// What a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It may add something.
    Grow,
    /// It only removes: it may use the reserve, so that a full volume can be
    /// emptied.
    Shrink,
}

impl Engine {
    /// True when the generation should be committed before it grows more.
    pub(crate) fn is_crowded(&self) -> bool {
        self.dirty_bytes() > DIRTY_MAX
            || self.pending.len() > PENDING_MAX
            || self.checksums.bytes() > CHECKSUMS_MAX
    }

    /// Makes sure that `nodes` more changed nodes and the commit fit.
    pub(crate) fn reserve(&mut self, nodes: usize, purpose: Purpose) -> Result<(), StoreError> {
        let size = self.node_size() as u64;
        let need = (nodes as u64 + self.commit_nodes_max()) * size;
        let available = self.available(SpaceKind::Metadata);
        let kept = match purpose {
            Purpose::Grow => self.kept_in_reserve(),
            Purpose::Shrink => 0,
        };
        if available < need + kept {
            return Err(StoreError::NoSpace);
        }
        self.ensure_loaded(SpaceKind::Metadata, need)?;
        self.ensure_loaded(SpaceKind::System, 8 * size)
    }

    /// Bytes of metadata space that only deletions may use.
    fn kept_in_reserve(&self) -> u64 {
        (self.used(SpaceKind::Metadata) / 4).clamp(1 << 20, 64 << 20)
    }

    /// Nodes that the commit of what is pending changes at most.
    pub(crate) fn commit_nodes_max(&self) -> u64 {
        let size = self.node_size() as u64;
        let pending = self.pending.len() as u64;
        // Each pending extent touches one leaf of the extent tree and one of
        // the free-space tree, but no more leaves than there are; what is new
        // fills further ones.
        let existing = self.used(SpaceKind::Metadata) / size;
        let new = pending * 128 / size + self.checksums.bytes() as u64 / size;
        2 * pending.min(existing) + 2 * new + 64
    }
}
