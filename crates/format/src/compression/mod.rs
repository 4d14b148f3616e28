//! Compression of data extents: algorithms, levels, framing.
//!
//! Owns how compressed bytes lie in an extent. A unit is at most
//! [`UNIT`] bytes of a file; whether compressing it pays is decided here, where
//! files are compressed at all is the file layer's.

pub mod heuristic;
mod lzo;

use crate::ParseError;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Greatest bytes of a file in one compressed extent.
pub const UNIT: usize = 128 << 10;

/// Algorithm of a compressed extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// zlib, levels 1 to 9.
    Zlib,
    /// LZO1X, sector by sector.
    Lzo,
    /// zstd, levels -15 to 15.
    Zstd,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Zlib, Self::Lzo, Self::Zstd];

    /// Its stored number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Zlib => 1,
            Self::Lzo => 2,
            Self::Zstd => 3,
        }
    }

    /// The algorithm stored as `number`.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Zlib),
            2 => Some(Self::Lzo),
            3 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name in options and properties.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }

    /// The algorithm of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// The level used when none is asked for.
    #[must_use]
    pub const fn default_level(self) -> Level {
        match self {
            Self::Lzo => Level(0),
            Self::Zlib | Self::Zstd => Level(3),
        }
    }

    /// `level` within what the algorithm has; 0 stands for the default.
    #[must_use]
    pub fn clamp_level(self, level: i32) -> Level {
        match self {
            _ if level == 0 => self.default_level(),
            Self::Zlib => Level(level.clamp(1, 9)),
            Self::Lzo => Level(0),
            Self::Zstd => Level(level.clamp(-15, 15)),
        }
    }
}

/// Level of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(pub i32);

