//! The page of backup recipes, run as written.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use support::Bench;

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
