//! What the run says, in sentences made from verdicts.

use super::bars::{badge, losses};
use super::digest::{Cell, Digest, Experiment, MetricKind, weakest};
use super::number::ratio;
use super::page::{Page, escape};
use super::words::joined;
use crate::model::{Durability, Outcome};
use crate::stats::{DECIDING_BLOCKS, Verdict, Word, least_blocks};
use std::collections::BTreeMap;

pub(super) fn write(digest: &Digest<'_>, page: &mut Page) {
    page.section("What can be said", "");
    let cells = &digest.recorded.cells;
    let done = cells
        .iter()
        .filter(|cell| cell.outcome == Outcome::Done)
        .count();
    let blocks = cells
        .iter()
        .map(|cell| cell.block)
        .max()
        .map_or(0, |last| last + 1);
    if (blocks as usize) < DECIDING_BLOCKS {
        page.paragraph(&format!(
            "<strong>This is a screening:</strong> with fewer than {DECIDING_BLOCKS} blocks nothing can be decided, and every verdict is undecided. \
             The ratios say what is worth a longer run."
        ));
    }
    for experiment in &digest.experiments {
        page.heading(&experiment.name);
        let mut sentences = Vec::new();
        let mut screened = Vec::new();
        let mut needed = 0;
        for metric in experiment.metrics.iter().filter(|metric| metric.headline) {
            let found = (&mut sentences, &mut screened);
            needed = needed.max(sentences_of(experiment, metric, digest, found));
        }
        let mut lost: Vec<(usize, String, Vec<&Cell<'_>>)> = Vec::new();
        for cell in &experiment.cells {
            if cell.done().count() < cell.passes.len() {
                let (system, why) = (cell.system_index, losses(cell));
                match lost.iter_mut().find(|(s, w, _)| (*s, w) == (system, &why)) {
                    Some((.., cells)) => cells.push(cell),
                    None => lost.push((system, why, vec![cell])),
                }
            }
        }
        for (system, why, cells) in lost {
            let name = match cells.as_slice() {
                [one] => one.name(),
                all => format!("{}, {} conditions", experiment.systems[system], all.len()),
            };
            sentences.push(format!(
                "<strong>{}</strong>{}: {}.",
                escape(&name),
                badge(cells[0].durability),
                why.trim_end_matches('.')
            ));
        }
        if sentences.is_empty() && screened.is_empty() {
            page.paragraph("No cell of it has figures.");
            continue;
        }
        if !sentences.is_empty() {
            page.push(&list(&sentences));
        }
        if !screened.is_empty() {
            page.push(&format!(
                "<details><summary>{} screened, with too few blocks to decide</summary>{}</details>\n",
                screened.len(),
                list(&screened)
            ));
        }
        if needed > 0 && blocks as usize >= DECIDING_BLOCKS {
            page.paragraph(&format!(
                "Some comparisons here could not have been decided by {blocks} blocks, whatever they had shown: their families need {needed}."
            ));
        }
    }
    page.push(&format!(
        "<details><summary>How it is decided</summary><p>{blocks} of {} blocks were begun; {done} of {} passes have figures that count. Better and worse: the exact sign-flip test over \
         within-block ratios, corrected by Holm over all cells of one condition and metric with at least 7 blocks, has p &lt; 0.05. Equivalent: the 95 % interval of the ratio lies \
         inside ±3 %. Undecided: neither, which does not mean equal. Ratios are Hodges-Lehmann estimates.</p></details>\n",
        digest.recorded.run.blocks,
        cells.len()
    ));
    page.end_section();
}

fn list(sentences: &[String]) -> String {
    let items: String = sentences
        .iter()
        .map(|s| format!("<li>{s}</li>\n"))
        .collect();
    format!("<ul class=\"said\">\n{items}</ul>\n")
}

/// Verdicts on one system that say the same.
#[derive(Default)]
struct Group {
    conditions: Vec<String>,
    low: Option<f64>,
    high: Option<f64>,
    /// There are too few blocks to say anything.
    screening: bool,
    /// The verdict, if there is exactly one.
    single: Option<Verdict>,
}

/// Adds the sentences on a metric. Returns the blocks that its families need if
/// they have too few, otherwise 0.
fn sentences_of(
    experiment: &Experiment<'_>,
    metric: &MetricKind,
    digest: &Digest<'_>,
    (sentences, screened): (&mut Vec<String>, &mut Vec<String>),
) -> usize {
    // What was only screened comes last.
    let mut groups: BTreeMap<(bool, String, Word, usize), Group> = BTreeMap::new();
    let mut needed = 0;
    for slice in &experiment.slices {
        for (index, verdict) in experiment.verdicts(slice, metric, digest.seed()) {
            let Some(reference) = slice.reference else {
                continue;
            };
            let reference = experiment.cells[reference].system.clone();
            let system = experiment.cells[index].system_index;
            if verdict.is_hopeless() && !verdict.screening && verdict.word == Word::Undecided {
                needed = needed.max(least_blocks(verdict.family));
            }
            let key = (verdict.screening, reference, verdict.word, system);
            let group = groups.entry(key).or_default();
            group.screening = verdict.screening;
            group.conditions.push(slice.condition.clone());
            if let Some(found) = verdict.ratio {
                group.low = Some(group.low.map_or(found.value, |low| low.min(found.value)));
                group.high = Some(group.high.map_or(found.value, |high| high.max(found.value)));
            }
            group.single = (group.conditions.len() == 1).then_some(verdict);
        }
    }
    for ((_, reference, word, system), group) in groups {
        let into = if group.screening {
            &mut *screened
        } else {
            &mut *sentences
        };
        into.push(sentence(
            experiment,
            metric,
            (&reference, word, system),
            &group,
        ));
    }
    needed
}

fn sentence(
    experiment: &Experiment<'_>,
    metric: &MetricKind,
    (reference, word, system): (&str, Word, usize),
    group: &Group,
) -> String {
    let name = &experiment.systems[system];
    let cells = experiment
        .cells
        .iter()
        .filter(|cell| cell.system_index == system);
    let durability = weakest(cells.map(|cell| cell.durability));
    let class = word.as_str();
    let says = match word {
        Word::Better if durability == Durability::Unsafe => format!(
            "is <span class=\"word but-unsafe\">better, but unsafe,</span> than {}",
            escape(reference)
        ),
        Word::Better => format!(
            "is <span class=\"word {class}\">better</span> than {}",
            escape(reference)
        ),
        Word::Worse => format!(
            "is <span class=\"word {class}\">worse</span> than {}",
            escape(reference)
        ),
        Word::Equivalent => format!(
            "and {} are <span class=\"word {class}\">equivalent</span>",
            escape(reference)
        ),
        Word::Undecided if group.screening => format!(
            "against {} was <span class=\"word {class}\">only screened</span>",
            escape(reference)
        ),
        Word::Undecided => format!(
            "against {} is <span class=\"word {class}\">undecided</span>",
            escape(reference)
        ),
    };
    let ratios = match (group.low, group.high, &group.single) {
        (Some(value), _, Some(verdict)) if verdict.screening => {
            let blocks = if verdict.blocks == 1 {
                "block"
            } else {
                "blocks"
            };
            format!(": {} times in {} {blocks}", ratio(value), verdict.blocks)
        }
        (_, _, Some(verdict)) => verdict.ratio.map_or_else(String::new, |found| {
            format!(
                ": {} times ({:.0} % interval {} to {}, {} blocks, p = {:.3} corrected)",
                ratio(found.value),
                (found.interval.coverage * 100.0).floor(),
                ratio(found.interval.low),
                ratio(found.interval.high),
                verdict.blocks,
                verdict.p_adjusted
            )
        }),
        (Some(low), Some(high), None) => format!(": {} to {} times", ratio(low), ratio(high)),
        _ => String::new(),
    };
    let conditions = conditions(&group.conditions);
    let warning = match durability {
        Durability::Full => "",
        Durability::Weak => " It promises less: data that were not fsynced may come back stale.",
        Durability::Unsafe => {
            " <strong>It is no safe choice: a power cut may lose what was fsynced.</strong>"
        }
    };
    format!(
        "<strong>{}</strong>{} {says} in {}{conditions}{ratios}.{warning}",
        escape(name),
        badge(durability),
        escape(&metric.name)
    )
}

/// The conditions; what they share is said once.
fn conditions(all: &[String]) -> String {
    let named: Vec<String> = all
        .iter()
        .filter(|condition| !condition.is_empty())
        .cloned()
        .collect();
    if named.is_empty() {
        return String::new();
    }
    format!(" ({})", escape(&joined(&named)))
}
