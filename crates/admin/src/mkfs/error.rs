//! Errors of making a volume.

use butterfs_device::DeviceError;
use butterfs_volume::VolumeError;

/// Why a volume cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// The device is too small for the smallest volume with these options.
    #[error(
        "{device} is too small: {available} bytes, and these options need at least {minimum}; give it more, or choose smaller nodes, mixed block groups or the single profile"
    )]
    TooSmall {
        /// The device.
        device: String,
        /// Its size in bytes.
        available: u64,
        /// Bytes that are needed.
        minimum: u64,
    },
    /// The wanted size is greater than the device.
    #[error(
        "{device} has {available} bytes, not the {wanted} that are asked for; leave the byte count out to use the whole device"
    )]
    ByteCount {
        /// The device.
        device: String,
        /// Its size in bytes.
        available: u64,
        /// The wanted size in bytes.
        wanted: u64,
    },
    /// A profile needs more devices.
    #[error(
        "the profile {profile} needs at least {needed} devices, not {given}; give more, or choose another profile with -d and -m"
    )]
    TooFewDevices {
        /// The profile.
        profile: &'static str,
        /// Number of devices that it needs.
        needed: usize,
        /// Number of devices that were given.
        given: usize,
    },
    /// More devices were given than a new volume can have.
    #[error("a new volume has at most {0} devices; add more of them later")]
    TooManyDevices(usize),
    /// The devices have too little room for the first chunks.
    #[error(
        "the devices are too small for these profiles: {what} does not fit; give larger devices, or choose other profiles"
    )]
    NoRoom {
        /// What does not fit.
        what: &'static str,
    },
    /// The format does not have this node size.
    #[error(
        "a node size of {0} bytes is not possible; choose a power of two from 4096 to 65536, not below the sector size"
    )]
    NodeSize(u32),
    /// The format does not have this sector size.
    #[error("a sector size of {0} bytes is not possible; choose a power of two from 4096 to 65536")]
    SectorSize(u32),
    /// With mixed block groups, nodes must have the size of a sector.
    #[error(
        "mixed block groups need nodes of one sector ({sector} bytes), not {node}; set the node size to {sector} or leave mixed out"
    )]
    MixedNodeSize {
        /// Node size.
        node: u32,
        /// Sector size.
        sector: u32,
    },
    /// With mixed block groups, data and metadata must have the same profile.
    #[error(
        "mixed block groups hold data and metadata together and have one profile; give both the same or leave one out"
    )]
    MixedProfiles,
    /// The label does not fit or cannot be stored.
    #[error("the label cannot be stored; use at most 255 bytes without NUL and line breaks")]
    Label,
    /// There is no feature of this name.
    #[error("there is no feature named {0}; -O list-all shows those there are")]
    UnknownFeature(String),
    /// ButterFS makes no volume with this feature.
    #[error("the feature {feature} is not supported: {needs}; leave it out")]
    NotYet {
        /// Its name.
        feature: String,
        /// What it would need, or another way to it.
        needs: &'static str,
    },
    /// The block group tree needs features that are off.
    #[error("block-group-tree needs free-space-tree and no-holes; turn these on or it off")]
    BlockGroupTreeNeeds,
    /// A tree did not fit its planned nodes. That is a fault of this program.
    #[error(
        "the initial trees do not fit nodes of {0} bytes; please report this and choose a greater node size"
    )]
    TreesTooLarge(u32),
    /// Reading or writing the device failed.
    #[error("cannot write the new volume: {0}; check the device and run mkfs again")]
    Device(#[from] DeviceError),
    /// Reading or writing one of several devices failed.
    #[error("cannot write the new volume: {0}; check the devices and run mkfs again")]
    Volume(#[from] VolumeError),
}