/// Contexts that are reused from unit to unit; one for each thread.
#[derive(Default)]
pub struct Scratch {
    zlib: Option<(u32, Compress)>,
    inflate: Option<Decompress>,
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    lzo: lzo::Dictionary,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Compresses `input` (at most [`UNIT`] bytes) into `output`, which has
    /// room for what counts as success, and gives the length; `None` when the
    /// result does not fit, or the codec fails.
    #[must_use]
    pub fn compress(
        &mut self,
        algorithm: Algorithm,
        level: Level,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Option<usize> {
        match algorithm {
            Algorithm::Zlib => self.deflate(level, input, output),
            Algorithm::Lzo => self.lzo.compress(input, output, sector_size),
            Algorithm::Zstd => self.zstd(level, input, output),
        }
    }

    fn deflate(&mut self, level: Level, input: &[u8], output: &mut [u8]) -> Option<usize> {
        let wanted = u32::try_from(level.0).ok()?;
        if self.zlib.as_ref().is_none_or(|(have, _)| *have != wanted) {
            self.zlib = Some((wanted, Compress::new(Compression::new(wanted), true)));
        }
        let (_, context) = self.zlib.as_mut()?;
        context.reset();
        let status = context
            .compress(input, output, FlushCompress::Finish)
            .ok()?;
        if status != Status::StreamEnd {
            return None;
        }
        usize::try_from(context.total_out()).ok()
    }

    fn zstd(&mut self, level: Level, input: &[u8], output: &mut [u8]) -> Option<usize> {
        if self.zstd.as_ref().is_none_or(|(have, _)| *have != level.0) {
            let mut context = zstd::bulk::Compressor::new(level.0).ok()?;
            // Readers keep a window of one unit.
            context
                .set_parameter(zstd::zstd_safe::CParameter::WindowLog(17))
                .ok()?;
            self.zstd = Some((level.0, context));
        }
        let (_, context) = self.zstd.as_mut()?;
        context.compress_to_buffer(input, output).ok()
    }

    /// Decompresses `input` into `output` and gives how many bytes it filled;
    /// what the stream has beyond `output` is left out.
    ///
    /// # Errors
    /// [`ParseError::BadCompression`]
    pub fn decompress(
        &mut self,
        algorithm: Algorithm,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Result<usize, ParseError> {
        match algorithm {
            Algorithm::Zlib => self.inflate(input, output),
            Algorithm::Lzo => lzo::decompress(input, output, sector_size),
            Algorithm::Zstd => self.unzstd(input, output),
        }
    }

    fn inflate(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, ParseError> {
        let context = self.inflate.get_or_insert_with(|| Decompress::new(true));
        context.reset(true);
        let status = context
            .decompress(input, output, FlushDecompress::Finish)
            .map_err(|error| bad(Algorithm::Zlib, error))?;
        let filled = usize::try_from(context.total_out()).unwrap_or(output.len());
        if status != Status::StreamEnd && filled < output.len() {
            return Err(bad(Algorithm::Zlib, "the stream is cut short"));
        }
        Ok(filled)
    }

    fn unzstd(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, ParseError> {
        // Sectors are padded with zeros behind the frame.
        let length = zstd::zstd_safe::find_frame_compressed_size(input)
            .map_err(|code| bad(Algorithm::Zstd, zstd::zstd_safe::get_error_name(code)))?;
        let frame = input.get(..length).unwrap_or(input);
        let context = match &mut self.unzstd {
            Some(context) => context,
            none => none.insert(
                zstd::bulk::Decompressor::new().map_err(|error| bad(Algorithm::Zstd, error))?,
            ),
        };
        match context.decompress_to_buffer(frame, output) {
            Ok(filled) => Ok(filled),
            Err(_) if output.len() < UNIT => {
                // The frame holds more than was asked for.
                let mut whole = vec![0; UNIT];
                let filled = context
                    .decompress_to_buffer(frame, &mut whole)
                    .map_err(|error| bad(Algorithm::Zstd, error))?;
                let count = filled.min(output.len());
                for (to, from) in output.iter_mut().zip(whole.iter().take(count)) {
                    *to = *from;
                }
                Ok(count)
            }
            Err(error) => Err(bad(Algorithm::Zstd, error)),
        }
    }
}

fn bad(algorithm: Algorithm, reason: impl std::fmt::Display) -> ParseError {
    ParseError::BadCompression {
        algorithm: algorithm.name(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Vec<u8>> {
        let mut seed = 7_u32;
        let mut noise = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        let text: Vec<u8> = b"the quick brown fox jumps over the lazy dog. "
            .iter()
            .copied()
            .cycle()
            .take(UNIT)
            .collect();
        let half: Vec<u8> = (0..UNIT)
            .map(|at| if at % 64 < 32 { noise() } else { 0 })
            .collect();
        vec![
            text.clone(),
            text[..5000].to_vec(),
            text[..100].to_vec(),
            half,
            vec![0; UNIT],
            (0..UNIT).map(|_| noise()).collect(),
        ]
    }

    #[test]
    fn round_trips_and_padding() {
        let mut scratch = Scratch::default();
        let mut packed = vec![0; UNIT];
        for input in samples() {
            for algorithm in Algorithm::ALL {
                for level in [-15, -1, 1, 3, 9, 15] {
                    let level = algorithm.clamp_level(level);
                    let room = &mut packed[..input.len()];
                    let Some(length) = scratch.compress(algorithm, level, &input, room, 4096)
                    else {
                        continue;
                    };
                    let mut padded = packed[..length].to_vec();
                    padded.resize(length.next_multiple_of(4096), 0);
                    let mut output = vec![1; input.len()];
                    let filled = scratch
                        .decompress(algorithm, &padded, &mut output, 4096)
                        .unwrap();
                    assert_eq!((filled, &output), (input.len(), &input));
                    // A shorter output gives the beginning.
                    let mut part = vec![1; input.len() / 2];
                    let filled = scratch
                        .decompress(algorithm, &padded, &mut part, 4096)
                        .unwrap();
                    assert_eq!(filled, part.len());
                    assert_eq!(part, input[..part.len()]);
                }
            }
        }
    }

    #[test]
    fn damaged_input_is_an_error_or_other_bytes_but_no_panic() {
        let mut scratch = Scratch::default();
        let mut packed = vec![0; UNIT];
        let input = &samples()[0][..20_000];
        let mut output = vec![0; input.len()];
        for algorithm in Algorithm::ALL {
            let level = algorithm.default_level();
            let length = scratch
                .compress(algorithm, level, input, &mut packed, 4096)
                .unwrap();
            for cut in 0..length {
                let _ = scratch.decompress(algorithm, &packed[..cut], &mut output, 4096);
            }
            for at in 0..length {
                let mut changed = packed[..length].to_vec();
                changed[at] ^= 0x55;
                let _ = scratch.decompress(algorithm, &changed, &mut output, 4096);
            }
        }
    }
}
