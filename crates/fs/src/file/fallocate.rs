//! Preallocating, punching and zeroing ranges.

use super::extents::{self, Body, Found, NewExtent, NewKind};
use super::flush::InlineRule;
use super::limits::{PREALLOC_MAX, SIZE_MAX};
use super::truncate::touch;
use super::write::{EdgeSpace, Tries};
use crate::Filesystem;
use crate::change::Altered;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, store_item};
use crate::names::{S_IFMT, S_IFREG};
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, Logical};
use butterfs_store::{Purpose, StoreError};
use std::ops::Range;

/// File extents dropped in one transaction.
const STEP: usize = 400;

/// What to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate its holes; the file grows to its end.
    Allocate,
    /// Allocate its holes; the size stays.
    AllocateKeepSize,
    /// Make it a hole; the size stays.
    PunchHole,
    /// Make it zeros that have space; the file grows to its end.
    ZeroRange,
    /// Make it zeros that have space; the size stays.
    ZeroRangeKeepSize,
}

/// Whether the first step also sets the inode's time of change, in the same
/// transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    Yes,
    No,
}

impl Filesystem {
    /// fallocate(2).
    ///
    /// # Errors
    /// [`FsError::TooBig`], [`FsError::Invalid`]; no space, damage.
    pub fn fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), FsError> {
        if length == 0 {
            return Err(FsError::Invalid("the length is zero"));
        }
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(FsError::TooBig)?;
        self.store.check_writable()?;
        let mut tries = Tries::default();
        loop {
            match self.fallocate_once(inode, mode, offset..end) {
                // What it allocated stays, and the next try skips it.
                Err(FsError::Store(StoreError::NoSpace))
                    if mode != FallocateMode::PunchHole && self.may_have_space(&mut tries)? => {}
                done => return done,
            }
        }
    }

    fn fallocate_once(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        Range { start: offset, end }: Range<u64>,
    ) -> Result<(), FsError> {
        if mode != FallocateMode::PunchHole {
            self.free_what_waits(inode.id, end - offset)?;
        }
        let space = self.promise_edges()?;
        let mut state = inode.state.write();
        // Under the lock: a thread that makes the subvolume read-only waits for
        // it.
        self.check_changeable(inode.id.tree)?;
        if state.deleted {
            return Err(FsError::NotFound);
        }
        if state.item.mode & S_IFMT != S_IFREG {
            return Err(FsError::NotSupported("only files have space to allocate"));
        }
        state.check_unprotected()?;
        let grows = matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange);
        let is_plain = matches!(
            mode,
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize
        );
        let is_whole = |at: u64| at.is_multiple_of(self.sector_size);
        let range_is_whole = is_plain || (is_whole(offset) && is_whole(end));
        // Where no sector is changed in part, the range itself may have the
        // space for its edges.
        let space = space.filter(|_| !is_whole(state.item.size) || !range_is_whole);
        let noted = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                self.leave_inline_for_good(inode, &mut state, &space)?;
                self.preallocate(inode.id, &mut state, offset..end)?
            }
            FallocateMode::PunchHole => self.punch(inode, &mut state, offset..end, &space)?,
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                self.leave_inline_for_good(inode, &mut state, &space)?;
                self.zero(inode, &mut state, offset..end, &space)?
            }
        };
        if grows && end > state.item.size {
            return self.grow(inode, &mut state, end, &space);
        }
        if noted == Noted::Yes {
            return Ok(());
        }
        let room = (20, Purpose::Shrink);
        self.change(&mut *state, inode.id.tree, room, |engine, state| {
            touch(state);
            store_item(engine, inode.id, state)
        })
    }

    /// If `length` bytes seem not to fit, brings everything that waits to the
    /// device. Space that compression saves, and space that emptied files held,
    /// counts then. No inode may be locked.
    fn free_what_waits(&self, id: InodeId, length: u64) -> Result<(), FsError> {
        self.look_at_space();
        // An fsync of a file reports what could not be flushed. Whether the
        // range fits is decided later, when its holes are known.
        if self.buffers.has_free(length) {
            let _ = self.ensure_quota(id.tree, length);
        } else {
            self.write_out()?;
        }
        Ok(())
    }

    /// Moves inline data out of the tree, so that other extents may follow.
    pub(super) fn leave_inline_for_good(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        if state.item.size > 0 && state.item.size < self.sector_size {
            self.load_sector(inode, state, 0, space)?;
        }
        self.flush_locked(inode, state, InlineRule::Never)
    }

    /// Gives space to the holes of `range`.
    fn preallocate(
        &self,
        id: InodeId,
        state: &mut InodeState,
        range: Range<u64>,
    ) -> Result<Noted, FsError> {
        let holes = self.parts_where(id, self.sectors_around(&range), Found::is_hole)?;
        let _reserved = self.reserve_space(id, &holes)?;
        self.allocate_holes(id, state, holes)
    }

    /// The whole sectors that have a part in `range`.
    const fn sectors_around(&self, range: &Range<u64>) -> Range<u64> {
        let sector = self.sector_size;
        range.start / sector * sector..range.end.next_multiple_of(sector)
    }

    /// Parts of `range` without file extents, and those whose file extents are
    /// `wanted`, in their order. Neighbours are one part.
    fn parts_where(
        &self,
        id: InodeId,
        range: Range<u64>,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<Vec<Range<u64>>, FsError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let engine = self.store.read();
        let mut parts = extents::gaps(&engine, id, range.clone(), self.sector_size)?;
        for extent in extents::overlapping(&engine, id, range.clone(), usize::MAX)? {
            if wanted(&extent) {
                parts.push(extent.start.max(range.start)..extent.end().min(range.end));
            }
        }
        parts.sort_by_key(|part| part.start);
        parts.dedup_by(|later, earlier| {
            let touches = later.start <= earlier.end;
            if touches {
                earlier.end = earlier.end.max(later.end);
            }
            touches
        });
        Ok(parts)
    }

    /// Reserves space for all of `parts`. Preallocation gets only space that
    /// was not promised to writers.
    fn reserve_space(
        &self,
        id: InodeId,
        parts: &[Range<u64>],
    ) -> Result<impl Drop + use<'_>, FsError> {
        let total: u64 = parts.iter().map(|part| part.end - part.start).sum();
        self.ensure_quota_locked(id.tree, total)?;
        let reserved = self.buffers.reserve(total);
        self.look_at_space();
        if !self.buffers.fits() {
            self.store.commit()?;
            self.look_at_space();
        }
        while !self.buffers.fits() {
            if !self.clean_for_space()? {
                return Err(StoreError::NoSpace.into());
            }
            self.look_at_space();
        }
        Ok(reserved)
    }

    /// Gives space to `holes`, for which space is reserved.
    fn allocate_holes(
        &self,
        id: InodeId,
        state: &mut InodeState,
        holes: Vec<Range<u64>>,
    ) -> Result<Noted, FsError> {
        let mut noted = Noted::No;
        for hole in holes {
            noted = Noted::Yes;
            let mut at = hole.start;
            while at < hole.end {
                let length = (hole.end - at).min(PREALLOC_MAX);
                at += self.preallocate_one(id, state, at..at + length)?;
            }
        }
        Ok(noted)
    }

    /// Preallocates the beginning of `range`; gives how many bytes.
    fn preallocate_one(
        &self,
        id: InodeId,
        state: &mut InodeState,
        range: Range<u64>,
    ) -> Result<u64, FsError> {
        let mut transaction = self.begin(60, Purpose::Grow)?;
        let disk = transaction.allocate_data(range.end - range.start)?;
        let length = disk.end - disk.start;
        self.buffers.preallocated(length);
        self.unpacked.forget(&disk);
        let new = NewExtent {
            start: range.start,
            ram_bytes: length,
            compression: None,
            copied: None,
            place: ExtentPlace {
                disk: Logical(disk.start),
                disk_length: length,
                offset: 0,
                length,
            },
            kind: NewKind::Prealloc,
        };
        let before = state.before();
        state.item.flags |= InodeFlags::PREALLOC;
        touch(state);
        let part = range.start..range.start + length;
        let result = extents::drop_range(&mut transaction, id, state, part, usize::MAX)
            .and_then(|_| extents::insert_allocated(&mut transaction, id, state, &new))
            .and_then(|()| store_item(&mut transaction, id, state));
        if result.is_err() {
            state.undo(before);
            if !transaction.has_edited() {
                transaction.give_back(Logical(disk.start), length);
            }
        }
        transaction.end(result).map(|()| length)
    }

    /// Makes `range` read as zeros and frees its whole sectors.
    fn punch(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        range: Range<u64>,
        space: &EdgeSpace<'_>,
    ) -> Result<Noted, FsError> {
        // What waits for the tree would come back behind the hole.
        self.flush_locked(inode, state, InlineRule::Allowed)?;
        self.zero_edges(inode, state, &range, space)?;
        let whole = self.whole_sectors(state, &range);
        self.drop_whole(inode.id, state, whole.clone())?;
        self.flush_locked(inode, state, InlineRule::Allowed)?;
        Ok(if whole.is_empty() {
            Noted::No
        } else {
            Noted::Yes
        })
    }

    /// Makes `range` zeros that have space. A lack of space or quota is found
    /// before anything changes.
    fn zero(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        range: Range<u64>,
        space: &EdgeSpace<'_>,
    ) -> Result<Noted, FsError> {
        let id = inode.id;
        let around = self.sectors_around(&range);
        let whole = self.whole_sectors(state, &range);
        // Preallocated space stays.
        let is_used = |extent: &Found| !matches!(extent.body, Body::Prealloc(_));
        let mut wanted = self.parts_where(id, around.start..whole.start, Found::is_hole)?;
        wanted.extend(self.parts_where(id, whole.clone(), is_used)?);
        wanted.extend(self.parts_where(id, whole.end..around.end, Found::is_hole)?);
        let _reserved = self.reserve_space(id, &wanted)?;
        self.zero_edges(inode, state, &range, space)?;
        for part in &wanted {
            self.drop_whole(id, state, part.clone())?;
        }
        let noted = self.allocate_holes(id, state, wanted)?;
        self.flush_locked(inode, state, InlineRule::Never)?;
        Ok(noted)
    }

    /// The sectors that `range` covers as a whole.
    fn whole_sectors(&self, state: &InodeState, range: &Range<u64>) -> Range<u64> {
        let sector = self.sector_size;
        let first = range.start.next_multiple_of(sector);
        let last = if range.end >= state.item.size {
            // The rest of the last sector is zeros anyway.
            range.end.next_multiple_of(sector)
        } else {
            range.end / sector * sector
        };
        first..last.max(first)
    }

    /// Puts zeros into the buffer for what `range` has beside whole sectors.
    fn zero_edges(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        range: &Range<u64>,
        space: &EdgeSpace<'_>,
    ) -> Result<(), FsError> {
        let whole = self.whole_sectors(state, range);
        let size = state.item.size;
        // If both are in one sector, the first is all of `range`.
        let edges = [
            range.start..whole.start.min(range.end),
            whole.end..range.end,
        ];
        let mut with_data = Vec::new();
        for edge in edges {
            let edge = edge.start..edge.end.min(size);
            if !edge.is_empty() && self.has_data(inode, state, &edge)? {
                self.load_sector(inode, state, edge.start, space)?;
                self.load_sector(inode, state, edge.end - 1, space)?;
                with_data.push(edge);
            }
        }
        for edge in with_data {
            let zeros = vec![0; (edge.end - edge.start) as usize];
            self.put(inode.id, state, edge.start, &zeros);
        }
        Ok(())
    }

    /// Makes `range`, which has whole sectors, a hole.
    fn drop_whole(
        &self,
        id: InodeId,
        state: &mut InodeState,
        range: Range<u64>,
    ) -> Result<(), FsError> {
        let mut from = (!range.is_empty()).then_some(range.start);
        while let Some(start) = from {
            let room = (60 + STEP / 8, Purpose::Shrink);
            from = self.change(state, id.tree, room, |engine, state| {
                touch(state);
                let next = extents::drop_range(engine, id, state, start..range.end, STEP)?;
                let end = next.unwrap_or(range.end);
                let end = end.min(state.disk_size.next_multiple_of(self.sector_size));
                if start < end {
                    extents::fill_holes(engine, id, state, start..end)?;
                }
                store_item(engine, id, state)?;
                Ok(next)
            })?;
        }
        Ok(())
    }

    /// True unless `range` has only holes and preallocated space.
    fn has_data(
        &self,
        inode: &Inode,
        state: &InodeState,
        range: &Range<u64>,
    ) -> Result<bool, FsError> {
        if state.buffer.contains(range.start) || state.buffer.contains(range.end - 1) {
            return Ok(true);
        }
        let engine = self.store.read();
        let found = extents::counting(&engine, inode.id, state, range.clone(), usize::MAX)?;
        Ok(found
            .iter()
            .any(|e| !e.is_hole() && !matches!(e.body, Body::Prealloc(_))))
    }
}
