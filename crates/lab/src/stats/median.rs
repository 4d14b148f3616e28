//! Medians with order-statistic confidence intervals.

use super::interval::{CONFIDENCE, Estimate, Interval, middle, sorted};

/// The median and the narrowest symmetric pair of order statistics that covers
/// the true median with [`CONFIDENCE`]. With too few values for that (fewer
/// than 6), the range of all values. `None` without values, or if one is not
/// finite.
///
/// The number of values below the true median is binomial (n, 1/2), so
/// `[x(k), x(n+1-k)]` covers it with `1 - 2 P(B < k)`.
pub fn median(values: &[f64]) -> Option<Estimate> {
    let sorted = sorted(values)?;
    let n = sorted.len();
    let mut k = 1;
    let mut probability = 0.5_f64.powf(n as f64);
    let mut tail = probability;
    let mut coverage = 1.0 - 2.0 * tail;
    while 2 * (k + 1) <= n {
        // P(B = k) from P(B = k - 1).
        probability *= (n - k + 1) as f64 / k as f64;
        let next = 1.0 - 2.0 * (tail + probability);
        if next < CONFIDENCE {
            break;
        }
        tail += probability;
        coverage = next;
        k += 1;
    }
    Some(Estimate {
        value: middle(&sorted),
        interval: Interval {
            low: sorted[k - 1],
            high: sorted[n - k],
            coverage: coverage.max(0.0),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks and coverages of the sign-test interval as tables of it have them.
    #[test]
    fn ranks_and_coverage_are_those_of_the_tables() {
        for (n, k, coverage) in [
            (1, 1, 0.0),
            (2, 1, 0.5),
            (3, 1, 0.75),
            (5, 1, 0.9375),
            (6, 1, 0.96875),
            (7, 1, 0.984375),
            (8, 1, 0.9921875),
            (9, 2, 0.9609375),
            (12, 3, 0.961_425_781_25),
            (20, 6, 0.958_610_534_667_968_8),
        ] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let found = median(&values).unwrap();
            assert_eq!(found.interval.low, f64::from(k), "n {n}");
            assert_eq!(found.interval.high, f64::from(n + 1 - k), "n {n}");
            assert!(
                (found.interval.coverage - coverage).abs() < 1e-12,
                "n {n}: {found:?}"
            );
            assert_eq!(found.value, f64::from(n + 1) / 2.0);
        }
    }

    #[test]
    fn no_values_and_values_that_are_none_have_no_median() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }
}
