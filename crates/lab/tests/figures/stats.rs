//! The statistics against known distributions: coverage of the intervals,
//! false-positive rate and power of the verdicts. All seeded.

use butterfs_lab::model::Better;
use butterfs_lab::stats::{Contrast, Random, Word, hodges_lehmann, judge, median, sign_flip};

/// Trials of each simulation; the standard error of a share of 0.05 is 0.0034.
const TRIALS: usize = 4000;

/// Log-normal, strongly skewed: a median of 1.
fn skewed(random: &mut Random) -> f64 {
    (0.8 * random.normal()).exp()
}

/// Student's t with 2 degrees of freedom: symmetric about 0, without variance.
fn heavy(random: &mut Random) -> f64 {
    let exponential = -(1.0 - random.unit()).ln();
    random.normal() / exponential.sqrt()
}

fn share(trials: usize, mut hit: impl FnMut() -> bool) -> f64 {
    (0..trials).filter(|_| hit()).count() as f64 / trials as f64
}

#[test]
fn median_intervals_cover_as_they_state_for_skewed_values() {
    let mut random = Random::new(11);
    for n in [3, 5, 7, 9, 15, 30] {
        let mut stated = 0.0;
        let covered = share(TRIALS, || {
            let values: Vec<f64> = (0..n).map(|_| skewed(&mut random)).collect();
            let interval = median(&values).unwrap().interval;
            stated = interval.coverage;
            interval.low <= 1.0 && 1.0 <= interval.high
        });
        assert!((covered - stated).abs() < 0.02, "n {n}: {covered} {stated}");
    }
}

#[test]
fn hodges_lehmann_intervals_cover_as_they_state_without_variance() {
    let mut random = Random::new(12);
    for n in [3, 6, 7, 8, 12, 20] {
        let mut stated = 0.0;
        let covered = share(TRIALS, || {
            let values: Vec<f64> = (0..n).map(|_| 0.2 + heavy(&mut random)).collect();
            let interval = hodges_lehmann(&values).unwrap().interval;
            stated = interval.coverage;
            interval.low <= 0.2 && 0.2 <= interval.high
        });
        assert!((covered - stated).abs() < 0.02, "n {n}: {covered} {stated}");
    }
}

#[test]
fn sign_flip_rejects_a_true_null_no_more_often_than_it_says() {
    let mut random = Random::new(13);
    for n in [7, 10] {
        for alpha in [0.02, 0.05, 0.2] {
            let rejected = share(TRIALS, || {
                let values: Vec<f64> = (0..n).map(|_| heavy(&mut random)).collect();
                sign_flip(&values, 0) <= alpha
            });
            // Exact p come in steps of 2/2^n: at most alpha, and not less
            // than a step below it.
            let slack = 4.0 * (alpha * (1.0 - alpha) / TRIALS as f64).sqrt();
            assert!(rejected <= alpha + slack, "n {n} {alpha}: {rejected}");
            let step = 2.0 * 0.5_f64.powi(n);
            assert!(
                rejected >= alpha - step - slack,
                "n {n} {alpha}: {rejected}"
            );
        }
    }
}

/// A family as in a report: a cell for each effect against one reference.
/// Values have an offset that their block shares, and skewed noise.
fn family(random: &mut Random, blocks: usize, effects: &[f64], noise: f64) -> Vec<Contrast> {
    let mut family: Vec<Contrast> = effects
        .iter()
        .map(|_| Contrast {
            log_ratios: Vec::new(),
            better: Better::Higher,
        })
        .collect();
    for _ in 0..blocks {
        let block = random.normal();
        let mut value = |effect: f64| block + effect + noise * skewed(random).min(6.0);
        let reference = value(0.0);
        for (contrast, effect) in family.iter_mut().zip(effects) {
            contrast.log_ratios.push(value(*effect) - reference);
        }
    }
    family
}

#[test]
fn families_without_differences_claim_one_rarely() {
    let mut random = Random::new(14);
    for (blocks, cells) in [(7, 1), (7, 3), (9, 10), (12, 20)] {
        let effects = vec![0.0; cells];
        let wrong = share(1500, || {
            judge(&family(&mut random, blocks, &effects, 0.1), 0)
                .iter()
                .any(|verdict| matches!(verdict.word, Word::Better | Word::Worse))
        });
        assert!(wrong <= 0.05 + 0.02, "{blocks} blocks, {cells}: {wrong}");
    }
}

#[test]
fn true_differences_among_none_keep_the_rate_and_are_found() {
    let mut random = Random::new(15);
    let effects = [0.0, 0.5, 0.0, -0.5, 0.0];
    let (mut found, mut wrong, trials) = (0, 0, 1000);
    for _ in 0..trials {
        let words: Vec<Word> = judge(&family(&mut random, 10, &effects, 0.1), 0)
            .iter()
            .map(|verdict| verdict.word)
            .collect();
        let claimed = |i: usize| matches!(words[i], Word::Better | Word::Worse);
        wrong += usize::from([0, 2, 4].into_iter().any(claimed));
        found += usize::from(words[1] == Word::Better && words[3] == Word::Worse);
        assert_ne!(words[1], Word::Worse);
        assert_ne!(words[3], Word::Better);
    }
    assert!(wrong <= trials / 20 + 20, "{wrong} of {trials}");
    assert!(found >= trials * 9 / 10, "{found} of {trials}");
}

#[test]
fn seven_blocks_find_a_fifth_at_a_tenth_of_noise() {
    let mut random = Random::new(16);
    let found = share(1000, || {
        let log_ratios = (0..7).map(|_| 0.2 + 0.1 * random.normal()).collect();
        let contrast = Contrast {
            log_ratios,
            better: Better::Lower,
        };
        judge(&[contrast], 0)[0].word == Word::Worse
    });
    assert!(found > 0.85, "{found}");
}

#[test]
fn equivalence_is_claimed_at_its_edge_rarely_and_inside_often() {
    let mut random = Random::new(17);
    let mut equivalent = |centre: f64| {
        share(2000, || {
            let log_ratios = (0..7).map(|_| centre + 0.01 * random.normal()).collect();
            let contrast = Contrast {
                log_ratios,
                better: Better::Higher,
            };
            judge(&[contrast], 0)[0].word == Word::Equivalent
        })
    };
    // A true difference of just 3 % is called equivalent at most in 2.5 %.
    let at_the_edge = equivalent(1.03_f64.ln());
    assert!(at_the_edge <= 0.025 + 0.012, "{at_the_edge}");
    let inside = equivalent(0.0);
    assert!(inside > 0.95, "{inside}");
}
