//! A file system that was opened.

use crate::bitmap::Bitmap;
use crate::bytes::{length, memory};
use crate::error::{Error, Fault, Place};
use crate::group::Group;
use crate::superblock::{OFFSET, SIZE};
use crate::{Block, Incompatible, Inode, InodeNumber, ReadOnlyCompatible, Superblock};
use std::io;
use std::ops::Range;

/// What a file system lies on.
pub trait Source {
    /// Bytes.
    fn size(&self) -> u64;

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// Those of the device, and its end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Source for std::fs::File {
    fn size(&self) -> u64 {
        self.metadata().map_or(0, |facts| facts.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        length(self.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(offset).ok().and_then(|at| self.get(at..));
        match found.and_then(|rest| rest.get(..buffer.len())) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

/// An ext2, ext3 or ext4 file system. Nothing is ever written.
///
/// Invariant: the device has all blocks of the file system, and the metadata of
/// each group lie within them.
#[derive(Debug)]
pub struct FileSystem<S> {
    pub(crate) source: S,
    pub(crate) superblock: Superblock,
    pub(crate) groups: Vec<Group>,
    /// Where bitmaps and inode tables lie, ascending.
    pub(crate) metadata: Vec<Range<Block>>,
}

/// Bytes of an inode table that are read at once.
const TABLE_PIECE: u64 = 64 << 10;

impl<S: Source> FileSystem<S> {
    /// Reads superblock and group descriptors.
    ///
    /// # Errors
    /// [`Error::NotExt4`] where there is no such file system;
    /// [`Error::Unsupported`]; [`Error::Corrupt`], also where the device is
    /// shorter than the file system; [`Error::Io`].
    pub fn open(source: S) -> Result<Self, Error> {
        if source.size() < OFFSET.saturating_add(length(SIZE)) {
            return Err(Error::NotExt4);
        }
        let mut bytes = [0; SIZE];
        read(&source, OFFSET, &mut bytes)?;
        let superblock = Superblock::parse(&bytes)?;
        let end = superblock.blocks.saturating_mul(superblock.block_size());
        if end > source.size() {
            let last = superblock.blocks.saturating_sub(1);
            return Err(Place::Superblock.has(Fault::Outside(last)).into());
        }
        let mut file_system = Self {
            source,
            superblock,
            groups: Vec::new(),
            metadata: Vec::new(),
        };
        file_system.read_groups()?;
        file_system.find_metadata();
        Ok(file_system)
    }

    fn read_groups(&mut self) -> Result<(), Error> {
        let size = memory(self.superblock.descriptor_size.into());
        let mut number = 0;
        let mut block = Vec::new();
        for part in 0..self
            .superblock
            .groups()
            .div_ceil(self.superblock.descriptors_in_block())
        {
            let at = self.superblock.descriptor_block(part);
            self.read_block(at, &mut block)?;
            let in_block = memory(self.superblock.descriptors_in_block().into());
            for bytes in block.chunks_exact(size).take(in_block) {
                if number >= self.superblock.groups() {
                    break;
                }
                let group = Group::parse(bytes, number, &self.superblock)?;
                self.groups.push(group);
                number = number.saturating_add(1);
            }
        }
        Ok(())
    }

    fn find_metadata(&mut self) {
        let one = |block: Block, blocks: u64| block..block.saturating_add(blocks);
        self.metadata = self
            .groups
            .iter()
            .flat_map(|group| {
                [
                    one(group.block_bitmap, 1),
                    one(group.inode_bitmap, 1),
                    one(group.inode_table, group.table_blocks(&self.superblock)),
                ]
            })
            .collect();
        self.metadata.sort_by_key(|range| range.start);
    }

    /// Where bitmaps, inode tables, superblocks and group descriptors lie, with
    /// what is reserved for more of these; in no order.
    pub fn metadata(&self) -> impl Iterator<Item = Range<Block>> {
        let bases = (0..self.superblock.groups()).map(|group| {
            let start = self.superblock.first_block_of(group);
            start..start.saturating_add(self.superblock.base_blocks(group).into())
        });
        self.metadata.iter().cloned().chain(bases)
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What it lies on.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Whether the journal must be replayed before anything that is read here
    /// is true.
    pub fn needs_replay(&self) -> bool {
        self.superblock.incompatible.has(Incompatible::RECOVER)
    }

    /// Whether files were deleted or cut, and their space was not freed yet.
    pub fn has_orphans(&self) -> bool {
        let present = ReadOnlyCompatible::ORPHAN_PRESENT;
        self.superblock.first_orphan.0 != 0 || self.superblock.read_only_compatible.has(present)
    }

    /// Reads bytes of the device.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        read(&self.source, offset, buffer)
    }

    /// Reads a block, which is within the file system, into `buffer`, whose
    /// length becomes that of a block.
    pub(crate) fn read_block(&self, block: Block, buffer: &mut Vec<u8>) -> Result<(), Error> {
        buffer.resize(self.superblock.block_memory(), 0);
        let offset = block.saturating_mul(self.superblock.block_size());
        read(&self.source, offset, buffer)
    }

    /// Whether all blocks of a range are within the file system, and none is the
    /// superblock's.
    pub(crate) fn has_blocks(&self, start: Block, blocks: u64) -> bool {
        let end = start.checked_add(blocks);
        start > u64::from(self.superblock.first_block)
            && end.is_some_and(|end| end <= self.superblock.blocks)
    }

    /// An inode, whether it is in use or not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a number that the file system does not have, and
    /// for what contradicts itself; [`Error::Io`].
    pub fn inode(&self, number: InodeNumber) -> Result<Inode, Error> {
        let wrong = || Place::Inode(number).number("the inode number", number.0);
        let index = number.0.checked_sub(1).ok_or_else(wrong)?;
        let of_group = self.superblock.group_inodes.max(1);
        let (group, place) = (
            index.checked_div(of_group).unwrap_or(0),
            index.checked_rem(of_group).unwrap_or(0),
        );
        let group = self.groups.get(memory(group.into())).ok_or_else(wrong)?;
        let size = u64::from(self.superblock.inode_size);
        let table = group
            .inode_table
            .saturating_mul(self.superblock.block_size());
        let offset = table.saturating_add(u64::from(place).saturating_mul(size));
        let mut bytes = vec![0; memory(size)];
        self.read(offset, &mut bytes)?;
        Inode::parse(&bytes, number, &self.superblock)
    }

    /// Visits all inodes that a group's bitmap says to be in use, in ascending
    /// order. `visit` gets what is wrong with an inode, too.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for the bitmap; [`Error::Io`]; what `visit` returns.
    pub fn inodes_of<E: From<Error>>(
        &self,
        group: u32,
        visit: &mut dyn FnMut(Result<Inode, Error>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(facts) = self.groups.get(memory(group.into())) else {
            return Ok(());
        };
        if facts.has_no_inodes {
            return Ok(());
        }
        let all = self.superblock.group_inodes;
        let bitmap = self.inode_bitmap(group, facts)?;
        let used = all.saturating_sub(facts.inodes_never_used);
        let size = u64::from(self.superblock.inode_size).max(1);
        let in_piece = u32::try_from(TABLE_PIECE.checked_div(size).unwrap_or(1)).unwrap_or(1);
        let first = group.saturating_mul(all).saturating_add(1);
        let table = facts
            .inode_table
            .saturating_mul(self.superblock.block_size());
        let mut start = 0_u32;
        let mut piece = Vec::new();
        while start < used {
            let count = used.saturating_sub(start).min(in_piece);
            let offset = table.saturating_add(u64::from(start).saturating_mul(size));
            piece.resize(memory(size.saturating_mul(count.into())), 0);
            if (start..start.saturating_add(count)).any(|index| bitmap.is_set(index)) {
                self.read(offset, &mut piece)?;
            }
            for (index, bytes) in (start..).zip(piece.chunks_exact(memory(size))) {
                if bitmap.is_set(index) {
                    let number = InodeNumber(first.saturating_add(index));
                    visit(Inode::parse(bytes, number, &self.superblock))?;
                }
            }
            start = start.saturating_add(count);
        }
        Ok(())
    }

    fn inode_bitmap(&self, group: u32, facts: &Group) -> Result<Bitmap, Error> {
        let bits = self.superblock.group_inodes;
        let checksum = facts.inode_bitmap_checksum;
        let place = Place::InodeBitmap(group);
        self.read_bitmap(facts.inode_bitmap, bits, checksum, place)
    }
}

pub(crate) fn read(source: &impl Source, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
    let done = source.read_at(offset, buffer);
    done.map_err(|source| Error::Io {
        offset,
        length: length(buffer.len()),
        source,
    })
}
