//! Reading file data.
//!
//! Owns the way from file offsets to verified bytes. Nobody gets bytes whose
//! checksum does not match, unless the volume was opened to read what is left
//! of it (`rescue=`). Then the reader learns which bytes they are ([`Doubts`]),
//! or the log does.

use super::doubts::{Doubt, Doubts, PassedOver};
use super::extents::{self, Body, COMPRESSED_MAX};
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, InodeState};
use crate::inode_fault::{ExtentFault, InodeFault, Unreadable, WrongSum};
use butterfs_format::compression::{Algorithm, Scratch};
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{ChecksumType, FileOffset, InodeId, Logical};
use butterfs_store::{Engine, OnFault, SectorChecksums, StoreError};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are read at a time. They are compared with their checksums while
/// the processor's cache has them, and several threads take turns with them.
const BATCH: usize = 128 << 10;
/// The same if each batch waits for devices: for several, which wait for each
/// other at its end, or for one that is read by direct I/O.
const BATCH_THAT_WAITS: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Runs `work` with this thread's compression contexts.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| work(&mut scratch.borrow_mut()))
}

/// Where part of a file comes from.
#[derive(Debug)]
struct Piece {
    /// File range, inside the request.
    range: Range<u64>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Inline {
        data: Vec<u8>,
        compression: Option<Algorithm>,
        ram_bytes: u64,
    },
    /// Sectors that cover the range, from `logical`; `skip` bytes of them lie
    /// before it.
    Plain {
        logical: Logical,
        length: u64,
        skip: usize,
        sums: Option<SectorChecksums>,
    },
    Compressed {
        logical: Logical,
        length: u64,
        ram_bytes: u64,
        /// Where the range begins in the decompressed bytes.
        skip: u64,
        algorithm: Algorithm,
        sums: Option<SectorChecksums>,
    },
}

/// What is read at a time of a piece.
struct Batch<'a> {
    piece: &'a Piece,
    /// Bytes of the piece before it, whole sectors.
    before: usize,
    target: &'a mut [u8],
}

/// Geometry and checksum of a volume's data.
#[derive(Clone, Copy)]
struct Sectors {
    size: u64,
    checksum: ChecksumType,
    /// Bytes that are read at a time, whole sectors.
    batch: usize,
}

/// Checksums of sectors from one of them on.
#[derive(Clone, Copy)]
struct SumsFrom<'a> {
    sums: &'a SectorChecksums,
    first: usize,
}

impl<'a> SumsFrom<'a> {
    fn get(self, sector: usize) -> Option<&'a [u8]> {
        self.sums.get(self.first + sector)
    }
}

impl Piece {
    /// Whether it is sectors as they lie, from the first byte to the last.
    fn is_whole_sectors(&self) -> bool {
        let Source::Plain { length, skip, .. } = self.source else {
            return false;
        };
        skip == 0 && length == self.range.end - self.range.start
    }

    /// Cuts it into batches that fill `target`.
    fn cut<'a>(&'a self, target: &'a mut [u8], most: usize, batches: &mut Vec<Batch<'a>>) {
        let most = match self.is_whole_sectors() {
            true => most,
            false => target.len(),
        };
        let mut before = 0;
        for target in target.chunks_mut(most) {
            let length = target.len();
            batches.push(Batch {
                piece: self,
                before,
                target,
            });
            before += length;
        }
    }
}

impl Filesystem {
    /// Reads from `offset`. Gives how many bytes of `buffer` were filled: fewer
    /// than all at the end of the file.
    ///
    /// # Errors
    /// [`FsError::Damaged`] when no good copy is left; reading.
    pub fn read(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        let doubts = Doubts::default();
        let count = self.read_doubtful(inode, offset, buffer, &doubts);
        self.log_doubts(inode.id, &doubts);
        count
    }

