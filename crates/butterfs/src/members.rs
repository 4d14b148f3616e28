//! Finding the devices of volumes.
//!
//! Owns looking for superblocks in files, directories and block devices.
//! Looking writes nothing. Whether devices can be used together is decided when
//! the volume is opened.
//!
//! Invariant: a device whose first superblock is damaged can be a member by
//! another copy. It is one only if the volume would otherwise lack a device,
//! and if no other known content lies on the device. Such copies survive when
//! something else is made on the device.
//!
//! Bounds: only the first entries of a directory are looked at, and no
//! directories below it.

use crate::overlaid::{is_overlay, only_overlay, open_overlay};
use crate::{DirectIo, Error};
use butterfs_device::{Access, BlockDevice, DeviceError, FileDevice, probe};
use butterfs_format::superblock::{COPIES, SIZE, SuperFlags, Superblock};
use butterfs_format::{DeviceId, DeviceOffset, Generation, UuidBytes};
use butterfs_store::{MemberFault, OnReplacement, StoreError};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4096;

/// A device of a volume, as its superblock describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Where it is.
    pub path: PathBuf,
    /// Its number in the volume.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: UuidBytes,
    /// Its size in the volume, in bytes.
    pub size: u64,
    /// Bytes of it that chunks take.
    pub allocated: u64,
    /// Generation of its last commit.
    pub generation: Generation,
    /// Its first superblock is damaged. This is another copy.
    pub is_first_damaged: bool,
}

/// A volume, and those of its devices that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVolume {
    /// Its UUID.
    pub fsid: UuidBytes,
    /// Its label.
    pub label: Vec<u8>,
    /// Bytes of its extents and nodes.
    pub used: u64,
    /// How many devices it has.
    pub total: u64,
    /// Those that were found, by their numbers.
    pub devices: Vec<FoundDevice>,
}

impl FoundVolume {
    /// Whether every device of the volume was found.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let ids: BTreeSet<DeviceId> = self.devices.iter().map(|device| device.id).collect();
        ids.len() as u64 >= self.total
    }

    /// Leaves out devices with a damaged first superblock that cannot be one of
    /// the missing ones.
    fn forget_remains(&mut self) {
        let good = self
            .devices
            .iter()
            .filter(|device| !device.is_first_damaged);
        let good: BTreeSet<DeviceId> = good.map(|device| device.id).collect();
        let is_whole = good.len() as u64 >= self.total;
        self.devices
            .retain(|device| !device.is_first_damaged || (!is_whole && !good.contains(&device.id)));
    }
}

/// A superblock and where it is.
struct Found {
    path: PathBuf,
    superblock: Superblock,
    /// It is not the first copy: that one is damaged.
    is_first_damaged: bool,
}

/// Equal for the same file or block device, whatever its name.
fn identity(facts: &Metadata) -> (u64, u64) {
    match facts.file_type().is_block_device() {
        true => (0, facts.rdev()),
        false => (facts.dev().saturating_add(1), facts.ino()),
    }
}

/// The superblock at a path; `None` where there is none. A page of an overlay
/// can look like one.
fn look(path: &Path) -> Option<Found> {
    let facts = path.metadata().ok()?;
    if !facts.is_file() && !facts.file_type().is_block_device() || is_overlay(path) {
        // Opening a pipe would wait for somebody.
        return None;
    }
    let file = File::open(path).ok()?;
    let read = |offset: DeviceOffset| {
        let mut bytes = vec![0; SIZE];
        file.read_exact_at(&mut bytes, offset.get()).ok()?;
        Superblock::parse(&bytes, offset).ok()
    };
    let [first, others @ ..] = COPIES;
    let primary = read(first);
    let is_first_damaged = primary.is_none();
    let newest = || {
        let others = others.into_iter().filter_map(read);
        let newest = others.max_by_key(|copy| copy.generation)?;
        is_nothing_else(path).then_some(newest)
    };
    Some(Found {
        path: path.to_owned(),
        superblock: primary.or_else(newest)?,
        is_first_damaged,
    })
}

/// Whether nothing but Btrfs is known to lie on a device. This process may have
/// locked it already.
fn is_nothing_else(path: &Path) -> bool {
    let device = FileDevice::open_unlocked(path);
    let contents = device.and_then(|device| probe::contents(&device));
    let is_ours = |found: &probe::Found| *found == probe::Found::FileSystem("btrfs");
    contents.is_ok_and(|found| found.iter().all(is_ours))
}

