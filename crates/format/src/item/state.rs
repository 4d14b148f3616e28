//! Items that keep the state of devices and of running operations.
//!
//! Owns device statistics, and the balance and replace items as far as others
//! need them. Bytes that no field names are kept as they are.

use crate::bytes::{Reader, Writer};
use crate::item::balance::BalanceArgs;
use crate::item::chunk::BlockGroupFlags;
use crate::item::expect_end;
use crate::{DeviceId, ItemType, Key, ParseError, object};

/// Object of device statistics.
pub const DEVICE_STATS_OBJECTID: u64 = 0;

/// Error counters of a device: (0, PERSISTENT_ITEM, device).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Failed writes.
    pub write_errors: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed flushes.
    pub flush_errors: u64,
    /// Checksums that did not match.
    pub corruption_errors: u64,
    /// Nodes of another generation than expected.
    pub generation_errors: u64,
}

impl DeviceStats {
    /// Bytes of an item.
    pub const SIZE: usize = 40;

    /// Key for a device, in the device tree.
    #[must_use]
    pub const fn key(device: DeviceId) -> Key {
        Key::new(DEVICE_STATS_OBJECTID, ItemType::PERSISTENT_ITEM, device.0)
    }

    /// Reads an item. Counters that a shorter item lacks are 0, those that a
    /// longer one adds are passed over: newer kernels may append some.
    ///
    /// # Errors
    /// [`ParseError::TooShort`] for a part of a counter.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("device statistics", data);
        let mut counters = [0; 5];
        for counter in &mut counters {
            if r.remaining() == 0 {
                break;
            }
            *counter = r.u64()?;
        }
        let [
            write_errors,
            read_errors,
            flush_errors,
            corruption_errors,
            generation_errors,
        ] = counters;
        Ok(Self {
            write_errors,
            read_errors,
            flush_errors,
            corruption_errors,
            generation_errors,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        w.u64(self.write_errors)
            .u64(self.read_errors)
            .u64(self.flush_errors)
            .u64(self.corruption_errors)
            .u64(self.generation_errors);
        w.finish()
    }
}

/// A balance that was interrupted: ([`object::BALANCE`], TEMPORARY_ITEM, 0) in
/// the tree of roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceItem {
    /// What is balanced, in the bits of block groups.
    pub flags: BlockGroupFlags,
    /// Filters for data, metadata and system, and reserved bytes; as they are.
    pub rest: Vec<u8>,
}

impl BalanceItem {
    /// Bytes of an item.
    pub const SIZE: usize = 448;

    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "balance item";
        let mut r = Reader::new(WHAT, data);
        let flags = BlockGroupFlags(r.u64()?);
        let rest = r.bytes(Self::SIZE.saturating_sub(8))?.to_vec();
        expect_end(WHAT, &r)?;
        Ok(Self { flags, rest })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        w.u64(self.flags.0).bytes(&self.rest);
        w.finish()
    }

    /// Its key, in the tree of roots.
    #[must_use]
    pub const fn key() -> Key {
        Key::new(object::BALANCE, ItemType::TEMPORARY_ITEM, 0)
    }

    /// An item with these filters for data, metadata and system.
    #[must_use]
    pub fn with_filters(flags: BlockGroupFlags, filters: &[BalanceArgs; 3]) -> Self {
        let mut w = Writer::with_capacity(Self::SIZE);
        for args in filters {
            args.write(&mut w);
        }
        w.bytes(&[0; 32]);
        Self {
            flags,
            rest: w.finish(),
        }
    }

    /// Its filters for data, metadata and system.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn filters(&self) -> Result<[BalanceArgs; 3], ParseError> {
        let mut r = Reader::new("balance item", &self.rest);
        Ok([
            BalanceArgs::read(&mut r)?,
            BalanceArgs::read(&mut r)?,
            BalanceArgs::read(&mut r)?,
        ])
    }
}

/// Progress of a device replacement: (0, DEV_REPLACE, 0) in the device tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceReplace {
    /// The device that is replaced.
    pub source: DeviceId,
    /// Copied so far.
    pub cursor_left: u64,
    /// Being copied.
    pub cursor_right: u64,
    /// 0: the source is read; 1: only when no other copy is left.
    pub read_mode: u64,
    /// 0 never started, 1 started, 2 finished, 3 cancelled, 4 suspended.
    pub state: u64,
    /// Begin, in seconds since 1970.
    pub started_seconds: u64,
    /// End, in seconds since 1970.
    pub stopped_seconds: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Reads that no copy could serve.
    pub read_errors: u64,
}

impl DeviceReplace {
    /// Bytes of an item.
    pub const SIZE: usize = 72;
    /// The state of one that ended with the target in the source's place.
    pub const FINISHED: u64 = 2;
    /// The state of one that was cancelled.
    pub const CANCELLED: u64 = 3;
    /// Greatest known state.
    const STATE_MAX: u64 = 4;

    /// True when the kernel began it and has not ended it: its target has a part
    /// of the content, and nobody else may write to the volume.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        matches!(self.state, 1 | 4)
    }

    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size; [`ParseError::BadValue`] for an unknown state.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "device replace item";
        let mut r = Reader::new(WHAT, data);
        let item = Self {
            source: DeviceId(r.u64()?),
            cursor_left: r.u64()?,
            cursor_right: r.u64()?,
            read_mode: r.u64()?,
            state: r.u64()?,
            started_seconds: r.u64()?,
            stopped_seconds: r.u64()?,
            write_errors: r.u64()?,
            read_errors: r.u64()?,
        };
        expect_end(WHAT, &r)?;
        if item.state > Self::STATE_MAX {
            return Err(ParseError::BadValue {
                what: WHAT,
                field: "state",
                value: item.state,
            });
        }
        Ok(item)
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        w.u64(self.source.get())
            .u64(self.cursor_left)
            .u64(self.cursor_right)
            .u64(self.read_mode)
            .u64(self.state)
            .u64(self.started_seconds)
            .u64(self.stopped_seconds)
            .u64(self.write_errors)
            .u64(self.read_errors);
        w.finish()
    }
}
