//! The inodes of a subvolume, one after the other.

use crate::nodes::Nodes;
use crate::plan::{Origin, Plan, Seen};
use crate::ranges::ByteRanges;
use butterfs_format::item::dir::{DirEntries, FileType};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{ExtrefEntries, InodeItem, RefEntries};
use butterfs_format::{InodeNumber, ItemType, Key, TreeId};

const TYPE_MASK: u32 = 0o170_000;
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_SYMLINK: u32 = 0o120_000;
/// Longest text of a symbolic link.
const SYMLINK_MAX: usize = 4095;

/// What is left of an inode.
#[derive(Clone, Debug)]
pub(crate) struct InodeParts {
    pub(crate) number: InodeNumber,
    pub(crate) item: Option<InodeItem>,
    /// Directory and name.
    pub(crate) names: Vec<(InodeNumber, Vec<u8>)>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Offset in the file, and the item.
    pub(crate) extents: Vec<(u64, Box<[u8]>)>,
    /// Keys of it that may have had items that are lost.
    gaps: Vec<(Key, Key)>,
    /// Some of it comes from leaves that may be older than the tree.
    pub(crate) is_found: bool,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeKind {
    Directory,
    File,
    Symlink,
    /// Devices, pipes and sockets.
    Special,
    /// Its inode item is lost.
    Unknown,
}

impl InodeParts {
    const fn new(number: InodeNumber) -> Self {
        Self {
            number,
            item: None,
            names: Vec::new(),
            xattrs: Vec::new(),
            extents: Vec::new(),
            gaps: Vec::new(),
            is_found: false,
        }
    }

    pub(crate) fn kind(&self) -> InodeKind {
        match self.item.as_ref().map(|item| item.mode & TYPE_MASK) {
            Some(TYPE_DIRECTORY) => InodeKind::Directory,
            Some(TYPE_FILE) => InodeKind::File,
            Some(TYPE_SYMLINK) => InodeKind::Symlink,
            Some(_) => InodeKind::Special,
            None => InodeKind::Unknown,
        }
    }

    /// Bytes of the file; up to its last extent if the inode item is lost.
    pub(crate) fn size(&self) -> u64 {
        if let Some(item) = &self.item {
            return item.size;
        }
        let ends = self.extents.iter().filter_map(|(offset, data)| {
            let extent = FileExtent::parse(data).ok()?;
            offset.checked_add(length(&extent))
        });
        ends.max().unwrap_or(0)
    }

    /// What a symbolic link points to; `None` if that is lost.
    pub(crate) fn link_text(&self) -> Option<Vec<u8>> {
        let text = self.parsed().find_map(|(_, extent)| match extent.body {
            FileExtentBody::Inline(text) if text.len() <= SYMLINK_MAX => Some(text.to_vec()),
            _ => None,
        });
        text.filter(|text| !text.is_empty())
    }

    /// The extents that can be parsed, ascending.
    pub(crate) fn parsed(&self) -> impl Iterator<Item = (u64, FileExtent<'_>)> {
        let extents = self.extents.iter();
        extents.filter_map(|(offset, data)| Some((*offset, FileExtent::parse(data).ok()?)))
    }

    /// Ranges of the file whose extents are lost. The byte count of the inode
    /// tells whether any extent lacks at all.
    pub(crate) fn lost_ranges(&self) -> ByteRanges {
        let size = self.size();
        let mut lost = ByteRanges::default();
        let mut there = ByteRanges::default();
        let mut bytes = 0_u64;
        for (offset, data) in &self.extents {
            let Ok(extent) = FileExtent::parse(data) else {
                continue;
            };
            let length = length(&extent);
            there.add(*offset, offset.saturating_add(length));
            let is_hole = matches!(extent.body, FileExtentBody::Regular(p) if p.disk.get() == 0);
            if !is_hole {
                bytes = bytes.saturating_add(length);
            }
        }
        let is_damaged = self.extents.len() > self.parsed().count();
        let counted = self.item.as_ref().map(|item| item.nbytes);
        if (self.gaps.is_empty() && !is_damaged) || counted == Some(bytes) {
            return lost;
        }
        let free = there.gaps(size);
        if is_damaged {
            return free;
        }
        for (from, to) in &self.gaps {
            let (low, high) = self.offsets(from, to);
            for (start, end) in free.iter() {
                lost.add(start.max(low), end.min(high));
            }
        }
        lost
    }