    /// As [`Filesystem::read`]. What was read though nobody vouches for it is
    /// added to `doubts`, and is not logged.
    ///
    /// # Errors
    /// As [`Filesystem::read`].
    pub fn read_doubtful(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        doubts: &Doubts,
    ) -> Result<usize, FsError> {
        let mut state = inode.state.read_beside();
        if state.deleted {
            // The file is gone with its subvolume. Its space may belong to
            // another file now.
            return Err(FsError::NotFound);
        }
        let wanted = offset..offset.saturating_add(buffer.len() as u64);
        if state.leaves(&wanted) {
            if let Some(count) = self.read_waiting(&state, offset, buffer) {
                return Ok(count);
            }
            // What the flush replaces may be freed and written anew.
            drop(state);
            state = inode.state.read();
            if state.deleted {
                return Err(FsError::NotFound);
            }
        }
        let _addresses = self.store.hold_to_read();
        self.read_locked_doubtful(inode.id, &state, (offset, buffer), doubts)
    }

    /// One line for what a read passed over.
    fn log_doubts(&self, id: InodeId, doubts: &Doubts) {
        for (ranges, what) in [
            (doubts.wrong(), "data with a wrong checksum are read"),
            (doubts.unverified(), "data without a checksum are read"),
        ] {
            if let (Some(first), Some(last)) = (ranges.first(), ranges.last()) {
                let path = self.path_for_message(id);
                let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                tracing::warn!(path, bytes, from = first.start, to = last.end, "{what}");
            }
        }
    }

    /// Reads what is all in memory, while some of it leaves the buffer; `None`
    /// if some is elsewhere.
    fn read_waiting(&self, state: &InodeState, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let leaving = state.leaving.as_ref()?;
        let left = state.item.size.saturating_sub(offset);
        let count = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let end = offset + count as u64;
        let mut sectors = (offset / self.sector_size * self.sector_size..end)
            .step_by(usize::try_from(self.sector_size).ok()?);
        if !sectors.all(|at| leaving.contains(at) || state.buffer.contains(at)) {
            return None;
        }
        let buffer = &mut buffer[..count];
        leaving.overlay(offset, buffer);
        state.buffer.overlay(offset, buffer);
        Some(count)
    }

    /// [`Filesystem::read`] for a state that is already locked, while the
    /// addresses of data are held.
    pub(crate) fn read_locked(
        &self,
        id: InodeId,
        state: &InodeState,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, FsError> {
        let doubts = Doubts::default();
        let count = self.read_locked_doubtful(id, state, (offset, buffer), &doubts);
        self.log_doubts(id, &doubts);
        count
    }

    fn read_locked_doubtful(
        &self,
        id: InodeId,
        state: &InodeState,
        (offset, buffer): (u64, &mut [u8]),
        doubts: &Doubts,
    ) -> Result<usize, FsError> {
        let left = state.item.size.saturating_sub(offset);
        let count = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..count];
        if count == 0 {
            return Ok(0);
        }
        let request = offset..offset + count as u64;
        let sectors = self.sectors();
        let look = |engine: &Engine| self.plan_read(engine, id, state, &request);
        let pieces = self.store.look(look)?;
        let mut batches = Vec::with_capacity(pieces.len() + count / sectors.batch);
        let mut bytes = 0;
        let (mut at, mut rest) = (offset, &mut buffer[..]);
        for piece in &pieces {
            let (hole, later) = rest.split_at_mut((piece.range.start - at) as usize);
            hole.fill(0);
            let length = (piece.range.end - piece.range.start) as usize;
            let (target, later) = later.split_at_mut(length);
            piece.cut(target, sectors.batch, &mut batches);
            bytes += length;
            (at, rest) = (piece.range.end, later);
        }
        rest.fill(0);
        // The time goes by waiting, and not by copying what is in memory.
        if self.store.space().reads_wait() {
            bytes = 0;
        }
        self.reading.run(batches, bytes, |batch| {
            self.read_batch(id, batch, sectors, doubts)
        })?;
        state.buffer.overlay(offset, buffer);
        Ok(count)
    }

