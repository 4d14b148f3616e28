//! Inodes in memory.
//!
//! Owns the table of inodes in use. While an inode is in the table, its state
//! there is the true one. Its item in the tree lags behind by what waits in the
//! write buffer (`disk_size` is the size that the tree may show).
//!
//! The kernel remembers as many files as its own memory permits, and pins each. So
//! a pinned inode with names may leave the table while nobody works on it; the
//! table then keeps only the count of its pins.

use crate::error::FsError;
use crate::file::limits::SIZE_MAX;
use crate::inode_fault::InodeFault;
pub use crate::inode_state::{InodeState, StateLock};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{InodeId, ItemType, Key, TreeId};
use butterfs_store::{Engine, TreeAccess};
use butterfs_tree::{Edit, ItemChange, TreeError, change_items, find};
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// An inode in use.
#[derive(Debug)]
pub struct Inode {
    /// Which one.
    pub id: InodeId,
    /// Its state, under its own lock.
    pub state: StateLock,
    /// Users that keep the inode alive if no name is left (open files, kernel
    /// lookups).
    pub(crate) pins: AtomicU32,
    /// It was used since the last sweep of the table.
    used: AtomicBool,
    /// As of this many changes of rules, none holds back a write to the file; 0
    /// if nobody has looked. `write_rules` explains it.
    pub(crate) unruled_as_of: AtomicU64,
}

const SHARDS: usize = 64;
/// This many consecutive inode numbers are in one shard. Inodes of one
/// directory were mostly made together, so threads that work in different
/// directories seldom want the same shard.
const IN_A_ROW: u64 = 64;

/// Inodes in use, and some that were.
#[derive(Debug)]
pub(crate) struct InodeTable {
    shards: Vec<CachePadded<Mutex<Shard>>>,
    /// Inodes that each shard keeps beyond those in use.
    idle: usize,
}

#[derive(Debug, Default)]
struct Shard {
    inodes: FxHashMap<InodeId, Arc<Inode>>,
    /// Pins of inodes that are not in the table.
    resting: FxHashMap<InodeId, u32>,
    /// Size of the table at which the next sweep happens.
    limit: usize,
    /// How often inodes have left the table.
    departures: u64,
}

/// What was so when an inode was not in the table. An item that was read from a
/// tree after that is old, if the inode was there since, was changed and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absence(u64);

impl Shard {
    /// Drops idle inodes that were not used since the last sweep.
    fn sweep(&mut self, idle: usize) {
        let resting = &mut self.resting;
        self.departures = self.departures.wrapping_add(1);
        self.inodes.retain(|id, inode| {
            // Only the table has it, so nobody can change it or its pins.
            let alone = Arc::strong_count(inode) == 1;
            if !alone || inode.used.swap(false, Ordering::Relaxed) {
                return true;
            }
            let pins = inode.pins.load(Ordering::Acquire);
            let is_stored = inode.state.try_read().is_some_and(|state| {
                state.is_stored() && (pins == 0 || state.item.nlink > 0 && !state.deleted)
            });
            if is_stored && pins > 0 {
                resting.insert(*id, pins);
            }
            !is_stored
        });
        self.limit = idle.max(self.inodes.len() + self.inodes.len() / 2);
    }
}

impl Inode {
    pub(crate) fn new(id: InodeId, item: InodeItem) -> Self {
        Self {
            id,
            state: StateLock::new(InodeState::new(item)),
            pins: AtomicU32::new(0),
            used: AtomicBool::new(true),
            unruled_as_of: AtomicU64::new(0),
        }
    }
}

impl InodeTable {
    /// A table that keeps `idle` inodes beyond those in use.
    pub(crate) fn new(idle: usize) -> Self {
        let idle = (idle / SHARDS).max(1);
        let shard = || {
            CachePadded::new(Mutex::new(Shard {
                limit: idle,
                ..Shard::default()
            }))
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            idle,
        }
    }

    fn shard(&self, id: InodeId) -> &Mutex<Shard> {
        &self.shards[(id.number.get() / IN_A_ROW) as usize % SHARDS]
    }

    /// The inode, if it is in the table.
    pub(crate) fn get(&self, id: InodeId) -> Option<Arc<Inode>> {
        let shard = self.shard(id).lock();
        let inode = shard.inodes.get(&id)?;
        inode.used.store(true, Ordering::Relaxed);
        Some(inode.clone())
    }

    /// The inode, if it is in the table.
    pub(crate) fn look(&self, id: InodeId) -> Result<Arc<Inode>, Absence> {
        let absence = Absence(self.shard(id).lock().departures);
        // If it comes and leaves now, that is a departure.
        self.get(id).ok_or(absence)
    }

    /// Adds an inode whose item was read after `absence`, or gives the one that
    /// another thread added meanwhile. `None` if the item may be old.
    pub(crate) fn insert_read(&self, inode: Inode, absence: Absence) -> Option<Arc<Inode>> {
        let shard = self.shard(inode.id).lock();
        let is_there = shard.inodes.contains_key(&inode.id);
        let may_be_old = !is_there && shard.departures != absence.0;
        (!may_be_old).then(|| self.insert_into(shard, inode))
    }

    /// Adds an inode, or gives the one that another thread added meanwhile.
    pub(crate) fn insert(&self, inode: Inode) -> Arc<Inode> {
        self.insert_into(self.shard(inode.id).lock(), inode)
    }

