//! Writing into the buffer.
//!
//! Owns what must hold before a write is acknowledged: memory and space are
//! promised to it, and the rest of each of its sectors is known.

use super::SIZE_MAX;
use crate::Filesystem;
use crate::error::FsError;
use crate::file::budget::Promise;
use crate::file::flush::InlineRule;
use crate::inode::{Inode, InodeState};
use crate::names::{S_IFDIR, S_IFMT, S_IFREG};
use butterfs_format::InodeId;
use butterfs_store::{StoreError, now};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A mark of what has changed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    edits: u64,
    writes: u64,
}

/// An inode's buffer is flushed when it holds this many bytes, or this part of
/// the budget.
const FLUSH_AT: u64 = 8 << 20;
const FLUSHES_IN_BUDGET: u64 = 4;
/// Data that go into the buffer in one piece. It is a part of the budget that
/// leaves room for several writers.
const CHUNK: u64 = 4 << 20;
const CHUNKS_IN_BUDGET: u64 = 8;

/// Space for what a change puts into a buffer. With `None` it may only
/// overwrite data in place and fill preallocated space: all other space is used
/// or promised.
pub(super) type EdgeSpace<'a> = Option<Promise<'a>>;

/// What a thread that lacks space has tried already.
#[derive(Debug, Default)]
pub(super) struct Tries {
    wrote_out: bool,
    waited: bool,
}

/// Where data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    At(u64),
    End,
}

/// Which time of change a write sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    Now,
    /// None: the caller tells it apart.
    ToldApart,
}

impl Filesystem {
    /// Writes `data` at `offset`. Gives how many bytes were written: all,
    /// unless an error came after the first of them. The data are durable after
    /// a sync.
    ///
    /// # Errors
    /// [`FsError::TooBig`]; [`FsError::IsADirectory`]; [`FsError::Invalid`] if
    /// the inode is no file; no space; errors of reading the sectors at the
    /// edges, or of flushing older data.
    pub fn write(&self, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        self.write_stamped(inode, offset, data, Stamp::Now)
    }

    /// [`Filesystem::write`] of data that a cache kept until now. Their times
    /// are those of the writes to the cache, which are told apart
    /// ([`Filesystem::set_attributes`]).
    ///
    /// # Errors
    /// As there.
    pub fn write_kept(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, FsError> {
        self.write_stamped(inode, offset, data, Stamp::ToldApart)
    }

    fn write_stamped(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        stamp: Stamp,
    ) -> Result<usize, FsError> {
        offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(FsError::TooBig)?;
        let mut done = 0;
        while done < data.len() {
            let part = &data[done..data.len().min(done + self.chunk())];
            match self.write_chunk(inode, Place::At(offset + done as u64), part, stamp) {
                Ok(_) => done += part.len(),
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, inode = %inode.id.number, "a write ended early");
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Writes `data` at the end of the file, in one piece, even if others
    /// append at the same time. Gives where they begin and how many bytes were
    /// written (at least 512 KiB, or all).
    ///
    /// # Errors
    /// As [`Filesystem::write`].
    pub fn append(&self, inode: &Arc<Inode>, data: &[u8]) -> Result<(u64, usize), FsError> {
        let part = &data[..data.len().min(self.chunk())];
        let at = self.write_chunk(inode, Place::End, part, Stamp::Now)?;
        Ok((at, part.len()))
    }

    /// True while some changes of files are only in memory.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.buffers.dirty().iter().any(|inode| {
            let state = inode.state.read();
            !state.deleted && (state.emptied || !state.buffer.is_empty())
        })
    }

    /// True when a commit would find something to do.
    #[must_use]
    pub fn has_uncommitted(&self) -> bool {
        !self.store.read().is_clean() || self.has_waiting()
    }

    /// A number that every change alters. If two of its values are equal, there
    /// was no change in between.
    #[must_use]
    pub fn activity(&self) -> Activity {
        Activity {
            edits: self.store.read().edits(),
            writes: self.buffers.writes(),
        }
    }

