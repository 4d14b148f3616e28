//! `butterfs subvolume list|show|find-new` compared with btrfs-progs on the
//! same volume, word for word.

mod support;

use std::path::Path;
use std::process::Command;
use support::{Bench, said};

/// What `btrfs` says of the mounted volume.
fn btrfs(mount: &Path, words: &[&str]) -> String {
    let output = Command::new("btrfs")
        .current_dir(mount)
        .env("TZ", "UTC")
        .args(words)
        .output()
        .expect("btrfs runs");
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).expect("text")
}

const LISTS: &[&[&str]] = &[
    &[],
    &["-p"],
    &["-c"],
    &["-g"],
    &["-o"],
    &["-a"],
    &["-u"],
    &["-q"],
    &["-R"],
    &["-s"],
    &["-r"],
    &["-d"],
    &["-t"],
    &["-p", "-c", "-g", "-u", "-q", "-R"],
    &["-p", "-c", "-g", "-u", "-q", "-R", "-t"],
    &["-s", "-t"],
    &["-s", "-r", "-u"],
    &["-a", "-t", "-u"],
    &["-o", "-t"],
    &["-G", "+10"],
    &["-G", "9"],
    &["-G", "-10"],
    &["-C", "+9"],
    &["-C", "-9", "-t"],
    &["--sort=gen"],
    &["--sort=-gen,+rootid"],
    &["--sort=ogen,-rootid", "-c"],
    &["--sort=path"],
    &["--sort=-path"],
    &["--sort=-rootid"],
];

/// In btrfs-progs, even what was never sent has a time of sending.
fn without_send_time(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines.filter(|line| !line.contains("Send time:")).collect()
}

fn fill(mount: &Path) {
    let run = |words: &[&str]| btrfs(mount, words);
    run(&["subvolume", "create", "base"]);
    std::fs::create_dir_all(mount.join("dir/deeper")).expect("a directory");
    run(&["subvolume", "create", "dir/deeper/nested"]);
    run(&["subvolume", "create", "base/inner"]);
    std::fs::create_dir(mount.join("dir/deeper/nested/d")).expect("a directory");
    std::fs::write(mount.join("base/small"), "hello\n").expect("a file");
    std::fs::write(mount.join("base/big"), vec![7; 700_000]).expect("a file");
    std::fs::hard_link(mount.join("base/big"), mount.join("base/another")).expect("a link");
    run(&["subvolume", "snapshot", "base", "s1"]);
    run(&["subvolume", "snapshot", "-r", "base", "dir/s2"]);
    std::fs::write(mount.join("base/later"), vec![1; 5000]).expect("a file");
    run(&[
        "subvolume",
        "snapshot",
        "-r",
        "base",
        "dir/deeper/nested/d/s3",
    ]);
    run(&["subvolume", "snapshot", "dir/deeper/nested/d/s3", "s4"]);
    run(&["subvolume", "create", "gone"]);
    run(&["subvolume", "snapshot", "gone", "orphan"]);
    run(&["subvolume", "delete", "-C", "gone"]);
    run(&["subvolume", "sync", "."]);
    run(&["filesystem", "sync", "."]);
    let status = Command::new("fallocate")
        .args(["-l", "100000"])
        .arg(mount.join("base/reserved"))
        .status();
    assert!(status.expect("fallocate runs").success());
    // Compressed on disk.
    run(&["property", "set", "base/later", "compression", "zstd"]);
    std::fs::write(mount.join("base/later"), vec![2; 300_000]).expect("a file");
    // A received copy, with all its UUIDs.
    let sent = mount.join("stream");
    run(&["send", "-q", "-f", sent.to_str().expect("text"), "dir/s2"]);
    std::fs::create_dir(mount.join("backup")).expect("a directory");
    run(&[
        "receive",
        "-q",
        "-f",
        sent.to_str().expect("text"),
        "backup",
    ]);
}

