//! The old reports beside this run: each conclusion, and whether it holds.

use super::bars::badge;
use super::digest::Digest;
use super::number::ratio;
use super::page::{Page, escape};
use crate::published::{ABSENT, Judged, Judgement, judge};
use std::collections::BTreeMap;

pub(super) fn write(digest: &Digest<'_>, page: &mut Page) {
    let judged = judge(&digest.recorded.cells, digest.seed());
    page.section("What the old reports said", "Published conclusions, and whether this run comes to the same. A ratio is what carries over from another machine; absolute figures do not.");
    let own = |claim: &&Judged| claim.judgement.reason() != ABSENT;
    // A run of one report needs no row for each claim of another. A run of none
    // has the claims in words.
    let mut shown: Vec<&Judged> = judged.iter().filter(own).collect();
    if shown.is_empty() {
        shown = judged.iter().filter(|claim| claim.in_words).collect();
    }
    let is_testable = |claim: &&Judged| !matches!(claim.judgement, Judgement::NotTestable(_));
    let (testable, untestable): (Vec<&Judged>, Vec<&Judged>) =
        shown.iter().copied().partition(is_testable);
    let (words, figures): (Vec<&Judged>, Vec<&Judged>) =
        testable.iter().partition(|claim| claim.in_words);
    if !words.is_empty() {
        page.paragraph(&counts("conclusions in words", &words));
        page.push(&table(
            &words,
            "Conclusions in words. The drawings are logarithmic, from a 32nd to 32 times; the dotted line is 1, a ratio of equals",
        ));
    }
    if !figures.is_empty() {
        page.paragraph(&counts("published ratios", &figures));
        page.push(&format!(
            "<details><summary>Published figures, one by one ({})</summary>{}</details>\n",
            figures.len(),
            table(&figures, "Ratios that the published tables have")
        ));
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for claim in &untestable {
        *reasons.entry(claim.judgement.reason()).or_default() += 1;
    }
    if !reasons.is_empty() {
        let said = reasons.iter().map(|(reason, count)| match count {
            1 => (*reason).to_owned(),
            count => format!("{reason} ({count})"),
        });
        page.paragraph(&format!(
            "<span class=\"word not-testable-here\">not testable here</span>, {} claims: {}.",
            untestable.len(),
            escape(&said.collect::<Vec<_>>().join("; "))
        ));
    }
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    let is_shown = |claim: &Judged| shown.iter().any(|one| std::ptr::eq(*one, claim));
    for claim in judged.iter().filter(|claim| !is_shown(claim)) {
        *missing.entry(&claim.source).or_default() += 1;
    }
    if !missing.is_empty() {
        let said = missing
            .iter()
            .map(|(source, count)| format!("{source} ({count})"));
        page.paragraph(&format!(
            "Reports whose claims are not tested here, since {ABSENT}: {}.",
            escape(&said.collect::<Vec<_>>().join(", "))
        ));
    }
    page.end_section();
}

/// How many claims have each judgement.
fn counts(what: &str, claims: &[&Judged]) -> String {
    let order = [
        "reproduced",
        "reversed",
        "not reproduced",
        "undecided here",
        "not testable here",
    ];
    let told = order.iter().filter_map(|word| {
        let own = claims.iter().filter(|one| one.judgement.as_str() == *word);
        let count = own.count();
        (count > 0).then(|| format!("{count} {word}"))
    });
    let told: Vec<String> = told.collect();
    format!("Of the {what}: {}.", told.join(", "))
}

/// Ratios drawn from 1/RANGE to RANGE.
const RANGE: f64 = 32.0;

/// The published ratio and the one here, with its interval, on one scale.
fn drawn(claim: &Judged) -> String {
    let Some(published) = claim.published_ratio else {
        return "–".to_owned();
    };
    let place = |ratio: f64| {
        let share = ratio.max(f64::MIN_POSITIVE).ln() / RANGE.ln();
        50.0 + 46.0 * share.clamp(-1.0, 1.0)
    };
    let mut svg = format!(
        "<svg aria-hidden=\"true\"><line class=\"best\" x1=\"50%\" x2=\"50%\" y1=\"0\" y2=\"100%\"/>\
         <rect class=\"old\" x=\"{:.1}%\" y=\"25%\" width=\"9\" height=\"9\" transform=\"translate(-4.5)\"/>",
        place(published)
    );
    if let Some(here) = claim.verdicts.first().and_then(|verdict| verdict.ratio) {
        svg.push_str(&format!(
            "<line class=\"whisker\" x1=\"{:.1}%\" x2=\"{:.1}%\" y1=\"50%\" y2=\"50%\"/>\
             <circle class=\"new\" cx=\"{:.1}%\" cy=\"50%\" r=\"3.5\"/>",
            place(here.interval.low),
            place(here.interval.high),
            place(here.value)
        ));
    }
    svg.push_str("</svg>");
    svg
}

fn table(claims: &[&Judged], caption: &str) -> String {
    let mut rows = String::new();
    for claim in claims {
        let word = claim.judgement.as_str();
        let here: Vec<String> = claim
            .verdicts
            .iter()
            .filter_map(|verdict| {
                let found = verdict.ratio?;
                Some(format!(
                    "{} ({} … {}, {} blocks)",
                    ratio(found.value),
                    ratio(found.interval.low),
                    ratio(found.interval.high),
                    verdict.blocks
                ))
            })
            .collect();
        let note = if claim.note.is_empty() {
            String::new()
        } else {
            format!(" <span class=\"soft\">{}</span>", escape(&claim.note))
        };
        let reason = claim.judgement.reason();
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(" <span class=\"soft\">{}</span>", escape(reason))
        };
        rows.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}{}</td><td>{}{note}</td><td>{}</td><td class=\"overlay\">{}</td><td><span class=\"word {}\">{word}</span>{reason}</td></tr>\n",
            escape(&claim.source),
            escape(&claim.workload),
            escape(&claim.comparison),
            badge(claim.durability),
            escape(&claim.published),
            if here.is_empty() { "–".to_owned() } else { here.join("; ") },
            drawn(claim),
            word.replace(' ', "-"),
        ));
    }
    format!(
        "<div class=\"scroll\"><table class=\"sortable\"><caption>{caption}</caption><thead><tr><th scope=\"col\">Report</th><th scope=\"col\">Workload</th>\
         <th scope=\"col\">Comparison</th><th scope=\"col\">Published</th><th scope=\"col\">Ratio here</th><th scope=\"col\">Published □, here ●</th><th scope=\"col\">Judgement</th></tr></thead><tbody>{rows}</tbody></table></div>\n"
    )
}
