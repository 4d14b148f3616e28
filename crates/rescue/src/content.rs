//! The content of files: read, verified, decompressed.
//!
//! Invariants: bytes that do not match their checksum are never given out. Nor
//! are those of an extent that may be older than the tree, where the extent
//! tree says that something newer lies there.

use crate::checksums::{DataFacts, Known, Use};
use crate::inodes::{InodeKind, InodeParts};
use crate::nodes::Nodes;
use crate::ranges::ByteRanges;
use crate::{bytes_of, memory_of};
use butterfs_format::Logical;
use butterfs_format::compression::{Algorithm, Scratch};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeFlags;
use std::io;

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// Greatest extent that is decompressed, before and after.
const COMPRESSED_MAX: u64 = 1 << 20;

/// How much of a file came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wholeness {
    /// Ranges `start..end` that are lost.
    pub missing: Vec<(u64, u64)>,
    /// Ranges that could not be verified: their checksums are lost.
    pub unverified: Vec<(u64, u64)>,
    /// The file may be of an earlier time than the rest.
    pub may_be_older: bool,
    /// Its inode item is lost, and so its size and attributes.
    pub without_inode: bool,
    /// Bytes among those not verified that are zeros, as after a discard.
    pub zeros: u64,
}

impl Wholeness {
    /// Whether every byte is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && !self.without_inode
    }

    /// Whether every byte is there and verified.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.is_whole() && self.unverified.is_empty() && !self.may_be_older
    }
}

/// Takes bytes of a file at ascending offsets.
pub(crate) type Sink<'s> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 's;

/// What is known of a sector that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Unverified,
    Bad,
}

/// Reads the content of files.
pub(crate) struct ContentReader<'n> {
    nodes: &'n Nodes,
    facts: &'n DataFacts<'n>,
    scratch: Scratch,
}

/// What is gathered about one file.
struct Copying<'c> {
    missing: ByteRanges,
    unverified: ByteRanges,
    zeros: u64,
    /// Data without checksums are as they should be.
    needs_no_sums: bool,
    /// Extents may belong to something newer by now.
    is_doubtful: bool,
    /// End of what the sink was given.
    done: u64,
    size: u64,
    sink: &'c mut Sink<'c>,
}

impl Copying<'_> {
    /// Gives bytes of the file, as far as they are within its size and behind
    /// what was given before.
    fn give(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let skip = self.done.saturating_sub(offset);
        let start = offset.max(self.done);
        let room = self.size.saturating_sub(start);
        let data = data.get(memory_of(skip)..).unwrap_or_default();
        let data = data.get(..memory_of(room)).unwrap_or(data);
        if data.is_empty() {
            return Ok(());
        }
        self.done = start.saturating_add(bytes_of(data.len()));
        (self.sink)(start, data)
    }

    fn lose(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.size);
        self.missing.add(offset.min(end), end);
    }

    fn doubt(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.size);
        self.unverified.add(offset.min(end), end);
    }

    /// Gives the sectors that are good or unverified.
    fn give_sectors(
        &mut self,
        (offset, data): (u64, &[u8]),
        verdicts: &[Verdict],
        sector: usize,
        skip: usize,
    ) -> io::Result<()> {
        let mut at = offset;
        let mut skip = skip;
        for (data, verdict) in data.chunks(sector).zip(verdicts) {
            let data = data.get(skip..).unwrap_or_default();
            skip = 0;
            let length = bytes_of(data.len());
            match verdict {
                Verdict::Bad => self.lose(at, length),
                Verdict::Unverified => {
                    if !self.needs_no_sums {
                        self.doubt(at, length);
                        let is_zero = data.iter().all(|byte| *byte == 0);
                        let zeros = if is_zero { length } else { 0 };
                        self.zeros = self.zeros.saturating_add(zeros);
                    }
                    self.give(at, data)?;
                }
                Verdict::Good => self.give(at, data)?,
            }
            at = at.saturating_add(length);
        }
        Ok(())
    }
}

