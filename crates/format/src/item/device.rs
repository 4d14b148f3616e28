//! Devices and their allocated ranges.

use super::expect_end;
use crate::bytes::{Reader, Writer};
use crate::{DeviceId, Generation, Logical, ParseError, UuidBytes};

/// Object of all device items in the chunk tree.
pub const DEVICES_OBJECT: u64 = 1;

/// A device item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceItem {
    /// Number.
    pub id: DeviceId,
    /// Bytes.
    pub total_bytes: u64,
    /// Bytes in chunks.
    pub bytes_used: u64,
    /// Alignment of I/O.
    pub io_align: u32,
    /// Width of I/O.
    pub io_width: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Unused.
    pub device_type: u64,
    /// Generation.
    pub generation: Generation,
    /// Unused.
    pub start_offset: u64,
    /// Unused.
    pub group: u32,
    /// Unused.
    pub seek_speed: u8,
    /// Unused.
    pub bandwidth: u8,
    /// UUID of the device.
    pub uuid: UuidBytes,
    /// UUID of the volume.
    pub fsid: UuidBytes,
}

impl DeviceItem {
    /// Bytes of an item.
    pub const SIZE: usize = 98;

    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("device item", data);
        let item = Self::read(&mut r)?;
        expect_end("device item", &r)?;
        Ok(item)
    }

    /// Reads an item that others follow.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn read(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            id: DeviceId(r.u64()?),
            total_bytes: r.u64()?,
            bytes_used: r.u64()?,
            io_align: r.u32()?,
            io_width: r.u32()?,
            sector_size: r.u32()?,
            device_type: r.u64()?,
            generation: Generation(r.u64()?),
            start_offset: r.u64()?,
            group: r.u32()?,
            seek_speed: r.u8()?,
            bandwidth: r.u8()?,
            uuid: r.array()?,
            fsid: r.array()?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        self.write(&mut w);
        w.finish()
    }

    /// Writes it among others.
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.id.get())
            .u64(self.total_bytes)
            .u64(self.bytes_used)
            .u32(self.io_align)
            .u32(self.io_width)
            .u32(self.sector_size)
            .u64(self.device_type)
            .u64(self.generation.get())
            .u64(self.start_offset)
            .u32(self.group)
            .u8(self.seek_speed)
            .u8(self.bandwidth)
            .bytes(&self.uuid)
            .bytes(&self.fsid);
    }
}

/// An allocated range of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Tree of the chunk: 3.
    pub chunk_tree: u64,
    /// Object of the chunk: 256.
    pub chunk_objectid: u64,
    /// Chunk that it belongs to.
    pub chunk: Logical,
    /// Bytes.
    pub length: u64,
    /// UUID of the chunk tree.
    pub chunk_tree_uuid: UuidBytes,
}

impl DeviceExtent {
    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("device extent", data);
        let item = Self {
            chunk_tree: r.u64()?,
            chunk_objectid: r.u64()?,
            chunk: Logical(r.u64()?),
            length: r.u64()?,
            chunk_tree_uuid: r.array()?,
        };
        expect_end("device extent", &r)?;
        Ok(item)
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(48);
        w.u64(self.chunk_tree)
            .u64(self.chunk_objectid)
            .u64(self.chunk.get())
            .u64(self.length)
            .bytes(&self.chunk_tree_uuid);
        w.finish()
    }
}
