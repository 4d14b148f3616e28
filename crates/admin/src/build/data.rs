//! Writing the content of files.
//!
//! Owns where content goes and its checksums. Content is taken in units of
//! 128 KiB, in the order of the files. Several threads read, compress and
//! checksum a batch of files while one thread writes the previous batch in order,
//! so the image does not depend on the threads. Sectors of zeros at either end of
//! a unit become holes, even if the host has no hole there.

use super::content::{ContentId, Contents};
use super::space::Space;
use super::{BuildError, Watch};
use butterfs_format::compression::{Algorithm, Method, Scratch, UNIT, heuristic, room_that_pays};
use butterfs_format::{ChecksumType, Logical};
use rayon::prelude::*;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;

/// The most bytes of a file whose content is kept inline.
const INLINE_MAX: u64 = 2048;
/// Bytes in a batch. Two batches are in memory.
const BATCH: u64 = 16 << 20;
/// The most parts of files in a batch.
const BATCH_FILES: usize = 4096;
/// Bytes of a file that a thread reads at a time.
const SPAN: u64 = 8 * UNIT as u64;
/// The most bytes and parts of one write.
const WRITE_MAX: usize = 8 << 20;
const PARTS_MAX: usize = 512;
/// Bytes of the greatest extent.
const EXTENT_MAX: u64 = 128 << 20;
/// Bytes of a sector.
pub(super) const SECTOR: usize = 4096;

/// An extent of data.
#[derive(Clone, Debug)]
pub(super) struct DataExtent {
    pub(super) logical: Logical,
    /// Bytes on the device.
    pub(super) length: u64,
    chunk: usize,
}

/// A piece of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Offset in the file.
    pub(super) start: u64,
    /// Index of its extent.
    pub(super) extent: usize,
    /// Bytes of the file, in whole sectors.
    pub(super) length: u64,
    pub(super) compression: Option<Algorithm>,
}

/// How the content of a file is stored in the image.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Inline(Vec<u8>),
    Pieces(Vec<Piece>),
}

/// Checksums of consecutive sectors.
#[derive(Clone, Debug)]
pub(super) struct SumRun {
    pub(super) start: u64,
    pub(super) sums: Vec<u8>,
    sectors: u64,
}

/// All data of an image.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) stored: Vec<Option<Stored>>,
    pub(super) extents: Vec<DataExtent>,
    pub(super) sums: Vec<SumRun>,
}

/// Compression and checksum of content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    pub(super) method: Option<Method>,
    pub(super) checksum: ChecksumType,
}

/// A part of a file, to be read and packed.
#[derive(Clone, Copy, Debug)]
struct Job {
    content: ContentId,
    start: u64,
    /// Bytes of the part.
    length: u64,
    /// Bytes of the file.
    size: u64,
}

/// A part of a file, packed.
enum Taken {
    Inline(Vec<u8>),
    Units(Vec<PackedUnit>),
}

/// A unit in the form in which it is written: whole sectors, and a checksum for
/// each.
struct PackedUnit {
    start: u64,
    length: u64,
    compression: Option<Algorithm>,
    bytes: Vec<u8>,
    sums: Vec<u8>,
}

/// Why content is not in the image.
pub(super) struct DataError {
    /// The content that could not be read.
    pub(super) content: Option<ContentId>,
    pub(super) error: BuildError,
}

impl From<BuildError> for DataError {
    fn from(error: BuildError) -> Self {
        Self {
            content: None,
            error,
        }
    }
}