    fn sectors(&self) -> Sectors {
        let batch = match self.store.space().reads_wait() {
            true => BATCH_THAT_WAITS,
            false => BATCH,
        };
        let size = self.sector_size as usize;
        Sectors {
            size: self.sector_size,
            checksum: self.checksum,
            batch: (batch / size).max(1) * size,
        }
    }

    fn plan_read(
        &self,
        engine: &Engine,
        id: InodeId,
        state: &InodeState,
        request: &Range<u64>,
    ) -> Result<Vec<Piece>, FsError> {
        let sector = engine.sector_size();
        let summed = !state.item.flags.contains(InodeFlags::NODATASUM);
        let mut pieces: Vec<Piece> = Vec::new();
        for extent in extents::counting(engine, id, state, request.clone(), usize::MAX)? {
            let range = request.start.max(extent.start)..request.end.min(extent.end());
            if range.is_empty() || extent.is_hole() {
                continue;
            }
            let source = match extent.body {
                Body::Prealloc(_) => continue,
                Body::Inline(data) => Source::Inline {
                    data,
                    compression: extent.compression,
                    ram_bytes: extent.ram_bytes,
                },
                Body::Regular(place) => {
                    let within = place.offset + (range.start - extent.start);
                    match extent.compression {
                        Some(algorithm) => {
                            let disk = place.disk.get()..place.disk.get() + place.disk_length;
                            Source::Compressed {
                                logical: place.disk,
                                length: place.disk_length,
                                ram_bytes: extent.ram_bytes,
                                skip: within,
                                algorithm,
                                sums: summed.then(|| engine.data_checksums(disk)).transpose()?,
                            }
                        }
                        None => {
                            let start = place.disk.get() + within;
                            let first = start / sector * sector;
                            let end = start + (range.end - range.start);
                            let disk = first..end.next_multiple_of(sector);
                            Source::Plain {
                                logical: Logical(first),
                                length: disk.end - first,
                                skip: (start - first) as usize,
                                sums: summed.then(|| engine.data_checksums(disk)).transpose()?,
                            }
                        }
                    }
                }
            };
            pieces.push(Piece { range, source });
        }
        Ok(pieces)
    }

    fn read_batch(
        &self,
        id: InodeId,
        batch: Batch<'_>,
        sectors: Sectors,
        doubts: &Doubts,
    ) -> Result<(), FsError> {
        let Batch {
            piece,
            before,
            target,
        } = batch;
        let at = FileOffset(piece.range.start + before as u64);
        let mut passed = PassedOver::default();
        match &piece.source {
            Source::Inline {
                data,
                compression,
                ram_bytes,
            } => {
                let skip = piece.range.start as usize;
                match compression {
                    None => copy_part(data, skip, target),
                    Some(algorithm) => {
                        let whole = unpack(id, at, *algorithm, data, *ram_bytes, sectors)?;
                        copy_part(&whole, skip, target);
                    }
                }
            }
            Source::Plain {
                logical,
                length,
                skip,
                sums,
            } => {
                if piece.is_whole_sectors() {
                    let logical = Logical(logical.get() + before as u64);
                    let sums = sums.as_ref().map(|sums| SumsFrom {
                        sums,
                        first: before / sectors.size as usize,
                    });
                    let read = (logical, target);
                    self.read_sectors_at_once(id, at, read, sums, sectors, &mut passed)?;
                } else {
                    let mut whole = vec![0; *length as usize];
                    let (read, sums) = ((*logical, &mut whole[..]), sums.as_ref());
                    self.read_sectors(id, at, read, sums, sectors, &mut passed)?;
                    copy_part(&whole, *skip, target);
                }
                // The sectors may begin before the piece and end behind it.
                let in_file = |byte: u64| {
                    let byte = at.get().saturating_add(byte);
                    let byte = byte.saturating_sub(*skip as u64);
                    byte.clamp(piece.range.start, piece.range.end)
                };
                for (doubt, part) in passed.0 {
                    doubts.add(doubt, in_file(part.start)..in_file(part.end));
                }
            }
            Source::Compressed {
                logical,
                length,
                ram_bytes,
                skip,
                algorithm,
                sums,
            } => {
                let whole = match self.unpacked_at(*logical, *length, *ram_bytes) {
                    Some(whole) => whole,
                    None => {
                        let mut packed = vec![0; *length as usize];
                        let (read, sums) = ((*logical, &mut packed[..]), sums.as_ref());
                        self.read_sectors(id, at, read, sums, sectors, &mut passed)?;
                        let whole = unpack(id, at, *algorithm, &packed, *ram_bytes, sectors)?;
                        let whole = Arc::new(whole);
                        // Whoever reads doubtful bytes must learn that they are.
                        if passed.0.is_empty() {
                            self.unpacked.insert(*logical, *length, Arc::clone(&whole));
                        }
                        whole
                    }
                };
                copy_part(&whole, *skip as usize, target);
                // A wrong byte of the packed data may change all that follow.
                for (doubt, _) in passed.0 {
                    doubts.add(doubt, piece.range.clone());
                }
            }
        }
        Ok(())
    }

