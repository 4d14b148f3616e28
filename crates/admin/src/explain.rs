//! Explains the space of a volume: where it is, what can still be written, what
//! prevents more, and what helps.
//!
//! Owns the findings, in numbers. Remedies are tried by the allocator's own rules
//! on a copy of the space's state; nothing is written. The caller writes the
//! sentences.

use crate::balance::{self, Filter, Filters};
use butterfs_format::DeviceId;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_store::{SpaceKind, SpaceStanding, Store, StoreError};
use butterfs_volume::placement::{self, DeviceSpace};

/// The values of `usage=` for which a balance is tried.
const USAGES: [u8; 12] = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
/// The most bytes of data in block groups of a balance that is tried. Trying more
/// takes too long.
const TRIED_MAX: u64 = 1 << 40;
/// Bytes at the beginning of a device that no chunk uses.
const RESERVED: u64 = 1 << 20;

/// A reason why less can be written than the devices hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No chunk can be made any more, because the devices have no unallocated
    /// space for one.
    NothingUnallocated,
    /// Metadata have so little space left that they limit what can be written.
    MetadataFull {
        /// Bytes that metadata can still use, including the reserve.
        free: u64,
        /// Bytes that only deletions may use.
        kept: u64,
    },
    /// Chunks with the profile of data cannot use some space of a device, because
    /// the other devices have no space for their part.
    Stranded {
        /// The device.
        device: DeviceId,
        /// Bytes of that space.
        bytes: u64,
    },
    /// Bytes that were freed but are pinned until the next commit.
    Pinned(u64),
    /// Free bytes in rows of RAID5 or RAID6 that are partly used.
    PartlyUsedRows(u64),
    /// Data chunks have free space that metadata cannot use, or the reverse.
    FreeOfOtherKind {
        /// Free bytes in data chunks.
        data: u64,
        /// Free bytes in metadata chunks.
        metadata: u64,
    },
}

/// What helps to get more space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A commit, which frees pinned space.
    Commit {
        /// Bytes that it frees.
        frees: u64,
    },
    /// A balance of data block groups that are used less than `usage` percent.
    Balance {
        /// The filter's `usage=`.
        usage: u8,
        /// Metadata lie in the same block groups, and have the same filter.
        is_mixed: bool,
        /// Block groups that it empties; the filter's `limit=`.
        groups: usize,
        /// Bytes of data that it moves.
        moves: u64,
        /// Bytes of devices that become unallocated.
        frees: u64,
        /// Bytes that new data chunks could have afterwards.
        data_after: u64,
        /// Bytes that new metadata chunks could have afterwards, if data took
        /// none.
        metadata_after: u64,
    },
    /// Enlarging the volume on a device that is larger than its used size.
    Grow {
        /// The device.
        device: DeviceId,
        /// Bytes that the volume gains.
        gains: u64,
        /// Bytes that new data chunks could have afterwards.
        data_after: u64,
    },
    /// Adding a device.
    Add {
        /// Size in bytes that the device should have to use all stranded space.
        size: u64,
        /// Bytes that new data chunks could have afterwards.
        data_after: u64,
    },
    /// Waiting until deleted subvolumes are freed.
    Wait {
        /// Number of subvolumes.
        subvolumes: usize,
    },
}

/// What was found about the space of a volume.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The state of the space.
    pub standing: SpaceStanding,
    /// Bytes of data that can at least be written now.
    pub writable: u64,
    /// What prevents more, the worst first.
    pub obstacles: Vec<Obstacle>,
    /// What helps, the simplest first.
    pub remedies: Vec<Remedy>,
}

fn unallocated(devices: &[DeviceSpace]) -> u64 {
    let each = devices.iter().map(DeviceSpace::unallocated);
    each.fold(0, u64::saturating_add)
}

fn obstacles(standing: &SpaceStanding) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let (data, metadata) = (&standing.data, &standing.metadata);
    if standing.writable() < standing.promisable.data && !standing.is_mixed {
        found.push(Obstacle::MetadataFull {
            free: metadata.free.saturating_add(metadata.further),
            kept: standing.kept,
        });
    }
    if data.further == 0 && metadata.further == 0 {
        found.push(Obstacle::NothingUnallocated);
        if !standing.is_mixed {
            found.push(Obstacle::FreeOfOtherKind {
                data: data.free,
                metadata: metadata.free,
            });
        }
    }
    let stranded = placement::stranded(data.flags, &standing.devices);
    let stranded = stranded.into_iter();
    found.extend(stranded.map(|(device, bytes)| Obstacle::Stranded { device, bytes }));
    let pinned = pinned(standing);
    if pinned > 0 {
        found.push(Obstacle::Pinned(pinned));
    }
    if data.left_over > 0 {
        found.push(Obstacle::PartlyUsedRows(data.left_over));
    }
    found
}