/// Writes the content of files, each once, in their order. Calls `watch` with the
/// bytes done and the bytes in all.
///
/// # Errors
/// [`BuildError::Io`] if reading or writing fails, and [`BuildError::Changed`] if
/// a file became shorter; with the content that could not be read.
pub(super) fn write(
    image: &File,
    contents: &Contents,
    space: &mut Space,
    keeping: Keeping,
    (files, watch): (impl Iterator<Item = ContentId>, Watch<'_>),
) -> Result<Data, DataError> {
    let all = contents.total();
    let mut done = 0;
    let stored = std::iter::repeat_with(|| None).take(contents.len());
    let mut writer = DataWriter {
        image,
        space,
        data: Data {
            stored: stored.collect(),
            extents: Vec::new(),
            sums: Vec::new(),
        },
        waiting: Waiting::default(),
    };
    let mut jobs = jobs(contents, files).peekable();
    let mut ready = Vec::new();
    while jobs.peek().is_some() || !ready.is_empty() {
        let mut bytes = 0;
        let mut batch = Vec::new();
        while bytes < BATCH
            && batch.len() < BATCH_FILES
            && let Some(job) = jobs.next()
        {
            bytes += job.length;
            batch.push(job);
        }
        let before = std::mem::take(&mut ready);
        let (written, taken) = rayon::join(
            || writer.write_all(before),
            || -> Vec<Result<Taken, BuildError>> {
                let packed = batch.par_iter().map_init(Scratch::default, |scratch, job| {
                    take(contents, scratch, keeping, *job)
                });
                packed.collect()
            },
        );
        written?;
        done += bytes;
        watch(done, all);
        for (job, taken) in batch.into_iter().zip(taken) {
            let taken = taken.map_err(|error| DataError {
                content: Some(job.content),
                error,
            })?;
            ready.push((job.content, taken));
        }
    }
    writer.flush()?;
    writer.space.close();
    Ok(writer.data)
}

/// Returns the parts of files, each file once.
fn jobs(contents: &Contents, files: impl Iterator<Item = ContentId>) -> impl Iterator<Item = Job> {
    let mut begun = vec![false; contents.len()];
    let is_first = move |id: &ContentId| !std::mem::replace(&mut begun[Contents::index(*id)], true);
    files.filter(is_first).flat_map(|content| {
        let size = contents.size(content);
        let spans = contents.spans(content, SPAN).into_iter().flatten();
        spans.map(move |number| {
            let start = number * SPAN;
            Job {
                content,
                start,
                length: (size - start).min(SPAN),
                size,
            }
        })
    })
}

/// Reads and packs a part of a file.
fn take(
    contents: &Contents,
    scratch: &mut Scratch,
    keeping: Keeping,
    job: Job,
) -> Result<Taken, BuildError> {
    let opened = contents.open(job.content)?;
    if job.size <= INLINE_MAX {
        let mut bytes = vec![0; job.size as usize];
        opened.read(0, &mut bytes)?;
        return Ok(Taken::Inline(bytes));
    }
    let mut units = Vec::new();
    let end = job.start + job.length;
    let mut start = job.start;
    while start < end {
        let length = (end - start).min(UNIT as u64) as usize;
        let mut bytes = vec![0; length.next_multiple_of(SECTOR)];
        opened.read(start, &mut bytes[..length])?;
        if let Some(used) = used_sectors(&bytes) {
            bytes.truncate(used.end * SECTOR);
            bytes.drain(..used.start * SECTOR);
            let start = start + (used.start * SECTOR) as u64;
            units.push(pack(scratch, keeping, start, bytes));
        }
        start += length as u64;
    }
    Ok(Taken::Units(units))
}

/// Parts that lie side by side in the image and are written together.
#[derive(Default)]
struct Waiting {
    at: u64,
    bytes: usize,
    parts: Vec<Vec<u8>>,
}

/// Writes content to an image.
struct DataWriter<'a> {
    image: &'a File,
    space: &'a mut Space,
    data: Data,
    waiting: Waiting,
}

