//! Why there is space or none: where it is, what can still be written, what
//! stands in the way, and what helps.
//!
//! Owns the findings, in numbers. What helps is tried by the allocator's own
//! rules on a copy of what is known of space; nothing is written. Saying it in
//! sentences is the caller's.

use crate::balance::{self, Filter, Filters};
use butterfs_format::DeviceId;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_store::{SpaceKind, SpaceStanding, Store, StoreError};
use butterfs_volume::placement::{self, DeviceSpace};

/// Percentages that a balance is tried with.
const USAGES: [u8; 12] = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
/// Data that a balance may move to be tried; more takes long to try.
const TRIED_MAX: u64 = 1 << 40;
/// Bytes at the beginning of a device that chunks do not get.
const RESERVED: u64 = 1 << 20;

/// Why less can be written than the devices have, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No chunk can be made any more: all devices are in chunks.
    NothingUnallocated,
    /// Metadata can get no further chunk, and have little left.
    MetadataFull {
        /// Bytes that metadata can have, the reserve included.
        free: u64,
        /// Bytes that only deletions may use.
        kept: u64,
    },
    /// Bytes of a device that chunks of the data's profile cannot use: the other
    /// devices have no space for their part.
    Stranded {
        /// The device.
        device: DeviceId,
        /// Bytes.
        bytes: u64,
    },
    /// Bytes that were freed, and that the last commit still has.
    Pinned(u64),
    /// Free bytes in rows of RAID5 or RAID6 that are partly used.
    PartlyUsedRows(u64),
    /// Data chunks have free space that metadata cannot use, and the other way
    /// round.
    FreeOfOtherKind {
        /// Bytes of data chunks.
        data: u64,
        /// Bytes of metadata chunks.
        metadata: u64,
    },
}

/// What helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A commit gives back what is pinned.
    Commit {
        /// Bytes.
        frees: u64,
    },
    /// A balance of data block groups that are used less than so many percent.
    Balance {
        /// The filter's `usage=`.
        usage: u8,
        /// Block groups that it empties, the filter's `limit=`.
        groups: usize,
        /// Bytes of data that it moves.
        moves: u64,
        /// Bytes of devices that it gives back.
        frees: u64,
        /// Bytes that new data chunks could have then.
        data_after: u64,
        /// Bytes that new metadata chunks could have then, if data took none.
        metadata_after: u64,
    },
    /// A device is larger than the volume uses of it.
    Grow {
        /// The device.
        device: DeviceId,
        /// Bytes that it gains.
        gains: u64,
        /// Bytes that new data chunks could have then.
        data_after: u64,
    },
    /// One more device.
    Add {
        /// Bytes that it must have at least.
        size: u64,
        /// Bytes that new data chunks could have then.
        data_after: u64,
    },
    /// Deleted subvolumes are still being freed.
    Wait {
        /// How many.
        subvolumes: usize,
    },
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Where space stands.
    pub standing: SpaceStanding,
    /// Bytes of data that can be written now, at least.
    pub writable: u64,
    /// What stands in the way, the worst first.
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
    let pinned = match standing.is_mixed {
        true => data.pinned,
        false => data.pinned.saturating_add(metadata.pinned),
    };
    if pinned > 0 {
        found.push(Obstacle::Pinned(pinned));
    }
    if data.left_over > 0 {
        found.push(Obstacle::PartlyUsedRows(data.left_over));
    }
    found
}

/// The balance of data that gives most back; of several the one that moves
/// least.
fn best_balance(store: &Store) -> Result<Option<Remedy>, StoreError> {
    let mut best: Option<Remedy> = None;
    for usage in USAGES {
        let Ok(filter) = Filter::parse(&format!("usage={usage}")) else {
            continue;
        };
        let filters = Filters {
            data: Some(filter),
            ..Filters::default()
        };
        let planned = balance::plan(store, &filters);
        let all: u64 = planned.iter().map(|group| group.used).sum();
        if all > TRIED_MAX {
            break;
        }
        let tried = store.look(|engine| {
            let (mut trial, mut moves) = (engine.begin_trial(), 0);
            for group in &planned {
                if !trial.move_group(group.start)? {
                    break;
                }
                moves += group.used;
            }
            let devices = engine.device_spaces_without(trial.emptied());
            Ok::<_, StoreError>(Remedy::Balance {
                usage,
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
    let pinned = standing.data.pinned + standing.metadata.pinned;
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
    found.extend(best_balance(store)?);
    found.extend(grown);
    found.extend(added);
    Ok(found)
}

/// Explains where the space of a volume is.
///
/// # Errors
/// Damage, reading.
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
    /// Bytes of all devices, and those that no chunk has.
    #[must_use]
    pub fn devices(&self) -> (u64, u64) {
        let devices = &self.standing.devices;
        let sizes = devices.iter().map(|device| device.size);
        (sizes.fold(0, u64::saturating_add), unallocated(devices))
    }

    /// The profile of new chunks of a kind, for people.
    #[must_use]
    pub fn profile(flags: BlockGroupFlags) -> &'static str {
        flags.profile_name()
    }
}
