//! Writing into the buffer.

use super::SIZE_MAX;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState};
use butterfs_store::{SpaceKind, StoreError, now};
use std::sync::Arc;

/// An inode's buffer is flushed when it holds this many bytes.
const FLUSH_AT: u64 = 8 << 20;

impl Filesystem {
    /// Writes `data` at `offset` and gives its length. The data are durable
    /// after a sync.
    ///
    /// # Errors
    /// [`FsError::TooBig`]; no space; what reading the sectors at the edges,
    /// or flushing older data, met.
    pub fn write(&self, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        self.store.check_writable()?;
        if data.is_empty() {
            return Ok(0);
        }
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(FsError::TooBig)?;
        self.reserve_data(data.len() as u64)?;
        let flush = {
            let mut state = inode.state.write();
            if state.deleted {
                return Err(FsError::NotFound);
            }
            let before = state.buffer.bytes();
            let result = self.buffer_data(inode, &mut state, offset, data);
            let after = state.buffer.bytes();
            self.buffers.changed(inode, before, after);
            result?;
            let time = now();
            state.item.size = state.item.size.max(end);
            state.item.mtime = time;
            state.item.ctime = time;
            state.item.sequence = state.item.sequence.wrapping_add(1);
            state.buffer.bytes() >= FLUSH_AT
        };
        if flush {
            self.flush_inode(inode)?;
        }
        if self.buffers.is_full() {
            self.flush_all()?;
        }
        Ok(data.len())
    }

    fn buffer_data(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
    ) -> Result<(), FsError> {
        let sector = self.sector_size;
        let end = offset + data.len() as u64;
        if offset > state.item.size {
            self.load_tail(inode, state)?;
        }
        if !offset.is_multiple_of(sector) {
            self.load_sector(inode, state, offset)?;
        }
        if !end.is_multiple_of(sector) && end < state.item.size {
            self.load_sector(inode, state, end)?;
        }
        state.buffer.write(offset, data, sector);
        Ok(())
    }

    /// Brings the sector at `at` into the buffer.
    pub(crate) fn load_sector(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        at: u64,
    ) -> Result<(), FsError> {
        let start = at / self.sector_size * self.sector_size;
        if state.buffer.contains(start) {
            return Ok(());
        }
        let mut bytes = vec![0; self.sector_size as usize];
        self.read_locked(inode.id, state, start, &mut bytes)?;
        state.buffer.write(start, &bytes, self.sector_size);
        Ok(())
    }

    /// Before a file grows: what lies behind its end in the last sector must
    /// read as zeros.
    pub(crate) fn load_tail(&self, inode: &Inode, state: &mut InodeState) -> Result<(), FsError> {
        let size = state.item.size;
        if size.is_multiple_of(self.sector_size) {
            return Ok(());
        }
        let start = size / self.sector_size * self.sector_size;
        let in_extent = {
            let engine = self.store.read();
            !super::extents::overlapping(&engine, inode.id, start..size, 1)?.is_empty()
        };
        if in_extent {
            self.load_sector(inode, state, start)?;
        }
        Ok(())
    }

    /// Errors unless there is room for `bytes` more of data.
    fn reserve_data(&self, bytes: u64) -> Result<(), FsError> {
        let need = |fs: &Self| fs.buffers.total() + bytes + fs.sector_size;
        if need(self) <= self.buffers.free() {
            return Ok(());
        }
        for attempt in 0..2 {
            self.buffers
                .set_free(self.store.read().available(SpaceKind::Data));
            if need(self) <= self.buffers.free() {
                return Ok(());
            }
            if attempt == 0 {
                // Frees what is pinned, and shows what compression saves.
                self.sync_all()?;
            }
        }
        Err(StoreError::NoSpace.into())
    }

    /// Makes all data and names durable.
    ///
    /// # Errors
    /// What flushing or the commit met.
    pub fn sync_all(&self) -> Result<(), FsError> {
        self.flush_all()?;
        self.store.commit()?;
        Ok(())
    }

    /// Brings all data to the device; they are durable after a commit.
    ///
    /// # Errors
    /// The first that a flush met; the others are tried all the same.
    pub fn flush_all(&self) -> Result<(), FsError> {
        let mut first = Ok(());
        for inode in self.buffers.dirty() {
            let result = self.flush_inode(&inode);
            if first.is_ok() {
                first = result;
            }
        }
        first
    }

    /// Makes one file durable.
    ///
    /// # Errors
    /// What flushing or the commit met.
    pub fn fsync(&self, inode: &Inode) -> Result<(), FsError> {
        self.flush_inode(inode)?;
        self.store.commit()?;
        Ok(())
    }
}