impl DataWriter<'_> {
    fn write_all(&mut self, ready: Vec<(ContentId, Taken)>) -> Result<(), BuildError> {
        for (content, taken) in ready {
            let slot = &mut self.data.stored[Contents::index(content)];
            match taken {
                Taken::Inline(bytes) => *slot = Some(Stored::Inline(bytes)),
                Taken::Units(units) => {
                    slot.get_or_insert_with(|| Stored::Pieces(Vec::new()));
                    for unit in units {
                        self.write(content, unit)?;
                    }
                }
            }
        }
        self.flush()
    }

    /// Queues a part for writing. Writes the waiting parts first if it does not
    /// lie right behind them.
    fn put(&mut self, at: u64, part: Vec<u8>) -> Result<(), BuildError> {
        let waiting = &self.waiting;
        let follows = waiting.at + waiting.bytes as u64 == at
            && waiting.bytes < WRITE_MAX
            && waiting.parts.len() < PARTS_MAX;
        if !follows {
            self.flush()?;
            self.waiting.at = at;
        }
        self.waiting.bytes += part.len();
        self.waiting.parts.push(part);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BuildError> {
        let waiting = std::mem::take(&mut self.waiting);
        let failed = BuildError::io("the image");
        write_parts(self.image, waiting.at, &waiting.parts).map_err(failed)
    }

    fn write(&mut self, content: ContentId, unit: PackedUnit) -> Result<(), BuildError> {
        let length = unit.bytes.len() as u64;
        let place = self.space.allocate_data(length);
        self.put(place.physical, unit.bytes)?;
        match self.data.sums.last_mut() {
            Some(last) if last.start + last.sectors * SECTOR as u64 == place.logical => {
                last.sums.extend_from_slice(&unit.sums);
                last.sectors += length / SECTOR as u64;
            }
            _ => self.data.sums.push(SumRun {
                start: place.logical,
                sums: unit.sums,
                sectors: length / SECTOR as u64,
            }),
        }
        let Some(Stored::Pieces(pieces)) = &mut self.data.stored[Contents::index(content)] else {
            unreachable!("its content was begun");
        };
        // Content that is not compressed extends the extent before it.
        let number = self.data.extents.len();
        if let (None, Some(piece), Some(extent)) = (
            unit.compression,
            pieces.last_mut(),
            self.data.extents.last_mut(),
        ) {
            let is_next = piece.compression.is_none()
                && piece.extent + 1 == number
                && piece.start + piece.length == unit.start
                && extent.logical.get() + extent.length == place.logical
                && extent.chunk == place.chunk
                && extent.length + length <= EXTENT_MAX;
            if is_next {
                piece.length += unit.length;
                extent.length += length;
                return Ok(());
            }
        }
        pieces.push(Piece {
            start: unit.start,
            extent: number,
            length: unit.length,
            compression: unit.compression,
        });
        self.data.extents.push(DataExtent {
            logical: Logical(place.logical),
            length,
            chunk: place.chunk,
        });
        Ok(())
    }
}

/// Writes parts one behind the other.
fn write_parts(image: &File, mut at: u64, parts: &[Vec<u8>]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        match rustix::io::pwritev(image, left, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns the sectors of a unit from the first to the last that is not all
/// zeros; `None` if all are zeros.
fn used_sectors(bytes: &[u8]) -> Option<Range<usize>> {
    let is_used = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    let first = bytes.chunks(SECTOR).position(is_used)?;
    let last = bytes.chunks(SECTOR).rposition(is_used)?;
    Some(first..last + 1)
}

/// Compresses a unit if that saves sectors, and computes its checksums.
fn pack(scratch: &mut Scratch, keeping: Keeping, start: u64, mut bytes: Vec<u8>) -> PackedUnit {
    let length = bytes.len() as u64;
    let mut compression = None;
    if let Some(method) = keeping.method
        && heuristic::is_compressible(&bytes)
    {
        let mut output = vec![0; room_that_pays(bytes.len(), SECTOR)];
        let (algorithm, level) = (method.algorithm, method.level);
        if let Some(short) = scratch.compress(algorithm, level, &bytes, &mut output, SECTOR) {
            output.truncate(short);
            output.resize(short.next_multiple_of(SECTOR), 0);
            bytes = output;
            compression = Some(algorithm);
        }
    }
    let size = keeping.checksum.size();
    let mut sums = Vec::with_capacity(bytes.len() / SECTOR * size);
    for sector in bytes.chunks(SECTOR) {
        sums.extend_from_slice(&keeping.checksum.compute(sector)[..size]);
    }
    PackedUnit {
        start,
        length,
        compression,
        bytes,
        sums,
    }
}
