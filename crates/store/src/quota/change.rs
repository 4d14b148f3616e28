//! What users change of quota groups.
//!
//! Owns switching quotas on and off, groups, their relations and limits. All of
//! it happens within [`crate::Store::commit_with`]. Mistakes of the user are
//! found before the first edit.

use super::QuotaState;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::quota::fault::QuotaError;
use crate::quota::groups::QuotaGroup;
use crate::quota::groups::Quotas;
use crate::quota::groups::Running;
use butterfs_format::features::Incompat;
use butterfs_format::item::qgroup::{
    GroupId, QgroupInfo, QgroupLimitFlags, QgroupStatus, QgroupStatusFlags,
};
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, TreeId};
use butterfs_tree::Editor;
use std::collections::{BTreeMap, BTreeSet};

/// What quotas count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaMode {
    /// What each subvolume reaches, and reaches alone.
    Full,
    /// What each subvolume allocated.
    Simple,
}

/// What a change of a relation did to the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigned {
    /// They are right.
    Kept,
    /// They are wrong until a scan.
    NeedsRescan,
}

/// What a group uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupNumbers {
    /// Bytes that its subvolumes reach.
    pub referenced: u64,
    /// Bytes that nobody else reaches.
    pub exclusive: u64,
}

/// A new limit, or none. A value whose outer `Option` is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// Of referenced bytes.
    pub referenced: Option<Option<u64>>,
    /// Of exclusive bytes.
    pub exclusive: Option<Option<u64>>,
}

/// Whether numbers are added to groups or taken from them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Removes a group with its relations, in memory and in the tree.
pub(super) fn remove_group(
    engine: &mut Engine,
    quotas: &mut Quotas,
    id: GroupId,
) -> Result<(), StoreError> {
    let Some(group) = quotas.groups.remove(&id) else {
        return Ok(());
    };
    quotas.changed.remove(&id);
    for other in group.parents.iter().chain(&group.children) {
        if let Some(other) = quotas.groups.get_mut(other) {
            other.parents.remove(&id);
            other.children.remove(&id);
        }
    }
    let mut editor = Editor::new(engine, TreeId::QUOTA);
    for other in group.parents.iter().chain(&group.children) {
        editor.remove(&id.relation_key(*other))?;
        editor.remove(&other.relation_key(id))?;
    }
    editor.remove(&id.info_key())?;
    editor.remove(&id.limit_key())?;
    Ok(())
}

impl Quotas {
    fn get(&self, id: GroupId) -> Result<&QuotaGroup, QuotaError> {
        self.groups.get(&id).ok_or(QuotaError::NoGroup(id))
    }

    fn relate(&mut self, child: GroupId, parent: GroupId, way: Way) {
        if let Some(scan) = &mut self.scan {
            scan.lost
                .get_or_insert("groups were joined meanwhile".to_owned());
        }
        if let Some(group) = self.groups.get_mut(&child) {
            match way {
                Way::In => group.parents.insert(parent),
                Way::Out => group.parents.remove(&parent),
            };
        }
        if let Some(group) = self.groups.get_mut(&parent) {
            match way {
                Way::In => group.children.insert(child),
                Way::Out => group.children.remove(&child),
            };
        }
    }

    /// Adds the numbers `info` of `child` to `groups`, or takes them away, while
    /// it is not in them. If the child shares extents with others, or some of
    /// its subvolumes are in one of the groups by another way, a scan is needed
    /// instead. Simple quotas have no scans, and share nothing: there such
    /// subvolumes are left out.
    fn carry(
        &mut self,
        child: GroupId,
        groups: &BTreeSet<GroupId>,
        info: QgroupInfo,
        way: Way,
    ) -> Assigned {
        let is_simple = self.is_simple();
        if self.is_inconsistent() {
            return Assigned::NeedsRescan;
        }
        if info.referenced != info.exclusive {
            self.set_inconsistent("a group that shares with others changed its place");
            return Assigned::NeedsRescan;
        }
        let own = self.subvolumes_in(child);
        let there = |quotas: &Self, id: GroupId| -> u64 {
            let both = quotas.subvolumes_in(id);
            let both = both.intersection(&own);
            let groups = both.filter_map(|tree| quotas.groups.get(&GroupId::of_tree(*tree)));
            groups.map(|group| group.info.exclusive).sum()
        };
        let meets = |id: &GroupId| !self.subvolumes_in(*id).is_disjoint(&own);
        let is_there = groups.iter().any(meets);
        if is_there && !is_simple {
            self.set_inconsistent("groups that have some subvolumes in common were joined");
            return Assigned::NeedsRescan;
        }
        for id in groups {
            let carried = info.exclusive.saturating_sub(there(self, *id));
            let Some(group) = self.groups.get_mut(id) else {
                continue;
            };
            let moved = |number: u64| match way {
                Way::In => number.saturating_add(carried),
                Way::Out => number.saturating_sub(carried),
            };
            group.info.referenced = moved(group.info.referenced);
            group.info.exclusive = moved(group.info.exclusive);
            if !is_simple {
                group.info.referenced_compressed = group.info.referenced;
                group.info.exclusive_compressed = group.info.exclusive;
            }
            self.changed.insert(*id);
        }
        Assigned::Kept
    }
}

