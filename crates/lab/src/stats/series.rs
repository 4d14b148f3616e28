//! One-second series: where the warm-up ends, how even the rest is, how long
//! it stood still.

use super::interval::{middle, sorted};

/// Values in a batch of MSER-5.
const BATCH: usize = 5;
/// Below this share of the median a step counts as standing still.
const STALL_SHARE: f64 = 0.1;

/// Where a series becomes steady.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steadiness {
    /// From this step on.
    From(usize),
    /// Not in its first half: it still drifts, or it is too short to tell
    /// (fewer than 20 steps).
    Never,
}

/// The end of the warm-up by MSER-5 (White 1997). The cuts lie between batches
/// of five values, in the first half (in the second half, few batches are
/// similar by chance). The chosen cut is the one after which the standard error
/// of the mean is least. If that is the last allowed cut, the series still
/// drifts.
pub fn warm_up(values: &[f64]) -> Steadiness {
    let batches: Vec<f64> = values
        .chunks_exact(BATCH)
        .map(|batch| batch.iter().sum::<f64>() / BATCH as f64)
        .collect();
    if batches.len() < 4 || values.iter().any(|value| !value.is_finite()) {
        return Steadiness::Never;
    }
    // From the end: mean and sum of squared deviations by Welford's update.
    let (mut mean, mut squares, mut best) = (0.0, 0.0, (f64::INFINITY, 0));
    for (taken, cut) in (0..batches.len()).rev().enumerate() {
        let count = (taken + 1) as f64;
        let delta = batches[cut] - mean;
        mean += delta / count;
        squares += delta * (batches[cut] - mean);
        let error = squares / (count * count);
        // Of equally good cuts, the earliest keeps the most values.
        if cut <= batches.len() / 2 && error <= best.0 {
            best = (error, cut);
        }
    }
    if best.1 == batches.len() / 2 {
        return Steadiness::Never;
    }
    Steadiness::From(best.1 * BATCH)
}

/// Standard deviation ÷ mean; None for fewer than two values or a mean of 0.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 || mean == 0.0 || !mean.is_finite() {
        return None;
    }
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((squares / (n - 1.0)).sqrt() / mean.abs())
}

/// The most steps in a row below a tenth of the series' median. The caller
/// multiplies by the length of a step.
pub fn longest_stall(values: &[f64]) -> usize {
    let Some(sorted) = sorted(values) else {
        return 0;
    };
    let limit = middle(&sorted) * STALL_SHARE;
    let (mut longest, mut current) = (0, 0);
    for value in values {
        current = if *value <= limit && limit > 0.0 || *value == 0.0 {
            current + 1
        } else {
            0
        };
        longest = longest.max(current);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::Random;
    use super::*;

    #[test]
    fn a_warm_up_is_cut_and_a_steady_series_is_not() {
        let mut random = Random::new(3);
        let (mut steady_found, mut warming_found) = (0, 0);
        for _ in 0..100 {
            let steady: Vec<f64> = (0..100).map(|_| 100.0 + 3.0 * random.normal()).collect();
            steady_found += usize::from(warm_up(&steady) != Steadiness::Never);
            let warming: Vec<f64> = steady
                .iter()
                .enumerate()
                .map(|(i, v)| v - 80.0 * (-(i as f64) / 6.0).exp())
                .collect();
            warming_found += usize::from(matches!(warm_up(&warming), Steadiness::From(10..50)));
        }
        assert!(steady_found >= 90, "{steady_found} of 100");
        assert!(warming_found >= 90, "{warming_found} of 100");
    }

    #[test]
    fn a_series_that_drifts_to_its_end_never_settles() {
        let drifting: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(warm_up(&drifting), Steadiness::Never);
        assert_eq!(warm_up(&[1.0; 19]), Steadiness::Never);
        assert_eq!(warm_up(&[1.0; 20]), Steadiness::From(0));
    }

    #[test]
    fn stalls_and_variation() {
        assert_eq!(longest_stall(&[10.0, 0.5, 0.0, 0.9, 10.0, 0.0, 10.0]), 1);
        assert_eq!(
            longest_stall(&[10.0, 9.0, 0.5, 0.0, 0.9, 10.0, 0.0, 10.0, 11.0]),
            3
        );
        assert_eq!(longest_stall(&[0.0; 4]), 4);
        assert_eq!(longest_stall(&[]), 0);
        let cv = coefficient_of_variation(&[8.0, 10.0, 12.0]).unwrap();
        assert!((cv - 0.2).abs() < 1e-12);
        assert_eq!(coefficient_of_variation(&[1.0]), None);
        assert_eq!(coefficient_of_variation(&[0.0, 0.0]), None);
    }
}
