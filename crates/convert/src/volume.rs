//! A converted volume, as the way back reads it: its chunks, and where the
//! image of the old file system lies.

use crate::decide::{self, OLD_PLACE};
use crate::error::{ConvertError, InTheWay};
use crate::files::SAVED;
use crate::ground::{Ground, Kind, SECTOR, up};
use crate::trees::IMAGE_NAME;
use butterfs_device::BlockDevice;
use butterfs_ext4::Source;
use butterfs_format::checksum::name_hash;
use butterfs_format::features::Incompat;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::superblock::Superblock;
use butterfs_format::{
    DeviceOffset, Generation, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId,
};
use butterfs_tree::{Cursor, Expected, Headers, Node, NodeSource, TreeError, VolumeIdentity};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// An open volume of one device.
pub(crate) struct Volume {
    pub(crate) superblock: Superblock,
    pub(crate) space: LogicalSpace,
    identity: VolumeIdentity,
}

impl NodeSource for Volume {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        let mut bytes = vec![0; self.identity.node_size].into_boxed_slice();
        let expected = Expected::from(reference);
        let mut check = |bytes: &[u8]| Node::check(bytes, &self.identity, expected).is_ok();
        let read = self
            .space
            .read_verified(reference.logical, &mut bytes, &mut check);
        read.map_err(TreeError::store)?;
        let node = Node::verify(bytes, &self.identity, expected);
        node.map(Arc::new).map_err(|fault| TreeError::Corrupt {
            logical: reference.logical,
            fault,
        })
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        let superblock = &self.superblock;
        let own = |logical, level, generation| NodeRef {
            logical,
            generation,
            level,
        };
        match tree {
            TreeId::ROOT => {
                return Ok(own(
                    superblock.root,
                    superblock.root_level,
                    superblock.generation,
                ));
            }
            TreeId::CHUNK => {
                return Ok(own(
                    superblock.chunk_root,
                    superblock.chunk_root_level,
                    superblock.chunk_root_generation,
                ));
            }
            _ => {}
        }
        let first = Key::new(tree.get(), ItemType::ROOT_ITEM, 0);
        let cursor = Cursor::seek_in(self, TreeId::ROOT, &first)?;
        let item = cursor
            .item()
            .filter(|(key, _)| key.objectid == tree.get() && key.item_type == ItemType::ROOT_ITEM);
        let item = item.and_then(|(_, data)| RootItem::parse(data).ok());
        let item = item.ok_or(TreeError::NoSuchTree(tree))?;
        Ok(own(item.logical, item.level, item.generation))
    }
}

/// The image of the old file system.
#[derive(Clone, Debug)]
pub(crate) struct SavedImage {
    /// Bytes.
    pub(crate) size: u64,
    /// Whether its data have checksums.
    pub(crate) has_sums: bool,
    /// What lies at its own place on the device, ascending and apart.
    pub(crate) in_place: Vec<Range<u64>>,
    /// What Btrfs has moved out of its way: the range in the image, and where
    /// the copy lies.
    pub(crate) copies: Vec<(Range<u64>, Logical)>,
    /// Where the pieces in place lie in logical space: differs from the place
    /// only where chunks were made anew.
    pub(crate) pieces: Vec<(Range<u64>, Logical)>,
}

