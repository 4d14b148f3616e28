//! bonnie++ 2: one large file, then many small ones.

use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{command, line_of, run};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::{sync_scope, writes_zeros};
use std::time::Duration;

/// bonnie++.
pub(in super::super) struct Bonnie;

/// Place of a figure in the line, its name, and whether KiB/s or a count per
/// second; the share of a CPU follows each.
const FIGURES: &[(usize, &str, Unit)] = &[
    (9, "sequential output per char", Unit::Kibibytes),
    (11, "sequential output block", Unit::Kibibytes),
    (13, "rewrite", Unit::Kibibytes),
    (15, "sequential input per char", Unit::Kibibytes),
    (17, "sequential input block", Unit::Kibibytes),
    (19, "seeks", Unit::Operations),
    (26, "sequential create", Unit::Operations),
    (28, "sequential stat", Unit::Operations),
    (30, "sequential delete", Unit::Operations),
    (32, "random create", Unit::Operations),
    (34, "random stat", Unit::Operations),
    (36, "random delete", Unit::Operations),
];

/// The longest latency of each, in the same order.
const LATENCIES: usize = 38;

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    Kibibytes,
    Operations,
}

impl Workload for Bonnie {
    fn name(&self) -> &'static str {
        "bonnie"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("bonnie++", "bonnie++"), ("cc", "gcc")]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            (
                "size",
                "2g",
                "bytes of the large file; 0 leaves that test out",
            ),
            ("chunk", "8k", "bytes of an operation on it"),
            (
                "files",
                "64",
                "units of 1024 small files; 0 leaves that test out",
            ),
            ("file-size", "0", "bytes of a small file"),
            ("directories", "1", "directories of the small files"),
            (
                "per-char",
                "yes",
                "the tests that write and read single bytes",
            ),
            ("direct", "no", "O_DIRECT for the large file (-D)"),
            sync_scope::PARAMETER,
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        let size = given.bytes("size", 0, 1 << 44)?;
        let files = given.number("files", 0, 1 << 20)? * 1024;
        let each = given.bytes("file-size", 0, 1 << 30)?;
        given.bytes("chunk", 256, 1 << 20)?;
        given.number("directories", 1, 100_000)?;
        given.is_yes("direct")?;
        sync_scope::is_machine(&given)?;
        let characters = u64::from(given.is_yes("per-char")?);
        if size == 0 && files == 0 {
            return Err("bonnie: size and files are both 0, nothing is left".to_owned());
        }
        if size > 0 && size < 32 << 20 {
            return Err("bonnie: size is less than 32m, which the tool cannot time".to_owned());
        }
        Ok(Demand {
            space: size + files * (each.next_multiple_of(4096) + 1024),
            memory: 64 << 20,
            time: Duration::from_secs(
                5 + characters * (10 + size / (200 << 20))
                    + size * 4 / (100 << 20)
                    + files * 2 / 1000,
            ),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        self.demand(parameters)?;
        let given = Given::new(self, parameters)?;
        let size = given.bytes("size", 0, 1 << 44)?.div_ceil(1 << 20);
        let chunk = given.bytes("chunk", 256, 1 << 20)?;
        let files = given.number("files", 0, 1 << 20)?;
        let each = given.bytes("file-size", 0, 1 << 30)?;
        let directories = given.number("directories", 1, 100_000)?;
        let mut bonnie = command("bonnie++", None)?;
        // -r only has to be at most half of the size for the tool to start. The
        // runner takes care of the cache.
        let memory = if size == 0 { 16 } else { size / 2 };
        bonnie.args(["-q", "-x", "1", "-c", "1", "-m", "lab"]);
        if rustix::process::geteuid().is_root() {
            bonnie.args(["-u", "root"]);
        }
        bonnie.args(["-z", &(ground.seed() % 1_000_000_000).to_string()]);
        bonnie.args(["-r", &memory.to_string()]);
        bonnie.args(["-s", &format!("{size}:{chunk}")]);
        bonnie.args(["-n", &format!("{files}:{each}:{each}:{directories}")]);
        if !given.is_yes("per-char")? {
            bonnie.arg("-f");
        }
        if given.is_yes("direct")? {
            bonnie.arg("-D");
        }
        ground.next_phase("all tests")?;
        bonnie.arg("-d").arg(ground.directory());
        // Only the tests of small files call it, after each.
        let is_machine = sync_scope::is_machine(&given)?;
        if files > 0 && !is_machine {
            sync_scope::narrow(&mut bonnie, ground)?;
        }
        let output = run("bonnie", &mut bonnie, ground)?;
        let mut figures = parse(&output.text)?;
        figures.fact("command", line_of(&bonnie));
        figures.mark(writes_zeros("bonnie++", "files"));
        if files > 0 {
            figures.mark(match is_machine {
                true => sync_scope::MACHINE,
                false => sync_scope::FILE_SYSTEM,
            });
        }
        Ok(figures)
    }
}

