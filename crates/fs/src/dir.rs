//! Directory entries: by hash of the name and by order of creation, and the
//! names that an inode itself records.
//!
//! Owns the four kinds of items that make one name (DIR_ITEM, DIR_INDEX,
//! INODE_REF or INODE_EXTREF) and keeps them in agreement. Callers keep the
//! counts and times of the inodes.

use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{InodeState, check_alive};
use crate::inode_fault::InodeFault;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::item::inode::{ExtrefEntries, ExtrefEntry, RefEntries, RefEntry};
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::Engine;
use butterfs_tree::{
    Cursor, Edit, Editor, ItemChange, Node, NodeSource, TreeError, change_items, find, see_item,
};

/// Greatest length of a name, in bytes.
pub const NAME_MAX: usize = 255;
/// Index of a directory's first entry; 0 and 1 stand for "." and "..".
pub(crate) const FIRST_INDEX: u64 = 2;

/// What a name points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Inode; for a subvolume, its root directory.
    pub inode: InodeId,
    /// Its kind, as the entry says.
    pub kind: FileType,
    /// The entry points to a subvolume.
    pub subvolume: bool,
}

/// One entry as readdir gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Name.
    pub name: Vec<u8>,
    /// What it points to.
    pub target: Target,
    /// Position from which a listing continues after this entry.
    pub next: u64,
}

/// One name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Directory.
    pub parent: InodeNumber,
    /// Position in it.
    pub index: u64,
    /// Name in it.
    pub name: Vec<u8>,
}

/// Errors unless `name` can be a directory entry.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." {
        return Err(FsError::Invalid("this name cannot be given to a file"));
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid("a name holds neither / nor NUL"));
    }
    Ok(())
}

/// If an entry names a subvolume that does not lie in the entry's directory, an
/// empty directory stands for it. The inode number of that directory is this
/// constant plus the subvolume's id. No directory tree gets to such a number.
const ABSENT_SUBVOLUMES: u64 = 1 << 63;
/// Ids of subvolumes are below this.
const IDS: u64 = 1 << 48;

/// True for the empty directory that a snapshot shows in place of a nested
/// subvolume. The subvolume itself stays with the original. Such a directory is
/// in no tree.
#[must_use]
pub const fn is_absent_subvolume(id: InodeId) -> bool {
    absent_subvolume(id).is_some()
}

/// The id of the subvolume that is not where this empty directory is;
/// [`is_absent_subvolume`].
#[must_use]
pub const fn absent_subvolume(id: InodeId) -> Option<u64> {
    match id.number.0.checked_sub(ABSENT_SUBVOLUMES) {
        Some(subvolume) if subvolume < IDS => Some(subvolume),
        _ => None,
    }
}

/// The empty directory that stands for a subvolume in `tree`;
/// [`is_absent_subvolume`].
#[must_use]
pub const fn in_place_of_absent(tree: TreeId, subvolume: u64) -> InodeId {
    InodeId {
        tree,
        number: InodeNumber(ABSENT_SUBVOLUMES + subvolume % IDS),
    }
}

/// What the entry `name` of `dir` points to.
pub(crate) fn target(
    engine: &Engine,
    (dir, name): (InodeId, &[u8]),
    location: Key,
    kind: FileType,
) -> Result<Target, FsError> {
    if location.item_type != ItemType::ROOT_ITEM {
        return Ok(Target {
            inode: InodeId {
                tree: dir.tree,
                number: InodeNumber(location.objectid),
            },
            kind,
            subvolume: false,
        });
    }
    let inode = if holds_subvolume(engine, (dir, name), location.objectid)? {
        InodeId {
            tree: TreeId(location.objectid),
            number: InodeNumber::ROOT,
        }
    } else {
        in_place_of_absent(dir.tree, location.objectid)
    };
    Ok(Target {
        inode,
        kind,
        subvolume: true,
    })
}

/// Whether the subvolume `child` lies in `dir` under this name. A reference in
/// the tree of roots says so, and a snapshot does not copy it. The name counts:
/// if the subvolume was moved into the snapshot, another entry there still
/// stands for the place that it had before.
fn holds_subvolume(
    engine: &Engine,
    (dir, name): (InodeId, &[u8]),
    child: u64,
) -> Result<bool, FsError> {
    let key = Key::new(dir.tree.get(), ItemType::ROOT_REF, child);
    let Some((leaf, slot)) = find(engine, TreeId::ROOT, &key)? else {
        return Ok(false);
    };
    let place = RootRef::parse(leaf.data(slot))
        .map_err(|error| FsError::bad_item(dir, "root reference", &error))?;
    Ok(place.directory == dir.number && place.name == name)
}

