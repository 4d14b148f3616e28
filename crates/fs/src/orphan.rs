//! Inodes without a name: those still in use, and those that a crash left.
//!
//! Owns orphan items and the deletion of inodes, in bounded steps.

use crate::Filesystem;
use crate::change::NODES_PER_PATH;
use crate::dir::{self, Link};
use crate::error::FsError;
use crate::inode::{Inode, InodeState, check_alive, store_item};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, TreeId, object};
use butterfs_store::{DataExtent, DataOwner, Engine, Purpose, now};
use butterfs_tree::{Cursor, Edit, Editor, ItemChange, change_items};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Items of an inode that are deleted in one transaction.
const STEP: usize = 400;
/// Nodes that one step touches.
pub(crate) const NODES: usize = 2 * NODES_PER_PATH + STEP / 8;

/// The result for an inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names.
    Lives,
    /// It is an orphan: it is in use, or too big for one step.
    Waits,
    /// It is deleted.
    Gone,
}

const fn key(inode: InodeNumber) -> Key {
    Key::new(object::ORPHAN, ItemType::ORPHAN_ITEM, inode.0)
}

/// The change that marks an inode as to be deleted.
pub(crate) const fn change(id: InodeId) -> ItemChange {
    ItemChange::new(Edit::Put, key(id.number), Vec::new())
}

/// Marks an inode as to be deleted.
pub(crate) fn add(engine: &mut Engine, id: InodeId) -> Result<(), FsError> {
    Ok(change_items(engine, id.tree, &[change(id)])?)
}

/// Takes the mark back.
pub(crate) fn remove(engine: &mut Engine, id: InodeId) -> Result<(), FsError> {
    butterfs_tree::remove(engine, id.tree, &key(id.number))?;
    Ok(())
}

/// Removes one name of an inode. If it was the last name and `plan` says that
/// it is possible at once, removes the inode too. The directory's side is up to
/// the caller.
pub(crate) fn drop_link(
    engine: &mut Engine,
    inode: &Inode,
    state: &mut InodeState,
    (link, plan): (&Link, Option<Deletion>),
) -> Result<Fate, FsError> {
    // A count that is too small must not cost the inode its other names.
    let others = match state.item.nlink {
        0 | 1 => names_of(engine, inode.id)?.saturating_sub(1),
        more => more - 1,
    };
    dir::remove_link(engine, inode.id, link)?;
    state.item.nlink = others;
    state.item.ctime = now();
    state.item.sequence = state.item.sequence.wrapping_add(1);
    if state.item.nlink > 0 {
        store_item(engine, inode.id, state)?;
        return Ok(Fate::Lives);
    }
    if let Some(deletion) = plan.filter(|plan| plan.progress == Progress::Done)
        && inode.pins.load(Ordering::Acquire) == 0
    {
        deletion.apply(engine, inode.id)?;
        state.deleted = true;
        state.buffer.clear();
        return Ok(Fate::Gone);
    }
    store_item(engine, inode.id, state)?;
    add(engine, inode.id)?;
    Ok(Fate::Waits)
}

/// How many names an inode has, by its own items.
fn names_of(engine: &Engine, id: InodeId) -> Result<u32, FsError> {
    let names = dir::links(engine, id)?.len();
    Ok(u32::try_from(names).unwrap_or(u32::MAX))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    More,
}

/// A step of deleting an inode's items: all of them, or the last ones.
#[derive(Debug)]
pub(crate) struct Deletion {
    from: Key,
    drops: Vec<(DataExtent, DataOwner)>,
    progress: Progress,
}

/// What can be deleted at once when an inode loses a name, determined before
/// the first edit. `None` if the inode lives on, or has items that cannot be
/// read. In that case it waits as an orphan, and its name is removed all the
/// same.
///
/// # Errors
/// Only that of a node that is not in memory.
pub(crate) fn plan_last(
    engine: &Engine,
    inode: &Inode,
    state: &InodeState,
) -> Result<Option<Deletion>, FsError> {
    if state.item.nlink > 1 || inode.pins.load(Ordering::Acquire) > 0 {
        return Ok(None);
    }
    match plan(engine, inode.id) {
        Ok(deletion) => Ok(Some(deletion)),
        Err(error) if error.is_missing_node() => Err(error),
        Err(_) => Ok(None),
    }
}

