//! Replaying a fsync log that a crash left.
//!
//! One transaction brings the log's items into their subvolumes, and its commit
//! removes the log. A crash before that leaves the log as it was, because its
//! blocks and the data that it names are pinned meanwhile.
//!
//! The order is that of the kernel, which wrote most logs. First come inodes:
//! attributes and names that the log lacks are removed, and files are cut at
//! their size. Then come entries of directories, then names, attributes and
//! file extents, and last the link counts.

use super::items::{Log, LogItems, parse_links};
use super::verify::lies;
use crate::dir::{self, Link};
use crate::error::FsError;
use crate::file::extents;
use crate::inode::{InodeState, item_key};
use crate::inode_fault::{InodeFault, LogFault};
use crate::mode::{S_IFDIR, S_IFMT, S_IFREG, kind_of};
use crate::names::location;
use crate::orphan;
use butterfs_format::item::dir::{DirEntries, DirEntry};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Engine, Store, StoreError};
use butterfs_tree::{Cursor, find};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Something that a replay does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A name appears.
    NameAdded {
        /// Directory.
        dir: InodeNumber,
        /// Name.
        name: Vec<u8>,
        /// What it names.
        inode: InodeNumber,
    },
    /// A name goes.
    NameRemoved {
        /// Directory.
        dir: InodeNumber,
        /// Name.
        name: Vec<u8>,
        /// What it named.
        inode: InodeNumber,
    },
    /// An inode gets the attributes of the log.
    Inode {
        /// Inode.
        inode: InodeNumber,
        /// Size before, in bytes; `None` where it is new.
        old_size: Option<u64>,
        /// Size after.
        size: u64,
    },
    /// A range of a file gets the content of the log.
    Extent {
        /// Inode.
        inode: InodeNumber,
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// A range of a file cannot be read afterwards: no copy of its data matches
    /// the checksum in the log.
    Unreadable {
        /// Inode.
        inode: InodeNumber,
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// An extended attribute is set.
    AttributeSet(InodeNumber),
    /// An extended attribute goes.
    AttributeRemoved {
        /// Inode.
        inode: InodeNumber,
        /// Name.
        name: Vec<u8>,
    },
}

/// What a replay did, by subvolume, in its order.
pub type Replayed = Vec<(TreeId, Vec<Change>)>;

/// Replays the log of `store`, if it has one, and commits.
///
/// # Errors
/// [`FsError::NotReplayed`], or no space: nothing was written then, and the log
/// stays.
pub fn replay(store: &Store) -> Result<Replayed, FsError> {
    replay_after(store, |_| Ok(()))
}

/// [`replay`], with something that comes between the replay and its commit.
///
/// # Errors
/// As there, and those of `before_commit`.
pub fn replay_after(
    store: &Store,
    before_commit: impl FnOnce(&Store) -> Result<(), StoreError>,
) -> Result<Replayed, FsError> {
    let Some(log_root) = store.read().waiting_log() else {
        return Ok(Vec::new());
    };
    let mut transaction = store.begin_replay()?;
    match replay_all(&mut transaction, log_root) {
        Ok(replayed) => {
            transaction.finish_replay();
            transaction.finish();
            // From now on, nothing of the log counts as free.
            before_commit(store).map_err(|error| at_replay(error.into()))?;
            store.commit().map_err(|error| at_replay(error.into()))?;
            for (tree, changes) in &replayed {
                tracing::info!(%tree, changes = changes.len(), "a fsync log was replayed");
            }
            Ok(replayed)
        }
        Err(error) => {
            // The volume fails even if nothing was edited yet, because nothing
            // else may happen before the replay.
            store.fail(&butterfs_store::StoreError::LogNotReplayed);
            transaction.end(Err(at_replay(error)))
        }
    }
}

/// Says of damage that it keeps the log from being replayed, and what to do.
fn at_replay(error: FsError) -> FsError {
    match error.is_damage() {
        true => FsError::NotReplayed(Box::new(error)),
        false => error,
    }
}

fn replay_all(
    engine: &mut Engine,
    log_root: butterfs_format::NodeRef,
) -> Result<Replayed, FsError> {
    let logs = LogItems::read_all(engine, log_root)?;
    super::verify::verify(engine, &logs)?;
    for log in &logs {
        log.pin(engine)?;
    }
    engine.remake_free_space()?;
    engine.load_for_replay(logs.iter().map(LogItems::nodes).sum())?;
    let mut replayed = Vec::new();
    for log in logs {
        // The subvolume may have been deleted meanwhile.
        if engine.committed_root(log.tree)?.is_none() {
            continue;
        }
        let mut replay = Replay {
            tree: log.tree,
            log,
            engine,
            states: BTreeMap::new(),
            counted: BTreeSet::new(),
            ignored: BTreeSet::new(),
            changes: Vec::new(),
        };
        replay.run()?;
        replayed.push((replay.tree, replay.changes));
    }
    Ok(replayed)
}

/// The replay of one subvolume's log.
struct Replay<'e> {
    engine: &'e mut Engine,
    tree: TreeId,
    log: LogItems,
    /// Inodes that changed; their items are written at the end.
    states: BTreeMap<InodeNumber, InodeState>,
    /// Inodes whose links must be counted.
    counted: BTreeSet<InodeNumber>,
    /// Inodes that had no names when they were logged.
    ignored: BTreeSet<InodeNumber>,
    changes: Vec<Change>,
}

