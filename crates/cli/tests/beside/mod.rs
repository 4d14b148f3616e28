//! For suites that run the Btrfs tools and ButterFS side by side: what of their
//! outputs is compared, and why not all.
#![allow(dead_code, reason = "each suite uses a part")]

use crate::support::{SYNC_HERE, said};
use Compared::{All, Code, Codes, Numbers, Sorted, Without};
use std::path::Path;
use std::process::{Command, Output};

/// What of an output is compared.
#[derive(Clone, Copy)]
pub enum Compared {
    /// All of it.
    All,
    /// All lines but those that contain one of these, for a reason.
    Without(&'static [&'static str], &'static str),
    /// Its lines in any order, for a reason.
    Sorted(&'static str),
    /// The exit code alone, for a reason.
    Code(&'static str),
    /// The exit codes are these, theirs first, for a reason.
    Codes(i32, i32, &'static str),
    /// All of it, but for marks around numbers in JSON.
    Numbers,
}

impl Compared {
    pub const fn reason(self) -> &'static str {
        match self {
            All => "all of it is compared",
            Numbers => "numbers are texts in btrfs-progs 6.2, and numbers since",
            Without(_, reason) | Sorted(reason) | Code(reason) | Codes(_, _, reason) => reason,
        }
    }
}

/// A line of JSON without the marks around a number, and empty lists on one line.
fn bare(line: &str) -> String {
    let Some((name, value)) = line.split_once(": \"") else {
        return line.to_owned();
    };
    let digits = value.trim_end_matches(',').trim_end_matches('"');
    match !digits.is_empty() && digits.bytes().all(|one| one.is_ascii_digit()) {
        true => {
            let comma = if value.ends_with(',') { "," } else { "" };
            format!("{name}: {digits}{comma}")
        }
        false => line.to_owned(),
    }
}

pub fn run(program: &str, directory: &Path, words: &[String]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(directory).args(words);
    command.output().expect("it runs")
}

fn lines(output: &Output, compared: Compared) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<String> = text.trim_end().lines().map(str::to_owned).collect();
    match compared {
        Without(parts, _) => lines.retain(|line| !parts.iter().any(|part| line.contains(part))),
        Sorted(_) => lines.sort(),
        Numbers => lines = lines.iter().map(|line| bare(line)).collect(),
        All | Code(_) | Codes(..) => {}
    }
    lines
}

/// What is wrong with a pair of outputs.
pub fn fault(line: &str, theirs: &Output, ours: &Output, compared: Compared) -> Option<String> {
    let codes = [theirs, ours].map(|output| output.status.code());
    let wanted = match compared {
        Codes(theirs, ours, _) => [Some(theirs), Some(ours)],
        _ => [codes[0]; 2],
    };
    if codes != wanted {
        let said = (said(theirs), said(ours));
        return Some(format!(
            "{line} ({}): exit codes {codes:?}\n{}\n{}",
            compared.reason(),
            said.0,
            said.1
        ));
    }
    // What goes to standard error is for people, and has other words.
    let is_compared = theirs.status.success() && !matches!(compared, Code(_) | Codes(..));
    let texts = [theirs, ours].map(|output| lines(output, compared));
    (is_compared && texts[0] != texts[1]).then(|| {
        format!(
            "{line} ({}):\n--- theirs\n{}\n--- ours\n{}",
            compared.reason(),
            texts[0].join("\n"),
            texts[1].join("\n")
        )
    })
}

pub fn words(line: &str, address: &str) -> Vec<String> {
    let words = line.split(' ').map(|word| word.replace("ADDRESS", address));
    words.collect()
}

pub fn shell(directory: &Path, script: &str) -> String {
    let mut command = Command::new("sh");
    let here = format!("{SYNC_HERE}{script}");
    command.args(["-ec", &here]).current_dir(directory);
    let output = command.output().expect("sh runs");
    assert!(output.status.success(), "{script}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn has_tools() -> bool {
    let found = ["btrfs", "filefrag"].map(|tool| {
        let version = Command::new(tool).arg("--version").output();
        version.is_ok() || Command::new(tool).arg("-V").output().is_ok()
    });
    if found == [true; 2] {
        return true;
    }
    println!("skipped: btrfs or filefrag is not installed");
    assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
    false
}
