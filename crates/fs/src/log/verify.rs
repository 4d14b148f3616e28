//! Checks logs before anything of them is replayed. The checksums of a log's
//! nodes prove that they came back as they were written, but not that the log
//! is right.
//!
//! Owns what can be checked by the log and the last commit alone. The replay
//! itself checks what depends on its earlier steps.

use super::items::{LogItems, parse_links};
use crate::dir::{FIRST_INDEX, check_name, is_absent_subvolume};
use crate::error::FsError;
use crate::file::extents::{self, Body, Found};
use crate::inode::load_item;
use crate::inode_fault::{InodeFault, LogFault};
use crate::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, kind_of};
use butterfs_format::checksum::name_hash;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::dir::{DirEntries, FileType};
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, Logical, TreeId, object};
use butterfs_store::{Engine, ItemFault, corrupt_item};
use butterfs_tree::Cursor;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Numbers that inodes of subvolumes have.
const INODES: std::ops::RangeInclusive<u64> = 256..=u64::MAX - 256;
/// Greatest offset in a file, and position in a directory.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A log that cannot be replayed, and what the user can do.
pub(super) fn lies(inode: InodeId, fault: LogFault) -> FsError {
    FsError::Damaged {
        inode,
        at: None,
        fault: Box::new(InodeFault::Log(fault)),
    }
}

/// Whether logs can be replayed.
///
/// # Errors
/// The first thing that cannot be.
pub(super) fn verify(engine: &Engine, logs: &[LogItems]) -> Result<(), FsError> {
    let mut blocks: Vec<&Range<u64>> = logs.iter().flat_map(LogItems::blocks).collect();
    blocks.sort_by_key(|block| block.start);
    if blocks.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(corrupt_item(TreeId::LOG, Key::MIN, ItemFault::LogNodeTwice).into());
    }
    let mut data = BTreeMap::new();
    for log in logs.iter().filter(|log| log.tree != TreeId::LOG) {
        if !log.tree.is_subvolume() {
            return Err(corrupt_item(log.tree, Key::MIN, ItemFault::LogOfNoSubvolume).into());
        }
        if engine.committed_root(log.tree)?.is_none() {
            continue;
        }
        let verifier = Verifier { engine, log };
        for (key, item) in &log.items {
            verifier.item(*key, item, &mut data)?;
        }
    }
    verify_data(engine, &data, &blocks)
}

/// Extents that logs name and the last commit does not have, by address, with
/// their ends and the inodes that name them.
type DataRanges = BTreeMap<u64, (u64, InodeId)>;

struct Verifier<'a> {
    engine: &'a Engine,
    log: &'a LogItems,
}

