//! LZO1X streams: one block of bytes to one stream and back.
//!
//! Owns the instruction set; knows nothing of sectors or extents. The encoder
//! is greedy with one hash table, as fast LZ encoders are; the decoder takes
//! hostile input and reads nothing outside of its slices.
//!
//! Source of the facts: the description of the stream in the Linux kernel's
//! documentation ("LZO stream format as understood by Linux' LZO
//! decompressor"). An instruction is a copy of literals or of a match; a match
//! also says in its two lowest bits (`S`) how many literals, 0 to 3, follow it.
//!
//! | First byte | Match length | Distance |
//! |---|---|---|
//! | `0000DDSS`, after 1 to 3 literals | 2 | 1 KiB, one more byte |
//! | `0000DDSS`, after 4 and more literals | 3 | 2 KiB to 3 KiB, one more byte |
//! | `0000LLLL`, after a match without literals | | (literals: `L` + 3) |
//! | `0001HLLL` | `L` + 2 | 16 KiB to 48 KiB, two more bytes |
//! | `001LLLLL` | `L` + 2 | 16 KiB, two more bytes |
//! | `01LDDDSS`, `1LLDDDSS` | 3 to 8 | 2 KiB, one more byte |
//!
//! A length field of zero means that the length goes on in the next bytes:
//! each zero byte adds 255, the first other byte ends it. The far match with
//! the impossible distance of exactly 16 KiB ends the stream.

mod decode;
mod encode;

pub use decode::decode;
pub use encode::Encoder;

/// Distance that a far match adds.
const FAR: usize = 0x4000;
/// Greatest distance of a match.
const DISTANCE_MAX: usize = 0xbfff;
/// Instruction that ends a stream.
const END: [u8; 3] = [0x11, 0, 0];

/// Greatest length of the stream for `length` bytes.
#[must_use]
pub const fn worst_case(length: usize) -> usize {
    length
        .saturating_add(length / 16)
        .saturating_add(64 + 3)
        .saturating_add(END.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(input: &[u8]) -> usize {
        let mut stream = Vec::new();
        Encoder::default().encode(input, &mut stream);
        assert!(stream.len() <= worst_case(input.len()));
        let mut output = vec![0xa5; input.len()];
        assert_eq!(decode(&stream, &mut output), Ok(input.len()));
        assert_eq!(output, input);
        // An independent decoder agrees.
        let mut other = vec![0; input.len()];
        assert_eq!(
            lzokay::decompress::decompress(&stream, &mut other).unwrap(),
            input.len()
        );
        assert_eq!(other, input);
        stream.len()
    }

    #[test]
    fn every_small_length_of_literals() {
        for length in 0..600_usize {
            let input: Vec<u8> = (0..length)
                .map(|at| (at.wrapping_mul(at).wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect();
            round_trip(&input);
        }
    }

    #[test]
    fn every_length_of_a_match_at_each_distance_class() {
        let noise: Vec<u8> = (0..60_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761).rotate_left(at % 31) >> 11) as u8)
            .collect();
        for distance in [1, 2, 7, 2048, 2049, 16384, 16385, 32768, 49151, 49152] {
            for length in (3..40).chain([255, 256, 263, 264, 265, 288, 289, 543, 2000]) {
                let mut input = noise[..distance].to_vec();
                for at in 0..length {
                    input.push(input[at]);
                }
                input.extend_from_slice(&noise[50_000..50_000 + length % 5]);
                round_trip(&input);
            }
        }
    }

    #[test]
    fn repetition_is_found() {
        assert!(round_trip(&[0; 4096]) < 40);
        assert!(round_trip(&b"a file system in userspace. ".repeat(140)) < 80);
    }

    /// Streams of the reference library.
    #[test]
    fn reference_streams() {
        let hello = [
            34, 104, 101, 108, 108, 111, 44, 32, 108, 122, 111, 32, 119, 111, 114, 108, 100, 33,
            17, 0, 0,
        ];
        let mut output = [0; 17];
        assert_eq!(decode(&hello, &mut output), Ok(17));
        assert_eq!(&output, b"hello, lzo world!");
        assert_eq!(decode(&END, &mut []), Ok(0));
    }

    proptest! {
        #[test]
        fn any_bytes(input in proptest::collection::vec(0_u8..8, 0..9000)) {
            round_trip(&input);
        }

        #[test]
        fn noise_decodes_to_the_same_as_elsewhere(stream in proptest::collection::vec(any::<u8>(), 3..200)) {
            let mut ours = vec![0; 5000];
            let mut theirs = vec![0; 5000];
            let length = decode(&stream, &mut ours);
            let other = lzokay::decompress::decompress(&stream, &mut theirs);
            if let (Ok(length), Ok(other)) = (length, other) {
                prop_assert_eq!(&ours[..length], &theirs[..other]);
            }
        }
    }
}
