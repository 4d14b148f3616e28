//! Medians, ratios to the kernel and spreads; as a table, as JSON, and beside
//! the figures of an earlier run.

use super::suite::Sample;
use butterfs_lab::wakeup::WakeUp;
use serde_json::{Map, Value, json};

/// The report names ratios that fell by more than this.
const FALL: f64 = 0.15;
/// If the costs of wake-ups differ by more than this, figures of mounts differ,
/// too.
const OTHER_WAKE_UP: f64 = 1.5;

/// Facts that must agree before figures may be compared.
pub const PROCESSORS: &str = "processors";
pub const KERNEL: &str = "kernel";
pub const FILES: &str = "files of a step";
pub const LARGE: &str = "large file";
pub const VOLUMES: &str = "volumes";

/// Median of the repeats, and the range of the middle half of them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (count, half) = (values.len(), values.len() / 2);
        Self {
            low: values[count / 4],
            median: if count % 2 == 1 {
                values[half]
            } else {
                f64::midpoint(values[half - 1], values[half])
            },
            high: values[count - 1 - count / 4],
        }
    }

    /// Half of the spread in per cent.
    fn percent(self) -> f64 {
        (self.high - self.low) / 2.0 / self.median * 100.0
    }
}

/// All repeats of a subject.
pub struct Column {
    pub name: String,
    /// Its figures change with what waking a processor costs.
    pub wakes: bool,
    pub wake_up: WakeUp,
    pub repeats: Vec<Vec<Sample>>,
    /// Greatest memory of its server, in MiB.
    pub peak: Option<f64>,
}

impl Column {
    fn values(&self, row: &str) -> Vec<f64> {
        let all = self.repeats.iter().flatten();
        let own = all.filter(|sample| sample.row.name == row);
        own.map(|sample| sample.value).collect()
    }

    fn cpu(&self, row: &str) -> Option<f64> {
        let all = self.repeats.iter().flatten();
        let own = all.filter(|sample| sample.row.name == row);
        let cpu: Vec<f64> = own.filter_map(|sample| sample.cpu).collect();
        (!cpu.is_empty()).then(|| Spread::of(cpu).median)
    }
}

/// A whole run. The other columns are compared with the first.
pub struct Run {
    pub columns: Vec<Column>,
    /// Facts of the machine and the run.
    pub facts: Vec<(&'static str, String)>,
}

/// A subject's figure in a row.
struct Figure {
    value: Spread,
    /// Above 1 is better than the first column. It is the ratio of repeats side
    /// by side.
    ratio: Option<Spread>,
    cpu: Option<f64>,
}

impl Run {
    /// All rows, in order: name, unit, and whether less is better.
    fn rows(&self) -> Vec<super::suite::Row> {
        let mut rows = Vec::new();
        for sample in self.columns.iter().flat_map(|one| &one.repeats).flatten() {
            if !rows.contains(&sample.row) {
                rows.push(sample.row);
            }
        }
        rows
    }

    fn figure(&self, column: &Column, row: super::suite::Row) -> Option<Figure> {
        let (own, first) = (column.values(row.name), self.columns[0].values(row.name));
        if own.is_empty() {
            return None;
        }
        let better = |(own, first): (&f64, &f64)| {
            if row.is_time {
                first / own
            } else {
                own / first
            }
        };
        let ratios: Vec<f64> = own.iter().zip(&first).map(better).collect();
        let is_first = std::ptr::eq(column, &self.columns[0]);
        Some(Figure {
            value: Spread::of(own),
            ratio: (!is_first && !ratios.is_empty()).then(|| Spread::of(ratios)),
            cpu: column.cpu(row.name),
        })
    }

