//! Subvolumes: what is wrong with their inodes, names and file extents is mended
//! where another item still tells the truth.
//!
//! Owns three passes over a subvolume, each of which plans its changes and then
//! makes them: impossible items; names, which are kept on three sides; and what
//! inodes count. Memory: the changes of one pass.

use crate::error::RepairError;
use crate::file_extents::{self, Mended};
use crate::items;
use crate::names::{
    DIRECTORY, Entry, INDEX_END, KIND, Own, REGULAR, SYMLINK, bits_of, encode_entries, encode_own,
    entries, is_inode, own_names, type_of,
};
use crate::step::{Step, StepKind};
use crate::writer::Writer;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeFlags, InodeItem, LINKS_MAX, Timespec};
use butterfs_format::{Generation, InodeNumber, ItemType, Key, TreeId, object};
use butterfs_tree::{Cursor, Editor, TreeError, find};
use std::collections::BTreeMap;

/// Names that are listed in a step.
const LISTED_MAX: usize = 20;
const ROOT: u64 = InodeNumber::ROOT.get();

/// Changes of one tree that are not made yet, and the tree below them.
pub(crate) struct Plan<'w> {
    pub(crate) writer: &'w Writer,
    pub(crate) tree: TreeId,
    /// New data of items; `None` for items that go.
    pub(crate) changes: BTreeMap<Key, Option<Vec<u8>>>,
    counts: BTreeMap<StepKind, Count>,
    /// The next free index of directories that get entries.
    next_index: BTreeMap<u64, u64>,
    next_inode: Option<u64>,
}

#[derive(Default)]
struct Count {
    count: u64,
    inodes: Vec<u64>,
    lost: Vec<String>,
}

impl<'w> Plan<'w> {
    fn new(writer: &'w Writer, tree: TreeId) -> Self {
        Self {
            writer,
            tree,
            changes: BTreeMap::new(),
            counts: BTreeMap::new(),
            next_index: BTreeMap::new(),
            next_inode: None,
        }
    }

    fn count(&mut self, kind: StepKind, inode: u64) {
        let count = self.counts.entry(kind).or_default();
        count.count = count.count.saturating_add(1);
        if count.inodes.len() < LISTED_MAX && !count.inodes.contains(&inode) {
            count.inodes.push(inode);
        }
    }

    fn lose(&mut self, kind: StepKind, what: String) {
        let count = self.counts.entry(kind).or_default();
        if count.lost.len() < LISTED_MAX {
            count.lost.push(what);
        }
    }

    pub(crate) fn put(&mut self, kind: StepKind, key: Key, data: Vec<u8>) {
        self.count(kind, key.objectid);
        self.changes.insert(key, Some(data));
    }

    pub(crate) fn remove(&mut self, kind: StepKind, key: Key) {
        self.count(kind, key.objectid);
        self.changes.insert(key, None);
    }

