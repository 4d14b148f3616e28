//! Changes of files: a transaction of the store, and the inodes that follow it
//! in memory.
//!
//! Invariant: after an error, the inodes that a change was given are in memory
//! as they were before it. Their trees are unchanged too, or the volume has
//! failed (the store's transaction sees to that). So a change happens as a
//! whole or not at all.

use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState};
use butterfs_format::compression::Algorithm;
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{InodeId, TreeId};
use butterfs_store::{Engine, Purpose, TreeAccess, Tries};
use butterfs_tree::{ItemChange, change_items};
use parking_lot::RwLockWriteGuard;
use std::sync::atomic::Ordering;

/// Nodes that a change of names touches at most, per tree path of eight
/// levels with splits.
pub(crate) const NODES_PER_PATH: usize = 10;
/// Nodes that a new inode with its name touches.
pub(crate) const NODES_OF_NEW: usize = 8 * NODES_PER_PATH;

/// Inodes that a change alters in memory before the change is certain.
pub(crate) trait Altered {
    /// What is needed to undo the change. Data that wait in the write buffer
    /// are not part of it, because no change drops them before its last edit.
    type Before;

    fn before(&self) -> Self::Before;

    fn undo(&mut self, before: Self::Before);
}

/// An inode before a change.
pub(crate) struct Before {
    item: InodeItem,
    disk_size: u64,
    compression: Option<Option<Algorithm>>,
    next_index: Option<u64>,
    emptied: bool,
    deleted: bool,
}

impl Altered for InodeState {
    type Before = Before;

    fn before(&self) -> Before {
        Before {
            item: self.item.clone(),
            disk_size: self.disk_size,
            compression: self.compression,
            next_index: self.next_index,
            emptied: self.emptied,
            deleted: self.deleted,
        }
    }

    fn undo(&mut self, before: Before) {
        self.item = before.item;
        self.disk_size = before.disk_size;
        self.compression = before.compression;
        self.next_index = before.next_index;
        self.emptied = before.emptied;
        self.deleted = before.deleted;
    }
}

/// Several inodes that are locked.
pub(crate) type Locked<'a> = Vec<(InodeId, RwLockWriteGuard<'a, InodeState>)>;

impl Altered for Locked<'_> {
    type Before = Vec<Before>;

    fn before(&self) -> Vec<Before> {
        self.iter().map(|(_, state)| state.before()).collect()
    }

    fn undo(&mut self, before: Vec<Before>) {
        for ((_, state), before) in self.iter_mut().zip(before) {
            state.undo(before);
        }
    }
}

/// Errors unless users may change files of `tree`.
pub(crate) fn check_writable(engine: &Engine, tree: TreeId) -> Result<(), FsError> {
    match engine.tree_access(tree)? {
        TreeAccess::ReadWrite => Ok(()),
        TreeAccess::ReadOnly => Err(FsError::ReadOnlySubvolume),
        TreeAccess::Dead => Err(FsError::NotFound),
    }
}

impl Filesystem {
    /// Errors unless users may change files of `tree`.
    pub(crate) fn check_changeable(&self, tree: TreeId) -> Result<(), FsError> {
        check_writable(&self.store.read(), tree)
    }

    /// Whether a write to this file obeys no rules: its subvolume may be
    /// changed, and there are no quotas. False if nobody has looked since a
    /// rule changed.
    pub(crate) fn is_unruled(&self, inode: &Inode) -> bool {
        inode.unruled_as_of.load(Ordering::Relaxed) == self.write_rules.changes()
    }

    /// Errors unless users may change the file's subvolume. The file is locked:
    /// a thread that makes the subvolume read-only waits for that lock.
    pub(crate) fn check_rules(&self, inode: &Inode) -> Result<(), FsError> {
        let changes = self.write_rules.changes();
        let engine = self.store.read();
        check_writable(&engine, inode.id.tree)?;
        if engine.quotas().is_none() {
            inode.unruled_as_of.store(changes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs `change` in a transaction of `nodes`. The change is a user's, needs
    /// a writable subvolume, and alters `inodes` along with the trees. If it
    /// meets a node that is not in memory before its first edit, the node is
    /// loaded and the change runs again. So until its first edit, the change
    /// must only read.
    pub(crate) fn change<A: Altered, R>(
        &self,
        inodes: &mut A,
        tree: TreeId,
        (nodes, purpose): (usize, Purpose),
        mut change: impl FnMut(&mut Engine, &mut A) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let mut tries = Tries::default();
        loop {
            let before = inodes.before();
            let mut transaction = self.begin(nodes, purpose)?;
            let result = transaction.attempt(&mut tries, |engine| {
                check_writable(engine, tree)?;
                change(engine, inodes)
            });
            if !tries.missed() || transaction.has_edited() {
                let result = transaction.end(result);
                return result.inspect_err(|_| inodes.undo(before));
            }
            drop(transaction);
            inodes.undo(before);
            self.store.load_missing(&mut tries);
        }
    }

    /// Changes the items that `plan` names, then calls `finish` with the rest
    /// of the plan before another thread can change any of it. If the changes
    /// need no new node, they run beside those of other threads; otherwise as
    /// by [`Filesystem::change`]. `plan` may be called several times.
    pub(crate) fn change_items<A: Altered, P, R>(
        &self,
        inodes: &mut A,
        tree: TreeId,
        room: (usize, Purpose),
        plan: impl Fn(&Engine, &mut A) -> Result<(Vec<ItemChange>, P), FsError>,
        finish: impl Fn(P) -> R,
    ) -> Result<R, FsError> {
        let before = inodes.before();
        let beside = |engine: &Engine| {
            check_writable(engine, tree)?;
            plan(engine, inodes)
        };
        let changed = self.store.update_leaves(tree, room, beside, &finish);
        if let Ok(Some(result)) = changed {
            return Ok(result);
        }
        inodes.undo(before);
        changed?;
        self.change(inodes, tree, room, |engine, inodes| {
            let (changes, rest) = plan(engine, inodes)?;
            change_items(engine, tree, &changes)?;
            Ok(finish(rest))
        })
    }

    /// [`Filesystem::change`] for any subvolume that was not deleted. It is for
    /// changes that were acknowledged, or that no user sees.
    pub(crate) fn change_own<A: Altered, R>(
        &self,
        inodes: &mut A,
        tree: TreeId,
        room: (usize, Purpose),
        change: impl FnOnce(&mut Engine, &mut A) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let before = inodes.before();
        let result = self.change_tree(tree, room, |engine| change(engine, inodes));
        result.inspect_err(|_| inodes.undo(before))
    }

    /// [`Filesystem::change_own`] that alters no inode in memory.
    pub(crate) fn change_tree<R>(
        &self,
        tree: TreeId,
        (nodes, purpose): (usize, Purpose),
        change: impl FnOnce(&mut Engine) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let mut transaction = self.begin(nodes, purpose)?;
        if transaction.tree_access(tree)? == TreeAccess::Dead {
            return Err(FsError::NotFound);
        }
        let result = change(&mut transaction);
        transaction.end(result)
    }

    /// [`Filesystem::change`] that is a commit of its own: nothing comes
    /// between the change and the commit.
    pub(crate) fn change_and_commit<A: Altered, R>(
        &self,
        inodes: &mut A,
        tree: TreeId,
        nodes: usize,
        change: impl FnOnce(&mut Engine, &mut A) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let before = inodes.before();
        let result = self.store.commit_with(nodes, |engine| {
            check_writable(engine, tree)?;
            change(engine, inodes)
        });
        result.inspect_err(|_| inodes.undo(before))
    }
}
