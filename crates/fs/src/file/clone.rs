//! Copying ranges between files, by sharing extents where that is possible.

use super::SIZE_MAX;
use super::extents::{self, Body, NewExtent, NewKind};
use super::flush::InlineRule;
use super::write::EdgeSpace;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, check_alive, store_item};
use crate::names::{S_IFDIR, S_IFMT, S_IFREG, lock_all, state_of};
use butterfs_format::InodeId;
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_store::{Purpose, now};
use parking_lot::RwLockWriteGuard;
use std::ops::Range;
use std::sync::Arc;

/// Bytes copied at a time where sharing is not possible.
const COPY: usize = 1 << 20;
/// File extents shared in one transaction.
const STEP: usize = 200;

/// A range of one file that another file is to share. The default is a whole
/// file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneSpan {
    /// Where it begins in the source.
    pub from: u64,
    /// Where it begins in the target.
    pub to: u64,
    /// Bytes; 0 means everything up to the end of the source.
    pub length: u64,
}

/// Why a range cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The range does not consist of whole sectors and does not end where both
    /// files end.
    Sectors,
    /// One file has checksums, the other none.
    Checksums,
    /// The source was cut meanwhile.
    Cut,
    /// The first sector of the source lies in its tree.
    Inline,
}

/// Whether sharing counts as a change that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    /// The content changes.
    Change,
    /// The content stays as it was.
    Keep,
}

/// Locked inodes.
pub(super) type Locked<'i> = [(InodeId, RwLockWriteGuard<'i, InodeState>)];

