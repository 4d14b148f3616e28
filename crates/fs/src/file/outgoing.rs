//! Data on their way to the device: checksums and writes.
//!
//! Several threads share much data. Each computes the checksums of a batch and
//! writes it while the processor's cache still has it.

use super::output::{Output, Target};
use crate::Filesystem;
use crate::error::FsError;
use butterfs_device::each_by_a_thread;
use butterfs_format::Logical;

/// Bytes that one thread takes at least, because starting a thread takes as
/// long as writing some hundred kilobytes.
const SHARE_MIN: usize = 1 << 20;
/// Bytes that are written at a time, after their checksums were computed.
const BATCH: usize = 1 << 20;

/// Whether data get checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// They do.
    Wanted,
    /// They have their checksums already, or belong to an inode without
    /// checksums.
    None,
}

impl Sums {
    /// The opposite of an inode's NODATASUM.
    pub(super) const fn wanted_unless(nodatasum: bool) -> Self {
        if nodatasum { Self::None } else { Self::Wanted }
    }
}

/// Whole sectors that lie side by side in memory and in logical space.
#[derive(Clone, Copy)]
struct Piece<'a> {
    /// Index of its output.
    output: usize,
    at: u64,
    bytes: &'a [u8],
}

/// Checksums of sectors of an output that lie side by side.
struct PieceSums {
    output: usize,
    sums: Vec<u8>,
}

impl Filesystem {
    /// Writes outputs that have their space, and stores their checksums in
    /// them.
    ///
    /// # Errors
    /// Writing failed: any part may have been written.
    pub(super) fn write_outputs(
        &self,
        outputs: &mut [Output<'_>],
        sums: Sums,
    ) -> Result<(), FsError> {
        let computed = {
            // A batch is whole sectors.
            let sector = usize::try_from(self.sector_size).unwrap_or(BATCH);
            let pieces = pieces_of(outputs, BATCH / sector * sector);
            self.write_pieces(&pieces, sums)?
        };
        for piece in computed {
            if let Some(output) = outputs.get_mut(piece.output) {
                output.sums.extend_from_slice(&piece.sums);
            }
        }
        Ok(())
    }

    /// Gives outputs their checksums before they are written.
    pub(super) fn checksum(&self, outputs: &mut [Output<'_>]) {
        for output in outputs {
            let parts = output.parts.iter();
            output.sums = parts.flat_map(|part| self.sums_of(part)).collect();
        }
    }

    /// Writes pieces, ascending, and gives their checksums in their order.
    fn write_pieces(&self, pieces: &[Piece<'_>], sums: Sums) -> Result<Vec<PieceSums>, FsError> {
        let total: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
        let threads = self.options.threads.min(total / SHARE_MIN).max(1);
        if threads == 1 {
            return self.write_share(pieces, sums);
        }
        let shares = shares(pieces, total.div_ceil(threads));
        let mut all = Vec::new();
        for result in each_by_a_thread(shares, |share| self.write_share(share, sums)) {
            all.extend(result?);
        }
        Ok(all)
    }

    fn write_share(&self, pieces: &[Piece<'_>], sums: Sums) -> Result<Vec<PieceSums>, FsError> {
        let mut computed = Vec::new();
        let space = self.store.space();
        let (mut behind, mut outcome) = (Vec::new(), Ok(()));
        for batch in shares(pieces, BATCH) {
            if sums == Sums::Wanted {
                computed.extend(batch.iter().map(|piece| PieceSums {
                    output: piece.output,
                    sums: self.sums_of(piece.bytes),
                }));
            }
            let blocks: Vec<(Logical, &[u8])> = batch
                .iter()
                .map(|piece| (Logical(piece.at), piece.bytes))
                .collect();
            match space.write_many_behind(&blocks) {
                Ok(writes) => behind.push(writes),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // A write that failed is one of this file, and of no flush.
        for writes in &behind {
            outcome = outcome.and(space.finish(writes));
        }
        outcome?;
        Ok(computed)
    }

    /// Checksums of whole sectors.
    fn sums_of(&self, bytes: &[u8]) -> Vec<u8> {
        let sector = usize::try_from(self.sector_size).unwrap_or(usize::MAX);
        let size = self.checksum.size();
        let mut sums = Vec::with_capacity(bytes.len() / sector * size);
        for bytes in bytes.chunks(sector) {
            sums.extend_from_slice(&self.checksum.compute(bytes)[..size]);
        }
        sums
    }
}

/// The data of all outputs that have space, by address, in pieces of at most
/// `most` bytes.
fn pieces_of<'o>(outputs: &'o [Output<'_>], most: usize) -> Vec<Piece<'o>> {
    let mut pieces = Vec::new();
    for (index, output) in outputs.iter().enumerate() {
        let mut at = match output.target {
            Target::New(None) => continue,
            Target::New(Some(start)) | Target::Overwrite(start) | Target::Prealloc(start) => start,
        };
        for bytes in output.parts.iter().flat_map(|part| part.chunks(most)) {
            let output = index;
            pieces.push(Piece { output, at, bytes });
            at += bytes.len() as u64;
        }
    }
    pieces.sort_by_key(|piece| piece.at);
    pieces
}

/// Splits pieces into shares of about `bytes`.
fn shares<'s, 'p>(pieces: &'s [Piece<'p>], bytes: usize) -> impl Iterator<Item = &'s [Piece<'p>]> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut sum = 0;
        let is_over = |piece: &Piece<'_>| {
            sum += piece.bytes.len();
            sum >= bytes
        };
        let count = rest
            .iter()
            .position(is_over)
            .map_or(rest.len(), |at| at + 1);
        let (share, later) = rest.split_at(count);
        rest = later;
        Some(share)
    })
}
