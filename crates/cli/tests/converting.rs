//! `butterfs convert`, and its page, run as written.

mod support;

use butterfs_testkit::Capability;
use butterfs_testkit::judge::{Access, KernelMount, judge_image};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Command;
use support::{Bench, Loop, said};

const PAGE: &str = include_str!("../../../docs/convert.md");

/// An ext4 in `disk.img`, with a label and a few files.
fn bench() -> Bench {
    let bench = Bench::new();
    let files = bench.path("files");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("notes.txt"), "notes\n".repeat(5000)).unwrap();
    fs::write(files.join("small"), "small\n").unwrap();
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-L", "photos", "-d"])
        .arg(&files)
        .arg(bench.path("disk.img"))
        .arg("128M")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    bench
}

#[test]
fn the_page_is_true() {
    let bench = bench();
    let lines: Vec<&str> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    assert!(lines.len() > 6, "the page has its commands indented");
    let programs = bench.path("bin");
    fs::create_dir(&programs).unwrap();
    let binary = env!("CARGO_BIN_EXE_butterfs");
    let script = format!("#!/bin/sh\nexec {binary} \"$@\"\n");
    fs::write(programs.join("butterfs"), script).unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(programs.join("butterfs"), mode).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    // e2fsck notes when it was there.
    let (checked, rest) = lines.split_first().unwrap();
    let rest = rest.join("\n");
    let script = format!("set -eux -o pipefail\n{checked}\ncp disk.img before.img\n{rest}\n");
    let out = Command::new("bash")
        .args(["-c", &script])
        .env("PATH", path)
        .current_dir(bench.path("."))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    // The last command is the way back.
    let before = fs::read(bench.path("before.img")).unwrap();
    assert!(before == fs::read(bench.path("disk.img")).unwrap());
}