impl QuotaState {
    /// The groups, to change.
    pub(super) fn on_mut(&mut self) -> Result<&mut Quotas, QuotaError> {
        self.get_mut().ok_or(QuotaError::Off)
    }

    /// Makes a group of groups.
    ///
    /// # Errors
    /// [`QuotaError`]
    pub fn create_group(&mut self, id: GroupId) -> Result<(), StoreError> {
        let quotas = self.on_mut()?;
        if id.level() == 0 {
            return Err(QuotaError::OfSubvolume(id).into());
        }
        if quotas.groups.contains_key(&id) {
            return Err(QuotaError::Exists(id).into());
        }
        quotas.add_group(id);
        Ok(())
    }

    /// Changes the limits of a group.
    ///
    /// # Errors
    /// [`QuotaError`]; reading.
    pub fn limit_group(&mut self, id: GroupId, change: LimitChange) -> Result<(), StoreError> {
        let quotas = self.on_mut()?;
        let group = quotas.groups.get_mut(&id).ok_or(QuotaError::NoGroup(id))?;
        let limit = &mut group.limit;
        for (change, max, flag) in [
            (
                change.referenced,
                &mut limit.referenced_max,
                QgroupLimitFlags::MAX_REFERENCED,
            ),
            (
                change.exclusive,
                &mut limit.exclusive_max,
                QgroupLimitFlags::MAX_EXCLUSIVE,
            ),
        ] {
            match change {
                None => {}
                Some(None) => {
                    *max = 0;
                    limit.flags -= flag;
                }
                Some(Some(bytes)) => {
                    *max = bytes;
                    limit.flags |= flag;
                }
            }
        }
        quotas.changed.insert(id);
        Ok(())
    }

    /// Groups of a new subvolume in a directory of `parent`, if the user names
    /// none. With simple quotas they are those of `parent`; otherwise there are
    /// none.
    #[must_use]
    pub fn default_parents(&self, parent: TreeId) -> BTreeSet<GroupId> {
        let quotas = self.get().filter(|quotas| quotas.is_simple());
        let group = quotas.and_then(|quotas| quotas.group(GroupId::of_tree(parent)));
        group.map(|group| group.parents.clone()).unwrap_or_default()
    }