impl Volume {
    /// Opens the volume of a superblock.
    ///
    /// # Errors
    /// Several devices; a chunk tree that cannot be read.
    pub(crate) fn open(
        device: &Arc<dyn BlockDevice>,
        superblock: &Superblock,
    ) -> Result<Self, ConvertError> {
        if superblock.num_devices != 1 {
            return Err(InTheWay::Devices.into());
        }
        let mut map = ChunkMap::default();
        for (logical, chunk) in &superblock.sys_chunks {
            map.insert(*logical, chunk.clone())?;
        }
        let devices = vec![(superblock.device.id, Arc::clone(device))];
        let fsid = match superblock.incompat.contains(Incompat::METADATA_UUID) {
            true => superblock.metadata_uuid,
            false => superblock.fsid,
        };
        let volume = Self {
            identity: VolumeIdentity {
                fsid,
                node_size: usize::try_from(superblock.node_size).unwrap_or(usize::MAX),
                sector_size: superblock.sector_size.into(),
                checksum: superblock.checksum_type,
                headers: Headers::Agree,
            },
            superblock: superblock.clone(),
            space: LogicalSpace::new(devices, map.clone(), OnDamage::Leave),
        };
        let first = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, 0);
        let mut cursor = Cursor::seek_in(&volume, TreeId::CHUNK, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::CHUNK_ITEM && map.find(Logical(key.offset)).is_none() {
                map.insert(Logical(key.offset), Chunk::parse(data)?)?;
            }
            cursor.next()?;
        }
        volume.space.set_map(map);
        Ok(volume)
    }

    /// Where a range of logical space lies on the device, if it lies there
    /// once and in one piece.
    pub(crate) fn physical(&self, logical: Logical, length: u64) -> Option<u64> {
        let map = self.space.map();
        let (start, chunk) = map.find(logical)?;
        let [stripe] = &chunk.stripes[..] else {
            return None;
        };
        let inside = logical.get().checked_sub(start.get())?;
        let end = inside.checked_add(length)?;
        (end <= chunk.length).then(|| stripe.offset.get().saturating_add(inside))
    }

    fn saved_tree(&self) -> Result<TreeId, ConvertError> {
        let of = |key: Key| key.objectid == TreeId::FS.get() && key.item_type == ItemType::ROOT_REF;
        let first = Key::new(TreeId::FS.get(), ItemType::ROOT_REF, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &first)?;
        while let Some((key, data)) = cursor.item().filter(|(key, _)| of(*key)) {
            if RootRef::parse(data)?.name == SAVED {
                return Ok(TreeId(key.offset));
            }
            cursor.next()?;
        }
        Err(InTheWay::NoSubvolume.into())
    }

    /// Finds the image, and where its data lie.
    ///
    /// # Errors
    /// [`ConvertError::NoWayBack`]; reading trees.
    pub(crate) fn image(&self) -> Result<SavedImage, ConvertError> {
        let tree = self.saved_tree()?;
        let (inode, item) = self.image_inode(tree)?;
        let ground = Ground::of_size(item.size);
        let mut image = SavedImage {
            size: item.size,
            has_sums: !item.flags.contains(InodeFlags::NODATASUM),
            in_place: Vec::new(),
            copies: Vec::new(),
            pieces: Vec::new(),
        };
        let first = Key::new(inode.get(), ItemType::EXTENT_DATA, 0);
        let mut cursor = Cursor::seek_in(self, tree, &first)?;
        let of = |key: Key| key.objectid == inode.get() && key.item_type == ItemType::EXTENT_DATA;
        while let Some((key, data)) = cursor.item().filter(|(key, _)| of(*key)) {
            let at = key.offset;
            let moved = || InTheWay::Moved { at };
            let extent = FileExtent::parse(data)?;
            let FileExtentBody::Regular(place) = extent.body else {
                return Err(moved().into());
            };
            if place.disk.get() != 0 {
                if extent.compression.is_some() {
                    return Err(moved().into());
                }
                let logical = place.disk.saturating_add(place.offset);
                self.add(
                    &mut image,
                    &ground,
                    at..at.saturating_add(place.length),
                    logical,
                )?;
            }
            cursor.next()?;
        }
        Ok(image)
    }

    fn image_inode(&self, tree: TreeId) -> Result<(InodeNumber, InodeItem), ConvertError> {
        let key = Key::new(
            InodeNumber::ROOT.get(),
            ItemType::DIR_ITEM,
            name_hash(IMAGE_NAME),
        );
        let cursor = Cursor::seek_in(self, tree, &key)?;
        let found = cursor.item().filter(|(found, _)| *found == key);
        let (_, data) = found.ok_or(InTheWay::NoImage)?;
        let mut entry = None;
        for one in DirEntries::new(data) {
            let one = one?;
            if one.name == IMAGE_NAME && one.location.item_type == ItemType::INODE_ITEM {
                entry = Some(one.location);
            }
        }
        let location = entry.ok_or(InTheWay::NoImage)?;
        let cursor = Cursor::seek_in(self, tree, &location)?;
        let found = cursor.item().filter(|(found, _)| *found == location);
        let (_, data) = found.ok_or(InTheWay::NoImage)?;
        Ok((InodeNumber(location.objectid), InodeItem::parse(data)?))
    }

    /// Adds a file extent of the image.
    fn add(
        &self,
        image: &mut SavedImage,
        ground: &Ground,
        range: Range<u64>,
        logical: Logical,
    ) -> Result<(), ConvertError> {
        let first = range.start;
        ground.cut(range, &mut |part, kind| {
            let logical = logical.saturating_add(part.start - first);
            if kind == Kind::Reserved {
                image.copies.push((part, logical));
                return Ok(());
            }
            let length = part.end - part.start;
            if self.physical(logical, length) != Some(part.start) {
                return Err(InTheWay::Moved { at: part.start }.into());
            }
            match image.in_place.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => image.in_place.push(part.clone()),
            }
            match image.pieces.last_mut() {
                Some((last, at))
                    if last.end == part.start
                        && at.saturating_add(last.end - last.start) == logical =>
                {
                    last.end = part.end;
                }
                _ => image.pieces.push((part, logical)),
            }
            Ok(())
        })
    }
}