    /// The decompressed bytes of an extent, if the cache has them.
    fn unpacked_at(&self, logical: Logical, packed: u64, length: u64) -> Option<Arc<Vec<u8>>> {
        self.unpacked.follow(self.store.data_moves());
        self.unpacked.get(logical, packed, length)
    }

    /// The bytes of a compressed extent as they lie, verified.
    pub(crate) fn read_packed(
        &self,
        inode: &Inode,
        at: FileOffset,
        place: &ExtentPlace,
    ) -> Result<Vec<u8>, FsError> {
        if place.disk_length > COMPRESSED_MAX {
            return Err(FsError::Damaged {
                inode: inode.id,
                at: Some(at),
                fault: Box::new(InodeFault::Extent(ExtentFault::PackedSize)),
            });
        }
        let summed = !inode
            .state
            .read()
            .item
            .flags
            .contains(InodeFlags::NODATASUM);
        let disk = place.disk.get()..place.disk.get() + place.disk_length;
        let sums = match summed {
            true => {
                let look = |engine: &Engine| engine.data_checksums(disk.clone());
                Some(self.store.look(look)?)
            }
            false => None,
        };
        let sectors = self.sectors();
        let mut packed = vec![0; place.disk_length as usize];
        let mut passed = PassedOver::default();
        let (read, sums) = ((place.disk, &mut packed[..]), sums.as_ref());
        self.read_sectors(inode.id, at, read, sums, sectors, &mut passed)?;
        if !passed.0.is_empty() {
            let doubts = Doubts::default();
            let end = at.get().saturating_add(place.length);
            for (doubt, _) in passed.0 {
                doubts.add(doubt, at.get()..end);
            }
            self.log_doubts(inode.id, &doubts);
        }
        Ok(packed)
    }

    /// Reads whole sectors, each verified. What is passed over is added to
    /// `passed`, counted from the first byte of `target`.
    fn read_sectors(
        &self,
        id: InodeId,
        at: FileOffset,
        (logical, target): (Logical, &mut [u8]),
        sums: Option<&SectorChecksums>,
        sectors: Sectors,
        passed: &mut PassedOver,
    ) -> Result<(), FsError> {
        let batches = target.chunks_mut(sectors.batch).enumerate();
        for (number, target) in batches {
            let before = number * sectors.batch;
            let at = FileOffset(at.get().saturating_add(before as u64));
            let logical = Logical(logical.get() + before as u64);
            let first = before / sectors.size as usize;
            let sums = sums.map(|sums| SumsFrom { sums, first });
            let mut of_batch = PassedOver::default();
            self.read_sectors_at_once(id, at, (logical, target), sums, sectors, &mut of_batch)?;
            let moved = of_batch.0.into_iter().map(|(doubt, part)| {
                let before = before as u64;
                (doubt, part.start + before..part.end + before)
            });
            passed.0.extend(moved);
        }
        Ok(())
    }

