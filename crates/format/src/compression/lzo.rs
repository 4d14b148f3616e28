//! LZO in Btrfs' framing.
//!
//! Owns how LZO1X streams lie in an extent: a total length (itself included),
//! then for each sector of input its compressed length and its stream. A length
//! never crosses a sector boundary of the extent. If a sector has too few bytes
//! left for it, they are zero and the length begins in the next sector. An
//! inline extent is framed the same way and holds one sector.
//!
//! Source: the documentation of the on-disk format; extents that the kernel
//! wrote.

use super::lzo1x::{self, Encoder};
use super::{Algorithm, bad};
use crate::ParseError;

/// Bytes of a length.
const LENGTH: usize = 4;

/// Working memory.
#[derive(Default)]
pub struct Lzo {
    encoder: Encoder,
    /// One stream on its way to the extent.
    stream: Vec<u8>,
    /// One decoded sector, where the caller wants less than all of it.
    sector: Vec<u8>,
}

/// Zeros before the next length, when the extent is filled up to `at`.
fn padding(at: usize, sector_size: usize) -> Option<usize> {
    let left = sector_size.checked_sub(at.checked_rem(sector_size)?)?;
    Some(if left < LENGTH { left } else { 0 })
}

fn length_at(extent: &[u8], at: usize) -> Option<usize> {
    let bytes = extent.get(at..)?.first_chunk::<LENGTH>()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

impl Lzo {
    /// Compresses `input` into `output`; `None` when it does not fit.
    pub fn compress(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Option<usize> {
        let mut at = LENGTH;
        for sector in input.chunks(sector_size.max(1)) {
            let left = padding(at, sector_size)?;
            let header = at.checked_add(left)?;
            output.get_mut(at..header)?.fill(0);
            self.stream.clear();
            self.encoder.encode(sector, &mut self.stream);
            let body = header.checked_add(LENGTH)?;
            at = body.checked_add(self.stream.len())?;
            let length = u32::try_from(self.stream.len()).ok()?;
            output
                .get_mut(header..body)?
                .copy_from_slice(&length.to_le_bytes());
            output.get_mut(body..at)?.copy_from_slice(&self.stream);
        }
        // No padding after the last stream: readers want the total of an
        // inline extent to be exact.
        let total = u32::try_from(at).ok()?;
        output
            .get_mut(..LENGTH)?
            .copy_from_slice(&total.to_le_bytes());
        Some(at)
    }

    /// Decompresses `input` into `output`; gives how many bytes it filled.
    pub fn decompress(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Result<usize, ParseError> {
        let fail = |reason| bad(Algorithm::Lzo, reason);
        let cut = || fail("the data are cut short");
        let total = length_at(input, 0).ok_or_else(cut)?;
        let input = input.get(..total).ok_or_else(cut)?;
        let mut at = LENGTH;
        let mut filled = 0_usize;
        while filled < output.len() {
            let left = padding(at, sector_size).ok_or_else(|| fail("no sector size"))?;
            let header = at.saturating_add(left);
            if header >= total {
                break;
            }
            let length = length_at(input, header).ok_or_else(cut)?;
            if length > lzo1x::worst_case(sector_size) {
                return Err(fail("a stream is longer than any of a sector"));
            }
            let body = header.saturating_add(LENGTH);
            at = body.saturating_add(length);
            let stream = input.get(body..at).ok_or_else(cut)?;
            let open = output.get_mut(filled..).unwrap_or_default();
            let count = match open.get_mut(..sector_size) {
                Some(open) => lzo1x::decode(stream, open).map_err(fail)?,
                None => {
                    self.sector.resize(sector_size, 0);
                    let count = lzo1x::decode(stream, &mut self.sector).map_err(fail)?;
                    let count = count.min(open.len());
                    for (to, from) in open.iter_mut().zip(self.sector.iter().take(count)) {
                        *to = *from;
                    }
                    count
                }
            };
            filled = filled.saturating_add(count);
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sectors of noise whose streams are a little longer than a sector, so
    /// that lengths fall on every place around a boundary.
    #[test]
    fn lengths_never_cross_a_sector() {
        let mut seed = 3_u32;
        let mut lzo = Lzo::default();
        for cut in 0..64 {
            let input: Vec<u8> = (0..100_000 + cut)
                .map(|at: usize| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if at % 4096 < cut {
                        0
                    } else {
                        (seed >> 24) as u8
                    }
                })
                .collect();
            let mut extent = vec![0xff; 200_000];
            let total = lzo.compress(&input, &mut extent, 4096).unwrap();
            assert_eq!(length_at(&extent, 0), Some(total));
            let mut at = LENGTH;
            let mut streams = 0;
            while at < total {
                let left = 4096 - at % 4096;
                if left < LENGTH {
                    assert!(extent[at..at + left].iter().all(|byte| *byte == 0));
                    at += left;
                }
                assert!(at % 4096 <= 4096 - LENGTH);
                at += LENGTH + length_at(&extent, at).unwrap();
                streams += 1;
            }
            assert_eq!((at, streams), (total, input.len().div_ceil(4096)));
            let mut output = vec![0; input.len()];
            let filled = lzo.decompress(&extent, &mut output, 4096).unwrap();
            assert_eq!((filled, &output), (input.len(), &input));
        }
    }

    #[test]
    fn impossible_lengths_are_errors() {
        let mut lzo = Lzo::default();
        let mut output = [0; 8192];
        for extent in [
            &[][..],
            &[4, 0, 0],
            &[9, 0, 0, 0, 1],
            &[255, 255, 255, 255, 0, 0, 0, 0],
            &[8, 0, 0, 0, 255, 255, 255, 255],
            &[8, 0, 0, 0, 1, 0, 0, 0],
            &[8, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(lzo.decompress(extent, &mut output, 4096).is_err());
        }
        // A total without any stream fills nothing.
        assert_eq!(lzo.decompress(&[4, 0, 0, 0], &mut output, 4096), Ok(0));
    }
}