    /// An item with the planned changes.
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, RepairError> {
        if let Some(planned) = self.changes.get(key) {
            return Ok(planned.clone());
        }
        match find(self.writer, self.tree, key) {
            Ok(found) => Ok(found.map(|(leaf, slot)| leaf.data(slot).to_vec())),
            // A damaged leaf has nothing that can be read.
            Err(TreeError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn inode(&self, number: u64) -> Result<Option<InodeItem>, RepairError> {
        let data = self.get(&Key::new(number, ItemType::INODE_ITEM, 0))?;
        Ok(data.and_then(|data| InodeItem::parse(&data).ok()))
    }

    /// Whether any item has this inode, planned or not.
    fn has_items(&self, number: u64) -> Result<bool, RepairError> {
        let mut planned = self
            .changes
            .range(Key::new(number, ItemType::MIN, 0)..=Key::new(number, ItemType::MAX, u64::MAX));
        if planned.any(|(_, data)| data.is_some()) {
            return Ok(true);
        }
        let cursor = Cursor::seek_in(self.writer, self.tree, &Key::new(number, ItemType::MIN, 0));
        Ok(cursor?.key().is_some_and(|key| key.objectid == number))
    }

    /// A free index of a directory.
    fn new_index(&mut self, directory: u64) -> Result<u64, RepairError> {
        let next = match self.next_index.get(&directory) {
            Some(next) => *next,
            None => {
                let last = Key::new(directory, ItemType::DIR_INDEX, INDEX_END.saturating_sub(2));
                let mut cursor = Cursor::at_root(self.writer, self.root()?);
                let found = cursor.seek_back(&last)?;
                let key = cursor.key().filter(|key| {
                    found && key.objectid == directory && key.item_type == ItemType::DIR_INDEX
                });
                key.map_or(2, |key| key.offset.saturating_add(1).max(2))
            }
        };
        self.next_index.insert(directory, next.saturating_add(1));
        Ok(next)
    }

    fn root(&self) -> Result<butterfs_format::NodeRef, RepairError> {
        use butterfs_tree::NodeSource as _;
        Ok(self.writer.root(self.tree)?)
    }

    /// A free inode number.
    fn new_inode(&mut self) -> Result<u64, RepairError> {
        let next = match self.next_inode {
            Some(next) => next,
            None => {
                let last = Key::new(u64::MAX.wrapping_sub(255), ItemType::MIN, 0);
                let mut cursor = Cursor::at_root(self.writer, self.root()?);
                let found = cursor.seek_back(&last)?;
                let key = cursor.key().filter(|_| found);
                let last = key.map_or(ROOT, |key| key.objectid.max(ROOT));
                last.saturating_add(1)
            }
        };
        self.next_inode = Some(next.saturating_add(1));
        Ok(next)
    }
}

/// One look at a subvolume, which plans changes.
type Pass = fn(&mut Plan<'_>) -> Result<(), RepairError>;

/// Mends a subvolume.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn mend(
    writer: &mut Writer,
    tree: TreeId,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let passes: [Pass; 4] = [impossible_items, missing_inodes, sides_of_names, counts];
    for pass in passes {
        let mut plan = Plan::new(writer, tree);
        pass(&mut plan)?;
        let Plan {
            changes, counts, ..
        } = plan;
        let mut editor = Editor::new(writer, tree);
        for (key, data) in changes {
            match data {
                Some(data) => editor.replace(&key, &data)?,
                None => {
                    editor.remove(&key)?;
                }
            }
        }
        for (kind, count) in counts {
            let inodes: Vec<String> = count.inodes.iter().map(u64::to_string).collect();
            let text = format!(
                "{} in tree {tree}, inodes {}{}.",
                count.count,
                inodes.join(", "),
                if count.inodes.len() == LISTED_MAX {
                    " and more"
                } else {
                    ""
                }
            );
            let mut step = Step::new(kind, text);
            if !count.lost.is_empty() {
                step = step.losing(count.lost.join("; "));
            }
            steps.push(step);
        }
    }
    Ok(())
}

/// Removes the inode cache of old kernels, which nobody reads.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn remove_cache(
    writer: &mut Writer,
    tree: TreeId,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let mut removed = 0_usize;
    for object in INODE_CACHE {
        let keys = Key::new(object, ItemType::MIN, 0)..=Key::new(object, ItemType::MAX, u64::MAX);
        let have = items::read(writer, tree, keys)?;
        let changed = items::change(writer, tree, &have, &items::Items::new())?;
        removed = removed.saturating_add(changed);
    }
    if removed > 0 {
        let text = format!("{removed} of the inode cache in tree {tree}.");
        steps.push(Step::new(StepKind::Items, text));
    }
    Ok(())
}

/// Calls `see` with each item of the tree, as it is without planned changes.
fn each(
    plan: &mut Plan<'_>,
    mut see: impl FnMut(&mut Plan<'_>, Key, &[u8]) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    let (writer, tree) = (plan.writer, plan.tree);
    items::each(writer, tree, Key::MIN..=Key::MAX, |key, data| {
        see(plan, key, data)
    })
}

/// Objects of the inode cache of old kernels.
const INODE_CACHE: [u64; 2] = [object::FREE_INO, object::FREE_SPACE];

/// First pass: removes or corrects items that no program can read.
fn impossible_items(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    // The file extent before: its key, and where it ends.
    let mut before: Option<(Key, u64)> = None;
    each(plan, |plan, key, data| {
        let is_orphan = key.objectid == object::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM;
        if is_orphan || INODE_CACHE.contains(&key.objectid) {
            return Ok(());
        }
        if !is_inode(key.objectid) {
            plan.remove(StepKind::Items, key);
            return Ok(());
        }
        match key.item_type {
            ItemType::INODE_ITEM => inode_item(plan, key, data),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                let good = own_names(key, data);
                let is_root_elsewhere = key.objectid == ROOT && key.offset != ROOT;
                match good.is_empty() || is_root_elsewhere {
                    true => plan.remove(StepKind::Items, key),
                    false if encode_own(key, &good) != data => {
                        plan.put(StepKind::Items, key, encode_own(key, &good));
                    }
                    false => {}
                }
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                let mut good = entries(key, data);
                // No directory holds the root of its own tree.
                good.retain(|one| one.is_subvolume() || one.location.objectid != ROOT);
                match good.is_empty() {
                    true => plan.remove(StepKind::Items, key),
                    false if encode_entries(&good) != data => {
                        plan.put(StepKind::Items, key, encode_entries(&good));
                    }
                    false => {}
                }
            }
            ItemType::XATTR_ITEM => attributes(plan, key, data),
            ItemType::EXTENT_DATA => {
                let end = match file_extents::mend(plan, key, data)? {
                    Mended::Good(end) => end,
                    Mended::Changed(new, end) => {
                        plan.put(StepKind::FileExtents, key, new);
                        end
                    }
                    Mended::Gone => {
                        plan.remove(StepKind::FileExtents, key);
                        let text =
                            format!("bytes of inode {} from {} on", key.objectid, key.offset);
                        plan.lose(StepKind::FileExtents, text);
                        return Ok(());
                    }
                };
                let overlapped = before
                    .filter(|(other, end)| other.objectid == key.objectid && *end > key.offset);
                if let Some((other, _)) = overlapped {
                    overlap(plan, other, key.offset)?;
                }
                before = Some((key, end));
            }
            ItemType::VERITY_DESC | ItemType::VERITY_MERKLE => {}
            _ => plan.remove(StepKind::Items, key),
        }
        Ok(())
    })
}

/// Ends the file extent at `key` where the next one begins.
fn overlap(plan: &mut Plan<'_>, key: Key, next: u64) -> Result<(), RepairError> {
    let Some(data) = plan.get(&key)? else {
        return Ok(());
    };
    let Ok(mut extent) = FileExtent::parse(&data) else {
        return Ok(());
    };
    let length = next.saturating_sub(key.offset);
    if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = &mut extent.body
        && length > 0
    {
        place.length = place.length.min(length);
        plan.put(StepKind::FileExtents, key, extent.encode());
    } else {
        plan.remove(StepKind::FileExtents, key);
    }
    Ok(())
}

fn inode_item(plan: &mut Plan<'_>, key: Key, data: &[u8]) {
    let parsed = InodeItem::parse(data).ok().filter(|_| key.offset == 0);
    let Some(old) = parsed else {
        return plan.remove(StepKind::Items, key);
    };
    let mut item = old.clone();
    let newest = plan.writer.patient.superblock.generation;
    let most = newest.saturating_add(1);
    if item.generation > most {
        item.generation = newest;
    }
    if item.transid > most {
        item.transid = newest;
    }
    item.mode &= KIND | 0o7777;
    item.flags = InodeFlags(item.flags.0 & InodeFlags::known().0);
    if item.mode & KIND == SYMLINK {
        item.flags = item
            .flags
            .without(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    }
    if item != old {
        plan.put(StepKind::Inodes, key, item.encode());
    }
}

/// Prefixes of the names that attributes can have.
const PREFIXES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];

/// Moves attributes to the key of their name's hash, and removes what is none.
fn attributes(plan: &mut Plan<'_>, key: Key, data: &[u8]) {
    let mut good: Vec<Vec<u8>> = Vec::new();
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut moved: Vec<(Key, Vec<u8>)> = Vec::new();
    let mut is_whole = true;
    for entry in DirEntries::new(data) {
        let Ok(entry) = entry else {
            is_whole = false;
            break;
        };
        let possible = entry.kind == FileType::Xattr
            && entry.location == Key::MIN
            && !names.contains(&entry.name.to_vec())
            && PREFIXES.iter().any(|prefix| entry.name.starts_with(prefix));
        let hash = name_hash(entry.name);
        let own = DirEntry { ..entry }.encode();
        if possible && hash == key.offset {
            names.push(entry.name.to_vec());
            good.push(own);
        } else if possible {
            moved.push((Key::new(key.objectid, key.item_type, hash), own));
            is_whole = false;
        } else {
            is_whole = false;
        }
    }
    if is_whole && !good.is_empty() {
        return;
    }
    match good.is_empty() {
        true => plan.remove(StepKind::Items, key),
        false => plan.put(StepKind::Items, key, good.concat()),
    }
    for (to, own) in moved {
        if matches!(plan.get(&to), Ok(None)) {
            plan.put(StepKind::Items, to, own);
        }
    }
}

/// What is known of an inode from its items.
#[derive(Clone, Debug, Default)]
struct Seen {
    number: u64,
    item: Option<InodeItem>,
    names: u64,
    first_name: Option<Own>,
    has_entries: bool,
    entry_bytes: u64,
    bytes: u64,
    has_extents: bool,
    is_inline: bool,
    ends_with_nul: bool,
    /// First offset behind its last file extent.
    end: u64,
    /// Ranges without a file extent, before `end`.
    holes: Vec<(u64, u64)>,
}

impl Seen {
    fn of(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    fn add(&mut self, sector: u64, key: Key, data: &[u8]) {
        match key.item_type {
            ItemType::INODE_ITEM => self.item = InodeItem::parse(data).ok(),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                let names = own_names(key, data);
                let count = u64::try_from(names.len()).unwrap_or(0);
                self.names = self.names.saturating_add(count);
                self.first_name = self.first_name.take().or(names.into_iter().next());
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                self.has_entries = true;
                for entry in entries(key, data) {
                    let bytes = u64::try_from(entry.name.len()).unwrap_or(0);
                    self.entry_bytes = self.entry_bytes.saturating_add(bytes);
                }
            }
            ItemType::EXTENT_DATA => self.extent(sector, key, data),
            _ => {}
        }
    }

    fn extent(&mut self, sector: u64, key: Key, data: &[u8]) {
        let Ok(extent) = FileExtent::parse(data) else {
            return;
        };
        self.has_extents = true;
        if key.offset > self.end && self.holes.len() < 1 << 16 {
            self.holes.push((self.end, key.offset));
        }
        let length = match extent.body {
            FileExtentBody::Inline(inline) => {
                let length = extent.ram_bytes.min(sector.saturating_mul(16));
                self.is_inline = true;
                self.ends_with_nul = extent.compression.is_none() && inline.last() == Some(&0);
                self.bytes = self.bytes.saturating_add(length);
                length.next_multiple_of(sector.max(1))
            }
            FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
                if place.disk.get() != 0 {
                    self.bytes = self.bytes.saturating_add(place.length);
                }
                place.length
            }
        };
        self.end = self.end.max(key.offset.saturating_add(length));
    }
}

/// Calls `see` with each inode of the tree.
fn each_inode(
    plan: &mut Plan<'_>,
    mut see: impl FnMut(&mut Plan<'_>, &Seen) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    let sector = u64::from(plan.writer.patient.superblock.sector_size);
    let mut seen: Option<Seen> = None;
    each(plan, |plan, key, data| {
        if !is_inode(key.objectid) {
            return Ok(());
        }
        let is_next = seen.as_ref().is_none_or(|one| one.number != key.objectid);
        if is_next && let Some(done) = seen.replace(Seen::of(key.objectid)) {
            see(plan, &done)?;
        }
        if let Some(seen) = &mut seen {
            seen.add(sector, key, data);
        }
        Ok(())
    })?;
    match seen {
        Some(done) => see(plan, &done),
        None => Ok(()),
    }
}

/// The type that a directory's entry says an inode has.
fn type_by_entry(plan: &Plan<'_>, seen: &Seen) -> Result<Option<FileType>, RepairError> {
    let Some(own) = &seen.first_name else {
        return Ok(None);
    };
    let index = Key::new(own.parent, ItemType::DIR_INDEX, own.index);
    let hashed = Key::new(own.parent, ItemType::DIR_ITEM, name_hash(&own.name));
    for key in [index, hashed] {
        let data = plan.get(&key)?.unwrap_or_default();
        let all = entries(key, &data);
        let found = all.iter().find(|entry| {
            entry.name == own.name
                && entry.location.objectid == seen.number
                && !entry.is_subvolume()
        });
        if let Some(entry) = found {
            return Ok(Some(entry.kind));
        }
    }
    Ok(None)
}

/// Type bits of an inode by what its items and its names say.
fn type_bits(plan: &Plan<'_>, seen: &Seen) -> Result<u32, RepairError> {
    let says_file = seen
        .item
        .as_ref()
        .is_some_and(|item| item.mode & KIND == REGULAR);
    if seen.number == ROOT || (seen.has_entries && !(seen.has_extents && says_file)) {
        return Ok(DIRECTORY);
    }
    let by_entry = type_by_entry(plan, seen)?.map(bits_of);
    Ok(match by_entry {
        Some(bits) if !seen.has_extents || bits == REGULAR || bits == SYMLINK => bits,
        _ => REGULAR,
    })
}

/// Second pass: gives inodes without an item, or without a possible type, one.
fn missing_inodes(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    let mut has_root = false;
    let mut no_inode: Vec<Seen> = Vec::new();
    each_inode(plan, |plan, seen| {
        has_root |= seen.number == ROOT;
        let key = Key::new(seen.number, ItemType::INODE_ITEM, 0);
        let Some(item) = &seen.item else {
            no_inode.push(seen.clone());
            return Ok(());
        };
        let kind = item.mode & KIND;
        let contradicts = (seen.has_entries && kind != DIRECTORY)
            || (seen.has_extents && kind != REGULAR && kind != SYMLINK)
            || (seen.number == ROOT && kind != DIRECTORY);
        if type_of(item.mode).is_none() || contradicts {
            let mut new = item.clone();
            new.mode = (item.mode & !KIND) | type_bits(plan, seen)?;
            if new != *item {
                plan.put(StepKind::Inodes, key, new.encode());
            }
            if seen.has_entries && seen.has_extents {
                remove_other_kind(plan, seen.number, new.mode & KIND)?;
            }
        }
        Ok(())
    })?;
    if !has_root {
        no_inode.push(Seen::of(ROOT));
    }
    for seen in no_inode {
        let is_empty = !seen.has_entries && !seen.has_extents && seen.names == 0;
        if is_empty && seen.number != ROOT {
            // Only attributes are left, and nothing has them.
            let keys = Key::new(seen.number, ItemType::MIN, 0)
                ..=Key::new(seen.number, ItemType::MAX, u64::MAX);
            for key in items::read(plan.writer, plan.tree, keys)?.into_keys() {
                plan.remove(StepKind::Items, key);
            }
            continue;
        }
        let bits = type_bits(plan, &seen)?;
        let item = new_inode(plan, bits, &seen);
        let key = Key::new(seen.number, ItemType::INODE_ITEM, 0);
        plan.put(StepKind::Inodes, key, item.encode());
        let text = format!("owner, permissions and times of inode {}", seen.number);
        plan.lose(StepKind::Inodes, text);
    }
    let dots = Key::new(ROOT, ItemType::INODE_REF, ROOT);
    if plan.get(&dots)?.is_none() {
        let own = Own {
            parent: ROOT,
            index: 0,
            name: b"..".to_vec(),
        };
        plan.put(StepKind::Names, dots, encode_own(dots, &[own]));
    }
    Ok(())
}

/// Removes what an inode of the type `bits` cannot have, if it has both entries
/// and file extents.
fn remove_other_kind(plan: &mut Plan<'_>, number: u64, bits: u32) -> Result<(), RepairError> {
    let keys = Key::new(number, ItemType::MIN, 0)..=Key::new(number, ItemType::MAX, u64::MAX);
    for key in items::read(plan.writer, plan.tree, keys)?.into_keys() {
        let goes = match key.item_type {
            ItemType::EXTENT_DATA => bits == DIRECTORY,
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => bits != DIRECTORY,
            _ => false,
        };
        if goes && key.item_type == ItemType::EXTENT_DATA {
            let text = format!("bytes of inode {number} from {} on", key.offset);
            plan.lose(StepKind::FileExtents, text);
        }
        if goes {
            plan.remove(StepKind::Items, key);
        }
    }
    Ok(())
}

/// An inode item for an inode of which only other items are left.
fn new_inode(plan: &Plan<'_>, bits: u32, seen: &Seen) -> InodeItem {
    let generation = plan.writer.generation;
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0));
    let time = Timespec {
        seconds,
        nanoseconds: 0,
    };
    let permissions = if bits == DIRECTORY { 0o700 } else { 0o600 };
    let is_file = bits == REGULAR || bits == SYMLINK;
    let size = match (bits == DIRECTORY, seen.is_inline) {
        (true, _) => seen.entry_bytes,
        (false, true) => seen.bytes,
        (false, false) => seen.end,
    };
    InodeItem {
        generation,
        transid: generation,
        size,
        nbytes: if is_file { seen.bytes } else { 0 },
        nlink: 1,
        mode: bits | permissions,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    }
}

