//! What a device holds and who uses it, before it is formatted.
//!
//! Owns the signatures of file systems, containers and partition tables. They
//! serve a question ("this holds ext4; overwrite?"), so a false alarm is
//! better than silence; nothing here is trusted for reading.

mod partition;
mod signature;
mod table;

pub use table::{Partition, PartitionTable, partitions};

use crate::holder::{self, DeviceNumber, Holder};
use crate::{BlockDevice, DeviceError};
use butterfs_format::DeviceOffset;
use std::fmt;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

/// Something that was found on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// A file system, by its usual name.
    FileSystem(&'static str),
    /// A member of something larger: LUKS, LVM, RAID, ZFS.
    Container(&'static str),
    /// A swap area.
    Swap,
    /// A partition table.
    PartitionTable(&'static str),
    /// A disk image in a format of its own, by qemu-img's name for the format.
    DiskImage(&'static str),
    /// A compressed file, by the program that decompresses it.
    Compressed(&'static str),
}

impl Found {
    /// Its name alone.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FileSystem(name)
            | Self::Container(name)
            | Self::PartitionTable(name)
            | Self::DiskImage(name)
            | Self::Compressed(name) => name,
            Self::Swap => "swap",
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(name) => write!(f, "a file system ({name})"),
            Self::Container(name) => write!(f, "a member of {name}"),
            Self::Swap => f.write_str("a swap area"),
            Self::PartitionTable(name) => write!(f, "a partition table ({name})"),
            Self::DiskImage(name) => write!(f, "a disk image ({name})"),
            Self::Compressed(name) => write!(f, "a file compressed with {name}"),
        }
    }
}

/// The ends of a device, where signatures lie.
struct Ends {
    size: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// Bytes read at each end: the farthest signature is ZFS's, in its first
/// label of 256 KiB.
const END: u64 = 256 << 10;

impl Ends {
    fn read(device: &dyn BlockDevice) -> Result<Self, DeviceError> {
        let size = device.size();
        let length = size.min(END);
        let read = |offset: u64| {
            let mut buf = vec![0; usize::try_from(length).unwrap_or(0)];
            device.read_at(DeviceOffset(offset), &mut buf)?;
            Ok(buf)
        };
        Ok(Self {
            size,
            head: read(0)?,
            tail: read(size.saturating_sub(length))?,
        })
    }

    /// `N` bytes at an offset near the beginning.
    fn at<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let rest = self.head.get(usize::try_from(offset).ok()?..)?;
        rest.first_chunk().copied()
    }

    /// `N` bytes at an offset near the end.
    fn at_end<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let start = self.size.saturating_sub(END);
        let rest = self
            .tail
            .get(usize::try_from(offset.checked_sub(start)?).ok()?..)?;
        rest.first_chunk().copied()
    }

    fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        usize::try_from(offset)
            .ok()
            .and_then(|offset| self.head.get(offset..))
            .is_some_and(|rest| rest.starts_with(bytes))
    }

    fn u32(&self, offset: u64) -> u32 {
        self.at(offset).map_or(0, u32::from_le_bytes)
    }
}

/// What the device holds; empty when nothing is recognized. More than one
/// entry where an old signature was left behind.
///
/// # Errors
/// Those of reading.
pub fn contents(device: &dyn BlockDevice) -> Result<Vec<Found>, DeviceError> {
    let ends = Ends::read(device)?;
    let mut found = signature::find(&ends);
    found.extend(partition::find(&ends, &found));
    Ok(found)
}

/// What uses the block device or the file at `path`: a mount, swap, a loop
/// device in use, a process with a lock. `None` when no user is known.
#[must_use]
pub fn user(path: &Path) -> Option<Holder> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        return holder::holder_of_block_device(DeviceNumber::new(meta.rdev()));
    }
    holder::holder_of_file(&meta).or_else(|| holder::lock_holder(&meta))
}
