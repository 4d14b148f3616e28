//! Which published claims hold here.

use super::claims::{direction, figure_claims, tests_of_claims};
use super::contrast::{contrast, growth};
use super::{Pattern, Quantity};
use crate::model::{CellRecord, Durability, Outcome};
use crate::stats::{self, Contrast, MARGIN, Verdict, Word};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Why a claim cannot be tested if the experiment of its report was not run.
pub(crate) const ABSENT: &str = "this run has no such experiment";

/// How a claim is tested.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// Two cells stand in a ratio.
    Ratio {
        /// The first cell.
        subject: Pattern,
        /// The second.
        reference: Pattern,
        /// What is compared.
        quantity: Quantity,
        /// subject ÷ reference; infinite if only "more" was said.
        published: f64,
    },
    /// Cells are ordered, the best first.
    Ranking {
        /// The order.
        order: Vec<Pattern>,
        /// What is compared.
        quantity: Quantity,
    },
    /// A metric grows with the concurrency.
    Growth {
        /// The cell.
        subject: Pattern,
        /// The metric.
        metric: &'static [&'static str],
        /// Lowest concurrency that counts.
        from: f64,
        /// Throughput at the highest ÷ that at the lowest.
        published: f64,
    },
    /// It cannot be tested here, for this reason.
    Absolute(&'static str),
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The same holds here.
    Reproduced,
    /// The opposite is true here, and the interval leaves 1 by more than 3 %.
    Reversed,
    /// A difference was claimed, and here there is none of more than 3 %, or
    /// none of that size: the interval excludes it. Or no difference was
    /// claimed, and there is one.
    NotReproduced,
    /// It was tested, and the blocks do not decide it.
    Undecided(String),
    /// It cannot be tested here.
    NotTestable(String),
}

impl Judgement {
    /// In words.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Reversed => "reversed",
            Self::NotReproduced => "not reproduced",
            Self::Undecided(_) => "undecided here",
            Self::NotTestable(_) => "not testable here",
        }
    }

    /// Why, where that must be said.
    pub fn reason(&self) -> &str {
        match self {
            Self::Undecided(reason) | Self::NotTestable(reason) => reason,
            _ => "",
        }
    }
}

/// A claim with its judgement.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The report.
    pub source: String,
    /// Workload or metric.
    pub workload: String,
    /// What was compared.
    pub comparison: String,
    /// What was published, in words.
    pub published: String,
    /// The published ratio, if there is one.
    pub published_ratio: Option<f64>,
    /// What the report adds.
    pub note: String,
    /// It is a claim in words, not one of a table of figures.
    pub in_words: bool,
    /// The weakest promise of the cells on which it was tested.
    pub durability: Durability,
    /// Whether it holds.
    pub judgement: Judgement,
    /// The verdicts on which the judgement rests.
    pub verdicts: Vec<Verdict>,
}

/// Judges all published claims with the records of a run. Claims of one
/// report on one workload are a family.
pub fn judge(records: &[CellRecord], seed: u64) -> Vec<Judged> {
    let mut open = Vec::new();
    for (claim, test) in tests_of_claims() {
        let comparison = claim.comparison.clone();
        open.push((
            Judged {
                source: claim.source.clone(),
                workload: claim.workload.clone(),
                comparison,
                published: claim.value.clone(),
                published_ratio: ratio_of(&test),
                note: claim.note.clone(),
                in_words: true,
                durability: Durability::Full,
                judgement: Judgement::NotTestable(String::new()),
                verdicts: Vec::new(),
            },
            test,
        ));
    }
    for claim in figure_claims() {
        let published = match claim.test {
            Test::Ratio { published, .. } => format!("{published:.2}"),
            _ => String::new(),
        };
        open.push((
            Judged {
                source: claim.source.to_owned(),
                workload: claim.metric,
                comparison: format!("{} relative to {}", claim.config, claim.against),
                published,
                published_ratio: ratio_of(&claim.test),
                note: String::new(),
                in_words: false,
                durability: Durability::Full,
                judgement: Judgement::NotTestable(String::new()),
                verdicts: Vec::new(),
            },
            claim.test,
        ));
    }
    let mut by_experiment: BTreeMap<&str, Vec<&CellRecord>> = BTreeMap::new();
    for record in records {
        by_experiment
            .entry(&record.experiment)
            .or_default()
            .push(record);
    }
    let contrasts: Vec<Result<Vec<Contrast>, String>> = open
        .iter()
        .map(|(claim, test)| {
            let own = by_experiment.get(claim.source.as_str());
            let own = own.ok_or(ABSENT)?;
            contrasts_of(test, own)
        })
        .collect();
    let mut families: BTreeMap<(bool, &str, &str), Vec<Contrast>> = BTreeMap::new();
    let mut places = Vec::new();
    for ((claim, _), contrasts) in open.iter().zip(&contrasts) {
        let key = (
            claim.in_words,
            claim.source.as_str(),
            claim.workload.as_str(),
        );
        let family = families.entry(key).or_default();
        let from = family.len();
        family.extend(contrasts.iter().flatten().cloned());
        places.push((key, from..family.len()));
    }
    let verdicts: BTreeMap<_, Vec<Verdict>> = families
        .iter()
        .map(|(key, family)| (*key, stats::judge(family, seed)))
        .collect();
    let mut found = Vec::with_capacity(open.len());
    for (index, (key, range)) in places.into_iter().enumerate() {
        let (claim, test) = &open[index];
        let mut claim = claim.clone();
        if let Some(own) = by_experiment.get(claim.source.as_str()) {
            claim.durability = weakest(test, own);
        }
        claim.verdicts = verdicts[&key][range].to_vec();
        claim.judgement = match &contrasts[index] {
            Err(reason) => Judgement::NotTestable(reason.clone()),
            Ok(contrasts) => judgement(test, contrasts, &claim.verdicts),
        };
        found.push(claim);
    }
    found
}