impl Verifier<'_> {
    fn item(&self, key: Key, data: &[u8], ranges: &mut DataRanges) -> Result<(), FsError> {
        let id = InodeId {
            tree: self.log.tree,
            number: InodeNumber(key.objectid),
        };
        if key.item_type == ItemType::EXTENT_CSUM && key.objectid == object::EXTENT_CSUM {
            return self.checksums(key, data);
        }
        let known = matches!(
            key.item_type,
            ItemType::INODE_ITEM
                | ItemType::INODE_REF
                | ItemType::INODE_EXTREF
                | ItemType::XATTR_ITEM
                | ItemType::DIR_INDEX
                | ItemType::EXTENT_DATA
        );
        if !known {
            return Ok(());
        }
        if !INODES.contains(&key.objectid) || is_absent_subvolume(id) {
            return Err(lies(id, LogFault::NoSuchNumber));
        }
        match key.item_type {
            ItemType::INODE_ITEM => self.inode(id, key, data),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                if is_dots(key) {
                    return Ok(());
                }
                for link in parse_links(id, key, data)? {
                    if id.number == InodeNumber::ROOT || link.parent == id.number {
                        return Err(lies(id, LogFault::ImpossibleLink));
                    }
                    verify_name(id, &link.name, link.index)?;
                }
                Ok(())
            }
            ItemType::XATTR_ITEM => self.attribute(id, key, data),
            ItemType::DIR_INDEX => self.entry(id, key, data),
            _ => self.extent(id, key, data, ranges),
        }
    }

    /// The type of an inode, in the log or else in the last commit.
    fn mode(&self, id: InodeId) -> Result<Option<u32>, FsError> {
        if let Some(data) = self.log.get(&crate::inode::item_key(id)) {
            let item = InodeItem::parse(data)
                .map_err(|error| FsError::bad_item(id, "logged inode item", &error))?;
            return Ok(Some(item.mode & S_IFMT));
        }
        match load_item(self.engine, id) {
            Ok(item) => Ok(Some(item.mode & S_IFMT)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn inode(&self, id: InodeId, key: Key, data: &[u8]) -> Result<(), FsError> {
        let item = InodeItem::parse(data)
            .map_err(|error| FsError::bad_item(id, "logged inode item", &error))?;
        if key.offset != 0 {
            return Err(lies(id, LogFault::ItemOffset));
        }
        if kind_of(item.mode).is_err() {
            return Err(lies(id, LogFault::NoSuchType));
        }
        if item.flags.0 & !InodeFlags::known().0 != 0 {
            return Err(lies(id, LogFault::NoSuchFlags));
        }
        if item.size > OFFSET_MAX {
            return Err(lies(id, LogFault::Size));
        }
        let last = self.engine.generation();
        if item.generation > last || item.transid > last {
            return Err(lies(id, LogFault::FutureInode));
        }
        let old = match load_item(self.engine, id) {
            Ok(old) => old,
            Err(FsError::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        };
        if (old.mode ^ item.mode) & S_IFMT != 0 {
            return Err(lies(id, LogFault::OtherType));
        }
        // A file that has data keeps checksums, or their absence, as it was. An
        // empty one may change that, and then get data.
        let changed = (old.flags.0 ^ item.flags.0) & InodeFlags::NODATASUM.0 != 0;
        let has_it = item.generation.get() != 0 && item.mode & S_IFMT == S_IFREG;
        if changed && has_it && self.keeps_data(id, item.size)? {
            return Err(lies(id, LogFault::OtherChecksumming));
        }
        Ok(())
    }

    /// Whether a replay leaves an inode, which gets this size, data that the
    /// last commit has written. The log takes them away where it has something
    /// else of the file.
    fn keeps_data(&self, id: InodeId, size: u64) -> Result<bool, FsError> {
        let sector = self.engine.sector_size();
        let end = size.next_multiple_of(sector);
        let written = |extent: &Found| match &extent.body {
            Body::Regular(place) if place.disk.get() != 0 => Some(place.disk),
            _ => None,
        };
        let mut old = extents::overlapping(self.engine, id, 0..end, usize::MAX)?;
        old.retain(|extent| written(extent).is_some());
        let disks: BTreeSet<Logical> = old.iter().filter_map(written).collect();
        let mut covered: Vec<Range<u64>> = Vec::new();
        for (key, data) in &self.log.items {
            if key.objectid != id.number.get() || key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = Found::new(id, *key, data, sector)?;
            if written(&extent).is_some_and(|disk| disks.contains(&disk)) {
                continue;
            }
            let range = extent.start..extent.end().next_multiple_of(sector);
            match covered.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => covered.push(range),
            }
        }
        Ok(old.iter().any(|extent| {
            let next = covered.partition_point(|range| range.start <= extent.start);
            let here = next.checked_sub(1).map(|at| &covered[at]);
            here.is_none_or(|range| range.end < extent.end().min(end))
        }))
    }

    fn attribute(&self, id: InodeId, key: Key, data: &[u8]) -> Result<(), FsError> {
        let mut seen = Vec::new();
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(id, "logged attribute", &error))?;
            let right = entry.kind == FileType::Xattr
                && entry.location == Key::MIN
                && name_hash(entry.name) == key.offset
                && !seen.contains(&entry.name);
            if !right {
                return Err(lies(id, LogFault::Attribute));
            }
            seen.push(entry.name);
        }
        if seen.is_empty() {
            return Err(lies(id, LogFault::EmptyAttribute));
        }
        Ok(())
    }

    fn entry(&self, dir: InodeId, key: Key, data: &[u8]) -> Result<(), FsError> {
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(dir, "logged entry", &error))?;
            if entry.location.item_type != ItemType::INODE_ITEM {
                continue;
            }
            verify_name(dir, entry.name, key.offset)?;
            let target = entry.location.objectid;
            let own = target == dir.number.get() || target == InodeNumber::ROOT.get();
            if own || !INODES.contains(&target) {
                return Err(lies(dir, LogFault::Entry));
            }
        }
        if self.mode(dir)?.is_some_and(|mode| mode != S_IFDIR) {
            return Err(lies(dir, LogFault::EntriesOfFile));
        }
        Ok(())
    }

    fn extent(
        &self,
        id: InodeId,
        key: Key,
        data: &[u8],
        ranges: &mut DataRanges,
    ) -> Result<(), FsError> {
        let extent = Found::new(id, key, data, self.engine.sector_size())?;
        if extent.generation > self.engine.generation() {
            return Err(lies(id, LogFault::FutureData));
        }
        if extent.end() > OFFSET_MAX {
            return Err(lies(id, LogFault::DataBeyond));
        }
        match self.mode(id)? {
            None | Some(S_IFREG | S_IFLNK) => {}
            Some(_) => return Err(lies(id, LogFault::DataOfOther)),
        }
        let (Body::Regular(place) | Body::Prealloc(place)) = &extent.body else {
            return Ok(());
        };
        // The kernel would read nothing of a leaf with such an item.
        if !extent.ram_bytes.is_multiple_of(self.engine.sector_size()) {
            return Err(lies(id, LogFault::PartOfSector));
        }
        if place.disk.get() == 0 {
            return Ok(());
        }
        if place.length == 0 || place.disk_length == 0 {
            return Err(lies(id, LogFault::EmptyExtent));
        }
        let whole = extents::extent_of(place);
        if self.engine.has_data_extent(whole)? {
            return Ok(());
        }
        let start = place.disk.get();
        let end = start + place.disk_length;
        let known = ranges.insert(start, (end, id));
        if known.is_some_and(|(known, _)| known != end) {
            return Err(lies(id, LogFault::TwoLengths));
        }
        Ok(())
    }

    fn checksums(&self, key: Key, data: &[u8]) -> Result<(), FsError> {
        let (sector, size) = (
            self.engine.sector_size(),
            self.engine.superblock().checksum_type.size(),
        );
        let covered = (data.len() / size) as u64 * sector;
        let whole = data.len().is_multiple_of(size) && key.offset.is_multiple_of(sector);
        if !whole || key.offset.checked_add(covered).is_none() {
            return Err(corrupt_item(self.log.tree, key, ItemFault::LogChecksums).into());
        }
        Ok(())
    }
}

