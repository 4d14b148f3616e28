//! Seeded randomness: the same seed gives the same test everywhere.

/// A generator of pseudo-random numbers (SplitMix64), or of what a fuzzer
/// wants.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    /// Bytes that decide before the seed does, in reverse order.
    tape: Vec<u8>,
}

impl Random {
    /// Starts from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            state: seed,
            tape: Vec::new(),
        }
    }

    /// Lets `tape` decide, two bytes for each number, until it ends.
    pub fn play(&mut self, tape: &[u8]) {
        self.tape = tape.iter().rev().copied().collect();
    }

    /// True if there is no tape, or if it has ended.
    #[must_use]
    pub const fn tape_ended(&self) -> bool {
        self.tape.is_empty()
    }

    /// Next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let seeded = z ^ (z >> 31);
        let Some(high) = self.tape.pop() else {
            return seeded;
        };
        let low = self.tape.pop().unwrap_or(0);
        // The first bits decide in most uses.
        u64::from(high) << 56 | u64::from(low) << 48 | seeded >> 16
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