#[test]
fn words_are_those_of_btrfs_progs() {
    let bench = Bench::new();
    if !bench.with_kernel(fill) {
        return;
    }
    let mut theirs = Vec::new();
    let places = [".", "dir/deeper/nested", "base", "dir"];
    let subvolumes = [
        ".",
        "base",
        "base/inner",
        "s1",
        "s4",
        "dir/s2",
        "dir/deeper/nested",
        "dir/deeper/nested/d/s3",
        "orphan",
        "backup/s2",
    ];
    bench.with_kernel(|mount| {
        for place in places {
            for options in LISTS {
                let words = [&["subvolume", "list"], *options, &[place]].concat();
                theirs.push(btrfs(mount, &words));
            }
        }
        for subvolume in subvolumes {
            theirs.push(btrfs(mount, &["subvolume", "show", subvolume]));
        }
        for subvolume in subvolumes {
            for generation in ["0", "8", "10", "99999"] {
                let words = ["subvolume", "find-new", subvolume, generation];
                theirs.push(btrfs(mount, &words));
            }
        }
    });
    let mut theirs = theirs.iter();
    let place = |path: &str| format!("volume:/{path}");
    for path in places {
        let place = place(path);
        for options in LISTS {
            let words = [&["subvolume", "list"], *options, &[&*place]].concat();
            assert_eq!(
                &bench.run(&words),
                theirs.next().expect("text"),
                "{words:?}"
            );
        }
    }
    for path in subvolumes {
        let ours = bench.run(&["subvolume", "show", &place(path)]);
        let theirs = theirs.next().expect("text");
        assert_eq!(without_send_time(&ours), without_send_time(theirs));
        // By id and by UUID the same.
        let value = |name: &str| {
            let line = ours
                .lines()
                .find(|line| line.contains(name))
                .expect("a line");
            line.rsplit(char::is_whitespace)
                .next()
                .expect("a value")
                .to_owned()
        };
        let id = value("\tSubvolume ID:");
        assert_eq!(bench.run(&["subvolume", "show", "-r", &id, "volume"]), ours);
        let uuid = value("\tUUID:");
        assert_eq!(
            bench.run(&["subvolume", "show", "-u", &uuid, "volume"]),
            ours
        );
    }
    for path in subvolumes {
        for generation in ["0", "8", "10", "99999"] {
            let words = ["subvolume", "find-new", &place(path), generation];
            assert_eq!(
                &bench.run(&words),
                theirs.next().expect("text"),
                "{words:?}"
            );
        }
    }
    others(&bench);
}

