//! What goes on while other commands look at it or end it.

use super::{content, fails};
use crate::support::{BINARY, Bench, can_mount, said};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Waits until a balance has ended.
fn balanced(bench: &Bench, volume: &str) {
    for _ in 0..1500 {
        let status = said(&bench.try_run(&["balance", "status", volume]));
        if status.contains("No balance found") {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it goes on");
}

#[test]
fn a_balance_goes_on_in_the_background() {
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-b", "900m", "one.img"]);
    for number in 0..6 {
        let name = format!("{number}");
        fs::write(bench.path(&name), content(number, 20_000_000)).unwrap();
        bench.run(&["copy", &name, &format!("one.img:/{number}")]);
    }
    let start = ["balance", "start", "--background", "-dconvert=dup"];
    bench.run(&[&start[..], &["one.img"]].concat());
    // The file is locked while it goes on.
    balanced(&bench, "one.img");
    let df = bench.run(&["filesystem", "df", "one.img"]);
    assert!(df.contains("Data, DUP"), "{df}");
    fails(
        &bench,
        &["balance", "start", "--bg", "-dconvert=raid1", "one.img"],
        "RAID1",
    );
    if can_mount() {
        let mounted = bench.mount_source("one.img", "rw", "mnt");
        bench.run(&[
            "balance",
            "start",
            "--background",
            "-dconvert=single",
            "mnt",
        ]);
        balanced(&bench, "mnt");
        let df = bench.run(&["filesystem", "df", "mnt"]);
        assert!(df.contains("Data, single"), "{df}");
        bench.run(&["umount", "mnt"]);
        drop(mounted);
    }
    bench.run(&["check", "--check-data-csum", "one.img"]);
}

/// The spellings of btrfs-progs 6.15 and before.
#[test]
fn several_devices_are_removed_with_force() {
    let bench = Bench::new();
    let names = ["a.img", "b.img", "c.img", "d.img"];
    bench.run(
        &[
            &["mkfs", "-q", "-b", "300m", "-d", "single", "-m", "single"],
            &names[..],
        ]
        .concat(),
    );
    bench.run(&["device", "delete", "--force", "2", "3", "a.img"]);
    bench.run(&["device", "remove", "-f", "4", "a.img"]);
    let shown = bench.run(&["filesystem", "show", "a.img"]);
    assert!(shown.contains("Total devices 1"), "{shown}");
}

#[test]
fn a_resize_that_runs_is_cancelled() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-b", "2g", "one.img"]);
    let mounted = bench.mount_source("one.img", "rw", "mnt");
    for number in 0..12 {
        let name = bench.path(&format!("mnt/{number}"));
        fs::write(name, content(number, 40_000_000)).unwrap();
    }
    fails(
        &bench,
        &["filesystem", "resize", "cancel", "mnt"],
        "no resize runs",
    );
    bench.run(&["filesystem", "sync", "mnt"]);
    for number in 0..6 {
        fs::remove_file(bench.path(&format!("mnt/{number}"))).unwrap();
    }
    bench.run(&["filesystem", "sync", "mnt"]);
    let mut resize = Command::new(BINARY)
        .current_dir(bench.path(""))
        .args(["filesystem", "resize", "300m", "mnt"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let cancel = || bench.try_run(&["filesystem", "resize", "cancel", "mnt"]);
    let mut is_cancelled = false;
    while !is_cancelled && resize.try_wait().unwrap().is_none() {
        is_cancelled = cancel().status.success();
    }
    assert!(is_cancelled, "it ended before it could be cancelled");
    let ended = resize.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let text = said(&ended);
    assert!(text.contains("the volume has its old size"), "{text}");
    let usage = bench.run(&["device", "usage", "-m", "mnt"]);
    assert!(usage.contains(" 2048.00"), "{usage}");
    bench.run(&["filesystem", "resize", "1:900m", "mnt"]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.run(&["check", "--check-data-csum", "one.img"]);
}
