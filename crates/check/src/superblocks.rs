//! Superblocks and their copies.

use crate::code::FaultCode;
use crate::error::{CheckError, DevicesFault};
use crate::report::{Collector, Place};
use butterfs_device::{BlockDevice, DeviceError};
use butterfs_format::features::Incompat;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{COPIES, LABEL_SIZE, SIZE, SuperFlags, Superblock};
use butterfs_format::{DeviceId, DeviceOffset, ParseError};
use std::sync::Arc;
use thiserror::Error;

/// Features that the check knows. The code for each tree checks what they add
/// there.
const KNOWN: Incompat = Incompat::SUPPORTED;
/// Number of the directory in the tree of roots.
const ROOT_DIR: u64 = 6;

/// Flags of a volume that has the metadata of another one, and no data.
pub(crate) const METADUMP: SuperFlags =
    SuperFlags(SuperFlags::METADUMP.0 | SuperFlags::METADUMP_V2.0);

/// Which copy of the superblock of a device a check begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The primary copy, but a much newer one before it.
    Newest,
    /// The primary copy if it is whole.
    Primary,
    /// This one, counted from 0.
    Number(usize),
}

/// The devices that were given.
pub(crate) struct Given {
    /// A whole primary copy was passed over for a newer one.
    pub(crate) passes_over_primary: bool,
    /// Devices of the volume. The superblock of the first is the volume's.
    pub(crate) members: Vec<Member>,
    /// Devices of other volumes, from which this one may have grown.
    pub(crate) seeds: Vec<Member>,
    /// Devices of the volume that lack what was written since they were away.
    /// They are looked at as little as missing ones.
    pub(crate) stale: Vec<DeviceId>,
}

/// A device with its superblock.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its whole primary copy was passed over for a newer one.
    passes_over_primary: bool,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) superblock: Superblock,
}

