//! Facts about a volume that the kernel has mounted, and changes that the
//! kernel can make to it.

use crate::error::{About, ServerError};
use crate::facts::{DeviceEntry, DeviceShare, Facts, KindFacts, StatsFacts, kind_name, slack};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use butterfs_kernel::{self as kernel, Counters, MountedDevice};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use uuid::Uuid;

/// The kernel's own reserve. It is not space of any kind.
const RESERVE: u64 = 1 << 49;

/// Bytes of a device in chunks of one kind and profile.
type Shares = BTreeMap<(DeviceId, u64), u64>;

impl Facts {
    /// Facts of the volume that the kernel has mounted at `path`, or above it.
    /// Only root can learn what chunks take of a device.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of_kernel(path: &Path) -> Result<Self, ServerError> {
        let file = File::open(path).at(path)?;
        let file = file.as_fd();
        let volume = kernel::mounted_volume(file).at(path)?;
        let shares = match shares(file) {
            Err(Errno::PERM) => None,
            found => Some(found.at(path)?),
        };
        let mut members = Vec::new();
        let mut stats = [0_u64; 5];
        for id in (1..=volume.last_device.get()).map(DeviceId) {
            let device = match kernel::mounted_device(file, id) {
                Err(Errno::NODEV) => continue,
                found => found.at(path)?,
            };
            let own = kernel::device_counters(file, id, Counters::Keep);
            let own = own.unwrap_or_default();
            for (sum, value) in stats.iter_mut().zip(own) {
                *sum = sum.saturating_add(value);
            }
            members.push(entry(device, own, shares.as_ref()));
        }
        let space = kernel::mounted_space(file).at(path)?;
        let kinds: Vec<KindFacts> = space
            .iter()
            .filter(|kind| kind.flags & RESERVE == 0)
            .map(|kind| {
                let flags = BlockGroupFlags(kind.flags);
                let all = shares.iter().flatten();
                let own = all.filter(|((_, of), _)| *of == kind.flags);
                let device = match &shares {
                    Some(_) => own.map(|(_, bytes)| bytes).sum(),
                    None => kind.total.saturating_mul(copies(flags)),
                };
                KindFacts {
                    kind: kind_name(flags),
                    profile: flags.profile_name().to_owned(),
                    total: kind.total,
                    used: kind.used,
                    device,
                }
            })
            .collect();
        let reserve = space.iter().find(|kind| kind.flags & RESERVE != 0);
        let sum = |of: fn(&DeviceEntry) -> u64| members.iter().map(of).sum::<u64>();
        let (size, allocated) = (sum(|one| one.size), sum(|one| one.allocated));
        let on_devices = |kind: &KindFacts| match kind.total {
            0 => 0,
            total => (u128::from(kind.used) * u128::from(kind.device) / u128::from(total)) as u64,
        };
        let free = rustix::fs::statvfs(path).at(path)?;
        let label = kernel::label(file).at(path)?;
        Ok(Self {
            label: String::from_utf8_lossy(&label).into_owned(),
            uuid: Uuid::from_bytes(volume.fsid).to_string(),
            devices: volume.devices,
            used: kinds.iter().map(|kind| kind.used).sum(),
            device_id: members.first().map_or(1, |one| one.id),
            device_size: size,
            device_allocated: allocated,
            device_used: kinds.iter().map(on_devices).sum(),
            device_unallocated: size.saturating_sub(allocated),
            free_estimated: free.f_bavail.saturating_mul(free.f_frsize),
            kinds,
            reserve: reserve.map(|kind| (kind.total, kind.used)),
            device_stats: StatsFacts::new(stats),
            members,
            options: None,
            transport: None,
            read_only_because: None,
        })
    }
}

