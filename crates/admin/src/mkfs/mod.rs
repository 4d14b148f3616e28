//! Making a volume.
//!
//! Owns the choice of chunks and the first content of each tree. Writes the
//! final layout at once: every tree is one leaf.

mod leaf;
mod trees;

use butterfs_device::{BlockDevice, DeviceError};
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::item::device::DeviceItem;
use butterfs_format::item::inode::Timespec;
use butterfs_format::node::NODE_SIZE_RANGE;
use butterfs_format::superblock::{self, BackupRoot, LABEL_SIZE, Superblock};
use butterfs_format::{
    ChecksumType, DeviceId, DeviceOffset, Generation, Logical, NodeRef, TreeId, UuidBytes,
};
use butterfs_store::superblock_ranges;
use std::ops::Range;
use thiserror::Error;

const MIB: u64 = 1 << 20;
const ALIGN: u64 = 64 << 10;
/// The first generation.
const GENERATION: Generation = Generation(1);

/// How a kind of block group is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileChoice {
    /// One copy.
    Single,
    /// Two copies on one device.
    Dup,
}

impl ProfileChoice {
    const fn copies(self) -> u64 {
        match self {
            Self::Single => 1,
            Self::Dup => 2,
        }
    }

    const fn flags(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags(0),
            Self::Dup => BlockGroupFlags::DUP,
        }
    }
}

/// Whether data and metadata share block groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// They do not.
    #[default]
    Separate,
    /// They do; for small volumes.
    Mixed,
}

/// A feature that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name in options.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// The bit in the superblock.
    pub bit: FeatureBit,
    /// It is on unless switched off.
    pub default: DefaultState,
}

/// Whether a feature is on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultState {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Where a feature is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureBit {
    /// Readers must know it.
    Incompat(Incompat),
    /// Writers must know it.
    CompatRo(CompatRo),
    /// ButterFS does not make it yet.
    NotYet,
}

