//! The first screen: one sentence, and one chart of everything that is decided.

use super::bars::badge;
use super::digest::{Digest, weakest};
use super::number::ratio;
use super::page::{Page, escape};
use crate::model::{Better, Durability};
use crate::stats::{DECIDING_BLOCKS, Interval, Word};

/// Rows of the chart. What else is decided is folded away.
const ROWS_MAX: usize = 16;
/// With fewer rows there is no chart, only sentences.
const ROWS_MIN: usize = 5;
/// The chart reaches from 1/RANGE to RANGE.
const RANGE: f64 = 16.0;

/// A comparison that is decided. Ratios are inverted where needed, so that more
/// is better.
struct Decided {
    system: String,
    /// Metric and condition.
    label: String,
    is_own: bool,
    durability: Durability,
    word: Word,
    against: String,
    value: f64,
    interval: (f64, f64),
}

/// The same ratio, inverted where needed so that more is better.
fn turned(better: Better, value: f64, interval: Interval) -> (f64, (f64, f64)) {
    match better {
        Better::Lower => (1.0 / value, (1.0 / interval.high, 1.0 / interval.low)),
        _ => (value, (interval.low, interval.high)),
    }
}

fn decided(digest: &Digest<'_>) -> Vec<Decided> {
    let mut all = Vec::new();
    let many = digest.experiments.len() > 1;
    for experiment in &digest.experiments {
        for metric in experiment.metrics.iter().filter(|metric| metric.headline) {
            for slice in &experiment.slices {
                let Some(reference) = slice.reference else {
                    continue;
                };
                for (index, verdict) in experiment.verdicts(slice, metric, digest.seed()) {
                    let Some(found) = verdict.ratio.filter(|found| found.value > 0.0) else {
                        continue;
                    };
                    if verdict.word == Word::Undecided || verdict.screening {
                        continue;
                    }
                    let cell = &experiment.cells[index];
                    let mut label = metric.name.clone();
                    if !cell.condition.is_empty() {
                        label.push_str(&format!(", {}", cell.condition));
                    }
                    if many {
                        label.push_str(&format!(" ({})", experiment.name));
                    }
                    let (value, interval) = turned(metric.better, found.value, found.interval);
                    let both = [cell.durability, experiment.cells[reference].durability];
                    all.push(Decided {
                        system: cell.system.clone(),
                        label,
                        is_own: cell.is_own(),
                        durability: weakest(both.into_iter()),
                        word: verdict.word,
                        against: experiment.cells[reference].system.clone(),
                        value,
                        interval,
                    });
                }
            }
        }
    }
    all.sort_by(|a, b| {
        b.value
            .total_cmp(&a.value)
            .then_with(|| (&a.label, &a.system).cmp(&(&b.label, &b.system)))
    });
    all
}

