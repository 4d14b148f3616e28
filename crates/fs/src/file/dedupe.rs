//! Sharing what two files have in common.
//!
//! Owns the proof: bytes are compared while both inodes are locked, and shared
//! before they are unlocked. So only what is equal at that moment is shared. No
//! content, size or time that users see changes.

use super::clone::{CloneSpan, Refusal, Times, behind_inline, check_files, check_span};
use super::extents::{self, Body, Found};
use super::flush::InlineRule;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState};
use crate::names::{lock_all, state_of};
use butterfs_format::Logical;
use butterfs_format::item::inode::InodeFlags;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are compared at a time.
const COMPARE: u64 = 1 << 20;
/// How many file extents are looked at to see whether ranges are shared
/// already.
const MAPPED_MAX: usize = 4096;

/// What became of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deduped {
    /// It was equal. This many bytes from its start on are shared now.
    Shared(u64),
    /// It is not equal; nothing was shared.
    Differs,
}

impl Filesystem {
    /// Shares `length` bytes of `source` from `from` on with each range of
    /// `targets` that holds the same bytes. Gives the result for each target.
    ///
    /// As with FIDEDUPERANGE, ranges begin at a sector and lie within their
    /// files. A partial sector at the end of a range is shared only if both
    /// files end in it.
    ///
    /// # Errors
    /// For each target: [`FsError::Invalid`] if a range breaks these rules, if
    /// ranges overlap, or if only one of the files has data checksums;
    /// [`FsError::IsADirectory`], [`FsError::ReadOnlySubvolume`]; no space,
    /// damage, reading.
    pub fn dedupe_range(
        &self,
        (source, from): (&Arc<Inode>, u64),
        length: u64,
        targets: &[(Arc<Inode>, u64)],
    ) -> Vec<Result<Deduped, FsError>> {
        let span = |to: u64| CloneSpan { from, to, length };
        targets
            .iter()
            .map(|(target, to)| self.dedupe(source, target, &span(*to)))
            .collect()
    }