/// Third pass: makes the three sides of each name agree.
fn sides_of_names(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    each(plan, |plan, key, data| {
        if !is_inode(key.objectid) {
            return Ok(());
        }
        match key.item_type {
            ItemType::INODE_REF | ItemType::INODE_EXTREF if key.objectid != ROOT => {
                for own in own_names(key, data) {
                    from_own(plan, key, &own)?;
                }
            }
            ItemType::DIR_INDEX => {
                for entry in entries(key, data) {
                    from_index(plan, key, &entry)?;
                }
            }
            ItemType::DIR_ITEM => {
                for entry in entries(key, data) {
                    from_hash(plan, key, &entry)?;
                }
            }
            _ => {}
        }
        Ok(())
    })
}

/// The entries of a directory by the hash of `name`.
fn hashed(plan: &Plan<'_>, directory: u64, name: &[u8]) -> Result<(Key, Vec<Entry>), RepairError> {
    let key = Key::new(directory, ItemType::DIR_ITEM, name_hash(name));
    let data = plan.get(&key)?.unwrap_or_default();
    Ok((key, entries(key, &data)))
}

fn indexed(plan: &Plan<'_>, directory: u64, index: u64) -> Result<Option<Entry>, RepairError> {
    let key = Key::new(directory, ItemType::DIR_INDEX, index);
    let data = plan.get(&key)?.unwrap_or_default();
    Ok(entries(key, &data).into_iter().next())
}

