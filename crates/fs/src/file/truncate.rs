//! Changing the size of a file.

use super::{SIZE_MAX, extents};
use crate::Filesystem;
use crate::error::FsError;
use crate::file::flush::InlineRule;
use crate::inode::{Inode, InodeState, store_item};
use crate::names::{S_IFMT, S_IFREG};
use butterfs_store::{Purpose, now};
use extents::Body;

/// File extents dropped in one transaction.
const STEP: usize = 400;

impl Filesystem {
    /// Sets a file's size: what is beyond goes, what is added reads as zeros.
    ///
    /// # Errors
    /// [`FsError::TooBig`], [`FsError::Invalid`] for what is no file; no
    /// space, damage.
    pub fn truncate(&self, inode: &Inode, size: u64) -> Result<(), FsError> {
        if size > SIZE_MAX {
            return Err(FsError::TooBig);
        }
        self.store.check_writable()?;
        self.check_changeable(inode.id.tree)?;
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        match state.item.mode & S_IFMT {
            S_IFREG => {}
            crate::names::S_IFDIR => return Err(FsError::IsADirectory),
            _ => return Err(FsError::Invalid("only files have a size to set")),
        }
        state.check_unprotected()?;
        if size > state.item.size {
            self.grow(inode, &mut state, size)
        } else {
            self.shrink(inode, &mut state, size)
        }
    }

    pub(crate) fn grow(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        size: u64,
    ) -> Result<(), FsError> {
        self.load_tail(inode, state)?;
        let old = (state.item.size, state.item.mtime, state.item.ctime);
        state.item.size = size;
        touch(state);
        // Also without data: the size then follows at once.
        let flushed = self.flush_locked(inode, state, InlineRule::Allowed);
        flushed.inspect_err(|_| (state.item.size, state.item.mtime, state.item.ctime) = old)
    }

    fn shrink(&self, inode: &Inode, state: &mut InodeState, size: u64) -> Result<(), FsError> {
        let sector = self.sector_size;
        let id = inode.id;
        let end = size.next_multiple_of(sector);
        let inline = size > 0 && {
            let engine = self.store.read();
            let first = extents::overlapping(&engine, id, 0..1, 1)?;
            first
                .first()
                .is_some_and(|extent| matches!(extent.body, Body::Inline(_)))
        };
        if inline {
            // The flush replaces it in one piece; until then it stays whole.
            self.load_sector(inode, state, 0)?;
        }
        // From the end, and the size with it: a crash between two steps leaves
        // a longer file, never extents beyond its end that would come back.
        loop {
            let (kept, done) = self.change(
                state,
                id.tree,
                (60 + STEP / 8, Purpose::Shrink),
                |engine, state| {
                    touch(state);
                    let all = extents::last_from(engine, id, end, STEP)?;
                    let done = all.len() < STEP;
                    let start = all.first().map_or(end, |first| first.start.max(end));
                    if !all.is_empty() {
                        extents::drop_range(engine, id, state, start..u64::MAX, usize::MAX)?;
                    }
                    let kept = if done { size } else { start };
                    if !inline {
                        state.disk_size = state.disk_size.min(kept);
                    }
                    store_item(engine, id, state)?;
                    Ok((kept, done))
                },
            )?;
            state.item.size = state.item.size.min(kept);
            state
                .buffer
                .remove(kept.next_multiple_of(sector)..u64::MAX / sector * sector);
            if done {
                break;
            }
        }
        if !size.is_multiple_of(sector) && state.buffer.contains(size) {
            let zeros = vec![0; (end - size) as usize];
            self.put(id, state, size, &zeros);
        }
        self.flush_locked(inode, state, InlineRule::Allowed)
    }
}

/// Notes in an inode that its content changed.
pub(super) fn touch(state: &mut InodeState) {
    let time = now();
    state.item.mtime = time;
    state.item.ctime = time;
    state.item.sequence = state.item.sequence.wrapping_add(1);
}
