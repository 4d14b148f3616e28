//! Where the data of files lie: extent trees, and the block maps of ext2 and
//! ext3.

use crate::bytes::{array, memory, u16, u32};
use crate::checksum::crc32c;
use crate::error::{Error, Fault, Place};
use crate::inode::InodeFlags;
use crate::{Block, FileSystem, Inode, Kind, Source};

/// Whether blocks hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They do.
    Written,
    /// They are preallocated, and read as zeros.
    Unwritten,
}

/// Neighbouring blocks of a file that are neighbours on the device, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The first one, counted from the file's beginning.
    pub file_block: u64,
    /// Where it lies.
    pub block: Block,
    /// How many there are, at least 1.
    pub blocks: u64,
    /// Whether they hold data.
    pub state: State,
}

const MAGIC: u16 = 0xf30a;
/// Bytes of a header and of an entry.
const ENTRY: usize = 12;
/// Levels of an extent tree below its root.
const DEPTH_MAX: u16 = 5;
/// An extent with more blocks is unwritten.
const WRITTEN_MAX: u16 = 1 << 15;
/// Blocks that the inode itself names.
const DIRECT: u64 = 12;
/// File blocks have 32 bits.
const FILE_BLOCKS: u64 = 1 << 32;

/// Gets the mappings of a file.
type Visit<'v, E> = &'v mut dyn FnMut(Mapping) -> Result<(), E>;

