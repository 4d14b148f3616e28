//! fs_mark: files made one after another, durable each or not.

use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{command, line_of, run};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::{sync_scope, writes_zeros};
use std::time::Duration;

/// fs_mark.
pub(in super::super) struct FsMark;

const SYNCS: &[(&str, u8)] = &[
    ("none", 0),
    ("each", 1),
    ("sync-then-one", 2),
    ("reverse", 3),
    ("sync-then-reverse", 4),
    ("after", 5),
    ("sync-then-after", 6),
];

impl Workload for FsMark {
    fn name(&self) -> &'static str {
        "fs_mark"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("fs_mark", "fsmark"), ("cc", "gcc")]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("files", "1000", "files of each thread and round"),
            ("size", "1m", "bytes of a file"),
            ("threads", "1", "threads, each with a directory of its own"),
            ("rounds", "5", "rounds; files of earlier ones stay"),
            (
                "sync",
                "each",
                "none; each (an fsync before each close); after, reverse (of all files at the end); \
                 sync-then-one, sync-then-reverse, sync-then-after (sync(2) first)",
            ),
            sync_scope::PARAMETER,
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        let words: Vec<&'static str> = SYNCS.iter().map(|(word, _)| *word).collect();
        given.choice("sync", &words)?;
        sync_scope::is_machine(&given)?;
        let files = given.number("files", 1, 1 << 24)?
            * given.number("threads", 1, 64)?
            * given.number("rounds", 1, 1000)?;
        let size = given.bytes("size", 0, 1 << 32)?;
        Ok(Demand {
            space: files * (size.next_multiple_of(4096) + 1024),
            memory: 64 << 20,
            time: Duration::from_secs(2 + files / 200 + files * size / (100 << 20)),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        self.demand(parameters)?;
        let given = Given::new(self, parameters)?;
        let size = given.bytes("size", 0, 1 << 32)?;
        let threads = given.number("threads", 1, 64)?;
        let sync = given.text("sync");
        let mode = SYNCS.iter().find(|(word, _)| *word == sync);
        let mode = mode.map_or(1, |(_, mode)| *mode);
        let mut fs_mark = command("fs_mark", None)?;
        ground.next_phase("files")?;
        // It refuses paths of 40 bytes and more, so they are relative.
        fs_mark.current_dir(ground.directory()).args(["-v", "-k"]);
        for thread in 0..threads {
            fs_mark.arg("-d").arg(format!("t{thread}"));
        }
        fs_mark.args(["-s", &size.to_string(), "-n", given.text("files")]);
        fs_mark.args(["-L", given.text("rounds"), "-S", &mode.to_string()]);
        fs_mark.arg("-l").arg(ground.scratch().join("fs_mark.log"));
        let calls_sync = sync.starts_with("sync");
        let is_machine = sync_scope::is_machine(&given)?;
        if calls_sync && !is_machine {
            sync_scope::narrow(&mut fs_mark, ground)?;
        }
        let output = run("fs_mark", &mut fs_mark, ground)?;
        let mut figures = parse(&output.text)?;
        figures.fact("command", line_of(&fs_mark));
        figures.mark(writes_zeros("fs_mark", "files"));
        if calls_sync {
            figures.mark(match is_machine {
                true => sync_scope::MACHINE,
                false => sync_scope::FILE_SYSTEM,
            });
        }
        Ok(figures)
    }
}

/// Reads the table; each line is a round.
fn parse(text: &str) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut rates = Vec::new();
    let mut files = 0;
    let mut size = 0;
    // Longest of creat, write, fsync, sync, close, unlink; in microseconds.
    let mut longest = [0.0_f64; 6];
    let mut means = [0.0_f64; 6];
    for line in text.lines() {
        if let Some((_, version)) = line.split_once("Version ") {
            let version = version.split(',').next().unwrap_or(version);
            figures.fact("tool", format!("fs_mark {version}"));
        }
        let fields: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse::<f64>).collect();
        let Ok(fields) = fields else { continue };
        if fields.len() != 5 + 18 {
            continue;
        }
        files = fields[1] as u64;
        size = fields[2] as u64;
        rates.push(fields[3]);
        for call in 0..6 {
            means[call] += fields[5 + call * 3 + 1];
            longest[call] = longest[call].max(fields[5 + call * 3 + 2]);
        }
    }
    if rates.is_empty() {
        return Err(format!("fs_mark printed no rounds: {text}"));
    }
    // All rounds have the same number of files, so the harmonic mean is files
    // per time.
    let time: f64 = rates.iter().map(|rate| 1.0 / rate).sum();
    let rounds = rates.len() as f64;
    figures.add(more("files", "files/s", rounds / time).headline());
    for (call, name) in ["create", "write", "fsync"].into_iter().enumerate() {
        figures.add(less(
            &format!("{name} mean latency"),
            "s",
            means[call] / rounds / 1e6,
        ));
        figures.add(less(
            &format!("{name} longest latency"),
            "s",
            longest[call] / 1e6,
        ));
    }
    figures.operations = Some(files);
    figures.written = Some(files * size);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_fs_mark_is_understood() {
        let figures = parse(include_str!("golden/fs_mark.txt")).unwrap();
        assert_eq!(figures.facts["tool"], "fs_mark 3.3");
        let files = &figures.metrics[0];
        let expected = 2.0 / (1.0 / 178_684.4 + 1.0 / 176_540.5);
        assert!((files.value - expected).abs() < 1e-6 && files.headline);
        let value = |name: &str| figures.value(name);
        assert!((value("create mean latency") - 3.5e-6).abs() < 1e-12);
        assert!((value("fsync longest latency") - 7e-6).abs() < 1e-12);
        assert_eq!(figures.operations, Some(200));
        assert_eq!(figures.written, Some(819_200));
    }

    #[test]
    fn a_table_without_rounds_is_an_error() {
        assert!(parse("#  fs_mark  -d  t/f\n#\tVersion 3.3, 2 thread(s)\n").is_err());
    }
}
