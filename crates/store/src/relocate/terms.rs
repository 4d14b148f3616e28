//! Bounds and types that all parts of a relocation use.

use crate::refs::pending::Backref;
use butterfs_format::{Logical, TreeId};
use std::ops::Range;
use std::time::Duration;

/// Nodes that one step moves, about.
pub(super) const NODES_MAX: usize = 1024;
/// A step with fewer nodes than this is not tried when space is short.
pub(super) const NODES_LEAST: usize = 64;
/// Nodes that a step changes in addition to those that move.
pub(super) const NODES_BESIDE: usize = 32;
/// Bytes of data that are copied before their references move.
pub(super) const BATCH_BYTES: u64 = 64 << 20;
/// Data extents of one batch.
pub(super) const BATCH_EXTENTS: usize = 512;
/// How long relocation waits for writers that have space in a group.
pub(super) const WRITERS_WAIT: Duration = Duration::from_secs(60);

/// The addresses of a group that begins at the given address and has the given
/// length.
pub(super) const fn range_of((start, length): (Logical, u64)) -> Range<u64> {
    start.get()..start.get().saturating_add(length)
}

/// References to an extent as they will be at the commit.
pub(super) struct RefsNow {
    pub(super) by: Vec<(Backref, i64)>,
    pub(super) full_backref: bool,
    pub(super) owner: Option<TreeId>,
}