    /// Errors unless a new subvolume can be put into all of `parents`.
    ///
    /// # Errors
    /// [`QuotaError`]
    pub fn check_parents(&self, parents: &BTreeSet<GroupId>) -> Result<(), StoreError> {
        for parent in parents {
            self.get().ok_or(QuotaError::Off)?.get(*parent)?;
            if parent.level() == 0 {
                let child = GroupId(0);
                let parent = *parent;
                return Err(QuotaError::WrongLevels { child, parent }.into());
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Switches quotas on, with a group for each of `trees`. Does nothing if
    /// they are on. In full mode the numbers are inconsistent until
    /// [`crate::Store::finish_quota_scan`]. Simple quotas count what is
    /// allocated from the next generation on.
    ///
    /// # Errors
    /// [`QuotaError::OtherMode`]; no space; reading.
    pub fn enable_quotas(
        &mut self,
        trees: &BTreeSet<TreeId>,
        mode: QuotaMode,
    ) -> Result<(), StoreError> {
        if let Some(quotas) = self.quotas.get() {
            return if quotas.is_simple() == (mode == QuotaMode::Simple) {
                Ok(())
            } else {
                Err(QuotaError::OtherMode.into())
            };
        }
        self.remove_plain_tree(TreeId::QUOTA)?;
        let item = RootItem {
            refs: 1,
            bytes_used: u64::try_from(self.node_size()).unwrap_or(u64::MAX),
            ..RootItem::default()
        };
        self.create_tree(TreeId::QUOTA, item)?;
        let (flag, from) = match mode {
            QuotaMode::Full => (QgroupStatusFlags::INCONSISTENT, Generation(0)),
            // Extents of the running generation may or may not have been
            // counted.
            QuotaMode::Simple => {
                self.set_incompat(Incompat::SIMPLE_QUOTA);
                let next = self.generation().get().saturating_add(1);
                (QgroupStatusFlags::SIMPLE_MODE, Generation(next))
            }
        };
        let mut quotas = Quotas {
            status: QgroupStatus {
                version: QgroupStatus::VERSION,
                generation: self.generation(),
                flags: QgroupStatusFlags::ON | flag,
                rescan: QgroupStatus::NO_RESCAN,
                enable_generation: Some(from),
            },
            groups: BTreeMap::new(),
            changed: BTreeSet::new(),
            reason: Some("they were not counted yet".to_owned()),
            running: Running::default(),
            scan: None,
        };
        for tree in trees {
            quotas.add_group(GroupId::of_tree(*tree));
        }
        self.note_edit();
        self.quotas.set(Some(quotas));
        Ok(())
    }

    /// Switches quotas off: all groups and limits are gone.
    ///
    /// # Errors
    /// Reading.
    pub fn disable_quotas(&mut self) -> Result<(), StoreError> {
        // It reads all nodes before its first edit: a tree that cannot be read
        // stays, and nothing else is harmed.
        self.remove_plain_tree(TreeId::QUOTA)?;
        self.note_edit();
        self.quotas.set(None);
        Ok(())
    }

    /// Removes a group without members. A group of level 0 can only be removed
    /// when its subvolume is gone.
    ///
    /// # Errors
    /// [`QuotaError`]; reading.
    pub fn destroy_quota_group(&mut self, id: GroupId) -> Result<(), StoreError> {
        let group = self.quotas.on_mut()?.get(id)?;
        if !group.children.is_empty() {
            return Err(QuotaError::HasMembers(id).into());
        }
        let has_tree = id.tree().map_or(Ok(false), |tree| self.has_tree(tree))?;
        if has_tree {
            return Err(QuotaError::OfSubvolume(id).into());
        }
        let quotas = self.quotas.on_mut()?;
        if quotas.is_simple() && quotas.get(id)?.info.referenced != 0 {
            return Err(QuotaError::InUse(id).into());
        }
        self.quotas.on_mut()?.running.gone.insert(id);
        Ok(())
    }

    /// Puts `child` into `parent`.
    ///
    /// # Errors
    /// [`QuotaError`]; reading.
    pub fn assign_quota_group(
        &mut self,
        child: GroupId,
        parent: GroupId,
    ) -> Result<Assigned, StoreError> {
        let quotas = self.quotas.on_mut()?;
        quotas.get(parent)?;
        let group = quotas.get(child)?;
        if child.level() >= parent.level() {
            return Err(QuotaError::WrongLevels { child, parent }.into());
        }
        if group.parents.contains(&parent) {
            return Err(QuotaError::Related { child, parent }.into());
        }
        let info = group.info;
        self.note_edit();
        let quotas = self.quotas.on_mut()?;
        let before = quotas.with_ancestors(child);
        let above = quotas.with_ancestors(parent);
        let entered = above.difference(&before).copied().collect();
        let assigned = quotas.carry(child, &entered, info, Way::In);
        quotas.relate(child, parent, Way::In);
        let mut editor = Editor::new(self, TreeId::QUOTA);
        editor.replace(&child.relation_key(parent), &[])?;
        editor.replace(&parent.relation_key(child), &[])?;
        Ok(assigned)
    }

    /// Takes `child` out of `parent`.
    ///
    /// # Errors
    /// [`QuotaError`]; reading.
    pub fn remove_quota_relation(
        &mut self,
        child: GroupId,
        parent: GroupId,
    ) -> Result<Assigned, StoreError> {
        let quotas = self.quotas.on_mut()?;
        quotas.get(parent)?;
        let group = quotas.get(child)?;
        if !group.parents.contains(&parent) {
            return Err(QuotaError::NotRelated { child, parent }.into());
        }
        let info = group.info;
        self.note_edit();
        let quotas = self.quotas.on_mut()?;
        let before = quotas.with_ancestors(child);
        quotas.relate(child, parent, Way::Out);
        let after = quotas.with_ancestors(child);
        let left = before.difference(&after).copied().collect();
        let assigned = quotas.carry(child, &left, info, Way::Out);
        let mut editor = Editor::new(self, TreeId::QUOTA);
        editor.remove(&child.relation_key(parent))?;
        editor.remove(&parent.relation_key(child))?;
        Ok(assigned)
    }

    /// Puts the new subvolume `tree` into groups, in the generation that makes
    /// it. The numbers follow at the commit.
    ///
    /// # Errors
    /// [`QuotaError`], before the first edit; reading.
    pub fn inherit_quota_groups(
        &mut self,
        tree: TreeId,
        parents: &BTreeSet<GroupId>,
    ) -> Result<(), StoreError> {
        let child = GroupId::of_tree(tree);
        for parent in parents {
            self.note_edit();
            self.quotas.on_mut()?.relate(child, *parent, Way::In);
            let mut editor = Editor::new(self, TreeId::QUOTA);
            editor.replace(&child.relation_key(*parent), &[])?;
            editor.replace(&parent.relation_key(child), &[])?;
        }
        Ok(())
    }
}
