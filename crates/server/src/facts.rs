//! Facts about a volume, and where they come from.
//!
//! Owns [`Facts`]. They are gathered from a volume that is open here, or asked
//! from the server that has it mounted. A server gives its facts as the value
//! of an extended attribute of the mount's root that no listing shows. It takes
//! a new label in the same way.

use crate::attributes::{FACTS, LABEL, STATS};
use crate::error::{About, ServerError};
use butterfs::{DeviceFacts, Volume};
use butterfs_format::item::chunk::BlockGroupFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use uuid::Uuid;

/// Space of one kind and profile, in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct KindFacts {
    /// Data, System or Metadata, or several of them.
    pub kind: String,
    /// How its copies lie.
    pub profile: String,
    /// Bytes of its block groups.
    pub total: u64,
    /// Bytes of these in use.
    pub used: u64,
    /// Bytes on the devices, with all copies.
    pub device: u64,
}

/// Error counters of a device, by the names of `btrfs device stats`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct StatsFacts {
    /// Writes that failed.
    pub write_io_errs: u64,
    /// Reads that failed.
    pub read_io_errs: u64,
    /// Flushes that failed.
    pub flush_io_errs: u64,
    /// Blocks with a wrong checksum.
    pub corruption_errs: u64,
    /// Nodes that belong to another commit than they should.
    pub generation_errs: u64,
}

impl StatsFacts {
    pub(crate) const fn new(values: [u64; 5]) -> Self {
        let [
            write_io_errs,
            read_io_errs,
            flush_io_errs,
            corruption_errs,
            generation_errs,
        ] = values;
        Self {
            write_io_errs,
            read_io_errs,
            flush_io_errs,
            corruption_errs,
            generation_errs,
        }
    }

    /// Names and values.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("write_io_errs", self.write_io_errs),
            ("read_io_errs", self.read_io_errs),
            ("flush_io_errs", self.flush_io_errs),
            ("corruption_errs", self.corruption_errs),
            ("generation_errs", self.generation_errs),
        ]
    }
}

/// What chunks of one kind and profile take of a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct DeviceShare {
    /// Data, System or Metadata, or several of them.
    pub kind: String,
    /// How its copies lie.
    pub profile: String,
    /// Bytes of the device.
    pub bytes: u64,
}

/// A device of a volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct DeviceEntry {
    /// Its number.
    pub id: u64,
    /// Its UUID.
    pub uuid: String,
    /// Bytes of it that belong to the volume.
    pub size: u64,
    /// Bytes of it in chunks.
    pub allocated: u64,
    /// `present`, `missing`, `stale` or `failing`.
    pub state: String,
    /// Where it is, unless it is missing.
    pub path: Option<String>,
    /// Bytes of it behind the volume's end; 0 if its size is not known.
    #[serde(default)]
    pub slack: u64,
    /// Errors that it made.
    pub stats: StatsFacts,
    /// What chunks take of it.
    pub chunks: Vec<DeviceShare>,
}

impl DeviceEntry {
    /// Its path, or a word that says that it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.as_deref().unwrap_or("missing")
    }

    fn new(device: DeviceFacts) -> Self {
        let path = device.name.as_deref().map(Path::new);
        Self {
            slack: slack(path, device.item.total_bytes),
            id: device.item.id.get(),
            uuid: Uuid::from_bytes(device.item.uuid).to_string(),
            size: device.item.total_bytes,
            // The item has the number of the last commit.
            allocated: device.chunks.iter().map(|(_, bytes)| bytes).sum(),
            state: device.state.name().to_owned(),
            path: device.name,
            stats: StatsFacts::new(device.stats),
            chunks: device
                .chunks
                .into_iter()
                .map(|(flags, bytes)| DeviceShare {
                    kind: kind_name(flags),
                    profile: flags.profile_name().to_owned(),
                    bytes,
                })
                .collect(),
        }
    }
}

/// How a mount's requests come from the kernel.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TransportFacts {
    /// `io_uring` or `/dev/fuse`.
    pub name: String,
    /// Bytes that the buffers of one thread hold at most.
    pub thread_buffers: u64,
    /// Threads at most.
    pub threads_max: u64,
    /// Nanoseconds that waking a thread on another CPU took, if measured.
    pub wake_up_ns: Option<u64>,
    /// CPU time, in milliseconds, that keeping CPUs awake has taken.
    pub awake_ms: u64,
}

