//! Encodes bytes as LZO1X streams.

#![allow(
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the input is a slice of our own memory, nothing in it is trusted as a length; \
              checks in the inner loop cost a third of the speed"
)]

use super::{DISTANCE_MAX, END, FAR};

/// Bits of a hash; a sector of 4 KiB has 4093 places to remember.
const HASH_BITS: u32 = 12;
/// Shortest match that is looked for.
const MATCH_MIN: usize = 4;
/// The search takes longer steps the longer it finds no match: one more byte
/// for each `1 << SKIP_SHIFT` literals since the last match.
const SKIP_SHIFT: usize = 5;

/// Longest and furthest match with two bytes.
const NEAR_LENGTH: usize = 8;
const NEAR_DISTANCE: usize = 0x800;

/// Encodes blocks; keeps its table from block to block.
pub struct Encoder {
    /// Last place with a hash.
    places: Box<[u16; 1 << HASH_BITS]>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self {
            places: Box::new([0; 1 << HASH_BITS]),
        }
    }
}

impl Encoder {
    /// Appends the stream for `input` (at most 64 KiB) to `out`.
    pub fn encode(&mut self, input: &[u8], out: &mut Vec<u8>) {
        debug_assert!(input.len() <= 1 << 16);
        // The same input always gives the same stream.
        self.places.fill(0);
        let start = out.len();
        let mut literals = 0;
        let mut at = 1;
        while at + MATCH_MIN <= input.len() {
            let word = word(input, at);
            let place = &mut self.places[hash(word)];
            let candidate = usize::from(*place);
            *place = at as u16;
            let distance = at - candidate;
            if self::word(input, candidate) != word || distance > DISTANCE_MAX {
                at += 1 + ((at - literals) >> SKIP_SHIFT);
                continue;
            }
            let mut from = candidate;
            let mut length = MATCH_MIN + common(input, from + MATCH_MIN, at + MATCH_MIN);
            while at > literals && from > 0 && input[at - 1] == input[from - 1] {
                at -= 1;
                from -= 1;
                length += 1;
            }
            put_literals(out, start, &input[literals..at]);
            put_match(out, length, distance);
            at += length;
            literals = at;
            if at + 2 <= input.len() {
                self.places[hash(self::word(input, at - 2))] = (at - 2) as u16;
            }
        }
        put_literals(out, start, &input[literals..]);
        out.extend_from_slice(&END);
    }
}

#[inline]
fn word(input: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&input[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[inline]
fn hash(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Number of equal bytes from `a` and from `b` on; `b` is the later place.
#[inline]
fn common(input: &[u8], a: usize, b: usize) -> usize {
    const STEP: usize = 8;
    let mut count = 0;
    while b + count + STEP <= input.len() {
        let (mut left, mut right) = ([0; STEP], [0; STEP]);
        left.copy_from_slice(&input[a + count..a + count + STEP]);
        right.copy_from_slice(&input[b + count..b + count + STEP]);
        let difference = u64::from_le_bytes(left) ^ u64::from_le_bytes(right);
        if difference != 0 {
            return count + (difference.trailing_zeros() / 8) as usize;
        }
        count += STEP;
    }
    while b + count < input.len() && input[a + count] == input[b + count] {
        count += 1;
    }
    count
}

/// Appends the rest of a length that did not fit its field; `left` is at least
/// 1.
#[inline]
fn put_long(out: &mut Vec<u8>, mut left: usize) {
    while left > 255 {
        out.push(0);
        left -= 255;
    }
    out.push(left as u8);
}

fn put_literals(out: &mut Vec<u8>, start: usize, literals: &[u8]) {
    let count = literals.len();
    if count == 0 {
        return;
    }
    if out.len() == start && count <= 238 {
        out.push(17 + count as u8);
    } else if out.len() > start && count <= 3 {
        // The match before them announces them. Its low byte is always the last
        // but one.
        let at = out.len() - 2;
        out[at] |= count as u8;
    } else if count <= 18 && count > 3 {
        out.push(count as u8 - 3);
    } else {
        out.push(0);
        put_long(out, count - 18);
    }
    out.extend_from_slice(literals);
}

fn put_match(out: &mut Vec<u8>, length: usize, distance: usize) {
    if length <= NEAR_LENGTH && distance <= NEAR_DISTANCE {
        let d = distance - 1;
        out.extend_from_slice(&[
            ((length - 1) << 5) as u8 | ((d & 7) << 2) as u8,
            (d >> 3) as u8,
        ]);
        return;
    }
    let (instruction, length_max, d) = if distance <= FAR {
        (0x20, 33, distance - 1)
    } else {
        let d = distance - FAR;
        (0x10 | ((d >> 14) << 3) as u8, 9, d & (FAR - 1))
    };
    if length <= length_max {
        out.push(instruction | (length - 2) as u8);
    } else {
        out.push(instruction);
        put_long(out, length - length_max);
    }
    out.extend_from_slice(&((d << 2) as u16).to_le_bytes());
}