    /// Bytes of all files that wait in memory.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.buffers.total()
    }

    fn chunk(&self) -> usize {
        let share = self.buffers.limit() / CHUNKS_IN_BUDGET;
        let whole = share.min(CHUNK) / self.sector_size * self.sector_size;
        usize::try_from(whole.max(self.sector_size)).unwrap_or(usize::MAX)
    }

    /// Buffers `data` and gives where they begin.
    fn write_chunk(
        &self,
        inode: &Arc<Inode>,
        place: Place,
        data: &[u8],
        stamp: Stamp,
    ) -> Result<u64, FsError> {
        self.store.check_writable()?;
        let rounded = (data.len() as u64).next_multiple_of(self.sector_size);
        if !self.is_unruled(inode) {
            self.ensure_quota(inode.id.tree, rounded)?;
        }
        let promise = self.promise_if_free(data.len() as u64)?;
        let mut state = inode.state.write_beside();
        if state.leaving.is_some()
            && (promise.is_none() || !self.is_plain(&state, place, data.len()))
        {
            drop(state);
            state = inode.state.write();
        }
        check_file(&state)?;
        // Under the lock: a thread that makes the subvolume read-only waits for
        // it.
        if !self.is_unruled(inode) {
            self.check_rules(inode)?;
        }
        if state.flush_failed {
            // Data that cannot be written must not fill everybody's memory.
            self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        }
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => state.item.size,
        };
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(FsError::TooBig)?;
        if data.is_empty() {
            return Ok(offset);
        }
        let sector = self.sector_size;
        let sectors = offset / sector * sector..end.next_multiple_of(sector);
        self.check_space(inode.id, &state, sectors, &promise)?;
        self.buffer_data(inode, &mut state, (offset, data), &promise)?;
        // A thread that closes the volume marks it as closed, then looks at the
        // buffers. So either this check sees the mark, or the closing thread
        // sees these data.
        self.store.check_open()?;
        self.buffers.note_write();
        state.item.size = state.item.size.max(end);
        if stamp == Stamp::Now {
            let time = now();
            state.item.mtime = time;
            state.item.ctime = time;
        }
        state.item.sequence = state.item.sequence.wrapping_add(1);
        if promise.is_none() {
            self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        }
        let flush_at = FLUSH_AT.min(self.buffers.limit() / FLUSHES_IN_BUDGET);
        let is_large = state.buffer.bytes() >= flush_at;
        drop((state, promise));
        if is_large {
            // If this fails, the data are promised and wait. The next write and
            // fsync report the error.
            let _ = self.flush_from(inode, flush_at);
        }
        self.relieve();
        Ok(offset)
    }

    /// Whether a write changes nothing but the buffer, times, and the size that
    /// users see: no sector at its edges has to be read first.
    fn is_plain(&self, state: &InodeState, place: Place, length: usize) -> bool {
        let size = state.item.size;
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => size,
        };
        let end = offset.saturating_add(length as u64);
        let sector = self.sector_size;
        !state.flush_failed
            && offset <= size
            && offset.is_multiple_of(sector)
            && (end.is_multiple_of(sector) || end >= size)
    }

    /// Brings data to the device if much waits. No inode may be locked.
    pub(super) fn relieve(&self) {
        if self.buffers.is_high()
            && let Some(_right) = self.buffers.try_shed()
        {
            butterfs_device::about_to_wait();
            if let Err(error) = self.shed() {
                // What the caller did is done. The fault of another file is not
                // the caller's.
                tracing::debug!(%error, "no memory could be freed");
            }
        }
    }

    /// Puts data into an inode's buffer: whole sectors, or data up to the end
    /// of the last one.
    pub(crate) fn put(&self, id: InodeId, state: &mut InodeState, offset: u64, data: &[u8]) {
        if !state.buffer.is_charged() {
            // The caller that locked the state got the inode from the table,
            // and the table keeps inodes in use.
            if let Some(inode) = self.inodes.get(id) {
                self.buffers.adopt(inode, state);
            }
        }
        state.buffer.write(offset, data, self.sector_size);
    }

    fn buffer_data(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        (offset, data): (u64, &[u8]),
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        let sector = self.sector_size;
        let end = offset + data.len() as u64;
        if offset > state.item.size {
            self.load_tail(inode, state, space)?;
        }
        if !offset.is_multiple_of(sector) {
            self.load_sector(inode, state, offset, space)?;
        }
        if !end.is_multiple_of(sector) && end < state.item.size {
            self.load_sector(inode, state, end, space)?;
        }
        self.put(inode.id, state, offset, data);
        Ok(())
    }

    /// Brings the sector at `at` into the buffer.
    ///
    /// # Errors
    /// No space, if there is none for it; damage.
    pub(super) fn load_sector(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        at: u64,
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        let start = at / self.sector_size * self.sector_size;
        if !state.buffer.contains(start) {
            self.check_space(inode.id, state, start..start + self.sector_size, space)?;
        }
        self.load_acknowledged(inode, state, at)
    }

    /// Brings the sector at `at` into the buffer: part of a change that may not
    /// fail for lack of space.
    pub(super) fn load_acknowledged(
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
        let _addresses = self.store.hold_addresses();
        self.read_locked(inode.id, state, start, &mut bytes)?;
        self.put(inode.id, state, start, &bytes);
        Ok(())
    }

    /// Before a file grows: what lies behind its end in the last sector must
    /// read as zeros.
    pub(super) fn load_tail(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        let size = state.item.size;
        if size.is_multiple_of(self.sector_size) {
            return Ok(());
        }
        let start = size / self.sector_size * self.sector_size;
        let in_extent = self.store.look(|engine| {
            let found = super::extents::counting(engine, inode.id, state, start..size, 1)?;
            Ok::<_, FsError>(!found.is_empty())
        })?;
        if in_extent {
            self.load_sector(inode, state, start, space)?;
        }
        Ok(())
    }

    /// Space for the sectors at the two edges of a change. No inode may be
    /// locked.
    pub(super) fn promise_edges(&self) -> Result<EdgeSpace<'_>, FsError> {
        self.promise_if_free(0)
    }

    /// [`Filesystem::promise`]; `None` if the volume has no space.
    fn promise_if_free(&self, bytes: u64) -> Result<EdgeSpace<'_>, FsError> {
        match self.promise(bytes) {
            Ok(promise) => Ok(Some(promise)),
            Err(FsError::Store(StoreError::NoSpace)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Errors if `sectors` can get into the buffer only with space that was
    /// promised to others.
    fn check_space(
        &self,
        id: InodeId,
        state: &InodeState,
        sectors: Range<u64>,
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        if space.is_some() || self.has_space(id, state, sectors)? {
            return Ok(());
        }
        Err(StoreError::NoSpace.into())
    }

    /// Memory and space for a write of `bytes`. No inode may be locked.
    pub(super) fn promise(&self, bytes: u64) -> Result<Promise<'_>, FsError> {
        // The sectors at its edges may come into the buffer with it.
        let bytes = bytes + 2 * self.sector_size;
        let promise = loop {
            if let Some(promise) = self.buffers.try_promise(bytes) {
                break promise;
            }
            let _right = self.buffers.shed();
            if self.buffers.is_idle() && self.buffers.try_promise(bytes).is_none() {
                // Waiting would never end.
                return Err(StoreError::Internal("the write budget counts what is gone").into());
            }
            if self.buffers.is_low() {
                // Promises of other writers fill the budget. They end soon.
                std::thread::sleep(Duration::from_micros(50));
            }
            self.shed()?;
        };
        self.ensure_space()?;
        Ok(promise)
    }

    /// Errors unless everything that is promised has space.
    pub(crate) fn ensure_space(&self) -> Result<(), FsError> {
        if !self.buffers.is_uncertain() && self.buffers.fits() {
            return Ok(());
        }
        for attempt in 0..2 {
            self.look_at_space();
            if self.buffers.fits() {
                return Ok(());
            }
            if attempt == 0 {
                // The commit frees what is pinned, and shows what compression
                // saves.
                self.write_out()?;
            }
        }
        let mut tries = Tries {
            wrote_out: true,
            ..Tries::default()
        };
        loop {
            while self.clean_for_space()? {
                self.look_at_space();
                if self.buffers.fits() {
                    return Ok(());
                }
            }
            if !self.may_have_space(&mut tries)? {
                return Err(StoreError::NoSpace.into());
            }
            self.look_at_space();
            if self.buffers.fits() {
                return Ok(());
            }
        }
    }

    /// For a thread that met a lack of space: does what may end it, one thing
    /// after the other. False if nothing is left to try. No inode may be locked.
    pub(super) fn may_have_space(&self, tries: &mut Tries) -> Result<bool, FsError> {
        if !std::mem::replace(&mut tries.wrote_out, true) {
            // Others got their promises meanwhile, or freed something.
            self.write_out()?;
            return Ok(true);
        }
        if !std::mem::replace(&mut tries.waited, true) && self.wait_for_nameless() {
            self.write_out()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Notes how much space there is for data, and for the metadata that
    /// describe them.
    pub(crate) fn look_at_space(&self) {
        self.buffers.set_free(self.store.read().promisable());
    }

    /// Flushes the largest buffers until the budget is low again. Errors if
    /// nothing could be flushed.
    fn shed(&self) -> Result<(), FsError> {
        if self.buffers.is_low() {
            return Ok(());
        }
        let mut dirty: Vec<((bool, u64), Arc<Inode>)> = self
            .buffers
            .dirty()
            .into_iter()
            // A locked inode is being written or flushed, and one whose flush
            // failed will hardly succeed now. They come last.
            .map(|inode| {
                let rank = inode
                    .state
                    .try_read()
                    .map_or((true, 0), |s| (!s.flush_failed, s.buffer.bytes()));
                (rank, inode)
            })
            .collect();
        dirty.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        let mut failed = None;
        let mut flushed = false;
        let mut rest = &dirty[..];
        while !rest.is_empty() && !self.buffers.is_low() {
            // As many of the largest as are needed, in the order of their tree.
            let (mut bytes, mut count) = self.buffers.above_low();
            let enough = rest.iter().position(|((_, waits), _)| {
                let enough = bytes == 0 && count == 0;
                bytes = bytes.saturating_sub(*waits);
                count = count.saturating_sub(1);
                enough
            });
            let (now, later) = rest.split_at(enough.unwrap_or(rest.len()).max(1));
            let mut inodes: Vec<_> = now.iter().map(|(_, inode)| Arc::clone(inode)).collect();
            inodes.sort_unstable_by_key(|inode| inode.id);
            self.flush_together(&inodes, &mut |_, result| match result {
                Ok(()) => flushed = true,
                Err(error) => _ = failed.get_or_insert(error),
            });
            rest = later;
        }
        match failed {
            Some(error) if !flushed => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes all data and names durable.
    ///
    /// # Errors
    /// An error of the commit concerns everything. [`FsError::NotFlushed`]
    /// means that everything but the data of some files is durable.
    pub fn sync_all(&self) -> Result<(), FsError> {
        self.write_out()?.map_or(Ok(()), Err)
    }

    /// Makes everything durable that can be, and gives what could not be
    /// flushed. A file that cannot be flushed does not stop the commit.
    ///
    /// # Errors
    /// What the commit met.
    pub fn write_out(&self) -> Result<Option<FsError>, FsError> {
        let flushed = self.flush_all();
        self.store.commit()?;
        Ok(flushed.err())
    }

    /// Brings all data to the device; they are durable after a commit.
    ///
    /// # Errors
    /// [`FsError::NotFlushed`]: all files are tried.
    pub fn flush_all(&self) -> Result<(), FsError> {
        self.flush_each(self.buffers.dirty())
    }

    /// Brings the data of `inodes` to the device.
    ///
    /// # Errors
    /// As [`Filesystem::flush_all`].
    pub(crate) fn flush_each(
        &self,
        inodes: impl IntoIterator<Item = Arc<Inode>>,
    ) -> Result<(), FsError> {
        let mut failed: Option<(InodeId, FsError)> = None;
        let (mut files, mut bytes) = (0, 0);
        let inodes: Vec<_> = inodes.into_iter().collect();
        self.flush_together(&inodes, &mut |inode, result| {
            // Unflushed data of a deleted subvolume are no loss.
            if let Err(error) = result
                && self.is_alive(inode.id.tree)
            {
                files += 1;
                bytes += inode.state.read().buffer.bytes();
                failed.get_or_insert((inode.id, error));
            }
        });
        failed.map_or(Ok(()), |(inode, cause)| {
            Err(FsError::NotFlushed {
                inode,
                files,
                bytes,
                cause: Box::new(cause),
            })
        })
    }
}

/// Errors unless the inode is a file that can be written.
pub(super) fn check_file(state: &InodeState) -> Result<(), FsError> {
    if state.deleted {
        return Err(FsError::NotFound);
    }
    match state.item.mode & S_IFMT {
        S_IFREG => state.check_unprotected(),
        S_IFDIR => Err(FsError::IsADirectory),
        _ => Err(FsError::Invalid("only files can be written")),
    }
}