/// Returns the bytes that a commit frees. Mixed block groups count for data and
/// for metadata.
const fn pinned(standing: &SpaceStanding) -> u64 {
    match standing.is_mixed {
        true => standing.data.pinned,
        false => standing
            .data
            .pinned
            .saturating_add(standing.metadata.pinned),
    }
}

/// Returns the balance of data that frees most. If several free as much, it is
/// the one with the lowest `usage=`.
fn best_balance(store: &Store, is_mixed: bool) -> Result<Option<Remedy>, StoreError> {
    let mut best: Option<Remedy> = None;
    for usage in USAGES {
        let Ok(filter) = Filter::parse(&format!("usage={usage}")) else {
            continue;
        };
        let filters = Filters {
            data: Some(filter),
            metadata: is_mixed.then_some(filter),
            system: None,
        };
        let planned = balance::plan(store, &filters);
        let all: u64 = planned.iter().map(|group| group.used).sum();
        if all > TRIED_MAX {
            break;
        }
        let tried = store.look(|engine| {
            let (mut trial, mut moves) = (engine.begin_balance_estimate(), 0);
            for group in &planned {
                if !trial.move_group(group.start)? {
                    break;
                }
                moves += group.used;
            }
            let devices = engine.device_spaces_without(trial.emptied());
            Ok::<_, StoreError>(Remedy::Balance {
                usage,
                is_mixed,
                groups: trial.emptied().len(),
                moves,
                frees: trial.bytes_of_devices(),
                data_after: engine.possible_on(SpaceKind::Data, &devices),
                metadata_after: engine.possible_on(SpaceKind::Metadata, &devices),
            })
        })?;
        let gain = |remedy: &Remedy| match remedy {
            Remedy::Balance { frees, .. } => *frees,
            _ => 0,
        };
        if gain(&tried) > best.as_ref().map_or(0, gain) {
            best = Some(tried);
        }
    }
    Ok(best)
}

fn remedies(store: &Store, standing: &SpaceStanding) -> Result<Vec<Remedy>, StoreError> {
    let mut found = Vec::new();
    let pinned = pinned(standing);
    if pinned > 0 {
        found.push(Remedy::Commit { frees: pinned });
    }
    let engine = store.read();
    let subvolumes = engine.dead_trees()?.len();
    if subvolumes > 0 {
        found.push(Remedy::Wait { subvolumes });
    }
    let possible = |devices: &[DeviceSpace]| engine.possible_on(SpaceKind::Data, devices);
    let grown: Vec<Remedy> = engine
        .room_beyond()
        .map(|(device, gains)| {
            let mut devices = standing.devices.clone();
            for space in devices.iter_mut().filter(|space| space.device == device) {
                space.size = space.size.saturating_add(gains);
            }
            Remedy::Grow {
                device,
                gains,
                data_after: possible(&devices),
            }
        })
        .collect();
    let stranded = placement::stranded(standing.data.flags, &standing.devices);
    let most = stranded.iter().map(|(_, bytes)| *bytes).max();
    let added = most.map(|bytes| {
        let mut devices = standing.devices.clone();
        let size = bytes.saturating_add(RESERVED);
        devices.push(DeviceSpace {
            device: DeviceId(u64::MAX),
            size,
            allocated: Vec::new(),
        });
        Remedy::Add {
            size,
            data_after: possible(&devices),
        }
    });
    drop(engine);
    found.extend(best_balance(store, standing.is_mixed)?);
    found.extend(grown);
    found.extend(added);
    Ok(found)
}

/// Explains where the space of a volume is.
///
/// # Errors
/// A [`StoreError`] if the volume is damaged or cannot be read.
pub fn explain(store: &Store) -> Result<Explanation, StoreError> {
    let standing = store.read().standing_of_space();
    let obstacles = obstacles(&standing);
    let remedies = remedies(store, &standing)?;
    Ok(Explanation {
        writable: standing.writable(),
        obstacles,
        remedies,
        standing,
    })
}

impl Explanation {
    /// Returns the bytes of all devices, and those of them that are in no chunk.
    #[must_use]
    pub fn devices(&self) -> (u64, u64) {
        let devices = &self.standing.devices;
        let sizes = devices.iter().map(|device| device.size);
        (sizes.fold(0, u64::saturating_add), unallocated(devices))
    }

    /// Returns the name of the profile in `flags`, for messages.
    #[must_use]
    pub fn profile(flags: BlockGroupFlags) -> &'static str {
        flags.profile_name()
    }
}
