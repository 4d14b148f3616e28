//! Checks whether a chunk from disk is possible.
//!
//! Owns the checks of a chunk by itself. The map checks that chunks do not
//! overlap.

use crate::geometry::{ELEMENT, stripe_bytes};
use crate::{Profile, VolumeError};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use thiserror::Error;

/// What is wrong with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChunkFault {
    /// No DATA, METADATA or SYSTEM.
    #[error("it holds neither data nor metadata nor system")]
    NoType,
    /// SYSTEM together with another type.
    #[error("it holds system and something else")]
    MixedSystem,
    /// Flags that the format does not know.
    #[error("its flags {0:#x} are not all known")]
    UnknownFlags(u64),
    /// More than one profile.
    #[error("it has more than one profile")]
    SeveralProfiles,
    /// The number of stripes does not fit the profile.
    #[error("profile {profile} does not have {found} stripes")]
    StripeCount {
        /// Profile.
        profile: Profile,
        /// Stripes.
        found: usize,
    },
    /// RAID10 whose groups of mirrors are not pairs.
    #[error("its stripes are grouped by {0} instead of 2")]
    SubStripes(u16),
    /// Not a power of two between 512 and 65536.
    #[error("its sector size {0} is impossible")]
    SectorSize(u32),
    /// Not 64 KiB.
    #[error("its stripe length {0} is not 65536")]
    StripeLength(u64),
    /// No bytes.
    #[error("it is empty")]
    Empty,
    /// The length is no multiple of the sector size, or of a row of stripes.
    #[error("its length {0} is not aligned")]
    UnalignedLength(u64),
    /// The address is no multiple of the sector size.
    #[error("its address is not aligned")]
    UnalignedAddress,
    /// It goes beyond the greatest address.
    #[error("it ends beyond all addresses")]
    EndOverflows,
    /// A stripe's offset is no multiple of the sector size.
    #[error("its stripe at {0} is not aligned")]
    UnalignedStripe(DeviceOffset),
    /// A stripe goes beyond the greatest offset.
    #[error("its stripe at {0} ends beyond all offsets")]
    StripeOverflows(DeviceOffset),
    /// It overlaps another chunk.
    #[error("it overlaps the chunk at logical {0}")]
    Overlaps(Logical),
    /// A stripe ends behind its device.
    #[error("its stripe at {offset} does not fit on device {device} of {size} bytes")]
    BeyondDevice {
        /// Device.
        device: DeviceId,
        /// Where the stripe begins.
        offset: DeviceOffset,
        /// Bytes of the device.
        size: u64,
    },
    /// Two stripes, of one chunk or of two, share bytes of a device.
    #[error(
        "its stripe at {offset} of device {device} overlaps one of the chunk at logical {other}"
    )]
    StripesOverlap {
        /// Device.
        device: DeviceId,
        /// Where the later stripe begins.
        offset: DeviceOffset,
        /// Chunk of the earlier stripe; it may be the same chunk.
        other: Logical,
    },
}

/// Greatest address, because offsets are signed in the kernel. The sum of two
/// addresses in chunks cannot overflow.
const ADDRESS_MAX: u64 = u64::MAX >> 1;

/// Checks a chunk by itself and returns its profile.
///
/// # Errors
/// [`VolumeError::BadChunk`]
pub(crate) fn check(logical: Logical, chunk: &Chunk) -> Result<Profile, VolumeError> {
    find_fault(logical, chunk).map_err(|fault| VolumeError::BadChunk { logical, fault })
}

fn find_fault(logical: Logical, chunk: &Chunk) -> Result<Profile, ChunkFault> {
    let profile = check_flags(chunk)?;
    let stripes = chunk.stripes.len();
    if !profile.allows_stripes(stripes) {
        return Err(ChunkFault::StripeCount {
            profile,
            found: stripes,
        });
    }
    if profile == Profile::Raid10 && chunk.sub_stripes != 2 {
        return Err(ChunkFault::SubStripes(chunk.sub_stripes));
    }
    let sector = u64::from(chunk.sector_size);
    if !sector.is_power_of_two() || !(512..=ELEMENT).contains(&sector) {
        return Err(ChunkFault::SectorSize(chunk.sector_size));
    }
    if chunk.stripe_length != ELEMENT {
        return Err(ChunkFault::StripeLength(chunk.stripe_length));
    }
    if chunk.length == 0 {
        return Err(ChunkFault::Empty);
    }
    let unit = if profile.is_striped() {
        ELEMENT.saturating_mul(crate::bytes_of(profile.data_stripes(stripes)))
    } else {
        sector
    };
    if !chunk.length.is_multiple_of(unit) {
        return Err(ChunkFault::UnalignedLength(chunk.length));
    }
    if !logical.get().is_multiple_of(sector) {
        return Err(ChunkFault::UnalignedAddress);
    }
    let possible = |end: u64| end <= ADDRESS_MAX;
    let end = logical.checked_add(chunk.length).map(Logical::get);
    if !end.is_some_and(possible) {
        return Err(ChunkFault::EndOverflows);
    }
    let each = stripe_bytes(profile, chunk);
    for stripe in &chunk.stripes {
        if !stripe.offset.get().is_multiple_of(sector) {
            return Err(ChunkFault::UnalignedStripe(stripe.offset));
        }
        let end = stripe.offset.checked_add(each).map(DeviceOffset::get);
        if !end.is_some_and(possible) {
            return Err(ChunkFault::StripeOverflows(stripe.offset));
        }
    }
    Ok(profile)
}

fn check_flags(chunk: &Chunk) -> Result<Profile, ChunkFault> {
    let known = BlockGroupFlags::TYPE | BlockGroupFlags::PROFILE;
    if !known.contains(chunk.flags) {
        return Err(ChunkFault::UnknownFlags(chunk.flags.0));
    }
    let holds = chunk.flags & BlockGroupFlags::TYPE;
    if holds.is_empty() {
        return Err(ChunkFault::NoType);
    }
    if holds.contains(BlockGroupFlags::SYSTEM) && holds != BlockGroupFlags::SYSTEM {
        return Err(ChunkFault::MixedSystem);
    }
    Profile::from_flags(chunk.flags).ok_or(ChunkFault::SeveralProfiles)
}
