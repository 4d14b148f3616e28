//! Data of which a compressor can take away a chosen share.
//!
//! Each 4 KiB has that share as spaces behind a word of its own; the rest is
//! random, and the order is drawn anew for every block. No two blocks are
//! alike, none is zero, and any sector alone compresses as well as the whole.
//! The filler is spaces because Btrfs looks at how often each byte occurs
//! before it tries: words that are random everywhere look like noise to it,
//! even if they repeat. The content of a place follows from seed, file, offset
//! and version, so it can be checked without having been kept.

use crate::stats::Random;

const BLOCK: u64 = 4096;

/// A source of content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    seed: u64,
    compressible: u8,
}

/// A file in a version. Rewriting it makes the next version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Which file.
    pub(super) file: u64,
    /// How often it was written before.
    pub(super) version: u64,
}

fn mix(a: u64, b: u64) -> u64 {
    Random::new(a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)).bits()
}

impl Content {
    /// Content of which `compressible` per cent can be taken away.
    pub(super) fn new(seed: u64, compressible: u8) -> Self {
        Self { seed, compressible }
    }

    fn block(&self, of: Version, index: u64, block: &mut [u8; BLOCK as usize]) {
        let mut random = Random::new(mix(mix(mix(self.seed, of.file), of.version), index));
        let word = (random.bits() | 1).to_le_bytes();
        let kept = BLOCK as usize * (100 - usize::from(self.compressible.min(100))) / 100;
        let first = random.below(BLOCK as usize - kept + 1) / 8 * 8;
        let (head, rest) = block.split_at_mut(first);
        let (noise, tail) = rest.split_at_mut(kept);
        for part in [head, tail] {
            part.fill(b' ');
            if let Some(stamp) = part.first_chunk_mut() {
                *stamp = word;
            }
        }
        for bytes in noise.chunks_mut(8) {
            bytes.copy_from_slice(&random.bits().to_le_bytes()[..bytes.len()]);
        }
    }

    /// Puts what the file has at `offset` into the buffer.
    pub(super) fn fill(&self, of: Version, offset: u64, buffer: &mut [u8]) {
        let mut block = [0; BLOCK as usize];
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let inside = (at % BLOCK) as usize;
            let length = (BLOCK as usize - inside).min(buffer.len() - done);
            self.block(of, at / BLOCK, &mut block);
            buffer[done..done + length].copy_from_slice(&block[inside..inside + length]);
            done += length;
        }
    }

    /// The offset of the first byte that is not what the file has there.
    pub(super) fn first_difference(&self, of: Version, offset: u64, found: &[u8]) -> Option<u64> {
        let mut expected = vec![0; found.len()];
        self.fill(of, offset, &mut expected);
        if expected == found {
            return None;
        }
        let place = expected.iter().zip(found).position(|(a, b)| a != b);
        place.map(|place| offset + place as u64)
    }
}

/// Content that is made once and then only looked up. It is for workloads that
/// measure many clients, because making it would take their processors. It
/// repeats after 1 MiB, farther than compressors of file systems look.
pub(super) struct Pool(Vec<u8>);

/// Bytes after which a pool repeats, and the most that it gives at once.
pub(super) const POOL: usize = 1 << 20;

impl Pool {
    /// A pool of content.
    pub(super) fn new(content: Content) -> Self {
        let mut bytes = vec![0; POOL * 2];
        let (first, second) = bytes.split_at_mut(POOL);
        let file = Version {
            file: u64::MAX,
            version: 0,
        };
        content.fill(file, 0, first);
        second.copy_from_slice(first);
        Self(bytes)
    }

    /// What a file has at an offset.
    pub(super) fn at(&self, file: u64, offset: u64, length: usize) -> &[u8] {
        // Whole blocks, so that each 4 KiB compresses as asked.
        let shift = (mix(file, 0x9001) % (POOL as u64 / BLOCK)) * BLOCK;
        let from = ((shift + offset) % POOL as u64) as usize;
        &self.0[from..from + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Version = Version {
        file: 3,
        version: 0,
    };

    #[test]
    fn zstd_sees_the_share_that_was_asked_for() {
        for percent in [0, 25, 50, 75, 90, 100] {
            let content = Content::new(7, percent);
            let mut data = vec![0; 128 << 10];
            content.fill(FILE, 1 << 20, &mut data);
            for (what, size) in [("zstd 3", 128 << 10), ("a sector", 4096)] {
                let packed = zstd::bulk::compress(&data[..size], 3).unwrap();
                let left = packed.len() as f64 / size as f64 * 100.0;
                let wanted = f64::from(100 - percent);
                assert!((left - wanted).abs() < 2.5, "{what}: {left} of {wanted} %");
            }
            assert!(data.chunks(4096).all(|block| block.iter().any(|b| *b != 0)));
        }
    }

    #[test]
    fn a_pool_compresses_as_its_content_does() {
        for percent in [0, 50, 100] {
            let pool = Pool::new(Content::new(7, percent));
            for (file, offset) in [(0, 0), (1, 900 << 10), (9, 7 << 20)] {
                let packed = zstd::bulk::compress(pool.at(file, offset, 128 << 10), 3).unwrap();
                let left = packed.len() as f64 / f64::from(128 << 10) * 100.0;
                assert!(
                    (left - f64::from(100 - percent)).abs() < 2.5,
                    "{left} of {percent}"
                );
            }
        }
    }

    #[test]
    fn content_follows_from_its_place_alone() {
        let content = Content::new(1, 50);
        let mut whole = vec![0; 20_000];
        content.fill(FILE, 0, &mut whole);
        let mut part = vec![0; 7000];
        content.fill(FILE, 3333, &mut part);
        assert_eq!(part, whole[3333..10_333]);
        assert_eq!(content.first_difference(FILE, 3333, &part), None);
        part[5000] ^= 1;
        assert_eq!(content.first_difference(FILE, 3333, &part), Some(8333));
        let newer = Version { version: 1, ..FILE };
        assert_eq!(content.first_difference(newer, 0, &whole[..1]).is_some(), {
            let mut byte = [0];
            content.fill(newer, 0, &mut byte);
            byte[0] != whole[0]
        });
        assert!(content.first_difference(newer, 0, &whole).is_some());
        // The next block is another, not a repetition.
        assert_ne!(whole[..4096], whole[4096..8192]);
    }
}
