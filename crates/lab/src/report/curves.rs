//! Throughput over concurrency with fits and bands.

use super::bars::badge;
use super::chart::{Axis, Chart, POINTS_MIN, Spacing, legend};
use super::digest::{Cell, Digest, Experiment, MetricKind, durability_label, label_of, weakest};
use super::number::{Scale, ratio, significant};
use super::page::{Page, escape};
use crate::model::{Better, Durability};
use crate::published::{CONCURRENCY, SYSTEM_AXES};
use crate::stats::{Fit, Law, Point, PowerLaw, Usl, fit_power_law, fit_usl};
use std::collections::BTreeMap;

/// What of the curves is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All systems in one chart.
    Together,
    /// Each by itself, with its fits.
    Fits,
}

/// One system over all levels, on one condition.
struct Curve<'a> {
    style: usize,
    system: &'a str,
    /// Cells by their level.
    cells: Vec<(f64, &'a Cell<'a>)>,
}

pub(super) fn write(experiment: &Experiment<'_>, digest: &Digest<'_>, page: &mut Page) {
    each(experiment, digest, Part::Together, page);
}

/// The fits of each curve.
pub(super) fn fits(experiment: &Experiment<'_>, digest: &Digest<'_>, page: &mut Page) {
    each(experiment, digest, Part::Fits, page);
}

fn each(experiment: &Experiment<'_>, digest: &Digest<'_>, part: Part, page: &mut Page) {
    let mut groups: BTreeMap<String, BTreeMap<usize, Curve<'_>>> = BTreeMap::new();
    for cell in &experiment.cells {
        let level = cell
            .key
            .0
            .get(CONCURRENCY)
            .and_then(|v| v.parse::<f64>().ok());
        let Some(level) = level.filter(|level| *level >= 1.0) else {
            continue;
        };
        let condition = label_of(cell.key, |axis| {
            axis != CONCURRENCY && !SYSTEM_AXES.contains(&axis)
        });
        groups
            .entry(condition)
            .or_default()
            .entry(cell.system_index)
            .or_insert_with(|| Curve {
                style: cell.system_index,
                system: &cell.system,
                cells: Vec::new(),
            })
            .cells
            .push((level, cell));
    }
    for metric in experiment
        .metrics
        .iter()
        .filter(|m| m.headline && m.better == Better::Higher)
    {
        for (condition, curves) in &mut groups {
            for curve in curves.values_mut() {
                curve.cells.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            let curves: Vec<&Curve<'_>> = curves
                .values()
                .filter(|curve| curve.medians(metric).len() >= POINTS_MIN)
                .collect();
            if !curves.is_empty() {
                group((metric, condition, part), &curves, digest, page);
            }
        }
    }
}

impl Curve<'_> {
    fn durability(&self) -> Durability {
        weakest(self.cells.iter().map(|(_, cell)| cell.durability))
    }

    fn medians(&self, metric: &MetricKind) -> Vec<(f64, f64, (f64, f64))> {
        self.cells
            .iter()
            .filter_map(|(level, cell)| {
                let median = cell.median(&metric.name)?;
                Some((
                    *level,
                    median.value,
                    (median.interval.low, median.interval.high),
                ))
            })
            .collect()
    }

    fn points(&self, metric: &MetricKind) -> Vec<Point> {
        self.cells
            .iter()
            .flat_map(|(level, cell)| {
                cell.values(&metric.name)
                    .into_iter()
                    .filter(|(_, value)| *value > 0.0)
                    .map(|(block, throughput)| Point {
                        block,
                        concurrency: *level,
                        throughput,
                    })
            })
            .collect()
    }
}

