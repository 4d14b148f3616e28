//! `fsck.butterfs` and `fsck.btrfs`, as fsck(8) and the boot call them.
//!
//! Owns their options and exit codes: 0 clean, 4 faults are left, 8 not
//! checked, 16 a mistake in the arguments.

use crate::arguments::{self, Command};
use crate::output;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

const NAMES: [&str; 2] = ["fsck.butterfs", "fsck.btrfs"];

/// Faults are left: `check` changes nothing.
const FAULTS_LEFT: u8 = 4;
const NOT_CHECKED: u8 = 8;
const MISTAKE: u8 = 16;

/// What fsck(8) asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    /// At boot (`-a`, `-p`).
    is_automatic: bool,
    /// What is left for `check`: long options and devices.
    words: Vec<OsString>,
}

/// Runs if the program was called by one of these names.
pub fn run(words: &[OsString]) -> Option<ExitCode> {
    let (name, rest) = words.split_first()?;
    let name = Path::new(name).file_name()?.to_str()?;
    if !NAMES.contains(&name) {
        return None;
    }
    let wish = match understand(rest) {
        Ok(wish) => wish,
        Err(option) => {
            output::note(format_args!(
                "butterfs: {name} has no option {}; it takes those of fsck(8), and `butterfs \
                 check --help` shows the long ones",
                option.display()
            ));
            return Some(ExitCode::from(MISTAKE));
        }
    };
    if wish.is_automatic {
        return Some(at_boot(&wish.words));
    }
    let check: Vec<OsString> = ["butterfs".into(), "check".into()]
        .into_iter()
        .chain(wish.words)
        .collect();
    Some(match arguments::parse(check, MISTAKE) {
        Ok(arguments) => match arguments.command {
            Command::Check(check) => check.run(FAULTS_LEFT),
            _ => ExitCode::from(MISTAKE),
        },
        Err(ended) => ended,
    })
}

/// A mount replays what a crash left, so the boot need not wait for anything.
/// As with the Btrfs tools, it is enough that the device exists.
fn at_boot(words: &[OsString]) -> ExitCode {
    let is_device = |word: &&OsString| !word.as_bytes().starts_with(b"-");
    for device in words.iter().filter(is_device) {
        if let Err(error) = std::fs::File::open(device) {
            output::note(format_args!("butterfs: {}: {error}", device.display()));
            return ExitCode::from(NOT_CHECKED);
        }
    }
    ExitCode::SUCCESS
}

/// Removes the short options of fsck(8), or names one that it does not have.
fn understand(words: &[OsString]) -> Result<Wish, OsString> {
    let mut wish = Wish::default();
    for word in words {
        let bytes = word.as_bytes();
        let [b'-', letters @ ..] = bytes else {
            wish.words.push(word.clone());
            continue;
        };
        if letters.is_empty() || letters.starts_with(b"-") {
            wish.words.push(word.clone());
            continue;
        }
        for letter in letters {
            match letter {
                b'a' | b'p' => wish.is_automatic = true,
                // Ask nothing, change nothing, say more, show progress on a
                // descriptor. A check that only reads does all of these, or
                // needs none of them.
                b'y' | b'n' | b'r' | b'f' | b'v' | b'V' | b'T' | b'C' | b'0'..=b'9' => {}
                _ => return Err(word.clone()),
            }
        }
    }
    Ok(wish)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn options_of_fsck_are_understood() {
        let wish = understand(&words("-a -C5 /dev/x")).unwrap();
        assert!(wish.is_automatic);
        assert_eq!(wish.words, words("/dev/x"));
        let wish = understand(&words("-fy --json /dev/x")).unwrap();
        assert!(!wish.is_automatic);
        assert_eq!(wish.words, words("--json /dev/x"));
        assert_eq!(understand(&words("-z /dev/x")), Err("-z".into()));
        assert!(run(&words("/usr/bin/butterfs check")).is_none());
    }
}
