//! Chunks: from logical to physical addresses.

use crate::bytes::{Reader, Writer};
use crate::{DeviceId, DeviceOffset, ParseError, UuidBytes, bit_flags};

bit_flags!(
    /// What a chunk holds and how it is replicated.
    BlockGroupFlags: u64 {
        /// File data.
        DATA = 1 << 0, "DATA";
        /// The chunk tree.
        SYSTEM = 1 << 1, "SYSTEM";
        /// All other trees.
        METADATA = 1 << 2, "METADATA";
        /// Striped.
        RAID0 = 1 << 3, "RAID0";
        /// Two copies on two devices.
        RAID1 = 1 << 4, "RAID1";
        /// Two copies on one device.
        DUP = 1 << 5, "DUP";
        /// Striped over mirrors.
        RAID10 = 1 << 6, "RAID10";
        /// One parity.
        RAID5 = 1 << 7, "RAID5";
        /// Two parities.
        RAID6 = 1 << 8, "RAID6";
        /// Three copies.
        RAID1C3 = 1 << 9, "RAID1C3";
        /// Four copies.
        RAID1C4 = 1 << 10, "RAID1C4";
    }
);

impl BlockGroupFlags {
    /// The bits that name a profile; none of them is "single".
    pub const PROFILE: Self = Self(0x7f8);
    /// The bits that name what is held.
    pub const TYPE: Self = Self(0x7);

    /// The profile alone.
    #[must_use]
    pub const fn profile(self) -> Self {
        Self(self.0 & Self::PROFILE.0)
    }

    /// Name of the profile as the tools print it.
    #[must_use]
    pub fn profile_name(self) -> &'static str {
        let profile = self.profile();
        if profile.is_empty() {
            return "single";
        }
        Self::TABLE
            .iter()
            .find(|(bit, _)| *bit == profile)
            .map_or("unknown", |(_, name)| *name)
    }

    /// Names as dump-tree prints them: `METADATA|DUP`, `DATA|single`.
    #[must_use]
    pub fn describe(self) -> String {
        let mut names = self.names();
        if self.profile().is_empty() {
            names.push("single".to_owned());
        }
        names.join("|")
    }
}

/// One stripe of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Device.
    pub device: DeviceId,
    /// Where it begins there.
    pub offset: DeviceOffset,
    /// UUID of the device.
    pub device_uuid: UuidBytes,
}

/// A chunk item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes of logical space.
    pub length: u64,
    /// Tree that owns it: the extent tree.
    pub owner: u64,
    /// Bytes of a stripe element.
    pub stripe_length: u64,
    /// What it holds and how.
    pub flags: BlockGroupFlags,
    /// Alignment of I/O.
    pub io_align: u32,
    /// Width of I/O.
    pub io_width: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Mirrors in a RAID10 stripe.
    pub sub_stripes: u16,
    /// Its stripes.
    pub stripes: Vec<Stripe>,
}

impl Chunk {
    /// Object of all chunk items.
    pub const OBJECT: u64 = 256;

    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("chunk item", data);
        let chunk = Self::read(&mut r)?;
        if r.remaining() != 0 {
            return Err(ParseError::TrailingBytes {
                what: "chunk item",
                extra: r.remaining(),
            });
        }
        Ok(chunk)
    }

    /// Reads an item that others follow.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn read(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let length = r.u64()?;
        let owner = r.u64()?;
        let stripe_length = r.u64()?;
        let flags = BlockGroupFlags(r.u64()?);
        let io_align = r.u32()?;
        let io_width = r.u32()?;
        let sector_size = r.u32()?;
        let count = r.u16()?;
        let sub_stripes = r.u16()?;
        if count == 0 {
            return Err(ParseError::BadValue {
                what: "chunk item",
                field: "number of stripes",
                value: 0,
            });
        }
        let mut stripes = Vec::new();
        for _ in 0..count {
            stripes.push(Stripe {
                device: DeviceId(r.u64()?),
                offset: DeviceOffset(r.u64()?),
                device_uuid: r.array()?,
            });
        }
        Ok(Self {
            length,
            owner,
            stripe_length,
            flags,
            io_align,
            io_width,
            sector_size,
            sub_stripes,
            stripes,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(112);
        w.u64(self.length)
            .u64(self.owner)
            .u64(self.stripe_length)
            .u64(self.flags.0)
            .u32(self.io_align)
            .u32(self.io_width)
            .u32(self.sector_size)
            .u16(u16::try_from(self.stripes.len()).unwrap_or(u16::MAX))
            .u16(self.sub_stripes);
        for stripe in &self.stripes {
            w.u64(stripe.device.get())
                .u64(stripe.offset.get())
                .bytes(&stripe.device_uuid);
        }
        w.finish()
    }
}
