//! Volumes of several devices with the tool: made, mounted, shown, degraded.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use support::{Bench, Loop, can_mount, is_root, said};

const FILES: [&str; 3] = ["one.img", "two.img", "three.img"];

fn make(bench: &Bench, profile: &str, files: &[&str]) {
    let words = [
        "mkfs", "-q", "-b", "300m", "-L", "striped", "-d", profile, "-m", "raid1",
    ];
    bench.run(&[&words[..], files].concat());
}

fn fails(bench: &Bench, words: &[&str], expected: &str) {
    let output = bench.try_run(words);
    let text = said(&output);
    assert!(!output.status.success(), "{words:?}: {text}");
    assert!(text.contains(expected), "{words:?}: {text}");
}

#[test]
fn files_of_a_directory_are_one_volume() {
    let bench = Bench::new();
    make(&bench, "raid0", &FILES);
    fs::write(bench.path("hello"), vec![7; 3_000_000]).unwrap();
    bench.run(&["copy", "hello", "two.img:/hello"]);
    let read = bench.try_run(&["cat", "three.img:/hello"]);
    assert!(read.stdout == vec![7; 3_000_000], "{}", said(&read));
    assert!(bench.run(&["ls", "one.img"]).contains("hello"));
    let shown = bench.run(&["filesystem", "show", "two.img"]);
    assert!(shown.contains("Total devices 3"), "{shown}");
    for (id, file) in (1..).zip(FILES) {
        let line = shown
            .lines()
            .find(|line| line.contains(&format!("devid    {id} ")));
        assert!(line.is_some_and(|line| line.ends_with(file)), "{shown}");
    }
    let checked = bench.run(&["check", "--check-data-csum", "three.img"]);
    assert!(checked.contains("no faults found"), "{checked}");
    let stats = bench.run(&["device", "stats", "one.img"]);
    assert_eq!(stats.lines().count(), 15, "{stats}");
    let usage = bench.run(&["device", "usage", "one.img"]);
    assert!(usage.contains("ID: 3"), "{usage}");
    let found = bench.run(&["device", "scan", "."]);
    assert_eq!(found.matches("Label: 'striped'").count(), 1, "{found}");
    assert!(found.contains("Label: 'trial'"), "{found}");
    bench.run(&["device", "ready", "one.img"]);
    fs::remove_file(bench.path("two.img")).unwrap();
    fails(
        &bench,
        &["device", "ready", "one.img"],
        "2 of the 3 devices",
    );
    // Reading goes on without it, as far as its content is not needed.
    let without = "warning: one.img is read without some of its devices: device 2 (UUID";
    fails(&bench, &["cat", "one.img:/hello"], without);
    fails(&bench, &["copy", "one.img:/hello", "out"], without);
    fails(&bench, &["mkdir", "one.img:/dir"], "mount -o degraded");
    for words in [
        &["ls", "one.img"][..],
        &["info", "one.img"],
        &["filesystem", "show", "one.img"],
        &["filesystem", "usage", "one.img"],
        &["device", "usage", "one.img"],
    ] {
        let output = bench.try_run(words);
        let text = said(&output);
        assert!(output.status.success(), "{words:?}: {text}");
        assert!(text.contains(without), "{words:?}: {text}");
    }
    let shown = bench.run(&["filesystem", "show", "one.img"]);
    assert!(shown.contains("MISSING"), "{shown}");
    let found = bench.run(&["device", "scan", "."]);
    assert!(found.contains("Some devices missing"), "{found}");
}

#[test]
fn what_cannot_be_made_is_said() {
    let bench = Bench::new();
    let raid1c3 = [
        "mkfs", "-q", "-b", "300m", "-d", "raid1c3", "a.img", "b.img",
    ];
    fails(&bench, &raid1c3, "at least 3 devices, not 2");
    for (size, reason) in [("9m", "too small"), ("17m", "does not fit")] {
        fails(
            &bench,
            &["mkfs", "-q", "-b", size, "a.img", "b.img"],
            reason,
        );
    }
    for name in ["a.img", "b.img"] {
        assert!(!bench.path(name).exists(), "{name} was made for nothing");
    }
}

#[test]
fn the_same_device_twice_is_refused() {
    let bench = Bench::new();
    make(&bench, "raid1", &["one.img", "two.img"]);
    fs::File::create(bench.path("new.img"))
        .unwrap()
        .set_len(300 << 20)
        .unwrap();
    fs::hard_link(bench.path("new.img"), bench.path("link.img")).unwrap();
    let twice = "new.img is named twice";
    fails(
        &bench,
        &["device", "add", "new.img", "new.img", "one.img"],
        twice,
    );
    fails(&bench, &["mkfs", "new.img", "new.img"], twice);
    let same = "link.img are the same device";
    fails(
        &bench,
        &["device", "add", "new.img", "link.img", "one.img"],
        same,
    );
    fails(&bench, &["mkfs", "new.img", "link.img"], same);
}