    fn insert_into(&self, mut shard: MutexGuard<'_, Shard>, inode: Inode) -> Arc<Inode> {
        if shard.inodes.len() >= shard.limit {
            shard.sweep(self.idle);
        }
        let Shard {
            inodes, resting, ..
        } = &mut *shard;
        let id = inode.id;
        let inode = inodes.entry(id).or_insert_with(|| {
            if let Some(pins) = resting.remove(&id) {
                inode.pins.fetch_add(pins, Ordering::AcqRel);
            }
            Arc::new(inode)
        });
        inode.clone()
    }

    /// Ends `count` pins of an inode. Gives the inode if it is in the table; if it
    /// is not, it has names, and ending its pins has no consequence.
    pub(crate) fn unpin(&self, id: InodeId, count: u32) -> Option<Arc<Inode>> {
        let mut shard = self.shard(id).lock();
        if let Some(inode) = shard.inodes.get(&id) {
            return Some(inode.clone());
        }
        if let Entry::Occupied(mut pins) = shard.resting.entry(id) {
            *pins.get_mut() = pins.get().saturating_sub(count);
            if *pins.get() == 0 {
                pins.remove();
            }
        }
        None
    }

    /// Drops idle inodes, for want of memory.
    pub(crate) fn shrink(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            // The first sweep takes their marks of use.
            shard.sweep(self.idle);
            shard.sweep(self.idle);
            shard.inodes.shrink_to_fit();
        }
    }

    /// All inodes of a subvolume that are in the table.
    pub(crate) fn of_tree(&self, tree: TreeId) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let of_tree = shard.inodes.values().filter(|inode| inode.id.tree == tree);
            found.extend(of_tree.cloned());
        }
        found
    }

    /// How many inodes in the table are as wanted.
    pub(crate) fn count(&self, wanted: impl Fn(&Inode) -> bool) -> usize {
        let shards = self.shards.iter();
        shards
            .map(|shard| {
                let shard = shard.lock();
                shard.inodes.values().filter(|inode| wanted(inode)).count()
            })
            .sum()
    }

    /// Forgets all inodes of a subvolume, and gives them to the caller.
    pub(crate) fn remove_tree(&self, tree: TreeId) -> Vec<Arc<Inode>> {
        let mut removed = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let ids: Vec<InodeId> = shard.inodes.keys().copied().collect();
            shard.departures = shard.departures.wrapping_add(1);
            for id in ids.into_iter().filter(|id| id.tree == tree) {
                removed.extend(shard.inodes.remove(&id));
            }
            shard.resting.retain(|id, _| id.tree != tree);
        }
        removed
    }

    /// Forgets an inode that was deleted.
    pub(crate) fn remove(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        shard.departures = shard.departures.wrapping_add(1);
        shard.inodes.remove(&id);
    }
}

/// Key of an inode's item.
pub(crate) const fn item_key(id: InodeId) -> Key {
    Key::new(id.number.0, ItemType::INODE_ITEM, 0)
}

/// Errors if a subvolume was deleted, because only parts of its tree may be
/// left.
pub(crate) fn check_alive(engine: &Engine, tree: TreeId) -> Result<(), FsError> {
    match engine.tree_access(tree)? {
        TreeAccess::Dead => Err(FsError::NotFound),
        TreeAccess::ReadOnly | TreeAccess::ReadWrite => Ok(()),
    }
}

/// Reads an inode's item from its tree.
pub(crate) fn load_item(engine: &Engine, id: InodeId) -> Result<InodeItem, FsError> {
    match find(engine, id.tree, &item_key(id)) {
        Ok(Some((leaf, slot))) => {
            let item = InodeItem::parse(leaf.data(slot))
                .map_err(|error| FsError::bad_item(id, "inode item", &error))?;
            // After this check, adding what a file may grow by cannot overflow.
            if item.size > SIZE_MAX || item.nbytes > SIZE_MAX {
                return Err(FsError::Damaged {
                    inode: id,
                    at: None,
                    fault: Box::new(InodeFault::Size),
                });
            }
            Ok(item)
        }
        Ok(None) | Err(TreeError::NoSuchTree(_)) => Err(FsError::NotFound),
        Err(error) => Err(error.into()),
    }
}

/// The change that writes an inode's item to its tree, with the size that is on
/// the device.
pub(crate) fn item_change(
    engine: &Engine,
    edit: Edit,
    id: InodeId,
    state: &mut InodeState,
) -> ItemChange {
    state.item.transid = engine.generation();
    let mut item = state.item.clone();
    item.size = state.disk_size;
    engine.log().note_inode(id);
    ItemChange::new(edit, item_key(id), item.encode())
}

/// Writes an inode's item to its tree.
pub(crate) fn store_item(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
) -> Result<(), FsError> {
    let change = item_change(engine, Edit::Put, id, state);
    Ok(change_items(engine, id.tree, &[change])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::InodeNumber;

    #[test]
    fn an_item_that_was_read_before_a_departure_does_not_enter() {
        let table = InodeTable::new(SHARDS);
        let id = InodeId {
            tree: TreeId::FS,
            number: InodeNumber(300),
        };
        let read = || Inode::new(id, InodeItem::default());
        let absence = table.look(id).err().unwrap();
        // Another thread has it, changes it and lets go.
        drop(table.insert(read()));
        assert!(table.insert_read(read(), absence).is_some(), "it is there");
        table.shrink();
        assert!(table.insert_read(read(), absence).is_none(), "it was there");
        let absence = table.look(id).err().unwrap();
        assert!(table.insert_read(read(), absence).is_some());
    }
}
