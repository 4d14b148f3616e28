//! Data of one file: which ranges differ, and how they are sent.
//!
//! Owns the choice between a clone, the compressed bytes as they lie, plain
//! data, and holes. The ranges come from file extents that differ. Parts that
//! are still at the same place are left out again.

use super::clones::Wanted;
use super::error::SendError;
use super::options::DataMode;
use super::snapshot::Flow;
use super::state::{Sender, Subject};
use crate::Inode;
use crate::file::extents::{Body, Found};
use butterfs_format::FileOffset;
use butterfs_format::send_stream::{CloneRange, Command, EncodedWrite, Encoding, Version};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of one write in version 1. Commands of that version have at most 64
/// KiB.
const STEP_V1: u64 = 48 << 10;
/// Bytes of one write from version 2 on.
const STEP: u64 = 128 << 10;
/// fallocate(2): the size of the file stays.
const KEEP_SIZE: u32 = 1;
/// fallocate(2): the range becomes a hole.
const PUNCH_HOLE: u32 = 2;

/// What became of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Same,
    Written,
}

/// Sending one file's data.
struct File<'f> {
    subject: &'f Subject,
    /// Neighbouring data that are written next.
    run: Range<u64>,
    /// Size that the receiver's file has.
    size: u64,
    content: Content,
    reader: Option<Arc<Inode>>,
}

impl File<'_> {
    const fn wrote_to(&mut self, end: u64) {
        self.content = Content::Written;
        if end > self.size {
            self.size = end;
        }
    }
}

impl Sender<'_, '_> {
    pub(super) fn content(
        &mut self,
        subject: &Subject,
        ranges: &[Range<u64>],
    ) -> Result<Content, SendError> {
        let size = subject.item.size;
        let mut file = File {
            subject,
            run: 0..0,
            size: subject.old.as_ref().map_or(0, |old| old.size),
            content: Content::Same,
            reader: None,
        };
        if file.size > size {
            self.truncate(&mut file, size)?;
        }
        match &subject.old {
            Some(old) => {
                for range in with_end(ranges, old.size, size, self.new.sector()) {
                    self.range(&mut file, &range)?;
                }
            }
            None => self.range(&mut file, &(0..u64::MAX))?,
        }
        self.flush(&mut file)?;
        if file.size != size {
            self.truncate(&mut file, size)?;
        }
        Ok(file.content)
    }

    fn truncate(&mut self, file: &mut File<'_>, size: u64) -> Result<(), SendError> {
        file.size = size;
        file.content = Content::Written;
        self.put(&Command::Truncate {
            path: &file.subject.path,
            size,
        })
    }

    fn range(&mut self, file: &mut File<'_>, range: &Range<u64>) -> Result<(), SendError> {
        let mut at = range.start;
        let new = self.new;
        new.extents(file.subject.number, range, &mut |found| {
            let piece = found.start.max(range.start)..found.end().min(range.end);
            if at < piece.start {
                self.hole(file, &(at..piece.start))?;
            }
            at = piece.end;
            match &found.body {
                Body::Regular(_) if found.is_hole() => self.hole(file, &piece)?,
                Body::Inline(_) | Body::Regular(_) => self.data(file, piece, &found)?,
                Body::Prealloc(_) => self.allocated(file, &piece, &found)?,
            }
            Ok(Flow::Continue)
        })?;
        if at < range.end {
            self.hole(file, &(at..range.end))?;
        }
        Ok(())
    }

    /// File extents of the old snapshot in a range of a file that it has.
    fn old_extents(&self, file: &File<'_>, range: &Range<u64>) -> Result<Vec<Found>, SendError> {
        let mut all = Vec::new();
        if let (Some(old), Some(_)) = (self.old, &file.subject.old) {
            old.extents(file.subject.number, range, &mut |found| {
                all.push(found);
                Ok(Flow::Continue)
            })?;
        }
        Ok(all)
    }

    /// A range that has no space now. What the receiver has there is removed.
    fn hole(&mut self, file: &mut File<'_>, range: &Range<u64>) -> Result<(), SendError> {
        let Some(old) = &file.subject.old else {
            return Ok(());
        };
        // Nothing is left behind the end of a file that was cut.
        let end = old.size.min(file.subject.item.size);
        for found in self.old_extents(file, range)? {
            let has_data = match &found.body {
                Body::Inline(_) => true,
                Body::Regular(_) => !found.is_hole(),
                Body::Prealloc(_) => self.options.version > Version::One,
            };
            let start = found.start.max(range.start);
            let stop = found.end().min(range.end);
            if has_data && start < stop.min(end) {
                self.zero(file, start..stop, end)?;
            }
        }
        Ok(())
    }