#[test]
fn options_of_btrfs_convert() {
    let bench = bench();
    let before = fs::read(bench.path("disk.img")).unwrap();
    let planned = bench.run(&["convert", "--dry-run", "disk.img"]);
    assert!(planned.contains("would be converted"), "{planned}");
    assert!(before == fs::read(bench.path("disk.img")).unwrap());
    let uuid = "11111111-2222-3333-4444-555555555555";
    bench.run(&[
        "convert",
        "-d",
        "-n",
        "-i",
        "-N",
        "32k",
        "-O",
        "^block-group-tree",
        "-L",
        "--uuid",
        uuid,
        "--csum",
        "xxhash",
        "--no-progress",
        "disk.img",
    ]);
    let facts = bench.run(&["inspect", "dump-super", "disk.img"]);
    for word in [uuid, "photos", "32768", "xxhash64"] {
        assert!(facts.contains(word), "{word}: {facts}");
    }
    assert!(bench.run(&["check", "disk.img"]).contains("no"));
    let content = bench.run(&["cat", "disk.img:/notes.txt"]);
    assert_eq!(content, "notes\n".repeat(5000));
    let refused = bench.try_run(&["convert", "disk.img"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("Btrfs volume already"),
        "{}",
        said(&refused)
    );
    let planned = bench.run(&["convert", "-r", "--dry-run", "disk.img"]);
    assert!(planned.contains("way back is there"), "{planned}");
    bench.run(&["convert", "-r", "disk.img"]);
    assert!(before == fs::read(bench.path("disk.img")).unwrap());
    let refused = bench.try_run(&["convert", "-O", "^no-holes", "disk.img"]);
    assert!(!refused.status.success());
    assert!(
        bench
            .run(&["convert", "-O", "list-all"])
            .contains("free-space-tree")
    );
}

/// The old file system is only read, and the new volume has everything.
#[test]
fn into_a_new_file_and_compressed() {
    let bench = bench();
    let before = fs::read(bench.path("disk.img")).unwrap();
    bench.run(&["convert", "--to", "new.img", "disk.img"]);
    assert!(before == fs::read(bench.path("disk.img")).unwrap());
    let new = fs::metadata(bench.path("new.img")).unwrap();
    assert_eq!(new.len(), before.len() as u64);
    assert!(new.blocks() * 512 < 32 << 20, "it is sparse");
    bench.run(&["check", "--check-data-csum", "new.img"]);
    assert_eq!(bench.run(&["cat", "new.img:/small"]), "small\n");
    // The copy has a way back, too.
    bench.run(&["convert", "-r", "--dry-run", "new.img"]);

    let refused = bench.try_run(&["convert", "--to", "new.img", "disk.img"]);
    assert!(!refused.status.success());
    assert!(said(&refused).contains("new.img"), "{}", said(&refused));
    let refused = bench.try_run(&["convert", "--compress", "zstd", "disk.img"]);
    assert!(
        said(&refused).contains("--to or --finish"),
        "{}",
        said(&refused)
    );
    // What is refused leaves no file.
    fs::write(bench.path("none.img"), vec![0; 8 << 20]).unwrap();
    let refused = bench.try_run(&["convert", "--to", "more.img", "none.img"]);
    assert!(!refused.status.success());
    assert!(!bench.path("more.img").exists());
    assert!(before == fs::read(bench.path("disk.img")).unwrap());

    let told = bench.run(&["convert", "--finish", "--compress", "zstd:9", "new.img"]);
    assert!(told.contains("there is no way back"), "{told}");
    bench.run(&["check", "--check-data-csum", "new.img"]);
    assert_eq!(
        bench.run(&["cat", "new.img:/notes.txt"]),
        "notes\n".repeat(5000)
    );
    assert!(!bench.run(&["ls", "new.img"]).contains("ext2_saved"));
    let inspected = bench.run(&["inspect", "dump-tree", "-t", "5", "new.img"]);
    assert!(inspected.contains("zstd"), "{inspected}");
    let refused = bench.try_run(&["convert", "-r", "new.img"]);
    assert!(
        said(&refused).contains("no subvolume ext2_saved"),
        "{}",
        said(&refused)
    );
    let refused = bench.try_run(&["convert", "--finish", "new.img"]);
    assert!(
        said(&refused).contains("no subvolume ext2_saved"),
        "{}",
        said(&refused)
    );
}

/// The kernel finds the files of `files` in a volume, and may change them.
fn judged(bench: &Bench, image: &Path, context: &str) {
    judge_image(image, context);
    let mount = KernelMount::mount(image, Access::ReadWrite, "").unwrap();
    let same = Command::new("diff")
        .args(["-r", "-x", "ext2_saved", "-x", "lost+found", "-x", "new"])
        .arg(bench.path("files"))
        .arg(mount.path())
        .output()
        .unwrap();
    assert!(same.status.success(), "{context}: {}", said(&same));
    let notes = mount.path().join("notes.txt");
    fs::write(mount.path().join("new"), fs::read(notes).unwrap()).unwrap();
    drop(mount);
    judge_image(image, context);
}

/// A real block device, and a file made of it. Each step is judged by
/// btrfs-progs and the kernel.
#[test]
fn the_kernel_judges_a_block_device() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let bench = bench();
    {
        let device = Loop::new(&bench.path("disk.img"));
        bench.run(&["convert", "--to", "new.img", device.name()]);
        bench.run(&["convert", device.name()]);
        bench.run(&["convert", "-r", device.name()]);
        // What is free of a device keeps what was written there.
        for (program, words) in [
            ("e2fsck", &["-fn", device.name()][..]),
            ("debugfs", &["-R", "rdump / back", device.name()]),
            ("diff", &["-r", "-x", "lost+found", "files", "back"]),
        ] {
            fs::create_dir_all(bench.path("back")).unwrap();
            let mut command = Command::new(program);
            let done = command.args(words).current_dir(bench.path(".")).output();
            let done = done.unwrap();
            assert!(done.status.success(), "{program}: {}", said(&done));
        }
    }
    judged(&bench, &bench.path("new.img"), "--to");
    {
        let device = Loop::new(&bench.path("disk.img"));
        bench.run(&["convert", device.name()]);
    }
    judged(&bench, &bench.path("disk.img"), "in place");
    for image in ["new.img", "disk.img"] {
        let device = Loop::new(&bench.path(image));
        bench.run(&["convert", "--finish", "--compress", "zstd", device.name()]);
        drop(device);
        judged(&bench, &bench.path(image), "finished");
    }
}