impl<'n> ContentReader<'n> {
    pub(crate) fn new(nodes: &'n Nodes, facts: &'n DataFacts<'n>) -> Self {
        Self {
            nodes,
            facts,
            scratch: Scratch::default(),
        }
    }

    /// Gives the content of a file to `sink`. Holes and lost ranges are left
    /// out.
    ///
    /// # Errors
    /// Those of `sink`.
    pub(crate) fn copy(
        &mut self,
        inode: &InodeParts,
        sink: &mut Sink<'_>,
    ) -> io::Result<Wholeness> {
        let flags = inode.item.as_ref().map_or(InodeFlags(0), |item| item.flags);
        let size = inode.size();
        let mut to = |offset, data: &[u8]| sink(offset, data);
        let mut copying = Copying {
            missing: inode.lost_ranges(),
            unverified: ByteRanges::default(),
            zeros: 0,
            needs_no_sums: flags.contains(InodeFlags::NODATASUM),
            is_doubtful: inode.is_found,
            done: 0,
            size,
            sink: &mut to,
        };
        for (offset, extent) in inode.parsed() {
            self.extent(offset, &extent, &mut copying)?;
        }
        Ok(Wholeness {
            missing: copying.missing.iter().collect(),
            unverified: copying.unverified.iter().collect(),
            may_be_older: inode.is_found,
            without_inode: inode.kind() == InodeKind::Unknown,
            zeros: copying.zeros,
        })
    }

    fn extent(
        &mut self,
        offset: u64,
        extent: &FileExtent<'_>,
        copying: &mut Copying<'_>,
    ) -> io::Result<()> {
        let place = match &extent.body {
            FileExtentBody::Inline(data) => return self.inline(offset, extent, data, copying),
            FileExtentBody::Prealloc(_) => return Ok(()),
            FileExtentBody::Regular(place) if place.disk.get() == 0 => return Ok(()),
            FileExtentBody::Regular(place) => *place,
        };
        if copying.is_doubtful {
            let generation = extent.generation;
            match self.facts.use_of(place.disk, place.disk_length, generation) {
                Use::Same => {}
                Use::Newer => {
                    copying.lose(offset, place.length);
                    return Ok(());
                }
                // Checksums of its time decide.
                Use::Free => {}
                Use::Unknown => copying.doubt(offset, place.length),
            }
        }
        match extent.compression {
            None => self.plain(offset, place, copying),
            Some(algorithm) => {
                let extent = (algorithm, extent.ram_bytes);
                self.compressed(offset, place, extent, copying)
            }
        }
    }

    fn inline(
        &mut self,
        offset: u64,
        extent: &FileExtent<'_>,
        data: &[u8],
        copying: &mut Copying<'_>,
    ) -> io::Result<()> {
        let Some(algorithm) = extent.compression else {
            return copying.give(offset, data);
        };
        let length = extent.ram_bytes;
        if length > COMPRESSED_MAX {
            copying.lose(offset, length);
            return Ok(());
        }
        let mut plain = vec![0; memory_of(length)];
        let sector = self.nodes.sector();
        match self.scratch.decompress(algorithm, data, &mut plain, sector) {
            Ok(_) => copying.give(offset, &plain),
            Err(_) => {
                copying.lose(offset, length);
                Ok(())
            }
        }
    }

