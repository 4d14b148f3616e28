//! Decides from a sample whether data are worth compressing.
//!
//! Owns the sample (16 bytes of every 256) and four tests of it, the cheapest
//! first: does it repeat, does it have few distinct bytes, do few bytes make up
//! most of it, and how high is its entropy.
//!
//! Source: the description of the compression heuristics in the Btrfs
//! documentation ("Pre-compression heuristics").

use super::UNIT;

const SAMPLE: usize = 16;
const INTERVAL: usize = 256;
const SAMPLE_MAX: usize = UNIT / INTERVAL * SAMPLE;
/// Data with fewer distinct bytes than this compress.
const DISTINCT_LOW: usize = 64;
/// Percent of the sample that the most frequent bytes (the core) make up.
const CORE_PERCENT: u32 = 90;
/// Data with a core of at most this many bytes compress ...
const CORE_LOW: usize = 64;
/// ... and with at least this many they do not.
const CORE_HIGH: usize = 200;
/// Entropy in percent of 8 bits up to which data compress well ...
const ENTROPY_LOW: f64 = 65.0;
/// ... and from which on they do not.
const ENTROPY_HIGH: f64 = 80.0;

/// What a sample says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Compressing pays.
    Compressible,
    /// It may pay; the kernel tries.
    Undecided,
    /// It does not pay.
    Incompressible,
}

/// True when compressing `data` is worth a try.
#[must_use]
pub fn is_compressible(data: &[u8]) -> bool {
    judge(data) != Verdict::Incompressible
}

/// Judges the first [`UNIT`] bytes of `data`.
#[must_use]
pub fn judge(data: &[u8]) -> Verdict {
    let mut buffer = [0; SAMPLE_MAX];
    let sample = take_sample(data, &mut buffer);
    let (left, right) = sample.split_at(sample.len() / 2);
    if left == right {
        return Verdict::Compressible;
    }
    let mut counts = [0_u32; 256];
    for byte in sample {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count = count.saturating_add(1);
        }
    }
    if counts.iter().filter(|count| **count > 0).count() < DISTINCT_LOW {
        return Verdict::Compressible;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total: u32 = counts.iter().sum();
    match core_size(&counts, total) {
        ..=CORE_LOW => return Verdict::Compressible,
        CORE_HIGH.. => return Verdict::Incompressible,
        _ => {}
    }
    match entropy_percent(&counts, total) {
        entropy if entropy <= ENTROPY_LOW => Verdict::Compressible,
        entropy if entropy < ENTROPY_HIGH => Verdict::Undecided,
        _ => Verdict::Incompressible,
    }
}

fn take_sample<'a>(data: &[u8], buffer: &'a mut [u8; SAMPLE_MAX]) -> &'a [u8] {
    let mut length = 0_usize;
    for (to, from) in buffer.chunks_exact_mut(SAMPLE).zip(data.chunks(INTERVAL)) {
        // The last chunk may be too short for a sample.
        let Some(from) = from.get(..SAMPLE) else {
            break;
        };
        to.copy_from_slice(from);
        length = length.saturating_add(SAMPLE);
    }
    buffer.get(..length).unwrap_or_default()
}

/// How many distinct bytes make up [`CORE_PERCENT`] of the sample; `counts` is
/// descending.
fn core_size(counts: &[u32; 256], total: u32) -> usize {
    let enough = total.saturating_mul(CORE_PERCENT) / 100;
    counts
        .iter()
        .scan(0_u32, |sum, count| {
            *sum = sum.saturating_add(*count);
            Some(*sum)
        })
        .take_while(|sum| *sum <= enough)
        .count()
}

fn entropy_percent(counts: &[u32; 256], total: u32) -> f64 {
    let bits: f64 = counts
        .iter()
        .take_while(|count| **count > 0)
        .map(|count| f64::from(*count) / f64::from(total))
        .map(|share| -share * share.log2())
        .sum();
    bits / 8.0 * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UNIT` bytes of pseudo-random numbers below 256, mapped by `map`.
    fn noise(map: impl Fn(u8) -> u8) -> Vec<u8> {
        let mut seed = 1_u64;
        (0..UNIT)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                map((seed >> 56) as u8)
            })
            .collect()
    }

    #[test]
    fn text_and_zeros_pay_and_noise_does_not() {
        assert_eq!(judge(&vec![0; UNIT]), Verdict::Compressible);
        let text = b"hello world, hello tree. ".repeat(4000);
        assert_eq!(judge(&text), Verdict::Compressible);
        assert_eq!(judge(&noise(|byte| byte)), Verdict::Incompressible);
    }

    #[test]
    fn every_question_decides_somewhere() {
        // The same noise twice repeats.
        let mut twice = noise(|byte| byte)[..UNIT / 2].to_vec();
        twice.extend_from_within(..);
        assert_eq!(judge(&twice), Verdict::Compressible);
        // 63 distinct bytes, then 64 and more in a small core.
        assert_eq!(judge(&noise(|byte| byte % 63)), Verdict::Compressible);
        assert_eq!(judge(&noise(|byte| byte % 66)), Verdict::Compressible);
        // A core of about 100 bytes, 6.7 bits each: too much.
        assert_eq!(judge(&noise(|byte| byte % 111)), Verdict::Incompressible);
        // About half of it is one byte and the rest is noise: the core is
        // large, but the entropy is low.
        let skewed = noise(|byte| if byte < 140 { 0 } else { byte });
        assert_eq!(judge(&skewed), Verdict::Compressible);
        let between = noise(|byte| if byte < 100 { 0 } else { byte });
        assert_eq!(judge(&between), Verdict::Undecided);
    }

    #[test]
    fn short_data() {
        for length in 0..600 {
            let data = &noise(|byte| byte)[..length];
            // A short sample has few distinct bytes.
            assert_eq!(judge(data), Verdict::Compressible, "{length}");
        }
    }
}