fn plan(engine: &Engine, id: InodeId) -> Result<Deletion, FsError> {
    let object = id.number.get();
    let first = Key::new(object, ItemType::MIN, 0);
    let last = Key::new(object, ItemType::MAX, u64::MAX);
    let mut drops = Vec::new();
    let step = STEP.min(engine.extents_to_drop_max());
    let mut count = 0;
    let mut from = first;
    {
        let mut cursor = Cursor::seek_in(engine, id.tree, &last)?;
        // From the end, so that a shorter file is left.
        while cursor.prev()? {
            let Some((found, data)) = cursor.item().filter(|(k, _)| k.objectid == object) else {
                break;
            };
            if count == step {
                from = found.successor().unwrap_or(last);
                break;
            }
            count += 1;
            if found.item_type == ItemType::EXTENT_DATA {
                let extent = FileExtent::parse(data)
                    .map_err(|error| FsError::bad_item(id, "file extent", &error))?;
                if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) =
                    extent.body
                    && place.disk.get() != 0
                {
                    let owner = DataOwner {
                        tree: id.tree,
                        inode: id.number,
                        offset: found.offset.wrapping_sub(place.offset),
                    };
                    let extent = DataExtent {
                        logical: place.disk,
                        length: place.disk_length,
                    };
                    drops.push((extent, owner));
                }
            }
        }
    }
    let progress = if from == first {
        Progress::Done
    } else {
        Progress::More
    };
    Ok(Deletion {
        from,
        drops,
        progress,
    })
}

impl Deletion {
    fn apply(self, engine: &mut Engine, id: InodeId) -> Result<Progress, FsError> {
        for (extent, owner) in self.drops {
            engine.drop_data_ref(extent, owner);
        }
        let last = Key::new(id.number.get(), ItemType::MAX, u64::MAX);
        Editor::new(engine, id.tree).remove_range(self.from..=last)?;
        Ok(self.progress)
    }
}

impl Filesystem {
    /// Keeps an inode alive even if no name is left.
    pub fn pin(&self, inode: &Inode) {
        inode.pins.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends [`Filesystem::pin`]. An inode without names is deleted with its
    /// last pin.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn unpin_id(&self, id: InodeId, count: u32) -> Result<(), FsError> {
        match self.inodes.unpin(id, count) {
            Some(inode) => self.unpin(&inode, count),
            None => Ok(()),
        }
    }

    /// [`Filesystem::unpin_id`] for an inode that is at hand.
    ///
    /// # Errors
    /// As there.
    pub fn unpin(&self, inode: &Arc<Inode>, count: u32) -> Result<(), FsError> {
        let before = inode.pins.fetch_sub(count, Ordering::AcqRel);
        debug_assert!(before >= count);
        if before > count {
            return Ok(());
        }
        self.delete_if_unused(inode)
    }

    /// [`Filesystem::delete_if_unused`] for an inode whose last name is gone.
    /// If something prevents the deletion, it only costs space.
    pub(crate) fn delete_or_leave(&self, inode: &Arc<Inode>) {
        if let Err(error) = self.delete_if_unused(inode) {
            tracing::error!(%error, "a file without names stays; run a check of the volume");
        }
    }

    /// Deletes an orphan that nobody uses.
    pub(crate) fn delete_if_unused(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        loop {
            let mut state = inode.state.write();
            let unused = inode.pins.load(Ordering::Acquire) == 0;
            if state.deleted || state.item.nlink > 0 || !unused {
                return Ok(());
            }
            if self.store.check_writable().is_err() {
                return Ok(());
            }
            let room = (NODES, Purpose::Shrink);
            let progress = self.change_tree(inode.id.tree, room, |engine| {
                let names = names_of(engine, inode.id)?;
                if names > 0 {
                    state.item.nlink = names;
                    store_item(engine, inode.id, &mut state)?;
                    remove(engine, inode.id)?;
                    return Ok(None);
                }
                let progress = plan(engine, inode.id)?.apply(engine, inode.id)?;
                if progress == Progress::Done {
                    remove(engine, inode.id)?;
                }
                Ok(Some(progress))
            })?;
            let Some(progress) = progress else {
                let (number, names) = (inode.id.number, state.item.nlink);
                tracing::warn!(
                    tree = %inode.id.tree, %number, names,
                    "an inode counted no names, but has some; the count is corrected"
                );
                return Ok(());
            };
            state.buffer.clear();
            if progress == Progress::Done {
                state.deleted = true;
                drop(state);
                self.inodes.remove(inode.id);
                return Ok(());
            }
        }
    }

