//! The superblock: where a volume begins.
//!
//! Owns its layout, its checks and its copies. Bytes that no field names are
//! kept as they are.

use crate::bytes::{Reader, Writer};
use crate::checksum::{CHECKSUM_FIELD, ChecksumType};
use crate::features::{CompatRo, Incompat};
use crate::item::chunk::Chunk;
use crate::item::device::DeviceItem;
use crate::node::{LEVEL_MAX, NODE_SIZE_RANGE};
use crate::{
    DeviceOffset, Generation, ItemType, Key, Logical, NodeRef, ParseError, UuidBytes, bit_flags,
};

/// Bytes of a superblock.
pub const SIZE: usize = 4096;
/// Where its copies lie on each device (the first is the primary one).
pub const COPIES: [DeviceOffset; 3] = [
    DeviceOffset(64 << 10),
    DeviceOffset(64 << 20),
    DeviceOffset(256 << 30),
];
/// Bytes around each copy that hold nothing else.
pub const COPY_SPAN: u64 = 64 << 10;
/// First bytes of a device that chunks leave alone.
pub const RESERVED: u64 = 1 << 20;
/// Magic number.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Greatest generation that is accepted. No volume reaches it, and greater ones
/// would leave too few numbers for later commits.
const GENERATION_MAX: u64 = 1 << 62;
/// Bytes for the system chunks.
pub const SYSTEM_ARRAY: usize = 2048;
/// Bytes of a system chunk in the superblock, without its stripes: a key and
/// the fixed part of a chunk item.
const ARRAY_ENTRY: usize = Key::SIZE + 48;
/// Bytes of each stripe of such a chunk.
const ARRAY_STRIPE: usize = 32;
/// The most stripes of a system chunk, as in the kernel. Two such chunks must
/// fit in the superblock, because a system chunk can move only while there is a
/// second one.
pub const SYSTEM_STRIPES_MAX: usize = (SYSTEM_ARRAY / 2 - ARRAY_ENTRY) / ARRAY_STRIPE;
/// Bytes for the label, with its NUL.
pub const LABEL_SIZE: usize = 256;

const WHAT: &str = "superblock";
/// Offset of the system chunks.
const ARRAY_AT: usize = 0x32b;

bit_flags!(
    /// Flags of the superblock.
    SuperFlags: u64 {
        /// Written by the kernel or mkfs.
        WRITTEN = 1 << 0, "WRITTEN";
        /// Set by old kernels, without a meaning.
        RELOCATED = 1 << 1, "RELOC";
        /// An old kernel met an error.
        ERROR = 1 << 2, "ERROR";
        /// Part of a new volume that is grown from a seed.
        SEEDING = 1 << 32, "SEEDING";
        /// A metadata image.
        METADUMP = 1 << 33, "METADUMP";
        /// A metadata image, second form.
        METADUMP_V2 = 1 << 34, "METADUMP_V2";
        /// The volume's UUID is being changed.
        CHANGING_FSID = 1 << 35, "CHANGING_FSID";
        /// The volume's UUID is being changed, second form.
        CHANGING_FSID_V2 = 1 << 36, "CHANGING_FSID_V2";
        /// Block group items are being moved to another tree.
        CHANGING_BG_TREE = 1 << 38, "CHANGING_BG_TREE";
        /// Checksums of data are being changed to another algorithm.
        CHANGING_DATA_CSUM = 1 << 39, "CHANGING_DATA_CSUM";
        /// Checksums of nodes are being changed to another algorithm.
        CHANGING_META_CSUM = 1 << 40, "CHANGING_META_CSUM";
    }
);

impl SuperFlags {
    /// Flags of volumes that can be opened.
    pub const SUPPORTED: Self = Self(
        Self::WRITTEN.0
            | Self::RELOCATED.0
            | Self::ERROR.0
            | Self::SEEDING.0
            | Self::METADUMP.0
            | Self::METADUMP_V2.0,
    );

    /// Flags of changes that ButterFS makes and finishes.
    pub const CHANGING: Self =
        Self(Self::CHANGING_FSID.0 | Self::CHANGING_FSID_V2.0 | Self::CHANGING_META_CSUM.0);
}

