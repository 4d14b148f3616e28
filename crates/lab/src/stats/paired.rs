//! Two cells compared within blocks. What the cells of a block have in common
//! (the state of the machine) cancels out in the ratio.

use super::interval::{CONFIDENCE, Estimate, Interval, middle, sorted};
use super::random::Random;

/// Up to this many pairs, all assignments of signs are counted.
const EXACT_PAIRS: usize = 20;
/// Number of assignments that are drawn if there are more pairs.
const DRAWN: u64 = 99_999;

/// ln(first / second) of each pair; `None` if a value is not positive and
/// finite, because a ratio then says nothing.
pub fn log_ratios(pairs: &[(f64, f64)]) -> Option<Vec<f64>> {
    pairs
        .iter()
        .map(|&(first, second)| {
            let usable = |value: f64| value.is_finite() && value > 0.0;
            let ratio = first.ln() - second.ln();
            (usable(first) && usable(second) && ratio.is_finite()).then_some(ratio)
        })
        .collect()
}

/// The Hodges-Lehmann estimate of the centre of differences (the median of the
/// averages of all pairs of them), and its exact interval from the distribution
/// of Wilcoxon's signed rank. If there are too few differences for
/// [`CONFIDENCE`] (fewer than 6), the range of the averages.
///
/// Coverage is exact for symmetric continuous differences. The difference of
/// two cells measured in random order is symmetric if nothing else
/// distinguishes them. With ties, coverage is conservative.
pub fn hodges_lehmann(differences: &[f64]) -> Option<Estimate> {
    let differences = sorted(differences)?;
    let n = differences.len();
    let mut averages = Vec::with_capacity(n * (n + 1) / 2);
    for (i, first) in differences.iter().enumerate() {
        for second in &differences[i..] {
            averages.push(f64::midpoint(*first, *second));
        }
    }
    averages.sort_by(f64::total_cmp);
    let probabilities = signed_rank(n);
    let mut tail = probabilities[0];
    let mut rank = 1;
    while 2 * (rank + 1) <= averages.len() {
        let next = tail + probabilities[rank];
        if 1.0 - 2.0 * next < CONFIDENCE {
            break;
        }
        tail = next;
        rank += 1;
    }
    Some(Estimate {
        value: middle(&averages),
        interval: Interval {
            low: averages[rank - 1],
            high: averages[averages.len() - rank],
            coverage: (1.0 - 2.0 * tail).max(0.0),
        },
    })
}

/// P(W = w): the sum of the ranks 1..=n that a fair coin takes.
fn signed_rank(n: usize) -> Vec<f64> {
    let mut probabilities = vec![0.0; n * (n + 1) / 2 + 1];
    probabilities[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..=rank * (rank + 1) / 2).rev() {
            let taken = if sum >= rank {
                probabilities[sum - rank]
            } else {
                0.0
            };
            probabilities[sum] = f64::midpoint(probabilities[sum], taken);
        }
    }
    probabilities
}

/// The two-sided p of the sign-flip test: the share of all assignments of signs
/// to the differences whose sum is at least as far from 0 as the observed one.
/// Up to 20 differences, all 2^n assignments are counted. Above, 99,999 are
/// drawn with `seed`, and the observed one is counted among them, so p is never
/// 0.
pub fn sign_flip(differences: &[f64], seed: u64) -> f64 {
    let size: f64 = differences.iter().map(|d| d.abs()).sum();
    // Sums that differ only by rounding count as equal.
    let seen = differences.iter().sum::<f64>().abs() - size * 1e-9;
    if size == 0.0 || differences.is_empty() {
        return 1.0;
    }
    if differences.len() > EXACT_PAIRS {
        let mut random = Random::new(seed);
        let hits = (0..DRAWN)
            .filter(|_| drawn_sum(differences, &mut random).abs() >= seen)
            .count();
        return (hits as f64 + 1.0) / (DRAWN as f64 + 1.0);
    }
    // A sum and its mirror image are equally far from 0, so the last sign need
    // not change. In Gray code order, each assignment differs from the previous
    // one in one sign.
    let assignments = 1_u64 << (differences.len() - 1);
    let mut signs = vec![1.0; differences.len()];
    let mut sum: f64 = differences.iter().sum();
    let mut hits = 1_u64;
    for step in 1..assignments {
        let flipped = step.trailing_zeros() as usize;
        sum -= 2.0 * signs[flipped] * differences[flipped];
        signs[flipped] = -signs[flipped];
        hits += u64::from(sum.abs() >= seen);
    }
    hits as f64 / assignments as f64
}