    /// Waits a moment for files without names to be let go: a server learns
    /// late that the kernel forgot a file. True if some were.
    pub(crate) fn wait_for_nameless(&self) -> bool {
        const PAUSE: Duration = Duration::from_millis(2);
        const PAUSES_MAX: usize = 25;
        let is_nameless = |inode: &Inode| {
            let pinned = inode.pins.load(Ordering::Acquire) > 0;
            let state = pinned.then(|| inode.state.try_read()).flatten();
            state.is_some_and(|state| state.item.nlink == 0 && !state.deleted)
        };
        let before = self.inodes.count(is_nameless);
        before > 0
            && (0..PAUSES_MAX).any(|_| {
                std::thread::sleep(PAUSE);
                self.inodes.count(is_nameless) < before
            })
    }

    /// At the first look into a subvolume, deletes the files without names that
    /// a crash left in it. Nobody can use these files yet.
    pub(crate) fn visit(&self, tree: TreeId) {
        if self.visited.read().contains(&tree) || self.store.check_writable().is_err() {
            return;
        }
        // A log is replayed before anything else changes.
        let waits = self.store.read().waiting_log().is_some();
        if waits || !self.is_alive(tree) {
            return;
        }
        if let Err(error) = self.delete_orphans(tree) {
            // They take space, no more.
            tracing::error!(%tree, %error, "files without names stay; run a check of the volume");
        }
    }

    /// True for a subvolume that was not deleted.
    pub(crate) fn is_alive(&self, tree: TreeId) -> bool {
        let engine = self.store.read();
        tree.is_subvolume() && check_alive(&engine, tree).is_ok()
    }

    /// Removes what an interrupted balance of the kernel left: trees of
    /// relocation, and files that hold copies of data.
    ///
    /// # Errors
    /// As [`butterfs_store::Store::drop_cancelled_balance`].
    pub fn end_cut_balance(&self) -> Result<(), FsError> {
        self.store.drop_cancelled_balance()?;
        if let Err(error) = self.delete_orphans(TreeId::DATA_RELOC) {
            // They take space, no more.
            tracing::error!(%error, "what a balance copied stays; run a check of the volume");
        }
        Ok(())
    }

    /// Deletes the inodes without names that a crash left in `tree`, or its
    /// source when it was snapshotted. Nothing is left of these if somebody
    /// looked into the tree before.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn delete_orphans(&self, tree: TreeId) -> Result<usize, FsError> {
        let numbers = {
            // Others, who may make files without names, wait here at their
            // first look. So those files are not in the list.
            let mut visited = self.visited.write();
            if !visited.insert(tree) {
                return Ok(0);
            }
            self.orphans(tree)?
        };
        for number in &numbers {
            let id = InodeId {
                tree,
                number: *number,
            };
            match self.inode(id) {
                Ok(inode) if inode.state.read().item.nlink == 0 => {
                    self.delete_if_unused(&inode)?;
                }
                // It has names. It marks an interrupted truncation, which the
                // tree's item already shows.
                Ok(_) | Err(FsError::NotFound) => {
                    let room = (2 * NODES_PER_PATH, Purpose::Shrink);
                    self.change_tree(tree, room, |engine| remove(engine, id))?;
                }
                Err(error) => {
                    tracing::error!(%error, "a file without names stays; run a check of the volume");
                }
            }
        }
        Ok(numbers.len())
    }

    fn orphans(&self, tree: TreeId) -> Result<Vec<InodeNumber>, FsError> {
        let engine = self.store.read();
        let mut numbers = Vec::new();
        let mut cursor = Cursor::seek_in(&*engine, tree, &key(InodeNumber(0)))?;
        while let Some(found) = cursor.key() {
            if found.objectid != object::ORPHAN || found.item_type != ItemType::ORPHAN_ITEM {
                break;
            }
            numbers.push(InodeNumber(found.offset));
            cursor.next()?;
        }
        Ok(numbers)
    }
}