/// Removes a name from an inode's own record.
fn drop_own(plan: &mut Plan<'_>, key: Key, own: &Own) -> Result<(), RepairError> {
    let data = plan.get(&key)?.unwrap_or_default();
    let mut all = own_names(key, &data);
    all.retain(|one| one != own);
    match all.is_empty() {
        true => plan.remove(StepKind::Names, key),
        false => plan.put(StepKind::Names, key, encode_own(key, &all)),
    }
    Ok(())
}

/// Adds an entry by hash.
fn add_hashed(plan: &mut Plan<'_>, directory: u64, entry: &Entry) -> Result<(), RepairError> {
    let (key, mut all) = hashed(plan, directory, &entry.name)?;
    all.retain(|one| one.name != entry.name);
    all.push(entry.clone());
    plan.put(StepKind::Names, key, encode_entries(&all));
    Ok(())
}

/// Adds a name to an inode's own record.
fn add_own(plan: &mut Plan<'_>, inode: u64, own: &Own) -> Result<(), RepairError> {
    let most = butterfs_tree::Node::item_data_max(plan.writer.patient.identity.node_size);
    let plain = Key::new(inode, ItemType::INODE_REF, own.parent);
    let hash = extref_hash(InodeNumber(own.parent), &own.name);
    let extended = Key::new(inode, ItemType::INODE_EXTREF, hash);
    for key in [plain, extended] {
        let data = plan.get(&key)?.unwrap_or_default();
        let mut all = own_names(key, &data);
        all.retain(|one| (one.parent, &one.name) != (own.parent, &own.name));
        all.push(own.clone());
        let data = encode_own(key, &all);
        if data.len() < most {
            plan.put(StepKind::Names, key, data);
            return Ok(());
        }
    }
    Ok(())
}

