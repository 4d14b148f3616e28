//! Compression of data extents: algorithms, levels, framing.
//!
//! Owns how compressed bytes lie in an extent. A unit is at most [`UNIT`] bytes
//! of a file. Compressed bytes end anywhere in their last sector; the rest of
//! it is zero. The file layer decides which files are compressed and what
//! becomes inline.
//!
//! Decompression takes hostile bytes: memory is bounded by the unit, the
//! window and the sector, and nothing is read behind the given slices.

mod algorithm;
pub mod heuristic;
mod lzo;
mod lzo1x;
mod zlib;
mod zstd;

pub use algorithm::{Algorithm, Level, Method};

use crate::ParseError;

/// Greatest bytes of a file in one compressed extent.
pub const UNIT: usize = 128 << 10;

/// Greatest compressed length that pays for an extent of `length` bytes: it
/// must free at least one sector. For an inline extent, one byte less than
/// `length` pays.
#[must_use]
pub const fn room_that_pays(length: usize, sector_size: usize) -> usize {
    match length.checked_next_multiple_of(sector_size) {
        Some(whole) => whole.saturating_sub(sector_size),
        None => 0,
    }
}

/// Contexts that are reused from unit to unit; one for each thread.
#[derive(Default)]
pub struct Scratch {
    zlib: zlib::Zlib,
    lzo: lzo::Lzo,
    zstd: zstd::Zstd,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Compresses `input` (at most [`UNIT`] bytes) into `output` and gives the
    /// length; `None` if the result does not fit, or the codec fails. The size
    /// of `output` is the greatest length that counts as success (see
    /// [`room_that_pays`]).
    #[must_use]
    pub fn compress(
        &mut self,
        algorithm: Algorithm,
        level: Level,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Option<usize> {
        if input.len() > UNIT {
            return None;
        }
        match algorithm {
            Algorithm::Zlib => self.zlib.compress(level, input, output),
            Algorithm::Lzo => self.lzo.compress(input, output, sector_size),
            Algorithm::Zstd => self.zstd.compress(level, input, output),
        }
    }

    /// Decompresses `input` into `output` and gives how many bytes came out. If
    /// the stream has more bytes than fit in `output`, the rest is left out.
    /// `input` may have anything behind the end of the stream.
    ///
    /// A stream may hold less than the extent's size; the rest of the extent,
    /// and so of `output`, is zero.
    ///
    /// # Errors
    /// [`ParseError::BadCompression`]; what `output` holds is not defined then.
    pub fn decompress(
        &mut self,
        algorithm: Algorithm,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Result<usize, ParseError> {
        let filled = match algorithm {
            Algorithm::Zlib => self.zlib.decompress(input, output),
            Algorithm::Lzo => self.lzo.decompress(input, output, sector_size),
            Algorithm::Zstd => self.zstd.decompress(input, output),
        }?;
        if let Some(rest) = output.get_mut(filled..) {
            rest.fill(0);
        }
        Ok(filled)
    }
}

fn bad(algorithm: Algorithm, reason: impl std::fmt::Display) -> ParseError {
    ParseError::BadCompression {
        algorithm: algorithm.name(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests;
