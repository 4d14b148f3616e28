//! The tree of the files.
//!
//! It is made twice from the same inodes: to count it and gather its extents,
//! and to write it. Both times room for copies is taken in the same order.

use crate::content::{self, Part};
use crate::error::ConvertError;
use crate::ground::{Ground, Kind as Place, Room, SECTOR};
use crate::inode::{self, GENERATION};
use crate::loader::Items;
use crate::names::{self, Name, NamesByInode, number_of};
use crate::options::{Options, Step, Watch};
use crate::relocation::Relocations;
use crate::sorter::{Sorted, Sorter};
use crate::source::Old;
use butterfs_device::BlockDevice;
use butterfs_ext4::{Inode, InodeNumber as OldNumber, Kind, State};
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::{DirEntry, FileType};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::packed::item_max;
use butterfs_format::{DeviceOffset, ItemType, Key, Logical, TreeId};
use std::collections::BTreeSet;
use std::ops::Range;

/// The name of the subvolume with the image.
pub(crate) const SAVED: &[u8] = b"ext2_saved";
/// Its tree.
pub(crate) const SAVED_TREE: TreeId = TreeId::FIRST_SUBVOLUME;
/// Parts of a file that are remembered. Files with more are read once more.
const PARTS_MAX: usize = 4096;
/// A longer link cannot be read.
const LINK_MAX: u64 = 4095;

/// What the tree of files is made from.
pub(crate) struct Files<'f> {
    pub(crate) old: &'f Old,
    pub(crate) options: &'f Options,
    pub(crate) ground: &'f Ground,
    pub(crate) names: &'f Sorted,
    /// Inodes in use, for the progress.
    pub(crate) inodes: u64,
}

/// One making of the tree.
pub(crate) struct Pass<'p> {
    pub(crate) items: &'p mut dyn Items,
    pub(crate) relocations: &'p mut Relocations,
    pub(crate) room: Room,
    /// Gets the extents, while the tree is counted.
    pub(crate) extents: Option<&'p mut Sorter>,
    /// Gets the copied data, while the tree is written.
    pub(crate) device: Option<&'p dyn BlockDevice>,
    /// Bytes for which there was no room.
    pub(crate) missing: u64,
    /// Attributes that Btrfs has no place for.
    pub(crate) left_out: BTreeSet<String>,
    /// Files, directories and the like.
    pub(crate) files: u64,
    /// The index of the entry of [`SAVED`] in the root directory.
    pub(crate) saved_index: u64,
}

impl<'p> Pass<'p> {
    pub(crate) fn new(
        items: &'p mut dyn Items,
        relocations: &'p mut Relocations,
        room: Room,
    ) -> Self {
        Self {
            items,
            relocations,
            room,
            extents: None,
            device: None,
            missing: 0,
            left_out: BTreeSet::new(),
            files: 0,
            saved_index: 0,
        }
    }
}

/// The record of an extent of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Whether the image has it too.
    pub(crate) stays: bool,
    pub(crate) inode: u64,
    pub(crate) offset: u64,
}

impl Piece {
    fn push(&self, sorter: &mut Sorter) -> Result<(), ConvertError> {
        sorter.push(&[
            &self.start.to_be_bytes(),
            &self.end.to_be_bytes(),
            &[u8::from(self.stays)],
            &self.inode.to_be_bytes(),
            &self.offset.to_be_bytes(),
        ])
    }

    /// Of a record.
    pub(crate) fn parse(record: &[u8]) -> Option<Self> {
        let (start, rest) = record.split_first_chunk()?;
        let (end, rest) = rest.split_first_chunk()?;
        let (stays, rest) = rest.split_first()?;
        let (inode, rest) = rest.split_first_chunk()?;
        Some(Self {
            start: u64::from_be_bytes(*start),
            end: u64::from_be_bytes(*end),
            stays: *stays != 0,
            inode: u64::from_be_bytes(*inode),
            offset: rest.first_chunk().copied().map_or(0, u64::from_be_bytes),
        })
    }
}