/// Roots of an earlier generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupRoot {
    /// Tree of roots.
    pub tree_root: NodeRef,
    /// Chunk tree.
    pub chunk_root: NodeRef,
    /// Extent tree.
    pub extent_root: NodeRef,
    /// Top-level subvolume.
    pub fs_root: NodeRef,
    /// Device tree.
    pub device_root: NodeRef,
    /// Checksum tree.
    pub csum_root: NodeRef,
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes in extents.
    pub bytes_used: u64,
    /// Devices.
    pub num_devices: u64,
}

impl BackupRoot {
    fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let mut roots = [(0, 0); 6];
        for root in &mut roots {
            *root = (r.u64()?, r.u64()?);
        }
        let total_bytes = r.u64()?;
        let bytes_used = r.u64()?;
        let num_devices = r.u64()?;
        r.bytes(32)?;
        let levels: [u8; 6] = r.array()?;
        r.bytes(10)?;
        let [tree, chunk, extent, fs, device, csum] = roots;
        let [l0, l1, l2, l3, l4, l5] = levels;
        let node = |(logical, generation), level| NodeRef {
            logical: Logical(logical),
            generation: Generation(generation),
            level,
        };
        Ok(Self {
            tree_root: node(tree, l0),
            chunk_root: node(chunk, l1),
            extent_root: node(extent, l2),
            fs_root: node(fs, l3),
            device_root: node(device, l4),
            csum_root: node(csum, l5),
            total_bytes,
            bytes_used,
            num_devices,
        })
    }

    /// Appends its bytes; `raw` is what lay there before.
    fn write(&self, w: &mut Writer, raw: &[u8]) {
        let roots = [
            self.tree_root,
            self.chunk_root,
            self.extent_root,
            self.fs_root,
            self.device_root,
            self.csum_root,
        ];
        for root in roots {
            w.u64(root.logical.get()).u64(root.generation.get());
        }
        w.u64(self.total_bytes)
            .u64(self.bytes_used)
            .u64(self.num_devices)
            .bytes(raw.get(120..152).unwrap_or(&[0; 32]));
        for root in roots {
            w.u8(root.level);
        }
        w.bytes(raw.get(158..168).unwrap_or(&[0; 10]));
    }
}

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the volume.
    pub fsid: UuidBytes,
    /// Where this copy says that it lies.
    pub own_offset: DeviceOffset,
    /// Flags.
    pub flags: SuperFlags,
    /// Last commit.
    pub generation: Generation,
    /// Root of the tree of roots.
    pub root: Logical,
    /// Root of the chunk tree.
    pub chunk_root: Logical,
    /// Root of the fsync log, or 0.
    pub log_root: Logical,
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes in extents.
    pub bytes_used: u64,
    /// Directory in the tree of roots: 6.
    pub root_dir: u64,
    /// Devices.
    pub num_devices: u64,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Bytes of a node.
    pub node_size: u32,
    /// Unused.
    pub stripe_size: u32,
    /// Generation of the chunk tree.
    pub chunk_root_generation: Generation,
    /// Features that nobody need know.
    pub compat: u64,
    /// Features that a writer must know.
    pub compat_ro: CompatRo,
    /// Features that a reader must know.
    pub incompat: Incompat,
    /// Checksum algorithm.
    pub checksum_type: ChecksumType,
    /// Level of `root`.
    pub root_level: u8,
    /// Level of `chunk_root`.
    pub chunk_root_level: u8,
    /// Level of `log_root`.
    pub log_root_level: u8,
    /// The device that this copy lies on.
    pub device: DeviceItem,
    /// Label, without its NUL.
    pub label: Vec<u8>,
    /// Generation of space cache v1; another value than `generation` makes it
    /// stale.
    pub cache_generation: u64,
    /// Generation at which the UUID tree was right.
    pub uuid_tree_generation: Generation,
    /// UUID in nodes, with METADATA_UUID.
    pub metadata_uuid: UuidBytes,
    /// Chunks that are needed to read the chunk tree.
    pub sys_chunks: Vec<(Logical, Chunk)>,
    /// Roots of earlier generations.
    pub backup_roots: [BackupRoot; 4],
    raw: Vec<u8>,
}

