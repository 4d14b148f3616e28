//! Round trips, hostile input and extents that the kernel wrote.

use super::*;
use proptest::prelude::*;

const SECTOR: usize = 4096;

/// Bytes of one of six kinds, from a seed.
fn content(kind: u8, seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    match kind % 6 {
        0 => vec![seed as u8; length],
        1 => (0..length).map(|_| next() as u8).collect(),
        2 => (0..length)
            .map(|_| b"etaoin shrdlu\n"[(next() % 14) as usize])
            .collect(),
        3 => {
            let words = [
                "extent",
                "node",
                "chunk",
                " ",
                "\n",
                "generation",
                "of",
                "a",
            ];
            let mut out = Vec::with_capacity(length + 16);
            while out.len() < length {
                out.extend_from_slice(words[(next() % 8) as usize].as_bytes());
            }
            out.truncate(length);
            out
        }
        4 => {
            let period = 1 + (next() % 5000) as usize;
            let mut out: Vec<u8> = (0..period.min(length)).map(|_| next() as u8).collect();
            while out.len() < length {
                out.push(out[out.len() - period]);
            }
            out
        }
        _ => (0..length)
            .map(|at| if at % 64 < 32 { next() as u8 } else { 0 })
            .collect(),
    }
}

fn round_trip(scratch: &mut Scratch, method: Method, input: &[u8], sector: usize) {
    let Method { algorithm, level } = method;
    // Everything fits into this much.
    let mut packed = vec![0xee; input.len() * 2 + 1000];
    let length = scratch
        .compress(algorithm, level, input, &mut packed, sector)
        .unwrap();
    let mut padded = packed[..length].to_vec();
    padded.resize(length.next_multiple_of(sector), 0);
    for input_bytes in [&packed[..length], &padded] {
        let mut output = vec![1; input.len()];
        let filled = scratch
            .decompress(algorithm, input_bytes, &mut output, sector)
            .unwrap();
        assert_eq!(filled, input.len());
        assert!(output == input);
        // A shorter output gives the beginning, a longer one ends with zeros.
        let mut part = vec![1; input.len() * 2 / 3];
        let filled = scratch
            .decompress(algorithm, input_bytes, &mut part, sector)
            .unwrap();
        assert_eq!(filled, part.len());
        assert!(part == input[..part.len()]);
        let mut longer = vec![1; input.len() + 5000];
        let filled = scratch
            .decompress(algorithm, input_bytes, &mut longer, sector)
            .unwrap();
        assert_eq!(filled, input.len());
        assert!(longer[..filled] == *input);
        assert!(longer[filled..].iter().all(|byte| *byte == 0));
    }
    // It fits exactly, and in nothing less.
    let mut exact = vec![0; length];
    assert_eq!(
        scratch.compress(algorithm, level, input, &mut exact, sector),
        Some(length)
    );
    assert_eq!(exact, packed[..length], "the same input, the same bytes");
    let mut less = vec![0; length - 1];
    assert_eq!(
        scratch.compress(algorithm, level, input, &mut less, sector),
        None
    );
}

#[test]
fn every_level_of_every_kind() {
    let mut scratch = Scratch::default();
    for kind in 0..6 {
        let input = content(kind, 99, UNIT);
        for algorithm in Algorithm::ALL {
            for level in algorithm.levels().unwrap_or(0..=0) {
                let level = algorithm.clamp_level(level);
                round_trip(&mut scratch, Method { algorithm, level }, &input, SECTOR);
            }
        }
    }
}

#[test]
fn what_pays() {
    assert_eq!(room_that_pays(UNIT, SECTOR), UNIT - SECTOR);
    assert_eq!(room_that_pays(SECTOR + 1, SECTOR), SECTOR);
    assert_eq!(room_that_pays(SECTOR, SECTOR), 0);
    assert_eq!(room_that_pays(1, SECTOR), 0);
    assert_eq!(room_that_pays(0, SECTOR), 0);
    let mut scratch = Scratch::default();
    let noise = content(1, 5, UNIT);
    let mut output = vec![0; room_that_pays(noise.len(), SECTOR)];
    for algorithm in Algorithm::ALL {
        let level = algorithm.default_level();
        assert_eq!(
            scratch.compress(algorithm, level, &noise, &mut output, SECTOR),
            None
        );
    }
}