#[test]
fn differences_and_history_in_words() {
    let bench = Bench::new();
    let filled = bench.with_kernel(|mount| {
        let run = |words: &[&str]| btrfs(mount, words);
        let path = |name: &str| mount.join(name);
        run(&["subvolume", "create", "home"]);
        std::fs::write(path("home/gone"), "x").expect("a file");
        std::fs::write(path("home/notes"), vec![1; 20_000]).expect("a file");
        run(&["subvolume", "snapshot", "-r", "home", "monday"]);
        run(&["subvolume", "snapshot", "-r", "home", "tuesday"]);
        std::fs::remove_file(path("home/gone")).expect("removed");
        std::fs::write(path("home/new"), "new").expect("a file");
        let file = std::fs::File::options()
            .write(true)
            .open(path("home/notes"));
        let file = file.expect("the file opens");
        std::os::unix::fs::FileExt::write_all_at(&file, &[2; 4096], 8192).expect("written");
        drop(file);
        std::fs::rename(path("home/notes"), path("home/papers")).expect("renamed");
        run(&["subvolume", "snapshot", "-r", "home", "wednesday"]);
        std::fs::write(path("home/notes"), "others").expect("a file");
    });
    if !filled {
        return;
    }
    let words = [
        "subvolume",
        "diff",
        "--ignore-times",
        "volume:/monday",
        "volume:/wednesday",
    ];
    assert_eq!(
        bench.run(&words),
        "D gone\nR notes -> papers\nM papers (bytes 8192-12288; mtime)\nA new\n"
    );
    let same = ["subvolume", "diff", "volume:/monday", "volume:/tuesday"];
    assert_eq!(bench.run(&same), "");
    let json = |words: &[&str]| {
        let text = bench.run(words);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    let all = json(&[
        "subvolume",
        "diff",
        "--json",
        "volume:/monday",
        "volume:/wednesday",
    ]);
    assert_eq!(all.as_array().expect("an array").len(), 4);
    assert_eq!(all[2]["content"][0]["offset"], 8192);
    let none = json(&[
        "subvolume",
        "diff",
        "--json",
        "volume:/monday",
        "volume:/tuesday",
    ]);
    assert!(none.as_array().expect("an array").is_empty());

    let told = bench.run(&["subvolume", "history", "volume:/monday/notes"]);
    let ends: Vec<&str> = told
        .lines()
        .map(|line| line.split_once("  ").expect("columns").1)
        .map(|line| line.rsplit_once("  ").map_or(line, |(_, end)| end))
        .collect();
    assert_eq!(ends[0], "monday: notes, 20000 bytes", "{told}");
    assert_eq!(ends[1], "tuesday: unchanged", "{told}");
    assert_eq!(
        ends[2], "wednesday: now named papers; bytes 8192-12288; mtime",
        "{told}"
    );
    assert!(
        ends[3].starts_with("home: unchanged; the path is another file's"),
        "{told}"
    );
    let words = ["subvolume", "history", "--changes", "volume:/monday/notes"];
    assert_eq!(bench.run(&words).lines().count(), 2);
    let versions = json(&["subvolume", "history", "--json", "volume:/monday/notes"]);
    assert_eq!(versions[3]["at_path"], "other");
    assert_eq!(versions[2]["change"]["names_added"][0], "papers");
}

/// What btrfs-progs do not have.
fn others(bench: &Bench) {
    let drawn = bench.run(&["subvolume", "list", "--tree", "volume"]);
    assert!(
        drawn.contains("├── base (256)\n│   └── inner (258)\n"),
        "{drawn}"
    );
    assert!(drawn.contains("read-only snapshot of base"), "{drawn}");
    assert!(
        drawn.contains("snapshot of a subvolume that is gone"),
        "{drawn}"
    );
    for words in [
        &["subvolume", "list", "--json", "-s", "volume"][..],
        &["subvolume", "show", "--json", "volume:/base"],
        &["subvolume", "find-new", "--json", "volume:/base", "0"],
        &[
            "subvolume",
            "du",
            "--json",
            "volume",
            "--if-deleted",
            "256-300,s1",
        ],
    ] {
        let text = bench.run(words);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    }
    let used = bench.run(&["subvolume", "du", "volume:/base", "volume:/s1"]);
    assert_eq!(used.lines().count(), 3, "{used}");
    for (words, why) in [
        (
            &["subvolume", "show", "volume:/dir"][..],
            "no subvolume but a directory",
        ),
        (
            &["subvolume", "show", "-r", "999", "volume"],
            "no such subvolume",
        ),
        (
            &["subvolume", "du", "volume", "--if-deleted", "nosuch"],
            "no such subvolume",
        ),
        (
            &["subvolume", "du", "volume", "--if-deleted", "5"],
            "top level",
        ),
        (
            &["subvolume", "list", "mnt"],
            "in no volume that ButterFS has mounted",
        ),
    ] {
        let output = bench.try_run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
    }
}

/// One that cannot be deleted does not keep those behind it.
#[test]
fn deleting_goes_on_after_a_failure() {
    let bench = Bench::new();
    for name in ["a", "a/inner", "b", "c"] {
        bench.run(&["subvolume", "create", &format!("volume:/{name}")]);
    }
    let words = [
        "subvolume",
        "delete",
        "volume:/none",
        "volume:/a",
        "volume:/b",
        "volume:/c",
    ];
    let output = bench.try_run(&words);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("none"), "{}", said(&output));
    let left = bench.run(&["subvolume", "list", "volume"]);
    assert!(left.contains("path a/inner"), "{left}");
    assert!(
        !left.contains("path b") && !left.contains("path c"),
        "{left}"
    );
}

