//! Names that file systems trip over.

use crate::Random;
use butterfs_format::checksum::name_hash;

/// Names for a test. There are few of them, so that operations meet.
#[derive(Clone, Debug)]
pub struct NamePool {
    names: Vec<Vec<u8>>,
}

/// Longest name.
pub const NAME_MAX: usize = 255;

impl NamePool {
    /// A pool from a seed: short names, names that sort and hash like others,
    /// the longest, bytes that are no characters.
    #[must_use]
    pub fn new(random: &mut Random) -> Self {
        let mut names: Vec<Vec<u8>> = [
            "a", "b", "c", "d", "dir", "file.txt", "A", "a ", ".a", "...",
        ]
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
        names.push(vec![b'x'; NAME_MAX]);
        let mut long = vec![b'x'; NAME_MAX];
        long[NAME_MAX - 1] = b'y';
        names.push(long);
        names.push(b"\xff\xfe\x80".to_vec());
        names.push(b"new\nline\ttab\x01".to_vec());
        names.push("naïve Ünïcödé 🦋".as_bytes().to_vec());
        names.extend(colliding(random, 3));
        Self { names }
    }

    /// One of them; once in a while one that is too long.
    pub fn pick(&self, random: &mut Random) -> Vec<u8> {
        if random.one_in(200) {
            return vec![b'z'; NAME_MAX + 1];
        }
        // The first ones more often than others.
        let limit = if random.one_in(2) {
            6
        } else {
            self.names.len()
        };
        self.names[random.below(limit as u64) as usize].clone()
    }

    /// All names.
    #[must_use]
    pub fn names(&self) -> &[Vec<u8>] {
        &self.names
    }
}

/// What can be XORed into a name at any place without changing its CRC-32C: the
/// polynomial itself, lowest bit first.
const NEUTRAL: [u8; 5] = {
    let bits = ((0x82f6_3b78_u64 << 1) | 1).to_le_bytes();
    [bits[0], bits[1], bits[2], bits[3], bits[4]]
};

/// `count` (at most 16) different names with one hash.
#[must_use]
pub fn colliding(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    let usable = |name: &[u8]| !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    loop {
        let base: Vec<u8> = (0..24).map(|_| b'a' + random.below(26) as u8).collect();
        let found: Vec<Vec<u8>> = (0..16_u8)
            .map(|bits| {
                let mut name = base.clone();
                for place in (0..4).filter(|place| bits >> place & 1 == 1) {
                    for (byte, neutral) in name[place * 6..].iter_mut().zip(NEUTRAL) {
                        *byte ^= neutral;
                    }
                }
                name
            })
            .filter(|name| usable(name))
            .take(count)
            .collect();
        if found.len() == count {
            debug_assert!(found.iter().all(|n| name_hash(n) == name_hash(&base)));
            return found;
        }
    }
}

/// `count` (at most 2^19) file offsets below 2^63, in whole sectors, the first
/// of them 0. References to one extent from one file at these offsets have one
/// hash.
pub fn colliding_offsets(count: u64) -> impl Iterator<Item = u64> {
    let [a, b, c, d, e] = NEUTRAL;
    let neutral = u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]);
    (0..count).map(move |bits| {
        let places = (0..19).filter(|place| bits >> place & 1 == 1);
        places.fold(0, |offset, place| offset ^ neutral << (12 + place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::checksum::crc32c_raw;

    #[test]
    fn colliding_offsets_collide() {
        let sums = |offset: u64| crc32c_raw(7, &offset.to_le_bytes());
        assert!(
            colliding_offsets(1 << 12).all(|offset| {
                sums(offset) == sums(0) && offset % 4096 == 0 && offset < 1 << 63
            })
        );
        assert!(colliding_offsets(1 << 19).all(|offset| offset < 1 << 63));
    }

    #[test]
    fn colliding_names_collide() {
        for seed in 0..50 {
            let names = colliding(&mut Random::new(seed), 5);
            for (at, name) in names.iter().enumerate() {
                assert_eq!(name_hash(name), name_hash(&names[0]));
                assert!(!names[..at].contains(name));
            }
        }
    }
}
