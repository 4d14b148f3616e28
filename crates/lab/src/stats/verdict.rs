//! The words better, worse, equivalent and undecided.
//!
//! A comparison is *equivalent* if its 95 % interval lies inside ±3 %.
//! Otherwise it is *better* or *worse* if the sign-flip test gives p < 0.05
//! after Holm's correction for all comparisons of its family. Otherwise it is
//! *undecided*, which says nothing about equality. With fewer than 7 blocks it
//! is a *screening*: the ratio is shown, the word is always undecided, and it
//! does not count in the family.

use super::interval::Estimate;
use super::paired::{hodges_lehmann, sign_flip};
use super::samples::shift;
use crate::model::Better;

/// The share of families without any difference in which a difference may be
/// claimed by mistake.
pub const ALPHA: f64 = 0.05;
/// Ratios from 1/1.03 to 1.03 are no difference that matters.
pub const MARGIN: f64 = 1.03;
/// Fewer blocks decide nothing.
pub const DECIDING_BLOCKS: usize = 7;

/// What may be said of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// The first is better than the second.
    Better,
    /// The first is worse.
    Worse,
    /// They differ by less than what matters.
    Equivalent,
    /// Neither of these can be said.
    Undecided,
}

impl Word {
    /// The word, as reports write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Equivalent => "equivalent",
            Self::Undecided => "undecided",
        }
    }
}

/// Two cells to compare in one metric: ln(first / second) in each block that
/// has both.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Within-block log-ratios.
    pub log_ratios: Vec<f64>,
    /// Which way the metric is better.
    pub better: Better,
}

/// Values of two cells that are not pairs (from two runs).
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Values of the first.
    pub first: Vec<f64>,
    /// Values of the second.
    pub second: Vec<f64>,
    /// Which way the metric is better.
    pub better: Better,
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The word.
    pub word: Word,
    /// first / second; None without blocks.
    pub ratio: Option<Estimate>,
    /// Exact two-sided p: of the sign-flip test for blocks, of the
    /// Mann-Whitney test for samples.
    pub p: f64,
    /// The same corrected for its family (Holm); 1 for a screening.
    pub p_adjusted: f64,
    /// Blocks on which it stands; for samples, those of the smaller one.
    pub blocks: usize,
    /// Comparisons in its family that have enough blocks to be tested, and this
    /// one.
    pub family: usize,
    /// Too few blocks for any word but undecided.
    pub screening: bool,
}

impl Verdict {
    /// No result could have decided it: there are too few blocks for the
    /// family.
    pub fn is_hopeless(&self) -> bool {
        self.blocks < least_blocks(self.family)
    }
}

/// Judges all comparisons of a family, in their order. `seed` matters only
/// above 20 blocks, where the test draws at random.
pub fn judge(family: &[Contrast], seed: u64) -> Vec<Verdict> {
    let tested = family.iter().map(|contrast| Tested {
        estimate: hodges_lehmann(&contrast.log_ratios),
        p: sign_flip(&contrast.log_ratios, seed),
        // The test is on the sum. If the sum and the estimate point in
        // different directions, an outlier made the sum, and nothing is said.
        toward: contrast.log_ratios.iter().sum(),
        blocks: contrast.log_ratios.len(),
        better: contrast.better,
    });
    verdicts(&tested.collect::<Vec<_>>())
}

/// Judges a family of samples: whether the first is better than the second.
/// A sample with values that are not positive and finite is undecided.
pub fn judge_samples(family: &[Sample]) -> Vec<Verdict> {
    let logs = |values: &[f64]| -> Vec<f64> {
        let usable = |v: &&f64| v.is_finite() && **v > 0.0;
        let kept: Vec<f64> = values.iter().filter(usable).map(|v| v.ln()).collect();
        if kept.len() == values.len() {
            kept
        } else {
            Vec::new()
        }
    };
    let tested = family.iter().map(|sample| {
        let found = shift(&logs(&sample.first), &logs(&sample.second));
        Tested {
            estimate: found.map(|(estimate, _)| estimate),
            p: found.map_or(1.0, |(_, p)| p),
            toward: found.map_or(0.0, |(estimate, _)| estimate.value),
            blocks: sample.first.len().min(sample.second.len()),
            better: sample.better,
        }
    });
    verdicts(&tested.collect::<Vec<_>>())
}

/// A comparison of logarithms that was tested, before its family is known.
struct Tested {
    estimate: Option<Estimate>,
    p: f64,
    /// Positive when the first has the larger values, by the test.
    toward: f64,
    blocks: usize,
    better: Better,
}

