//! How the numbers of simple quotas follow a generation.
//!
//! Owns the rule: an extent is charged to the tree that allocated it, until nobody
//! refers to it. It holds from the generation after the one that switched simple
//! quotas on. For data the extent tree names that tree (an owner reference), for
//! nodes their header does. It does not matter which subvolumes reach an extent.
//! So nothing is walked, the numbers are always right, and there is no scan.
//!
//! A group outlives its subvolume while other subvolumes reach what that
//! subvolume allocated.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::quota::groups::Quotas;
use crate::refs::pending::{Backref, ExtentKind, PendingExtent};
use crate::refs::record::ExtentRecord;
use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{Generation, Logical, TreeId};
use std::collections::BTreeMap;

/// What a new or freed extent means for its owner.
struct Charge {
    owner: TreeId,
    bytes: i128,
}

impl Quotas {
    /// The first generation whose extents are charged.
    fn charged_from(&self) -> Generation {
        self.status.enable_generation.unwrap_or(Generation(0))
    }
}

impl Engine {
    /// Brings the running generation into the groups' numbers.
    pub(super) fn follow_simple(&self, quotas: &mut Quotas) -> Result<(), StoreError> {
        let from = quotas.charged_from();
        let mut charges: BTreeMap<TreeId, i128> = BTreeMap::new();
        for (logical, extent) in self.ledger.pending().iter() {
            let Some(charge) = self.charge(logical, extent, from)? else {
                continue;
            };
            let sum = charges.entry(charge.owner).or_default();
            *sum = sum.saturating_add(charge.bytes);
        }
        for (tree, bytes) in charges {
            if tree.is_subvolume() && bytes != 0 {
                quotas.charge(tree, bytes, self.generation());
            }
        }
        Ok(())
    }

    fn charge(
        &self,
        logical: Logical,
        extent: &PendingExtent,
        from: Generation,
    ) -> Result<Option<Charge>, StoreError> {
        let bytes = i128::from(extent.length);
        if extent.new {
            let owner = extent.owner.filter(|_| self.generation() >= from);
            return Ok(owner.map(|owner| Charge { owner, bytes }));
        }
        if extent.net() >= 0 {
            return Ok(None);
        }
        let record = ExtentRecord::load(self, logical, extent.length, extent.kind)?;
        // A tree of the volume's own belongs to nobody; its node may be
        // damaged.
        let is_own = |(by, _)| matches!(by, Backref::Tree(tree) if !TreeId::is_subvolume(tree));
        if matches!(extent.kind, ExtentKind::Node { .. }) && extent.changes.iter().all(is_own) {
            return Ok(None);
        }
        let is_freed = record.refs.checked_add_signed(extent.net()) == Some(0);
        if !is_freed || record.generation < from {
            return Ok(None);
        }
        let owner = match extent.kind {
            ExtentKind::Data => record.owner.map(TreeId),
            ExtentKind::Node { level, .. } => Some(self.node_at(logical, Some(level))?.owner()),
        };
        Ok(owner.map(|owner| Charge {
            owner,
            bytes: bytes.saturating_neg(),
        }))
    }
}

impl Quotas {
    fn charge(&mut self, tree: TreeId, bytes: i128, generation: Generation) {
        let group = GroupId::of_tree(tree);
        if !self.groups.contains_key(&group) {
            tracing::warn!(%tree, "a subvolume without a quota group changed what it uses");
            return;
        }
        for id in self.with_ancestors(group) {
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            let sum = i128::from(group.info.referenced).saturating_add(bytes);
            let sum = u64::try_from(sum).unwrap_or_else(|_| {
                tracing::warn!(%id, "a quota group would use less than nothing");
                0
            });
            group.info.referenced = sum;
            group.info.exclusive = sum;
            group.info.generation = generation;
            self.changed.insert(id);
        }
    }
}
