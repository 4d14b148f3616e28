//! Rewrites small extents as large ones, and extents with another compression.
//!
//! Owns which parts of a file are worth rewriting, and what that does to
//! sharing. A part is read and verified, then written to new space. Only then
//! do file extents name the new space. Until that transaction the file is
//! unchanged, so no error and no crash loses anything. Files without
//! copy-on-write are moved too; they stay without checksums and compression.

use super::extents::{self, Body, Found};
use super::flush::{InlineRule, Plan};
use super::outgoing::Sums;
use super::output::{EXTENT_MAX, Output};
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState};
use crate::names::{S_IFDIR, S_IFMT, S_IFREG};
use butterfs_format::InodeId;
use butterfs_format::compression::{Algorithm, Level, UNIT};
use butterfs_format::item::inode::InodeFlags;
use butterfs_store::{Purpose, SharingProbe, StoreError};
use std::ops::Range;

/// Bytes that are looked at, and bytes that are rewritten, at a time.
const SCAN: u64 = 2 * WINDOW;
const WINDOW: u64 = EXTENT_MAX as u64;
/// File extents looked at at a time.
const EXTENTS_MAX: usize = 16_384;

/// What to do with data that snapshots or reflinks share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// They are left as they are.
    #[default]
    Keep,
    /// They are rewritten: the file gets its own copy, which takes space.
    Break,
}

/// Compression of what is rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompress {
    /// Compression stays as it was. Only small pieces are rewritten.
    #[default]
    Keep,
    /// No compression. What is compressed is rewritten.
    Plain,
    /// This one; everything is rewritten.
    With(Algorithm, Level),
}

/// What to rewrite of a file, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defragment {
    /// Part of the file.
    pub range: Range<u64>,
    /// Extents of this many bytes are large enough.
    pub large: u64,
    /// Compression.
    pub compress: Recompress,
    /// What to do with shared data.
    pub sharing: Sharing,
}

impl Default for Defragment {
    fn default() -> Self {
        Self {
            range: 0..u64::MAX,
            large: WINDOW,
            compress: Recompress::default(),
            sharing: Sharing::default(),
        }
    }
}

/// What was rewritten, or would be. Bytes are bytes of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragmented {
    /// File extents with data in the range.
    pub extents: u64,
    /// File extents that were rewritten.
    pub rewritten_extents: u64,
    /// Bytes of them.
    pub rewritten: u64,
    /// Bytes that are shared and were worth rewriting. With [`Sharing::Keep`]
    /// they were left as they are; with [`Sharing::Break`] they are part of
    /// what was rewritten.
    pub shared: u64,
    /// File extents that replaced them; a plan does not know their number.
    pub new_extents: u64,
}

impl Defragmented {
    /// Adds the numbers of another part, or another file.
    pub const fn add(&mut self, other: &Self) {
        self.extents += other.extents;
        self.rewritten_extents += other.rewritten_extents;
        self.rewritten += other.rewritten;
        self.shared += other.shared;
        self.new_extents += other.new_extents;
    }
}

/// A file extent that may be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// Part of the file, within what is looked at.
    range: Range<u64>,
    /// Bytes of the whole file extent.
    length: u64,
    compression: Option<Algorithm>,
    is_shared: bool,
}

/// A part of a file that is rewritten in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    range: Range<u64>,
    extents: usize,
    shared: u64,
    /// Compression of its first extent.
    compression: Option<Algorithm>,
}

impl Filesystem {
    /// What [`Filesystem::defragment`] would do now. Waiting data are brought
    /// to the device first.
    ///
    /// # Errors
    /// As [`Filesystem::defragment`], except for lack of space.
    pub fn plan_defragment(
        &self,
        inode: &Inode,
        wanted: &Defragment,
    ) -> Result<Defragmented, FsError> {
        let mut sum = Defragmented::default();
        let mut at = wanted.range.start;
        loop {
            let mut state = inode.state.write();
            check_file(&state)?;
            self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
            let Some(part) = self.scan(inode.id, &state, at, wanted)? else {
                return Ok(sum);
            };
            sum.add(&part.planned());
            at = part.end;
        }
    }