impl Files<'_> {
    /// Makes the tree.
    ///
    /// # Errors
    /// Everything that is wrong with the old file system; writing.
    pub(crate) fn make(&self, pass: &mut Pass<'_>, watch: &dyn Watch) -> Result<(), ConvertError> {
        let step = match pass.device {
            Some(_) => Step::Files,
            None => Step::Reading,
        };
        let mut names = NamesByInode::new(self.names)?;
        let mut done = 0_u64;
        for group in 0..self.old.superblock().groups() {
            self.old
                .inodes_of(group, &mut |inode| -> Result<(), ConvertError> {
                    let inode = inode?;
                    done = done.saturating_add(1);
                    if done.is_multiple_of(1024) {
                        watch.progress(step, done, self.inodes);
                        if watch.is_stopped() {
                            return Err(ConvertError::Stopped);
                        }
                    }
                    if names::is_hidden(self.old, &inode) {
                        return Ok(());
                    }
                    let own = names.of(inode.number)?;
                    pass.files = pass.files.saturating_add(1);
                    self.inode(&inode, &own, pass)
                })?;
        }
        watch.progress(step, done, self.inodes);
        names.end()
    }

    fn inode(
        &self,
        inode: &Inode,
        names: &[names::NameOf],
        pass: &mut Pass<'_>,
    ) -> Result<(), ConvertError> {
        let kind = inode.kind()?;
        if i64::try_from(inode.size).is_err() {
            return Err(contradiction(inode, "its size is impossible"));
        }
        let number = names::type_of(kind).number();
        if names.iter().any(|name| name.kind != number) {
            return Err(contradiction(inode, "a directory calls it something else"));
        }
        let object = number_of(inode.number);
        let mut item = inode::item(inode, kind, self.options);
        item.nlink = inode::links(inode, kind, names)?;
        let mut content = Content::None;
        match kind {
            Kind::Directory => item.size = self.directory_size(inode)?,
            Kind::File => {
                item.size = inode.size;
                content = self.content(inode)?;
                item.nbytes = content.bytes();
                if content.has_preallocated() {
                    item.flags |= InodeFlags::PREALLOC;
                }
            }
            Kind::Link => {
                let target = self.link(inode)?;
                item.size = inode.size;
                item.nbytes = inode.size;
                content = Content::Inline(target);
            }
            _ => {}
        }
        let key = Key::new(object, ItemType::INODE_ITEM, 0);
        pass.items.item(key, item.encode())?;
        let node_size = self.options.node_size;
        inode::references(inode, names, node_size, &mut *pass.items)?;
        let left_out = &mut pass.left_out;
        inode::attributes(self.old, inode, self.options, &mut *pass.items, left_out)?;
        match (kind, content) {
            (Kind::Directory, _) => self.entries(inode, pass),
            (_, Content::None) => Ok(()),
            (_, Content::Inline(bytes)) => {
                let data = FileExtent::inline(GENERATION, &bytes).encode();
                let key = Key::new(object, ItemType::EXTENT_DATA, 0);
                pass.items.item(key, data)
            }
            (_, Content::Parts { parts, .. }) => parts
                .into_iter()
                .try_for_each(|part| self.part(object, part, pass)),
            (_, Content::Many { .. }) => {
                self.parts(inode, &mut |part| self.part(object, part, pass))
            }
        }
    }

    fn content(&self, inode: &Inode) -> Result<Content, ConvertError> {
        let room = item_max(self.options.node_size).saturating_sub(FileExtent::INLINE_HEADER);
        let most = u64::try_from(room).unwrap_or(0).min(SECTOR - 1);
        let inline = content::inline(self.old, inode, (self.options.inline, most))?;
        if let Some(bytes) = inline {
            return Ok(Content::Inline(bytes));
        }
        let mut parts = Vec::new();
        let (mut bytes, mut preallocated, mut is_long) = (0_u64, false, false);
        self.parts(inode, &mut |part| {
            bytes = bytes.saturating_add(part.length());
            preallocated |= matches!(
                part,
                Part::Stays {
                    state: State::Unwritten,
                    ..
                }
            );
            is_long |= parts.len() >= PARTS_MAX;
            match is_long {
                true => parts.clear(),
                false => parts.push(part),
            }
            Ok(())
        })?;
        Ok(match is_long {
            true => Content::Many {
                bytes,
                preallocated,
            },
            false => Content::Parts {
                parts,
                bytes,
                preallocated,
            },
        })
    }

    /// Visits the parts of a file. Preallocated space where Btrfs has something
    /// becomes a hole.
    fn parts(&self, inode: &Inode, visit: content::Visit<'_>) -> Result<(), ConvertError> {
        content::parts(self.old, inode, &mut |part| {
            let Part::Stays {
                offset,
                physical,
                state: State::Unwritten,
            } = part
            else {
                return visit(part);
            };
            let first = physical.start;
            self.ground.cut(physical, &mut |physical, place| {
                let offset = offset.saturating_add(physical.start - first);
                match place {
                    Place::Reserved => Ok(()),
                    Place::Usable => visit(Part::Stays {
                        offset,
                        physical,
                        state: State::Unwritten,
                    }),
                }
            })
        })
    }

    fn link(&self, inode: &Inode) -> Result<Vec<u8>, ConvertError> {
        if inode.size == 0 || inode.size > LINK_MAX {
            return Err(contradiction(inode, "it is a link of an impossible length"));
        }
        let target = match inode.short_link() {
            Some(target) => target.to_vec(),
            None => content::whole(self.old, inode)?,
        };
        if u64::try_from(target.len()).ok() != Some(inode.size) {
            return Err(contradiction(inode, "it is a link of an impossible length"));
        }
        let needed = target.len().saturating_add(FileExtent::INLINE_HEADER);
        if needed > item_max(self.options.node_size) {
            return Err(ConvertError::TooLarge {
                inode: inode.number,
                what: "it is a link that does not fit into a node; take larger nodes (-N)"
                    .to_owned(),
            });
        }
        Ok(target)
    }

    fn directory_size(&self, inode: &Inode) -> Result<u64, ConvertError> {
        let mut size = 0_u64;
        names::each_name(self.old, inode, &mut |_, name| {
            size = size.saturating_add(twice(name.name));
            Ok(())
        })?;
        if inode.number == OldNumber::ROOT {
            size = size.saturating_add(twice(SAVED));
        }
        Ok(size)
    }

    /// Adds the entries of a directory, by hash and by index.
    fn entries(&self, inode: &Inode, pass: &mut Pass<'_>) -> Result<(), ConvertError> {
        let object = number_of(inode.number);
        let mut by_hash = Sorter::new(self.options.sort_memory);
        let mut by_index = Sorter::new(self.options.sort_memory);
        let mut last = 1;
        let mut add = |index: u64, hash: u64, data: &[u8], name: &[u8]| {
            last = index;
            by_hash.push(&[&hash.to_be_bytes(), name, &[0], data])?;
            by_index.push(&[&index.to_be_bytes(), data])
        };
        let is_root = inode.number == OldNumber::ROOT;
        let mut is_taken = false;
        let mut next = 2;
        names::each_name(self.old, inode, &mut |index, Name { inode, kind, name }| {
            is_taken |= is_root && name == SAVED;
            next = index.saturating_add(1);
            let location = Key::new(number_of(inode), ItemType::INODE_ITEM, 0);
            add(index, name_hash(name), &entry(location, name, kind), name)
        })?;
        if is_taken {
            return Err(ConvertError::Refused(
                "the root directory has a file ext2_saved, which is the name of the subvolume \
                 with the image of the old file system; rename it",
            ));
        }
        if is_root {
            let location = Key::new(SAVED_TREE.get(), ItemType::ROOT_ITEM, u64::MAX);
            let data = entry(location, SAVED, FileType::Directory);
            pass.saved_index = next;
            add(next, name_hash(SAVED), &data, SAVED)?;
        }
        self.by_hash(inode, &by_hash.finish()?, pass)?;
        let sorted = by_index.finish()?;
        let mut reader = sorted.read()?;
        while let Some(record) = reader.next()? {
            if let Some((index, data)) = record.split_first_chunk() {
                let index = u64::from_be_bytes(*index);
                let key = Key::new(object, ItemType::DIR_INDEX, index);
                pass.items.item(key, data.to_vec())?;
            }
        }
        Ok(())
    }

    fn by_hash(
        &self,
        inode: &Inode,
        sorted: &Sorted,
        pass: &mut Pass<'_>,
    ) -> Result<(), ConvertError> {
        let object = number_of(inode.number);
        let mut reader = sorted.read()?;
        let mut same: Option<(u64, Vec<u8>)> = None;
        let mut last: Vec<u8> = Vec::new();
        let mut end = |same: Option<(u64, Vec<u8>)>| match same {
            None => Ok(()),
            Some((hash, data)) => {
                inode::fits(&data, inode.number, self.options.node_size)?;
                let key = Key::new(object, ItemType::DIR_ITEM, hash);
                pass.items.item(key, data)
            }
        };
        while let Some(record) = reader.next()? {
            let Some((hash, rest)) = record.split_first_chunk() else {
                continue;
            };
            // Names have no zero byte.
            let mut parts = rest.splitn(2, |byte| *byte == 0);
            let (name, data) = (
                parts.next().unwrap_or_default(),
                parts.next().unwrap_or_default(),
            );
            if last == name {
                return Err(contradiction(inode, "a name is in the directory twice"));
            }
            last = name.to_vec();
            let hash = u64::from_be_bytes(*hash);
            match &mut same {
                Some((of, all)) if *of == hash => all.extend_from_slice(data),
                _ => {
                    end(same.take())?;
                    same = Some((hash, data.to_vec()));
                }
            }
        }
        end(same)
    }

    /// Adds the file extents of a part of a file.
    fn part(&self, object: u64, part: Part, pass: &mut Pass<'_>) -> Result<(), ConvertError> {
        let start = part.offset();
        let (bytes, length) = match part {
            Part::Stays {
                offset,
                physical,
                state,
            } => return self.stays((object, offset), physical, state, pass),
            Part::Given { bytes, .. } => {
                let length = crate::ground::up(u64::try_from(bytes.len()).unwrap_or(0), SECTOR);
                (bytes, length)
            }
            Part::Composed {
                length, segments, ..
            } => {
                for segment in &segments {
                    self.old.source().verify_used(&segment.from)?;
                }
                let mut bytes = Vec::new();
                if pass.device.is_some() {
                    bytes.resize(usize::try_from(length).unwrap_or(0), 0);
                    for segment in segments {
                        let at = usize::try_from(segment.at).unwrap_or(usize::MAX);
                        let size = segment.from.end - segment.from.start;
                        let size = usize::try_from(size).unwrap_or(usize::MAX);
                        let target = bytes.get_mut(at..at.saturating_add(size));
                        self.old
                            .read(segment.from.start, target.unwrap_or_default())?;
                    }
                }
                (bytes, length)
            }
        };
        let mut done = 0;
        while done < length {
            let left = length.saturating_sub(done);
            let Some(taken) = pass.room.take(left) else {
                pass.missing = pass.missing.saturating_add(left);
                return Ok(());
            };
            let size = taken.end - taken.start;
            if let Some(device) = pass.device {
                let from = usize::try_from(done).unwrap_or(usize::MAX);
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                let end = from.saturating_add(size).min(bytes.len());
                let mut here = bytes.get(from..end).unwrap_or_default().to_vec();
                here.resize(size, 0);
                device.write_at(DeviceOffset(taken.start), &here)?;
            }
            let offset = start.saturating_add(done);
            let piece = Piece {
                start: taken.start,
                end: taken.end,
                stays: false,
                inode: object,
                offset,
            };
            if let Some(sorter) = &mut pass.extents {
                piece.push(sorter)?;
            }
            extent((object, offset), &taken, &taken, State::Written, pass)?;
            done = done.saturating_add(size);
        }
        Ok(())
    }

    fn stays(
        &self,
        (object, offset): (u64, u64),
        physical: Range<u64>,
        state: State,
        pass: &mut Pass<'_>,
    ) -> Result<(), ConvertError> {
        let first = physical.start;
        let in_file = |at: u64| offset.saturating_add(at.saturating_sub(first));
        self.ground.cut(physical, &mut |range, place| {
            let at = in_file(range.start);
            if place == Place::Usable {
                let piece = Piece {
                    start: range.start,
                    end: range.end,
                    stays: true,
                    inode: object,
                    offset: at,
                };
                if let Some(sorter) = &mut pass.extents {
                    piece.push(sorter)?;
                }
                return extent((object, at), &range, &range, state, pass);
            }
            let mut parts = Vec::new();
            pass.relocations.each(range, &mut |number, part| {
                parts.push((number, part));
                Ok(())
            })?;
            for (number, part) in parts {
                let Some(one) = pass.relocations.0.get(number) else {
                    continue;
                };
                let (whole, inside) = (one.copy(), part.start - one.from.start);
                let at = in_file(part.start);
                let used = whole.start + inside..whole.start + (part.end - one.from.start);
                if pass.extents.is_some() {
                    let begins = at.wrapping_sub(inside);
                    pass.relocations.refer(number, (TreeId::FS, object, begins));
                }
                extent((object, at), &whole, &used, state, pass)?;
            }
            Ok(())
        })
    }
}

