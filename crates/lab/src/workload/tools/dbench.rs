//! dbench 4: the operations of file server clients, by a load file.

use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{command, line_of, run, version};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::writes_zeros;
use crate::model::Series;
use std::time::Duration;

/// dbench.
pub(in super::super) struct Dbench;

impl Workload for Dbench {
    fn name(&self) -> &'static str {
        "dbench"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("dbench", "dbench")]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("clients", "1", "client processes"),
            ("time", "60", "seconds"),
            (
                "loadfile",
                "/usr/share/dbench/client.txt",
                "the load file that the clients play",
            ),
            ("fsync", "no", "an fsync after every write (-F)"),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        let clients = given.number("clients", 1, 1000)?;
        given.is_yes("fsync")?;
        Ok(Demand {
            // The load file of Debian leaves 24 MB for each client at most.
            space: clients * (32 << 20),
            memory: clients * (8 << 20),
            time: Duration::from_secs(given.number("time", 1, 86_400)? + 5),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let given = Given::new(self, parameters)?;
        let clients = given.number("clients", 1, 1000)?;
        let time = given.number("time", 1, 86_400)?;
        let mut dbench = command("dbench", None)?;
        dbench.args(["-t", &time.to_string(), "-c", given.text("loadfile"), "-D"]);
        if given.is_yes("fsync")? {
            dbench.arg("-F");
        }
        ground.next_phase("clients")?;
        dbench.arg(ground.directory()).arg(clients.to_string());
        let output = run("dbench", &mut dbench, ground)?;
        let mut figures = parse(&output.text)?;
        figures.fact("tool", version("dbench", &["--help"]));
        figures.fact("command", line_of(&dbench));
        figures.mark(writes_zeros("dbench", "player"));
        Ok(figures)
    }
}

/// Reads what dbench prints.
fn parse(text: &str) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut average = Vec::new();
    let mut operations = 0;
    let mut is_table = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            [_, _, rate, "MB/sec", "execute", second, "sec", ..] => {
                let (Ok(rate), Ok(second)) = (rate.parse::<f64>(), second.parse::<usize>()) else {
                    return Err(format!("dbench printed a line without figures: {line}"));
                };
                average.push((second, rate));
            }
            ["Operation", "Count", ..] => is_table = true,
            [operation, count, mean, most] if is_table => {
                let (Ok(count), Ok(mean), Ok(most)) = (
                    count.parse::<u64>(),
                    mean.parse::<f64>(),
                    most.parse::<f64>(),
                ) else {
                    return Err(format!("dbench printed a line without figures: {line}"));
                };
                operations += count;
                figures.add(less(&format!("{operation} mean latency"), "s", mean / 1e3));
                figures.add(less(
                    &format!("{operation} longest latency"),
                    "s",
                    most / 1e3,
                ));
            }
            ["Throughput", rate, "MB/sec", .., longest, "ms"] => {
                let rate: f64 = rate.parse().map_err(|_| format!("dbench printed {line}"))?;
                let throughput = more("throughput", "bytes/s", rate * 1e6);
                figures.metrics.insert(0, throughput.headline());
                let longest = longest.strip_prefix("max_latency=").unwrap_or(longest);
                if let Ok(longest) = longest.parse::<f64>() {
                    figures.add(less("longest latency", "s", longest / 1e3));
                }
            }
            _ => {}
        }
    }
    if !figures.metrics.iter().any(|one| one.name == "throughput") {
        return Err(format!("dbench printed no throughput: {text}"));
    }
    // It prints the mean since the start, so the work of a second is the
    // difference of two sums.
    let mut values = Vec::new();
    let mut sum = 0.0;
    for (second, rate) in average {
        if second != values.len() + 1 {
            continue;
        }
        let total = rate * second as f64;
        values.push((total - sum).max(0.0) * 1e6);
        sum = total;
    }
    if !values.is_empty() {
        figures.series.push(Series {
            name: "throughput".to_owned(),
            unit: "bytes/s".to_owned(),
            step: 1.0,
            values,
        });
    }
    if operations > 0 {
        figures.operations = Some(operations);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_dbench_is_understood() {
        let figures = parse(include_str!("golden/dbench.txt")).unwrap();
        let first = &figures.metrics[0];
        assert_eq!((first.name.as_str(), first.headline), ("throughput", true));
        assert!((first.value - 457.903e6).abs() < 1.0);
        let value = |name: &str| figures.value(name);
        assert!((value("Flush mean latency") - 0.000_005).abs() < 1e-12);
        assert!((value("longest latency") - 0.032_128).abs() < 1e-12);
        let series = &figures.series[0].values;
        assert_eq!(series.len(), 2);
        assert!((series[0] / 1e6 - 458.39).abs() < 1e-6);
        assert!((series[1] / 1e6 - 457.41).abs() < 1e-6);
        assert_eq!(figures.operations, Some(251_245));
    }

    #[test]
    fn a_dbench_that_says_nothing_is_an_error() {
        assert!(parse("open ./clients failed for handle 1").is_err());
    }
}
