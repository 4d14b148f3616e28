//! The superblock.

use crate::bytes::{array, joined, memory, u8, u16, u32};
use crate::checksum::crc32c;
use crate::error::{Error, Fault, Place, Unsupported};
use crate::{Block, Compatible, Incompatible, InodeNumber, ReadOnlyCompatible};

/// Where it lies on the device, in bytes.
pub(crate) const OFFSET: u64 = 1024;
/// Its bytes.
pub(crate) const SIZE: usize = 1024;

const MAGIC: u16 = 0xef53;
/// Revision 1 has features and inodes of other sizes.
const DYNAMIC: u32 = 1;
/// Bytes of an inode, and of a group descriptor, where nothing else is said.
const OLD_INODE: u16 = 128;
const OLD_DESCRIPTOR: u16 = 32;
const STATE_CLEAN: u16 = 1;
const STATE_ERRORS: u16 = 2;
/// mke2fs makes no smaller ones; the number of groups stays in bounds.
const GROUP_BLOCKS_MIN: u32 = 256;
const BLOCK_MIN_LOG: u32 = 10;
const BLOCK_MAX_LOG: u32 = 16;

/// The superblock of a file system, verified.
///
/// Invariants: the sizes are powers of two within the format's bounds, each
/// group has as many blocks and inodes as one bitmap block can tell, and the
/// groups are as many as the blocks need.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// Inodes, used or not.
    pub inodes: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are free, by its own count.
    pub free_blocks: u64,
    /// Inodes that are free, by its own count.
    pub free_inodes: u32,
    /// The block in which the first group begins: 1 with blocks of 1 KiB, else
    /// 0.
    pub first_block: u32,
    /// Log2 of the bytes of a block: 10 to 16.
    pub block_log: u32,
    /// Log2 of the blocks of a cluster: 0 without `bigalloc`.
    pub cluster_log: u32,
    /// Blocks of a group.
    pub group_blocks: u32,
    /// Inodes of a group.
    pub group_inodes: u32,
    /// Bytes of an inode.
    pub inode_size: u16,
    /// Bytes of a group descriptor.
    pub descriptor_size: u16,
    /// The first inode that is not reserved.
    pub first_inode: InodeNumber,
    /// Features that any driver may ignore.
    pub compatible: Compatible,
    /// Features that a reader must know.
    pub incompatible: Incompatible,
    /// Features that a writer must know.
    pub read_only_compatible: ReadOnlyCompatible,
    /// The UUID.
    pub uuid: [u8; 16],
    /// The label, up to its first zero byte; not always UTF-8.
    pub label: Vec<u8>,
    /// The journal's inode, or 0.
    pub journal: InodeNumber,
    /// The first inode of the list of orphans, or 0.
    pub first_orphan: InodeNumber,
    /// The inode of the orphan file, or 0.
    pub orphan_file: InodeNumber,
    /// The inodes of the quota files of users, groups and projects, or 0.
    pub quota_files: [InodeNumber; 3],
    /// Where checksums begin.
    pub checksum_seed: u32,
    /// What the last user left behind.
    state: u16,
    reserved_descriptor_blocks: u16,
    first_meta_group: u32,
    backup_groups: [u32; 2],
}