/// Sets the error counters of a volume that the kernel has mounted to zero.
///
/// # Errors
/// The kernel's error: only root may do this.
pub fn reset_stats(path: &Path) -> Result<(), ServerError> {
    let file = File::open(path).at(path)?;
    let volume = kernel::mounted_volume(file.as_fd()).at(path)?;
    for id in (1..=volume.last_device.get()).map(DeviceId) {
        match kernel::device_counters(file.as_fd(), id, Counters::Reset) {
            Err(Errno::NODEV) => {}
            done => done.map(drop).at(path)?,
        }
    }
    Ok(())
}

/// Gives a volume that the kernel has mounted another label.
///
/// # Errors
/// The kernel's error: only root may do this; the label is too long.
pub fn set_label(path: &Path, label: &[u8]) -> Result<(), ServerError> {
    let file = File::open(path).at(path)?;
    match kernel::set_label(file.as_fd(), label) {
        Err(Errno::INVAL) => Err(ServerError::Label),
        Err(Errno::PERM) => Err(ServerError::NotAllowed),
        set => set.at(path),
    }
}

fn entry(device: MountedDevice, stats: [u64; 5], shares: Option<&Shares>) -> DeviceEntry {
    let path = String::from_utf8_lossy(&device.path).into_owned();
    let own = shares.into_iter().flatten();
    let own = own.filter(|((id, _), _)| *id == device.id);
    let is_there = !path.is_empty();
    let slack = match is_there {
        true => slack(Some(Path::new(&path)), device.size),
        false => 0,
    };
    DeviceEntry {
        id: device.id.get(),
        uuid: Uuid::from_bytes(device.uuid).to_string(),
        size: device.size,
        allocated: device.allocated,
        state: if is_there { "present" } else { "missing" }.to_owned(),
        path: is_there.then_some(path),
        slack,
        stats: StatsFacts::new(stats),
        chunks: own
            .map(|((_, flags), bytes)| {
                let flags = BlockGroupFlags(*flags);
                DeviceShare {
                    kind: kind_name(flags),
                    profile: flags.profile_name().to_owned(),
                    bytes: *bytes,
                }
            })
            .collect(),
    }
}

/// What chunks take of each device. Only for root.
fn shares(file: BorrowedFd<'_>) -> Result<Shares, Errno> {
    let search = |tree, first, last, kind| -> Result<Vec<_>, Errno> {
        let range = (Key::new(first, kind, 0), Key::new(last, kind, u64::MAX));
        let mut found = kernel::search_tree(file, tree, range)?;
        found.retain(|(key, _)| key.item_type == kind);
        Ok(found)
    };
    let (object, kind) = (Chunk::OBJECT, ItemType::CHUNK_ITEM);
    let mut flags = BTreeMap::new();
    for (key, data) in search(TreeId::CHUNK, object, object, kind)? {
        let chunk = Chunk::parse(&data).map_err(|_| Errno::IO)?;
        flags.insert(Logical(key.offset), chunk.flags.0);
    }
    let mut shares = Shares::new();
    for (key, data) in search(TreeId::DEVICE, 1, u64::MAX, ItemType::DEV_EXTENT)? {
        let extent = DeviceExtent::parse(&data).map_err(|_| Errno::IO)?;
        // A chunk that was made between the two searches is left out.
        if let Some(flags) = flags.get(&extent.chunk) {
            let share = shares.entry((DeviceId(key.objectid), *flags));
            *share.or_default() += extent.length;
        }
    }
    Ok(shares)
}

/// Copies of each byte; parity is left out.
fn copies(flags: BlockGroupFlags) -> u64 {
    let with = [
        (BlockGroupFlags::RAID1C4, 4),
        (BlockGroupFlags::RAID1C3, 3),
        (BlockGroupFlags::RAID1, 2),
        (BlockGroupFlags::RAID10, 2),
        (BlockGroupFlags::DUP, 2),
    ];
    let found = with.iter().find(|(flag, _)| flags.contains(*flag));
    found.map_or(1, |(_, copies)| *copies)
}