    /// The tables.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, fact) in &self.facts {
            text += &format!("- {name}: {fact}\n");
        }
        for column in self.columns.iter().filter(|one| one.wakes) {
            text += &format!(
                "- waking a processor, {}: {}\n",
                column.name, column.wake_up
            );
        }
        for column in &self.columns {
            if let Some(peak) = column.peak {
                text += &format!(
                    "- peak memory of the server, {}: {peak:.0} MiB\n",
                    column.name
                );
            }
        }
        let heads = |each: fn(&str, bool) -> String| -> String {
            let columns = self.columns.iter().enumerate();
            columns.map(|(at, one)| each(&one.name, at > 0)).collect()
        };
        text += &format!(
            "\n| step | unit |{}\n|---|---|{}\n",
            heads(|name, ratio| format!(" {name} |{}", if ratio { " ratio |" } else { "" })),
            heads(|_, ratio| if ratio { "---|---|" } else { "---|" }.to_owned())
        );
        for row in self.rows() {
            text += &format!("| {} | {} |", row.name, row.unit);
            for (at, column) in self.columns.iter().enumerate() {
                text += &match self.figure(column, row) {
                    Some(figure) => format!(
                        " {} ±{:.0} % |{}",
                        shown(figure.value.median),
                        figure.value.percent(),
                        match figure.ratio {
                            Some(ratio) => format!(" {:.2} |", ratio.median),
                            None => String::new(),
                        }
                    ),
                    None => if at > 0 { " – | – |" } else { " – |" }.to_owned(),
                };
            }
            text += "\n";
        }
        text += &format!(
            "\nCPU of the whole machine, polling of idle processors included, in µs for each operation \
             (of a file, a MiB, a read):\n\n| step |{}\n|---|{}\n",
            heads(|name, _| format!(" {name} |")),
            heads(|_, _| "---|".to_owned())
        );
        for row in self.rows() {
            let all: Vec<Option<f64>> = self.columns.iter().map(|one| one.cpu(row.name)).collect();
            if all.iter().any(Option::is_some) {
                let cells = all.into_iter().map(|cpu| match cpu {
                    Some(cpu) => format!(" {cpu:.1} |"),
                    None => " – |".to_owned(),
                });
                text += &format!("| {} |{}\n", row.name, cells.collect::<String>());
            }
        }
        text
    }

    /// What the next run is compared with.
    pub fn json(&self) -> Value {
        let mut figures = Vec::new();
        for row in self.rows() {
            for column in &self.columns {
                let Some(figure) = self.figure(column, row) else {
                    continue;
                };
                let spread = |one: Spread| {
                    json!({
                        "low": rounded(one.low),
                        "median": rounded(one.median),
                        "high": rounded(one.high),
                    })
                };
                figures.push(json!({
                    "step": row.name,
                    "unit": row.unit,
                    "subject": column.name,
                    "value": spread(figure.value),
                    "ratio": figure.ratio.map(spread),
                    "cpu_us": figure.cpu.map(rounded),
                }));
            }
        }
        let subjects = self.columns.iter().map(|one| {
            let cost = one
                .wake_up
                .cost
                .map(|cost| rounded(cost.as_secs_f64() * 1e6));
            let fact = json!({
                "repeats": one.repeats.len(),
                "wake_up_us": if one.wakes { cost } else { None },
                "server_peak_mib": one.peak.map(rounded),
            });
            (one.name.clone(), fact)
        });
        let facts = self.facts.iter();
        let facts: Map<String, Value> = facts
            .map(|(name, fact)| ((*name).to_owned(), json!(fact)))
            .collect();
        json!({
            "facts": facts,
            "subjects": subjects.collect::<Map<String, Value>>(),
            "figures": figures,
        })
    }
}