fn hash_key(dir: InodeId, name: &[u8]) -> Key {
    Key::new(dir.number.get(), ItemType::DIR_ITEM, name_hash(name))
}

pub(crate) const fn index_key(dir: InodeId, index: u64) -> Key {
    Key::new(dir.number.0, ItemType::DIR_INDEX, index)
}

/// Finds `name` in `dir`.
pub(crate) fn lookup(
    engine: &Engine,
    dir: InodeId,
    name: &[u8],
) -> Result<Option<Target>, FsError> {
    let found = see_item(engine, dir.tree, &hash_key(dir, name), |data| {
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(dir, "directory entry", &error))?;
            if entry.name == name {
                return Ok(Some((entry.location, entry.kind)));
            }
        }
        Ok::<_, FsError>(None)
    })?;
    match found.unwrap_or(Ok(None))? {
        Some((location, kind)) => target(engine, (dir, name), location, kind).map(Some),
        None => Ok(None),
    }
}

/// Errors unless `name` can be added to `dir`: it must be free, and the names
/// that share its hash must leave room.
pub(crate) fn check_free(engine: &Engine, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
    let shared = see_item(engine, dir.tree, &hash_key(dir, name), |data| {
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(dir, "directory entry", &error))?;
            if entry.name == name {
                return Err(FsError::Exists);
            }
        }
        Ok(data.len())
    })?;
    let shared = shared.unwrap_or(Ok(0))?;
    if shared + DirEntry::HEADER + name.len() > Node::item_data_max(engine.node_size()) {
        return Err(FsError::HashOverflow);
    }
    Ok(())
}

/// True when `dir` has an entry.
pub(crate) fn has_entries(engine: &Engine, dir: InodeId) -> Result<bool, FsError> {
    let cursor = Cursor::seek_in(engine, dir.tree, &index_key(dir, 0))?;
    Ok(cursor.key().is_some_and(|key| {
        key.objectid == dir.number.get() && key.item_type == ItemType::DIR_INDEX
    }))
}

/// Index for the next entry of `dir`.
pub(crate) fn next_index(
    engine: &Engine,
    dir: InodeId,
    state: &mut InodeState,
) -> Result<u64, FsError> {
    let index = match state.next_index {
        Some(index) => index,
        None => {
            let mut cursor = Cursor::seek_in(engine, dir.tree, &index_key(dir, u64::MAX))?;
            let last = cursor.prev()?.then(|| cursor.key()).flatten();
            last.filter(|key| {
                key.objectid == dir.number.get() && key.item_type == ItemType::DIR_INDEX
            })
            .map_or(FIRST_INDEX, |key| {
                key.offset.saturating_add(1).max(FIRST_INDEX)
            })
        }
    };
    let next = index.checked_add(1).ok_or_else(|| FsError::Damaged {
        inode: dir,
        at: None,
        fault: Box::new(InodeFault::IndexPosition),
    })?;
    state.next_index = Some(next);
    Ok(index)
}

/// The changes that add the directory's side of a name. The name must not exist,
/// and names with the same hash must leave room.
pub(crate) fn entry_changes(
    engine: &Engine,
    dir: InodeId,
    link: &Link,
    location: Key,
    kind: FileType,
) -> [ItemChange; 2] {
    let entry = DirEntry {
        location,
        generation: engine.generation(),
        name: &link.name,
        data: &[],
        kind,
    }
    .encode();
    [
        ItemChange::new(Edit::Append, hash_key(dir, &link.name), entry.clone()),
        ItemChange::new(Edit::Insert, index_key(dir, link.index), entry),
    ]
}

/// Adds the directory's side of a name ([`entry_changes`]).
pub(crate) fn add_entry(
    engine: &mut Engine,
    dir: InodeId,
    link: &Link,
    location: Key,
    kind: FileType,
) -> Result<(), FsError> {
    let changes = entry_changes(engine, dir, link, location, kind);
    Ok(change_items(engine, dir.tree, &changes)?)
}

