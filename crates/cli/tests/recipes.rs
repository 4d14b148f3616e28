//! Commands of the documentation, run as written.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use support::{Bench, said};

const PAGE: &str = include_str!("../../../docs/backup.md");

#[test]
fn the_backup_recipes_work() {
    let bench = Bench::new();
    let lines: Vec<&str> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    assert!(lines.len() > 20, "the page has its commands indented");
    // What the page takes for granted.
    fs::rename(bench.path("volume"), bench.path("disk.img")).unwrap();
    fs::write(bench.path("notes.txt"), "first notes\n".repeat(2000)).unwrap();
    fs::create_dir(bench.path("letters")).unwrap();
    fs::write(bench.path("letters/first.txt"), "dear\n".repeat(5000)).unwrap();
    bench.run(&["subvolume", "create", "disk.img:/home"]);
    bench.run(&["copy", "--quiet", "notes.txt", "disk.img:/home"]);
    // This machine is its own other machine.
    let programs = bench.path("bin");
    fs::create_dir(&programs).unwrap();
    let program = |name: &str, text: &str| {
        fs::write(programs.join(name), text).unwrap();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(programs.join(name), mode).unwrap();
    };
    program("ssh", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let binary = env!("CARGO_BIN_EXE_butterfs");
    program("butterfs", &format!("#!/bin/sh\nexec {binary} \"$@\"\n"));
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let script = format!("set -eux -o pipefail\n{}\n", lines.join("\n"));
    let out = Command::new("bash")
        .args(["-c", &script])
        .env("PATH", path)
        .current_dir(bench.path("."))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", support::said(&out));
    let restored = fs::read_to_string(bench.path("restored.txt")).unwrap();
    assert_eq!(restored, "first notes\n".repeat(2000));
    for volume in ["backup.img", "second.img", "remote.img"] {
        let place = format!("{volume}:/monday/notes.txt");
        assert_eq!(bench.run(&["cat", &place]), restored, "{volume}");
    }
    let letter = "dear\n".repeat(5000);
    let plain = fs::read_to_string(bench.path("plain/tuesday/letters/first.txt")).unwrap();
    assert_eq!(plain, letter);
    let place = "second.img:/tuesday/letters/first.txt";
    assert_eq!(bench.run(&["cat", place]), letter);
    let left = bench.run(&["subvolume", "list", "disk.img"]);
    assert!(left.contains("tuesday") && !left.contains("path snapshots/home/monday"));
}

const README: &str = include_str!("../../../README.md");
/// An ordinary user.
const NOBODY: u32 = 65534;

/// The first commands of README, as an ordinary user in an empty home.
#[test]
fn the_first_five_minutes_work_for_an_ordinary_user() {
    if !support::can_mount() {
        return;
    }
    let (_, part) = README.split_once("## Five minutes").expect("the part");
    let (part, _) = part.split_once("\n## ").expect("another part");
    let commands: Vec<&str> = part
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        // The program is built, and the lab has tests of its own.
        .filter(|line| !line.starts_with("cargo ") && !line.starts_with("butterfs lab "))
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    let home = tempfile::tempdir().expect("a directory");
    let at = |name: &str| home.path().join(name);
    let open = |path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    open(home.path().to_owned()).expect("permissions");
    fs::create_dir_all(at("Pictures/summer")).expect("a directory");
    fs::write(at("Pictures/list.txt"), "one\n").expect("a file");
    fs::write(at("Pictures/summer/beach"), vec![7; 2_000_000]).expect("a file");
    fs::create_dir(at("bin")).expect("a directory");
    fs::copy(support::BINARY, at("bin/butterfs")).expect("the program");
    let path = format!(
        "{}:{}",
        at("bin").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut shell = Command::new("bash");
    if support::is_root() {
        for name in [
            "",
            "Pictures",
            "Pictures/list.txt",
            "Pictures/summer",
            "Pictures/summer/beach",
        ] {
            std::os::unix::fs::chown(at(name), Some(NOBODY), Some(NOBODY)).expect("an owner");
        }
        shell = Command::new("setpriv");
        let id = NOBODY.to_string();
        shell.args(["--reuid", &id, "--regid", &id, "--clear-groups", "bash"]);
    }
    let script = format!("set -eux -o pipefail\n{}\n", commands.join("\n"));
    let out = shell
        .args(["-c", &script])
        .env("HOME", home.path())
        .env("PATH", path)
        .current_dir(home.path())
        .output()
        .expect("the shell runs");
    let _ = Command::new(support::BINARY)
        .args(["umount", "--lazy"])
        .arg(at("photos"))
        .output();
    assert!(out.status.success(), "{}", said(&out));
    // Whoever made the volume owns what is in it.
    let user = fs::metadata(at("photos.img")).expect("the volume").uid();
    let list = Command::new(support::BINARY)
        .args(["ls", "--json", "-R", "photos.img:/"])
        .current_dir(home.path())
        .output()
        .expect("the program runs");
    let list: Vec<serde_json::Value> = serde_json::from_slice(&list.stdout).expect("JSON");
    assert!(list.len() > 5, "{list:?}");
    assert!(list.iter().all(|entry| entry["uid"] == user), "{list:?}");
}