    /// The same for a batch.
    fn read_sectors_at_once(
        &self,
        id: InodeId,
        at: FileOffset,
        (logical, target): (Logical, &mut [u8]),
        sums: Option<SumsFrom<'_>>,
        sectors: Sectors,
        passed: &mut PassedOver,
    ) -> Result<(), FsError> {
        let damaged = |offset: u64, fault: InodeFault| {
            let fault = FsError::Damaged {
                inode: id,
                at: Some(FileOffset(at.get().saturating_add(offset))),
                fault: Box::new(fault),
            };
            let path = self.path_for_message(id);
            tracing::error!(path, error = %fault, "file data cannot be read");
            fault
        };
        let Some(sums) = sums else {
            return self
                .store
                .space()
                .read(logical, target)
                .map_err(|error| damaged(0, unread(error, None)));
        };
        let size = sectors.size as usize;
        let place = |sector: usize| Logical(logical.get() + (sector * size) as u64);
        let part = |sector: usize| (sector * size) as u64..((sector + 1) * size) as u64;
        let rescue = self.store.read().rescue();
        for sector in 0..target.len() / size {
            if sums.get(sector).is_none() {
                if !rescue.reads_unverified() {
                    // Which copy is good cannot be told. No device is at fault.
                    let fault = InodeFault::NoChecksum(place(sector));
                    return Err(damaged((sector * size) as u64, fault));
                }
                passed.0.push((Doubt::NoChecksum, part(sector)));
            }
        }
        let space = self.store.space();
        let all_good = &mut |bytes: &[u8]| {
            let mut found = bytes.chunks(size).enumerate();
            found.all(|(sector, bytes)| {
                sums.get(sector).is_none_or(|expected| {
                    sectors.checksum.compute(bytes)[..expected.len()] == *expected
                })
            })
        };
        if space
            .read_verified_together(logical, target, all_good)
            .is_ok()
        {
            return Ok(());
        }
        // Different sectors may be good on different copies.
        for (sector, bytes) in target.chunks_mut(size).enumerate() {
            let mut seen = None;
            let verify = &mut |bytes: &[u8]| {
                let found = sectors.checksum.compute(bytes);
                let expected = sums.get(sector).unwrap_or_default();
                let found = &found[..expected.len()];
                seen = Some(WrongSum {
                    expected: hex(expected),
                    found: hex(found),
                });
                found == expected
            };
            let result = space.read_verified(place(sector), bytes, verify);
            if let Err(error) = result {
                if rescue.data == OnFault::PassOver && space.read(place(sector), bytes).is_ok() {
                    passed.0.push((Doubt::WrongChecksum, part(sector)));
                    continue;
                }
                return Err(damaged((sector * size) as u64, unread(error, seen)));
            }
        }
        Ok(())
    }
}

fn unread(error: impl Into<StoreError>, sums: Option<WrongSum>) -> InodeFault {
    let cause = error.into();
    InodeFault::Data(Unreadable { cause, sums })
}

/// A checksum as the kernel prints it: its first byte last.
fn hex(sum: &[u8]) -> String {
    let digits = sum.iter().rev().map(|byte| format!("{byte:02x}"));
    format!("0x{}", digits.collect::<String>())
}

/// Copies `from[skip..]` to `target`; what is missing becomes zeros.
fn copy_part(from: &[u8], skip: usize, target: &mut [u8]) {
    let part = from.get(skip..).unwrap_or_default();
    let count = part.len().min(target.len());
    target[..count].copy_from_slice(&part[..count]);
    target[count..].fill(0);
}

fn unpack(
    id: InodeId,
    at: FileOffset,
    algorithm: Algorithm,
    packed: &[u8],
    ram_bytes: u64,
    sectors: Sectors,
) -> Result<Vec<u8>, FsError> {
    let mut whole = vec![0; ram_bytes as usize];
    with_scratch(|scratch| {
        scratch.decompress(algorithm, packed, &mut whole, sectors.size as usize)
    })
    .map_err(|error| FsError::Damaged {
        inode: id,
        at: Some(at),
        fault: Box::new(InodeFault::Compressed(error)),
    })?;
    Ok(whole)
}
