//! Changing the size of a file.

use super::write::EdgeSpace;
use super::{SIZE_MAX, extents};
use crate::Filesystem;
use crate::error::FsError;
use crate::file::flush::InlineRule;
use crate::inode::{Inode, InodeState, store_item};
use crate::names::{S_IFMT, S_IFREG};
use butterfs_format::InodeId;
use butterfs_store::{Purpose, now};
use extents::Body;

/// File extents dropped in one transaction.
const STEP: usize = 400;

impl Filesystem {
    /// Sets a file's size. Data beyond it are removed; added bytes read as
    /// zeros.
    ///
    /// # Errors
    /// [`FsError::TooBig`], [`FsError::Invalid`] if it is no file; no space,
    /// damage.
    pub fn truncate(&self, inode: &Inode, size: u64) -> Result<(), FsError> {
        if size > SIZE_MAX {
            return Err(FsError::TooBig);
        }
        self.store.check_writable()?;
        let grows = size > inode.state.read().item.size;
        let space = if grows || (1..self.sector_size).contains(&size) {
            self.promise_edges()?
        } else {
            None
        };
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        self.check_changeable(inode.id.tree)?;
        match state.item.mode & S_IFMT {
            S_IFREG => {}
            crate::names::S_IFDIR => return Err(FsError::IsADirectory),
            _ => return Err(FsError::Invalid("only files have a size to set")),
        }
        state.check_unprotected()?;
        if size > state.item.size {
            return self.grow(inode, &mut state, size, &space);
        }
        if size == 0 && self.empty_later(inode.id, &mut state)? {
            // As for data: a thread that closes the volume marks it as closed,
            // then looks at the buffers.
            self.store.check_open()?;
            drop((state, space));
            self.relieve();
            return Ok(());
        }
        if state.emptied {
            self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        }
        self.shrink(inode, &mut state, size)
    }

    /// Cuts a file to nothing in memory. Its tree keeps what the last commit
    /// has until the next flush. That flush replaces it with what was written,
    /// in the same transaction. So no commit has the file without the old data
    /// or the new.
    ///
    /// False if the file has nothing to lose, or if its space is needed now.
    fn empty_later(&self, id: InodeId, state: &mut InodeState) -> Result<bool, FsError> {
        if state.disk_size == 0 || state.item.nlink == 0 {
            return Ok(false);
        }
        if self.buffers.is_uncertain() {
            self.look_at_space();
        }
        if !self.buffers.has_free(state.item.nbytes) {
            return Ok(false);
        }
        if !state.emptied {
            // The caller must learn of damage here, not the flush.
            extents::last_from(&self.store.read(), id, 0, STEP)?;
        }
        let Some(inode) = self.inodes.get(id) else {
            return Ok(false);
        };
        if !state.buffer.is_charged() {
            self.buffers.note_write();
            self.buffers.adopt(inode, state);
        }
        state.buffer.clear();
        state.emptied = true;
        state.item.size = 0;
        touch(state);
        Ok(true)
    }

    /// Brings an emptied file down to what one transaction can drop.
    pub(super) fn thin_emptied(&self, id: InodeId, state: &mut InodeState) -> Result<(), FsError> {
        loop {
            let last = extents::last_from(&self.store.read(), id, 0, STEP + 1)?;
            if last.len() <= STEP {
                return Ok(());
            }
            let start = last[1].start;
            let room = (60 + STEP / 8, Purpose::Shrink);
            self.change_own(state, id.tree, room, |engine, state| {
                extents::drop_range(engine, id, state, start..u64::MAX, usize::MAX)?;
                state.disk_size = state.disk_size.min(start);
                store_item(engine, id, state)
            })?;
        }
    }

    /// Drops what the tree has of an emptied file that nothing replaces.
    pub(super) fn drop_emptied(&self, id: InodeId, state: &mut InodeState) -> Result<(), FsError> {
        let room = (60 + Self::nodes_of_emptied(state), Purpose::Shrink);
        self.change_own(state, id.tree, room, |engine, state| {
            extents::drop_emptied(engine, id, state)?;
            store_item(engine, id, state)
        })
    }

    /// Nodes that [`extents::drop_emptied`] touches.
    pub(super) const fn nodes_of_emptied(state: &InodeState) -> usize {
        if state.emptied { STEP / 8 } else { 0 }
    }

    pub(super) fn grow(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        size: u64,
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        self.load_tail(inode, state, space)?;
        let old = (state.item.size, state.item.mtime, state.item.ctime);
        state.item.size = size;
        touch(state);
        // Flushes also if no data wait, because the size in the tree then
        // follows at once.
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
            // The next flush replaces the inline extent as a whole; until then
            // it stays as it is. A file can be cut even on a full volume: most
            // stay inline.
            self.load_acknowledged(inode, state, 0)?;
        }
        // Cuts from the end, and lowers the size with each step. So a crash
        // between two steps leaves a longer file, and never extents beyond its
        // end that would come back.
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