    /// The offsets of extents that a range of keys can have.
    fn offsets(&self, from: &Key, to: &Key) -> (u64, u64) {
        let first = Key::new(self.number.get(), ItemType::EXTENT_DATA, 0);
        let last = Key::new(self.number.get(), ItemType::EXTENT_DATA, u64::MAX);
        if *from > last || *to <= first {
            return (0, 0);
        }
        let low = if *from > first { from.offset } else { 0 };
        let high = if *to > last { u64::MAX } else { to.offset };
        (low, high)
    }

    fn take(&mut self, key: Key, data: &[u8]) {
        match key.item_type {
            ItemType::INODE_ITEM => self.item = InodeItem::parse(data).ok(),
            ItemType::INODE_REF => {
                let parent = InodeNumber(key.offset);
                let entries = RefEntries::new(data).flatten();
                self.names
                    .extend(entries.map(|entry| (parent, entry.name.to_vec())));
            }
            ItemType::INODE_EXTREF => {
                let entries = ExtrefEntries::new(data).flatten();
                self.names
                    .extend(entries.map(|entry| (entry.parent, entry.name.to_vec())));
            }
            ItemType::XATTR_ITEM => {
                let entries = DirEntries::new(data).flatten();
                let attributes = entries.filter(|entry| entry.kind == FileType::Xattr);
                self.xattrs
                    .extend(attributes.map(|one| (one.name.to_vec(), one.data.to_vec())));
            }
            ItemType::EXTENT_DATA => self.extents.push((key.offset, data.into())),
            _ => {}
        }
    }
}

/// Bytes of a file that an extent covers.
pub(crate) fn length(extent: &FileExtent<'_>) -> u64 {
    match &extent.body {
        FileExtentBody::Inline(_) => extent.ram_bytes,
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => place.length,
    }
}

/// Whether inodes have this number.
pub(crate) const fn is_inode(number: u64) -> bool {
    number >= InodeNumber::ROOT.0 && number <= TreeId::LAST_SUBVOLUME.0
}

/// Calls `visit` with each inode of a subvolume, ascending.
pub(crate) fn each_inode<E>(
    plan: &Plan,
    nodes: &Nodes,
    mut visit: impl FnMut(InodeParts) -> Result<(), E>,
) -> Result<(), E> {
    let mut current: Option<InodeParts> = None;
    let mut gap: Option<(Key, Key)> = None;
    plan.each(nodes, |seen| {
        let (key, data, origin) = match seen {
            Seen::Item { key, data, origin } => (key, data, origin),
            Seen::Gap { from, to } => {
                if let Some(inode) = &mut current
                    && inode.number.get() == from.objectid
                {
                    inode.gaps.push((from, to));
                }
                let before = gap.filter(|(_, end)| *end == from);
                gap = Some((before.map_or(from, |(start, _)| start), to));
                return Ok(());
            }
        };
        if !is_inode(key.objectid) {
            return Ok(());
        }
        if current.as_ref().map(|inode| inode.number.get()) != Some(key.objectid) {
            if let Some(done) = current.take() {
                visit(done)?;
            }
            let mut begun = InodeParts::new(InodeNumber(key.objectid));
            // The inode item is the first one: a gap before it takes nothing.
            let begin = Key::new(key.objectid, ItemType::INODE_ITEM, 0);
            begun.gaps.extend(gap.filter(|(_, to)| *to > begin));
            current = Some(begun);
        }
        // Items in a gap are those that the scan found: the gap goes on.
        gap = gap.filter(|(_, to)| *to > key);
        if let Some(inode) = &mut current {
            inode.is_found |= origin == Origin::Found;
            inode.take(key, data);
        }
        Ok(())
    })?;
    match current {
        Some(last) => visit(last),
        None => Ok(()),
    }
}
