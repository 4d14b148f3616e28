//! Images as they are: with partition tables, in forms of their own, with
//! something else in them.

mod support;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Bench, can_mount, said};

const MIB: u64 = 1 << 20;

/// A disk of 700 MiB with this table, as sfdisk writes it.
fn partitioned(bench: &Bench, name: &str, table: &str) -> bool {
    let file = File::create(bench.path(name)).expect("a file");
    file.set_len(700 * MIB).expect("its length");
    // Telling the kernel would also sync all file systems of this machine.
    let sfdisk = Command::new("sfdisk")
        .args(["--quiet", "--no-tell-kernel"])
        .arg(bench.path(name))
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut sfdisk) = sfdisk else {
        println!("skipped: sfdisk is not installed");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return false;
    };
    let mut input = sfdisk.stdin.take().expect("a pipe");
    input.write_all(table.as_bytes()).expect("the table");
    drop(input);
    assert!(sfdisk.wait().expect("its status").success(), "{name}");
    true
}

/// Copies the volume of the bench to an offset of an image.
fn put_volume(bench: &Bench, image: &str, offset: u64) {
    let volume = File::open(bench.path("volume")).expect("the volume");
    let image = File::options().write(true).open(bench.path(image));
    let image = image.expect("the image");
    let mut buffer = vec![0; MIB as usize];
    let length = volume.metadata().expect("attributes").len();
    for at in (0..length).step_by(MIB as usize) {
        volume.read_exact_at(&mut buffer, at).expect("a part");
        if buffer.iter().any(|byte| *byte != 0) {
            image.write_all_at(&buffer, offset + at).expect("a part");
        }
    }
}

