//! Quota groups: what each subvolume, and each group of them, reaches and
//! reaches alone, kept right by every commit.
//!
//! Owns the groups of an open volume in memory ([`QuotaState`], [`Quotas`]) and their items in
//! the quota tree. `account` makes the numbers follow the changes of a
//! generation, `reach` finds who reaches an extent, and `change` has what users
//! change.
//!
//! Simple quotas charge an extent to the subvolume that allocated it; `simple`
//! keeps their numbers.
//!
//! Does not own the references of extents, from which it counts, nor the tree's
//! nodes. What is noted for counting ([`QuotaState`]) has private fields.
//!
//! Invariants: after a commit the status item has the commit's generation, and
//! either the numbers are exact or the flag INCONSISTENT says that a scan is
//! needed. Nothing that goes wrong with the numbers fails a commit.

mod account;
mod change;
pub mod fault;
pub mod groups;
mod items;
mod limits;
mod reach;
mod reach_sets;
mod scan;
mod sharing;
mod simple;
mod state;

pub use change::{Assigned, GroupNumbers, LimitChange, QuotaMode};
pub use items::QuotaItems;
pub use limits::Fits;
pub use scan::QuotaScan;
pub use sharing::SharingProbe;
pub use state::QuotaState;

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::quota::groups::Quotas;
use crate::quota::groups::Running;
use butterfs_format::item::qgroup::{GroupId, QgroupStatus, QgroupStatusFlags};
use butterfs_format::{Key, TreeId};
use butterfs_tree::{Cursor, Editor};
use std::collections::BTreeSet;

/// How many extents a deletion may take from a subvolume in one generation.
/// More make the numbers inconsistent.
const TOUCHED_MAX: usize = 100_000;
/// How many nodes below one shared node are looked at for that, under the
/// engine's lock. More make the numbers inconsistent.
const TOUCHED_NODES_MAX: usize = 2_000;

impl Engine {
    /// Quota groups; `None` when quotas are off.
    #[must_use]
    pub const fn quotas(&self) -> Option<&Quotas> {
        self.quotas.get()
    }

    /// Reads the quota tree, where there is one.
    pub(crate) fn load_quotas(&mut self) -> Result<(), StoreError> {
        if !self.has_tree(TreeId::QUOTA)? {
            return Ok(());
        }
        let mut items = QuotaItems::default();
        let mut cursor = Cursor::seek_in(&*self, TreeId::QUOTA, &Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            let added = items.add(key, data);
            added.map_err(|error| bad_item(TreeId::QUOTA, key, &error))?;
            cursor.next()?;
        }
        let QuotaItems { status, groups } = items;
        let Some(status) = status.filter(|status| status.flags.contains(QgroupStatusFlags::ON))
        else {
            return Ok(());
        };
        let mut quotas = Quotas {
            status,
            groups,
            changed: BTreeSet::new(),
            reason: None,
            running: Running::default(),
            scan: None,
        };
        if quotas.is_simple() {
            // The feature is incompatible, so only programs that keep the
            // numbers write to the volume.
        } else if status.flags.contains(QgroupStatusFlags::RESCAN) {
            quotas.set_inconsistent("a rescan was interrupted");
        } else if status.generation != self.publisher.superblock().generation {
            quotas.set_inconsistent("the volume was changed without them");
        }
        self.quotas.set(Some(quotas));
        self.follow_quotas();
        Ok(())
    }

    /// Begins a generation whose changes the numbers must follow.
    pub(crate) fn follow_quotas(&mut self) {
        if self.quotas().is_some_and(|quotas| !quotas.is_simple()) {
            self.ledger.pending_mut().note_netted();
        }
    }

    /// Brings the numbers of the running generation into the quota tree.
    pub(crate) fn commit_quotas(&mut self) -> Result<(), StoreError> {
        let Some(mut quotas) = self.quotas.take() else {
            return Ok(());
        };
        let is_counted = quotas
            .scan
            .as_ref()
            .is_some_and(|scan| self.generation > scan.of);
        if is_counted {
            self.follow_for_scan(&mut quotas);
        } else if let Some(reason) = quotas.running.lost
            && !quotas.is_scanned()
        {
            quotas.set_inconsistent(reason);
        }
        if quotas.is_simple() {
            let followed = self.follow_simple(&mut quotas);
            if let Err(error) = followed {
                self.quotas.set(Some(quotas));
                return Err(error);
            }
        } else if !quotas.is_inconsistent()
            && let Err(reason) = self.follow(&mut quotas)
        {
            quotas.set_inconsistent(&reason.to_string());
        }
        // What the commit itself changes belongs to no subvolume.
        self.ledger.pending_mut().forget_netted();
        let running = std::mem::take(&mut quotas.running);
        let written = self.write_quotas(&mut quotas, &running.gone);
        self.quotas.set(Some(quotas));
        written
    }

    /// Sums up what the running generation changes, for a count of an earlier
    /// generation.
    fn follow_for_scan(&self, quotas: &mut Quotas) {
        let followed = match quotas.running.lost {
            Some(reason) => Err(reason.to_owned()),
            None => self.follow(quotas).map_err(|reason| reason.to_string()),
        };
        if let (Err(reason), Some(scan)) = (followed, &mut quotas.scan) {
            scan.lost.get_or_insert(reason);
        }
    }

    fn write_quotas(
        &mut self,
        quotas: &mut Quotas,
        gone: &BTreeSet<GroupId>,
    ) -> Result<(), StoreError> {
        for id in gone {
            let group = quotas.group(*id);
            if quotas.is_simple() && group.is_some_and(|group| group.info.referenced != 0) {
                // Others reach what it allocated.
                continue;
            }
            change::remove_group(self, quotas, *id)?;
        }
        quotas.status.generation = self.generation;
        let changed = std::mem::take(&mut quotas.changed);
        let mut editor = Editor::new(self, TreeId::QUOTA);
        editor.replace(&QgroupStatus::KEY, &quotas.status.encode())?;
        for id in changed {
            if let Some(group) = quotas.groups.get(&id) {
                editor.replace(&id.info_key(), &group.info.encode())?;
                editor.replace(&id.limit_key(), &group.limit.encode())?;
            }
        }
        Ok(())
    }
}