impl Replay<'_> {
    const fn id(&self, number: InodeNumber) -> InodeId {
        InodeId {
            tree: self.tree,
            number,
        }
    }

    fn run(&mut self) -> Result<(), FsError> {
        let items = std::mem::take(&mut self.log.items);
        let log = Log(&items);
        for (key, data) in &items {
            if key.item_type == ItemType::INODE_ITEM {
                self.inode(&log, *key, data)?;
            }
        }
        for (key, data) in &items {
            if key.item_type == ItemType::DIR_INDEX {
                self.entry(&log, *key, data)?;
            }
        }
        for (key, data) in &items {
            let inode = InodeNumber(key.objectid);
            if self.ignored.contains(&inode) {
                continue;
            }
            match key.item_type {
                ItemType::INODE_REF | ItemType::INODE_EXTREF => self.names(*key, data)?,
                ItemType::XATTR_ITEM => self.attribute(*key, data)?,
                ItemType::EXTENT_DATA => self.extent(&log, *key, data)?,
                _ => {}
            }
        }
        self.count_links()?;
        for (number, state) in std::mem::take(&mut self.states) {
            let id = self.id(number);
            butterfs_tree::replace(self.engine, id.tree, &item_key(id), &state.item.encode())?;
        }
        Ok(())
    }

    /// The state of an inode of the subvolume; `None` when it does not exist.
    fn load(&mut self, number: InodeNumber) -> Result<Option<&mut InodeState>, FsError> {
        if !self.states.contains_key(&number) {
            let item = match crate::inode::load_item(self.engine, self.id(number)) {
                Ok(item) => item,
                Err(FsError::NotFound) => return Ok(None),
                Err(error) => return Err(error),
            };
            self.states.insert(number, InodeState::new(item));
        }
        Ok(self.states.get_mut(&number))
    }

    /// Stage one: an inode as it was logged.
    fn inode(&mut self, log: &Log<'_>, key: Key, data: &[u8]) -> Result<(), FsError> {
        let number = InodeNumber(key.objectid);
        let id = self.id(number);
        let source = InodeItem::parse(data)
            .map_err(|error| FsError::bad_item(id, "logged inode item", &error))?;
        if source.nlink == 0 {
            self.ignored.insert(number);
            return Ok(());
        }
        self.remove_attributes(log, id)?;
        let directory = source.mode & S_IFMT == S_IFDIR;
        if directory {
            self.remove_entries(log, id)?;
        }
        let generation = self.engine.generation();
        let old = self.load(number)?.map(|state| state.item.clone());
        let old_size = old.as_ref().map(|old| old.size);
        let item = match old {
            Some(mut old) if source.generation.get() == 0 => {
                // It was logged only to say that it exists, and with which
                // size.
                let files = source.mode & S_IFMT == S_IFREG && old.mode & S_IFMT == S_IFREG;
                if files && source.size != 0 {
                    old.size = source.size;
                }
                old
            }
            Some(old) => InodeItem {
                nbytes: old.nbytes,
                size: if directory { old.size } else { source.size },
                ..source
            },
            None => InodeItem {
                nbytes: 0,
                size: if directory { 0 } else { source.size },
                generation: if source.generation.get() == 0 {
                    generation
                } else {
                    source.generation
                },
                ..source
            },
        };
        self.changes.push(Change::Inode {
            inode: number,
            old_size,
            size: item.size,
        });
        let mut state = InodeState::new(item);
        if state.item.mode & S_IFMT == S_IFREG {
            let sector = self.engine.sector_size();
            let end = state.item.size.next_multiple_of(sector);
            extents::drop_range(self.engine, id, &mut state, end..u64::MAX, usize::MAX)?;
        }
        // Later steps look for the inode in the tree.
        butterfs_tree::replace(self.engine, id.tree, &item_key(id), &state.item.encode())?;
        self.states.insert(number, state);
        self.counted.insert(number);
        Ok(())
    }

    /// Extended attributes that the log does not have are gone.
    fn remove_attributes(&mut self, log: &Log<'_>, id: InodeId) -> Result<(), FsError> {
        let object = id.number.get();
        let kept: BTreeSet<Vec<u8>> = log
            .of(object, ItemType::XATTR_ITEM)
            .flat_map(|(_, data)| DirEntries::new(data).flatten().map(|e| e.name.to_vec()))
            .collect();
        let mut gone = Vec::new();
        for (key, data) in self.items(object, ItemType::XATTR_ITEM)? {
            for entry in DirEntries::new(&data).flatten() {
                if !kept.contains(entry.name) {
                    gone.push((key, entry.name.to_vec()));
                }
            }
        }
        for (key, name) in gone {
            dir::remove_hashed(self.engine, id, &key, &name)?;
            self.changes.push(Change::AttributeRemoved {
                inode: id.number,
                name,
            });
        }
        Ok(())
    }

    /// Entries in the ranges that a directory was logged for, which the log
    /// does not have, are gone.
    fn remove_entries(&mut self, log: &Log<'_>, dir: InodeId) -> Result<(), FsError> {
        let object = dir.number.get();
        let ranges: Vec<(u64, u64)> = log
            .of(object, ItemType::DIR_LOG_INDEX)
            .filter_map(|(key, data)| {
                let end = data.first_chunk().copied().map(u64::from_le_bytes)?;
                Some((key.offset, end))
            })
            .collect();
        if ranges.is_empty() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for (key, data) in self.items(object, ItemType::DIR_INDEX)? {
            let logged = ranges
                .iter()
                .any(|(start, end)| (*start..=*end).contains(&key.offset));
            if !logged {
                continue;
            }
            for entry in DirEntries::new(&data).flatten() {
                let same = |other: &DirEntry<'_>| {
                    other.name == entry.name && other.location == entry.location
                };
                let kept = log
                    .get(&key)
                    .is_some_and(|data| DirEntries::new(data).flatten().any(|e| same(&e)));
                if !kept && entry.location.item_type == ItemType::INODE_ITEM {
                    gone.push((entry.name.to_vec(), InodeNumber(entry.location.objectid)));
                }
            }
        }
        for (name, inode) in gone {
            self.remove_name(dir.number, &name, inode)?;
        }
        Ok(())
    }

    /// Stage two: an entry of a logged directory.
    fn entry(&mut self, log: &Log<'_>, key: Key, data: &[u8]) -> Result<(), FsError> {
        let dir = InodeNumber(key.objectid);
        for entry in DirEntries::new(data) {
            let entry =
                entry.map_err(|error| FsError::bad_item(self.id(dir), "logged entry", &error))?;
            if entry.location.item_type != ItemType::INODE_ITEM || self.ignored.contains(&dir) {
                continue;
            }
            if self.load(dir)?.is_none() {
                return Err(FsError::Damaged {
                    inode: self.id(dir),
                    at: None,
                    fault: Box::new(InodeFault::Log(LogFault::EntriesOfNothing)),
                });
            }
            let inode = InodeNumber(entry.location.objectid);
            let link = Link {
                parent: dir,
                index: key.offset,
                name: entry.name.to_vec(),
            };
            if self.make_way(&link, inode)? == Way::There {
                continue;
            }
            // The inode's own reference comes later and adds the name.
            if log.has_reference(inode, &link) || self.load(inode)?.is_none() {
                continue;
            }
            self.add_name(&link, inode)?;
        }
        Ok(())
    }

    /// Removes what lies at the name or the index of `link` and is a different
    /// link.
    fn make_way(&mut self, link: &Link, inode: InodeNumber) -> Result<Way, FsError> {
        let dir = self.id(link.parent);
        let by_name = dir::lookup(self.engine, dir, &link.name)?;
        let by_index = self.at_index(dir, link.index)?;
        let wanted = |found: InodeId| found == self.id(inode);
        let index_is_right = by_index
            .as_ref()
            .is_some_and(|(name, number)| *name == link.name && *number == inode);
        if by_name.is_some_and(|found| wanted(found.inode)) && index_is_right {
            return Ok(Way::There);
        }
        if let Some((name, number)) = by_index {
            self.remove_name(link.parent, &name, number)?;
        }
        if let Some(found) = dir::lookup(self.engine, dir, &link.name)? {
            if found.subvolume {
                return Err(FsError::NotSupported(
                    "a fsync log that replaces a subvolume by a file",
                ));
            }
            self.remove_name(link.parent, &link.name, found.inode.number)?;
        }
        Ok(Way::Free)
    }

    fn at_index(
        &self,
        dir: InodeId,
        index: u64,
    ) -> Result<Option<(Vec<u8>, InodeNumber)>, FsError> {
        let key = Key::new(dir.number.get(), ItemType::DIR_INDEX, index);
        let Some((leaf, slot)) = find(self.engine, dir.tree, &key)? else {
            return Ok(None);
        };
        let first = DirEntries::new(leaf.data(slot)).next();
        let Some(entry) = first else {
            return Ok(None);
        };
        let entry = entry.map_err(|error| FsError::bad_item(dir, "directory index", &error))?;
        Ok(Some((
            entry.name.to_vec(),
            InodeNumber(entry.location.objectid),
        )))
    }

    fn add_name(&mut self, link: &Link, inode: InodeNumber) -> Result<(), FsError> {
        let dir = self.id(link.parent);
        let parent = self
            .load(link.parent)?
            .map(|state| state.item.mode & S_IFMT);
        if parent != Some(S_IFDIR) {
            return Err(lies(dir, LogFault::NameInFile));
        }
        let Some(state) = self.load(inode)? else {
            return Ok(());
        };
        let kind = kind_of(state.item.mode)?;
        let known = dir::find_link(self.engine, self.id(inode), link.parent, &link.name)?;
        if known.is_none() {
            dir::add_link(self.engine, self.id(inode), link)?;
        }
        dir::add_entry(self.engine, dir, link, location(inode), kind)?;
        self.resize_directory(link.parent, crate::names::name_bytes(&link.name))?;
        self.counted.insert(inode);
        self.changes.push(Change::NameAdded {
            dir: link.parent,
            name: link.name.clone(),
            inode,
        });
        Ok(())
    }

    fn remove_name(
        &mut self,
        parent: InodeNumber,
        name: &[u8],
        inode: InodeNumber,
    ) -> Result<(), FsError> {
        let id = self.id(inode);
        let Some(link) = dir::find_link(self.engine, id, parent, name)? else {
            return Err(crate::names::missing_link(id));
        };
        dir::remove_entry(self.engine, self.id(parent), &link)?;
        dir::remove_link(self.engine, id, &link)?;
        self.resize_directory(parent, -crate::names::name_bytes(name))?;
        self.counted.insert(inode);
        self.changes.push(Change::NameRemoved {
            dir: parent,
            name: name.to_vec(),
            inode,
        });
        Ok(())
    }

    fn resize_directory(&mut self, dir: InodeNumber, bytes: i64) -> Result<(), FsError> {
        if let Some(state) = self.load(dir)? {
            state.item.size = state.item.size.saturating_add_signed(bytes);
        }
        Ok(())
    }

    /// Stage three: gives an inode, in one directory (or with one hash),
    /// exactly the names of the log.
    fn names(&mut self, key: Key, data: &[u8]) -> Result<(), FsError> {
        let inode = InodeNumber(key.objectid);
        let id = self.id(inode);
        if super::verify::is_dots(key) || self.load(inode)?.is_none() {
            return Ok(());
        }
        let wanted = parse_links(id, key, data)?;
        let old = match find(self.engine, id.tree, &key)? {
            Some((leaf, slot)) => parse_links(id, key, leaf.data(slot))?,
            None => Vec::new(),
        };
        for link in old {
            let stays = wanted
                .iter()
                .any(|other| other.parent == link.parent && other.name == link.name);
            if !stays {
                self.remove_name(link.parent, &link.name, inode)?;
            }
        }
        for link in &wanted {
            if self.load(link.parent)?.is_none() {
                // Its directory was not made durable.
                continue;
            }
            if self.make_way(link, inode)? == Way::Free {
                self.add_name(link, inode)?;
            }
        }
        self.counted.insert(inode);
        Ok(())
    }

    fn attribute(&mut self, key: Key, data: &[u8]) -> Result<(), FsError> {
        let inode = InodeNumber(key.objectid);
        if self.load(inode)?.is_none() {
            return Ok(());
        }
        let same =
            find(self.engine, self.tree, &key)?.is_some_and(|(leaf, slot)| leaf.data(slot) == data);
        if !same {
            butterfs_tree::replace(self.engine, self.tree, &key, data)?;
            self.changes.push(Change::AttributeSet(inode));
        }
        Ok(())
    }

    fn extent(&mut self, log: &Log<'_>, key: Key, data: &[u8]) -> Result<(), FsError> {
        let inode = InodeNumber(key.objectid);
        let id = self.id(inode);
        if self.load(inode)?.is_none() {
            return Ok(());
        }
        let Some(mut state) = self.states.remove(&inode) else {
            return Ok(());
        };
        let done = super::extent::replay(self.engine, log, id, &mut state, (key, data));
        self.states.insert(inode, state);
        let Some(entered) = done? else {
            return Ok(());
        };
        self.changes.push(Change::Extent {
            inode,
            start: entered.range.start,
            end: entered.range.end,
        });
        for Range { start, end } in entered.unreadable {
            tracing::warn!(
                tree = %self.tree,
                %inode,
                start,
                end,
                "the fsync log has data that do not match their checksum; the file has them now as \
                 the kernel would keep them, and reading this range fails: restore the file from a \
                 backup"
            );
            self.changes.push(Change::Unreadable { inode, start, end });
        }
        Ok(())
    }

    /// Sets the link counts, and marks inodes without links for deletion.
    fn count_links(&mut self) -> Result<(), FsError> {
        while let Some(number) = self.counted.pop_first() {
            let id = self.id(number);
            if self.load(number)?.is_none() {
                continue;
            }
            let links = dir::links(self.engine, id)?.len();
            let directory = match self.load(number)? {
                Some(state) => {
                    state.item.nlink = u32::try_from(links).unwrap_or(u32::MAX);
                    state.item.mode & S_IFMT == S_IFDIR
                }
                None => continue,
            };
            if links > 0 {
                if directory {
                    self.verify_way_up(number, links)?;
                }
                if directory && let Some(state) = self.load(number)? {
                    state.item.nlink = 1;
                }
                continue;
            }
            if directory {
                for (_, data) in self.items(number.get(), ItemType::DIR_INDEX)? {
                    for entry in DirEntries::new(&data).flatten() {
                        if entry.location.item_type == ItemType::INODE_ITEM {
                            let child = InodeNumber(entry.location.objectid);
                            self.remove_name(number, entry.name, child)?;
                        }
                    }
                }
            }
            orphan::add(self.engine, id)?;
        }
        Ok(())
    }

    /// A directory has one name, and the way up from it ends at the root.
    fn verify_way_up(&self, dir: InodeNumber, links: usize) -> Result<(), FsError> {
        if links > 1 && dir != InodeNumber::ROOT {
            return Err(lies(self.id(dir), LogFault::SecondName));
        }
        let mut seen = BTreeSet::new();
        let mut at = dir;
        while at != InodeNumber::ROOT {
            if !seen.insert(at) {
                return Err(lies(self.id(dir), LogFault::Loop));
            }
            match dir::links(self.engine, self.id(at))?.first() {
                Some(link) => at = link.parent,
                // This directory has no name, and is deleted with everything
                // below it.
                None => break,
            }
        }
        Ok(())
    }

    /// Items of one inode and kind in the subvolume.
    fn items(&self, object: u64, kind: ItemType) -> Result<Vec<(Key, Vec<u8>)>, FsError> {
        let mut all = Vec::new();
        let first = Key::new(object, kind, 0);
        let mut cursor = Cursor::seek_in(&*self.engine, self.tree, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != object || key.item_type != kind {
                break;
            }
            all.push((key, data.to_vec()));
            cursor.next()?;
        }
        Ok(all)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The name is there as it should be.
    There,
    /// Nothing is in the way.
    Free,
}
