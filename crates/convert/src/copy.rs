//! A copy of a file system on another device, where the conversion can take
//! place while the source stays as it is.

use crate::error::ConvertError;
use crate::ground::used_sectors;
use crate::options::{Step, Watch};
use crate::source::{DeviceSource, Old};
use butterfs_device::BlockDevice;
use butterfs_format::DeviceOffset;
use std::sync::Arc;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// Copies what an ext4 file system uses from one device to another, which has
/// at least its size and reads as zeros. What is zeros is not written. Returns
/// how many bytes are in use.
///
/// # Errors
/// It is no such file system, the bitmaps cannot be read, reading, writing.
pub fn copy_used(
    from: &Arc<dyn BlockDevice>,
    to: &dyn BlockDevice,
    watch: &dyn Watch,
) -> Result<u64, ConvertError> {
    let old = Old::open(DeviceSource::new(from))?;
    let superblock = old.superblock();
    let size = superblock.blocks.saturating_mul(superblock.block_size());
    let end = from.size().min(to.size());
    let mut buffer = Vec::new();
    let mut used = 0_u64;
    used_sectors(&old, &mut |range| {
        let range = range.start..range.end.min(end);
        let mut at = range.start;
        while at < range.end {
            if watch.is_stopped() {
                return Err(ConvertError::Stopped);
            }
            watch.progress(Step::Copying, at, size);
            let length = PIECE.min(range.end.saturating_sub(at));
            buffer.resize(usize::try_from(length).unwrap_or(0), 0);
            from.read_at(DeviceOffset(at), &mut buffer)?;
            if buffer.iter().any(|byte| *byte != 0) {
                to.write_at(DeviceOffset(at), &buffer)?;
            }
            at = at.saturating_add(length);
            used = used.saturating_add(length);
        }
        Ok(())
    })?;
    to.flush()?;
    Ok(used)
}
