//! Options of a new volume.

use super::{FeatureSet, MkfsError};
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::inode::Timespec;
use butterfs_format::node::NODE_SIZE_RANGE;
use butterfs_format::superblock::LABEL_SIZE;
use butterfs_format::{ChecksumType, UuidBytes};
use butterfs_volume::Profile;

/// Whether data and metadata share block groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Each has its own block groups.
    #[default]
    Separate,
    /// They share block groups. This is for small volumes.
    Mixed,
}

/// The owner of the root directory of a new volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RootOwner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Options of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Label, at most 255 bytes.
    pub label: String,
    /// Bytes of a node.
    pub node_size: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Bytes to use of each device; the whole device if `None`.
    pub byte_count: Option<u64>,
    /// Checksum of nodes and data.
    pub checksum: ChecksumType,
    /// Profile of data; single if `None`. If block groups are mixed, `None` means
    /// the profile of metadata.
    pub data: Option<Profile>,
    /// Profile of metadata. `None` means DUP on one device and RAID1 on several.
    /// If block groups are mixed, it means the profile of data.
    pub metadata: Option<Profile>,
    /// Whether data and metadata share block groups.
    pub mixed: Layout,
    /// Features.
    pub features: FeatureSet,
    /// UUID of the volume; random if `None`.
    pub fsid: Option<UuidBytes>,
    /// UUID of the first device; random if `None`.
    pub device_uuid: Option<UuidBytes>,
    /// Time of birth.
    pub time: Timespec,
    /// Owner of the root directory.
    pub root_owner: RootOwner,
}

impl Default for MkfsOptions {
    /// Today's defaults of the Btrfs tools. The time is now, the owner is root.
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
            root_owner: RootOwner::default(),
        }
    }
}

/// Profiles of data and of metadata. The chunk tree has that of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Profiles {
    pub(super) data: Profile,
    pub(super) metadata: Profile,
}

impl MkfsOptions {
    /// Returns the profiles of a volume on `devices` devices.
    pub(super) fn profiles(&self, devices: usize) -> Result<Profiles, MkfsError> {
        let safe = if devices > 1 {
            Profile::Raid1
        } else {
            Profile::Dup
        };
        let (data, metadata) = match self.layout() {
            Layout::Separate => (
                self.data.unwrap_or(Profile::Single),
                self.metadata.unwrap_or(safe),
            ),
            Layout::Mixed => {
                let profile = self.data.or(self.metadata).unwrap_or(Profile::Single);
                (
                    self.data.unwrap_or(profile),
                    self.metadata.unwrap_or(profile),
                )
            }
        };
        if self.layout() == Layout::Mixed && data != metadata {
            return Err(MkfsError::MixedProfiles);
        }
        for profile in [data, metadata] {
            if devices < profile.devices_min() {
                return Err(MkfsError::TooFewDevices {
                    profile: profile.name(),
                    needed: profile.devices_min(),
                    given: devices,
                });
            }
        }
        Ok(Profiles { data, metadata })
    }

    /// Fails if the options contradict each other or the format.
    pub(super) fn verify(&self) -> Result<(), MkfsError> {
        let (node, sector) = (self.node_size, self.sector_size);
        if !NODE_SIZE_RANGE.contains(&sector) || !sector.is_power_of_two() {
            return Err(MkfsError::SectorSize(sector));
        }
        if !NODE_SIZE_RANGE.contains(&node) || !node.is_power_of_two() || node < sector {
            return Err(MkfsError::NodeSize(node));
        }
        if self.layout() == Layout::Mixed && node != sector {
            return Err(MkfsError::MixedNodeSize { node, sector });
        }
        if self.label.len() >= LABEL_SIZE || self.label.contains(['\0', '\n', '\r']) {
            return Err(MkfsError::Label);
        }
        // The kernel does not mount a volume with a block group tree but without
        // a free-space tree or no-holes.
        let features = &self.features;
        if features.has_block_group_tree() && !features.can_have_block_group_tree() {
            return Err(MkfsError::BlockGroupTreeNeeds);
        }
        Ok(())
    }

    /// Whether block groups are mixed, by the option or by the feature.
    pub(super) fn layout(&self) -> Layout {
        if self.features.incompat.contains(Incompat::MIXED_GROUPS) {
            return Layout::Mixed;
        }
        self.mixed
    }

    /// Returns the incompat bits of the superblock.
    pub(super) fn incompat(&self, profiles: Profiles) -> Incompat {
        let mut bits = self.features.incompat | Incompat::MIXED_BACKREF;
        if self.layout() == Layout::Mixed {
            bits |= Incompat::MIXED_GROUPS;
        }
        for profile in [profiles.data, profiles.metadata] {
            match profile {
                Profile::Raid5 | Profile::Raid6 => bits |= Incompat::RAID56,
                Profile::Raid1c3 | Profile::Raid1c4 => bits |= Incompat::RAID1C34,
                _ => {}
            }
        }
        if self.node_size > 4096 {
            bits |= Incompat::BIG_METADATA;
        }
        bits
    }

    /// Returns the compat_ro bits of the superblock.
    pub(super) fn compat_ro(&self) -> CompatRo {
        let mut bits = self.features.compat_ro;
        if self.features.has_free_space_tree() {
            bits |= CompatRo::FREE_SPACE_TREE_VALID;
        }
        bits
    }
}
