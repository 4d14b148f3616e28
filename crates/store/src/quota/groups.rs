//! Quota groups in memory, and what is noted for counting.

use crate::refs::pending::ExtentKind;
use butterfs_format::item::qgroup::{
    GroupId, QgroupInfo, QgroupLimit, QgroupStatus, QgroupStatusFlags,
};
use butterfs_format::{Generation, Logical, TreeId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// One quota group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaGroup {
    /// What the group uses, as of the last commit.
    pub info: QgroupInfo,
    /// What it may use.
    pub limit: QgroupLimit,
    /// Groups of higher levels that it belongs to.
    pub parents: BTreeSet<GroupId>,
    /// Groups of lower levels that belong to it.
    pub children: BTreeSet<GroupId>,
}

/// What changed apart from the references of extents.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Extents below shared nodes that a deletion dropped. Their references did
    /// not change, but the set of subvolumes that reach them did.
    pub(super) touched: BTreeMap<Logical, Touched>,
    /// A snapshot: all that its source reaches.
    pub(super) snapshot: Option<SnapshotOf>,
    /// Groups whose subvolumes are gone with this generation.
    pub(super) gone: BTreeSet<GroupId>,
    /// Bytes that subvolumes got, counted too high rather than too low.
    pub(super) grown: FxHashMap<TreeId, u64>,
    /// Why the numbers cannot follow.
    pub(super) lost: Option<&'static str>,
}

/// An extent in [`Running::touched`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub(super) length: u64,
    pub(super) kind: ExtentKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotOf {
    pub(super) source: TreeId,
    pub(super) tree: TreeId,
}

/// The quota groups of a volume on which quotas are on.
#[derive(Debug)]
pub struct Quotas {
    pub(super) status: QgroupStatus,
    pub(super) groups: BTreeMap<GroupId, QuotaGroup>,
    /// Groups whose use or limit must be written.
    pub(super) changed: BTreeSet<GroupId>,
    /// Why the numbers are inconsistent, where that is known.
    pub(super) reason: Option<String>,
    pub(super) running: Running,
    pub(super) scan: Option<Scan>,
}

impl Quotas {
    /// All groups, ascending.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &QuotaGroup)> {
        self.groups.iter().map(|(id, group)| (*id, group))
    }

    /// One group.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&QuotaGroup> {
        self.groups.get(&id)
    }

    /// State of quotas.
    #[must_use]
    pub const fn status(&self) -> &QgroupStatus {
        &self.status
    }

    /// True when the numbers are wrong until a scan ends.
    #[must_use]
    pub const fn is_inconsistent(&self) -> bool {
        let wrong =
            QgroupStatusFlags(QgroupStatusFlags::INCONSISTENT.0 | QgroupStatusFlags::RESCAN.0);
        self.status.flags.intersects(wrong)
    }

    /// Why the numbers are wrong, as far as this run of the program knows.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref().filter(|_| self.is_inconsistent())
    }

    /// True if extents are charged to the subvolume that allocated them,
    /// whoever reaches them.
    #[must_use]
    pub const fn is_simple(&self) -> bool {
        self.status.flags.contains(QgroupStatusFlags::SIMPLE_MODE)
    }

    pub(super) fn set_inconsistent(&mut self, reason: &str) {
        if !self.status.flags.contains(QgroupStatusFlags::INCONSISTENT) {
            tracing::warn!(reason, "quota numbers are inconsistent until a rescan");
            self.reason = Some(reason.to_owned());
        }
        self.status.flags |= QgroupStatusFlags::INCONSISTENT;
        self.status.flags -= QgroupStatusFlags::RESCAN;
        self.status.rescan = QgroupStatus::NO_RESCAN;
    }

    /// `group` and all groups that it is in, directly or not.
    #[must_use]
    pub fn with_ancestors(&self, group: GroupId) -> BTreeSet<GroupId> {
        self.closure(group, |group| &group.parents)
    }

    /// Subvolumes in `group`, directly or not.
    #[must_use]
    pub fn subvolumes_in(&self, group: GroupId) -> BTreeSet<TreeId> {
        let all = self.closure(group, |group| &group.children);
        all.into_iter().filter_map(GroupId::tree).collect()
    }

    pub(super) fn closure(
        &self,
        start: GroupId,
        next: impl Fn(&QuotaGroup) -> &BTreeSet<GroupId>,
    ) -> BTreeSet<GroupId> {
        let mut found = BTreeSet::from([start]);
        let mut waiting = vec![start];
        while let Some(id) = waiting.pop() {
            for other in self.groups.get(&id).into_iter().flat_map(&next) {
                if found.insert(*other) {
                    waiting.push(*other);
                }
            }
        }
        found
    }

    pub(super) fn add_group(&mut self, id: GroupId) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.groups.entry(id) {
            entry.insert(QuotaGroup::default());
            self.changed.insert(id);
        }
    }

    /// As in the kernel, a snapshot may use what its source may use.
    pub(super) fn inherit_limits(&mut self, source: TreeId, tree: TreeId) {
        let limit = self
            .group(GroupId::of_tree(source))
            .map(|group| group.limit);
        let new = GroupId::of_tree(tree);
        if let (Some(limit), Some(group)) = (limit, self.groups.get_mut(&new)) {
            group.limit = limit;
            self.changed.insert(new);
        }
    }

    /// Nodes of the quota tree that a commit changes at most.
    pub(crate) fn commit_nodes_max(&self, node_size: u64) -> u64 {
        /// Use, limit and two relations, with their headers, in half-filled
        /// nodes.
        const BYTES_PER_GROUP: u64 = 512;
        let groups = u64::try_from(self.groups.len()).unwrap_or(u64::MAX);
        let bytes = groups.saturating_mul(BYTES_PER_GROUP);
        bytes
            .checked_div(node_size)
            .unwrap_or_default()
            .saturating_add(8)
    }
}

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

/// Change of a group's numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delta {
    pub(super) referenced: i128,
    pub(super) exclusive: i128,
}