    fn plain(
        &mut self,
        offset: u64,
        place: ExtentPlace,
        copying: &mut Copying<'_>,
    ) -> io::Result<()> {
        let sector = self.nodes.identity.sector_size.max(1);
        let wanted = place.length.min(copying.size.saturating_sub(offset));
        let end = place.disk.saturating_add(place.disk_length);
        let mut done = 0;
        while done < wanted {
            let at = place.disk.saturating_add(place.offset).saturating_add(done);
            let inside = at.get().checked_rem(sector).unwrap_or(0);
            let start = Logical(at.get().saturating_sub(inside));
            let length = wanted.saturating_sub(done).min(PIECE);
            let stop = start.saturating_add(inside).saturating_add(length);
            if stop > end {
                copying.lose(offset.saturating_add(done), wanted.saturating_sub(done));
                return Ok(());
            }
            let bytes = inside.saturating_add(length).next_multiple_of(sector);
            let mut buffer = vec![0; memory_of(bytes)];
            let verdicts = self.read(start, &mut buffer);
            let shown = memory_of(inside.saturating_add(length));
            let shown = buffer.get(..shown).unwrap_or_default();
            let at = offset.saturating_add(done);
            let sector = self.nodes.sector();
            copying.give_sectors((at, shown), &verdicts, sector, memory_of(inside))?;
            done = done.saturating_add(length);
        }
        Ok(())
    }

    fn compressed(
        &mut self,
        offset: u64,
        place: ExtentPlace,
        (algorithm, ram_bytes): (Algorithm, u64),
        copying: &mut Copying<'_>,
    ) -> io::Result<()> {
        let is_sane = place.disk_length <= COMPRESSED_MAX && ram_bytes <= COMPRESSED_MAX;
        let sector = self.nodes.sector();
        let whole = memory_of(place.disk_length);
        if !is_sane || !whole.is_multiple_of(sector.max(1)) || whole == 0 {
            copying.lose(offset, place.length);
            return Ok(());
        }
        let mut buffer = vec![0; whole];
        let verdicts = self.read(place.disk, &mut buffer);
        let mut plain = vec![0; memory_of(ram_bytes)];
        let is_readable = !verdicts.contains(&Verdict::Bad);
        let is_plain = is_readable
            && self
                .scratch
                .decompress(algorithm, &buffer, &mut plain, sector)
                .is_ok();
        let end = place.offset.saturating_add(place.length);
        let part = plain.get(memory_of(place.offset)..memory_of(end));
        let (true, Some(part)) = (is_plain, part) else {
            copying.lose(offset, place.length);
            return Ok(());
        };
        if verdicts.contains(&Verdict::Unverified) && !copying.needs_no_sums {
            copying.doubt(offset, place.length);
        }
        copying.give(offset, part)
    }

    /// Fills `buffer`, sector by sector from the first copy that is good.
    fn read(&self, logical: Logical, buffer: &mut [u8]) -> Vec<Verdict> {
        let space = &self.nodes.space;
        let sector = self.nodes.sector().max(1);
        let count = buffer.len().div_ceil(sector);
        let known = self.facts.sums(logical, count);
        let is_read = space.read(logical, buffer).is_ok();
        let mut verdicts = Vec::with_capacity(count);
        let mut at = logical;
        for (data, known) in buffer.chunks_mut(sector).zip(&known) {
            let mut verdict = match is_read {
                true => self.judge(data, known),
                false => Verdict::Bad,
            };
            if verdict == Verdict::Bad {
                let mut other = vec![0; data.len()];
                for way in 0..space.ways(at) {
                    if space.read_copy(at, way, &mut other).is_err() {
                        continue;
                    }
                    let found = self.judge(&other, known);
                    if found != Verdict::Bad {
                        data.copy_from_slice(&other);
                        verdict = found;
                        break;
                    }
                }
            }
            verdicts.push(verdict);
            at = at.saturating_add(bytes_of(sector));
        }
        verdicts
    }

    fn judge(&self, data: &[u8], known: &Known) -> Verdict {
        let kind = self.nodes.identity.checksum;
        let is_right = |sum: &[u8]| {
            kind.compute(data)
                .get(..kind.size())
                .is_some_and(|own| own == sum)
        };
        match known {
            Known::Sum(sum) if is_right(sum) => Verdict::Good,
            Known::Sum(_) => Verdict::Bad,
            Known::Older(sum) if is_right(sum) => Verdict::Good,
            Known::Older(_) | Known::Absent | Known::Lost => Verdict::Unverified,
        }
    }
}