/// The weakest promise of the cells of a test.
fn weakest(test: &Test, records: &[&CellRecord]) -> Durability {
    let patterns: Vec<&Pattern> = match test {
        Test::Ratio {
            subject, reference, ..
        } => vec![subject, reference],
        Test::Ranking { order, .. } => order.iter().collect(),
        Test::Growth { subject, .. } => vec![subject],
        Test::Absolute(_) => Vec::new(),
    };
    let own = |record: &&&CellRecord| {
        record.outcome == Outcome::Done && patterns.iter().any(|pattern| pattern.matches(record))
    };
    let promises = records.iter().filter(own).map(|record| record.durability);
    promises.max().unwrap_or(Durability::Full)
}

fn ratio_of(test: &Test) -> Option<f64> {
    match test {
        Test::Ratio { published, .. } | Test::Growth { published, .. } => {
            published.is_finite().then_some(*published)
        }
        _ => None,
    }
}

fn contrasts_of(test: &Test, records: &[&CellRecord]) -> Result<Vec<Contrast>, String> {
    match test {
        Test::Absolute(reason) => Err((*reason).to_owned()),
        Test::Ratio {
            subject,
            reference,
            quantity,
            ..
        } => Ok(vec![pair(records, subject, reference, quantity)?]),
        Test::Ranking { order, quantity } => order
            .windows(2)
            .map(|two| pair(records, &two[0], &two[1], quantity))
            .collect(),
        Test::Growth {
            subject,
            metric,
            from,
            ..
        } => {
            let quantity = Quantity::Growth {
                metric,
                from: *from,
            };
            let grown = growth(records, subject, &quantity, *from);
            let missing = || missing(records, subject);
            Ok(vec![grown.ok_or_else(missing)?])
        }
    }
}

fn pair(
    records: &[&CellRecord],
    subject: &Pattern,
    reference: &Pattern,
    quantity: &Quantity,
) -> Result<Contrast, String> {
    contrast(records, subject, reference, quantity).ok_or_else(|| {
        let lacking = [subject, reference]
            .into_iter()
            .find(|pattern| !any_done(records, pattern));
        match lacking {
            Some(pattern) => missing(records, pattern),
            None => "no block has a usable figure of both cells".to_owned(),
        }
    })
}

fn any_done(records: &[&CellRecord], pattern: &Pattern) -> bool {
    records
        .iter()
        .any(|record| record.outcome == Outcome::Done && pattern.matches(record))
}

/// Why there is no figure of such a cell: the cell's own reason, or that the
/// run has none.
fn missing(records: &[&CellRecord], pattern: &Pattern) -> String {
    let name = pattern
        .0
        .iter()
        .map(|(axis, value)| match *axis {
            "file-system" => value.clone(),
            _ => format!("{axis} {value}"),
        })
        .collect::<Vec<_>>()
        .join(", ");
    // If the machine lacks a file system, the run need not have a record for
    // every level.
    let system = pattern.0.first().map(|(_, value)| Pattern::system(value));
    let said = records.iter().find_map(|record| {
        let same = pattern.matches(record)
            || system.as_ref().is_some_and(|system| {
                system.matches(record) && matches!(record.outcome, Outcome::Unavailable(_))
            });
        match &record.outcome {
            Outcome::Void(reason) | Outcome::Failed(reason) | Outcome::Unavailable(reason)
                if same =>
            {
                Some(reason.clone())
            }
            _ => None,
        }
    });
    said.map_or_else(
        || format!("this run has no figure of {name}"),
        |reason| format!("{name}: {reason}"),
    )
}