    /// Rewrites the parts of a file that lie in small pieces or should be
    /// compressed otherwise. No content, size or time that users see changes.
    /// If free space has no larger pieces, nothing is rewritten.
    ///
    /// # Errors
    /// [`FsError::IsADirectory`]; [`FsError::Invalid`] if the inode is no file;
    /// [`FsError::ReadOnlySubvolume`]; no space; damage, reading. What was
    /// rewritten before an error stays so; everything else is unchanged.
    pub fn defragment(&self, inode: &Inode, wanted: &Defragment) -> Result<Defragmented, FsError> {
        self.store.check_writable()?;
        let mut sum = Defragmented::default();
        let mut at = wanted.range.start;
        loop {
            let mut state = inode.state.write();
            self.check_changeable(inode.id.tree)?;
            check_file(&state)?;
            state.check_unprotected()?;
            self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
            let Some(part) = self.scan(inode.id, &state, at, wanted)? else {
                return Ok(sum);
            };
            sum.extents += part.extents;
            sum.shared += part.shared;
            for window in &part.windows {
                let new = self.rewrite(inode.id, &mut state, window, wanted)?;
                if let Some(new) = new {
                    sum.rewritten_extents += window.extents as u64;
                    sum.rewritten += window.range.end - window.range.start;
                    sum.new_extents += new;
                }
            }
            at = part.end;
        }
    }

    /// Looks at the next part of a file with data; `None` when there is none.
    fn scan(
        &self,
        id: InodeId,
        state: &InodeState,
        from: u64,
        wanted: &Defragment,
    ) -> Result<Option<Part>, FsError> {
        let sector = self.sector_size;
        let size = state.item.size.next_multiple_of(sector);
        let asked = wanted.range.end.checked_next_multiple_of(sector);
        let end = asked.unwrap_or(u64::MAX).min(size);
        let from = from / sector * sector;
        if from >= end {
            return Ok(None);
        }
        let engine = self.store.read();
        let Some(first) = extents::overlapping(&engine, id, from..end, 1)?.pop() else {
            return Ok(None);
        };
        let start = from.max(first.start);
        let mut end = end.min(start.saturating_add(SCAN));
        let found = extents::overlapping(&engine, id, start..end, EXTENTS_MAX)?;
        if found.len() == EXTENTS_MAX {
            end = end.min(found.last().map_or(end, Found::end));
        }
        let mut probe = SharingProbe::new(&engine);
        let mut candidates = Vec::new();
        for extent in &found {
            // Holes, promised space and inline data do not count.
            let Body::Regular(place) = &extent.body else {
                continue;
            };
            if extent.is_hole() {
                continue;
            }
            let owner = extents::owner(id, extent.start, place);
            candidates.push(Candidate {
                range: extent.start.max(start)..extent.end().min(end),
                length: place.length,
                compression: extent.compression,
                is_shared: probe.is_shared(extents::extent_of(place), owner)?,
            });
        }
        let compress = if is_plain(state) {
            Recompress::Keep
        } else {
            wanted.compress
        };
        let choice = |sharing| {
            let choice = Choice {
                compress,
                large: wanted.large,
                sharing,
            };
            choice.windows(&candidates)
        };
        let all = choice(Sharing::Break);
        let shared = all.iter().map(|window| window.shared).sum();
        let windows = match wanted.sharing {
            Sharing::Break => all,
            Sharing::Keep => choice(Sharing::Keep),
        };
        Ok(Some(Part {
            extents: candidates.len() as u64,
            shared,
            windows,
            end,
        }))
    }