    /// Fills a range that has data before `end` with zeros.
    fn zero(&mut self, file: &mut File<'_>, range: Range<u64>, end: u64) -> Result<(), SendError> {
        self.flush(file)?;
        file.content = Content::Written;
        let path = &file.subject.path[..];
        let length = range.end.min(end) - range.start;
        let offset = FileOffset(range.start);
        if !self.sends_data() {
            return self.put(&Command::UpdateExtent {
                path,
                offset,
                length,
            });
        }
        if self.options.version > Version::One {
            return self.put(&Command::Allocate {
                path,
                mode: KEEP_SIZE | PUNCH_HOLE,
                offset,
                length: range.end - range.start,
            });
        }
        let zeros = vec![0; usize::try_from(length.min(STEP_V1)).unwrap_or(0)];
        let mut at = range.start;
        let stop = range.start + length;
        while at < stop {
            let step = (stop - at).min(STEP_V1);
            let data = &zeros[..usize::try_from(step).unwrap_or(0)];
            let offset = FileOffset(at);
            self.put(&Command::Write { path, offset, data })?;
            at += step;
        }
        Ok(())
    }

    /// A range that has space but no data.
    fn allocated(
        &mut self,
        file: &mut File<'_>,
        range: &Range<u64>,
        found: &Found,
    ) -> Result<(), SendError> {
        let old = self.old_extents(file, range)?;
        if old.iter().any(|old| {
            old.start <= range.start && old.end() >= range.end && lies_the_same(old, found)
        }) {
            return Ok(());
        }
        self.hole(file, range)?;
        if self.options.version == Version::One || !self.sends_data() {
            return Ok(());
        }
        self.flush(file)?;
        file.content = Content::Written;
        self.put(&Command::Allocate {
            path: &file.subject.path,
            mode: KEEP_SIZE,
            offset: FileOffset(range.start),
            length: range.end - range.start,
        })
    }

    /// A range that has data.
    fn data(
        &mut self,
        file: &mut File<'_>,
        range: Range<u64>,
        found: &Found,
    ) -> Result<(), SendError> {
        let size = file.subject.item.size;
        let range = range.start..range.end.min(size);
        // In the sector in which the old file ended, the receiver has zeros.
        // The extent may have something else there.
        let old_end = match &file.subject.old {
            Some(old) if old.size < size => old.size - old.size % self.new.sector(),
            _ => u64::MAX,
        };
        let mut at = range.start;
        for old in self.old_extents(file, &range)? {
            let same = old.start.max(at)..old.end().min(range.end).min(old_end);
            if same.is_empty() || !lies_the_same(&old, found) {
                continue;
            }
            if at < same.start {
                self.changed_data(file, at..same.start, found)?;
            }
            at = same.end;
        }
        if at < range.end {
            self.changed_data(file, at..range.end, found)?;
        }
        Ok(())
    }

    fn changed_data(
        &mut self,
        file: &mut File<'_>,
        range: Range<u64>,
        found: &Found,
    ) -> Result<(), SendError> {
        let mut at = range.start;
        while at < range.end {
            let wanted = Wanted {
                extent: found,
                start: at,
                end: range.end,
                size: file.subject.item.size,
            };
            let sent = (self.new, self.current);
            let Some(source) = self.clones.find(self.nodes, sent, wanted)? else {
                break;
            };
            self.flush(file)?;
            let tree = source.snapshot.unwrap_or(self.new);
            let links = tree.links(source.number)?;
            let link = links
                .first()
                .ok_or_else(|| tree.damaged(source.number, "it has no name"))?;
            let from_path = match source.snapshot {
                Some(other) => other.path(link)?,
                None => self.path_of(link)?,
            };
            self.put(&Command::Clone(CloneRange {
                path: &file.subject.path,
                offset: FileOffset(at),
                length: source.length,
                from: tree.stamp(),
                from_path: &from_path,
                from_offset: FileOffset(source.offset),
            }))?;
            at += source.length;
            file.wrote_to(at);
        }
        if at >= range.end {
            return Ok(());
        }
        if self.options.data == DataMode::Encoded && self.encoded(file, &(at..range.end), found)? {
            return Ok(());
        }
        if file.run.end != at {
            self.flush(file)?;
            file.run.start = at;
        }
        file.run.end = range.end;
        Ok(())
    }

