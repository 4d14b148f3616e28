//! Preallocating, punching and zeroing ranges.

use super::extents::{self, NewExtent, NewKind};
use super::flush::InlineRule;
use super::limits::{PREALLOC_MAX, SIZE_MAX};
use super::truncate::touch;
use crate::Filesystem;
use crate::change::Altered;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, store_item};
use crate::names::{S_IFMT, S_IFREG};
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, Logical};
use butterfs_store::Purpose;
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
        if mode != FallocateMode::PunchHole {
            self.free_what_waits(inode.id, length)?;
        }
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
        let noted = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                self.leave_inline_for_good(inode, &mut state)?;
                self.preallocate(inode.id, &mut state, offset..end)?
            }
            FallocateMode::PunchHole => self.punch(inode, &mut state, offset..end)?,
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                self.leave_inline_for_good(inode, &mut state)?;
                let noted = self.punch(inode, &mut state, offset..end)?;
                self.preallocate(inode.id, &mut state, offset..end)?;
                noted
            }
        };
        if grows && end > state.item.size {
            return self.grow(inode, &mut state, end);
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
    ) -> Result<(), FsError> {
        if state.item.size > 0 && state.item.size < self.sector_size {
            self.load_sector(inode, state, 0)?;
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
        let sector = self.sector_size;
        let range = range.start / sector * sector..range.end.next_multiple_of(sector);
        let wanted: Vec<Range<u64>> = {
            let engine = self.store.read();
            let mut holes = extents::gaps(&engine, id, range.clone(), sector)?;
            for extent in extents::overlapping(&engine, id, range.clone(), usize::MAX)? {
                if extent.is_hole() {
                    holes.push(extent.start.max(range.start)..extent.end().min(range.end));
                }
            }
            holes.sort_by_key(|hole| hole.start);
            holes
        };
        let total: u64 = wanted.iter().map(|hole| hole.end - hole.start).sum();
        self.ensure_quota_locked(id.tree, total)?;
        // Preallocation gets only space that was not promised to writers.
        let _reserved = self.buffers.reserve(total);
        self.look_at_space();
        if !self.buffers.fits() {
            self.store.commit()?;
            self.look_at_space();
        }
        while !self.buffers.fits() {
            if !self.clean_for_space()? {
                return Err(butterfs_store::StoreError::NoSpace.into());
            }
            self.look_at_space();
        }
        let mut noted = Noted::No;
        for hole in wanted {
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
    ) -> Result<Noted, FsError> {
        let sector = self.sector_size;
        let id = inode.id;
        let size = state.item.size;
        let first = range.start.next_multiple_of(sector);
        let last = if range.end >= size {
            // The rest of the last sector is zeros anyway.
            range.end.next_multiple_of(sector)
        } else {
            range.end / sector * sector
        };
        // Within one sector, both edges are the range itself.
        let edges = [
            range.start..first.min(range.end),
            last.max(range.start)..range.end,
        ];
        for edge in edges {
            let edge = edge.start..edge.end.min(size);
            if !edge.is_empty() && self.has_data(inode, state, &edge)? {
                self.load_sector(inode, state, edge.start)?;
                self.load_sector(inode, state, edge.end - 1)?;
                let zeros = vec![0; (edge.end - edge.start) as usize];
                self.put(id, state, edge.start, &zeros);
            }
        }
        if first < last {
            // Flushes what is punched too. Otherwise it would be lost if the
            // punch failed.
            self.flush_locked(inode, state, InlineRule::Allowed)?;
            let mut from = Some(first);
            while let Some(start) = from {
                let room = (60 + STEP / 8, Purpose::Shrink);
                from = self.change(state, id.tree, room, |engine, state| {
                    touch(state);
                    let next = extents::drop_range(engine, id, state, start..last, STEP)?;
                    let end = next.unwrap_or(last);
                    let end = end.min(state.disk_size.next_multiple_of(sector));
                    if start < end {
                        extents::fill_holes(engine, id, state, start..end)?;
                    }
                    store_item(engine, id, state)?;
                    Ok(next)
                })?;
            }
            return Ok(Noted::Yes);
        }
        self.flush_locked(inode, state, InlineRule::Allowed)?;
        Ok(Noted::No)
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
            .any(|e| !e.is_hole() && !matches!(e.body, extents::Body::Prealloc(_))))
    }
}