    /// Rewrites a window, unless free space lies in pieces that are as small.
    /// Gives how many file extents the window has now.
    fn rewrite(
        &self,
        id: InodeId,
        state: &mut InodeState,
        window: &Window,
        wanted: &Defragment,
    ) -> Result<Option<u64>, FsError> {
        let bytes = window.range.end - window.range.start;
        let plan = match wanted.compress {
            _ if is_plain(state) => None,
            Recompress::Plain => None,
            Recompress::With(algorithm, level) => Some(Plan::forced(algorithm, level)),
            Recompress::Keep => window
                .compression
                .map(|algorithm| Plan::forced(algorithm, algorithm.default_level())),
        };
        self.ensure_quota_locked(id.tree, bytes)?;
        let _reserved = self.buffers.reserve(bytes);
        self.ensure_space_locked()?;
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let _addresses = self.store.hold_addresses();
        self.read_locked(id, state, window.range.start, &mut data)?;
        let mut outputs = self.cut_whole(window.range.start, &data, plan);
        self.allocate(&mut outputs)?;
        let pays = match wanted.compress {
            Recompress::Keep => outputs.len() < window.extents,
            Recompress::Plain | Recompress::With(..) => true,
        };
        if !pays {
            self.give_back(&outputs);
            return Ok(None);
        }
        let sums = Sums::wanted_unless(state.item.flags.contains(InodeFlags::NODATASUM));
        // Space that cannot be written to is left alone.
        self.write_outputs(&mut outputs, sums)?;
        let result = self.bring_in(id, state, &outputs);
        if result.is_err() {
            self.give_back(&outputs);
        }
        result.map(|()| Some(outputs.len() as u64))
    }

    fn bring_in(
        &self,
        id: InodeId,
        state: &mut InodeState,
        outputs: &[Output<'_>],
    ) -> Result<(), FsError> {
        // These data were not acknowledged, so this may not use the reserve.
        drop(self.store.begin(60 + outputs.len(), Purpose::Grow)?);
        self.enter(id, state, outputs)
    }

    /// Errors unless everything that is promised has space. For callers that
    /// have an inode locked.
    fn ensure_space_locked(&self) -> Result<(), FsError> {
        self.look_at_space();
        if self.buffers.fits() {
            return Ok(());
        }
        self.store.commit()?;
        self.look_at_space();
        if self.buffers.fits() {
            return Ok(());
        }
        Err(StoreError::NoSpace.into())
    }
}

/// What was looked at.
struct Part {
    extents: u64,
    shared: u64,
    windows: Vec<Window>,
    /// Where to look next.
    end: u64,
}

impl Part {
    fn planned(&self) -> Defragmented {
        let windows = self.windows.iter();
        Defragmented {
            extents: self.extents,
            rewritten_extents: windows.clone().map(|window| window.extents as u64).sum(),
            rewritten: windows
                .map(|window| window.range.end - window.range.start)
                .sum(),
            shared: self.shared,
            new_extents: 0,
        }
    }
}

/// Errors unless the inode is a file.
fn check_file(state: &InodeState) -> Result<(), FsError> {
    if state.deleted {
        return Err(FsError::NotFound);
    }
    match state.item.mode & S_IFMT {
        S_IFREG => Ok(()),
        S_IFDIR => Err(FsError::IsADirectory),
        _ => Err(FsError::Invalid("only files have extents")),
    }
}

/// True for files that cannot be compressed.
fn is_plain(state: &InodeState) -> bool {
    let plain = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    state.item.flags.intersects(plain)
}

/// How parts to rewrite are chosen.
struct Choice {
    compress: Recompress,
    large: u64,
    sharing: Sharing,
}

impl Choice {
    /// Whether a file extent may be rewritten.
    fn takes(&self, extent: &Candidate) -> bool {
        if extent.is_shared && self.sharing == Sharing::Keep {
            return false;
        }
        let is_small = extent.length < self.large.min(WINDOW);
        match (self.compress, extent.compression) {
            (Recompress::With(..), _) | (Recompress::Plain, Some(_)) => true,
            // No compressed extent is larger than a unit.
            (Recompress::Keep, Some(_)) => is_small && extent.length < UNIT as u64,
            (Recompress::Keep | Recompress::Plain, None) => is_small,
        }
    }

    /// Whether two neighbours can become one.
    fn join(&self, one: Option<Algorithm>, other: Option<Algorithm>) -> bool {
        self.compress != Recompress::Keep || one == other
    }

    /// Whether rewriting would improve anything.
    fn pays(&self, window: &Window, any_compressed: bool) -> bool {
        let bytes = window.range.end - window.range.start;
        let largest = match window.compression {
            Some(_) if self.compress == Recompress::Keep => UNIT as u64,
            _ => WINDOW,
        };
        let fewer = window.extents as u64 > bytes.div_ceil(largest);
        match self.compress {
            Recompress::With(..) => true,
            Recompress::Plain => any_compressed || fewer,
            Recompress::Keep => fewer,
        }
    }