/// All features by name.
pub const FEATURES: &[Feature] = &[
    Feature {
        name: "mixed-bg",
        description: "mixed data and metadata block groups",
        bit: FeatureBit::Incompat(Incompat::MIXED_GROUPS),
        default: DefaultState::Off,
    },
    Feature {
        name: "extref",
        description: "increased hardlink limit per file to 65536",
        bit: FeatureBit::Incompat(Incompat::EXTENDED_IREF),
        default: DefaultState::On,
    },
    Feature {
        name: "skinny-metadata",
        description: "reduced-size metadata extent refs",
        bit: FeatureBit::Incompat(Incompat::SKINNY_METADATA),
        default: DefaultState::On,
    },
    Feature {
        name: "no-holes",
        description: "no explicit hole extents for files",
        bit: FeatureBit::Incompat(Incompat::NO_HOLES),
        default: DefaultState::On,
    },
    Feature {
        name: "free-space-tree",
        description: "free space tree (space_cache=v2)",
        bit: FeatureBit::CompatRo(CompatRo::FREE_SPACE_TREE),
        default: DefaultState::On,
    },
    Feature {
        name: "block-group-tree",
        description: "block group tree, more efficient block group tracking",
        bit: FeatureBit::CompatRo(CompatRo::BLOCK_GROUP_TREE),
        default: DefaultState::On,
    },
    Feature {
        name: "raid56",
        description: "raid56 extended format",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
    Feature {
        name: "raid1c34",
        description: "RAID1 with 3 or 4 copies",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
    Feature {
        name: "zoned",
        description: "support zoned devices",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
    Feature {
        name: "quota",
        description: "hierarchical quota groups",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
    Feature {
        name: "squota",
        description: "squota (simple accounting qgroups)",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
];

/// Features of a volume to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureSet {
    /// Readers must know these.
    pub incompat: Incompat,
    /// Writers must know these.
    pub compat_ro: CompatRo,
}

impl Default for FeatureSet {
    fn default() -> Self {
        let mut set = Self {
            incompat: Incompat::default(),
            compat_ro: CompatRo::default(),
        };
        for feature in FEATURES {
            if feature.default == DefaultState::On {
                set.apply(feature.bit, DefaultState::On);
            }
        }
        set
    }
}

impl FeatureSet {
    fn apply(&mut self, bit: FeatureBit, state: DefaultState) {
        match (bit, state) {
            (FeatureBit::Incompat(bit), DefaultState::On) => self.incompat |= bit,
            (FeatureBit::Incompat(bit), DefaultState::Off) => self.incompat -= bit,
            (FeatureBit::CompatRo(bit), DefaultState::On) => self.compat_ro |= bit,
            (FeatureBit::CompatRo(bit), DefaultState::Off) => self.compat_ro -= bit,
            (FeatureBit::NotYet, _) => {}
        }
    }

    /// Switches features on, or off with `^`: `no-holes,^free-space-tree`.
    ///
    /// # Errors
    /// [`MkfsError::UnknownFeature`], [`MkfsError::NotYet`]
    pub fn change(&mut self, list: &str) -> Result<(), MkfsError> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (name, state) = match word.strip_prefix('^') {
                Some(name) => (name, DefaultState::Off),
                None => (word, DefaultState::On),
            };
            let feature = FEATURES
                .iter()
                .find(|feature| feature.name == name)
                .ok_or_else(|| MkfsError::UnknownFeature(name.to_owned()))?;
            if feature.bit == FeatureBit::NotYet && state == DefaultState::On {
                return Err(MkfsError::NotYet(format!("the feature {name}")));
            }
            self.apply(feature.bit, state);
        }
        Ok(())
    }

    const fn has_free_space_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    const fn has_block_group_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
    }
}

/// A volume to make.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Label, at most 255 bytes.
    pub label: String,
    /// Bytes of a node.
    pub node_size: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Bytes of the volume; the whole device unless given.
    pub byte_count: Option<u64>,
    /// Checksum algorithm.
    pub checksum: ChecksumType,
    /// Profile of data; single unless given (mixed: as metadata).
    pub data: Option<ProfileChoice>,
    /// Profile of metadata and system; DUP unless given (mixed: single).
    pub metadata: Option<ProfileChoice>,
    /// Whether block groups are mixed.
    pub mixed: Layout,
    /// Features.
    pub features: FeatureSet,
    /// UUID of the volume; random unless given.
    pub fsid: Option<UuidBytes>,
    /// UUID of the device; random unless given.
    pub device_uuid: Option<UuidBytes>,
    /// The time that new items get.
    pub time: Timespec,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            node_size: 16384,
            sector_size: 4096,
            byte_count: None,
            checksum: ChecksumType::Crc32c,
            data: None,
            metadata: None,
            mixed: Layout::Separate,
            features: FeatureSet::default(),
            fsid: None,
            device_uuid: None,
            time: butterfs_store::now(),
        }
    }
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Summary {
    /// UUID of the volume.
    pub fsid: UuidBytes,
    /// UUID of the device.
    pub device_uuid: UuidBytes,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Block groups: what they hold and their bytes.
    pub groups: Vec<(BlockGroupFlags, u64)>,
    /// Features for readers.
    pub incompat: Incompat,
    /// Features for writers.
    pub compat_ro: CompatRo,
}

/// Why a volume cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// Not enough space.
    #[error(
        "{have} bytes are too small for a volume of this kind; at least {need} are needed (or choose mixed block groups with -M)"
    )]
    TooSmall {
        /// Bytes there are.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// More bytes asked for than the device has.
    #[error("the device has only {have} bytes, {asked} were asked for")]
    BeyondDevice {
        /// Bytes of the device.
        have: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// Impossible node size.
    #[error(
        "a node size of {0} is not possible: take a power of two from the sector size to 65536"
    )]
    NodeSize(u32),
    /// Impossible sector size.
    #[error("a sector size of {0} is not possible: take a power of two from 4096 to 65536")]
    SectorSize(u32),
    /// Mixed groups have nodes of one sector.
    #[error("with mixed block groups the node size must be the sector size, {0}")]
    MixedNodeSize(u32),
    /// Mixed groups have one profile.
    #[error("with mixed block groups data and metadata have the same profile")]
    MixedProfiles,
    /// Label too long.
    #[error("the label is longer than 255 bytes")]
    Label,
    /// No such feature.
    #[error("there is no feature named {0}; see -O list-all")]
    UnknownFeature(String),
    /// Not there yet.
    #[error("{0} is not supported yet")]
    NotYet(String),
    /// Features that need another.
    #[error("block-group-tree needs free-space-tree and no-holes")]
    BlockGroupTreeNeeds,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A chunk with its block group's first use.