/// An inode's own record names an entry of a directory.
fn from_own(plan: &mut Plan<'_>, key: Key, own: &Own) -> Result<(), RepairError> {
    let number = key.objectid;
    let parent = plan.inode(own.parent)?;
    let is_directory = parent.is_some_and(|item| item.mode & KIND == DIRECTORY);
    let item = plan.inode(number)?;
    let kind = item.as_ref().and_then(|item| type_of(item.mode));
    let (true, Some(kind)) = (is_directory, kind) else {
        return drop_own(plan, key, own);
    };
    let generation = item.map_or(Generation(0), |item| item.transid);
    let wanted = Entry {
        location: Key::new(number, ItemType::INODE_ITEM, 0),
        generation,
        kind,
        name: own.name.clone(),
    };
    let (_, by_hash) = hashed(plan, own.parent, &own.name)?;
    let same_name = by_hash.iter().find(|one| one.name == own.name);
    if let Some(other) = same_name.filter(|one| !one.leads_to(&wanted)) {
        // The name leads elsewhere. If that inode has the name too, it keeps it.
        if other.is_subvolume() || has_own(plan, other.location.objectid, own.parent, &own.name)? {
            return drop_own(plan, key, own);
        }
    }
    let fits =
        |one: Option<&Entry>| one.is_some_and(|one| one.leads_to(&wanted) && one.kind == kind);
    if !fits(same_name) {
        add_hashed(plan, own.parent, &wanted)?;
    }
    let by_index = indexed(plan, own.parent, own.index)?;
    if fits(by_index.as_ref()) {
        return Ok(());
    }
    let is_taken = by_index.is_some_and(|one| one.name != own.name);
    let index = match is_taken || own.index < 2 || own.index.saturating_add(1) >= INDEX_END {
        false => own.index,
        true => {
            let index = plan.new_index(own.parent)?;
            drop_own(plan, key, own)?;
            let moved = Own {
                index,
                ..own.clone()
            };
            add_own(plan, number, &moved)?;
            index
        }
    };
    let at = Key::new(own.parent, ItemType::DIR_INDEX, index);
    plan.put(StepKind::Names, at, wanted.encode());
    Ok(())
}

