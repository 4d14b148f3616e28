//! Whether data are worth compressing, from a sample.
//!
//! Looks at 16 bytes of every 256: repeated halves, few distinct bytes, or a
//! low entropy say yes; many frequent bytes or a high entropy say no.
//!
//! Source: the description of the compression heuristics in the Btrfs
//! documentation.

use super::UNIT;

const SAMPLE: usize = 16;
const INTERVAL: usize = 256;
/// Distinct bytes below which data compress.
const DISTINCT_LOW: usize = 64;
/// Bytes that make up 90 % of the sample: so few compress ...
const CORE_LOW: usize = 64;
/// ... so many do not.
const CORE_HIGH: usize = 200;
/// Entropy (percent of 8 bits) up to which data compress well.
const ENTROPY_HIGH: f64 = 80.0;

/// True when compressing `data` is likely to pay.
#[must_use]
pub fn is_compressible(data: &[u8]) -> bool {
    let sample: Vec<u8> = data
        .chunks(INTERVAL)
        .take(UNIT / INTERVAL)
        .flat_map(|chunk| chunk.iter().copied().take(SAMPLE))
        .collect();
    let (left, right) = sample.split_at(sample.len() / 2);
    if !left.is_empty() && left == right {
        return true;
    }
    let mut counts = [0_u32; 256];
    for byte in &sample {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count = count.saturating_add(1);
        }
    }
    let distinct = counts.iter().filter(|count| **count > 0).count();
    if distinct < DISTINCT_LOW {
        return true;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let mut sum = 0.0;
    let mut core = 0_usize;
    for count in counts {
        if sum >= total * 0.9 {
            break;
        }
        sum += f64::from(count);
        core = core.saturating_add(1);
    }
    if core <= CORE_LOW {
        return true;
    }
    if core >= CORE_HIGH {
        return false;
    }
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / total)
        .map(|share| -share * share.log2())
        .sum();
    entropy / 8.0 * 100.0 < ENTROPY_HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_zeros_pay_and_noise_does_not() {
        assert!(is_compressible(&vec![0; UNIT]));
        assert!(is_compressible(&b"hello world, hello tree. ".repeat(4000)));
        let mut seed = 1_u64;
        let noise: Vec<u8> = (0..UNIT)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        assert!(!is_compressible(&noise));
    }
}