impl Superblock {
    /// Reads and checks the copy at `offset`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(bytes: &[u8], offset: DeviceOffset) -> Result<Self, ParseError> {
        let superblock = Self::parse_unverified(bytes)?;
        superblock.verify(bytes, offset)?;
        Ok(superblock)
    }

    /// As [`Self::parse`], but a system chunk array that is damaged or empty is no
    /// fault: `sys_chunks` has none then.
    ///
    /// # Errors
    /// The first other thing that is wrong with it.
    pub fn parse_but_chunks(bytes: &[u8], offset: DeviceOffset) -> Result<Self, ParseError> {
        let superblock = Self::parse_with(bytes, Array::MayBeDamaged)?;
        superblock.verify_but_chunks(bytes, offset)?;
        Ok(superblock)
    }

    /// Reads a copy and checks only that it can be parsed.
    ///
    /// # Errors
    /// Too short, no magic number, unknown checksum type, damaged chunk array.
    pub fn parse_unverified(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::parse_with(bytes, Array::MustBeGood)
    }

    fn parse_with(bytes: &[u8], wanted: Array) -> Result<Self, ParseError> {
        let mut r = Reader::new(WHAT, bytes);
        r.bytes(CHECKSUM_FIELD)?;
        let fsid = r.array()?;
        let own_offset = DeviceOffset(r.u64()?);
        let flags = SuperFlags(r.u64()?);
        if r.array::<8>()? != MAGIC {
            return Err(ParseError::BadMagic { what: WHAT });
        }
        let generation = Generation(r.u64()?);
        let root = Logical(r.u64()?);
        let chunk_root = Logical(r.u64()?);
        let log_root = Logical(r.u64()?);
        r.u64()?;
        let total_bytes = r.u64()?;
        let bytes_used = r.u64()?;
        let root_dir = r.u64()?;
        let num_devices = r.u64()?;
        let sector_size = r.u32()?;
        let node_size = r.u32()?;
        r.u32()?;
        let stripe_size = r.u32()?;
        let array_size = r.u32()?;
        let chunk_root_generation = Generation(r.u64()?);
        let compat = r.u64()?;
        let compat_ro = CompatRo(r.u64()?);
        let incompat = Incompat(r.u64()?);
        let number = r.u16()?;
        let checksum_type =
            ChecksumType::from_number(number).ok_or(bad("checksum type", u64::from(number)))?;
        let root_level = r.u8()?;
        let chunk_root_level = r.u8()?;
        let log_root_level = r.u8()?;
        let device = DeviceItem::read(&mut r)?;
        let label_field = r.bytes(LABEL_SIZE)?;
        let label = label_field.split(|byte| *byte == 0).next();
        let label = label.unwrap_or_default().to_vec();
        let cache_generation = r.u64()?;
        let uuid_tree_generation = Generation(r.u64()?);
        let metadata_uuid = r.array()?;
        r.bytes(28 * 8)?;
        let array = r.bytes(SYSTEM_ARRAY)?;
        let used = usize::try_from(array_size).unwrap_or(usize::MAX);
        let used = array
            .get(..used)
            .ok_or(bad("system chunk array size", u64::from(array_size)));
        let sys_chunks = match (used.and_then(parse_array), wanted) {
            (Err(_), Array::MayBeDamaged) => Vec::new(),
            (parsed, _) => parsed?,
        };
        let backup_roots = [
            BackupRoot::parse(&mut r)?,
            BackupRoot::parse(&mut r)?,
            BackupRoot::parse(&mut r)?,
            BackupRoot::parse(&mut r)?,
        ];
        Ok(Self {
            fsid,
            own_offset,
            flags,
            generation,
            root,
            chunk_root,
            log_root,
            total_bytes,
            bytes_used,
            root_dir,
            num_devices,
            sector_size,
            node_size,
            stripe_size,
            chunk_root_generation,
            compat,
            compat_ro,
            incompat,
            checksum_type,
            root_level,
            chunk_root_level,
            log_root_level,
            device,
            label,
            cache_generation,
            uuid_tree_generation,
            metadata_uuid,
            sys_chunks,
            backup_roots,
            raw: bytes.get(..SIZE).ok_or(bad("size", 0))?.to_vec(),
        })
    }

    /// The superblock of the commit whose roots `backup` keeps. It has no fsync
    /// log, because a log belongs to the last commit.
    #[must_use]
    pub fn with_roots_of(&self, backup: &BackupRoot) -> Self {
        let mut older = self.clone();
        older.generation = backup.tree_root.generation;
        older.root = backup.tree_root.logical;
        older.root_level = backup.tree_root.level;
        older.chunk_root = backup.chunk_root.logical;
        older.chunk_root_generation = backup.chunk_root.generation;
        older.chunk_root_level = backup.chunk_root.level;
        older.log_root = Logical(0);
        older.log_root_level = 0;
        older.total_bytes = backup.total_bytes;
        older.bytes_used = backup.bytes_used;
        // A space cache v1 was written for a newer commit. The next commit may
        // get the same generation, and the cache would look valid.
        if older.cache_generation != 0 {
            older.cache_generation = u64::MAX;
        }
        older
    }

    /// The same superblock as it is on another device of the volume.
    #[must_use]
    pub fn on_device(&self, device: &DeviceItem) -> Self {
        let mut own = self.clone();
        own.device = device.clone();
        own
    }

    /// Whether two copies are of one commit and one fsync log. Where each lies,
    /// and its device's item, are not compared.
    #[must_use]
    pub fn names_the_same(&self, other: &Self) -> bool {
        let mut own = self.on_device(&other.device);
        own.own_offset = other.own_offset;
        own.raw.clone_from(&other.raw);
        own == *other
    }

    /// A superblock with zeros in all fields that are not given.
    #[must_use]
    pub fn blank(fsid: UuidBytes, checksum_type: ChecksumType) -> Self {
        let none = NodeRef {
            logical: Logical(0),
            generation: Generation(0),
            level: 0,
        };
        let backup = BackupRoot {
            tree_root: none,
            chunk_root: none,
            extent_root: none,
            fs_root: none,
            device_root: none,
            csum_root: none,
            total_bytes: 0,
            bytes_used: 0,
            num_devices: 0,
        };
        Self {
            fsid,
            own_offset: DeviceOffset(0),
            flags: SuperFlags::WRITTEN,
            generation: Generation(0),
            root: Logical(0),
            chunk_root: Logical(0),
            log_root: Logical(0),
            total_bytes: 0,
            bytes_used: 0,
            root_dir: 6,
            num_devices: 1,
            sector_size: 4096,
            node_size: 16384,
            stripe_size: 4096,
            chunk_root_generation: Generation(0),
            compat: 0,
            compat_ro: CompatRo::default(),
            incompat: Incompat::default(),
            checksum_type,
            root_level: 0,
            chunk_root_level: 0,
            log_root_level: 0,
            device: DeviceItem::default(),
            label: Vec::new(),
            cache_generation: 0,
            uuid_tree_generation: Generation(0),
            metadata_uuid: [0; 16],
            sys_chunks: Vec::new(),
            backup_roots: [backup; 4],
            raw: vec![0; SIZE],
        }
    }

    fn verify(&self, bytes: &[u8], offset: DeviceOffset) -> Result<(), ParseError> {
        self.verify_but_chunks(bytes, offset)?;
        match self.sys_chunks.is_empty() {
            true => Err(bad("system chunk array size", 0)),
            false => Ok(()),
        }
    }

    fn verify_but_chunks(&self, bytes: &[u8], offset: DeviceOffset) -> Result<(), ParseError> {
        let block = bytes.get(..SIZE).ok_or(bad("size", 0))?;
        if !self.checksum_type.verify_block(block) {
            return Err(ParseError::BadChecksum { what: WHAT });
        }
        if self.own_offset != offset {
            return Err(ParseError::WrongAddress {
                what: WHAT,
                expected: offset.get(),
                found: self.own_offset.get(),
            });
        }
        let sector = self.sector_size;
        if !NODE_SIZE_RANGE.contains(&sector) || !sector.is_power_of_two() {
            return Err(bad("sector size", u64::from(sector)));
        }
        let node = self.node_size;
        if !NODE_SIZE_RANGE.contains(&node) || !node.is_power_of_two() || node < sector {
            return Err(bad("node size", u64::from(node)));
        }
        if self.incompat.contains(Incompat::MIXED_GROUPS) && node != sector {
            return Err(bad("node size of mixed block groups", u64::from(node)));
        }
        // Nobody uses these two fields, but the kernel checks them.
        let leaf = self
            .raw
            .get(0x98..0x9c)
            .and_then(|field| field.try_into().ok());
        let leaf = u32::from_le_bytes(leaf.unwrap_or_default());
        if leaf != node {
            return Err(bad("leaf size", u64::from(leaf)));
        }
        if !self.stripe_size.is_power_of_two() {
            return Err(bad("stripe size", u64::from(self.stripe_size)));
        }
        if self.generation.get() > GENERATION_MAX {
            return Err(bad("generation", self.generation.get()));
        }
        for level in [self.root_level, self.chunk_root_level, self.log_root_level] {
            if level > LEVEL_MAX {
                return Err(bad("level", u64::from(level)));
            }
        }
        for root in [self.root, self.chunk_root, self.log_root] {
            if !root.get().is_multiple_of(u64::from(sector)) {
                return Err(bad("root address", root.get()));
            }
        }
        if self.root.get() == 0 || self.chunk_root.get() == 0 {
            return Err(bad("root address", 0));
        }
        if self.generation.get() == 0 {
            return Err(bad("generation", 0));
        }
        if self.chunk_root_generation > self.generation {
            return Err(bad(
                "chunk root generation",
                self.chunk_root_generation.get(),
            ));
        }
        if self.total_bytes < RESERVED {
            return Err(bad("total bytes", self.total_bytes));
        }
        // There are at least six trees. Too great a number is for `check` to
        // report: no reader needs it, and each commit counts it anew.
        let least = u64::from(node).saturating_mul(6);
        if self.bytes_used < least {
            return Err(bad("bytes used", self.bytes_used));
        }
        if self.num_devices == 0 {
            return Err(bad("number of devices", 0));
        }
        if self.device.fsid != self.node_fsid() {
            return Err(ParseError::Differs {
                what: WHAT,
                field: "the volume's UUID in the device item",
            });
        }
        Ok(())
    }

    /// Its bytes for the copy at `offset`, sealed.
    #[must_use]
    pub fn encode(&self, offset: DeviceOffset) -> Vec<u8> {
        let array = encode_array(&self.sys_chunks);
        let mut w = Writer::with_capacity(SIZE);
        w.zeros(CHECKSUM_FIELD)
            .bytes(&self.fsid)
            .u64(offset.get())
            .u64(self.flags.0)
            .bytes(&MAGIC)
            .u64(self.generation.get())
            .u64(self.root.get())
            .u64(self.chunk_root.get())
            .u64(self.log_root.get())
            .bytes(self.raw.get(0x68..0x70).unwrap_or(&[0; 8]))
            .u64(self.total_bytes)
            .u64(self.bytes_used)
            .u64(self.root_dir)
            .u64(self.num_devices)
            .u32(self.sector_size)
            .u32(self.node_size)
            .u32(self.node_size)
            .u32(self.stripe_size)
            .u32(u32::try_from(array.len()).unwrap_or(u32::MAX))
            .u64(self.chunk_root_generation.get())
            .u64(self.compat)
            .u64(self.compat_ro.0)
            .u64(self.incompat.0)
            .u16(self.checksum_type.number())
            .u8(self.root_level)
            .u8(self.chunk_root_level)
            .u8(self.log_root_level);
        self.device.write(&mut w);
        let label = self.label.get(..LABEL_SIZE).unwrap_or(&self.label);
        w.bytes(label)
            .zeros(LABEL_SIZE.saturating_sub(label.len()))
            .u64(self.cache_generation)
            .u64(self.uuid_tree_generation.get())
            .bytes(&self.metadata_uuid)
            .bytes(self.raw.get(0x24b..ARRAY_AT).unwrap_or(&[0; 28 * 8]))
            .bytes(&array);
        // Bytes behind the array have no meaning and are kept.
        let behind = ARRAY_AT.saturating_add(array.len())..ARRAY_AT.saturating_add(SYSTEM_ARRAY);
        w.bytes(self.raw.get(behind).unwrap_or_default());
        for backup in &self.backup_roots {
            let at = w.len();
            backup.write(&mut w, self.raw.get(at..).unwrap_or_default());
        }
        let at = w.len();
        w.bytes(self.raw.get(at..SIZE).unwrap_or_default());
        let mut bytes = w.finish();
        bytes.resize(SIZE, 0);
        self.checksum_type.seal_block(&mut bytes);
        bytes
    }

    /// True when `chunks` fit the array.
    #[must_use]
    pub fn array_fits(chunks: &[(Logical, Chunk)]) -> bool {
        encode_array(chunks).len() <= SYSTEM_ARRAY
    }

    /// Stripes that one more system chunk can have beside `chunks`.
    #[must_use]
    pub fn array_stripes_left(chunks: &[(Logical, Chunk)]) -> usize {
        let used = encode_array(chunks).len().saturating_add(ARRAY_ENTRY);
        SYSTEM_ARRAY.saturating_sub(used) / ARRAY_STRIPE
    }

    /// UUID that nodes carry.
    #[must_use]
    pub const fn node_fsid(&self) -> UuidBytes {
        if self.incompat.contains(Incompat::METADATA_UUID) {
            self.metadata_uuid
        } else {
            self.fsid
        }
    }

    /// Extents of nodes have the short form.
    #[must_use]
    pub const fn has_skinny_metadata(&self) -> bool {
        self.incompat.contains(Incompat::SKINNY_METADATA)
    }

    /// Whether inodes can have names beyond what one item holds.
    #[must_use]
    pub const fn has_extended_refs(&self) -> bool {
        self.incompat.contains(Incompat::EXTENDED_IREF)
    }

    /// Holes have no file extents.
    #[must_use]
    pub const fn has_no_holes(&self) -> bool {
        self.incompat.contains(Incompat::NO_HOLES)
    }

    /// Block group items have a tree of their own.
    #[must_use]
    pub const fn has_block_group_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
    }

    /// The free-space tree is there and right.
    #[must_use]
    pub const fn has_valid_free_space_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
            && self.compat_ro.contains(CompatRo::FREE_SPACE_TREE_VALID)
    }
}