/// Removes the entry that `matches` from the item at `key`; false when there
/// is none.
pub(crate) fn remove_hashed(
    engine: &mut Engine,
    dir: InodeId,
    key: &Key,
    name: &[u8],
) -> Result<bool, FsError> {
    let mut editor = Editor::new(engine, dir.tree);
    let Some(data) = editor.get_mut(key)? else {
        return Ok(false);
    };
    let mut kept = Vec::new();
    let mut found = false;
    for entry in DirEntries::new(data) {
        let entry = entry.map_err(|error| FsError::bad_item(dir, "directory entry", &error))?;
        if entry.name == name {
            found = true;
        } else {
            kept.extend_from_slice(&entry.encode());
        }
    }
    if found {
        if kept.is_empty() {
            editor.remove(key)?;
        } else {
            editor.replace(key, &kept)?;
        }
    }
    Ok(found)
}

/// Removes the directory's side of a name.
pub(crate) fn remove_entry(engine: &mut Engine, dir: InodeId, link: &Link) -> Result<(), FsError> {
    let removed = remove_hashed(engine, dir, &hash_key(dir, &link.name), &link.name)?;
    let indexed = butterfs_tree::remove(engine, dir.tree, &index_key(dir, link.index))?;
    if removed && indexed {
        return Ok(());
    }
    Err(FsError::Damaged {
        inode: dir,
        at: None,
        fault: Box::new(InodeFault::HalfEntry),
    })
}

/// Removes the entry of a subvolume that is not in `dir`. Such an entry has no
/// other side.
pub(crate) fn remove_absent_subvolume(
    engine: &mut Engine,
    dir: InodeId,
    name: &[u8],
) -> Result<(), FsError> {
    let mut cursor = Cursor::seek_in(engine, dir.tree, &index_key(dir, 0))?;
    let mut found = None;
    while let Some((key, data)) = cursor.item() {
        if key.objectid != dir.number.get() || key.item_type != ItemType::DIR_INDEX {
            break;
        }
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(dir, "directory index", &error))?;
            if entry.name == name {
                found = Some(key.offset);
            }
        }
        cursor.next()?;
    }
    let index = found.ok_or(FsError::NotFound)?;
    let link = Link {
        parent: dir.number,
        index,
        name: name.to_vec(),
    };
    remove_entry(engine, dir, &link)
}

/// Errors if `id` is a directory that is in no tree and cannot change.
pub(crate) fn check_kept(id: InodeId) -> Result<(), FsError> {
    if is_absent_subvolume(id) {
        return Err(FsError::NotPermitted(
            "the subvolume is not part of this snapshot; only its empty directory can be removed",
        ));
    }
    Ok(())
}