/// The name of a tree's root. The kernel logs it too.
pub(super) fn is_dots(key: Key) -> bool {
    let root = InodeNumber::ROOT.get();
    key.item_type == ItemType::INODE_REF && key.objectid == root && key.offset == root
}

fn verify_name(id: InodeId, name: &[u8], index: u64) -> Result<(), FsError> {
    check_name(name).map_err(|_| lies(id, LogFault::Name))?;
    if !(FIRST_INDEX..=OFFSET_MAX).contains(&index) {
        return Err(lies(id, LogFault::NamePosition));
    }
    Ok(())
}

/// New extents lie in block groups of data. They do not overlap one another, or
/// anything that the last commit or the log has.
fn verify_data(engine: &Engine, data: &DataRanges, blocks: &[&Range<u64>]) -> Result<(), FsError> {
    let mut before = 0;
    for (start, (end, id)) in data {
        let (start, end, id) = (*start, *end, *id);
        if start < before {
            return Err(lies(id, LogFault::DataOverData));
        }
        before = end;
        let mut groups = engine.groups();
        let inside = groups.any(|group| {
            let first = group.start.get();
            group.flags.contains(BlockGroupFlags::DATA)
                && first <= start
                && end - first <= group.length
        });
        if !inside {
            return Err(lies(id, LogFault::DataOutside));
        }
        let next = blocks.partition_point(|block| block.end <= start);
        if blocks.get(next).is_some_and(|block| block.start < end) {
            return Err(lies(id, LogFault::DataOverLog));
        }
        if is_used(engine, start..end)? {
            return Err(lies(id, LogFault::DataOverCommit));
        }
    }
    Ok(())
}

/// Whether the last commit has an extent in a range.
fn is_used(engine: &Engine, range: Range<u64>) -> Result<bool, FsError> {
    let from = Key::new(range.end, ItemType::MIN, 0);
    let mut cursor = Cursor::seek_in(engine, TreeId::EXTENT, &from)?;
    while cursor.prev()? {
        let Some(key) = cursor.key() else { break };
        let length = match key.item_type {
            ItemType::EXTENT_ITEM => key.offset,
            ItemType::METADATA_ITEM => engine.node_size() as u64,
            _ => continue,
        };
        let end = key
            .objectid
            .checked_add(length)
            .ok_or_else(|| corrupt_item(TreeId::EXTENT, key, ItemFault::BeyondAddresses))?;
        return Ok(end > range.start);
    }
    Ok(false)
}
