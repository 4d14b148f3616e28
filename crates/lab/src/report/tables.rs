//! Tables of all figures, as in bonnie-2012; they can be sorted and filtered.

use super::bars::{badge, losses, word};
use super::digest::{Digest, Experiment, MetricKind, durability_label};
use super::number::Scale;
use super::page::{Page, escape};
use crate::model::{Better, Durability};
use crate::stats::{Estimate, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Figures beside one another in a table.
const COLUMNS_MAX: usize = 7;

pub(super) fn write(experiment: &Experiment<'_>, digest: &Digest<'_>, page: &mut Page) {
    let (costs, figures): (Vec<&MetricKind>, Vec<&MetricKind>) = experiment
        .metrics
        .iter()
        .partition(|metric| is_cost(metric));
    page.heading("All cells");
    tables(
        experiment,
        digest,
        &figures,
        "Medians over the blocks with their confidence intervals, and the verdict against the reference of the same condition",
        page,
    );
    if !costs.is_empty() {
        page.heading("What it cost");
        tables(
            experiment,
            digest,
            &costs,
            "CPU of the whole machine less idle, per operation and per GiB; amplifications: device bytes, or space, ÷ bytes of the application",
            page,
        );
    }
    effective(experiment, page);
}

/// CPU and amplifications.
fn is_cost(metric: &MetricKind) -> bool {
    let name = metric.name.to_lowercase();
    metric.unit.starts_with("CPU") || name.contains("cpu") || name.contains("amplification")
}

/// Medians of a metric, by place of the cell.
type Medians = BTreeMap<usize, Estimate>;
type Column<'m> = (&'m MetricKind, Medians);