fn group(
    (metric, condition, part): (&MetricKind, &str, Part),
    curves: &[&Curve<'_>],
    digest: &Digest<'_>,
    page: &mut Page,
) {
    let condition = if condition == "default" {
        ""
    } else {
        condition
    };
    let suffix = if condition.is_empty() {
        String::new()
    } else {
        format!(" ({condition})")
    };
    let all: Vec<(f64, f64, (f64, f64))> = curves.iter().flat_map(|c| c.medians(metric)).collect();
    let largest = all.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let scale = Scale::of(&metric.unit, largest);
    let factor = scale.divide(1.0);
    let y = Axis::holding(
        &format!("{}, {}", metric.name, scale.unit),
        Spacing::Linear,
        all.iter()
            .flat_map(|(_, value, (_, high))| [value * factor, high * factor]),
    );
    let mut levels: Vec<f64> = all.iter().map(|(level, ..)| *level).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    let x = Axis::holding(
        "processes, threads or clients",
        Spacing::Logarithmic,
        levels.iter().copied(),
    )
    .with_ticks(thinned(&levels));
    match part {
        Part::Together => together((metric, &suffix), curves, (x, y), factor, page),
        Part::Fits => fitted_each((metric, &suffix, &scale), curves, (x, y), digest, page),
    }
}

fn together(
    (metric, suffix): (&MetricKind, &str),
    curves: &[&Curve<'_>],
    (x, y): (Axis, Axis),
    factor: f64,
    page: &mut Page,
) {
    page.heading(&format!("{} over concurrency{suffix}", metric.name));
    let systems: Vec<&str> = curves.iter().map(|curve| curve.system).collect();
    let mut together = Chart::with_names(x, y, &systems);
    for curve in curves {
        let medians = curve.medians(metric);
        let line: Vec<(f64, f64)> = medians
            .iter()
            .map(|(level, value, _)| (*level, value * factor))
            .collect();
        together.course(&line, curve.style, "course");
        for (level, value, interval) in &medians {
            together.point(
                *level,
                value * factor,
                (interval.0 * factor, interval.1 * factor),
                curve.style,
            );
        }
        if let Some(end) = line.last() {
            together.name(*end, curve.system, curve.style);
        }
    }
    let names: Vec<(usize, &str, Durability)> = curves
        .iter()
        .map(|curve| (curve.style, curve.system, curve.durability()))
        .collect();
    page.push(&format!(
        "<figure class=\"wide\">{}<figcaption>Medians with their confidence intervals.</figcaption>{}</figure>\n",
        together.finish(&format!("{} over concurrency, all systems; the table below has the figures", metric.name)),
        legend(&names)
    ));
}

fn fitted_each(
    (metric, suffix, scale): (&MetricKind, &str, &Scale),
    curves: &[&Curve<'_>],
    (x, y): (Axis, Axis),
    digest: &Digest<'_>,
    page: &mut Page,
) {
    let factor = scale.divide(1.0);
    let mut rows = String::new();
    page.heading(&format!("{} over concurrency{suffix}: fits", metric.name));
    page.push("<p class=\"soft\">Full line: Universal Scalability Law with its 95 % band (blocks resampled); dashed: power law with its band between dotted lines.</p><div class=\"charts\">\n");
    for curve in curves {
        let mut chart = Chart::new(x.clone(), y.clone());
        fitted(curve, metric, factor, digest.seed(), &mut chart, &mut rows);
        page.push(&format!(
            "<figure data-durability=\"{}\">{}<figcaption>{}{}</figcaption></figure>\n",
            durability_label(curve.durability()),
            chart.finish(&format!(
                "{}: {} over concurrency with fits",
                curve.system, metric.name
            )),
            escape(curve.system),
            badge(curve.durability())
        ));
    }
    page.push(&format!(
        "</div>\n<div class=\"scroll\"><table><caption>Fits of {}{}: X(N) = λN ÷ (1 + σ(N − 1) + κN(N − 1)), and a·N<sup>b</sup></caption>\
         <thead><tr><th scope=\"col\">System</th><th scope=\"col\" class=\"number\">λ, {unit}</th><th scope=\"col\" class=\"number\">contention σ</th>\
         <th scope=\"col\" class=\"number\">coherency κ</th><th scope=\"col\" class=\"number\">peak at</th><th scope=\"col\" class=\"number\">R²</th>\
         <th scope=\"col\" class=\"number\">a, {unit}</th><th scope=\"col\" class=\"number\">b</th><th scope=\"col\" class=\"number\">R²</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>\n",
        escape(&metric.name),
        escape(suffix),
        unit = escape(&scale.unit),
    ));
}

/// Labels of levels that do not run into each other.
fn thinned(levels: &[f64]) -> Vec<(f64, String)> {
    let mut kept: Vec<(f64, String)> = Vec::new();
    for level in levels {
        let room = kept.last().is_none_or(|(last, _)| level / last > 1.12);
        if room {
            kept.push((*level, format!("{level}")));
        }
    }
    kept
}

fn fitted(
    curve: &Curve<'_>,
    metric: &MetricKind,
    factor: f64,
    seed: u64,
    chart: &mut Chart,
    rows: &mut String,
) {
    let points = curve.points(metric);
    let (low, high) = points
        .iter()
        .fold((f64::INFINITY, 1.0_f64), |(low, high), p| {
            (low.min(p.concurrency), high.max(p.concurrency))
        });
    let grid: Vec<f64> = (0..=32)
        .map(|step| low * (high / low).powf(f64::from(step) / 32.0))
        .collect();
    let usl = fit_usl(&points, &grid, seed);
    let power = fit_power_law(&points, &grid, seed);
    if let Some(fit) = &usl {
        draw_band(fit, factor, curve.style, chart);
        chart.course(&line(&fit.law, &grid, factor), curve.style, "fit solid");
    }
    if let Some(fit) = &power {
        for edge in edges(fit, factor) {
            chart.course(&edge, curve.style, "band2 solid");
        }
        chart.course(&line(&fit.law, &grid, factor), curve.style, "power");
    }
    for (level, value, interval) in curve.medians(metric) {
        chart.point(
            level,
            value * factor,
            (interval.0 * factor, interval.1 * factor),
            curve.style,
        );
    }
    let cell = |text: Option<String>| {
        format!(
            "<td class=\"number\">{}</td>",
            text.unwrap_or_else(|| "–".to_owned())
        )
    };
    let u = usl.as_ref();
    let p = power.as_ref();
    let peak = u.map(|fit: &Fit<Usl>| {
        fit.law
            .peak()
            .map_or_else(|| "none".to_owned(), significant)
    });
    let columns = [
        u.map(|fit| significant(fit.law.lambda * factor)),
        u.map(|fit| significant(fit.law.sigma)),
        u.map(|fit| significant(fit.law.kappa)),
        peak,
        u.map(|fit| ratio(fit.r_squared)),
        p.map(|fit: &Fit<PowerLaw>| significant(fit.law.a * factor)),
        p.map(|fit| significant(fit.law.b)),
        p.map(|fit| ratio(fit.r_squared)),
    ];
    rows.push_str(&format!(
        "<tr data-durability=\"{}\"><th scope=\"row\">{}{}</th>{}</tr>\n",
        durability_label(curve.durability()),
        escape(curve.system),
        badge(curve.durability()),
        columns.map(cell).concat()
    ));
}

fn line(law: &impl Law, grid: &[f64], factor: f64) -> Vec<(f64, f64)> {
    grid.iter().map(|n| (*n, law.at(*n) * factor)).collect()
}

fn draw_band<L>(fit: &Fit<L>, factor: f64, style: usize, chart: &mut Chart) {
    if let Some(band) = &fit.band {
        let edges: Vec<(f64, f64, f64)> = band
            .iter()
            .map(|p| {
                (
                    p.concurrency,
                    p.interval.low * factor,
                    p.interval.high * factor,
                )
            })
            .collect();
        chart.band(&edges, style);
    }
}

fn edges<L>(fit: &Fit<L>, factor: f64) -> Vec<Vec<(f64, f64)>> {
    let Some(band) = &fit.band else {
        return Vec::new();
    };
    let low = band
        .iter()
        .map(|p| (p.concurrency, p.interval.low * factor));
    let high = band
        .iter()
        .map(|p| (p.concurrency, p.interval.high * factor));
    vec![low.collect(), high.collect()]
}
