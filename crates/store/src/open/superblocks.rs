//! The copies of a superblock on one device, and which of them counts.
//!
//! Writers write the primary copy first. When it is durable the mirrors follow.
//! So the primary copy counts if it is whole. There are two exceptions, in which
//! the newest mirror counts. If the primary is damaged, a crash tore it, or it
//! rotted. If a mirror is newer by more than one commit, the device lost writes
//! that it had called durable, or somebody put an old primary back. But if what
//! that mirror names is damaged, a whole primary counts: a wrong number in a mirror
//! must not hide it.
//!
//! A mirror that is newer by one commit does not count: a crash of the kernel
//! leaves such a one, because the kernel writes all copies at the same time. Its
//! commit was not acknowledged, and later ones may have used its space.

use crate::error::StoreError;
use butterfs_device::BlockDevice;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{self, SuperFlags, Superblock};
use butterfs_format::{DeviceOffset, Generation, ParseError};

/// A superblock as it was found on a device.
#[derive(Debug)]
pub struct FoundSuperblock {
    /// The copy that counts.
    pub superblock: Superblock,
    /// Why copies that come before it do not.
    pub damaged: Vec<String>,
    /// The generation that a damaged primary copy seems to have.
    pub(super) claimed: Option<Generation>,
    /// A mirror that is newer than the copy that counts.
    pub(super) newer: Option<Box<Superblock>>,
    /// The generation of a whole primary copy that is older than the mirror that
    /// counts.
    pub(super) older: Option<Generation>,
}

/// Which copy counts if a mirror is newer than the primary copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preferred {
    /// The primary copy, if the mirror is newer by one commit only.
    Primary,
    /// The mirror, because what the primary names is damaged.
    Newest,
    /// The primary copy, because what the mirror names is damaged.
    WholePrimary,
}

/// One copy as it was read.
struct Copy {
    offset: DeviceOffset,
    parsed: Result<Superblock, String>,
    /// It, unverified.
    unverified: Result<Superblock, ParseError>,
}

fn read_copies(device: &dyn BlockDevice) -> Vec<Copy> {
    let fits = |offset: &DeviceOffset| {
        offset.saturating_add(superblock::SIZE as u64).get() <= device.size()
    };
    let read = |offset: DeviceOffset| {
        let mut bytes = vec![0; superblock::SIZE];
        let parsed = device
            .read_at(offset, &mut bytes)
            .map_err(|error| error.to_string())
            .and_then(|()| Superblock::parse(&bytes, offset).map_err(|e| e.to_string()));
        Copy {
            offset,
            parsed,
            unverified: Superblock::parse_unverified(&bytes),
        }
    };
    superblock::COPIES
        .into_iter()
        .filter(fits)
        .map(read)
        .collect()
}

/// Reads the superblock of a device: the copy that counts.
///
/// # Errors
/// [`StoreError::NoSuperblock`]
pub fn read_superblock(device: &dyn BlockDevice) -> Result<FoundSuperblock, StoreError> {
    read_preferred(device, Preferred::Primary)
}

pub(super) fn read_preferred(
    device: &dyn BlockDevice,
    preferred: Preferred,
) -> Result<FoundSuperblock, StoreError> {
    let copies = read_copies(device);
    let primary = copies.first().and_then(|copy| copy.parsed.as_ref().ok());
    match primary {
        Some(primary) => Ok(by_primary(device, primary, &copies, preferred)),
        None => by_mirror(device, &copies),
    }
}

/// The copy that counts on a device whose primary copy is whole.
fn by_primary(
    device: &dyn BlockDevice,
    primary: &Superblock,
    copies: &[Copy],
    preferred: Preferred,
) -> FoundSuperblock {
    // A program that restores the metadata of a volume writes only this copy.
    let metadump = SuperFlags::METADUMP | SuperFlags::METADUMP_V2;
    let is_restored = primary.flags.intersects(metadump);
    let is_newer = |copy: &&Superblock| {
        copy.generation > primary.generation
            && !is_restored
            && copy.fsid == primary.fsid
            && copy.device.uuid == primary.device.uuid
            && has_room(device, &primary.device, copy.own_offset)
    };
    let mirrors = copies.iter().filter_map(|copy| copy.parsed.as_ref().ok());
    let newest = mirrors.filter(is_newer).max_by_key(|copy| copy.generation);
    let ahead = newest.map_or(0, |newest| {
        newest.generation.get() - primary.generation.get()
    });
    let counts = match preferred {
        Preferred::Primary => ahead > 1,
        Preferred::Newest => true,
        Preferred::WholePrimary => false,
    };
    match newest {
        Some(newest) if counts => {
            let damaged = format!(
                "copy at {}: it is of generation {}, the one at {} of {}",
                primary.own_offset, primary.generation, newest.own_offset, newest.generation
            );
            tracing::warn!(
                device = device.identity(),
                damaged,
                "the primary superblock is older than a mirror, which is used"
            );
            FoundSuperblock {
                damaged: vec![damaged],
                older: Some(primary.generation),
                ..FoundSuperblock::only(newest.clone())
            }
        }
        newest => FoundSuperblock {
            newer: newest.cloned().map(Box::new),
            ..FoundSuperblock::only(primary.clone())
        },
    }
}

