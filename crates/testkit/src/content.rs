//! File contents from a seed, so that what was written can be made again.

use crate::Random;

/// `length` bytes. Depending on the seed, they do not compress, compress a
/// little or well, or compress to nothing.
#[must_use]
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let kind = random.below(4);
    let mut out = Vec::with_capacity(length + 64);
    while out.len() < length {
        let word = random.bits();
        match kind {
            0 => out.extend_from_slice(&word.to_le_bytes()),
            1 => {
                out.extend_from_slice(&word.to_le_bytes());
                out.extend_from_slice(&[0; 12]);
            }
            2 => {
                let words: [&[u8]; 4] = [b"extent ", b"generation\n", b"of a ", b"node, "];
                out.extend_from_slice(words[(word % 4) as usize]);
            }
            _ => out.resize(out.len() + 64, seed as u8 | 1),
        }
    }
    out.truncate(length);
    out
}