impl<S: Source> FileSystem<S> {
    /// Visits the mappings of a file, directory or long link, in ascending
    /// order; what is between them is a hole. Files whose data lie in the inode
    /// have none, see [`FileSystem::inline_data`].
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`], and what `visit` returns.
    pub fn mappings<E: From<Error>>(&self, inode: &Inode, visit: Visit<'_, E>) -> Result<(), E> {
        let has_map = match inode.kind()? {
            Kind::File | Kind::Directory => true,
            Kind::Link => inode.short_link().is_none(),
            _ => false,
        };
        if !has_map || inode.flags.has(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        let mut walk = Walk {
            file_system: self,
            inode,
            end: 0,
            mapped: 0,
            run: None,
            visit,
        };
        if inode.flags.has(InodeFlags::EXTENTS) {
            let depth = u16(&inode.map, 6);
            if depth > DEPTH_MAX {
                return Err(Place::Mapping(inode.number, 0)
                    .number("the depth", depth)
                    .into());
            }
            walk.extents(&inode.map, 0, depth, FILE_BLOCKS)?;
        } else {
            walk.block_map()?;
        }
        walk.finish()
    }
}

struct Walk<'w, S, E> {
    file_system: &'w FileSystem<S>,
    inode: &'w Inode,
    /// Where the last mapping ended in the file.
    end: u64,
    mapped: u64,
    /// What was not visited yet, because it may go on.
    run: Option<Mapping>,
    visit: Visit<'w, E>,
}

impl<S: Source, E: From<Error>> Walk<'_, S, E> {
    fn place(&self, block: Block) -> Place {
        Place::Mapping(self.inode.number, block)
    }

    /// Walks a node of an extent tree: `bytes`, from block `at`; 0 stands for
    /// the inode. Its entries end before file block `limit`.
    fn extents(&mut self, bytes: &[u8], at: Block, depth: u16, limit: u64) -> Result<(), E> {
        let place = self.place(at);
        if u16(bytes, 0) != MAGIC {
            return Err(Error::from(place.has(Fault::Magic)).into());
        }
        let (count, room) = (u16(bytes, 2), u16(bytes, 4));
        let fits = bytes
            .len()
            .checked_div(ENTRY)
            .unwrap_or(0)
            .saturating_sub(1);
        if usize::from(room) > fits || count > room {
            return Err(place.number("the number of extents", count).into());
        }
        if u16(bytes, 6) != depth {
            return Err(place.number("the depth", u16(bytes, 6)).into());
        }
        // Only a file without data has an empty node.
        if count == 0 && at != 0 {
            return Err(place.number("the number of extents", count).into());
        }
        let entries: Vec<[u8; ENTRY]> = bytes
            .chunks_exact(ENTRY)
            .skip(1)
            .take(count.into())
            .map(|entry| array(entry, 0))
            .collect();
        for (number, entry) in entries.iter().enumerate() {
            let next = entries.get(number.saturating_add(1));
            let end = next.map_or(limit, |next| u32(next, 0).into());
            let start = u64::from(u32(entry, 0));
            if start < self.end || start >= end || end > limit {
                return Err(Error::from(place.has(Fault::Order(start))).into());
            }
            match depth.checked_sub(1) {
                Some(below) => self.branch(entry, below, end)?,
                None => self.leaf(entry, place, end)?,
            }
        }
        Ok(())
    }

    /// Reads a block of the mapping.
    fn read(&mut self, block: Block) -> Result<Vec<u8>, E> {
        let place = self.place(block);
        if !self.file_system.has_blocks(block, 1) {
            return Err(Error::from(place.has(Fault::Outside(block))).into());
        }
        self.count(1, place)?;
        let mut bytes = Vec::new();
        self.file_system.read_block(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Counts blocks of the file. It has none of them twice.
    fn count(&mut self, blocks: u64, place: Place) -> Result<(), E> {
        self.mapped = self.mapped.saturating_add(blocks);
        if self.mapped > self.file_system.superblock.blocks {
            return Err(Error::from(place.has(Fault::Endless("the mapping"))).into());
        }
        Ok(())
    }

    fn branch(&mut self, entry: &[u8], depth: u16, limit: u64) -> Result<(), E> {
        let block = u64::from(u32(entry, 4)) | (u64::from(u16(entry, 8)) << 32);
        let bytes = self.read(block)?;
        if self.file_system.superblock.has_checksums() {
            let room = usize::from(u16(&bytes, 4)).saturating_add(1);
            let end = room.saturating_mul(ENTRY);
            let sum = bytes
                .get(..end)
                .map(|covered| crc32c(self.inode.seed, covered));
            if sum != Some(u32(&bytes, end)) {
                return Err(Error::from(self.place(block).has(Fault::Checksum)).into());
            }
        }
        self.extents(&bytes, block, depth, limit)
    }

    fn leaf(&mut self, entry: &[u8], place: Place, limit: u64) -> Result<(), E> {
        let length = u16(entry, 4);
        let (blocks, state) = match length.checked_sub(WRITTEN_MAX) {
            None | Some(0) => (length, State::Written),
            Some(blocks) => (blocks, State::Unwritten),
        };
        let mapping = Mapping {
            file_block: u32(entry, 0).into(),
            block: u64::from(u32(entry, 8)) | (u64::from(u16(entry, 6)) << 32),
            blocks: blocks.into(),
            state,
        };
        if blocks == 0 || mapping.file_block.saturating_add(mapping.blocks) > limit {
            return Err(place.number("the length of an extent", length).into());
        }
        self.add(mapping, place)
    }

    fn block_map(&mut self) -> Result<(), E> {
        let of_block = self.file_system.superblock.block_size() / 4;
        let direct = self.inode.map;
        self.pointers(direct.get(..48).unwrap_or_default(), 0, 0, 1)?;
        let (mut first, mut each) = (DIRECT, 1_u64);
        for level in 1..=3_u32 {
            let at = memory(u64::from(level).saturating_mul(4)).saturating_add(44);
            let pointer = u32(&direct, at);
            if pointer != 0 {
                self.indirect(pointer, first, level, each)?;
            }
            each = each.saturating_mul(of_block);
            first = first.saturating_add(each);
        }
        Ok(())
    }

    /// Walks the block of pointers at `pointer`, each of which stands for
    /// `each` blocks of the file, from `first` on.
    fn indirect(&mut self, pointer: u32, first: u64, level: u32, each: u64) -> Result<(), E> {
        let bytes = self.read(pointer.into())?;
        self.pointers(&bytes, first, level.saturating_sub(1), each)
    }

    fn pointers(&mut self, bytes: &[u8], first: u64, level: u32, each: u64) -> Result<(), E> {
        let of_block = self.file_system.superblock.block_size() / 4;
        for (number, pointer) in (0_u64..).zip(bytes.chunks_exact(4)) {
            let pointer = u32(pointer, 0);
            if pointer == 0 {
                continue;
            }
            let file_block = first.saturating_add(number.saturating_mul(each));
            if level > 0 {
                let below = each.checked_div(of_block).unwrap_or(1);
                self.indirect(pointer, file_block, level, below)?;
                continue;
            }
            let mapping = Mapping {
                file_block,
                block: pointer.into(),
                blocks: 1,
                state: State::Written,
            };
            self.add(mapping, self.place(0))?;
        }
        Ok(())
    }

    /// Takes the next mapping, and visits the last one if this does not
    /// continue it.
    fn add(&mut self, mapping: Mapping, place: Place) -> Result<(), E> {
        if !self.file_system.has_blocks(mapping.block, mapping.blocks) {
            return Err(Error::from(place.has(Fault::Outside(mapping.block))).into());
        }
        if mapping.file_block < self.end {
            return Err(Error::from(place.has(Fault::Order(mapping.file_block))).into());
        }
        self.end = mapping.file_block.saturating_add(mapping.blocks);
        if self.end > FILE_BLOCKS {
            return Err(place
                .number("a block of the file", mapping.file_block)
                .into());
        }
        self.count(mapping.blocks, place)?;
        if let Some(run) = &mut self.run
            && run.file_block.saturating_add(run.blocks) == mapping.file_block
            && run.block.saturating_add(run.blocks) == mapping.block
            && run.state == mapping.state
        {
            run.blocks = run.blocks.saturating_add(mapping.blocks);
            return Ok(());
        }
        match self.run.replace(mapping) {
            Some(run) => (self.visit)(run),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<(), E> {
        match self.run.take() {
            Some(run) => (self.visit)(run),
            None => Ok(()),
        }
    }
}