/// Adds a file extent: `used` of the extent `whole`.
fn extent(
    (object, offset): (u64, u64),
    whole: &Range<u64>,
    used: &Range<u64>,
    state: State,
    pass: &mut Pass<'_>,
) -> Result<(), ConvertError> {
    let key = Key::new(object, ItemType::EXTENT_DATA, offset);
    pass.items.item(key, file_extent(whole, used, state))
}

/// The bytes of a file extent: `used` of the extent `whole`.
pub(crate) fn file_extent(whole: &Range<u64>, used: &Range<u64>, state: State) -> Vec<u8> {
    let place = ExtentPlace {
        disk: Logical(whole.start),
        disk_length: whole.end - whole.start,
        offset: used.start - whole.start,
        length: used.end - used.start,
    };
    FileExtent {
        generation: GENERATION,
        ram_bytes: place.disk_length,
        compression: None,
        encryption: 0,
        other_encoding: 0,
        body: match state {
            State::Written => FileExtentBody::Regular(place),
            State::Unwritten => FileExtentBody::Prealloc(place),
        },
    }
    .encode()
}

/// The content of a file or link.
enum Content {
    None,
    Inline(Vec<u8>),
    Parts {
        parts: Vec<Part>,
        bytes: u64,
        preallocated: bool,
    },
    Many {
        bytes: u64,
        preallocated: bool,
    },
}

impl Content {
    fn bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Inline(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Self::Parts { bytes, .. } | Self::Many { bytes, .. } => *bytes,
        }
    }

    const fn has_preallocated(&self) -> bool {
        matches!(
            self,
            Self::Parts {
                preallocated: true,
                ..
            } | Self::Many {
                preallocated: true,
                ..
            }
        )
    }
}

/// The bytes of a directory entry.
pub(crate) fn entry(location: Key, name: &[u8], kind: FileType) -> Vec<u8> {
    DirEntry {
        location,
        generation: GENERATION,
        name,
        data: &[],
        kind,
    }
    .encode()
}

/// What a name adds to the size of its directory.
pub(crate) fn twice(name: &[u8]) -> u64 {
    u64::try_from(name.len()).unwrap_or(0).saturating_mul(2)
}

fn contradiction(inode: &Inode, what: &'static str) -> ConvertError {
    ConvertError::Contradiction {
        inode: inode.number,
        what,
    }
}
