//! A count of all groups while the volume is changed.
//!
//! Owns the bookkeeping: the count is of one commit, whose nodes are kept from
//! being overwritten meanwhile ([`Engine::hold_nodes`]); what later commits
//! change is summed up beside it, and both together are the numbers. So nobody
//! waits for a count.
//!
//! On the device the status says RESCAN and the numbers are zero until it ends,
//! so that after a crash the kernel begins it anew, and we say that it was
//! interrupted.
//!
//! Bounds: space of nodes that is held is at most what is free besides; a count
//! that needs more has to be made anew.

use super::account::Delta;
use super::{GroupNumbers, QuotaError, Quotas, Running};
use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::block_group::BlockGroup;
use crate::space::ranges::RangeSet;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::qgroup::{GroupId, QgroupInfo, QgroupStatus, QgroupStatusFlags};
use butterfs_format::{Generation, Logical};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Nodes of the changes that begin and end a count.
const NODES: usize = 32;
/// Space of nodes that may be held in any case.
const HELD_LEAST: u64 = 4 << 20;

/// A count that is under way.
#[derive(Debug)]
pub(super) struct Scan {
    /// The commit that is counted.
    pub(super) of: Generation,
    /// What changed since.
    pub(super) deltas: BTreeMap<GroupId, Delta>,
    /// Why it has to begin anew.
    pub(super) lost: Option<String>,
}

/// A count that can begin.
#[derive(Debug)]
pub struct QuotaScan {
    /// The volume as the commit left it that is counted; nothing changes it.
    pub view: Engine,
}

impl Quotas {
    /// A count is under way, and what the running generation changes must be
    /// summed up for it.
    pub(super) fn is_scanned(&self) -> bool {
        self.scan.is_some()
    }

    /// The same groups, for a view.
    pub(crate) fn copied(&self) -> Self {
        Self {
            status: self.status,
            groups: self.groups.clone(),
            changed: BTreeSet::new(),
            reason: None,
            running: Running::default(),
            scan: None,
        }
    }

    fn start_scan(&mut self, of: Generation) {
        for (id, group) in &mut self.groups {
            group.info = QgroupInfo {
                generation: of,
                ..QgroupInfo::default()
            };
            self.changed.insert(*id);
        }
        self.status.flags |= QgroupStatusFlags::RESCAN;
        self.status.flags -= QgroupStatusFlags::INCONSISTENT;
        self.status.rescan = 0;
        self.scan = Some(Scan {
            of,
            deltas: BTreeMap::new(),
            lost: None,
        });
    }
}

impl Engine {
    /// Takes over the numbers of a count, with what changed since. False when
    /// they cannot be: another count is needed.
    fn finish_scan(&mut self, numbers: &BTreeMap<GroupId, GroupNumbers>) -> bool {
        let (generation, is_held) = (self.generation, self.held.is_some());
        let Some(quotas) = &mut self.quotas else {
            return false;
        };
        let Some(scan) = quotas.scan.take() else {
            return false;
        };
        if scan.lost.is_some() || quotas.running.lost.is_some() || !is_held {
            quotas.scan = Some(scan);
            return false;
        }
        let mut fits = true;
        for (id, group) in &mut quotas.groups {
            let found = numbers.get(id).copied().unwrap_or_default();
            let delta = scan.deltas.get(id).copied().unwrap_or_default();
            let mut sum = |number: u64, delta: i128| {
                let sum = i128::from(number).saturating_add(delta);
                u64::try_from(sum).unwrap_or_else(|_| {
                    fits = false;
                    0
                })
            };
            let referenced = sum(found.referenced, delta.referenced);
            let exclusive = sum(found.exclusive, delta.exclusive);
            group.info = QgroupInfo {
                generation,
                referenced,
                referenced_compressed: referenced,
                exclusive,
                exclusive_compressed: exclusive,
            };
        }
        quotas.changed = quotas.groups.keys().copied().collect();
        quotas.status.flags -= QgroupStatusFlags::RESCAN;
        quotas.status.rescan = QgroupStatus::NO_RESCAN;
        if !fits {
            quotas.set_inconsistent("a group would use less than nothing");
        }
        true
    }

    /// Nodes that commits free from now on stay as they are.
    fn hold_nodes(&mut self) {
        self.held = Some(RangeSet::default());
    }

