//! Verbs on a volume that the kernel has mounted, beside the Btrfs tools: what
//! they print, their exit codes, and what they change.

mod support;

use std::path::Path;
use std::process::{Command, Output};
use support::{Bench, said};

/// Lines that only one of the programs prints: the kernel's reserve is no space
/// of the volume, `show` ends with an empty line there, and the second line of
/// each device of `device usage` is its slack there and what is allocated here.
const OTHERWISE: [&str; 3] = ["GlobalReserve,", "Device slack:", "Allocated:"];

fn alike(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let is_alike = |line: &&str| !OTHERWISE.iter().any(|one| line.contains(one));
    let lines = text.trim_end().lines().filter(is_alike);
    lines.map(str::to_owned).collect()
}

fn both(mount: &Path, words: &[&str]) -> [Output; 2] {
    [
        Path::new("btrfs"),
        Path::new(env!("CARGO_BIN_EXE_butterfs")),
    ]
    .map(|program| {
        let mut command = Command::new(program);
        command.current_dir(mount).args(words);
        command.output().expect("it runs")
    })
}

#[test]
fn verbs_on_a_kernel_mount_say_what_the_btrfs_tools_say() {
    let bench = Bench::new();
    bench.run(&["filesystem", "label", "volume", "photos"]);
    let compared = bench.with_kernel(|mount| {
        let fill = "btrfs -q subvolume create sub && seq 100000 > sub/file && sync";
        let filled = Command::new("sh")
            .args(["-ec", fill])
            .current_dir(mount)
            .status();
        assert!(filled.expect("sh runs").success());
        let verbs: &[&[&str]] = &[
            &["filesystem", "df", "."],
            &["filesystem", "df", "-b", "."],
            &["filesystem", "df", "--si", "sub"],
            &["filesystem", "show", "."],
            &["filesystem", "show", "--raw", "."],
            &["filesystem", "label", "."],
            &["device", "stats", "."],
            &["device", "usage", "."],
            &["property", "get", "."],
            &["property", "get", "sub"],
            &["property", "get", "sub/file"],
            &["property", "get", ".", "label"],
            &["property", "get", "-ts", "."],
            &["property", "get", "-t", "filesystem", "."],
            &["property", "list", "."],
            &["property", "list", "sub"],
            &["property", "list", "sub/file"],
            &["property", "list", "-td", "."],
        ];
        for words in verbs {
            let [theirs, ours] = both(mount, words);
            assert!(theirs.status.success(), "{words:?}: {}", said(&theirs));
            assert!(ours.status.success(), "{words:?}: {}", said(&ours));
            assert_eq!(alike(&ours.stdout), alike(&theirs.stdout), "{words:?}");
        }
        // Of `usage` all from the kinds of space on.
        let [theirs, ours] = both(mount, &["filesystem", "usage", "."]);
        let kinds = |output: &Output| {
            let lines = alike(&output.stdout);
            let from = lines.iter().position(|line| line.starts_with("Data,"));
            lines[from.expect("data")..].to_vec()
        };
        assert_eq!(kinds(&ours), kinds(&theirs));
        let refused: &[&[&str]] = &[
            &["property", "get", "sub", "label"],
            &["property", "get", "sub/file", "ro"],
            &["property", "get", ".", "colour"],
            &["property", "list", "/proc"],
            &["property", "set", "sub", "ro", "perhaps"],
        ];
        for words in refused {
            let codes = both(mount, words).map(|output| output.status.code());
            assert_eq!(codes, [Some(1); 2], "{words:?}");
        }
        // What one changes, the other sees.
        let label = |at: usize| {
            let said = &both(mount, &["filesystem", "label", "."])[at];
            String::from_utf8_lossy(&said.stdout).trim().to_owned()
        };
        let own = |words: &[&str]| {
            let [_, ours] = both(mount, words);
            assert!(ours.status.success(), "{words:?}: {}", said(&ours));
        };
        own(&["property", "set", ".", "label", "a longer label"]);
        assert_eq!(label(0), "a longer label");
        let mut set = Command::new("btrfs");
        set.args(["filesystem", "label", ".", "b"])
            .current_dir(mount);
        assert!(set.status().expect("btrfs runs").success());
        assert_eq!(label(1), "b");
        own(&["device", "stats", "-z", "."]);
    });
    if compared {
        bench.check();
    }
}
