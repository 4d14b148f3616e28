//! LZO in Btrfs' framing: a total length, then for each sector of input its
//! compressed length and bytes. A length never crosses a sector boundary of
//! the output; zeros fill the rest of the sector instead.
//!
//! Source: the documentation of the on-disk format; extents that the kernel
//! wrote.

use super::{Algorithm, bad};
use crate::ParseError;

/// Bytes of a length.
const LENGTH: usize = 4;

/// Working memory of the compressor.
pub struct Dictionary(Box<lzokay::compress::Dict>);

impl Default for Dictionary {
    fn default() -> Self {
        Self(lzokay::compress::Dict::new())
    }
}

/// Greatest compressed length of `length` bytes.
const fn worst(length: usize) -> usize {
    length.saturating_add(length >> 4).saturating_add(64 + 3)
}

impl Dictionary {
    /// Compresses `input` into `output`; `None` when it does not fit.
    pub fn compress(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        sector_size: usize,
    ) -> Option<usize> {
        let mut at = LENGTH;
        for sector in input.chunks(sector_size.max(1)) {
            let left = sector_size.checked_sub(at.checked_rem(sector_size)?)?;
            if left < LENGTH {
                output.get_mut(at..at.checked_add(left)?)?.fill(0);
                at = at.checked_add(left)?;
            }
            let packed = lzokay::compress::compress_with_dict(sector, &mut self.0).ok()?;
            let body = at.checked_add(LENGTH)?;
            let end = body.checked_add(packed.len())?;
            let length = u32::try_from(packed.len()).ok()?;
            output
                .get_mut(at..body)?
                .copy_from_slice(&length.to_le_bytes());
            output.get_mut(body..end)?.copy_from_slice(&packed);
            at = end;
        }
        let total = u32::try_from(at).ok()?;
        output
            .get_mut(..LENGTH)?
            .copy_from_slice(&total.to_le_bytes());
        Some(at)
    }
}

fn length_at(input: &[u8], at: usize) -> Option<usize> {
    let bytes = input.get(at..at.checked_add(LENGTH)?)?;
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

/// Decompresses `input` into `output`; gives how many bytes it filled.
pub fn decompress(
    input: &[u8],
    output: &mut [u8],
    sector_size: usize,
) -> Result<usize, ParseError> {
    let cut = || bad(Algorithm::Lzo, "the data are cut short");
    let total = length_at(input, 0).ok_or_else(cut)?;
    let input = input.get(..total).ok_or_else(cut)?;
    let sector_size = sector_size.max(LENGTH);
    let mut at = LENGTH;
    let mut filled = 0_usize;
    let mut spare = Vec::new();
    while filled < output.len() && at < total {
        let left = sector_size.saturating_sub(at.checked_rem(sector_size).unwrap_or(0));
        if left < LENGTH {
            at = at.saturating_add(left);
            if at >= total {
                break;
            }
        }
        let length = length_at(input, at).ok_or_else(cut)?;
        let body = at.saturating_add(LENGTH);
        let end = body.saturating_add(length);
        if length > worst(sector_size) {
            return Err(bad(Algorithm::Lzo, "a segment is too long"));
        }
        let packed = input.get(body..end).ok_or_else(cut)?;
        spare.clear();
        spare.resize(sector_size, 0);
        let count = lzokay::decompress::decompress(packed, &mut spare)
            .map_err(|error| bad(Algorithm::Lzo, format!("{error:?}")))?;
        let room = output.get_mut(filled..).unwrap_or_default();
        let take = count.min(room.len());
        for (to, from) in room.iter_mut().zip(spare.iter().take(take)) {
            *to = *from;
        }
        filled = filled.saturating_add(take);
        at = end;
    }
    Ok(filled)
}