fn refused(bench: &Bench, words: &[&str], texts: &[&str]) {
    let output = bench.try_run(words);
    let text = said(&output);
    assert!(!output.status.success(), "{words:?}: {text}");
    for expected in texts {
        assert!(
            text.contains(expected),
            "{words:?}: no `{expected}` in: {text}"
        );
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// All commands that look into an image find the volume in its partition.
fn looked_into(bench: &Bench, image: &str, part: &[&str]) {
    let root = format!("{image}:/");
    let file = format!("{image}:/note");
    let with = |words: &[&str]| bench.run(&[&words[..1], part, &words[1..]].concat());
    assert_eq!(with(&["cat", &file]), "hello\n");
    assert!(with(&["ls", &root]).contains("note\n"));
    let info = with(&["info", image]);
    assert!(info.contains("trial"), "{info}");
    assert!(info.contains(&part.join(" ")), "{info}");
    with(&["check", image]);
    let out = bench.path("out");
    with(&["copy", "-q", &file, out.to_str().expect("a path")]);
    assert_eq!(std::fs::read_to_string(&out).expect("the copy"), "hello\n");
    std::fs::remove_file(&out).expect("the copy goes");
    // Into it, and nothing beside it.
    let before = std::fs::read(bench.path(image)).expect("the image");
    std::fs::write(&out, "more\n").expect("a file");
    with(&["copy", "-q", out.to_str().expect("a path"), &root]);
    assert_eq!(with(&["cat", &format!("{image}:/out")]), "more\n");
    let after = std::fs::read(bench.path(image)).expect("the image");
    let outside = |bytes: &[u8]| bytes[..(80 * MIB) as usize].to_vec();
    assert!(
        outside(&before) == outside(&after),
        "it wrote beside the partition"
    );
    std::fs::remove_file(&out).expect("the file goes");
}

#[test]
fn volumes_in_partitions() {
    let bench = Bench::new();
    std::fs::write(bench.path("note"), "hello\n").expect("a file");
    bench.run(&["copy", "-q", "note", "volume:/"]);
    let start = 80 * MIB / 512;
    let gpt = format!(
        "label: gpt\nsize=64MiB, name=boot, start=2048\nsize=540MiB, name=root, start={start}\n"
    );
    if !partitioned(&bench, "gpt", &gpt) {
        return;
    }
    put_volume(&bench, "gpt", 80 * MIB);
    // A primary and an extended partition; the volume is in a logical one.
    let mbr = format!(
        "label: dos\nsize=64MiB, start=2048\ntype=5, start={}\nstart={start}, size=540MiB\n",
        start - 2048
    );
    partitioned(&bench, "mbr", &mbr);
    put_volume(&bench, "mbr", 80 * MIB);

    for words in [
        &["info", "gpt"][..],
        &["ls", "gpt"],
        &["cat", "gpt:/note"],
        &["copy", "-q", "gpt:/note", "out"],
        &["check", "gpt"],
        &["mount", "gpt", "mnt"],
    ] {
        refused(
            &bench,
            words,
            &["GPT", "partition 2 (root, 540 MiB)", "--partition 2"],
        );
    }
    refused(&bench, &["info", "mbr"], &["MBR", "partition 5 (540 MiB)"]);
    refused(
        &bench,
        &["info", "--partition", "3", "gpt"],
        &["no partition 3", "1, 2"],
    );
    refused(
        &bench,
        &["info", "--partition", "1", "volume"],
        &["no partition table"],
    );
    refused(
        &bench,
        &["info", "--partition", "1", "gpt"],
        &["holds no Btrfs"],
    );
    looked_into(&bench, "gpt", &["--partition", "2"]);
    looked_into(&bench, "mbr", &["--partition", "5"]);
    let offset = (80 * MIB).to_string();
    looked_into(&bench, "gpt", &["--offset", &offset]);

    // Its copy at the end serves where the table in front is damaged.
    let image = File::options().write(true).open(bench.path("gpt"));
    image
        .expect("the image")
        .write_all_at(&[7; 8], 600)
        .expect("damage");
    looked_into(&bench, "gpt", &["--partition", "2"]);

    if can_mount() {
        for option in ["partition=2".to_owned(), format!("offset={offset}")] {
            let mounted = bench.mount_source("gpt", &option, "mnt");
            let note = std::fs::read_to_string(mounted.0.join("note"));
            assert_eq!(note.expect("the file"), "hello\n");
            std::fs::write(mounted.0.join("written"), "x").expect("a file");
            // All of the image is another thing, also while this is mounted.
            std::fs::create_dir_all(bench.path("other")).expect("a mountpoint");
            refused(&bench, &["mount", "gpt", "other"], &[]);
            refused(&bench, &["mount", "-o", "partition=1", "gpt", "other"], &[]);
            bench.run(&["umount", "mnt"]);
            bench.run(&["check", "--check-data-csum", "--partition", "2", "gpt"]);
        }
    }
}

#[test]
fn what_is_no_volume_is_named() {
    let bench = Bench::new();
    let file = |name: &str, bytes: &[u8]| {
        let file = File::create(bench.path(name)).expect("a file");
        file.set_len(64 * MIB).expect("its length");
        file.write_all_at(bytes, 0).expect("its head");
    };
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(bench.path("ext4"))
        .arg("64m")
        .output();
    if made.is_ok_and(|made| made.status.success()) {
        for command in ["info", "ls", "check"] {
            refused(&bench, &[command, "ext4"], &["holds ext4, not Btrfs"]);
        }
        refused(
            &bench,
            &["mount", "ext4", "mnt"],
            &["holds ext4, not Btrfs"],
        );
    } else {
        println!("skipped: mkfs.ext4 is not installed");
    }
    file("old.vmdk", b"KDMV");
    refused(
        &bench,
        &["info", "old.vmdk"],
        &["qemu-img convert -f vmdk -O raw"],
    );
    file("dynamic.vhd", b"conectix");
    refused(
        &bench,
        &["info", "dynamic.vhd"],
        &["qemu-img convert -f vpc -O raw"],
    );
    file("packed", &[0x28, 0xb5, 0x2f, 0xfd]);
    refused(&bench, &["ls", "packed"], &["zstd --decompress"]);
    file("blank", b"");
    refused(&bench, &["info", "blank"], &["no Btrfs volume"]);
    // What the error says works.
    let converted = |from: &Path, to: &str, format: &str| {
        Command::new("qemu-img")
            .args(["convert", "-O", format])
            .arg(from)
            .arg(bench.path(to))
            .status()
    };
    match converted(&bench.path("volume"), "disk.qcow2", "qcow2") {
        Ok(status) => {
            assert!(status.success());
            refused(
                &bench,
                &["info", "disk.qcow2"],
                &["qemu-img convert -f qcow2 -O raw"],
            );
            let back = converted(&bench.path("disk.qcow2"), "disk.img", "raw");
            assert!(back.expect("qemu-img runs").success());
            assert!(bench.run(&["info", "disk.img"]).contains("trial"));
        }
        Err(_) => println!("skipped: qemu-img is not installed"),
    }
}

/// What is on a target of `image -r` is lost only where somebody says so.
#[test]
fn an_image_is_restored_over_nothing_that_is_known() {
    let bench = Bench::new();
    std::fs::write(bench.path("note"), "kept\n").expect("a file");
    bench.run(&["copy", "-q", "note", "volume:/"]);
    bench.run(&["mkfs", "-q", "-b", "512m", "-L", "other", "other"]);
    bench.run(&["image", "other", "packed"]);
    let asked = &["a file system (btrfs)", "use -f to overwrite"];
    refused(&bench, &["image", "-r", "packed", "volume"], asked);
    if partitioned(&bench, "disk", "label: gpt\n,\n") {
        let asked = &["a partition table (GPT)", "use -f"];
        refused(&bench, &["image", "-r", "packed", "disk"], asked);
    }
    refused(
        &bench,
        &["image", "-r", "packed", "packed"],
        &["the image itself"],
    );
    refused(
        &bench,
        &["image", "-r", "-m", "packed", "new", "./volume"],
        asked,
    );
    assert!(!bench.path("new").exists());
    assert_eq!(bench.run(&["cat", "volume:/note"]), "kept\n");
    bench.check();
    // A file with nothing known in it is taken.
    std::fs::write(bench.path("new"), "text").expect("a file");
    for words in [
        ["image", "-r", "packed", "new"].as_slice(),
        &["image", "-r", "-f", "packed", "volume"],
        &["image", "-r", "--force", "packed", "new"],
    ] {
        bench.run(words);
        let target = words.last().expect("a target");
        assert!(bench.run(&["info", target]).contains("other"), "{words:?}");
    }
}

/// What has no end is refused where it begins.
#[test]
fn what_is_no_metadata_image_is_not_stored() {
    let bench = Bench::new();
    let output = Command::new("timeout")
        .args(["10", support::BINARY, "image", "-r", "/dev/zero"])
        .arg(bench.path("new"))
        .env("TMPDIR", bench.path(""))
        .output()
        .expect("timeout runs");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("/dev/zero: it is no metadata image"),
        "{text}"
    );
    assert!(!bench.path("new").exists());
    // One that comes through a pipe is stored and read.
    let script = format!("{0} image volume - | {0} image -r - new", support::BINARY);
    let piped = Command::new("sh")
        .args(["-c", &script])
        .current_dir(bench.path(""))
        .output()
        .expect("sh runs");
    assert!(piped.status.success(), "{}", said(&piped));
    assert!(bench.run(&["info", "new"]).contains("trial"));
}

#[test]
fn one_screen_about_a_volume() {
    let bench = Bench::new();
    bench.run(&["subvolume", "create", "volume:/home"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-r",
        "volume:/home",
        "volume:/home.1",
    ]);
    let info = bench.run(&["info", "volume"]);
    for text in [
        "trial — volume",
        "2, one of them a snapshot",
        "└── home.1",
        "read-only snapshot of home",
        "sparse",
        "free-space tree",
        "counted no errors",
        "butterfs mount volume DIRECTORY",
    ] {
        assert!(info.contains(text), "no `{text}` in {info}");
    }
    assert!(info.lines().count() <= 30, "{info}");
    let json = bench.run(&["info", "--json", "volume"]);
    for text in [
        "\"label\": \"trial\"",
        "\"snapshot\": true",
        "\"log_waits\": false",
    ] {
        assert!(json.contains(text), "no `{text}` in {json}");
    }
    if can_mount() {
        let mounted = bench.mount("rw");
        let info = bench.run(&["info", "mnt"]);
        assert!(info.contains("└── home.1"), "{info}");
        drop(mounted);
    }
}