/// Errors unless [`add_link`] has room for a name of `inode` in `parent`.
/// Called before anything is edited. `leaving` is a name in the same directory
/// that is removed first.
pub(crate) fn check_link_room(
    engine: &Engine,
    inode: InodeId,
    parent: InodeNumber,
    name: &[u8],
    leaving: Option<&[u8]>,
) -> Result<(), FsError> {
    let room = Node::item_data_max(engine.node_size());
    let length = |key: Key| -> Result<usize, FsError> {
        let found = find(engine, inode.tree, &key)?;
        Ok(found.map_or(0, |(leaf, slot)| leaf.data(slot).len()))
    };
    let entry = |name: &[u8]| RefEntry { index: 0, name }.encode().len();
    let plain = length(Key::new(
        inode.number.get(),
        ItemType::INODE_REF,
        parent.get(),
    ))?;
    let leaving = leaving.map_or(0, entry);
    if plain.saturating_sub(leaving) + entry(name) <= room {
        return Ok(());
    }
    let extended = ExtrefEntry {
        parent,
        index: 0,
        name,
    };
    let hash = extref_hash(parent, name);
    let shared = length(Key::new(inode.number.get(), ItemType::INODE_EXTREF, hash))?;
    let possible = engine.superblock().has_extended_refs();
    if !possible || shared + extended.encode().len() > room {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}

/// The change that adds the inode's side of its first name.
pub(crate) fn first_link_change(engine: &Engine, inode: InodeId, link: &Link) -> ItemChange {
    engine.log().note_first_name(inode);
    let key = Key::new(inode.number.get(), ItemType::INODE_REF, link.parent.get());
    let entry = RefEntry {
        index: link.index,
        name: &link.name,
    };
    ItemChange::new(Edit::Insert, key, entry.encode())
}

/// Adds the inode's side of a name.
pub(crate) fn add_link(engine: &mut Engine, inode: InodeId, link: &Link) -> Result<(), FsError> {
    engine.log().note_names(inode);
    let room = Node::item_data_max(engine.node_size());
    let key = Key::new(inode.number.get(), ItemType::INODE_REF, link.parent.get());
    let entry = RefEntry {
        index: link.index,
        name: &link.name,
    }
    .encode();
    let mut editor = Editor::new(engine, inode.tree);
    let old: &[u8] = match editor.insert(&key, &entry) {
        Err(TreeError::Exists(_)) => editor.get_mut(&key)?.map_or(&[], |data| &*data),
        inserted => return Ok(inserted?),
    };
    let all = [old, &entry].concat();
    if all.len() <= room {
        return Ok(editor.replace(&key, &all)?);
    }
    let key = Key::new(
        inode.number.get(),
        ItemType::INODE_EXTREF,
        extref_hash(link.parent, &link.name),
    );
    let entry = ExtrefEntry {
        parent: link.parent,
        index: link.index,
        name: &link.name,
    }
    .encode();
    let old = editor.get_mut(&key)?.map(|data| data.to_vec());
    let all = [&old.unwrap_or_default()[..], &entry].concat();
    if all.len() > room {
        return Err(FsError::TooManyLinks);
    }
    Ok(editor.replace(&key, &all)?)
}

/// Finds the inode's side of a name.
pub(crate) fn find_link(
    engine: &Engine,
    inode: InodeId,
    parent: InodeNumber,
    name: &[u8],
) -> Result<Option<Link>, FsError> {
    let bad = |error| FsError::bad_item(inode, "name", &error);
    let link = |index| Link {
        parent,
        index,
        name: name.to_vec(),
    };
    let key = Key::new(inode.number.get(), ItemType::INODE_REF, parent.get());
    if let Some((leaf, slot)) = find(engine, inode.tree, &key)? {
        for entry in RefEntries::new(leaf.data(slot)) {
            let entry = entry.map_err(bad)?;
            if entry.name == name {
                return Ok(Some(link(entry.index)));
            }
        }
    }
    let key = Key::new(
        inode.number.get(),
        ItemType::INODE_EXTREF,
        extref_hash(parent, name),
    );
    if let Some((leaf, slot)) = find(engine, inode.tree, &key)? {
        for entry in ExtrefEntries::new(leaf.data(slot)) {
            let entry = entry.map_err(bad)?;
            if entry.name == name && entry.parent == parent {
                return Ok(Some(link(entry.index)));
            }
        }
    }
    Ok(None)
}

/// Removes the inode's side of a name.
pub(crate) fn remove_link(engine: &mut Engine, inode: InodeId, link: &Link) -> Result<(), FsError> {
    engine.log().note_names(inode);
    let bad = |error| FsError::bad_item(inode, "name", &error);
    let key = Key::new(inode.number.get(), ItemType::INODE_REF, link.parent.get());
    let mut editor = Editor::new(engine, inode.tree);
    if let Some(data) = editor.get_mut(&key)? {
        let mut kept = Vec::new();
        let mut found = false;
        for entry in RefEntries::new(data) {
            let entry = entry.map_err(bad)?;
            if entry.name == link.name {
                found = true;
            } else {
                kept.extend_from_slice(&entry.encode());
            }
        }
        if found {
            if kept.is_empty() {
                editor.remove(&key)?;
            } else {
                editor.replace(&key, &kept)?;
            }
            return Ok(());
        }
    }
    let key = Key::new(
        inode.number.get(),
        ItemType::INODE_EXTREF,
        extref_hash(link.parent, &link.name),
    );
    let mut kept = Vec::new();
    for entry in ExtrefEntries::new(editor.get_mut(&key)?.unwrap_or_default()) {
        let entry = entry.map_err(bad)?;
        if entry.name != link.name || entry.parent != link.parent {
            kept.extend_from_slice(&entry.encode());
        }
    }
    if kept.is_empty() {
        editor.remove(&key)?;
    } else {
        editor.replace(&key, &kept)?;
    }
    Ok(())
}

/// All names of an inode.
pub(crate) fn links(engine: &Engine, inode: InodeId) -> Result<Vec<Link>, FsError> {
    let mut cursor = Cursor::at_root(engine, engine.root(inode.tree)?);
    links_at(&mut cursor, inode)
}

/// All names of an inode, in the version of its tree that `cursor` is over.
pub(crate) fn links_at(
    cursor: &mut Cursor<'_, Engine>,
    inode: InodeId,
) -> Result<Vec<Link>, FsError> {
    let bad = |error| FsError::bad_item(inode, "name", &error);
    let mut all = Vec::new();
    let first = Key::new(inode.number.get(), ItemType::INODE_REF, 0);
    cursor.seek(&first)?;
    while let Some((key, data)) = cursor.item() {
        if key.objectid != inode.number.get() || key.item_type > ItemType::INODE_EXTREF {
            break;
        }
        if key.item_type == ItemType::INODE_REF {
            for entry in RefEntries::new(data) {
                let entry = entry.map_err(bad)?;
                all.push(Link {
                    parent: InodeNumber(key.offset),
                    index: entry.index,
                    name: entry.name.to_vec(),
                });
            }
        } else {
            for entry in ExtrefEntries::new(data) {
                let entry = entry.map_err(bad)?;
                all.push(Link {
                    parent: entry.parent,
                    index: entry.index,
                    name: entry.name.to_vec(),
                });
            }
        }
        cursor.next()?;
    }
    Ok(all)
}

/// The directory that holds `dir`, which must exist.
fn parent_in_trees(engine: &Engine, dir: InodeId) -> Result<InodeId, FsError> {
    if dir.number != InodeNumber::ROOT {
        let first = links(engine, dir)?.into_iter().next();
        let link = first.ok_or(FsError::NotFound)?;
        return Ok(InodeId {
            tree: dir.tree,
            number: link.parent,
        });
    }
    // A subvolume's parent is in the tree of roots.
    let first = Key::new(dir.tree.get(), ItemType::ROOT_BACKREF, 0);
    let cursor = Cursor::seek_in(engine, TreeId::ROOT, &first)?;
    match cursor.item() {
        Some((key, data))
            if key.objectid == dir.tree.get() && key.item_type == ItemType::ROOT_BACKREF =>
        {
            let directory = data.first_chunk().copied().map(u64::from_le_bytes);
            Ok(InodeId {
                tree: TreeId(key.offset),
                number: InodeNumber(directory.ok_or(FsError::NotFound)?),
            })
        }
        _ => Ok(dir),
    }
}

impl Filesystem {
    /// What `name` in `dir` points to; "." and ".." too.
    ///
    /// # Errors
    /// [`FsError::NotFound`], damage, reading.
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<Target, FsError> {
        match name {
            b"." => return Ok(Self::directory_target(dir)),
            b".." => return Ok(Self::directory_target(self.parent(dir)?)),
            _ if name.len() > NAME_MAX => return Err(FsError::NameTooLong),
            _ => {}
        }
        self.store.look(|engine| {
            check_alive(engine, dir.tree)?;
            lookup(engine, dir, name)?.ok_or(FsError::NotFound)
        })
    }

    const fn directory_target(inode: InodeId) -> Target {
        Target {
            inode,
            kind: FileType::Directory,
            subvolume: false,
        }
    }

    /// The directory that holds `dir`. For the view's root, that root itself.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn parent(&self, dir: InodeId) -> Result<InodeId, FsError> {
        if dir == self.root() {
            return Ok(dir);
        }
        if is_absent_subvolume(dir) {
            // Its number does not tell which directory shows it.
            return Ok(InodeId {
                tree: dir.tree,
                number: InodeNumber::ROOT,
            });
        }
        self.store.look(|engine| {
            check_alive(engine, dir.tree)?;
            parent_in_trees(engine, dir)
        })
    }

    /// The path of an inode for messages, relative to its subvolume, or its
    /// number.
    #[must_use]
    pub fn path_for_message(&self, inode: InodeId) -> String {
        match self.path_of(inode) {
            Ok(Some(path)) => format!("/{}", String::from_utf8_lossy(&path)),
            _ => format!("inode {}", inode.number),
        }
    }

    /// The path of an inode from the root of its subvolume, by its first name.
    /// `None` if it has no name.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn path_of(&self, inode: InodeId) -> Result<Option<Vec<u8>>, FsError> {
        /// A path with more parts is a loop.
        const PARTS_MAX: usize = 100_000;
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = inode;
        while at.number != InodeNumber::ROOT {
            let links = self.store.look(|engine| {
                check_alive(engine, at.tree)?;
                links(engine, at)
            })?;
            let link = links.into_iter().next();
            let Some(link) = link.filter(|_| parts.len() < PARTS_MAX) else {
                return Ok(None);
            };
            parts.push(link.name);
            at.number = link.parent;
        }
        parts.reverse();
        Ok(Some(parts.join(&b'/')))
    }
}
