//! Finding data and holes.

use super::extents::{self, Body};
use super::flush::InlineRule;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::Inode;

/// What to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Data.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

impl Filesystem {
    /// Offset of the next data or hole at or after `offset`. Preallocated
    /// space counts as a hole.
    ///
    /// # Errors
    /// [`FsError::NoMoreData`] beyond the end; damage, reading.
    pub fn seek(&self, inode: &Inode, target: SeekTarget, offset: u64) -> Result<u64, FsError> {
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        let size = state.item.size;
        if offset >= size {
            return Err(FsError::NoMoreData);
        }
        self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        let engine = self.store.read();
        let sector = engine.sector_size();
        let mut at = offset;
        while at < size {
            let batch = extents::overlapping(&engine, inode.id, at..size, 256)?;
            let complete = batch.len() < 256;
            for extent in batch {
                let empty = extent.is_hole() || matches!(extent.body, Body::Prealloc(_));
                let hole_before = extent.start > at;
                match target {
                    SeekTarget::Hole if hole_before || empty => return Ok(at),
                    SeekTarget::Data if !empty => return Ok(at.max(extent.start)),
                    _ => at = extent.end().next_multiple_of(sector),
                }
            }
            if complete {
                break;
            }
        }
        match target {
            SeekTarget::Hole => Ok(at.min(size)),
            SeekTarget::Data => Err(FsError::NoMoreData),
        }
    }
}