    /// Sends compressed bytes as they lie; false when the extent has none.
    fn encoded(
        &mut self,
        file: &mut File<'_>,
        range: &Range<u64>,
        found: &Found,
    ) -> Result<bool, SendError> {
        let (Body::Regular(place), Some(algorithm)) = (&found.body, found.compression) else {
            return Ok(false);
        };
        let sector = usize::try_from(self.new.sector()).unwrap_or(usize::MAX);
        let Some(compression) = Encoding::of(algorithm, sector) else {
            return Ok(false);
        };
        self.flush(file)?;
        let reader = self.reader_of(file)?;
        let data = self
            .files
            .read_packed(&reader, FileOffset(found.start), place)
            .map_err(SendError::fs)?;
        self.put(&Command::EncodedWrite(EncodedWrite {
            path: &file.subject.path,
            offset: FileOffset(range.start),
            file_length: range.end - range.start,
            length: found.ram_bytes,
            skip: place.offset + (range.start - found.start),
            compression: Some(compression),
            data: &data,
        }))?;
        file.wrote_to(range.end);
        Ok(true)
    }

    fn reader_of(&self, file: &mut File<'_>) -> Result<Arc<Inode>, SendError> {
        if let Some(reader) = &file.reader {
            return Ok(Arc::clone(reader));
        }
        let reader = self.reader(file.subject.number)?;
        file.reader = Some(Arc::clone(&reader));
        Ok(reader)
    }

    /// Writes the data that were gathered.
    fn flush(&mut self, file: &mut File<'_>) -> Result<(), SendError> {
        let run = std::mem::replace(&mut file.run, 0..0);
        if run.is_empty() {
            return Ok(());
        }
        let path = &file.subject.path[..];
        file.content = Content::Written;
        if !self.sends_data() {
            return self.put(&Command::UpdateExtent {
                path,
                offset: FileOffset(run.start),
                length: run.end - run.start,
            });
        }
        let reader = self.reader_of(file)?;
        let step = match self.options.version {
            Version::One => STEP_V1,
            Version::Two | Version::Three => STEP,
        };
        let room = usize::try_from(step.min(run.end - run.start)).unwrap_or(0);
        let mut buffer = vec![0; room];
        let mut at = run.start;
        while at < run.end {
            let wanted = usize::try_from(run.end - at).map_or(room, |left| left.min(room));
            let data = &mut buffer[..wanted];
            let count = self.files.read(&reader, at, data).map_err(SendError::fs)?;
            if count == 0 {
                return Err(self.new.damaged(file.subject.number, "its data end early"));
            }
            self.put(&Command::Write {
                path,
                offset: FileOffset(at),
                data: &data[..count],
            })?;
            at += count as u64;
        }
        file.wrote_to(run.end);
        Ok(())
    }
}

/// The ranges. If the new file is longer, also the sector in which the old file
/// ended: what the extent has behind that end may not be zeros.
fn with_end(ranges: &[Range<u64>], old: u64, new: u64, sector: u64) -> Vec<Range<u64>> {
    let end = old - old % sector..old.next_multiple_of(sector);
    if new <= old || end.is_empty() {
        return ranges.to_vec();
    }
    let before = ranges.iter().filter(|range| range.end < end.start).cloned();
    let after = ranges.iter().filter(|range| range.start > end.end).cloned();
    let beside = ranges
        .iter()
        .filter(|range| range.end >= end.start && range.start <= end.end);
    let joined = beside.fold(end.clone(), |joined, range| {
        joined.start.min(range.start)..joined.end.max(range.end)
    });
    before.chain([joined]).chain(after).collect()
}

/// True if two file extents show the same bytes wherever they overlap.
fn lies_the_same(old: &Found, new: &Found) -> bool {
    match (&old.body, &new.body) {
        (Body::Inline(a), Body::Inline(b)) => {
            a == b && old.ram_bytes == new.ram_bytes && old.compression == new.compression
        }
        (Body::Regular(a), Body::Regular(b)) | (Body::Prealloc(a), Body::Prealloc(b)) => {
            let begin = |at: u64, offset: u64| i128::from(at) - i128::from(offset);
            a.disk == b.disk
                && a.disk.get() != 0
                && old.compression == new.compression
                && begin(old.start, a.offset) == begin(new.start, b.offset)
        }
        _ => false,
    }
}
