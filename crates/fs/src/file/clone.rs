//! Copying ranges between files, by sharing extents where that is possible.

use super::SIZE_MAX;
use super::extents::{self, Body, NewExtent, NewKind};
use super::flush::InlineRule;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, store_item};
use crate::names::{S_IFMT, S_IFREG, lock_all, state_of};
use butterfs_format::InodeId;
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_store::{Purpose, now};
use std::ops::Range;
use std::sync::Arc;

/// Bytes copied at a time where sharing is not possible.
const COPY: usize = 1 << 20;
/// File extents shared in one transaction.
const STEP: usize = 200;

impl Filesystem {
    /// Copies `length` bytes from one file (or place) to another and gives how
    /// many were copied: less at the end of the source. Whole sectors are
    /// shared, not copied.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when the ranges overlap in one file;
    /// [`FsError::TooBig`]; no space, damage.
    pub fn copy_range(
        &self,
        (source, from): (&Arc<Inode>, u64),
        (target, to): (&Arc<Inode>, u64),
        length: u64,
    ) -> Result<u64, FsError> {
        self.store.check_writable()?;
        let size = self.attributes_of(source)?.size;
        for inode in [source, target] {
            if inode.state.read().item.mode & S_IFMT != S_IFREG {
                return Err(FsError::Invalid("only files can be copied"));
            }
        }
        let length = length.min(size.saturating_sub(from));
        to.checked_add(length)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(FsError::TooBig)?;
        if source.id == target.id && from < to + length && to < from + length {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        if length == 0 {
            return Ok(0);
        }
        if let Some(shared) = self.share(source, from, target, to, length)? {
            return Ok(shared);
        }
        let mut buffer = vec![0; COPY.min(usize::try_from(length).unwrap_or(COPY))];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(buffer.len() as u64) as usize;
            let read = self.read(source, from + done, &mut buffer[..part])?;
            if read == 0 {
                break;
            }
            self.write(target, to + done, &buffer[..read])?;
            done += read as u64;
        }
        Ok(done)
    }

    /// Shares the range; `None` when it cannot be.
    fn share(
        &self,
        source: &Arc<Inode>,
        from: u64,
        target: &Arc<Inode>,
        to: u64,
        length: u64,
    ) -> Result<Option<u64>, FsError> {
        let sector = self.sector_size;
        if !from.is_multiple_of(sector) || !to.is_multiple_of(sector) {
            return Ok(None);
        }
        self.check_changeable(target.id.tree)?;
        if !self.has_simple_quotas() {
            self.ensure_quota(target.id.tree, length)?;
        }
        let mut locked = lock_all(&[source, target]);
        let sums = |flags: InodeFlags| flags.contains(InodeFlags::NODATASUM);
        let source_item = state_of(&mut locked, source.id).item.clone();
        let target_item = state_of(&mut locked, target.id).item.clone();
        if sums(source_item.flags) != sums(target_item.flags) {
            return Ok(None);
        }
        let end = from + length;
        if end > source_item.size {
            // It was cut meanwhile; copying stops where it ends.
            return Ok(None);
        }
        let tail = !length.is_multiple_of(sector);
        // A cut sector can be shared only where both files end in it.
        if tail && (end != source_item.size || to + length < target_item.size) {
            return Ok(None);
        }
        for inode in [source, target] {
            let state = state_of(&mut locked, inode.id);
            if state.deleted {
                return Err(FsError::NotFound);
            }
            if inode.id == target.id && to > state.item.size {
                self.load_tail(inode, state)?;
            }
            let rule = if inode.id == target.id {
                InlineRule::Never
            } else {
                InlineRule::Allowed
            };
            self.flush_locked(inode, state, rule)?;
        }
        let range = from..end.next_multiple_of(sector);
        let mut at = range.start;
        while at < range.end {
            let (extents, next) = {
                let engine = self.store.read();
                let found = extents::overlapping(&engine, source.id, at..range.end, STEP)?;
                let next = if found.len() == STEP {
                    found.last().map_or(range.end, extents::Found::end)
                } else {
                    range.end
                };
                (found, next.min(range.end))
            };
            let inline = |e: &extents::Found| matches!(e.body, Body::Inline(_));
            if extents.iter().any(inline) {
                return Ok(None);
            }
            let state = state_of(&mut locked, target.id);
            let part = Part {
                source: at..next,
                shift: to.wrapping_sub(from),
                end: to + length,
            };
            self.share_part(target.id, state, &part, &extents)?;
            at = next;
        }
        Ok(Some(length))
    }

    /// Replaces part of the target, step by step: after each one the target
    /// has the new content up to somewhere and the old one behind it.
    fn share_part(
        &self,
        id: InodeId,
        state: &mut InodeState,
        part: &Part,
        found: &[extents::Found],
    ) -> Result<(), FsError> {
        let moved = |at: u64| at.wrapping_add(part.shift);
        let target = moved(part.source.start)..moved(part.source.end);
        let time = now();
        state.item.mtime = time;
        state.item.ctime = time;
        state.item.sequence = state.item.sequence.wrapping_add(1);
        let mut from = Some(target.start);
        while let Some(start) = from {
            from = self.change(id.tree, 60 + STEP, Purpose::Grow, |engine| {
                let next = extents::drop_range(engine, id, state, start..target.end, STEP)?;
                let step = start..next.unwrap_or(target.end);
                for extent in found {
                    if let Some(new) = moved_part(extent, part, &step) {
                        if new.kind == NewKind::Prealloc {
                            state.item.flags |= InodeFlags::PREALLOC;
                        }
                        engine.note_sharing(id.tree, new.place.disk_length);
                        extents::insert_shared(engine, id, state, &new)?;
                    }
                }
                let old_end = state.disk_size / self.sector_size * self.sector_size;
                extents::fill_holes(engine, id, state, old_end.min(step.start)..step.end)?;
                state.disk_size = state.disk_size.max(step.end.min(part.end));
                store_item(engine, id, state)?;
                Ok(next)
            })?;
            state.item.size = state.item.size.max(state.disk_size);
        }
        Ok(())
    }
}

/// What the target gets of `extent` in the range `step` of the target.
fn moved_part(extent: &extents::Found, part: &Part, step: &Range<u64>) -> Option<NewExtent> {
    let (place, kind) = match &extent.body {
        Body::Regular(place) => (place, NewKind::Regular),
        Body::Prealloc(place) => (place, NewKind::Prealloc),
        Body::Inline(_) => return None,
    };
    let source = step.start.wrapping_sub(part.shift)..step.end.wrapping_sub(part.shift);
    let own = source.start.max(extent.start)..source.end.min(extent.end());
    if own.is_empty() || place.disk.get() == 0 {
        return None;
    }
    Some(NewExtent {
        start: own.start.wrapping_add(part.shift),
        ram_bytes: extent.ram_bytes,
        compression: extent.compression,
        place: ExtentPlace {
            offset: place.offset + (own.start - extent.start),
            length: own.end - own.start,
            ..*place
        },
        kind,
    })
}

/// Part of the source, and how far the target is from it.
struct Part {
    source: Range<u64>,
    shift: u64,
    /// Where all that is shared ends in the target.
    end: u64,
}
