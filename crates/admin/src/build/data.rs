//! Writing the content of files.
//!
//! Owns where content goes and its checksums. Content is taken in units of
//! 128 KiB, in the order of the files; several threads compress and checksum a
//! batch of units, and one writes it in their order, so what is written does
//! not depend on threads. Sectors of zeros at either end of a unit become holes,
//! whether or not the host has some there.

use super::BuildError;
use super::content::{ContentId, Contents, Opened};
use super::space::Space;
use butterfs_format::compression::{Algorithm, Method, Scratch, UNIT, heuristic, room_that_pays};
use butterfs_format::{ChecksumType, Logical};
use rayon::prelude::*;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes that a file has at most to be kept in its tree.
const INLINE_MAX: u64 = 2048;
/// Bytes of units that are worked on together.
const BATCH: usize = 32 << 20;
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
    /// Number of its extent.
    pub(super) extent: usize,
    /// Bytes of the file, in whole sectors.
    pub(super) length: u64,
    pub(super) compression: Option<Algorithm>,
}

/// Where the content of a file is.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Inline(Vec<u8>),
    Pieces(Vec<Piece>),
}

/// Checksums of sectors in a row.
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

/// How content is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    pub(super) method: Option<Method>,
    pub(super) checksum: ChecksumType,
}

/// A unit of a file, to be packed.
struct Unit {
    content: ContentId,
    start: u64,
    bytes: Vec<u8>,
}

/// A unit as it is written: whole sectors, and a checksum for each.
struct PackedUnit {
    content: ContentId,
    start: u64,
    length: u64,
    compression: Option<Algorithm>,
    bytes: Vec<u8>,
    sums: Vec<u8>,
}

/// Writes content to an image.
pub(super) struct DataWriter<'a> {
    image: &'a File,
    contents: &'a Contents,
    space: &'a mut Space,
    keeping: Keeping,
    data: Data,
    batch: Vec<Unit>,
    waiting: usize,
}

impl<'a> DataWriter<'a> {
    pub(super) fn new(
        image: &'a File,
        contents: &'a Contents,
        space: &'a mut Space,
        keeping: Keeping,
    ) -> Self {
        let stored = std::iter::repeat_with(|| None).take(contents.len());
        Self {
            image,
            contents,
            space,
            keeping,
            data: Data {
                stored: stored.collect(),
                extents: Vec::new(),
                sums: Vec::new(),
            },
            batch: Vec::new(),
            waiting: 0,
        }
    }

    /// Writes a content, unless it is written already.
    pub(super) fn add(&mut self, id: ContentId) -> Result<(), BuildError> {
        let slot = &mut self.data.stored[Contents::index(id)];
        if slot.is_some() {
            return Ok(());
        }
        let size = self.contents.size(id);
        let opened = self.contents.open(id)?;
        if size <= INLINE_MAX {
            let mut bytes = vec![0; size as usize];
            opened.read(0, &mut bytes)?;
            *slot = Some(Stored::Inline(bytes));
            return Ok(());
        }
        *slot = Some(Stored::Pieces(Vec::new()));
        self.units(id, &opened, size)
    }

    fn units(
        &mut self,
        content: ContentId,
        opened: &Opened<'_>,
        size: u64,
    ) -> Result<(), BuildError> {
        let mut start = 0;
        while start < size {
            let length = (size - start).min(UNIT as u64) as usize;
            let mut bytes = vec![0; length.next_multiple_of(SECTOR)];
            opened.read(start, &mut bytes[..length])?;
            if let Some(used) = used_sectors(&bytes) {
                bytes.truncate(used.end * SECTOR);
                bytes.drain(..used.start * SECTOR);
                self.waiting += bytes.len();
                self.batch.push(Unit {
                    content,
                    start: start + (used.start * SECTOR) as u64,
                    bytes,
                });
                if self.waiting >= BATCH {
                    self.flush()?;
                }
            }
            start += length as u64;
        }
        Ok(())
    }

    /// Writes what waits, and gives what was written.
    pub(super) fn finish(mut self) -> Result<Data, BuildError> {
        self.flush()?;
        self.space.close();
        Ok(self.data)
    }

    fn flush(&mut self) -> Result<(), BuildError> {
        let batch = std::mem::take(&mut self.batch);
        self.waiting = 0;
        let keeping = self.keeping;
        let packed: Vec<PackedUnit> = batch
            .into_par_iter()
            .map_init(Scratch::default, |scratch, unit| {
                pack(scratch, keeping, unit)
            })
            .collect();
        for unit in packed {
            self.write(unit)?;
        }
        Ok(())
    }

    fn write(&mut self, unit: PackedUnit) -> Result<(), BuildError> {
        let length = unit.bytes.len() as u64;
        let place = self.space.allocate_data(length);
        self.image
            .write_all_at(&unit.bytes, place.physical)
            .map_err(BuildError::io("the image"))?;
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
        let Some(Stored::Pieces(pieces)) = &mut self.data.stored[Contents::index(unit.content)]
        else {
            unreachable!("its content was begun");
        };
        // What is not compressed goes on in the extent before it.
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

/// The sectors of a unit from the first to the last that are not all zeros.
fn used_sectors(bytes: &[u8]) -> Option<Range<usize>> {
    let is_used = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    let first = bytes.chunks(SECTOR).position(is_used)?;
    let last = bytes.chunks(SECTOR).rposition(is_used)?;
    Some(first..last + 1)
}

/// Compresses a unit where that pays, and computes its checksums.
fn pack(scratch: &mut Scratch, keeping: Keeping, unit: Unit) -> PackedUnit {
    let length = unit.bytes.len() as u64;
    let mut compression = None;
    let mut bytes = unit.bytes;
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
        content: unit.content,
        start: unit.start,
        length,
        compression,
        bytes,
        sums,
    }
}
