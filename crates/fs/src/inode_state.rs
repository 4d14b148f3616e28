//! What is known of an inode in use, and the lock of that.
//!
//! A flush works on the data that it took out of the buffer, and holds the lock
//! only at its beginning and end. In between the data are *leaving*: they count
//! as the file's, but are in neither the buffer nor the tree. Reads and plain
//! writes know that, and go on beside the flush. All else waits for its end:
//! [`StateLock::read`] and [`StateLock::write`] give a state of which nothing
//! leaves.
//!
//! Lock order: the right to flush, then the state. Nobody waits for the right
//! who has the state.

use crate::error::FsError;
use crate::file::buffer::WriteBuffer;
use butterfs_format::compression::Algorithm;
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;
use std::sync::Arc;

/// What is known of an inode.
#[derive(Debug)]
pub struct InodeState {
    /// Its item; `size` is what users see.
    pub item: InodeItem,
    /// Size that the tree's item has: no data are missing below it.
    pub disk_size: u64,
    /// Data that are not on the device yet.
    pub buffer: WriteBuffer,
    /// Data that a flush took out of the buffer and is bringing to the tree.
    pub(crate) leaving: Option<Arc<WriteBuffer>>,
    /// The file was cut to nothing. What its tree still has does not count, and
    /// the next flush removes it.
    pub emptied: bool,
    /// The last flush failed. The file takes no more data until a flush
    /// succeeds.
    pub(crate) flush_failed: bool,
    /// Compression that the property asks for; `Some(None)` is an explicit
    /// "none".
    pub compression: Option<Option<Algorithm>>,
    /// Index of the next directory entry, once known.
    pub next_index: Option<u64>,
    /// The inode was deleted; nothing may be written to it any more.
    pub deleted: bool,
}

impl InodeState {
    /// As the tree has it.
    pub(crate) fn new(item: InodeItem) -> Self {
        Self {
            disk_size: item.size,
            item,
            buffer: WriteBuffer::default(),
            leaving: None,
            emptied: false,
            flush_failed: false,
            compression: None,
            next_index: None,
            deleted: false,
        }
    }

    /// A copy for a flush that works beside others: without the data.
    pub(crate) fn without_data(&self) -> Self {
        Self {
            disk_size: self.disk_size,
            compression: self.compression,
            ..Self::new(self.item.clone())
        }
    }

    /// Whether the tree has all that is known here.
    pub(crate) fn is_stored(&self) -> bool {
        self.buffer.is_empty()
            && self.leaving.is_none()
            && !self.emptied
            && !self.flush_failed
            && self.disk_size == self.item.size
    }

    /// Whether some of these bytes leave the buffer.
    pub(crate) fn leaves(&self, range: &Range<u64>) -> bool {
        let leaving = self.leaving.as_ref();
        leaving.is_some_and(|data| data.overlaps(range))
    }

    /// Whether data of the file may be written where they lie.
    pub(crate) fn may_lie_in_place(&self) -> bool {
        let flags = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
        self.item.flags.intersects(flags) && !self.emptied
    }

    /// Errors if the inode has the flag READONLY. On a converted volume the
    /// image of the former file system has it, because a conversion back needs
    /// the image. Nobody may write to such a file, not even root. Names of it
    /// can be added and removed as their directory permits.
    pub(crate) const fn check_unprotected(&self) -> Result<(), FsError> {
        if self.item.flags.contains(InodeFlags::READONLY) {
            return Err(FsError::AccessDenied);
        }
        Ok(())
    }
}

/// An inode's state under its lock.
#[derive(Debug)]
pub struct StateLock {
    state: RwLock<InodeState>,
    /// Held while data leave the buffer.
    flushing: Mutex<()>,
}

/// The right to take data out of the buffer. Nothing is leaving that somebody
/// else took.
pub(crate) struct FlushRight<'i> {
    _held: MutexGuard<'i, ()>,
}

impl StateLock {
    pub(crate) const fn new(state: InodeState) -> Self {
        Self {
            state: RwLock::new(state),
            flushing: Mutex::new(()),
        }
    }

    /// The state, for reading, when nothing leaves its buffer.
    pub fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        let state = self.state.read();
        if state.leaving.is_none() {
            return state;
        }
        drop(state);
        let _nobody_flushes = self.right_to_flush();
        self.state.read()
    }

    /// The state, for changes, when nothing leaves its buffer.
    pub fn write(&self) -> RwLockWriteGuard<'_, InodeState> {
        let state = self.state.write();
        if state.leaving.is_none() {
            return state;
        }
        drop(state);
        let _nobody_flushes = self.right_to_flush();
        self.state.write()
    }

    /// [`StateLock::read`], if nobody else has the lock or flushes.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        let state = self.state.try_read()?;
        state.leaving.is_none().then_some(state)
    }

    /// [`StateLock::write`], if nobody else has the lock or flushes.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, InodeState>> {
        let state = self.state.try_write()?;
        state.leaving.is_none().then_some(state)
    }

    /// The state, for reading, while data may be leaving.
    pub fn read_beside(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// The state, for changes of what a flush leaves alone: the buffer, the size
    /// that users see, and times.
    pub(crate) fn write_beside(&self) -> RwLockWriteGuard<'_, InodeState> {
        self.state.write()
    }

    /// Waits for others that flush, and keeps them out.
    pub(crate) fn right_to_flush(&self) -> FlushRight<'_> {
        FlushRight {
            _held: self.flushing.lock(),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut InodeState {
        self.state.get_mut()
    }
}
