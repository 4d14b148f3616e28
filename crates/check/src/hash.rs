//! Keyed hashes whose sums are compared.
//!
//! If the wrapping sums of the hashes of two multisets are equal, so are the
//! multisets, except with a chance of 2^-64. The key is new for each run, so
//! nobody can prepare two different multisets with equal sums.

use std::hash::{BuildHasher, RandomState};

/// One hash function of a family; the key selects it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumHash {
    key: [u64; 2],
}

/// Odd constants with about as many ones as zeros.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const LAST: u64 = 0xd6e8_feb8_6659_fd93;

/// The two halves of the product, combined by exclusive or.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    let [
        b0,
        b1,
        b2,
        b3,
        b4,
        b5,
        b6,
        b7,
        h0,
        h1,
        h2,
        h3,
        h4,
        h5,
        h6,
        h7,
    ] = product.to_le_bytes();
    u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
        ^ u64::from_le_bytes([h0, h1, h2, h3, h4, h5, h6, h7])
}

impl SumHash {
    /// Chooses a function that nobody could foresee.
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        Self {
            key: [state.hash_one(1_u8) | 1, state.hash_one(2_u8)],
        }
    }

    #[inline]
    fn step(self, state: u64, word: u64) -> u64 {
        let [first, second] = self.key;
        fold(state ^ word ^ second, first ^ STEP).wrapping_add(state.rotate_left(23))
    }

    /// Hash of numbers.
    #[inline]
    pub(crate) fn words<const N: usize>(self, words: [u64; N]) -> u64 {
        let mut state = LAST;
        for word in words {
            state = self.step(state, word);
        }
        fold(state ^ LAST, state.rotate_left(32) ^ STEP)
    }

    /// Hash of numbers and a name.
    #[inline]
    pub(crate) fn name<const N: usize>(self, words: [u64; N], name: &[u8]) -> u64 {
        let length = u64::try_from(name.len()).unwrap_or(u64::MAX);
        let mut state = self.step(LAST, length);
        for word in words {
            state = self.step(state, word);
        }
        let (eights, rest) = name.as_chunks::<8>();
        for eight in eights {
            state = self.step(state, u64::from_le_bytes(*eight));
        }
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        state = self.step(state, u64::from_le_bytes(last));
        fold(state ^ LAST, state.rotate_left(32) ^ STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::SumHash;
    use std::collections::HashSet;

    #[test]
    fn neighbours_differ() {
        let hash = SumHash::random();
        let mut seen = HashSet::new();
        for a in 0..300 {
            for b in 0..300 {
                assert!(seen.insert(hash.words([a, b])));
            }
        }
        for length in 0..40 {
            assert!(seen.insert(hash.name([1], &vec![0; length])));
        }
    }
}