impl Filesystem {
    /// Copies `length` bytes from one file or place to another. Gives how many
    /// bytes were copied, fewer at the end of the source. Whole sectors are
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
        check_files(source, target)?;
        let length = length.min(size.saturating_sub(from));
        let span = CloneSpan { from, to, length };
        check_span(source.id, target.id, &span)?;
        if length == 0 {
            return Ok(0);
        }
        match self.share(source, target, &span)? {
            Ok(()) => Ok(length),
            Err(Refusal::Inline) => match self.share_behind_inline(source, target, &span) {
                (0, Err(error)) => Err(error),
                // The caller learns how far it came; its next call fails.
                (done, _) => Ok(done),
            },
            Err(_) => self.copy_bytes(source, target, &span),
        }
    }

    /// Copies the first sector, which lies in the tree, and shares the rest.
    /// Gives how far it came, and the error that ended it.
    fn share_behind_inline(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        span: &CloneSpan,
    ) -> (u64, Result<(), FsError>) {
        let sector = self.sector_size;
        let first = CloneSpan {
            length: span.length.min(sector),
            ..*span
        };
        let copied = match self.copy_bytes(source, target, &first) {
            Ok(copied) => copied,
            Err(error) => return (0, Err(error)),
        };
        let Some(rest) = behind_inline(span, sector).filter(|_| copied == sector) else {
            return (copied, Ok(()));
        };
        match self.share(source, target, &rest) {
            Ok(Ok(())) => (span.length, Ok(())),
            Ok(Err(_)) => match self.copy_bytes(source, target, &rest) {
                Ok(more) => (copied + more, Ok(())),
                Err(error) => (copied, Err(error)),
            },
            Err(error) => (copied, Err(error)),
        }
    }

    /// Makes a range of one file part of another, which shares its extents: the
    /// result is a reflink or an error. Gives how many bytes were shared. A
    /// length of zero means everything up to the end of the source. The first
    /// sector of a file is copied if its data lie in the tree.
    ///
    /// # Errors
    /// As FICLONERANGE: [`FsError::Invalid`] if ranges are not whole sectors
    /// (unless both files end there), overlap or end behind the source, or if
    /// only one of the files has data checksums; [`FsError::IsADirectory`];
    /// [`FsError::ReadOnlySubvolume`]; no space, damage.
    pub fn clone_range(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        span: CloneSpan,
    ) -> Result<u64, FsError> {
        self.store.check_writable()?;
        self.check_changeable(target.id.tree)?;
        check_files(source, target)?;
        let size = self.attributes_of(source)?.size;
        let sector = self.sector_size;
        let left = size
            .checked_sub(span.from)
            .ok_or(FsError::Invalid("the range begins behind the source's end"))?;
        let length = if span.length == 0 { left } else { span.length };
        if length == 0 {
            return Ok(0);
        }
        if length > left {
            return Err(FsError::Invalid("the range ends behind the source's end"));
        }
        let aligned = [span.from, span.to]
            .iter()
            .all(|n| n.is_multiple_of(sector));
        if !aligned {
            return Err(FsError::Invalid("the range does not begin with a sector"));
        }
        let span = CloneSpan { length, ..span };
        let whole = CloneSpan {
            length: length.next_multiple_of(sector),
            ..span
        };
        check_span(source.id, target.id, &whole)?;
        match self.share(source, target, &span)? {
            Ok(()) => Ok(length),
            Err(Refusal::Inline) => {
                let (mut done, ended) = self.share_behind_inline(source, target, &span);
                ended?;
                // What was copied in part is copied to its end, or to the error.
                while done < length {
                    let rest = CloneSpan {
                        from: span.from + done,
                        to: span.to + done,
                        length: length - done,
                    };
                    match self.copy_bytes(source, target, &rest)? {
                        0 => return Err(Refusal::Cut.into()),
                        more => done += more,
                    }
                }
                Ok(length)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn copy_bytes(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        span: &CloneSpan,
    ) -> Result<u64, FsError> {
        let length = span.length;
        let mut buffer = vec![0; COPY.min(usize::try_from(length).unwrap_or(COPY))];
        let mut done = 0;
        while done < length {
            let part = (length - done).min(buffer.len() as u64) as usize;
            let read = self.read(source, span.from + done, &mut buffer[..part]);
            let written = read.and_then(|read| match read {
                0 => Ok(0),
                read => self.write(target, span.to + done, &buffer[..read]),
            });
            match written {
                Ok(0) => break,
                Ok(written) => done += written as u64,
                // The caller learns how far it came; its next call fails.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Shares the range if that is possible.
    fn share(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        span: &CloneSpan,
    ) -> Result<Result<(), Refusal>, FsError> {
        let sector = self.sector_size;
        if !span.from.is_multiple_of(sector) || !span.to.is_multiple_of(sector) {
            return Ok(Err(Refusal::Sectors));
        }
        self.check_changeable(target.id.tree)?;
        if !self.has_simple_quotas() {
            self.ensure_quota(target.id.tree, span.length)?;
        }
        let space = self.promise_edges()?;
        let mut locked = lock_all(&[source, target]);
        state_of(&mut locked, target.id).check_unprotected()?;
        self.share_locked((source, target), &mut locked, span, (Times::Change, &space))
    }

    /// Shares the range, which begins at a sector in both files.
    pub(super) fn share_locked(
        &self,
        (source, target): (&Arc<Inode>, &Arc<Inode>),
        locked: &mut Locked<'_>,
        span: &CloneSpan,
        (times, space): (Times, &EdgeSpace<'_>),
    ) -> Result<Result<(), Refusal>, FsError> {
        let _addresses = self.store.hold_addresses();
        let sector = self.sector_size;
        let (from, to, length) = (span.from, span.to, span.length);
        let sums = |flags: InodeFlags| flags.contains(InodeFlags::NODATASUM);
        let source_item = state_of(locked, source.id).item.clone();
        let target_item = state_of(locked, target.id).item.clone();
        if sums(source_item.flags) != sums(target_item.flags) {
            return Ok(Err(Refusal::Checksums));
        }
        let end = from + length;
        if end > source_item.size {
            return Ok(Err(Refusal::Cut));
        }
        let tail = !length.is_multiple_of(sector);
        // A partial sector can be shared only if both files end in it.
        if tail && (end != source_item.size || to + length < target_item.size) {
            return Ok(Err(Refusal::Sectors));
        }
        for inode in [source, target] {
            let state = state_of(locked, inode.id);
            if state.deleted {
                return Err(FsError::NotFound);
            }
            if inode.id == target.id && to > state.item.size {
                self.load_tail(inode, state, space)?;
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
                return Ok(Err(Refusal::Inline));
            }
            let state = state_of(locked, target.id);
            let part = Part {
                source: at..next,
                shift: to.wrapping_sub(from),
                end: to + length,
                times,
            };
            self.share_part((source.id, target.id), state, &part, &extents)?;
            at = next;
        }
        Ok(Ok(()))
    }

    /// Replaces part of the target, step by step. After each step the target
    /// has the new content up to some offset, and the old content behind it.
    fn share_part(
        &self,
        (source, id): (InodeId, InodeId),
        state: &mut InodeState,
        part: &Part,
        found: &[extents::Found],
    ) -> Result<(), FsError> {
        let moved = |at: u64| at.wrapping_add(part.shift);
        let target = moved(part.source.start)..moved(part.source.end);
        let mut from = Some(target.start);
        while let Some(start) = from {
            let room = (60 + STEP, Purpose::Grow);
            from = self.change(state, id.tree, room, |engine, state| {
                // Nothing of a subvolume is freed before the subvolume is
                // marked as deleted.
                check_alive(engine, source.tree)?;
                let next = extents::drop_range(engine, id, state, start..target.end, STEP)?;
                let step = start..next.unwrap_or(target.end);
                if part.times == Times::Change {
                    let time = now();
                    state.item.mtime = time;
                    state.item.ctime = time;
                }
                state.item.sequence = state.item.sequence.wrapping_add(1);
                for extent in found {
                    if let Some(new) = moved_part(extent, part, &step) {
                        if new.kind == NewKind::Prealloc {
                            state.item.flags |= InodeFlags::PREALLOC;
                        }
                        extents::insert_shared(engine, id, state, &new)?;
                        engine
                            .quota_state_mut()
                            .note_sharing(id.tree, new.place.disk_length);
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

/// What the target gets from `extent` for its range `step`.
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
        copied: Some(extent.generation),
        place: ExtentPlace {
            offset: place.offset + (own.start - extent.start),
            length: own.end - own.start,
            ..*place
        },
        kind,
    })
}

/// A part of the source, and the distance from it to the target.
struct Part {
    source: Range<u64>,
    shift: u64,
    /// Where all that is shared ends in the target.
    end: u64,
    times: Times,
}

impl From<Refusal> for FsError {
    fn from(refusal: Refusal) -> Self {
        Self::Invalid(match refusal {
            Refusal::Sectors => "the range is neither whole sectors nor the end of both files",
            Refusal::Checksums => "one of the files has data checksums and the other none",
            Refusal::Cut => "the range ends behind the source's end",
            Refusal::Inline => "the data lie in the tree and cannot be shared",
        })
    }
}

/// What is left of a range that begins with data in the tree: everything behind
/// the first sector, because the kernel keeps data in the tree only there.
/// `None` if nothing is left.
pub(super) fn behind_inline(span: &CloneSpan, sector: u64) -> Option<CloneSpan> {
    (span.from == 0 && span.length > sector).then(|| CloneSpan {
        from: sector,
        to: span.to + sector,
        length: span.length - sector,
    })
}

/// Errors unless both are files.
pub(super) fn check_files(source: &Inode, target: &Inode) -> Result<(), FsError> {
    let modes = [source, target].map(|inode| inode.state.read().item.mode & S_IFMT);
    if modes.contains(&S_IFDIR) {
        return Err(FsError::IsADirectory);
    }
    if modes != [S_IFREG; 2] {
        return Err(FsError::Invalid("only files can be copied"));
    }
    Ok(())
}

/// Errors if the range is not valid, or overlaps itself in one file.
pub(super) fn check_span(
    source: InodeId,
    target: InodeId,
    span: &CloneSpan,
) -> Result<(), FsError> {
    let ends = [span.from, span.to].map(|start| start.checked_add(span.length));
    let [Some(from_end), Some(to_end)] = ends else {
        return Err(FsError::TooBig);
    };
    if from_end.max(to_end) > SIZE_MAX {
        return Err(FsError::TooBig);
    }
    if source == target && span.from < to_end && span.to < from_end {
        return Err(FsError::Invalid("the ranges overlap"));
    }
    Ok(())
}