/// The image, as `ext4` reads it.
#[derive(Debug)]
pub(crate) struct ImageSource<'v> {
    pub(crate) device: &'v dyn BlockDevice,
    pub(crate) image: &'v SavedImage,
    pub(crate) space: &'v LogicalSpace,
}

impl ImageSource<'_> {
    fn part(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let end = offset.saturating_add(u64::try_from(buffer.len()).unwrap_or(0));
        let image = self.image;
        let number = image.in_place.partition_point(|run| run.end <= offset);
        let run = image.in_place.get(number);
        if run.is_some_and(|run| run.start <= offset && end <= run.end) {
            let read = self.device.read_at(DeviceOffset(offset), buffer);
            return read.map_err(|error| failed(&error));
        }
        let found = image
            .copies
            .iter()
            .find(|(range, _)| range.start <= offset && end <= range.end);
        match found {
            Some((range, logical)) => {
                let at = logical.saturating_add(offset - range.start);
                let read = self.space.read(at, buffer);
                read.map_err(|error| failed(&error))
            }
            None => {
                buffer.fill(0);
                Ok(())
            }
        }
    }
}

impl Source for ImageSource<'_> {
    fn size(&self) -> u64 {
        self.image.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let length = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        if offset.saturating_add(length) > up(self.image.size, SECTOR) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Sector by sector: no sector lies in two places.
        let mut at = offset;
        let mut left = buffer;
        while !left.is_empty() {
            let room = up(at.saturating_add(1), SECTOR).saturating_sub(at);
            let count = usize::try_from(room).unwrap_or(1).min(left.len());
            let (now, rest) = left.split_at_mut(count);
            self.part(at, now)?;
            at = at.saturating_add(u64::try_from(count).unwrap_or(0));
            left = rest;
        }
        Ok(())
    }
}

/// Ends a conversion that was cut short after it had decided.
///
/// # Errors
/// [`ConvertError::AlreadyBtrfs`] if there is nothing to end;
/// [`ConvertError::UsedMeanwhile`].
pub(crate) fn finish(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
) -> Result<(), ConvertError> {
    let Some(now) = decide::old_superblock(device)? else {
        let mirrors = butterfs_format::superblock::COPIES.into_iter().skip(1);
        for copy in mirrors.filter(|copy| copy.get().saturating_add(4096) <= superblock.total_bytes)
        {
            let mut bytes = vec![0; butterfs_format::superblock::SIZE];
            device.read_at(copy, &mut bytes)?;
            let is_there = Superblock::parse(&bytes, copy).is_ok();
            if !is_there && superblock.generation == Generation(1) {
                return decide::after_forward(device, superblock);
            }
        }
        return Err(ConvertError::AlreadyBtrfs);
    };
    // An old superblock that was never converted, or that was used since, is
    // not wiped.
    let other = |_| ConvertError::UsedMeanwhile;
    let volume = Volume::open(device, superblock).map_err(other)?;
    let image = volume.image().map_err(other)?;
    let source = ImageSource {
        device,
        image: &image,
        space: &volume.space,
    };
    let mut saved = vec![0; now.len()];
    let read = source.read_at(OLD_PLACE, &mut saved);
    if read.is_err() || saved != now {
        return Err(ConvertError::UsedMeanwhile);
    }
    decide::after_forward(device, superblock)
}