/// The generation that a damaged copy seems to have. One number may be what
/// rotted, so two must say it: a commit writes its generation into the copy and
/// into one of its backup roots. If they differ, the second highest counts.
fn claimed_generation(copy: &Superblock) -> Option<Generation> {
    let backups = copy.backup_roots.iter();
    let mut all: Vec<_> = backups.map(|root| root.tree_root.generation).collect();
    if all.contains(&copy.generation) {
        return Some(copy.generation);
    }
    all.push(copy.generation);
    all.sort_unstable();
    let claimed = all.into_iter().rev().nth(1);
    claimed.filter(|generation| generation.get() > 0)
}

/// The newest mirror of a device whose primary copy is damaged.
fn by_mirror(device: &dyn BlockDevice, copies: &[Copy]) -> Result<FoundSuperblock, StoreError> {
    let damaged: Vec<String> = copies
        .iter()
        .filter_map(|copy| {
            let reason = copy.parsed.as_ref().err()?;
            Some(format!("copy at {}: {reason}", copy.offset))
        })
        .collect();
    let first = copies
        .first()
        .and_then(|copy| copy.unverified.as_ref().ok());
    let good = copies.iter().filter_map(|copy| copy.parsed.as_ref().ok());
    // A mirror beyond the end of a smaller volume may be left of another one.
    let best = good.max_by_key(|copy| {
        let is_same = first.is_some_and(|first| first.fsid == copy.fsid);
        (is_same, copy.generation)
    });
    let Some(superblock) = best.cloned() else {
        return Err(StoreError::NoSuperblock {
            device: device.identity(),
            reason: if damaged.is_empty() {
                "it is too small for one".to_owned()
            } else {
                let copies = damaged.join("; ");
                format!("{copies}; `butterfs info` says what it holds instead")
            },
        });
    };
    tracing::warn!(
        device = device.identity(),
        ?damaged,
        "the primary superblock is damaged; a mirror is used"
    );
    let of_volume = first.filter(|first| first.fsid == superblock.fsid);
    Ok(FoundSuperblock {
        claimed: of_volume.and_then(claimed_generation),
        damaged,
        ..FoundSuperblock::only(superblock)
    })
}

impl FoundSuperblock {
    /// A copy beside which there is none that says something else.
    pub(super) const fn only(superblock: Superblock) -> Self {
        Self {
            superblock,
            damaged: Vec::new(),
            claimed: None,
            newer: None,
            older: None,
        }
    }

    /// Whether another copy than the primary one counts.
    pub(super) fn is_mirror(&self) -> bool {
        self.superblock.own_offset != superblock::COPIES[0]
    }
}

/// The copy of the superblock at an offset; `None` where the device has none.
pub(crate) fn read_copy_of_superblock(
    device: &dyn BlockDevice,
    item: &DeviceItem,
    offset: DeviceOffset,
) -> Option<Result<Superblock, String>> {
    if !has_room(device, item, offset) {
        return None;
    }
    let mut bytes = vec![0; superblock::SIZE];
    let read = device.read_at(offset, &mut bytes);
    let parsed = read.map_err(|error| error.to_string());
    Some(parsed.and_then(|()| Superblock::parse(&bytes, offset).map_err(|e| e.to_string())))
}

/// Whether a copy of the superblock lies within what the volume has of a
/// device. Behind that, the file or device may be cut off.
pub(crate) fn has_room(device: &dyn BlockDevice, item: &DeviceItem, offset: DeviceOffset) -> bool {
    let end = device.size().min(item.total_bytes);
    offset.saturating_add(superblock::SIZE as u64).get() <= end
}