#[derive(Clone, Debug)]
struct Group {
    logical: Logical,
    chunk: Chunk,
    used: u64,
}

impl Group {
    fn free(&self, taken: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut not_free = superblock_ranges(self.logical, &self.chunk);
        not_free.extend(taken.iter().cloned());
        not_free.sort_by_key(|range| range.start);
        let mut free = Vec::new();
        let mut at = self.logical.get();
        let end = at + self.chunk.length;
        for range in not_free {
            if range.end <= at || range.start >= end {
                continue;
            }
            if range.start > at {
                free.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < end {
            free.push(at..end);
        }
        free
    }
}

/// All that is decided before the first write.
#[derive(Debug)]
struct Plan {
    options: MkfsOptions,
    fsid: UuidBytes,
    device_uuid: UuidBytes,
    chunk_tree_uuid: UuidBytes,
    subvolume_uuid: UuidBytes,
    total_bytes: u64,
    /// System first.
    groups: Vec<Group>,
    /// Trees and where their leaf lies.
    trees: Vec<(TreeId, Logical)>,
}

fn check(options: &MkfsOptions) -> Result<(), MkfsError> {
    let sector = options.sector_size;
    if !NODE_SIZE_RANGE.contains(&sector) || !sector.is_power_of_two() {
        return Err(MkfsError::SectorSize(sector));
    }
    let node = options.node_size;
    if !NODE_SIZE_RANGE.contains(&node) || !node.is_power_of_two() || node < sector {
        return Err(MkfsError::NodeSize(node));
    }
    if options.mixed == Layout::Mixed {
        if node != sector {
            return Err(MkfsError::MixedNodeSize(sector));
        }
        if let (Some(data), Some(metadata)) = (options.data, options.metadata)
            && data != metadata
        {
            return Err(MkfsError::MixedProfiles);
        }
    }
    if options.label.len() >= LABEL_SIZE {
        return Err(MkfsError::Label);
    }
    let features = &options.features;
    let needs = features.has_free_space_tree() && features.incompat.contains(Incompat::NO_HOLES);
    if features.has_block_group_tree() && !needs {
        return Err(MkfsError::BlockGroupTreeNeeds);
    }
    Ok(())
}

/// What a block group holds, its profile and its bytes.
type Wanted = (BlockGroupFlags, ProfileChoice, u64);

fn wanted_groups(options: &MkfsOptions, total: u64) -> Vec<Wanted> {
    let tenth = total / 10 / ALIGN * ALIGN;
    let metadata_max = if total > 50 << 30 { 1 << 30 } else { 256 * MIB };
    let mixed = options.mixed == Layout::Mixed;
    let default = if mixed {
        options.data.unwrap_or(ProfileChoice::Single)
    } else {
        ProfileChoice::Dup
    };
    let metadata = options.metadata.unwrap_or(default);
    let system = match metadata {
        ProfileChoice::Dup => 8 * MIB,
        ProfileChoice::Single => 4 * MIB,
    };
    let mut wanted = vec![(BlockGroupFlags::SYSTEM, metadata, system)];
    if mixed {
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        wanted.push((both, metadata, tenth.clamp(8 * MIB, 1 << 30)));
    } else {
        let data = options.data.unwrap_or(ProfileChoice::Single);
        let metadata_bytes = tenth.clamp(8 * MIB, metadata_max);
        wanted.push((BlockGroupFlags::METADATA, metadata, metadata_bytes));
        wanted.push((BlockGroupFlags::DATA, data, 8 * MIB));
    }
    wanted
}

fn plan(options: &MkfsOptions, device_size: u64) -> Result<Plan, MkfsError> {
    check(options)?;
    let asked = options.byte_count.unwrap_or(device_size);
    if asked > device_size {
        return Err(MkfsError::BeyondDevice {
            have: device_size,
            asked,
        });
    }
    let total_bytes = asked / u64::from(options.sector_size) * u64::from(options.sector_size);
    let wanted = wanted_groups(options, total_bytes);
    let need = superblock::RESERVED
        + wanted
            .iter()
            .map(|(_, profile, length)| profile.copies() * length)
            .sum::<u64>();
    if need > total_bytes {
        return Err(MkfsError::TooSmall {
            have: total_bytes,
            need,
        });
    }
    let random = || *uuid::Uuid::new_v4().as_bytes();
    let device_uuid = options.device_uuid.unwrap_or_else(random);
    let mut groups = Vec::new();
    let mut at = superblock::RESERVED;
    let mut logical = superblock::RESERVED;
    for (flags, profile, length) in wanted {
        let stripes = (0..profile.copies())
            .map(|copy| Stripe {
                device: DeviceId(1),
                offset: DeviceOffset(at + copy * length),
                device_uuid,
            })
            .collect();
        groups.push(Group {
            logical: Logical(logical),
            chunk: Chunk {
                length,
                owner: TreeId::EXTENT.get(),
                stripe_length: ALIGN,
                flags: flags | profile.flags(),
                io_align: 65536,
                io_width: 65536,
                sector_size: options.sector_size,
                sub_stripes: 1,
                stripes,
            },
            used: 0,
        });
        at += profile.copies() * length;
        logical += length;
    }
    let mut plan = Plan {
        fsid: options.fsid.unwrap_or_else(random),
        device_uuid,
        chunk_tree_uuid: random(),
        subvolume_uuid: random(),
        options: options.clone(),
        total_bytes,
        groups,
        trees: Vec::new(),
    };
    plan.place_trees();
    Ok(plan)
}

impl Plan {
    fn tree_ids(&self) -> Vec<TreeId> {
        let mut trees = vec![
            TreeId::CHUNK,
            TreeId::ROOT,
            TreeId::EXTENT,
            TreeId::DEVICE,
            TreeId::FS,
            TreeId::CSUM,
            TreeId::DATA_RELOC,
        ];
        if self.options.features.has_free_space_tree() {
            trees.push(TreeId::FREE_SPACE);
        }
        if self.options.features.has_block_group_tree() {
            trees.push(TreeId::BLOCK_GROUP);
        }
        // With the smallest nodes the tree of roots has no room for one more;
        // the kernel makes the UUID tree when it is missing.
        if self.options.node_size > 4096 {
            trees.push(TreeId::UUID);
        }
        trees
    }

    fn place_trees(&mut self) {
        let size = u64::from(self.options.node_size);
        let mut free: Vec<std::vec::IntoIter<u64>> = self.groups[..2]
            .iter()
            .map(|group| {
                let places: Vec<u64> = group
                    .free(&[])
                    .into_iter()
                    .flat_map(|range| {
                        let first = range.start.next_multiple_of(size);
                        (first..range.end)
                            .step_by(size as usize)
                            .filter(move |at| at + size <= range.end)
                            .take(16)
                    })
                    .collect();
                places.into_iter()
            })
            .collect();
        for tree in self.tree_ids() {
            let index = usize::from(tree != TreeId::CHUNK);
            let at = free[index].next().expect("a chunk has room for its trees");
            self.groups[index].used += size;
            self.trees.push((tree, Logical(at)));
        }
    }

    fn place_of(&self, tree: TreeId) -> NodeRef {
        let found = self.trees.iter().find(|(other, _)| *other == tree);
        NodeRef {
            logical: found.map_or(Logical(0), |(_, logical)| *logical),
            generation: GENERATION,
            level: 0,
        }
    }

    fn device_item(&self) -> DeviceItem {
        let used = self
            .groups
            .iter()
            .map(|group| group.chunk.length * group.chunk.stripes.len() as u64)
            .sum();
        DeviceItem {
            id: DeviceId(1),
            total_bytes: self.total_bytes,
            bytes_used: used,
            io_align: self.options.sector_size,
            io_width: self.options.sector_size,
            sector_size: self.options.sector_size,
            uuid: self.device_uuid,
            fsid: self.fsid,
            ..DeviceItem::default()
        }
    }

    fn superblock(&self) -> Superblock {
        let mut superblock = Superblock::blank(self.fsid, self.options.checksum);
        let root = self.place_of(TreeId::ROOT);
        let chunk = self.place_of(TreeId::CHUNK);
        let used = self.groups.iter().map(|group| group.used).sum();
        superblock.generation = GENERATION;
        superblock.root = root.logical;
        superblock.chunk_root = chunk.logical;
        superblock.chunk_root_generation = GENERATION;
        superblock.total_bytes = self.total_bytes;
        superblock.bytes_used = used;
        superblock.sector_size = self.options.sector_size;
        superblock.node_size = self.options.node_size;
        superblock.stripe_size = self.options.sector_size;
        superblock.device = self.device_item();
        superblock.label = self.options.label.clone().into_bytes();
        let (incompat, compat_ro) = self.features();
        superblock.incompat = incompat;
        superblock.compat_ro = compat_ro;
        superblock.cache_generation = if self.options.features.has_free_space_tree() {
            0
        } else {
            u64::MAX
        };
        if self.place_of(TreeId::UUID).logical.get() != 0 {
            superblock.uuid_tree_generation = GENERATION;
        }
        superblock.sys_chunks = vec![(self.groups[0].logical, self.groups[0].chunk.clone())];
        superblock.backup_roots[0] = BackupRoot {
            tree_root: root,
            chunk_root: chunk,
            extent_root: self.place_of(TreeId::EXTENT),
            fs_root: self.place_of(TreeId::FS),
            device_root: self.place_of(TreeId::DEVICE),
            csum_root: self.place_of(TreeId::CSUM),
            total_bytes: self.total_bytes,
            bytes_used: used,
            num_devices: 1,
        };
        superblock
    }

    fn features(&self) -> (Incompat, CompatRo) {
        let mut incompat = self.options.features.incompat | Incompat::MIXED_BACKREF;
        if self.options.node_size > 4096 {
            incompat |= Incompat::BIG_METADATA;
        }
        if self.options.mixed == Layout::Mixed {
            incompat |= Incompat::MIXED_GROUPS;
        }
        let mut compat_ro = self.options.features.compat_ro;
        if self.options.features.has_free_space_tree() {
            compat_ro |= CompatRo::FREE_SPACE_TREE_VALID;
        }
        (incompat, compat_ro)
    }
}

/// Makes a volume on `device`, whatever is on it. Whether that is wanted was
/// asked before.
///
/// # Errors
/// [`MkfsError`]; nothing was written unless it is [`MkfsError::Device`].
pub fn make(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Summary, MkfsError> {
    let mut options = options.clone();
    if options.features.incompat.contains(Incompat::MIXED_GROUPS) {
        options.mixed = Layout::Mixed;
    }
    let plan = plan(&options, device.size())?;
    // What was there before must not be found again.
    device.write_at(DeviceOffset(0), &vec![0; superblock::RESERVED as usize])?;
    for offset in superblock::COPIES {
        if offset.get() + superblock::SIZE as u64 <= device.size() {
            device.write_at(offset, &[0; superblock::SIZE])?;
        }
    }
    for (tree, logical) in &plan.trees {
        let bytes = trees::leaf(&plan, *tree, *logical);
        let group = &plan.groups[usize::from(*tree != TreeId::CHUNK)];
        for stripe in &group.chunk.stripes {
            let within = logical.get() - group.logical.get();
            device.write_at(stripe.offset.saturating_add(within), &bytes)?;
        }
    }
    device.flush()?;
    let superblock = plan.superblock();
    for offset in superblock::COPIES {
        if offset.get() + superblock::SIZE as u64 <= plan.total_bytes {
            device.write_at(offset, &superblock.encode(offset))?;
        }
    }
    device.flush()?;
    Ok(Summary {
        fsid: plan.fsid,
        device_uuid: plan.device_uuid,
        total_bytes: plan.total_bytes,
        groups: plan
            .groups
            .iter()
            .map(|group| (group.chunk.flags, group.chunk.length))
            .collect(),
        incompat: superblock.incompat,
        compat_ro: superblock.compat_ro,
    })
}
