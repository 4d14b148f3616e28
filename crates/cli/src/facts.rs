//! Facts about a volume, and where they come from.
//!
//! Owns [`Facts`]: gathered from a volume that is open here, or asked from the
//! server that has it mounted. A server gives its facts as the value of an
//! extended attribute of the mount's root that no listing shows, and takes a
//! new label the same way.

use crate::fail::{Context, Done, Failure, fail};
use butterfs::{OpenOptions, Volume};
use butterfs_format::item::chunk::BlockGroupFlags;
use serde::{Deserialize, Serialize};
use std::path::Path;
use uuid::Uuid;

/// The attribute that holds a mount's facts, as JSON.
pub const FACTS: &str = "butterfs.facts";
/// The attribute that sets a mount's error counters to zero.
pub const STATS: &str = "butterfs.stats";
/// The attribute that sets a mount's label.
pub const LABEL: &str = "butterfs.label";

/// Space of one kind and profile, in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct KindFacts {
    pub kind: String,
    pub profile: String,
    pub total: u64,
    pub used: u64,
    /// On the device, all copies.
    pub device: u64,
}

/// Error counters of a device, by the names of `btrfs device stats`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct StatsFacts {
    pub write_io_errs: u64,
    pub read_io_errs: u64,
    pub flush_io_errs: u64,
    pub corruption_errs: u64,
    pub generation_errs: u64,
}

impl StatsFacts {
    const fn new(values: [u64; 5]) -> Self {
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

/// How a mount's requests come from the kernel.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct TransportFacts {
    /// `io_uring` or `/dev/fuse`.
    pub name: String,
    /// Bytes that the buffers of one thread hold at most.
    pub thread_buffers: u64,
    /// Threads at most.
    pub threads_max: u64,
    /// Nanoseconds that waking a thread on another CPU took, where measured.
    pub wake_up_ns: Option<u64>,
    /// CPU time, in milliseconds, that keeping CPUs awake has taken.
    pub awake_ms: u64,
}

/// What is known of a volume; sizes in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Facts {
    pub label: String,
    pub uuid: String,
    pub devices: u64,
    /// Of extents and nodes, each copy once.
    pub used: u64,
    pub device_id: u64,
    pub device_size: u64,
    pub device_allocated: u64,
    /// What is used on the device, copies counted.
    pub device_used: u64,
    pub device_unallocated: u64,
    pub free_estimated: u64,
    pub kinds: Vec<KindFacts>,
    pub device_stats: StatsFacts,
    /// Where it is mounted, the options in effect.
    pub options: Option<String>,
    /// Where it is mounted, how requests come and what that takes.
    pub transport: Option<TransportFacts>,
    /// Why nothing is written any more, where that is so.
    pub read_only_because: Option<String>,
}

fn kind_name(flags: BlockGroupFlags) -> String {
    // "Data+Metadata" where both are in one group.
    let names = [
        (BlockGroupFlags::DATA, "Data"),
        (BlockGroupFlags::SYSTEM, "System"),
        (BlockGroupFlags::METADATA, "Metadata"),
    ];
    let set = names.iter().filter(|(bit, _)| flags.contains(*bit));
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

impl Facts {
    /// Of a volume that is open here.
    pub fn of(volume: &Volume) -> Self {
        let usage = volume.usage();
        let engine = volume.store().read();
        let superblock = engine.superblock();
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
            device_stats: StatsFacts::new(engine.device_stats()),
            options: None,
            transport: None,
            read_only_because: volume.store().poison(),
        }
    }

    /// Of the volume in the file or device at `path`, or mounted there.
    pub fn at(path: &Path) -> Result<Self, Failure> {
        if !path.is_dir() {
            let volume = Volume::open(path, OpenOptions::read_only()).context(path.display())?;
            return Ok(Self::of(&volume));
        }
        let mut value = vec![0; 1 << 16];
        let length =
            rustix::fs::getxattr(path, FACTS, &mut value[..]).map_err(|_| not_a_mount(path))?;
        value.truncate(length);
        serde_json::from_slice(&value).context(path.display())
    }
}

fn not_a_mount(path: &Path) -> Failure {
    Failure(format!(
        "{}: no ButterFS volume is mounted here; name the mountpoint, or the file or device that holds a volume",
        path.display()
    ))
}

/// Sets the error counters of the volume at `path`, mounted or not, to zero.
pub fn reset_stats(path: &Path) -> Done {
    if path.is_dir() {
        return tell(path, STATS, b"0");
    }
    let volume = Volume::open(path, OpenOptions::default()).context(path.display())?;
    volume.reset_device_stats()?;
    volume.close().context(path.display())
}

/// Tells the server of a mount.
fn tell(path: &Path, what: &str, value: &[u8]) -> Done {
    let set = rustix::fs::setxattr(path, what, value, rustix::fs::XattrFlags::empty());
    match set {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => Err(not_a_mount(path)),
        Err(rustix::io::Errno::PERM) => fail("only root and the user who mounted may do this"),
        Err(rustix::io::Errno::INVAL) => fail("a label has at most 255 bytes and no NUL"),
        Err(error) => fail(format!("{}: {error}", path.display())),
    }
}

/// Gives the volume at `path`, mounted or not, another label.
pub fn set_label(path: &Path, label: &[u8]) -> Done {
    if path.is_dir() {
        return tell(path, LABEL, label);
    }
    let volume = Volume::open(path, OpenOptions::default()).context(path.display())?;
    volume.set_label(label)?;
    volume.close().context(path.display())
}