/// What is known of a volume; sizes in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Its label.
    pub label: String,
    /// Its id.
    pub uuid: String,
    /// Number of its devices.
    pub devices: u64,
    /// Bytes of extents and nodes, one copy of each.
    pub used: u64,
    /// Number of this device.
    pub device_id: u64,
    /// Bytes of this device.
    pub device_size: u64,
    /// Bytes of it in chunks.
    pub device_allocated: u64,
    /// What is used on the device, with all copies.
    pub device_used: u64,
    /// Bytes of it in no chunk.
    pub device_unallocated: u64,
    /// Bytes that files can still take.
    pub free_estimated: u64,
    /// Space by kind and profile.
    pub kinds: Vec<KindFacts>,
    /// Metadata space that the kernel keeps for itself if it has the volume
    /// mounted: the whole of it, and what is in use.
    #[serde(default)]
    pub reserve: Option<(u64, u64)>,
    /// Errors that its devices made, together.
    pub device_stats: StatsFacts,
    /// Its devices.
    pub members: Vec<DeviceEntry>,
    /// If it is mounted, the options in effect.
    pub options: Option<String>,
    /// If it is mounted, how requests arrive and what that costs.
    pub transport: Option<TransportFacts>,
    /// Why nothing is written any more, if so.
    pub read_only_because: Option<String>,
}

/// Bytes of the file or block device at `path` behind the first `size`.
pub(crate) fn slack(path: Option<&Path>, size: u64) -> u64 {
    let file = path.and_then(|path| File::open(path).ok());
    let end = file.and_then(|mut file| file.seek(SeekFrom::End(0)).ok());
    end.unwrap_or(0).saturating_sub(size)
}

pub(crate) fn kind_name(flags: BlockGroupFlags) -> String {
    // "Data+Metadata" if both are in one group.
    let names = [
        (BlockGroupFlags::DATA, "Data"),
        (BlockGroupFlags::SYSTEM, "System"),
        (BlockGroupFlags::METADATA, "Metadata"),
    ];
    let set = names.iter().filter(|(bit, _)| flags.contains(*bit));
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

impl Facts {
    /// Facts of a volume that is open here.
    #[must_use]
    pub fn of(volume: &Volume) -> Self {
        let usage = volume.usage();
        let superblock = volume.superblock();
        Self {
            label: String::from_utf8_lossy(&superblock.label).into_owned(),
            uuid: Uuid::from_bytes(superblock.fsid).to_string(),
            devices: superblock.num_devices,
            used: usage.used(),
            device_id: superblock.device.id.get(),
            device_size: usage.device_size,
            device_allocated: usage.device_allocated,
            device_used: usage.device_used(),
            device_unallocated: usage.unallocated(),
            free_estimated: usage.data_free,
            kinds: usage
                .kinds
                .iter()
                .map(|kind| KindFacts {
                    kind: kind_name(kind.flags),
                    profile: kind.flags.profile_name().to_owned(),
                    total: kind.total,
                    used: kind.used,
                    device: kind.device,
                })
                .collect(),
            reserve: None,
            device_stats: StatsFacts::new(volume.device_stats()),
            members: volume.devices().into_iter().map(DeviceEntry::new).collect(),
            options: None,
            transport: None,
            read_only_because: volume.failure(),
        }
    }

    /// Facts of the volume that a server has mounted at `mountpoint`.
    ///
    /// # Errors
    /// No server of ButterFS answers there.
    pub fn of_mount(mountpoint: &Path) -> Result<Self, ServerError> {
        let mut value = vec![0; 1 << 16];
        let length = rustix::fs::getxattr(mountpoint, FACTS, &mut value[..])
            .map_err(|_| ServerError::NoVolume(mountpoint.to_owned()))?;
        value.truncate(length);
        serde_json::from_slice(&value).map_err(|error| ServerError::NotUnderstood {
            mount: mountpoint.to_owned(),
            error,
        })
    }
}

/// Makes the server of a mount set the error counters of its volume to zero.
///
/// # Errors
/// No server answers there, or none that this caller may use.
pub fn reset_stats(mountpoint: &Path) -> Result<(), ServerError> {
    tell(mountpoint, STATS, b"0")
}

/// Makes the server of a mount give its volume another label.
///
/// # Errors
/// No server answers there, or none that this caller may use; the label is too
/// long.
pub fn set_label(mountpoint: &Path, label: &[u8]) -> Result<(), ServerError> {
    tell(mountpoint, LABEL, label)
}

/// Sends a value to the server of a mount.
fn tell(path: &Path, what: &str, value: &[u8]) -> Result<(), ServerError> {
    let set = rustix::fs::setxattr(path, what, value, rustix::fs::XattrFlags::empty());
    match set {
        Err(rustix::io::Errno::OPNOTSUPP) => Err(ServerError::NoVolume(path.to_owned())),
        Err(rustix::io::Errno::PERM) => Err(ServerError::NotAllowed),
        Err(rustix::io::Errno::INVAL) => Err(ServerError::Label),
        set => set.at(path),
    }
}