#[test]
fn a_damaged_first_superblock_does_not_hide_the_other_devices() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    make(&bench, "raid1", &["one.img", "two.img"]);
    let file = fs::File::options()
        .write(true)
        .open(bench.path("one.img"))
        .unwrap();
    file.write_all_at(b"X", 66_000).unwrap();
    drop(file);
    let mounted = bench.mount_source("one.img", "rw", "mnt");
    fs::write(bench.path("mnt/file"), "something").unwrap();
    let shown = bench.run(&["filesystem", "show", "mnt"]);
    assert!(!shown.contains("MISSING"), "{shown}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

/// The error counter of a device.
fn corruption(bench: &Bench, place: &str, device: &str) -> u64 {
    let stats = bench.run(&["device", "stats", place]);
    let mut lines = stats.lines();
    let line = lines.find(|line| line.contains(device) && line.contains("corruption_errs"));
    let number = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
    number.unwrap_or_else(|| panic!("{stats}"))
}

#[test]
fn a_bad_sector_is_charged_to_its_device() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    make(&bench, "raid0", &["one.img", "two.img"]);
    let mounted = bench.mount_source("one.img", "rw", "mnt");
    let content: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(bench.path("mnt/file"), &content).unwrap();
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    // A sector in the middle of the file.
    let sector = &content[4096 * 100..][..4096];
    let holds = |name: &&str| {
        let image = fs::read(bench.path(name)).unwrap();
        let at = image.chunks(4096).position(|found| found == sector);
        at.map(|at| at as u64 * 4096)
    };
    let bad = ["one.img", "two.img"]
        .iter()
        .find_map(|name| Some((*name, holds(name)?)));
    let (name, at) = bad.expect("the sector lies on a device");
    let good = if name == "one.img" {
        "two.img"
    } else {
        "one.img"
    };
    let file = fs::File::options().write(true).open(bench.path(name));
    file.unwrap().write_all_at(&[0xff; 64], at).unwrap();
    let mounted = bench.mount_source("one.img", "rw", "mnt");
    assert!(fs::read(bench.path("mnt/file")).is_err());
    assert!(corruption(&bench, "mnt", name) > 0);
    assert_eq!(corruption(&bench, "mnt", good), 0);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

/// The kernel divides the size of the devices by the copies of the data.
#[test]
fn statfs_is_as_in_the_kernel() {
    if !can_mount() || !is_root() {
        return;
    }
    for profile in ["single", "raid0", "raid1"] {
        let bench = Bench::new();
        make(&bench, profile, &["one.img", "two.img"]);
        let mounted = bench.mount_source("one.img", "rw", "mnt");
        fs::write(bench.path("mnt/file"), vec![7; 50 << 20]).unwrap();
        let fd = fs::File::open(bench.path("mnt")).unwrap();
        rustix::fs::syncfs(&fd).unwrap();
        drop(fd);
        let facts = |point: &str| rustix::fs::statvfs(bench.path(point)).unwrap();
        let ours = facts("mnt");
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        let loops = ["one.img", "two.img"].map(|name| Loop::new(&bench.path(name)));
        let options = loops
            .each_ref()
            .map(|of| format!("device={}", of.name()))
            .join(",");
        fs::create_dir(bench.path("kernel")).unwrap();
        let status = std::process::Command::new("mount")
            .args(["-t", "btrfs", "-o", &options, loops[0].name()])
            .arg(bench.path("kernel"))
            .status();
        assert!(status.unwrap().success());
        let mounted = support::Kernel(bench.path("kernel"));
        let theirs = facts("kernel");
        drop(mounted);
        let size = |facts: &rustix::fs::StatVfs, blocks: u64| blocks * facts.f_frsize;
        let all = size(&theirs, theirs.f_blocks);
        assert_eq!(size(&ours, ours.f_blocks), all, "{profile}");
        let used = |facts: &rustix::fs::StatVfs| size(facts, facts.f_blocks - facts.f_bfree);
        // The kernel counts its reserve for metadata as used.
        let apart = used(&theirs).abs_diff(used(&ours));
        assert!(
            apart < 8 << 20,
            "{profile}: {} and {}",
            used(&ours),
            used(&theirs)
        );
    }
}

#[test]
fn a_mount_of_several_devices_goes_on_without_one() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("elsewhere")).unwrap();
    let files = ["one.img", "elsewhere/two.img"];
    make(&bench, "raid1", &files);
    fails(&bench, &["mount", "one.img", "mnt"], "device 2 (UUID");
    let mounted = bench.mount_source("one.img", "device=elsewhere/two.img", "mnt");
    fs::write(bench.path("mnt/kept"), vec![1; 2_000_000]).unwrap();
    let shown = bench.run(&["filesystem", "show", "mnt"]);
    assert!(shown.contains("elsewhere/two.img"), "{shown}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let mounted = bench.mount_source("elsewhere/two.img", "degraded", "mnt");
    assert!(fs::read(bench.path("mnt/kept")).unwrap() == vec![1; 2_000_000]);
    fs::write(bench.path("mnt/later"), vec![2; 2_000_000]).unwrap();
    let shown = bench.run(&["filesystem", "show", "mnt"]);
    assert!(shown.contains("MISSING"), "{shown}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let both = ["mount", "-o", "device=elsewhere/two.img", "one.img", "mnt"];
    fails(&bench, &both, "has an old state");
    let options = "ro,degraded,device=elsewhere/two.img";
    let mounted = bench.mount_source("one.img", options, "mnt");
    assert!(fs::read(bench.path("mnt/later")).unwrap() == vec![2; 2_000_000]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn block_devices_are_found() {
    if !can_mount() || !is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    make(&bench, "raid1", &FILES[..2]);
    let loops = FILES[..2].iter().map(|file| Loop::new(&bench.path(file)));
    let loops: Vec<Loop> = loops.collect();
    let device = loops[1].name();
    let mounted = bench.mount_source(device, "rw", "mnt");
    fs::write(bench.path("mnt/file"), vec![3; 1_000_000]).unwrap();
    let shown = bench.run(&["filesystem", "show", "mnt"]);
    for device in &loops {
        assert!(shown.contains(device.name()), "{shown}");
    }
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    drop(loops);
    // Rot on one of them is read around and reported.
    let file = fs::File::options()
        .write(true)
        .open(bench.path("one.img"))
        .unwrap();
    file.write_all_at(&vec![0xee; 200 << 20], 66 << 20).unwrap();
    drop(file);
    let read = bench.try_run(&["cat", "one.img:/file"]);
    assert!(read.stdout == vec![3; 1_000_000], "{}", said(&read));
}

/// Otherwise metadata would lose their second copy with the data.
#[test]
fn mixed_block_groups_are_balanced_by_the_same_filters() {
    let bench = Bench::new();
    bench.run(&[
        "mkfs", "-q", "-f", "-M", "-b", "300m", "-d", "dup", "-m", "dup", "volume",
    ]);
    let both = "-d and -m must be the same";
    for filters in [
        &["-dconvert=single"][..],
        &["-dusage=50"],
        &["-f", "-dconvert=single", "-mconvert=dup"],
    ] {
        let words = [&["balance", "start"], filters, &["volume"]].concat();
        fails(&bench, &words, both);
    }
    let single = ["-dconvert=single", "-mconvert=single"];
    let words = [&["balance", "start"], &single[..], &["volume"]].concat();
    fails(&bench, &words, "fewer copies");
    bench.check();
    assert!(bench.run(&["filesystem", "df", "volume"]).contains("DUP"));
    let words = [&["balance", "start", "-f"], &single[..], &["volume"]].concat();
    bench.run(&words);
    bench.check();
    assert!(!bench.run(&["filesystem", "df", "volume"]).contains("DUP"));
}

#[test]
fn a_scrub_without_a_limit_may_say_so() {
    let bench = Bench::new();
    bench.run(&["scrub", "start", "-B", "--limit", "0", "volume"]);
}

/// No udev tells the kernel of them.
#[test]
fn the_kernel_mounts_new_block_devices_by_one_of_them() {
    if !is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    for name in &FILES[..2] {
        let file = fs::File::create(bench.path(name)).unwrap();
        file.set_len(300 << 20).unwrap();
    }
    let loops: Vec<Loop> = FILES[..2]
        .iter()
        .map(|file| Loop::new(&bench.path(file)))
        .collect();
    bench.run(&[
        "mkfs",
        "-q",
        "-d",
        "raid1",
        loops[0].name(),
        loops[1].name(),
    ]);
    let directory = bench.path("kernel");
    fs::create_dir(&directory).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "btrfs"])
        .args([loops[0].0.as_path(), &directory])
        .output()
        .unwrap();
    assert!(mounted.status.success(), "{}", said(&mounted));
    drop(support::Kernel(directory));
}