/// Files of a directory.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let paths = entries
        .flatten()
        .take(ENTRIES_MAX)
        .map(|entry| entry.path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Block devices of this machine: disks, partitions, loop devices.
fn block_devices() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().nth(3));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

fn look_at(paths: Vec<PathBuf>) -> Vec<Found> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for path in paths {
        let Ok(facts) = path.metadata() else {
            continue;
        };
        if seen.insert(identity(&facts)) {
            found.extend(look(&path));
        }
    }
    found
}

/// Volumes in files, block devices, and the files of directories. Without any
/// path, in all block devices that may be read.
#[must_use]
pub fn scan(paths: &[PathBuf]) -> Vec<FoundVolume> {
    let mut all = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => all.extend(files_in(path)),
            false => all.push(path.clone()),
        }
    }
    if paths.is_empty() {
        all = block_devices();
    }
    let mut volumes: Vec<FoundVolume> = Vec::new();
    let mut newest: Vec<Generation> = Vec::new();
    for found in look_at(all) {
        let Found {
            path,
            superblock,
            is_first_damaged,
        } = found;
        let device = FoundDevice {
            path,
            id: superblock.device.id,
            uuid: superblock.device.uuid,
            size: superblock.device.total_bytes,
            allocated: superblock.device.bytes_used,
            generation: superblock.generation,
            is_first_damaged,
        };
        let known = volumes.iter().position(|v| v.fsid == superblock.fsid);
        let index = known.unwrap_or_else(|| {
            volumes.push(FoundVolume {
                fsid: superblock.fsid,
                label: Vec::new(),
                used: 0,
                total: 0,
                devices: Vec::new(),
            });
            newest.push(Generation(0));
            volumes.len() - 1
        });
        let volume = &mut volumes[index];
        if superblock.generation >= newest[index] {
            newest[index] = superblock.generation;
            volume.label = superblock.label;
            volume.used = superblock.bytes_used;
            volume.total = superblock.num_devices;
        }
        volume.devices.push(device);
    }
    for volume in &mut volumes {
        volume.forget_remains();
        volume
            .devices
            .sort_by(|a, b| (a.id, &a.path).cmp(&(b.id, &b.path)));
    }
    volumes.retain(|volume| !volume.devices.is_empty());
    volumes
}

/// Whether two superblocks with different UUIDs may belong to one volume whose
/// UUID is being changed: they agree in everything that no such change touches.
fn changed_apart(one: &Superblock, other: &Superblock) -> bool {
    let is_changing = |of: &Superblock| of.flags.intersects(SuperFlags::CHANGING);
    let generations = one.generation.get().abs_diff(other.generation.get());
    is_changing(one)
        && is_changing(other)
        && generations <= 1
        && one.num_devices == other.num_devices
        && one.total_bytes == other.total_bytes
        && one.label == other.label
}

/// The devices of the volume to which `path` belongs, `path` itself first. For
/// a file, they are looked for among the files of its directory; for a block
/// device, among all block devices. What cannot be found is missing from the
/// list.
#[must_use]
pub fn find_members(path: &Path) -> Vec<PathBuf> {
    find(path, OnReplacement::Refuse).members
}

/// As [`find_members`], for a volume that is used.
///
/// # Errors
/// [`MemberFault::OlderCopy`] if a newer state of the device at `path` lies
/// beside it. The other devices go with that one.
pub fn find_members_to_use(
    path: &Path,
    on_replacement: OnReplacement,
) -> Result<Vec<PathBuf>, Error> {
    let beside = find(path, on_replacement);
    let Some((id, newer)) = beside.newer else {
        return Ok(beside.members);
    };
    Err(StoreError::from(MemberFault::OlderCopy {
        device: path.display().to_string(),
        id,
        newer: newer.display().to_string(),
    })
    .into())
}

/// What lies beside a device.
struct Beside {
    /// The devices of the volume, that device first.
    members: Vec<PathBuf>,
    /// The same device in a newer state, and its number.
    newer: Option<(DeviceId, PathBuf)>,
}