const fn bad(field: &'static str, value: u64) -> ParseError {
    ParseError::BadValue {
        what: WHAT,
        field,
        value,
    }
}

/// Whether a superblock is of use without its system chunk array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Array {
    MustBeGood,
    MayBeDamaged,
}

fn parse_array(bytes: &[u8]) -> Result<Vec<(Logical, Chunk)>, ParseError> {
    let mut r = Reader::new("system chunk array", bytes);
    let mut chunks = Vec::new();
    while r.remaining() > 0 {
        let key = Key::parse(&mut r)?;
        let bad = |field, value| ParseError::BadValue {
            what: "system chunk array",
            field,
            value,
        };
        if key.objectid != Chunk::OBJECT {
            return Err(bad("object", key.objectid));
        }
        if key.item_type != ItemType::CHUNK_ITEM {
            return Err(bad("item type", u64::from(key.item_type.0)));
        }
        chunks.push((Logical(key.offset), Chunk::read(&mut r)?));
    }
    Ok(chunks)
}

fn encode_array(chunks: &[(Logical, Chunk)]) -> Vec<u8> {
    let mut w = Writer::default();
    for (logical, chunk) in chunks {
        let key = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, logical.get());
        w.bytes(&key.to_bytes()).bytes(&chunk.encode());
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_round_trip_and_field_offsets() {
        let mut superblock = Superblock::blank([7; 16], ChecksumType::Crc32c);
        superblock.label = b"label".to_vec();
        superblock.cache_generation = 0x1122_3344_5566_7788;
        superblock.generation = Generation(9);
        let offset = DeviceOffset(64 << 10);
        let bytes = superblock.encode(offset);
        assert_eq!(bytes.len(), SIZE);
        assert_eq!(bytes[0x40..0x48], MAGIC);
        assert_eq!(bytes[0x12b..0x130], *b"label");
        assert_eq!(bytes[0x22b], 0x88);
        let parsed = Superblock::parse_unverified(&bytes).unwrap();
        assert_eq!(parsed.encode(offset), bytes);
        assert!(ChecksumType::Crc32c.verify_block(&bytes));
    }

    #[test]
    fn a_damaged_array_is_passed_over_on_demand_alone() {
        let mut superblock = Superblock::blank([7; 16], ChecksumType::Crc32c);
        superblock.generation = Generation(9);
        let offset = DeviceOffset(64 << 10);
        let mut bytes = superblock.encode(offset);
        // The size of the array.
        bytes[0xa0..0xa4].copy_from_slice(&30_u32.to_le_bytes());
        ChecksumType::Crc32c.seal_block(&mut bytes);
        assert!(Superblock::parse_unverified(&bytes).is_err());
        let parsed = Superblock::parse_with(&bytes, Array::MayBeDamaged).unwrap();
        assert!(parsed.sys_chunks.is_empty());
    }
}