/// A directory is not taken for the subvolume in which it lies.
#[test]
fn a_directory_on_a_mount_is_no_subvolume() {
    if !support::is_root() {
        println!("skipped: mounts need root here");
        return;
    }
    let bench = Bench::new();
    bench.run(&["subvolume", "create", "volume:/a"]);
    bench.run(&["quota", "enable", "volume"]);
    let mounted = bench.mount("noatime");
    std::fs::create_dir(bench.path("mnt/a/dir")).expect("a directory");
    for words in [
        ["subvolume", "set-default", "mnt/a/dir"].as_slice(),
        &["qgroup", "limit", "1G", "mnt/a/dir"],
    ] {
        let output = bench.try_run(words);
        assert!(!output.status.success(), "{words:?}: {}", said(&output));
        assert!(said(&output).contains("no subvolume"), "{}", said(&output));
    }
    bench.run(&["subvolume", "set-default", "mnt/a"]);
    bench.run(&["qgroup", "limit", "1G", "mnt/a"]);
    drop(mounted);
}

/// The kernel takes 0 for the top level, and ENOENT is not about the mountpoint.
#[test]
fn defaults_and_ids_on_the_kernels_mount() {
    let bench = Bench::new();
    bench.with_kernel(|mount| {
        btrfs(mount, &["subvolume", "create", "sub"]);
        btrfs(mount, &["subvolume", "create", "sub/below"]);
        let tell = |words: &[&str], expected: &str| {
            let failed = bench.try_run(words);
            assert!(!failed.status.success(), "{words:?}");
            assert!(
                said(&failed).contains(expected),
                "{words:?}: {}",
                said(&failed)
            );
        };
        for (path, id) in [
            ("kernel/sub/below", "ID 257"),
            ("kernel", "ID 5"),
            ("kernel/sub", "ID 256"),
        ] {
            bench.run(&["subvolume", "set-default", path]);
            let default = btrfs(mount, &["subvolume", "get-default", "."]);
            assert!(default.starts_with(id), "{path}: {default}");
        }
        let none = "there is no subvolume 999";
        tell(&["subvolume", "set-default", "999", "kernel"], none);
        tell(
            &["subvolume", "delete", "--subvolid", "999", "kernel"],
            none,
        );
        bench.run(&["subvolume", "set-default", "5", "kernel"]);
        let twice = [
            "subvolume",
            "delete",
            "--subvolid",
            "257",
            "kernel",
            "kernel",
        ];
        tell(&twice, "nothing was deleted");
        assert!(mount.join("sub/below").is_dir());
        bench.run(&twice[..5]);
        assert!(!mount.join("sub/below").exists());
    });
    if support::can_mount() {
        let mounted = bench.mount("subvolid=5");
        bench.run(&["subvolume", "set-default", "mnt/sub"]);
        let default = bench.run(&["subvolume", "get-default", "mnt"]);
        assert!(default.starts_with("ID 256"), "{default}");
        bench.run(&["umount", "mnt"]);
        drop(mounted);
    }
}

/// As in btrfs-progs, a time is that of the caller's zone, whatever the server's
/// is.
#[test]
fn times_are_those_of_the_callers_zone() {
    let bench = Bench::new();
    let shown = |zone: &str, place: &str| -> String {
        let mut command = Command::new(support::BINARY);
        command.current_dir(bench.path("")).env("TZ", zone);
        let output = command.args(["subvolume", "show", place]).output();
        let text = said(&output.expect("the binary runs"));
        let line = text.lines().find(|line| line.contains("Creation time:"));
        line.expect("a time").trim().to_owned()
    };
    let check = |place: &str| {
        let utc = shown("UTC", place);
        assert!(utc.ends_with(" +0000"), "{utc}");
        let india = shown("<+0530>-5:30", place);
        assert!(india.ends_with(" +0530"), "{india}");
        assert_ne!(utc[..utc.len() - 6], india[..india.len() - 6]);
    };
    check("volume");
    if support::can_mount() {
        let mounted = bench.mount("subvolid=5");
        check("mnt");
        bench.run(&["umount", "mnt"]);
        drop(mounted);
    }
}
