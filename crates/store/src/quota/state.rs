//! Whether quotas are on, and what is noted for counting.

use super::groups::{Quotas, SnapshotOf};
use butterfs_format::TreeId;
use butterfs_format::item::qgroup::GroupId;

/// The quota groups of a volume, where quotas are on.
#[derive(Debug, Default)]
pub struct QuotaState {
    on: Option<Quotas>,
}

impl QuotaState {
    /// Quota groups; `None` when quotas are off.
    pub(crate) const fn get(&self) -> Option<&Quotas> {
        self.on.as_ref()
    }

    /// Quota groups, to change.
    pub(super) const fn get_mut(&mut self) -> Option<&mut Quotas> {
        self.on.as_mut()
    }

    /// Takes the groups out, to count with them. The caller brings them back.
    pub(super) const fn take(&mut self) -> Option<Quotas> {
        self.on.take()
    }

    /// From now on, these are the quota groups; without any, quotas are off.
    pub(crate) fn set(&mut self, quotas: Option<Quotas>) {
        self.on = quotas;
    }

    /// Notes a new subvolume, which gets a group.
    pub(crate) fn note_new_tree(&mut self, tree: TreeId) {
        if let Some(quotas) = &mut self.on
            && tree.is_subvolume()
        {
            quotas.add_group(GroupId::of_tree(tree));
        }
    }

    /// Notes a snapshot: `tree` reaches all that `source` reaches.
    pub(crate) fn note_snapshot(&mut self, source: TreeId, tree: TreeId) {
        if let Some(quotas) = &mut self.on
            && !quotas.is_simple()
        {
            quotas.inherit_limits(source, tree);
            let running = &mut quotas.running;
            if running.snapshot.is_some() {
                running.lost = Some("two snapshots in one generation");
            }
            running.snapshot = Some(SnapshotOf { source, tree });
        }
    }

    /// Notes that a deleted subvolume is freed. Its group goes too.
    pub(crate) fn note_forgotten_tree(&mut self, tree: TreeId) {
        if let Some(quotas) = &mut self.on {
            quotas.running.gone.insert(GroupId::of_tree(tree));
        }
    }

    /// The greatest id of a subvolume whose group goes with this generation; 0
    /// if there is none.
    pub(crate) fn last_forgotten_tree(&self) -> u64 {
        let gone = self.on.iter().flat_map(|quotas| &quotas.running.gone);
        let trees = gone.filter_map(|id| id.tree());
        trees.map(TreeId::get).max().unwrap_or_default()
    }

    /// Notes that `tree` refers to `bytes` more that other subvolumes
    /// allocated. With simple quotas that costs nothing.
    pub fn note_sharing(&mut self, tree: TreeId, bytes: u64) {
        if self.get().is_some_and(|quotas| !quotas.is_simple()) {
            self.note_growth(tree, bytes);
        }
    }

    /// Notes that `tree` holds `bytes` more from the next commit on.
    pub(crate) fn note_growth(&mut self, tree: TreeId, bytes: u64) {
        if let Some(quotas) = &mut self.on
            && tree.is_subvolume()
        {
            let grown = quotas.running.grown.entry(tree).or_default();
            *grown = grown.saturating_add(bytes);
        }
    }

    /// Says that the current operation cannot be counted, so all quota groups
    /// must be counted anew.
    pub(crate) fn distrust(&mut self, reason: &'static str) {
        if let Some(quotas) = &mut self.on
            && !quotas.is_simple()
        {
            quotas.running.lost = Some(reason);
            quotas.running.touched.clear();
        }
    }
}