/// Looks for the devices of a volume. If an interrupted replacement of a device
/// is to be ended, it looks for its target also if the volume has only one
/// device.
fn find(path: &Path, on_replacement: OnReplacement) -> Beside {
    let mut members = vec![path.to_owned()];
    let has_others = |own: &Superblock| {
        on_replacement == OnReplacement::Cancel
            || own.num_devices > 1
            || own.device.id == DeviceId::REPLACEMENT
    };
    let own = look(path).map(|found| found.superblock).filter(has_others);
    let (Some(own), Ok(facts)) = (own, path.metadata()) else {
        return Beside {
            members,
            newer: None,
        };
    };
    let places = if facts.is_file() {
        let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        absolute.parent().map(files_in).unwrap_or_default()
    } else {
        block_devices()
    };
    // A user who named a device means it, and not a copy of it.
    let is_other = |found: &Found| {
        let other = &found.superblock;
        let is_of_volume = other.fsid == own.fsid || changed_apart(&own, other);
        is_of_volume && other.device.id != own.device.id
    };
    // The device itself may have been written since it was looked at.
    let is_itself = |other: &Path| {
        let other = other.metadata();
        other.is_ok_and(|other| identity(&other) == identity(&facts))
    };
    let is_newer = |found: &&Found| {
        let other = &found.superblock;
        let place = |of: &Superblock| (of.fsid, of.device.id);
        own.num_devices > 1
            && place(other) == place(&own)
            && other.generation > own.generation
            && !found.is_first_damaged
            && !is_itself(&found.path)
    };
    let found = look_at(places);
    let newer = found.iter().filter(is_newer);
    let newer = newer.max_by_key(|found| found.superblock.generation);
    let newer = newer.map(|found| (own.device.id, found.path.clone()));
    let (others, strange): (Vec<Found>, Vec<Found>) = found.into_iter().partition(is_other);
    let (damaged, good): (Vec<Found>, Vec<Found>) =
        others.into_iter().partition(|found| found.is_first_damaged);
    let mut ids: BTreeSet<DeviceId> = BTreeSet::from([own.device.id]);
    ids.extend(good.iter().map(|found| found.superblock.device.id));
    // The target of a replacement is not counted.
    ids.remove(&DeviceId::REPLACEMENT);
    members.extend(good.into_iter().map(|found| found.path));
    if (ids.len() as u64) < own.num_devices {
        // The volume may have grown from a seed; the trees say from which.
        let seeds = strange.into_iter().filter(|found| {
            let other = &found.superblock;
            let is_seed = other.flags.contains(SuperFlags::SEEDING) && other.fsid != own.fsid;
            is_seed && !found.is_first_damaged && !ids.contains(&other.device.id)
        });
        members.extend(seeds.map(|found| found.path));
        // Opening says which superblock it uses.
        let missing = damaged
            .into_iter()
            .filter(|found| !ids.contains(&found.superblock.device.id));
        members.extend(missing.map(|found| found.path));
    }
    Beside { members, newer }
}

/// Whether a device belongs to a seed: a volume that others grow from.
pub(crate) fn is_seed(path: &Path) -> bool {
    let found = look(path);
    found.is_some_and(|found| found.superblock.flags.contains(SuperFlags::SEEDING))
}

/// Opens the files and block devices at `paths`. Seeds of a volume that grew
/// from them are only read: several volumes may have one seed.
pub(crate) fn open<P: AsRef<Path>>(
    paths: &[P],
    access: Access,
) -> Result<Vec<Arc<dyn BlockDevice>>, Error> {
    open_as(paths, (access, DirectIo::Unused))
}

/// [`open`], by direct I/O if that is preferred and possible.
pub(crate) fn open_as<P: AsRef<Path>>(
    paths: &[P],
    (access, direct): (Access, DirectIo),
) -> Result<Vec<Arc<dyn BlockDevice>>, Error> {
    if let Some(overlay) = only_overlay(paths)? {
        return open_overlay(overlay, access);
    }
    let seeds: Vec<bool> = match paths.len() {
        1 => vec![false],
        _ => paths.iter().map(|path| is_seed(path.as_ref())).collect(),
    };
    let has_others = seeds.contains(&false);
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for (path, is_seed) in paths.iter().zip(seeds) {
        let access = match is_seed && has_others {
            true => Access::ReadOnly,
            false => access,
        };
        devices.push(Arc::new(open_to_use(path.as_ref(), (access, direct))?));
    }
    Ok(devices)
}

/// Opens a file or block device for a volume. What is only read goes through
/// the page cache in any case, where it stays for the next one who reads it.
///
/// # Errors
/// As [`FileDevice::open`].
pub(crate) fn open_to_use(
    path: &Path,
    (access, direct): (Access, DirectIo),
) -> Result<FileDevice, DeviceError> {
    match (access, direct) {
        (Access::ReadWrite, DirectIo::Preferred) => FileDevice::open_durable(path, access),
        _ => FileDevice::open(path, access),
    }
}