    fn dedupe(
        &self,
        source: &Arc<Inode>,
        target: &Arc<Inode>,
        span: &CloneSpan,
    ) -> Result<Deduped, FsError> {
        self.store.check_writable()?;
        self.check_changeable(target.id.tree)?;
        check_files(source, target)?;
        let sector = self.sector_size;
        let mut locked = lock_all(&[source, target]);
        let mut sizes = [0; 2];
        let mut flags = [InodeFlags::default(); 2];
        for (at, inode) in [source, target].into_iter().enumerate() {
            let state = state_of(&mut locked, inode.id);
            if state.deleted {
                return Err(FsError::NotFound);
            }
            sizes[at] = state.item.size;
            flags[at] = state.item.flags & InodeFlags::NODATASUM;
        }
        // The content would stay the same, but its place would not.
        state_of(&mut locked, target.id).check_unprotected()?;
        if flags[0] != flags[1] {
            return Err(Refusal::Checksums.into());
        }
        let left = sizes[0].checked_sub(span.from);
        let left = left.ok_or(FsError::Invalid("a range begins behind the file's end"))?;
        if span.length == 0 {
            return Ok(Deduped::Shared(0));
        }
        let aligned = [span.from, span.to]
            .iter()
            .all(|n| n.is_multiple_of(sector));
        if !aligned {
            return Err(FsError::Invalid("a range does not begin with a sector"));
        }
        let to_end = span.to.checked_add(span.length);
        if span.length > left || to_end.is_none_or(|end| end > sizes[1]) {
            return Err(FsError::Invalid("a range ends behind the file's end"));
        }
        let ends_both = span.from + span.length == sizes[0] && span.to + span.length == sizes[1];
        let length = if ends_both {
            span.length
        } else {
            span.length / sector * sector
        };
        let span = CloneSpan { length, ..*span };
        if length == 0 {
            return Ok(Deduped::Shared(0));
        }
        let whole = CloneSpan {
            length: length.next_multiple_of(sector),
            ..span
        };
        check_span(source.id, target.id, &whole)?;
        for inode in [source, target] {
            let state = state_of(&mut locked, inode.id);
            self.flush_locked(inode, state, InlineRule::Allowed)?;
        }
        if self.is_shared(source, target, &span)? {
            return Ok(Deduped::Shared(length));
        }
        let state = |inode: &Arc<Inode>| {
            let found = locked.iter().find(|(id, _)| *id == inode.id);
            found.map(|(_, state)| &**state)
        };
        let equal = match (state(source), state(target)) {
            (Some(of_source), Some(of_target)) => {
                self.is_equal((source, of_source), (target, of_target), &span)?
            }
            _ => false,
        };
        if !equal {
            return Ok(Deduped::Differs);
        }
        let mut share = |span: &CloneSpan| {
            self.share_locked((source, target), &mut locked, span, (Times::Keep, &None))
        };
        match share(&span)? {
            Ok(()) => Ok(Deduped::Shared(length)),
            // The first sector lies in the tree and stays there.
            Err(Refusal::Inline) => match behind_inline(&span, sector) {
                Some(rest) => match share(&rest)? {
                    Ok(()) => Ok(Deduped::Shared(length)),
                    Err(refusal) => Err(refusal.into()),
                },
                None => Ok(Deduped::Shared(0)),
            },
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Compares a range of two locked inodes.
    fn is_equal(
        &self,
        (source, of_source): (&Inode, &InodeState),
        (target, of_target): (&Inode, &InodeState),
        span: &CloneSpan,
    ) -> Result<bool, FsError> {
        let room = usize::try_from(span.length.min(COMPARE)).unwrap_or(0);
        let (mut left, mut right) = (vec![0; room], vec![0; room]);
        let mut done = 0;
        while done < span.length {
            let part = usize::try_from((span.length - done).min(COMPARE)).unwrap_or(room);
            let (left, right) = (&mut left[..part], &mut right[..part]);
            let _addresses = self.store.hold_addresses();
            let read = [
                self.read_locked(source.id, of_source, span.from + done, left)?,
                self.read_locked(target.id, of_target, span.to + done, right)?,
            ];
            if read != [part; 2] || left != right {
                return Ok(false);
            }
            done += part as u64;
        }
        Ok(true)
    }

    /// True if both ranges are already the same extents. Then nothing has to be
    /// read, and no metadata change.
    fn is_shared(&self, source: &Inode, target: &Inode, span: &CloneSpan) -> Result<bool, FsError> {
        let engine = self.store.read();
        let end = span.length.next_multiple_of(self.sector_size);
        let pieces = |inode: &Inode, start: u64| -> Result<Option<Vec<Piece>>, FsError> {
            let range = start..start + end;
            let found = extents::overlapping(&engine, inode.id, range.clone(), MAPPED_MAX)?;
            if found.len() == MAPPED_MAX {
                return Ok(None);
            }
            Ok(found
                .iter()
                .map(|extent| Piece::of(extent, &range))
                .collect())
        };
        let left = pieces(source, span.from)?;
        Ok(left.is_some() && left == pieces(target, span.to)?)
    }
}

/// Part of an extent, as a range of a file has it.
#[derive(PartialEq, Eq)]
struct Piece {
    /// Relative to the range.
    range: Range<u64>,
    extent: Logical,
    /// Offset of its first byte into the extent.
    skip: u64,
    is_prealloc: bool,
}

impl Piece {
    /// `None` for data that no other file can have.
    fn of(extent: &Found, range: &Range<u64>) -> Option<Self> {
        let (place, is_prealloc) = match &extent.body {
            Body::Inline(_) => return None,
            Body::Regular(place) => (place, false),
            Body::Prealloc(place) => (place, true),
        };
        let start = extent.start.max(range.start);
        let end = extent.end().min(range.end);
        let skip = match extent.is_hole() {
            true => 0,
            false => place.offset + (start - extent.start),
        };
        Some(Self {
            range: start - range.start..end - range.start,
            extent: place.disk,
            skip,
            is_prealloc,
        })
    }
}
