//! sysbench fileio: random reads and writes with an fsync now and then.

use super::super::measure::more;
use super::super::parameters::Given;
use super::super::program::{command, line_of, run};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::sysbench::{add_histogram, after, series, version_of, word_after};
use super::writes_zeros;
use std::process::Command;
use std::time::Duration;

/// sysbench fileio.
pub(in super::super) struct SysbenchFiles;

const MODES: &[&str] = &["seqwr", "seqrewr", "seqrd", "rndrd", "rndwr", "rndrw"];

impl Workload for SysbenchFiles {
    fn name(&self) -> &'static str {
        "sysbench-fileio"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("sysbench", "sysbench")]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("size", "2g", "bytes of all files"),
            ("files", "128", "files"),
            ("block", "16k", "bytes of an operation"),
            (
                "mode",
                "rndrw",
                "seqwr, seqrewr, seqrd, rndrd, rndwr or rndrw",
            ),
            ("threads", "1", "threads"),
            ("time", "60", "seconds"),
            (
                "fsync",
                "100",
                "an fsync after so many operations; 0 is none before the end",
            ),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        given.choice("mode", MODES)?;
        given.number("fsync", 0, 1 << 30)?;
        let size = given.bytes("size", 1 << 20, 1 << 44)?;
        let block = given.bytes("block", 512, 1 << 28)?;
        if given.number("files", 1, 1 << 20)? * block > size {
            return Err("sysbench-fileio: a block is larger than a file".to_owned());
        }
        Ok(Demand {
            space: size,
            memory: given.number("threads", 1, 1000)? * block + (32 << 20),
            time: Duration::from_secs(given.number("time", 1, 86_400)? + size / (100 << 20) + 1),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let demand = self.demand(parameters)?;
        let given = Given::new(self, parameters)?;
        let seed = ground.seed() % 0x7FFF_FFFE + 1;
        let tool = |directory: &std::path::Path| -> Result<Command, String> {
            let mut sysbench = command("sysbench", None)?;
            // It makes its files where it stands.
            sysbench.current_dir(directory).args([
                "fileio".to_owned(),
                format!("--file-total-size={}", demand.space),
                format!("--file-num={}", given.text("files")),
                format!("--file-block-size={}", given.bytes("block", 512, 1 << 28)?),
                format!("--file-test-mode={}", given.text("mode")),
                format!("--file-fsync-freq={}", given.text("fsync")),
                format!("--rand-seed={seed}"),
            ]);
            Ok(sysbench)
        };
        ground.next_phase_aside("prepare")?;
        let mut prepare = tool(ground.directory())?;
        run("prepare", prepare.arg("prepare"), ground)?;
        ground.next_phase(given.choice("mode", MODES)?)?;
        let mut sysbench = tool(ground.directory())?;
        sysbench.args([
            format!("--threads={}", given.text("threads")),
            format!("--time={}", given.text("time")),
            "--report-interval=1".to_owned(),
            "--histogram=on".to_owned(),
        ]);
        let output = run("sysbench", sysbench.arg("run"), ground)?;
        let mut figures = parse(&output.text)?;
        figures.fact("tool", version_of(&output.text));
        figures.fact("command", line_of(&sysbench));
        figures.mark(writes_zeros("sysbench fileio", "transactions"));
        Ok(figures)
    }
}

/// Reads what sysbench prints of files.
fn parse(text: &str) -> Result<Figures, String> {
    let told = |what: &str| format!("sysbench printed no {what}: {text}");
    let figure = |label: &str| after(text, label).ok_or_else(|| told(label));
    let mebibyte = f64::from(1 << 20);
    let mut figures = Figures::default();
    let (reads, writes) = (figure("reads/s:")?, figure("writes/s:")?);
    let rate = reads + writes;
    figures.add(more("operations", "operations/s", rate).headline());
    figures.add(more("read", "bytes/s", figure("read, MiB/s:")? * mebibyte));
    let written = figure("written, MiB/s:")? * mebibyte;
    figures.add(more("write", "bytes/s", written));
    figures.add(more("fsyncs", "operations/s", figure("fsyncs/s:")?));
    add_histogram(text, "operation", &mut figures);
    let seconds = figure("total time:")?;
    figures.operations = Some(figure("total number of events:")? as u64);
    figures.written = Some((written * seconds) as u64);
    let moved = series(text, "throughput", "bytes/s", |words| {
        let sum = word_after(words, "reads:")? + word_after(words, "writes:")?;
        Some(sum * mebibyte)
    });
    figures.series.extend(moved);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysbench_1_0_is_understood() {
        let figures = parse(include_str!("golden/sysbench-fileio.txt")).unwrap();
        let value = |name: &str| figures.value(name);
        assert!((value("operations") - 219_226.8).abs() < 1e-6);
        assert!((value("write") - 1370.16 * 1_048_576.0).abs() < 1.0);
        assert_eq!(figures.operations, Some(459_409));
        let latencies = &figures.latencies[0];
        assert!(latencies.upper.is_sorted_by(|a, b| a < b));
        assert_eq!(latencies.counts.iter().sum::<u64>(), 459_409);
        assert_eq!(figures.series[0].values.len(), 1);
        let first = figures.series[0].values[0] / 1_048_576.0;
        assert!((first - (2231.22 + 1487.48)).abs() < 1e-6);
    }

    #[test]
    fn a_sysbench_that_failed_is_an_error() {
        assert!(parse("FATAL: Failed to open file").is_err());
    }
}
