//! A count of all groups while the volume is changed.
//!
//! Owns the bookkeeping. The count is of one commit, whose nodes are kept from
//! being overwritten meanwhile ([`View`]). The changes of later commits are
//! summed up beside it. The sum of both gives the numbers, so nobody waits for
//! a count.
//!
//! Until the count ends, the status on the device says RESCAN and the numbers
//! are zero. So after a crash the kernel begins the count anew, and ButterFS
//! says that it was interrupted.
//!
//! Bounds: those of a view; a count that needs more begins anew.

use super::GroupNumbers;
use crate::Store;
use crate::commit::view::View;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::quota::fault::QuotaError;
use crate::quota::groups::Quotas;
use crate::quota::groups::Running;
use crate::quota::groups::Scan;
use crate::space::view_pins::ViewPinsId;
use butterfs_format::Generation;
use butterfs_format::item::qgroup::{GroupId, QgroupInfo, QgroupStatus, QgroupStatusFlags};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes of the changes that begin and end a count.
const NODES: usize = 32;

/// A count that can begin.
#[derive(Debug)]
pub struct QuotaScan<'s> {
    /// What is counted.
    pub view: View<'s>,
}

impl Quotas {
    /// A count is under way. What the running generation changes must be summed
    /// up for it.
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
    /// Takes over the numbers of a count, with what changed since. False if
    /// that is not possible and another count is needed.
    fn finish_scan(&mut self, hold: ViewPinsId, numbers: &BTreeMap<GroupId, GroupNumbers>) -> bool {
        let (generation, is_held) = (self.generation, self.space_map.holds(hold));
        let Some(quotas) = self.quotas.get_mut() else {
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
}

impl Store {
    /// Begins to count all groups anew: commits, and gives what is to be
    /// counted. `None` if a deletion is under way. [`Store::finish_quota_scan`]
    /// or [`Store::give_up_quota_scan`] ends it.
    ///
    /// # Errors
    /// [`QuotaError`]; no space; not writable; reading, writing.
    pub fn start_quota_scan(&self) -> Result<Option<QuotaScan<'_>>, StoreError> {
        let start = |engine: &mut Engine| {
            let deleting = !engine.dead_trees()?.is_empty();
            let of = engine.generation();
            let quotas = engine.quotas.get_mut().ok_or(QuotaError::Off)?;
            if quotas.is_simple() {
                return Err(QuotaError::NeverScanned.into());
            }
            if quotas.is_scanned() {
                return Err(QuotaError::Counting.into());
            }
            if !deleting {
                quotas.start_scan(of);
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
        scan: &QuotaScan<'_>,
        numbers: &BTreeMap<GroupId, GroupNumbers>,
    ) -> Result<bool, StoreError> {
        let hold = scan.view.hold_id();
        let finish = |engine: &mut Engine| Ok::<_, StoreError>(engine.finish_scan(hold, numbers));
        let finished = self.commit_with(NODES, finish);
        if !matches!(finished, Ok(true)) {
            self.give_up_quota_scan("a count was not finished");
        }
        finished
    }

    /// Ends a count without numbers.
    pub fn give_up_quota_scan(&self, reason: &str) {
        let mut engine = self.change();
        if let Some(quotas) = engine.quotas.get_mut()
            && quotas.scan.take().is_some()
        {
            quotas.set_inconsistent(reason);
        }
    }
}
