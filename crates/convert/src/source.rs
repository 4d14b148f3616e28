//! A device as `ext4` reads it.

use butterfs_device::BlockDevice;
use butterfs_ext4::Source;
use butterfs_format::DeviceOffset;
use std::io;
use std::sync::Arc;

/// A device that an ext4 file system lies on.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSource(pub(crate) Arc<dyn BlockDevice>);

impl Source for DeviceSource {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.0.read_at(DeviceOffset(offset), buffer);
        read.map_err(|error| io::Error::other(error.to_string()))
    }
}

/// The old file system on its device.
pub(crate) type Old = butterfs_ext4::FileSystem<DeviceSource>;