impl Superblock {
    /// Parses and verifies the [`SIZE`] bytes of a superblock.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if u16(bytes, 0x38) != MAGIC {
            return Err(Error::NotExt4);
        }
        let revision = u32(bytes, 0x4c);
        if revision > DYNAMIC {
            return Err(Unsupported::Revision(revision).into());
        }
        let dynamic = revision == DYNAMIC;
        let feature = |at| if dynamic { u32(bytes, at) } else { 0 };
        let incompatible = Incompatible(feature(0x60));
        refuse(incompatible)?;
        let read_only_compatible = ReadOnlyCompatible(feature(0x64));
        let sized = |at, old| if dynamic { u16(bytes, at) } else { old };
        let descriptor_size = match incompatible.has(Incompatible::BITS_64) {
            true => u16(bytes, 0xfe),
            false => OLD_DESCRIPTOR,
        };
        let uuid = array(bytes, 0x68);
        let checksum_seed = match incompatible.has(Incompatible::CSUM_SEED) {
            true => u32(bytes, 0x270),
            false => crc32c(u32::MAX, &uuid),
        };
        let wide = |high| match incompatible.has(Incompatible::BITS_64) {
            true => u32(bytes, high),
            false => 0,
        };
        let block_log = u32(bytes, 0x18).saturating_add(BLOCK_MIN_LOG);
        let cluster_log = match read_only_compatible.has(ReadOnlyCompatible::BIGALLOC) {
            true => u32(bytes, 0x1c)
                .saturating_add(BLOCK_MIN_LOG)
                .checked_sub(block_log)
                .ok_or_else(|| Place::Superblock.number("the cluster size", u32(bytes, 0x1c)))?,
            false => 0,
        };
        let label: [u8; 16] = array(bytes, 0x78);
        let superblock = Self {
            inodes: u32(bytes, 0),
            blocks: joined(u32(bytes, 0x4), wide(0x150)),
            free_blocks: joined(u32(bytes, 0xc), wide(0x158)),
            free_inodes: u32(bytes, 0x10),
            first_block: u32(bytes, 0x14),
            block_log,
            cluster_log,
            group_blocks: u32(bytes, 0x20),
            group_inodes: u32(bytes, 0x28),
            inode_size: sized(0x58, OLD_INODE),
            descriptor_size,
            first_inode: InodeNumber(if dynamic { u32(bytes, 0x54) } else { 11 }),
            compatible: Compatible(feature(0x5c)),
            incompatible,
            read_only_compatible,
            uuid,
            label: label.into_iter().take_while(|byte| *byte != 0).collect(),
            journal: InodeNumber(u32(bytes, 0xe0)),
            first_orphan: InodeNumber(u32(bytes, 0xe8)),
            orphan_file: InodeNumber(u32(bytes, 0x280)),
            quota_files: [0x240, 0x244, 0x26c].map(|at| InodeNumber(u32(bytes, at))),
            checksum_seed,
            state: u16(bytes, 0x3a),
            reserved_descriptor_blocks: u16(bytes, 0xce),
            first_meta_group: u32(bytes, 0x104),
            backup_groups: [0x24c, 0x250].map(|at| u32(bytes, at)),
        };
        superblock.verify_checksum(bytes)?;
        superblock.verify()?;
        Ok(superblock)
    }

    fn verify_checksum(&self, bytes: &[u8]) -> Result<(), Error> {
        /// CRC-32C, the only kind.
        const KIND: u8 = 1;
        if !self.has_checksums() {
            return Ok(());
        }
        let kind = u8(bytes, 0x175);
        if kind != KIND {
            return Err(Place::Superblock.number("the kind of checksums", kind));
        }
        let covered = bytes.get(..0x3fc).unwrap_or_default();
        match crc32c(u32::MAX, covered) == u32(bytes, 0x3fc) {
            true => Ok(()),
            false => Err(Place::Superblock.has(Fault::Checksum).into()),
        }
    }

    fn verify(&self) -> Result<(), Error> {
        let wrong = |name, value: u64| Err(Place::Superblock.number(name, value));
        if self.block_log > BLOCK_MAX_LOG {
            return wrong("log2 of the block size", self.block_log.into());
        }
        let bits = self.block_size().saturating_mul(8);
        if self.cluster_log > 16 {
            return wrong("log2 of the cluster size", self.cluster_log.into());
        }
        let clusters = u64::from(self.group_blocks) >> self.cluster_log;
        if self.group_blocks < GROUP_BLOCKS_MIN || clusters == 0 || clusters > bits {
            return wrong("blocks of a group", self.group_blocks.into());
        }
        let inode_size = u64::from(self.inode_size);
        if !self.inode_size.is_power_of_two()
            || inode_size < OLD_INODE.into()
            || inode_size > self.block_size()
        {
            return wrong("the inode size", inode_size);
        }
        let size = u64::from(self.descriptor_size);
        if !self.descriptor_size.is_power_of_two()
            || size < OLD_DESCRIPTOR.into()
            || size > self.block_size()
            || (self.incompatible.has(Incompatible::BITS_64) && size < 64)
        {
            return wrong("the size of a group descriptor", size);
        }
        let inodes = u64::from(self.group_inodes);
        if inodes == 0 || inodes > bits {
            return wrong("inodes of a group", inodes);
        }
        if self.blocks <= u64::from(self.first_block) || self.blocks > 1 << 48 {
            return wrong("the number of blocks", self.blocks);
        }
        let groups = self.groups_of_blocks();
        if groups > u32::MAX.into() {
            return wrong("the number of groups", groups);
        }
        if u64::from(self.inodes) != groups.saturating_mul(inodes) {
            return wrong("the number of inodes", self.inodes.into());
        }
        Ok(())
    }

    fn groups_of_blocks(&self) -> u64 {
        let blocks = self.blocks.saturating_sub(self.first_block.into());
        blocks.div_ceil(u64::from(self.group_blocks).max(1))
    }

    /// Groups of the file system.
    #[must_use]
    pub fn groups(&self) -> u32 {
        u32::try_from(self.groups_of_blocks()).unwrap_or(u32::MAX)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        1 << self.block_log.min(BLOCK_MAX_LOG)
    }

    pub(crate) fn block_memory(&self) -> usize {
        memory(self.block_size())
    }

    /// Whether metadata have checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.read_only_compatible
            .has(ReadOnlyCompatible::METADATA_CSUM)
    }

    /// Whether it was unmounted, and nothing found errors in it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.state & STATE_CLEAN != 0 && self.state & STATE_ERRORS == 0
    }

    /// Whether a driver found errors in it, and no check has mended them.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.state & STATE_ERRORS != 0
    }

    /// The first block of a group.
    #[must_use]
    pub fn first_block_of(&self, group: u32) -> Block {
        let before = u64::from(group).saturating_mul(self.group_blocks.into());
        before.saturating_add(self.first_block.into())
    }

    /// Blocks of a group; the last one may be shorter.
    #[must_use]
    pub fn blocks_of(&self, group: u32) -> u32 {
        let left = self.blocks.saturating_sub(self.first_block_of(group));
        u32::try_from(left.min(self.group_blocks.into())).unwrap_or(self.group_blocks)
    }

    /// Whether a group begins with a copy of the superblock.
    #[must_use]
    pub fn has_superblock(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.compatible.has(Compatible::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        let sparse = ReadOnlyCompatible::SPARSE_SUPER;
        if group == 1 || !self.read_only_compatible.has(sparse) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }

    /// Descriptors in a block.
    pub(crate) fn descriptors_in_block(&self) -> u32 {
        let count = self.block_size().checked_div(self.descriptor_size.into());
        count
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(1)
            .max(1)
    }

    /// Whether the descriptors of a group lie in that group's neighbourhood.
    fn is_meta_group(&self, group: u32) -> bool {
        let number = group.checked_div(self.descriptors_in_block()).unwrap_or(0);
        self.incompatible.has(Incompatible::META_BG) && number >= self.first_meta_group
    }

    /// The block that holds the `number`th block of descriptors.
    pub(crate) fn descriptor_block(&self, number: u32) -> Block {
        let in_block = self.descriptors_in_block();
        let first = number.saturating_mul(in_block);
        if self.is_meta_group(first) {
            let superblock = u64::from(self.has_superblock(first));
            let before = superblock.saturating_add(self.boot_block(first).into());
            return self.first_block_of(first).saturating_add(before);
        }
        u64::from(self.first_block)
            .saturating_add(self.boot_block(0).into())
            .saturating_add(1)
            .saturating_add(number.into())
    }

    /// With clusters and blocks of 1 KiB, the superblock is not in the block
    /// with which the first group begins.
    fn boot_block(&self, group: u32) -> u32 {
        let beside = group == 0 && self.first_block == 0 && self.block_log == BLOCK_MIN_LOG;
        u32::from(beside)
    }

    /// Blocks at the beginning of a group that hold a superblock, descriptors
    /// and what is reserved for more of them.
    pub(crate) fn base_blocks(&self, group: u32) -> u32 {
        let in_block = self.descriptors_in_block();
        let superblock =
            u32::from(self.has_superblock(group)).saturating_add(self.boot_block(group));
        if self.is_meta_group(group) {
            // The first, the second and the last group have the block.
            let place = group.checked_rem(in_block).unwrap_or(0);
            let own = place == 0 || place == 1 || place.saturating_add(1) == in_block;
            return superblock.saturating_add(own.into());
        }
        if superblock == 0 {
            return 0;
        }
        let all = self.groups().div_ceil(in_block);
        let descriptors = match self.incompatible.has(Incompatible::META_BG) {
            true => all.min(self.first_meta_group),
            false => all,
        };
        superblock
            .saturating_add(descriptors)
            .saturating_add(self.reserved_descriptor_blocks.into())
    }
}

fn refuse(features: Incompatible) -> Result<(), Unsupported> {
    if features.unknown() != 0 {
        return Err(Unsupported::Features(features.unknown()));
    }
    if features.has(Incompatible::JOURNAL_DEV) {
        return Err(Unsupported::JournalDevice);
    }
    if features.has(Incompatible::COMPRESSION) || features.has(Incompatible::DIRDATA) {
        return Err(Unsupported::Compression);
    }
    Ok(())
}

fn is_power_of(number: u32, base: u32) -> bool {
    let mut power = base;
    while power < number {
        power = power.saturating_mul(base);
    }
    power == number
}