/// How many comparisons had which result: "better in 3, equivalent in 1 and
/// worse in 7".
fn counted<'d>(all: impl Iterator<Item = &'d Decided> + Clone) -> String {
    let words = [Word::Better, Word::Equivalent, Word::Worse];
    let parts: Vec<String> = words
        .into_iter()
        .filter_map(|word| {
            let count = all.clone().filter(|one| one.word == word).count();
            (count > 0).then(|| format!("{} in {count}", word.as_str()))
        })
        .collect();
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The sentence for a reader who reads no more.
fn sentence(digest: &Digest<'_>, all: &[Decided], blocks: u32) -> String {
    if all.is_empty() {
        let plural = if blocks == 1 { "" } else { "s" };
        return match (blocks as usize) < DECIDING_BLOCKS {
            true => format!(
                "Nothing is decided: this is a screening of {blocks} block{plural}, and {DECIDING_BLOCKS} are the least that decide."
            ),
            false => {
                "Nothing is decided: no difference was larger than what these blocks can tell."
                    .to_owned()
            }
        };
    }
    let mut references: Vec<&str> = all.iter().map(|one| one.against.as_str()).collect();
    references.sort_unstable();
    references.dedup();
    let against = references.join(" and ");
    let number = all.len();
    let comparisons = if number == 1 {
        "comparison is"
    } else {
        "comparisons are"
    };
    let own = all.iter().filter(|one| one.is_own);
    let count = own.clone().count();
    if count > 0 {
        let all = match number == count {
            true => String::new(),
            false => format!("; {number} are decided in all"),
        };
        return format!(
            "Against {against}, ButterFS is {} of {count} decided comparisons{all}.",
            counted(own)
        );
    }
    let has_own = digest.experiments.iter().any(|experiment| {
        experiment
            .systems
            .iter()
            .any(|system| system.starts_with("butterfs"))
    });
    let missing = if has_own {
        " None of them is on ButterFS."
    } else {
        ""
    };
    format!(
        "{number} {comparisons} decided: {} against {against}.{missing}",
        counted(all.iter())
    )
}

/// Day of a time since 1970, in UTC.
fn day(seconds: f64) -> String {
    let days = (seconds / 86_400.0).floor();
    if !days.is_finite() || !(0.0..4e6).contains(&days) {
        return "at an unknown time".to_owned();
    }
    // Howard Hinnant's algorithm for the civil calendar.
    let days = days as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// When, on what and by which program it was measured.
fn made(digest: &Digest<'_>) -> String {
    let run = &digest.recorded.run;
    let fact = |topic: &str, name: &str| {
        let facts = run.manifest.facts.get(topic)?;
        facts.get(name).map(String::as_str)
    };
    let mut parts = vec![day(run.started)];
    if let Some(model) = fact("cpu", "model") {
        let cores =
            fact("cpu", "processors").map_or(String::new(), |n| format!(" ({n} processors)"));
        parts.push(format!("{model}{cores}"));
    }
    if let Some(release) = fact("kernel", "release") {
        parts.push(format!("Linux {release}"));
    }
    let program = fact("harness", "program");
    let version = fact("harness", "version").map(|version| format!("butterfs {version}"));
    parts.extend(program.map(str::to_owned).or(version));
    parts.join(" · ")
}

fn drawn(one: &Decided) -> String {
    let place = |ratio: f64| {
        let share = ratio.max(f64::MIN_POSITIVE).ln() / RANGE.ln();
        50.0 + 48.0 * share.clamp(-1.0, 1.0)
    };
    let (from, to) = (place(one.value).min(50.0), place(one.value).max(50.0));
    let class = match (one.durability, one.word) {
        (Durability::Unsafe, _) => "bar-unsafe",
        (Durability::Weak, _) => "bar-weak",
        (Durability::Full, Word::Better) => "bar-better",
        (Durability::Full, Word::Worse) => "bar-worse",
        (Durability::Full, _) => "bar-full",
    };
    let (low, high) = (place(one.interval.0), place(one.interval.1));
    format!(
        "<svg aria-hidden=\"true\"><rect class=\"{class}\" x=\"{from:.2}%\" y=\"20%\" width=\"{:.2}%\" height=\"60%\"/>\
         <line class=\"best\" x1=\"50%\" x2=\"50%\" y1=\"0\" y2=\"100%\"/>\
         <line class=\"whisker\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" y1=\"50%\" y2=\"50%\"/></svg>",
        (to - from).max(0.4)
    )
}

fn rows(all: &[Decided]) -> String {
    let mut rows = String::new();
    for one in all {
        let (mark, class) = match one.is_own {
            true => (
                "<span class=\"mark-own\">\u{25C6}\u{a0}</span>",
                " class=\"own\"",
            ),
            false => ("", ""),
        };
        let word = match (one.word, one.durability) {
            (Word::Better, Durability::Unsafe) => {
                "<span class=\"word but-unsafe\">better, but unsafe</span>".to_owned()
            }
            (word, _) => format!("<span class=\"word {0}\">{0}</span>", word.as_str()),
        };
        rows.push_str(&format!(
            "<tr{class}><th scope=\"row\">{mark}{}{}: {}</th><td class=\"bar\">{}</td><td class=\"says\"><strong>{}</strong> × {} {word}</td></tr>\n",
            escape(&one.system),
            badge(one.durability),
            escape(&one.label),
            drawn(one),
            ratio(one.value),
            escape(&one.against),
        ));
    }
    rows
}

fn chart(all: &[Decided], caption: &str) -> String {
    format!(
        "<table class=\"bars verdicts\"><caption>{caption}</caption><tbody>{}</tbody></table>\n",
        rows(all)
    )
}

/// The comparisons that the chart shows: the best, the worst, and all of
/// ButterFS as far as there is room.
fn chosen(all: &[Decided]) -> Vec<bool> {
    let mut shown = vec![false; all.len()];
    let own = all.iter().enumerate().filter(|(_, one)| one.is_own);
    for (place, _) in own.take(ROWS_MAX) {
        shown[place] = true;
    }
    // From both ends inwards.
    let order = (0..all.len()).flat_map(|step| [step / 2, all.len() - 1 - step / 2]);
    for place in order {
        if shown.iter().filter(|one| **one).count() >= ROWS_MAX {
            break;
        }
        shown[place] = true;
    }
    shown
}

pub(super) fn write(digest: &Digest<'_>, page: &mut Page) {
    let cells = &digest.recorded.cells;
    let blocks = cells.iter().map(|cell| cell.block + 1).max().unwrap_or(0);
    let mut all = decided(digest);
    page.first(&sentence(digest, &all, blocks), &made(digest));
    if all.len() < ROWS_MIN {
        if !all.is_empty() {
            let items: String = all
                .iter()
                .map(|one| {
                    format!(
                        "<li>{}{}: {}: {} × {}</li>",
                        escape(&one.system),
                        badge(one.durability),
                        escape(&one.label),
                        ratio(one.value),
                        escape(&one.against)
                    )
                })
                .collect();
            page.push(&format!("<ul class=\"said\">{items}</ul>\n"));
        }
        return;
    }
    let mut shown = chosen(&all).into_iter();
    let mut folded = Vec::new();
    let mut kept = Vec::new();
    for one in all.drain(..) {
        match shown.next() {
            Some(true) => kept.push(one),
            _ => folded.push(one),
        }
    }
    let butterfs = if kept.iter().any(|one| one.is_own) {
        " \u{25C6} is ButterFS."
    } else {
        ""
    };
    page.push(&chart(
        &kept,
        &format!(
            "What is decided, best first. Right of the dotted line is better than what it is compared with, left is worse, whatever the metric; the scale is logarithmic, the line in a bar its interval.{butterfs}"
        ),
    ));
    if !folded.is_empty() {
        page.push(&format!(
            "<details><summary>{} more comparisons that are decided</summary>{}</details>\n",
            folded.len(),
            chart(&folded, "The rest of what is decided")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::day;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0.0, "1970-01-01"),
            (951_782_400.0, "2000-02-29"),
            (1_795_397_259.7, "2026-11-23"),
            (f64::NAN, "at an unknown time"),
            (-5.0, "at an unknown time"),
        ] {
            assert_eq!(day(seconds), text);
        }
    }
}