/// Whether an inode's own record has a name in a directory.
fn has_own(plan: &Plan<'_>, inode: u64, parent: u64, name: &[u8]) -> Result<bool, RepairError> {
    Ok(own_of(plan, inode, parent, name)?.is_some())
}

fn own_of(
    plan: &Plan<'_>,
    inode: u64,
    parent: u64,
    name: &[u8],
) -> Result<Option<Own>, RepairError> {
    let plain = Key::new(inode, ItemType::INODE_REF, parent);
    let hash = extref_hash(InodeNumber(parent), name);
    let extended = Key::new(inode, ItemType::INODE_EXTREF, hash);
    for key in [plain, extended] {
        let data = plan.get(&key)?.unwrap_or_default();
        let mut all = own_names(key, &data).into_iter();
        if let Some(own) = all.find(|own| own.parent == parent && own.name == name) {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

/// Takes a name out of a directory's entries.
fn drop_entry(
    plan: &mut Plan<'_>,
    directory: u64,
    index: Option<u64>,
    entry: &Entry,
) -> Result<(), RepairError> {
    if let Some(index) = index {
        plan.remove(
            StepKind::Names,
            Key::new(directory, ItemType::DIR_INDEX, index),
        );
    }
    let (key, mut all) = hashed(plan, directory, &entry.name)?;
    let before = all.len();
    all.retain(|one| !one.leads_to(entry));
    if all.len() == before {
        return Ok(());
    }
    match all.is_empty() {
        true => plan.remove(StepKind::Names, key),
        false => plan.put(StepKind::Names, key, encode_entries(&all)),
    }
    Ok(())
}

/// A directory's index has an entry.
fn from_index(plan: &mut Plan<'_>, key: Key, entry: &Entry) -> Result<(), RepairError> {
    // It was dropped or replaced meanwhile.
    if indexed(plan, key.objectid, key.offset)?.as_ref() != Some(entry) {
        return Ok(());
    }
    let (_, by_hash) = hashed(plan, key.objectid, &entry.name)?;
    let same = by_hash.iter().find(|one| one.name == entry.name);
    if entry.is_subvolume() {
        if same.is_none() {
            add_hashed(plan, key.objectid, entry)?;
        }
        return Ok(());
    }
    let number = entry.location.objectid;
    let parent = plan.inode(key.objectid)?;
    let is_directory = parent.is_some_and(|item| item.mode & KIND == DIRECTORY);
    if !is_directory || !plan.has_items(number)? {
        let text = format!(
            "the name {:?}, whose inode is gone",
            String::from_utf8_lossy(&entry.name)
        );
        plan.lose(StepKind::Names, text);
        return drop_entry(plan, key.objectid, Some(key.offset), entry);
    }
    if let Some(other) = same.filter(|one| !one.leads_to(entry)) {
        let (inode, parent) = (other.location.objectid, key.objectid);
        if other.is_subvolume() || has_own(plan, inode, parent, &entry.name)? {
            plan.remove(StepKind::Names, key);
            return Ok(());
        }
    }
    match own_of(plan, number, key.objectid, &entry.name)? {
        // Another index has the name.
        Some(own) if own.index != key.offset => plan.remove(StepKind::Names, key),
        Some(_) => {}
        None => {
            let own = Own {
                parent: key.objectid,
                index: key.offset,
                name: entry.name.clone(),
            };
            add_own(plan, number, &own)?;
            if !same.is_some_and(|one| one.leads_to(entry)) {
                add_hashed(plan, key.objectid, entry)?;
            }
        }
    }
    Ok(())
}

/// A directory has an entry by hash.
fn from_hash(plan: &mut Plan<'_>, key: Key, entry: &Entry) -> Result<(), RepairError> {
    let (_, now) = hashed(plan, key.objectid, &entry.name)?;
    if !now.iter().any(|one| one.leads_to(entry)) {
        return Ok(());
    }
    let number = entry.location.objectid;
    if entry.is_subvolume() {
        return subvolume_index(plan, key.objectid, entry);
    }
    if own_of(plan, number, key.objectid, &entry.name)?.is_some() {
        return Ok(());
    }
    let parent = plan.inode(key.objectid)?;
    let is_directory = parent.is_some_and(|item| item.mode & KIND == DIRECTORY);
    if !is_directory || !plan.has_items(number)? {
        return drop_entry(plan, key.objectid, None, entry);
    }
    let own = Own {
        parent: key.objectid,
        index: index_of(plan, key.objectid, entry)?,
        name: entry.name.clone(),
    };
    add_own(plan, number, &own)
}

/// The index of an entry in its directory; a new one if it has none.
fn index_of(plan: &mut Plan<'_>, directory: u64, entry: &Entry) -> Result<u64, RepairError> {
    let keys = Key::new(directory, ItemType::DIR_INDEX, 0)
        ..=Key::new(directory, ItemType::DIR_INDEX, u64::MAX);
    let mut index = None;
    items::each(plan.writer, plan.tree, keys, |key, data| {
        if entries(key, data).iter().any(|one| one.leads_to(entry)) {
            index = Some(key.offset);
        }
        Ok(())
    })?;
    if let Some(index) = index {
        return Ok(index);
    }
    let index = plan.new_index(directory)?;
    let at = Key::new(directory, ItemType::DIR_INDEX, index);
    plan.put(StepKind::Names, at, entry.encode());
    Ok(index)
}

/// Gives the entry of a subvolume its index, if that is lost. The reference to
/// the subvolume knows it; in a snapshot, the entry has no reference.
fn subvolume_index(plan: &mut Plan<'_>, directory: u64, entry: &Entry) -> Result<(), RepairError> {
    use butterfs_format::item::root_ref::RootRef;
    let child = entry.location.objectid;
    let key = Key::new(plan.tree.get(), ItemType::ROOT_REF, child);
    let found = find(plan.writer, TreeId::ROOT, &key)?;
    let link = found.and_then(|(leaf, slot)| {
        let link = RootRef::parse(leaf.data(slot)).ok()?;
        (link.name == entry.name && link.directory.get() == directory).then_some(link.index)
    });
    let Some(index) = link else {
        return index_of(plan, directory, entry).map(drop);
    };
    if indexed(plan, directory, index)?.is_none() {
        let at = Key::new(directory, ItemType::DIR_INDEX, index);
        plan.put(StepKind::Names, at, entry.encode());
    }
    Ok(())
}

/// Fourth pass: makes what inodes count true, and gives inodes without a name
/// one.
fn counts(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    let has_no_holes = plan.writer.patient.superblock.has_no_holes();
    let sector = u64::from(plan.writer.patient.superblock.sector_size);
    let mut nameless: Vec<(u64, InodeItem)> = Vec::new();
    each_inode(plan, |plan, seen| {
        let Some(old) = &seen.item else {
            return Ok(());
        };
        let key = Key::new(seen.number, ItemType::INODE_ITEM, 0);
        let orphan = Key::new(object::ORPHAN, ItemType::ORPHAN_ITEM, seen.number);
        let mut item = old.clone();
        let kind = item.mode & KIND;
        let links = match kind == DIRECTORY {
            true => seen.names.min(1),
            false => seen.names.min(u64::from(LINKS_MAX)),
        };
        if seen.names > 0 {
            item.nlink = u32::try_from(links).unwrap_or(LINKS_MAX);
        }
        if item.nlink > 0 {
            match kind {
                DIRECTORY => item.size = seen.entry_bytes,
                SYMLINK if seen.is_inline => {
                    let target = seen.bytes.saturating_sub(u64::from(seen.ends_with_nul));
                    if item.size != seen.bytes && item.size != target {
                        item.size = target;
                    }
                }
                SYMLINK => item.size = item.size.min(seen.bytes),
                _ => {}
            }
            if kind != DIRECTORY {
                item.nbytes = seen.bytes;
            }
        }
        let has_orphan = plan.get(&orphan)?.is_some();
        if seen.names == 0 {
            match (old.nlink == 0 || has_orphan, has_orphan) {
                (true, false) => plan.put(StepKind::Orphans, orphan, Vec::new()),
                (true, true) => item.nlink = 0,
                (false, _) if seen.number == ROOT => {}
                (false, _) => {
                    nameless.push((seen.number, item.clone()));
                    return Ok(());
                }
            }
        } else if old.nlink == 0 && has_orphan {
            plan.remove(StepKind::Orphans, orphan);
        }
        if item != *old {
            plan.put(StepKind::Inodes, key, item.encode());
        }
        if kind == REGULAR && !has_no_holes && item.size > 0 {
            let size = item.size.next_multiple_of(sector.max(1));
            let last = (seen.end < size).then_some((seen.end, size));
            let holes = seen.holes.iter().copied().chain(last);
            for (from, to) in holes.filter(|(from, _)| *from < size) {
                let at = Key::new(seen.number, ItemType::EXTENT_DATA, from);
                plan.put(
                    StepKind::FileExtents,
                    at,
                    file_extents::hole(plan.writer, to.min(size).saturating_sub(from)),
                );
            }
        }
        Ok(())
    })?;
    lost_and_found(plan, nameless)
}

/// Gives inodes names in lost+found.
fn lost_and_found(plan: &mut Plan<'_>, nameless: Vec<(u64, InodeItem)>) -> Result<(), RepairError> {
    if nameless.is_empty() {
        return Ok(());
    }
    let name = b"lost+found".to_vec();
    let (_, all) = hashed(plan, ROOT, &name)?;
    let there = all
        .iter()
        .find(|one| one.name == name && !one.is_subvolume());
    let directory = match there {
        Some(entry) => entry.location.objectid,
        None => {
            let number = plan.new_inode()?;
            let item = new_inode(plan, DIRECTORY, &Seen::of(number));
            let key = Key::new(number, ItemType::INODE_ITEM, 0);
            plan.put(StepKind::LostAndFound, key, item.encode());
            add_name(plan, ROOT, number, FileType::Directory, &name)?;
            number
        }
    };
    for (number, mut item) in nameless {
        let kind = type_of(item.mode).unwrap_or(FileType::Regular);
        let name = format!("inode-{number}").into_bytes();
        item.nlink = 1;
        let key = Key::new(number, ItemType::INODE_ITEM, 0);
        plan.put(StepKind::LostAndFound, key, item.encode());
        add_name(plan, directory, number, kind, &name)?;
    }
    Ok(())
}

/// Adds a name on all three sides, and its bytes to the directory's size.
fn add_name(
    plan: &mut Plan<'_>,
    directory: u64,
    number: u64,
    kind: FileType,
    name: &[u8],
) -> Result<(), RepairError> {
    let index = plan.new_index(directory)?;
    let entry = Entry {
        location: Key::new(number, ItemType::INODE_ITEM, 0),
        generation: plan.writer.generation,
        kind,
        name: name.to_vec(),
    };
    add_hashed(plan, directory, &entry)?;
    let at = Key::new(directory, ItemType::DIR_INDEX, index);
    plan.put(StepKind::Names, at, entry.encode());
    let own = Own {
        parent: directory,
        index,
        name: name.to_vec(),
    };
    add_own(plan, number, &own)?;
    if let Some(mut item) = plan.inode(directory)? {
        let bytes = u64::try_from(name.len()).unwrap_or(0);
        item.size = item.size.saturating_add(bytes.saturating_mul(2));
        let key = Key::new(directory, ItemType::INODE_ITEM, 0);
        plan.put(StepKind::Inodes, key, item.encode());
    }
    Ok(())
}
