//! Whether new data fit into the limits of their groups.
//!
//! The numbers are those of the last commit. Later changes are counted too high
//! rather than too low, because overwritten data are freed only at the commit.
//! So an operation that is refused asks again after a commit.

use super::QuotaState;
use crate::quota::groups::QuotaGroup;
use crate::quota::groups::Quotas;
use butterfs_format::TreeId;
use butterfs_format::item::qgroup::{GroupId, QgroupLimitFlags};
use std::collections::BTreeSet;

/// Whether it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// It does.
    Yes,
    /// A limit would be exceeded.
    No,
}

impl QuotaGroup {
    /// The most that may be added if nothing had changed since the last commit.
    fn room(&self) -> Option<u64> {
        let room = |flag, max: u64, used: u64| {
            let holds = self.limit.flags.contains(flag);
            holds.then(|| max.saturating_sub(used))
        };
        let referenced = room(
            QgroupLimitFlags::MAX_REFERENCED,
            self.limit.referenced_max,
            self.info.referenced,
        );
        let exclusive = room(
            QgroupLimitFlags::MAX_EXCLUSIVE,
            self.limit.exclusive_max,
            self.info.exclusive,
        );
        match (referenced, exclusive) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

impl Quotas {
    fn grown(&self, tree: TreeId) -> u64 {
        self.running.grown.get(&tree).copied().unwrap_or_default()
    }
}

impl QuotaState {
    /// Whether `bytes` more in `tree` fit into the limits, together with the
    /// bytes that `waiting` gives for each subvolume.
    #[must_use]
    pub fn fits(&self, tree: TreeId, bytes: u64, waiting: impl Fn(TreeId) -> u64) -> Fits {
        let Some(quotas) = self.get() else {
            return Fits::Yes;
        };
        for id in quotas.with_ancestors(GroupId::of_tree(tree)) {
            let Some(room) = quotas.group(id).and_then(QuotaGroup::room) else {
                continue;
            };
            let mut wanted = bytes;
            for member in quotas.subvolumes_in(id) {
                wanted = wanted
                    .saturating_add(quotas.grown(member))
                    .saturating_add(waiting(member));
            }
            if wanted > room {
                return Fits::No;
            }
        }
        Fits::Yes
    }

    /// Whether a snapshot of `source` fits into the limits of the groups that
    /// get it, on a volume with nodes of `node_size`. Those that do not contain `source` get all that `source`
    /// reaches.
    #[must_use]
    pub fn fits_snapshot(
        &self,
        source: TreeId,
        parents: &BTreeSet<GroupId>,
        node_size: usize,
    ) -> Fits {
        let Some(quotas) = self.get() else {
            return Fits::Yes;
        };
        let of_source = GroupId::of_tree(source);
        let node = u64::try_from(node_size).unwrap_or(u64::MAX);
        let reached = match quotas.group(of_source) {
            // The snapshot allocates nothing but its own root.
            _ if quotas.is_simple() => node,
            Some(group) => group.info.referenced.saturating_add(quotas.grown(source)),
            None => 0,
        };
        let has_already = quotas.with_ancestors(of_source);
        let groups = parents.iter().flat_map(|id| quotas.with_ancestors(*id));
        for id in groups.collect::<BTreeSet<_>>() {
            let bytes = if has_already.contains(&id) {
                node
            } else {
                reached
            };
            let room = quotas.group(id).and_then(QuotaGroup::room);
            let grown = quotas.subvolumes_in(id).into_iter();
            let grown = grown.fold(bytes, |sum, member| {
                sum.saturating_add(quotas.grown(member))
            });
            if room.is_some_and(|room| grown > room) {
                return Fits::No;
            }
        }
        Fits::Yes
    }
}
