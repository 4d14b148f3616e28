//! Two samples that are no pairs: the same cell in two runs.

use super::interval::{CONFIDENCE, Estimate, Interval, middle, sorted};

/// P(U = u) for samples of these sizes. U counts the pairs in which the value
/// of the first sample is the smaller, if all orders are equally likely.
fn mann_whitney(first: usize, second: usize) -> Vec<f64> {
    // rows[j]: the distribution for the i values so far and j of the second.
    // The largest value is one of the first with chance i/(i+j), and then no
    // pair has it as the smaller.
    let mut rows: Vec<Vec<f64>> = (0..=second).map(|_| vec![1.0]).collect();
    for i in 1..=first {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=second {
            let mut row = vec![0.0; i * j + 1];
            let share = i as f64 / (i + j) as f64;
            for (u, p) in rows[j].iter().enumerate() {
                row[u] += share * p;
            }
            for (u, p) in next[j - 1].iter().enumerate() {
                row[u + i] += (1.0 - share) * p;
            }
            next.push(row);
        }
        rows = next;
    }
    rows.pop().unwrap_or_default()
}

/// The Hodges-Lehmann estimate of first − second (the median of all
/// differences), its exact interval from the Mann-Whitney distribution, and the
/// exact two-sided p for equal distributions. `None` without values. Ties count
/// against a difference.
pub(super) fn shift(first: &[f64], second: &[f64]) -> Option<(Estimate, f64)> {
    let (first, second) = (sorted(first)?, sorted(second)?);
    let differences: Vec<f64> = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| a - b))
        .collect();
    let differences = sorted(&differences)?;
    let chances = mann_whitney(first.len(), second.len());
    let mut tail = chances[0];
    let mut rank = 1;
    while 2 * (rank + 1) <= differences.len() && 1.0 - 2.0 * (tail + chances[rank]) >= CONFIDENCE {
        tail += chances[rank];
        rank += 1;
    }
    let not_above = differences.iter().filter(|d| **d <= 0.0).count();
    let not_below = differences.iter().filter(|d| **d >= 0.0).count();
    let extreme = not_above.min(not_below);
    let p = (2.0 * chances[..=extreme].iter().sum::<f64>()).min(1.0);
    let estimate = Estimate {
        value: middle(&differences),
        interval: Interval {
            low: differences[rank - 1],
            high: differences[differences.len() - rank],
            coverage: (1.0 - 2.0 * tail).max(0.0),
        },
    };
    Some((estimate, p))
}

#[cfg(test)]
mod tests {
    use super::super::Random;
    use super::*;

    /// Critical values of the Mann-Whitney test, two-sided 5 %.
    #[test]
    fn the_distribution_is_that_of_the_tables() {
        for (m, n, critical) in [(4, 4, 0), (5, 5, 2), (7, 7, 8), (6, 9, 10), (10, 10, 23)] {
            let chances = mann_whitney(m, n);
            assert!((chances.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            let below: f64 = chances[..=critical].iter().sum();
            assert!(
                2.0 * below <= 0.05 && 2.0 * (below + chances[critical + 1]) > 0.05,
                "{m} {n}"
            );
        }
    }

    #[test]
    fn the_interval_covers_as_it_states() {
        let mut random = Random::new(21);
        let (mut covered, mut stated, mut rejected) = (0, 0.0, 0);
        for _ in 0..3000 {
            let first: Vec<f64> = (0..7).map(|_| 1.5 + random.normal()).collect();
            let second: Vec<f64> = (0..8).map(|_| random.normal()).collect();
            let (estimate, _) = shift(&first, &second).unwrap();
            stated = estimate.interval.coverage;
            covered += usize::from(estimate.interval.low <= 1.5 && 1.5 <= estimate.interval.high);
            let third: Vec<f64> = (0..7).map(|_| random.normal()).collect();
            rejected += usize::from(shift(&third, &second).unwrap().1 < 0.05);
        }
        assert!(
            (covered as f64 / 3000.0 - stated).abs() < 0.015,
            "{covered} {stated}"
        );
        assert!(rejected <= 180, "{rejected}");
    }

    #[test]
    fn what_is_alike_or_too_little_is_no_difference() {
        assert_eq!(shift(&[1.0; 7], &[1.0; 7]).unwrap().1, 1.0);
        assert!(shift(&[], &[1.0]).is_none());
        let (estimate, p) = shift(&[2.0], &[1.0]).unwrap();
        assert_eq!(
            (estimate.value, estimate.interval.coverage, p),
            (1.0, 0.0, 1.0)
        );
    }
}