fn drawn_sum(differences: &[f64], random: &mut Random) -> f64 {
    differences
        .chunks(64)
        .map(|chunk| {
            let bits = random.bits();
            chunk
                .iter()
                .enumerate()
                .map(|(i, d)| if bits >> i & 1 == 0 { *d } else { -d })
                .sum::<f64>()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Critical values of Wilcoxon's signed rank test, two-sided 5 %: for
    /// n = 6..10 a sum of at most 0, 2, 3, 5, 8 rejects.
    #[test]
    fn intervals_take_the_ranks_of_the_signed_rank_tables() {
        for (n, critical) in [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (20, 52)] {
            let probabilities = signed_rank(n);
            let below: f64 = probabilities[..=critical].iter().sum();
            assert!(2.0 * below <= 0.05, "n {n}: {below}");
            assert!(
                2.0 * (below + probabilities[critical + 1]) > 0.05,
                "n {n}: {below}"
            );
            let differences: Vec<f64> = (0..n).map(|i| 2.0_f64.powi(i as i32)).collect();
            let found = hodges_lehmann(&differences).unwrap().interval;
            assert!((found.coverage - (1.0 - 2.0 * below)).abs() < 1e-12);
            let mut averages: Vec<f64> = (0..n)
                .flat_map(|i| (i..n).map(move |j| (i, j)))
                .map(|(i, j)| (differences[i] + differences[j]) / 2.0)
                .collect();
            averages.sort_by(f64::total_cmp);
            assert_eq!(found.low, averages[critical]);
        }
    }

    #[test]
    fn few_pairs_state_the_coverage_that_they_have() {
        let three = hodges_lehmann(&[0.1, 0.2, 0.3]).unwrap();
        assert_eq!(three.interval.low, 0.1);
        assert_eq!(three.interval.high, 0.3);
        assert_eq!(three.interval.coverage, 0.75);
        assert!(!three.interval.is_confident());
    }

    #[test]
    fn sign_flips_count_as_by_hand() {
        // All of one sign: only the assignment seen and its mirror image.
        assert_eq!(sign_flip(&[1.0; 7], 0), 2.0 / 128.0);
        assert_eq!(sign_flip(&[-0.3; 3], 0), 2.0 / 8.0);
        // Sums of ±1±2±3: 6, 4, 2, 0, 0, ... ; 0 is seen, all are as far.
        assert_eq!(sign_flip(&[1.0, 2.0, -3.0], 0), 1.0);
        // 4 = -1+2+3 is seen: 6, 4, -4, -6 of 8.
        assert_eq!(sign_flip(&[-1.0, 2.0, 3.0], 0), 0.5);
        assert_eq!(sign_flip(&[0.0, 0.0], 0), 1.0);
    }

    #[test]
    fn counted_and_drawn_assignments_agree() {
        let mut random = Random::new(7);
        let differences: Vec<f64> = (0..20).map(|_| random.normal() + 0.35).collect();
        let counted = sign_flip(&differences, 1);
        let mut more = differences.clone();
        more.push(0.0);
        // A 21st difference of 0 changes no sum, so p stays what it is.
        let drawn = sign_flip(&more, 1);
        assert!((counted - drawn).abs() < 0.004, "{counted} {drawn}");
        assert_eq!(drawn, sign_flip(&more, 1));
    }

    #[test]
    fn ratios_of_what_is_not_positive_are_none() {
        assert_eq!(log_ratios(&[(1.0, 0.0)]), None);
        assert_eq!(log_ratios(&[(-1.0, 1.0)]), None);
        assert_eq!(log_ratios(&[(f64::INFINITY, 1.0)]), None);
        assert_eq!(log_ratios(&[(2.0, 2.0)]), Some(vec![0.0]));
    }
}