/// Seconds of "72899us", "138ms" or "2s".
fn seconds(text: &str) -> Option<f64> {
    let units = [("us", 1e6), ("ms", 1e3), ("s", 1.0)];
    let (number, in_a_second) = units
        .iter()
        .find_map(|(unit, in_a_second)| Some((text.strip_suffix(unit)?, in_a_second)))?;
    Some(number.parse::<f64>().ok()? / in_a_second)
}

/// Reads the tool's line of comma-separated values.
fn parse(text: &str) -> Result<Figures, String> {
    let line = text
        .lines()
        .find(|line| line.starts_with("1.98,"))
        .ok_or_else(|| format!("bonnie++ printed no line of its format 1.98: {text}"))?;
    let fields: Vec<&str> = line.trim().split(',').collect();
    if fields.len() != LATENCIES + FIGURES.len() {
        return Err(format!(
            "bonnie++ printed {} fields, not {}: {line}",
            fields.len(),
            LATENCIES + FIGURES.len()
        ));
    }
    let mut figures = Figures::default();
    figures.fact("tool", format!("bonnie++ {}", fields[1]));
    for (index, (place, name, unit)) in FIGURES.iter().enumerate() {
        let (value, cpu) = (fields[*place], fields[place + 1]);
        if value.is_empty() {
            continue;
        }
        if value.starts_with('+') {
            // Otherwise its longest latency could be taken for the figure.
            figures.mark(format!(
                "{name} took less than the half second that bonnie++ can time; it gave no figure"
            ));
            continue;
        }
        let value: f64 = value
            .parse()
            .map_err(|_| format!("bonnie++ printed \"{value}\" for {name}"))?;
        figures.add(match unit {
            Unit::Kibibytes => more(name, "bytes/s", value * 1024.0).headline(),
            Unit::Operations => more(name, "operations/s", value).headline(),
        });
        if let Ok(cpu) = cpu.parse() {
            figures.add(less(&format!("{name} CPU of the tool"), "CPU %", cpu));
        }
        if let Some(longest) = seconds(fields[LATENCIES + index]) {
            figures.add(less(&format!("{name} longest latency"), "s", longest));
        }
    }
    if figures.metrics.is_empty() && figures.marks.is_empty() {
        return Err(format!("bonnie++ printed no figures: {line}"));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(figures: &Figures, name: &str) -> Option<f64> {
        figures
            .metrics
            .iter()
            .find(|m| m.name == name)
            .map(|m| m.value)
    }

    #[test]
    fn debians_bonnie_is_understood() {
        let figures = parse(include_str!("golden/bonnie.csv")).unwrap();
        assert_eq!(figures.facts["tool"], "bonnie++ 2.00a");
        for (name, expected) in [
            ("sequential output per char", 856.0 * 1024.0),
            ("sequential output block", 899_516.0 * 1024.0),
            ("rewrite", 1_351_228.0 * 1024.0),
            ("sequential input per char", 1569.0 * 1024.0),
            ("sequential input block", 2_057_560.0 * 1024.0),
            ("rewrite CPU of the tool", 57.0),
            ("sequential output per char longest latency", 0.072_899),
        ] {
            assert_eq!(value(&figures, name), Some(expected), "{name}");
        }
        // "+++++" is no figure, and a reader is told.
        assert!(!figures.metrics.iter().any(|m| m.name.contains("seeks")));
        assert!(figures.marks.iter().any(|mark| mark.starts_with("seeks")));
    }

    #[test]
    fn small_files_are_understood() {
        let figures = parse(include_str!("golden/bonnie-files.csv")).unwrap();
        for (name, expected) in [
            ("sequential create", 141_737.0),
            ("sequential stat", 356_337.0),
            ("sequential delete", 124_774.0),
            ("random create", 136_412.0),
            ("random stat", 257_008.0),
            ("random delete", 82_706.0),
            ("sequential delete longest latency", 0.138),
        ] {
            assert_eq!(value(&figures, name), Some(expected), "{name}");
        }
        assert_eq!(value(&figures, "rewrite"), None);
        assert!(figures.marks.is_empty(), "{:?}", figures.marks);
    }

    #[test]
    fn other_formats_are_errors() {
        assert!(parse("1.97,1.97,vm,1").is_err());
        assert!(parse("1.98,2.00a,vm,1").is_err());
    }
}