#[test]
fn a_stream_cut_anywhere_is_an_error() {
    let mut scratch = Scratch::default();
    let input = content(3, 1, 20_000);
    let mut packed = vec![0; 30_000];
    let mut output = vec![0; input.len()];
    for algorithm in Algorithm::ALL {
        let level = algorithm.default_level();
        let length = scratch
            .compress(algorithm, level, &input, &mut packed, SECTOR)
            .unwrap();
        for cut in 0..length {
            // Behind the data there is only a checksum or an end mark.
            let result = scratch.decompress(algorithm, &packed[..cut], &mut output, SECTOR);
            assert!(result.is_err() || cut + 8 >= length, "{algorithm:?} {cut}");
            assert!(result.is_err() || output == input);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn round_trips(
        kind in 0_u8..6,
        seed: u64,
        length in 1_usize..UNIT,
        short: bool,
        algorithm in 0_usize..3,
        level in -15_i32..=15,
        sector_bits in 12_u32..=16,
    ) {
        let length = if short { length % 5000 + 1 } else { length };
        let algorithm = Algorithm::ALL[algorithm];
        let level = algorithm.clamp_level(level);
        let input = content(kind, seed, length);
        let mut scratch = Scratch::default();
        round_trip(&mut scratch, Method { algorithm, level }, &input, 1 << sector_bits);
    }

    #[test]
    fn changed_bytes_never_panic(
        kind in 0_u8..6,
        seed: u64,
        algorithm in 0_usize..3,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<proptest::sample::Index>(),
    ) {
        let algorithm = Algorithm::ALL[algorithm];
        let input = content(kind, seed, 30_000);
        let mut scratch = Scratch::default();
        let mut packed = vec![0; 40_000];
        let length = scratch
            .compress(algorithm, algorithm.default_level(), &input, &mut packed, SECTOR)
            .unwrap();
        packed.truncate(length);
        for (at, byte) in changes {
            *at.get_mut(&mut packed) = byte;
        }
        let mut output = vec![0; input.len()];
        for end in [length, cut.index(length)] {
            if let Ok(filled) =
                scratch.decompress(algorithm, &packed[..end], &mut output, SECTOR)
            {
                prop_assert!(filled <= output.len());
            }
        }
        // Damage leaves nothing behind in the contexts.
        round_trip(
            &mut scratch,
            Method { algorithm, level: algorithm.default_level() },
            &input,
            SECTOR,
        );
    }

    #[test]
    fn noise_never_panics(input in proptest::collection::vec(any::<u8>(), 0..3000), which in 0_usize..3) {
        let mut scratch = Scratch::default();
        let mut output = vec![0; 10_000];
        let mut input = input;
        for prefix in [&[][..], &[0x28, 0xb5, 0x2f, 0xfd], &[0x78, 0x9c], &[200, 0, 0, 0]] {
            if input.len() >= 4 {
                input[..prefix.len()].copy_from_slice(prefix);
            }
            let _ = scratch.decompress(Algorithm::ALL[which], &input, &mut output, SECTOR);
        }
    }
}

mod golden;

/// If compression gives up in the middle of a unit, the same working memory
/// makes correct units afterwards.
#[test]
fn a_unit_that_did_not_fit_leaves_no_trace() {
    for algorithm in Algorithm::ALL {
        for level in algorithm.levels().unwrap_or(0..=0) {
            let level = algorithm.clamp_level(level);
            let mut scratch = Scratch::default();
            for seed in 1..30 {
                let mut narrow = vec![0; 60_000];
                let noise = content(1, seed, UNIT);
                let fits = scratch.compress(algorithm, level, &noise, &mut narrow, SECTOR);
                assert!(fits.is_none());
                let kind = (seed % 6) as u8;
                round_trip(
                    &mut scratch,
                    Method { algorithm, level },
                    &content(kind, seed, 4096 * seed as usize),
                    SECTOR,
                );
            }
        }
    }
}