    /// The parts to rewrite, ascending.
    fn windows(&self, extents: &[Candidate]) -> Vec<Window> {
        let mut windows = Vec::new();
        let mut open: Option<(Window, bool)> = None;
        let mut close = |open: &mut Option<(Window, bool)>| {
            if let Some((window, any_compressed)) = open.take()
                && self.pays(&window, any_compressed)
            {
                windows.push(window);
            }
        };
        for extent in extents {
            if !self.takes(extent) {
                close(&mut open);
                continue;
            }
            // One larger than a window is cut.
            let mut start = extent.range.start;
            while start < extent.range.end {
                let end = extent.range.end.min(start + WINDOW);
                let fits = open.as_ref().is_some_and(|(window, _)| {
                    window.range.end == start
                        && end - window.range.start <= WINDOW
                        && self.join(window.compression, extent.compression)
                });
                if !fits {
                    close(&mut open);
                    let window = Window {
                        range: start..start,
                        extents: 0,
                        shared: 0,
                        compression: extent.compression,
                    };
                    open = Some((window, false));
                }
                if let Some((window, any_compressed)) = &mut open {
                    window.range.end = end;
                    window.extents += 1;
                    window.shared += if extent.is_shared { end - start } else { 0 };
                    *any_compressed |= extent.compression.is_some();
                }
                start = end;
            }
        }
        close(&mut open);
        windows
    }
}

#[allow(
    clippy::single_range_in_vec_init,
    reason = "the one range that is expected"
)]
#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: u64 = 4096;

    fn extent(range: Range<u64>, is_shared: bool) -> Candidate {
        Candidate {
            length: range.end - range.start,
            range,
            compression: None,
            is_shared,
        }
    }

    fn ranges(compress: Recompress, sharing: Sharing, extents: &[Candidate]) -> Vec<Range<u64>> {
        let choice = Choice {
            compress,
            large: WINDOW,
            sharing,
        };
        let windows = choice.windows(extents);
        windows.into_iter().map(|window| window.range).collect()
    }

    #[test]
    fn small_neighbours_are_joined_and_shared_ones_left() {
        let s = SECTOR;
        let all = [
            extent(0..s, false),
            extent(s..2 * s, false),
            extent(2 * s..3 * s, true),
            extent(3 * s..4 * s, false),
            // A hole.
            extent(9 * s..10 * s, false),
        ];
        let keep = Recompress::Keep;
        assert_eq!(ranges(keep, Sharing::Keep, &all), [0..2 * s]);
        assert_eq!(ranges(keep, Sharing::Break, &all), [0..4 * s]);
        // Rewriting a single one gains nothing, unless it is to be compressed.
        assert!(ranges(keep, Sharing::Break, &all[4..]).is_empty());
        let with = Recompress::With(Algorithm::Lzo, Algorithm::Lzo.default_level());
        assert_eq!(ranges(with, Sharing::Break, &all[4..]), [9 * s..10 * s]);
    }

    #[test]
    fn large_and_full_ones_stay() {
        let large = [
            extent(0..WINDOW, false),
            extent(WINDOW..WINDOW + SECTOR, false),
        ];
        assert!(ranges(Recompress::Keep, Sharing::Break, &large).is_empty());
        let unit = UNIT as u64;
        let packed = |range| Candidate {
            compression: Some(Algorithm::Zstd),
            ..extent(range, false)
        };
        let full = [packed(0..unit), packed(unit..2 * unit)];
        assert!(ranges(Recompress::Keep, Sharing::Break, &full).is_empty());
        assert_eq!(
            ranges(Recompress::Plain, Sharing::Break, &full),
            [0..2 * unit]
        );
        let small = [packed(0..SECTOR), packed(SECTOR..2 * SECTOR)];
        let kept = ranges(Recompress::Keep, Sharing::Break, &small);
        assert_eq!(kept, [0..2 * SECTOR]);
        // Nothing grows beyond a window.
        let mut huge = extent(0..3 * WINDOW + SECTOR, false);
        huge.length *= 2;
        let with = Recompress::With(Algorithm::Zlib, Algorithm::Zlib.default_level());
        let cut = ranges(with, Sharing::Break, &[huge]);
        assert_eq!(cut.len(), 4);
        assert_eq!(cut[3], 3 * WINDOW..3 * WINDOW + SECTOR);
    }
}
