//! `btrfs check`.

use super::{Verdict, run};
use std::ffi::OsStr;
use std::path::Path;

/// Which of its two modes `btrfs check` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Keeps all extents in memory.
    Original,
    /// Looks references up one by one.
    Lowmem,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Original, Self::Lowmem];
}

/// Whether file data are read and compared with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataChecksums {
    /// They are.
    Verify,
    /// Only metadata are.
    Ignore,
}

/// Words of a line that reports a fault. Exit codes are not enough, because
/// some faults are only printed.
const FAULTS: [&str; 9] = [
    "error",
    "mismatch",
    "warning",
    "failed",
    "missing",
    "invalid",
    "incorrect",
    "bad ",
    "corrupt",
];

/// Lines that have such a word and report no fault.
const HARMLESS: [&str; 4] = [
    // It looks for members among all loop devices, and those of other tests
    // come and go.
    "cannot scan /dev/loop",
    "no error found",
    "found 0 errors",
    // A cache of version 1 that is older than the volume, as the line itself
    // says.
    "space cache will be invalidated",
];

/// The program that checks: that of the machine, or the one that
/// `BUTTERFS_BTRFS_CHECK` names (another version of it).
fn program() -> String {
    std::env::var("BUTTERFS_BTRFS_CHECK").unwrap_or_else(|_| "btrfs".to_owned())
}

/// Checks the unmounted volume on the image or device `path`. A volume is clean
/// if the program exits with 0 and prints no fault.
pub fn btrfs_check(path: &Path, mode: Mode, data: DataChecksums) -> Verdict {
    let mut args = vec![OsStr::new("check"), OsStr::new("--readonly")];
    args.push(OsStr::new(match mode {
        Mode::Original => "--mode=original",
        Mode::Lowmem => "--mode=lowmem",
    }));
    if data == DataChecksums::Verify {
        args.push(OsStr::new("--check-data-csum"));
    }
    args.push(path.as_os_str());
    let mut verdict = run(&program(), args);
    verdict.clean &= !verdict.output.lines().any(tells_a_fault);
    verdict
}

/// Checks an image in both modes, with data checksums.
///
/// # Panics
/// When it is not clean.
pub fn judge_image(path: &Path, context: &str) {
    for mode in Mode::ALL {
        btrfs_check(path, mode, DataChecksums::Verify).assert_clean(context);
    }
}

fn tells_a_fault(line: &str) -> bool {
    let line = line.to_lowercase();
    // The volume's path and label are not part of the verdict.
    !line.starts_with("opening filesystem to check")
        && !line.starts_with("checking filesystem on")
        && !HARMLESS.iter().any(|harmless| line.contains(harmless))
        && FAULTS.iter().any(|fault| line.contains(fault))
}

#[cfg(test)]
mod tests {
    use super::tells_a_fault;

    #[test]
    fn faults_in_lines() {
        assert!(!tells_a_fault("found 147456 bytes used, no error found"));
        assert!(!tells_a_fault("[1/7] checking root items"));
        assert!(!tells_a_fault("Checking filesystem on /tmp/error.img"));
        assert!(tells_a_fault("ERROR: errors found in fs roots"));
        assert!(tells_a_fault(
            "root 5 inode 257 errors 100, file extent discount"
        ));
        assert!(tells_a_fault(
            "mirror 1 bytenr 1 csum 0x00 expected csum mismatch"
        ));
        assert!(tells_a_fault("backpointer mismatch on [30408704 16384]"));
    }
}
