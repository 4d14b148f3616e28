//! What a balance item says of one kind of block groups.
//!
//! Owns the layout of the filters. Fields that no flag names are kept as they
//! are.

use crate::ParseError;
use crate::bit_flags;
use crate::bytes::{Reader, Writer};
use crate::item::chunk::BlockGroupFlags;

bit_flags!(
    /// Which fields of the filters count.
    BalanceFilters: u64 {
        /// `profiles`.
        PROFILES = 1 << 0, "profiles";
        /// `usage`, as one number.
        USAGE = 1 << 1, "usage";
        /// `device`.
        DEVID = 1 << 2, "devid";
        /// `physical`.
        DRANGE = 1 << 3, "drange";
        /// `logical`.
        VRANGE = 1 << 4, "vrange";
        /// `limit`, as one number.
        LIMIT = 1 << 5, "limit";
        /// `limit`, as least and most.
        LIMIT_RANGE = 1 << 6, "limit range";
        /// `stripes`.
        STRIPES_RANGE = 1 << 7, "stripes";
        /// `target`.
        CONVERT = 1 << 8, "convert";
        /// With `target`: block groups that have that profile already stay.
        SOFT = 1 << 9, "soft";
        /// `usage`, as least and most.
        USAGE_RANGE = 1 << 10, "usage range";
    }
);

/// The bit for the profile "single", where it must differ from "no profile".
pub const SINGLE: u64 = 1 << 48;

/// The bits of a profile, with [`SINGLE`] for none.
#[must_use]
pub fn extended_profile(flags: BlockGroupFlags) -> u64 {
    match flags.profile() {
        profile if profile.is_empty() => SINGLE,
        profile => profile.0,
    }
}

/// The profile of such bits.
#[must_use]
pub fn profile_of(extended: u64) -> BlockGroupFlags {
    BlockGroupFlags(extended).profile()
}

/// Filters of one kind of block groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceArgs {
    /// Profiles that are balanced, as [`extended_profile`].
    pub profiles: u64,
    /// Percent: the greatest, or the least (low half) and the greatest.
    pub usage: u64,
    /// Device.
    pub device: u64,
    /// First byte on the device and the one after the last.
    pub physical: (u64, u64),
    /// First byte in logical space and the one after the last.
    pub logical: (u64, u64),
    /// Profile that is made, as [`extended_profile`].
    pub target: u64,
    /// Which of these count.
    pub filters: BalanceFilters,
    /// Block groups: the most, or the least (low half) and the most.
    pub limit: u64,
    /// Stripes: the least and the most.
    pub stripes: (u32, u32),
}

/// Least and greatest of a field that holds both.
#[must_use]
pub fn halves(both: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = both.to_le_bytes();
    let least = u32::from_le_bytes([a, b, c, d]);
    (least, u32::from_le_bytes([e, f, g, h]))
}

/// A field that holds least and greatest.
#[must_use]
pub fn joined(least: u32, greatest: u32) -> u64 {
    u64::from(least) | u64::from(greatest) << 32
}

impl BalanceArgs {
    /// Bytes of it.
    pub const SIZE: usize = 136;

    /// Reads it.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn read(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let args = Self {
            profiles: r.u64()?,
            usage: r.u64()?,
            device: r.u64()?,
            physical: (r.u64()?, r.u64()?),
            logical: (r.u64()?, r.u64()?),
            target: r.u64()?,
            filters: BalanceFilters(r.u64()?),
            limit: r.u64()?,
            stripes: (r.u32()?, r.u32()?),
        };
        r.bytes(48)?;
        Ok(args)
    }

    /// Appends its bytes.
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.profiles)
            .u64(self.usage)
            .u64(self.device)
            .u64(self.physical.0)
            .u64(self.physical.1)
            .u64(self.logical.0)
            .u64(self.logical.1)
            .u64(self.target)
            .u64(self.filters.0)
            .u64(self.limit)
            .u32(self.stripes.0)
            .u32(self.stripes.1)
            .bytes(&[0; 48]);
    }
}