/// Why a copy of the superblock cannot be used.
#[derive(Debug, Error)]
enum CopyFault {
    /// It cannot be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It is damaged.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

fn size() -> u64 {
    u64::try_from(SIZE).unwrap_or(u64::MAX)
}

fn read(device: &dyn BlockDevice, offset: DeviceOffset) -> Result<Superblock, CopyFault> {
    let mut bytes = vec![0; SIZE];
    device.read_at(offset, &mut bytes)?;
    Ok(Superblock::parse(&bytes, offset)?)
}

/// Reads the superblock of a device and compares its copies.
///
/// # Errors
/// [`CheckError::NoSuperblock`] if no copy is good, or if the wanted one is not.
fn member(
    device: Arc<dyn BlockDevice>,
    wanted: Wanted,
    faults: &Collector,
) -> Result<Member, CheckError> {
    let copies: Vec<(DeviceOffset, Result<Superblock, CopyFault>)> = COPIES
        .into_iter()
        .filter(|offset| offset.saturating_add(size()).get() <= device.size())
        .map(|offset| (offset, read(&*device, offset)))
        .collect();
    let good = copies.iter().enumerate().filter_map(|(index, (_, copy))| {
        let fits = match wanted {
            Wanted::Number(number) => number == index,
            Wanted::Newest | Wanted::Primary => true,
        };
        copy.as_ref().ok().filter(|_| fits)
    });
    // Writers write the primary copy first. If it is bad, the newest other copy
    // is used. If it is more than a commit older than another copy, it was put
    // back, or the device lost writes.
    let primary = copies.first().and_then(|(_, copy)| copy.as_ref().ok());
    let chosen = match (primary, wanted) {
        (Some(primary), Wanted::Primary) => Some(primary),
        (Some(primary), Wanted::Newest) => {
            let good = copies.iter().filter_map(|(_, copy)| copy.as_ref().ok());
            let newer = good.filter(|copy| is_much_newer(copy, primary));
            newer.max_by_key(|copy| copy.generation).or(Some(primary))
        }
        _ => good.max_by_key(|copy| copy.generation),
    };
    let Some(chosen) = chosen.cloned() else {
        let bad = copies.iter().filter_map(|(offset, copy)| {
            let reason = copy.as_ref().err()?;
            Some(format!("copy at {offset}: {reason}"))
        });
        let reason: Vec<String> = bad.collect();
        return Err(CheckError::NoSuperblock {
            device: device.identity(),
            reason: if reason.is_empty() {
                "it is too small".to_owned()
            } else {
                reason.join("; ")
            },
        });
    };
    // A program that restores a metadump writes only the first copy.
    let compared = if chosen.flags.intersects(METADUMP) {
        &[]
    } else {
        &*copies
    };
    for (offset, copy) in compared {
        compare(&*device, &chosen, *offset, copy, faults);
    }
    Ok(Member {
        passes_over_primary: primary.is_some() && wanted == Wanted::Newest && {
            chosen.own_offset != COPIES[0]
        },
        device,
        superblock: chosen,
    })
}

/// Whether a copy is of the same device as the primary one, and newer by more
/// than the commit that a crash of the kernel may leave in it alone.
fn is_much_newer(copy: &Superblock, primary: &Superblock) -> bool {
    let ahead = copy
        .generation
        .get()
        .saturating_sub(primary.generation.get());
    let end = copy.own_offset.saturating_add(size()).get();
    ahead > 1
        && !primary.flags.intersects(METADUMP)
        && copy.fsid == primary.fsid
        && copy.device.uuid == primary.device.uuid
        && end <= primary.device.total_bytes
}

fn compare(
    device: &dyn BlockDevice,
    chosen: &Superblock,
    offset: DeviceOffset,
    copy: &Result<Superblock, CopyFault>,
    faults: &Collector,
) {
    // No copy is written beyond the end of the volume.
    if offset.saturating_add(size()).get() >= chosen.device.total_bytes {
        return;
    }
    let fault = |code, text: String| {
        let text = format!(
            "the copy at offset {offset} of {} {text}",
            device.identity()
        );
        faults.add(code, Place::default(), text);
    };
    let copy = match copy {
        Ok(copy) => copy,
        Err(reason) => {
            return fault(
                FaultCode::SuperblockCopyInvalid,
                format!("is damaged: {reason}"),
            );
        }
    };
    if copy.fsid != chosen.fsid || copy.device.id != chosen.device.id {
        return fault(
            FaultCode::SuperblockCopyInvalid,
            "belongs to another volume or device".to_owned(),
        );
    }
    let (a, b) = (copy.generation.get(), chosen.generation.get());
    // A commit that was interrupted may leave a copy one generation behind.
    if a.abs_diff(b) > 1 {
        let text = format!("is of generation {a} instead of {b}");
        return fault(FaultCode::SuperblockCopyStale, text);
    }
    // An fsync writes the log's root only into the primary copy, so copies of
    // one generation may differ in that.
    let content = |copy: &Superblock| {
        (
            copy.root,
            copy.chunk_root,
            copy.bytes_used,
            copy.total_bytes,
        )
    };
    if a == b && content(copy) != content(chosen) {
        let text = "differs from the others of its generation".to_owned();
        fault(FaultCode::SuperblockCopyInvalid, text);
    }
}

/// Leaves out devices that are not in the volume any more, or not yet: the
/// older of two with the same number, and those beyond the volume's number of
/// devices. Opening a volume for use does the same.
fn leave_out_former(members: &mut Vec<Member>, first: &Superblock) {
    let is_own = |member: &Member| member.superblock.fsid == first.fsid;
    let mut kept: Vec<Member> = Vec::new();
    for member in std::mem::take(members) {
        let own = &member.superblock;
        let newer = kept.iter().any(|other| {
            let other = &other.superblock;
            (other.fsid, other.device.id) == (own.fsid, own.device.id)
                && other.generation > own.generation
        });
        if !newer {
            kept.push(member);
        }
    }
    let most = usize::try_from(first.num_devices).unwrap_or(usize::MAX);
    while kept.len() > most && kept.iter().all(is_own) {
        kept.pop();
    }
    *members = kept;
}

/// Reads the superblocks of all devices of a volume.
///
/// # Errors
/// [`CheckError::NoSuperblock`] if a device has no good superblock,
/// [`CheckError::Devices`] if the devices do not form a volume, and
/// [`CheckError::Unsupported`] if the volume uses unknown features.
pub(crate) fn open(
    devices: Vec<Arc<dyn BlockDevice>>,
    wanted: Wanted,
    faults: &Collector,
) -> Result<Given, CheckError> {
    let mut members = Vec::new();
    for device in devices {
        members.push(member(device, wanted, faults)?);
    }
    let passes_over_primary = members.iter().any(|member| member.passes_over_primary);
    // The newest superblock is the volume's. A seed comes last, whatever its
    // generation.
    let is_seeding = |member: &Member| member.superblock.flags.contains(SuperFlags::SEEDING);
    members.sort_by_key(|member| {
        let own = &member.superblock;
        let newest_first = std::cmp::Reverse(own.generation);
        (is_seeding(member), newest_first, own.device.id)
    });
    // The target of the kernel's replacement of a device is no part of the
    // volume yet. If no other device is given, it is checked as if it were.
    let is_target = |member: &Member| member.superblock.device.id == DeviceId::REPLACEMENT;
    if !members.iter().all(is_target) {
        members.retain(|member| !is_target(member));
    }
    let Some(first) = members.first().map(|member| member.superblock.clone()) else {
        return Err(CheckError::Devices(DevicesFault::None));
    };
    let is_seed = |member: &Member| is_seeding(member) && member.superblock.fsid != first.fsid;
    let (seeds, mut members) = members.into_iter().partition(is_seed);
    leave_out_former(&mut members, &first);
    let mut seen: Vec<(DeviceId, String)> = Vec::new();
    for member in &members {
        let own = &member.superblock;
        if own.fsid != first.fsid {
            let device = member.device.identity();
            return Err(CheckError::Devices(DevicesFault::OtherVolume(device)));
        }
        let name = member.device.identity();
        if let Some((id, other)) = seen.iter().find(|(id, _)| *id == own.device.id) {
            return Err(CheckError::Devices(DevicesFault::Twice {
                id: *id,
                names: [other.clone(), name],
            }));
        }
        seen.push((own.device.id, name));
        let (newest, generation) = (first.generation.get(), own.generation.get());
        if !is_current(member, newest) {
            let text = format!(
                "{} is of generation {generation}, others of {newest}; it lacks what was written \
                 since",
                member.device.identity()
            );
            faults.add(FaultCode::SuperblockCopyStale, Place::default(), text);
        }
        let trees = |one: &Superblock| (one.root, one.chunk_root, one.bytes_used);
        if newest == generation && trees(own) != trees(&first) {
            let text = format!(
                "{} names other trees of generation {generation} than the first device: each was \
                 changed without the other; go on with one of them (-o degraded), and replace the \
                 other",
                member.device.identity()
            );
            faults.add(FaultCode::SuperblocksDiffer, Place::default(), text);
        }
        if let Some(text) = cut_short(&*member.device, &own.device) {
            faults.add(FaultCode::DeviceSize, Place::default(), text);
        }
    }
    let unknown = first.incompat.without(KNOWN);
    if !unknown.is_empty() {
        return Err(CheckError::Unsupported(unknown));
    }
    fields(&first, faults);
    let newest = first.generation.get();
    let (members, stale): (Vec<_>, Vec<_>) = members
        .into_iter()
        .partition(|member| is_current(member, newest));
    let stale = stale.iter().map(|member| member.superblock.device.id);
    Ok(Given {
        passes_over_primary,
        members,
        seeds,
        stale: stale.collect(),
    })
}

/// Whether a device has the volume's last state. A crash between the superblocks
/// of two devices leaves one of them a generation behind.
fn is_current(member: &Member, newest: u64) -> bool {
    newest.saturating_sub(member.superblock.generation.get()) <= 1
}

/// What is wrong with a device that is smaller than its item says.
pub(crate) fn cut_short(device: &dyn BlockDevice, item: &DeviceItem) -> Option<String> {
    let (size, wanted) = (device.size(), item.total_bytes);
    (size < wanted).then(|| {
        let name = device.identity();
        format!("{name} has {size} bytes; the volume uses {wanted} of it")
    })
}

fn fields(superblock: &Superblock, faults: &Collector) {
    let fault = |text: String| faults.add(FaultCode::SuperblockField, Place::default(), text);
    let refused = superblock.flags.without(SuperFlags::SUPPORTED);
    if !refused.is_empty() {
        fault(format!(
            "its flags ({}) keep it from being mounted; a change that was cut short leaves such \
             flags, and `butterfs tune` or btrfstune finishes it",
            refused.names().join(", ")
        ));
    }
    if superblock.root_dir != ROOT_DIR {
        fault(format!("its root directory is {}", superblock.root_dir));
    }
    if superblock.chunk_root_generation > superblock.generation {
        fault("its chunk tree is newer than itself".to_owned());
    }
    if superblock.label.len() >= LABEL_SIZE {
        fault("its label does not end with a zero byte".to_owned());
    }
    // Old versions of mkfs wrote 4096 for every sector size.
    if ![4096, superblock.sector_size].contains(&superblock.stripe_size) {
        fault(format!(
            "its stripes have {} bytes, its sectors {}",
            superblock.stripe_size, superblock.sector_size
        ));
    }
    if superblock.bytes_used > superblock.total_bytes {
        fault(format!(
            "{} of {} bytes are used",
            superblock.bytes_used, superblock.total_bytes
        ));
    }
}