fn verdicts(family: &[Tested]) -> Vec<Verdict> {
    // What is only screened is never claimed to differ, whatever its p, and
    // takes nothing from the others.
    let is_tested = |tested: &&Tested| tested.blocks >= DECIDING_BLOCKS;
    let ps: Vec<f64> = family.iter().filter(is_tested).map(|one| one.p).collect();
    let mut adjusted = holm(&ps).into_iter();
    family
        .iter()
        .map(|tested| {
            let screening = !is_tested(&tested);
            let p_adjusted = if screening { None } else { adjusted.next() };
            let p_adjusted = p_adjusted.unwrap_or(1.0);
            Verdict {
                word: word(tested, p_adjusted),
                ratio: tested.estimate.map(|estimate| estimate.map(f64::exp)),
                p: tested.p,
                p_adjusted,
                blocks: tested.blocks,
                family: ps.len() + usize::from(screening),
                screening,
            }
        })
        .collect()
}

fn word(tested: &Tested, p_adjusted: f64) -> Word {
    let Some(estimate) = tested.estimate else {
        return Word::Undecided;
    };
    if tested.blocks < DECIDING_BLOCKS {
        return Word::Undecided;
    }
    let interval = estimate.interval;
    let margin = MARGIN.ln();
    if interval.is_confident() && interval.low > -margin && interval.high < margin {
        return Word::Equivalent;
    }
    if p_adjusted >= ALPHA || tested.toward * estimate.value <= 0.0 {
        return Word::Undecided;
    }
    match (tested.better, tested.toward > 0.0) {
        (Better::Higher, true) | (Better::Lower, false) => Word::Better,
        (Better::Higher, false) | (Better::Lower, true) => Word::Worse,
        (Better::Neither, _) => Word::Undecided,
    }
}

/// Holm's step-down correction, in the order of `ps`.
pub fn holm(ps: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ps.len()).collect();
    order.sort_by(|&a, &b| ps[a].total_cmp(&ps[b]));
    let mut adjusted = vec![1.0; ps.len()];
    let mut floor: f64 = 0.0;
    for (step, &index) in order.iter().enumerate() {
        floor = floor.max((ps[index] * (ps.len() - step) as f64).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

/// The fewest blocks with which a comparison in a family of this size can be
/// better or worse: the sign-flip test's least p is 2 / 2^blocks.
pub fn least_blocks(family: usize) -> usize {
    (DECIDING_BLOCKS..)
        .find(|&blocks| 2.0 * 0.5_f64.powf(blocks as f64) * (family as f64) < ALPHA)
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contrast(log_ratios: &[f64]) -> Contrast {
        Contrast {
            log_ratios: log_ratios.to_vec(),
            better: Better::Higher,
        }
    }

    #[test]
    fn holm_steps_down_and_never_decreases() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        for (found, expected) in adjusted.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    #[test]
    fn the_words() {
        let steady = [0.5, 0.51, 0.49, 0.52, 0.48, 0.5, 0.53];
        let first = |contrast: &Contrast| judge(std::slice::from_ref(contrast), 0)[0].word;
        assert_eq!(first(&contrast(&steady)), Word::Better);
        let mut lower = contrast(&steady);
        lower.better = Better::Lower;
        assert_eq!(first(&lower), Word::Worse);
        lower.better = Better::Neither;
        assert_eq!(first(&lower), Word::Undecided);
        let tiny = [0.01, 0.012, 0.009, 0.011, 0.01, 0.008, 0.01];
        assert_eq!(first(&contrast(&tiny)), Word::Equivalent);
        let apart = [0.5, -0.4, 0.3, -0.6, 0.2, 0.1, -0.2];
        assert_eq!(first(&contrast(&apart)), Word::Undecided);
        assert_eq!(first(&contrast(&[])), Word::Undecided);
    }

    #[test]
    fn six_blocks_are_screening_whatever_they_show() {
        for blocks in 0..DECIDING_BLOCKS {
            let verdict = &judge(&[contrast(&vec![2.0; blocks])], 0)[0];
            assert!(verdict.screening);
            assert_eq!(verdict.word, Word::Undecided, "{blocks} blocks");
        }
    }

    #[test]
    fn what_is_screened_does_not_count_in_the_family() {
        let steady = contrast(&[0.5, 0.51, 0.49, 0.52, 0.48, 0.5, 0.53]);
        let screened = contrast(&[0.5]);
        let mut family = vec![screened.clone(); 20];
        family.insert(7, steady.clone());
        let verdicts = judge(&family, 0);
        assert_eq!(verdicts[7], judge(&[steady], 0)[0]);
        assert_eq!(verdicts[7].word, Word::Better);
        assert!(verdicts[0].is_hopeless() && verdicts[0].word == Word::Undecided);
    }

    #[test]
    fn larger_families_need_more_blocks() {
        for (family, blocks) in [(1, 7), (3, 7), (4, 8), (6, 8), (7, 9), (12, 9), (13, 10)] {
            assert_eq!(least_blocks(family), blocks, "family of {family}");
            let decided = |n: usize| {
                let family = vec![contrast(&vec![0.7; n]); family];
                judge(&family, 0).iter().all(|v| v.word == Word::Better)
            };
            assert!(decided(blocks), "family of {family}");
            if blocks > DECIDING_BLOCKS {
                assert!(!decided(blocks - 1), "family of {family}");
            }
        }
    }
}