    /// Ends [`Engine::hold_nodes`].
    fn release_nodes(&mut self) {
        let held = self.held.take();
        let ranges: Vec<_> = held.iter().flat_map(RangeSet::iter).collect();
        self.give_back_pinned(&ranges);
    }

    /// Space that a published commit freed can be used again, or is held.
    pub(crate) fn unpin(&mut self, freed: &[Range<u64>]) {
        let Some(mut held) = self.held.take() else {
            return self.give_back_pinned(freed);
        };
        let holds_nodes = |group: &BlockGroup| group.flags.contains(BlockGroupFlags::METADATA);
        let (kept, rest): (Vec<_>, Vec<_>) = freed.iter().cloned().partition(|range| {
            let group = self.groups.range(..=Logical(range.start)).next_back();
            group.is_some_and(|(_, group)| holds_nodes(group))
        });
        for range in kept {
            held.insert(range);
        }
        self.give_back_pinned(&rest);
        let groups = self.groups.values().filter(|group| holds_nodes(group));
        let free = groups.fold(HELD_LEAST, |sum, group| {
            sum.saturating_add(group.available())
        });
        let is_too_much = held.total() > free;
        self.held = Some(held);
        if is_too_much {
            self.release_nodes();
        }
    }

    fn give_back_pinned(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            let result = self.for_each_group_part(range, |group, part| {
                group.pinned = group.pinned.saturating_sub(part.end - part.start);
                if let Some(free) = &mut group.free {
                    free.insert(part);
                }
            });
            debug_assert!(result.is_ok(), "pinned space lies in block groups");
        }
    }

    /// True when a range must not be discarded although it is free.
    pub(crate) fn is_kept(&self, range: &Range<u64>) -> bool {
        let group = self.groups.range(..=Logical(range.start)).next_back();
        let has_nodes =
            group.is_some_and(|(_, group)| group.flags.contains(BlockGroupFlags::METADATA));
        self.held.is_some() && has_nodes
    }
}

impl Store {
    /// Begins to count all groups anew: commits, and gives what is to be
    /// counted. `None` when a deletion is under way. Ended by
    /// [`Store::finish_quota_scan`] or [`Store::give_up_quota_scan`].
    ///
    /// # Errors
    /// [`QuotaError`]; no space; not writable; reading, writing.
    pub fn start_quota_scan(&self) -> Result<Option<QuotaScan>, StoreError> {
        let start = |engine: &mut Engine| {
            let deleting = !engine.dead_trees()?.is_empty();
            let of = engine.generation();
            let quotas = engine.quotas.as_mut().ok_or(QuotaError::Off)?;
            if quotas.is_simple() {
                return Err(QuotaError::NeverScanned.into());
            }
            if quotas.is_scanned() {
                return Err(QuotaError::Counting.into());
            }
            if !deleting {
                quotas.start_scan(of);
                engine.hold_nodes();
            }
            Ok(!deleting)
        };
        match self.commit_with_view(NODES, start) {
            Ok(view) => Ok(view.map(|view| QuotaScan { view })),
            Err(error) => {
                if !matches!(error, StoreError::Quota(_)) {
                    self.give_up_quota_scan("a count could not begin");
                }
                Err(error)
            }
        }
    }

    /// Takes over what was counted, and commits. False when it has to be
    /// counted anew; then the count is given up.
    ///
    /// # Errors
    /// No space; not writable; writing.
    pub fn finish_quota_scan(
        &self,
        numbers: &BTreeMap<GroupId, GroupNumbers>,
    ) -> Result<bool, StoreError> {
        let finish = |engine: &mut Engine| Ok::<_, StoreError>(engine.finish_scan(numbers));
        let finished = self.commit_with(NODES, finish);
        if let Ok(true) = finished {
            self.engine.write().release_nodes();
        } else {
            self.give_up_quota_scan("a count was not finished");
        }
        finished
    }

    /// True while the nodes that are counted are kept from being overwritten.
    #[must_use]
    pub fn is_quota_scan_kept(&self) -> bool {
        self.read().held.is_some()
    }

    /// Ends a count without numbers.
    pub fn give_up_quota_scan(&self, reason: &str) {
        let mut engine = self.engine.write();
        engine.release_nodes();
        if let Some(quotas) = &mut engine.quotas
            && quotas.scan.take().is_some()
        {
            quotas.set_inconsistent(reason);
        }
    }
}