fn judgement(test: &Test, contrasts: &[Contrast], verdicts: &[Verdict]) -> Judgement {
    let published = match test {
        Test::Ratio { published, .. } | Test::Growth { published, .. } => *published,
        Test::Ranking { .. } => return ranking(verdicts),
        Test::Absolute(reason) => return Judgement::NotTestable((*reason).to_owned()),
    };
    let (Some(verdict), Some(contrast)) = (verdicts.first(), contrasts.first()) else {
        return Judgement::NotTestable("nothing to judge".to_owned());
    };
    let here = match verdict.word {
        Word::Undecided if excludes(verdict, published) => return Judgement::NotReproduced,
        Word::Undecided => return Judgement::Undecided(why_undecided(verdict)),
        Word::Equivalent => Ordering::Equal,
        Word::Better | Word::Worse => {
            let sum: f64 = contrast.log_ratios.iter().sum();
            sum.total_cmp(&0.0)
        }
    };
    match (direction(published), here) {
        (claimed, here) if claimed == here => Judgement::Reproduced,
        (Ordering::Equal, _) | (_, Ordering::Equal) => Judgement::NotReproduced,
        _ if leaves_one(verdict) => Judgement::Reversed,
        _ => Judgement::NotReproduced,
    }
}

/// The whole interval lies on one side of 1, by more than what matters.
fn leaves_one(verdict: &Verdict) -> bool {
    verdict.ratio.is_some_and(|found| {
        let interval = found.interval;
        interval.is_confident() && (interval.low > MARGIN || interval.high < 1.0 / MARGIN)
    })
}

/// The interval found here excludes the published value by more than what
/// matters. The blocks do not tell which is better, but a difference like the
/// published one is not among the possible answers.
fn excludes(verdict: &Verdict, published: f64) -> bool {
    let Some(found) = verdict.ratio.filter(|_| !verdict.screening) else {
        return false;
    };
    let (low, high) = (found.interval.low / MARGIN, found.interval.high * MARGIN);
    let claimed = direction(published) != Ordering::Equal && published.is_finite();
    claimed && found.interval.is_confident() && !(low..=high).contains(&published)
}

fn ranking(verdicts: &[Verdict]) -> Judgement {
    let all = |words: &[Word]| verdicts.iter().all(|v| words.contains(&v.word));
    if all(&[Word::Better]) {
        Judgement::Reproduced
    } else if all(&[Word::Worse]) && verdicts.iter().all(leaves_one) {
        Judgement::Reversed
    } else if let Some(open) = verdicts.iter().find(|v| v.word == Word::Undecided)
        && !verdicts
            .iter()
            .any(|v| matches!(v.word, Word::Worse | Word::Equivalent))
    {
        Judgement::Undecided(why_undecided(open))
    } else {
        Judgement::NotReproduced
    }
}

fn why_undecided(verdict: &Verdict) -> String {
    if verdict.screening {
        return format!("screening: {} of at least 7 blocks", verdict.blocks);
    }
    if verdict.is_hopeless() {
        return format!(
            "{} blocks cannot decide a family of {}: it takes {}",
            verdict.blocks,
            verdict.family,
            stats::least_blocks(verdict.family)
        );
    }
    format!("p = {:.3} after correction", verdict.p_adjusted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Better;

    #[test]
    fn what_the_interval_leaves_out_is_not_reproduced() {
        let judged = |published: f64, log_ratios: &[f64]| {
            let contrasts = [Contrast {
                log_ratios: log_ratios.to_vec(),
                better: Better::Higher,
            }];
            let test = Test::Ratio {
                subject: Pattern::system("btrfs"),
                reference: Pattern::system("ext4"),
                quantity: Quantity::Metric(&["throughput"]),
                published,
            };
            judgement(&test, &contrasts, &stats::judge(&contrasts, 0))
        };
        let around_one = [0.1, -0.1, 0.08, -0.09, 0.11, -0.07, 0.02, -0.03];
        assert_eq!(judged(0.03, &around_one), Judgement::NotReproduced);
        assert_eq!(judged(3.0, &around_one), Judgement::NotReproduced);
        // A difference that these blocks cannot tell from 1 stays open.
        assert!(matches!(judged(0.95, &around_one), Judgement::Undecided(_)));
        // It is decided, but by less than the margin. That is not the opposite.
        let little = [0.012, 0.014, 0.011, 0.013, 0.015, 0.012, 0.014, 0.013];
        assert_eq!(judged(0.5, &little), Judgement::NotReproduced);
        let much = little.map(|log| log * 20.0);
        assert_eq!(judged(0.5, &much), Judgement::Reversed);
        // With too few blocks, everything stays open.
        let few = judged(0.03, &around_one[..6]);
        assert!(matches!(few, Judgement::Undecided(_)));
    }
}
