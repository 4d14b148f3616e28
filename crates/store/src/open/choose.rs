//! Which copies of the superblock a volume is opened by.
//!
//! Owns the fall back from a primary copy whose trees are gone to a newer
//! mirror, and what is verified before a volume is changed that only a mirror
//! speaks for.

use super::features::check_features;
use super::load::{load_engine, store_of};
use super::members::Members;
use super::options::{OpenOptions, Roots};
use super::space_fault::SpaceFault;
use super::superblocks::Preferred;
use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_device::{Access, BlockDevice};
use butterfs_format::superblock::Superblock;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Reads the superblocks of `devices`, and loads the trees that they name.
pub(super) fn load_members(
    devices: &[Arc<dyn BlockDevice>],
    options: &OpenOptions,
) -> Result<(Members, Engine), StoreError> {
    let mut members = Members::read(devices.to_vec(), options.states, Preferred::Primary)?;
    let error = match load_verified(&mut members, devices, (options, Preferred::Primary)) {
        Ok(engine) => return Ok((members, engine)),
        Err(error) => error,
    };
    let Some(other) = members.instead() else {
        return Err(error);
    };
    if !error.is_damage() {
        return Err(match other {
            Preferred::Newest => beside_newer(error, devices, options),
            Preferred::Primary | Preferred::WholePrimary => error,
        });
    }
    // Another copy of the superblock is older or newer, and what this one names
    // is gone, or never was there.
    let mut members = Members::read(devices.to_vec(), options.states, other)?;
    match load_verified(&mut members, devices, (options, other)) {
        Ok(engine) => {
            tracing::warn!(
                %error,
                generation = members.superblock().generation.get(),
                "another copy of the superblock is used, because what the first one names is \
                 damaged"
            );
            Ok((members, engine))
        }
        Err(_) => Err(error),
    }
}

/// Loads the trees. If the copy of the superblock that counts is a mirror, or is
/// not the newest, it is verified before the volume is changed.
fn load_verified(
    members: &mut Members,
    devices: &[Arc<dyn BlockDevice>],
    (options, preferred): (&OpenOptions, Preferred),
) -> Result<Engine, StoreError> {
    let superblock = &members.superblock().clone();
    check_features(superblock, options)?;
    let is_doubtful = members.speaks_by_mirror() || preferred == Preferred::WholePrimary;
    if options.access == Access::ReadWrite && is_doubtful {
        verify_nodes(members, devices, (options, preferred))?;
    }
    load_engine(members, superblock, options)
        .map_err(|error| members.explain(cut_short(members, superblock, error)))
}

/// Errors unless every node is there that this copy of the superblock names.
/// Nobody knows how old it is: a volume that went on after it has reused the
/// space of some.
fn verify_nodes(
    members: &Members,
    devices: &[Arc<dyn BlockDevice>],
    (options, preferred): (&OpenOptions, Preferred),
) -> Result<(), StoreError> {
    if options.roots == Roots::Last {
        members.verify_age_of_mirror()?;
        if preferred == Preferred::WholePrimary {
            members.verify_age_of_primary()?;
        }
    }
    tracing::warn!(
        "all nodes are read before the volume is changed, because copies of its superblock are \
         damaged or differ"
    );
    let reading = OpenOptions {
        access: Access::ReadOnly,
        ..options.clone()
    };
    let mut read = Members::read(devices.to_vec(), options.states, preferred)?;
    let superblock = read.superblock().clone();
    let engine = load_engine(&mut read, &superblock, &reading)
        .map_err(|error| members.explain(cut_short(members, &superblock, error)))?;
    store_of(engine, &reading)
        .read_all_nodes(&mut |_| ControlFlow::Continue(()))
        .map_err(|error| members.explain(error))?;
    Ok(())
}

/// Says of an error that comes of the primary copy alone that a newer mirror
/// does not have its cause. The kernel reads the primary copy alone, and so
/// refuses it, too.
fn beside_newer(
    error: StoreError,
    devices: &[Arc<dyn BlockDevice>],
    options: &OpenOptions,
) -> StoreError {
    let StoreError::Unsupported {
        what,
        read_only_possible,
    } = error
    else {
        return error;
    };
    let newest = Members::read(devices.to_vec(), options.states, Preferred::Newest);
    let newest = newest.ok().filter(|newest| {
        let mirror = newest.superblock();
        check_features(mirror, options).is_ok()
    });
    let what = match newest {
        Some(newest) => format!(
            "{what}. Only the primary superblock says so: the mirror at {} is of a newer commit \
             (generation {}) and does not. If the primary is what is wrong, \
             `btrfs-select-super` puts a mirror in its place; nothing was changed",
            newest.superblock().own_offset,
            newest.superblock().generation
        ),
        None => what,
    };
    StoreError::Unsupported {
        what,
        read_only_possible,
    }
}

/// Names the end of the only device as the cause of an error, if the volume goes
/// on beyond it.
fn cut_short(members: &Members, superblock: &Superblock, error: StoreError) -> StoreError {
    // One of them alone may be wrong.
    let bytes = superblock.total_bytes.min(superblock.device.total_bytes);
    let is_told = matches!(
        error,
        StoreError::Inconsistent(SpaceFault::DeviceSize { .. })
    );
    match members.one() {
        Some(device)
            if bytes > device.size()
                && superblock.num_devices == 1
                && error.is_damage()
                && !is_told =>
        {
            StoreError::NoSuperblock {
                device: device.identity(),
                reason: format!(
                    "its volume has {bytes} bytes, but the device has only {}. It was cut short, \
                     and what is needed to open it is lost ({error}): get a complete copy; \
                     `butterfs check` says what is left of this one",
                    device.size()
                ),
            }
        }
        _ => error,
    }
}