/// A table for each set of cells that have the same metrics, not wider than a
/// page of paper. Cells without any figure stand in the first.
fn tables(
    experiment: &Experiment<'_>,
    digest: &Digest<'_>,
    metrics: &[&MetricKind],
    caption: &str,
    page: &mut Page,
) {
    let all = 0..experiment.cells.len();
    let mut groups: Vec<(BTreeSet<usize>, Vec<Column<'_>>)> = Vec::new();
    let mut without: BTreeSet<usize> = all.clone().collect();
    for metric in metrics {
        let medians: Medians = all
            .clone()
            .filter_map(|index| Some((index, experiment.cells[index].median(&metric.name)?)))
            .collect();
        let cells: BTreeSet<usize> = medians.keys().copied().collect();
        without.retain(|index| !cells.contains(index));
        match groups.iter_mut().find(|(of, _)| *of == cells) {
            Some((_, columns)) => columns.push((metric, medians)),
            None => groups.push((cells, vec![(metric, medians)])),
        }
    }
    if let Some((cells, _)) = groups.first_mut() {
        cells.append(&mut without);
    }
    for (cells, columns) in &groups {
        for columns in columns.chunks(COLUMNS_MAX) {
            table(experiment, digest, (cells, columns), caption, page);
        }
    }
}

fn table(
    experiment: &Experiment<'_>,
    digest: &Digest<'_>,
    (shown, metrics): (&BTreeSet<usize>, &[Column<'_>]),
    caption: &str,
    page: &mut Page,
) {
    let mut heads = String::new();
    let mut columns = Vec::new();
    for (metric, medians) in metrics {
        let largest = medians.values().map(|m| m.value).fold(0.0, f64::max);
        let scale = Scale::of(&metric.unit, largest);
        let way = match metric.better {
            Better::Higher => "more is better",
            Better::Lower => "less is better",
            Better::Neither => "informs",
        };
        heads.push_str(&format!(
            "<th scope=\"col\" class=\"number\" title=\"{way}\">{}, {}</th>",
            escape(&metric.name),
            escape(&scale.unit)
        ));
        let mut verdicts: BTreeMap<usize, Verdict> = BTreeMap::new();
        if metric.better != Better::Neither {
            for slice in &experiment.slices {
                verdicts.extend(experiment.verdicts(slice, metric, digest.seed()));
            }
        }
        columns.push((medians, scale, verdicts));
    }
    let has_condition = experiment.slices.len() > 1;
    let mut rows = String::new();
    for (index, cell) in experiment.cells.iter().enumerate() {
        if !shown.contains(&index) {
            continue;
        }
        let done = cell.done().count();
        let promise = match cell.durability {
            Durability::Full => "full".to_owned(),
            other => badge(other),
        };
        let condition = if has_condition {
            format!("<td>{}</td>", escape(&cell.condition))
        } else {
            String::new()
        };
        let lost = if done == cell.passes.len() {
            String::new()
        } else {
            format!("<br>{}", losses(cell))
        };
        let lossy = if lost.is_empty() {
            ""
        } else {
            " class=\"lossy\""
        };
        rows.push_str(&format!(
            "<tr data-durability=\"{}\"><th scope=\"row\">{}</th>{condition}<td>{promise}</td><td{lossy} data-value=\"{done}\">{done} of {}{lost}</td>",
            durability_label(cell.durability),
            escape(&cell.system),
            cell.passes.len()
        ));
        for (medians, scale, verdicts) in &columns {
            rows.push_str(&figure(
                medians.get(&index),
                scale,
                verdicts
                    .get(&index)
                    .map(|verdict| word(verdict, cell.durability)),
            ));
        }
        rows.push_str("</tr>\n");
    }
    let condition = if has_condition {
        "<th scope=\"col\">Condition</th>"
    } else {
        ""
    };
    page.push(&format!(
        "<div class=\"scroll\"><table class=\"sortable wide-table\"><caption>{}</caption><thead><tr><th scope=\"col\">System</th>{condition}\
         <th scope=\"col\">Promise</th><th scope=\"col\">Passes</th>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>\n",
        escape(caption)
    ));
}

fn figure(median: Option<&Estimate>, scale: &Scale, word: Option<String>) -> String {
    let Some(median) = median else {
        return "<td class=\"number\" data-value=\"\">–</td>".to_owned();
    };
    let range = if median.interval.coverage > 0.0 {
        format!(
            "<span class=\"range\">{} … {} ({:.0} %)</span>",
            scale.show(median.interval.low),
            scale.show(median.interval.high),
            (median.interval.coverage * 100.0).floor()
        )
    } else {
        String::new()
    };
    format!(
        "<td class=\"number\" data-value=\"{}\">{}{range}{}</td>",
        median.value,
        scale.show(median.value),
        word.unwrap_or_default()
    )
}

/// Requested and effective values, if something was requested or they differ.
fn effective(experiment: &Experiment<'_>, page: &mut Page) {
    let mut rows = String::new();
    for cell in &experiment.cells {
        let mut seen = Vec::new();
        for pass in &cell.passes {
            for fact in &pass.effective {
                if seen.contains(&fact) {
                    continue;
                }
                seen.push(fact);
                rows.push_str(&format!(
                    "<tr data-durability=\"{}\"><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    durability_label(cell.durability),
                    escape(&cell.name()),
                    badge(cell.durability),
                    escape(&fact.name),
                    if fact.requested.is_empty() { "–".to_owned() } else { escape(&fact.requested) },
                    escape(&fact.effective),
                    if fact.agrees { "agrees" } else { "<strong>differs</strong>" }
                ));
            }
            for check in pass.integrity.iter().filter(|check| !check.passed) {
                rows.push_str(&format!(
                    "<tr><th scope=\"row\">{}, block {}</th><td>{}</td><td>passes</td><td>{}</td><td><strong>failed</strong></td></tr>\n",
                    escape(&cell.name()),
                    pass.block,
                    escape(&check.check),
                    escape(&check.detail)
                ));
            }
        }
    }
    if rows.is_empty() {
        return;
    }
    page.push(&format!(
        "<details><summary>Requested and effective; checks that failed</summary><div class=\"scroll\"><table class=\"sortable\">\
         <caption>What was asked for and what the machine says it was</caption><thead><tr><th scope=\"col\">Cell</th><th scope=\"col\">Property</th>\
         <th scope=\"col\">Requested</th><th scope=\"col\">Effective</th><th scope=\"col\">Agreement</th></tr></thead><tbody>{rows}</tbody></table></div></details>\n"
    ));
}