/// Four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// A few digits.
fn shown(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Names the ratios that fell from one run to the next by more than 15 % and
/// beyond both spreads.
pub fn compare(old: &Value, new: &Value) -> String {
    let number = |value: &Value, name: &str| value[name].as_f64();
    let empty = Vec::new();
    let olds = old["figures"].as_array().unwrap_or(&empty);
    let mut fallen = Vec::new();
    let mut compared = 0;
    for figure in new["figures"].as_array().unwrap_or(&empty) {
        let same =
            |one: &&Value| one["step"] == figure["step"] && one["subject"] == figure["subject"];
        let Some(before) = olds.iter().find(same) else {
            continue;
        };
        let (now, then) = (&figure["ratio"], &before["ratio"]);
        let all = (
            number(now, "median"),
            number(now, "high"),
            number(then, "median"),
            number(then, "low"),
        );
        let (Some(now), Some(high), Some(then), Some(low)) = all else {
            continue;
        };
        compared += 1;
        if now < then * (1.0 - FALL) && high < low {
            let subject = figure["subject"].as_str().unwrap_or_default();
            let step = figure["step"].as_str().unwrap_or_default();
            let wake_up = |run: &Value| number(&run["subjects"][subject], "wake_up_us");
            let remark = match (wake_up(old), wake_up(new)) {
                (Some(old), Some(new))
                    if new / old > OTHER_WAKE_UP || old / new > OTHER_WAKE_UP =>
                {
                    format!(
                        "; but waking a processor took {old:.1} µs then and takes {new:.1} µs now"
                    )
                }
                _ => String::new(),
            };
            let percent = (1.0 - now / then) * 100.0;
            fallen.push(format!(
                "- {subject}, {step}: {now:.2} of the kernel, {then:.2} before (-{percent:.0} %){remark}\n"
            ));
        }
    }
    if compared == 0 {
        return "No earlier figures to compare with.\n".to_owned();
    }
    let differ = [PROCESSORS, KERNEL, FILES, LARGE, VOLUMES]
        .into_iter()
        .filter_map(|name| {
            let (old, new) = (&old["facts"][name], &new["facts"][name]);
            let said = |fact: &Value| fact.as_str().unwrap_or("not known").to_owned();
            (old != new).then(|| format!("{name}: {} then, {} now", said(old), said(new)))
        });
    let differ: Vec<String> = differ.collect();
    let differ = match differ.as_slice() {
        [] => String::new(),
        facts => format!("\nThe runs are not alike: {}.\n", facts.join("; ")),
    };
    if fallen.is_empty() {
        return format!(
            "None of {compared} ratios fell by more than 15 % since the last figures.\n{differ}"
        );
    }
    format!(
        "Ratios that fell by more than 15 % since the last figures, beyond the spread ({} of {compared}):\n\n{}{differ}",
        fallen.len(),
        fallen.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::super::suite::Row;
    use super::*;

    fn run(rates: &[f64], wake_up_us: u64) -> Run {
        let row = Row {
            name: "create",
            unit: "files/s",
            is_time: false,
        };
        let column = |name: &str, wakes, rates: &[f64]| Column {
            name: name.to_owned(),
            wakes,
            wake_up: WakeUp {
                cost: Some(std::time::Duration::from_micros(wake_up_us)),
                poll: None,
            },
            repeats: rates
                .iter()
                .map(|&value| {
                    let cpu = Some(1.0);
                    vec![Sample { row, value, cpu }]
                })
                .collect(),
            peak: None,
        };
        Run {
            columns: vec![
                column("kernel", false, &vec![1000.0; rates.len()]),
                column("fuse", true, rates),
            ],
            facts: Vec::new(),
        }
    }

    #[test]
    fn a_spread_is_the_middle_half() {
        let five = Spread::of(vec![5.0, 1.0, 2.0, 4.0, 3.0]);
        let expected = Spread {
            low: 2.0,
            median: 3.0,
            high: 4.0,
        };
        assert_eq!(five, expected);
        assert_eq!(Spread::of(vec![1.0, 2.0]).median, 1.5);
        let one = Spread::of(vec![7.0]);
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
    }

    #[test]
    fn only_what_fell_beyond_the_spread_is_named() {
        let old = run(&[500.0, 510.0, 490.0, 505.0, 495.0], 40).json();
        let worse = run(&[400.0, 405.0, 395.0, 402.0, 398.0], 40).json();
        let said = compare(&old, &worse);
        assert!(
            said.contains("fuse, create: 0.40 of the kernel, 0.50 before (-20 %)\n"),
            "{said}"
        );
        // None of these is a fall: a tenth less, a wide spread, a better
        // figure.
        for rates in [[450.0; 5], [300.0, 390.0, 400.0, 500.0, 510.0], [900.0; 5]] {
            let said = compare(&old, &run(&rates, 40).json());
            assert!(said.starts_with("None of 1 ratios"), "{said}");
        }
        let mut other = run(&[500.0; 5], 40);
        other.facts.push((FILES, "7".to_owned()));
        let said = compare(&old, &other.json());
        assert!(
            said.contains("not alike: files of a step: not known then, 7 now"),
            "{said}"
        );
        let said = compare(&old, &run(&[100.0; 5], 4).json());
        assert!(
            said.contains("took 40.0 µs then and takes 4.0 µs now"),
            "{said}"
        );
        assert!(compare(&json!({}), &old).starts_with("No earlier"));
    }

    #[test]
    fn tables_have_every_column() {
        let text = run(&[500.0; 3], 40).markdown();
        assert!(text.contains("| step | unit | kernel | fuse | ratio |\n|---|---|---|---|---|\n"));
        assert!(
            text.contains("| create | files/s | 1000 ±0 % | 500 ±0 % | 0.50 |\n"),
            "{text}"
        );
        assert!(
            text.contains("- waking a processor, fuse: 40.0 µs"),
            "{text}"
        );
    }
}
