//! Percentiles of bucketed latencies.

use crate::model::Latencies;

/// The upper end of the bucket that holds the `share` of the operations (0.99
/// for p99): the operation of rank ceil(share × n) took no longer. `None`
/// without operations, and if buckets and counts do not match.
pub fn percentile(latencies: &Latencies, share: f64) -> Option<f64> {
    if latencies.upper.len() != latencies.counts.len() || !(0.0..=1.0).contains(&share) {
        return None;
    }
    let total: u128 = latencies.counts.iter().map(|&c| u128::from(c)).sum();
    if total == 0 {
        return None;
    }
    let rank = ((share * total as f64).ceil() as u128).clamp(1, total);
    let mut below = 0;
    for (upper, count) in latencies.upper.iter().zip(&latencies.counts) {
        below += u128::from(*count);
        if below >= rank {
            return Some(*upper);
        }
    }
    None
}

/// The operations of several cells in one distribution; buckets may differ.
/// It has the name of the first.
pub fn merge<'a>(all: impl IntoIterator<Item = &'a Latencies>) -> Option<Latencies> {
    let mut name = None;
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    for latencies in all {
        name.get_or_insert_with(|| latencies.name.clone());
        let pairs = latencies.upper.iter().zip(&latencies.counts);
        buckets.extend(pairs.map(|(&upper, &count)| (upper, count)));
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    buckets.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = kept.1.saturating_add(next.1);
        }
        same
    });
    let (upper, counts) = buckets.into_iter().unzip();
    Some(Latencies {
        name: name?,
        upper,
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(upper: &[f64], counts: &[u64]) -> Latencies {
        Latencies {
            name: "fsync".to_owned(),
            upper: upper.to_vec(),
            counts: counts.to_vec(),
        }
    }

    #[test]
    fn percentiles_are_the_upper_end_of_the_ranks_bucket() {
        let some = latencies(&[0.001, 0.01, 0.1], &[90, 9, 1]);
        assert_eq!(percentile(&some, 0.5), Some(0.001));
        assert_eq!(percentile(&some, 0.9), Some(0.001));
        assert_eq!(percentile(&some, 0.91), Some(0.01));
        assert_eq!(percentile(&some, 0.99), Some(0.01));
        assert_eq!(percentile(&some, 1.0), Some(0.1));
        assert_eq!(percentile(&some, 0.0), Some(0.001));
        assert_eq!(percentile(&latencies(&[1.0], &[0]), 0.5), None);
        assert_eq!(percentile(&latencies(&[1.0], &[]), 0.5), None);
        assert_eq!(percentile(&some, 1.5), None);
    }

    #[test]
    fn merged_buckets_keep_every_operation() {
        let merged = merge([
            &latencies(&[1.0, 2.0], &[1, 2]),
            &latencies(&[1.5, 2.0], &[4, 8]),
        ])
        .unwrap();
        assert_eq!(merged.upper, [1.0, 1.5, 2.0]);
        assert_eq!(merged.counts, [1, 4, 10]);
        assert_eq!(merge([]), None);
    }
}
