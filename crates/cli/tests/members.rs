//! Devices that are added, removed and replaced with the tool: on mounted and
//! unmounted volumes, and by users who are not root.

#[path = "members/running.rs"]
mod running;
mod support;

use std::fs;
use std::os::unix::fs::chown;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{BINARY, Bench, can_mount, is_root, said};

const NOT_STARTED: i32 = 2;

/// Bytes that nothing else on a volume has.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed + 1;
    let mut bytes = Vec::new();
    while bytes.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn file(bench: &Bench, name: &str, mib: u64) {
    let file = fs::File::create(bench.path(name)).unwrap();
    file.set_len(mib << 20).unwrap();
}

/// A volume of two devices in mirrors, with a file, and files for more.
fn mirrored() -> Bench {
    let bench = Bench::new();
    bench.run(&[
        "mkfs", "-q", "-b", "400m", "-d", "raid1", "-m", "raid1", "one.img", "two.img",
    ]);
    fs::write(bench.path("hello"), content(1, 20_000_000)).unwrap();
    bench.run(&["copy", "hello", "one.img:/hello"]);
    file(&bench, "three.img", 450);
    file(&bench, "four.img", 450);
    bench
}

fn fails(bench: &Bench, words: &[&str], expected: &str) -> Output {
    let output = bench.try_run(words);
    let text = said(&output);
    assert!(!output.status.success(), "{words:?}: {text}");
    assert!(text.contains(expected), "{words:?}: {text}");
    output
}

fn assert_whole(bench: &Bench, image: &str) {
    let read = bench.try_run(&["cat", &format!("{image}:/hello")]);
    assert!(read.stdout == content(1, 20_000_000), "{}", said(&read));
    let checked = bench.run(&["check", "--check-data-csum", image]);
    assert!(checked.contains("no faults found"), "{checked}");
}

fn copies(bench: &Bench, names: &[&str]) -> Vec<Vec<u8>> {
    let read = |name: &&str| fs::read(bench.path(name)).unwrap();
    names.iter().map(read).collect()
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let bench = mirrored();
    file(&bench, "small.img", 300);
    file(&bench, "tiny.img", 2);
    bench.run(&["mkfs", "-q", "-f", "three.img"]);
    let names = ["one.img", "two.img", "three.img", "small.img"];
    let before = copies(&bench, &names);
    let below = "unable to go below two devices on raid1";
    fails(&bench, &["device", "remove", "1", "one.img"], below);
    fails(&bench, &["device", "delete", "two.img", "one.img"], below);
    let none = "no missing devices found to remove";
    fails(&bench, &["device", "remove", "missing", "one.img"], none);
    let invalid = "'7' is not a valid devid";
    fails(&bench, &["device", "remove", "7", "one.img"], invalid);
    let no_device = "is no device of the volume";
    fails(
        &bench,
        &["device", "remove", "three.img", "one.img"],
        no_device,
    );
    let holds = "use the -f option to force overwrite";
    fails(&bench, &["device", "add", "three.img", "one.img"], holds);
    fails(
        &bench,
        &["replace", "start", "1", "three.img", "one.img"],
        holds,
    );
    // A device that can be added is not added if another one cannot be.
    fails(
        &bench,
        &["device", "add", "four.img", "three.img", "one.img"],
        holds,
    );
    fails(
        &bench,
        &["device", "add", "tiny.img", "one.img"],
        "must have",
    );
    fails(
        &bench,
        &["replace", "start", "1", "small.img", "one.img"],
        "must have",
    );
    fails(
        &bench,
        &["replace", "start", "9", "four.img", "one.img"],
        "valid devid",
    );
    // A device of the volume itself is in use.
    fails(
        &bench,
        &["device", "add", "-f", "two.img", "one.img"],
        "two.img is a device of the volume already",
    );
    fails(
        &bench,
        &["replace", "start", "-f", "1", "two.img", "one.img"],
        "two.img is device 2 of the volume already",
    );
    fails(
        &bench,
        &["filesystem", "resize", "7:+10m", "one.img"],
        "the volume has no device 7",
    );
    fails(
        &bench,
        &["filesystem", "resize", "1:16000000t", "one.img"],
        "one.img",
    );
    let cancelled = fails(&bench, &["replace", "cancel", "one.img"], "not started");
    assert_eq!(cancelled.status.code(), Some(NOT_STARTED));
    assert!(
        bench
            .run(&["replace", "status", "one.img"])
            .contains("Never started")
    );
    bench.run(&["mkfs", "-q", "-f", "four.img"]);
    let only = "unable to remove the only writeable device";
    fails(&bench, &["device", "remove", "1", "four.img"], only);
    assert!(copies(&bench, &names) == before, "something was written");
    assert_whole(&bench, "one.img");
}

/// The file of the device that is meant grows, whichever device names the
/// volume.
#[test]
fn each_device_is_resized_in_its_own_file() {
    let bench = mirrored();
    let length = |name: &str| fs::metadata(bench.path(name)).unwrap().len() >> 20;
    bench.run(&["filesystem", "resize", "2:+50m", "one.img"]);
    assert_eq!((length("one.img"), length("two.img")), (400, 450));
    bench.run(&["filesystem", "resize", "1:500m", "two.img"]);
    assert_eq!((length("one.img"), length("two.img")), (500, 450));
    let usage = bench.run(&["device", "usage", "-m", "one.img"]);
    assert!(
        usage.contains(" 500.00") && usage.contains(" 450.00"),
        "{usage}"
    );
    assert_whole(&bench, "two.img");
}

/// `replace start` without -B says so if it did not begin.
#[test]
fn a_replacement_beside_a_balance_begins_or_is_refused() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.run(&[
        "mkfs", "-q", "-b", "900m", "-d", "raid1", "one.img", "two.img",
    ]);
    file(&bench, "three.img", 900);
    let mounted = bench.mount_source("one.img", "rw", "mnt");
    for number in 0..8 {
        fs::write(
            bench.path(&format!("mnt/{number}")),
            content(number, 40_000_000),
        )
        .unwrap();
    }
    let mut refused = 0;
    for _ in 0..5 {
        let mut balance = Command::new(BINARY)
            .current_dir(bench.path(""))
            .args(["balance", "start", "--full-balance", "mnt"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let shown = || said(&bench.try_run(&["balance", "status", "mnt"]));
        while !shown().contains("is running") && balance.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = bench.try_run(&["replace", "start", "-f", "1", "three.img", "mnt"]);
        let status = bench.run(&["replace", "status", "-1", "mnt"]);
        balance.wait().unwrap();
        if start.status.success() {
            assert!(!status.contains("Never started"), "{status}");
            break;
        }
        let text = said(&start);
        assert!(text.contains("a balance is under way"), "{text}");
        refused += 1;
    }
    println!("refused {refused} times");
    while bench
        .run(&["replace", "status", "-1", "mnt"])
        .contains("% done")
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn devices_come_and_go_while_nobody_has_the_volume_mounted() {
    let bench = mirrored();
    bench.run(&["device", "add", "three.img", "four.img", "one.img"]);
    let shown = bench.run(&["filesystem", "show", "four.img"]);
    assert!(shown.contains("Total devices 4"), "{shown}");
    bench.run(&["device", "remove", "one.img", "2", "three.img"]);
    let shown = bench.run(&["filesystem", "show", "four.img"]);
    assert!(shown.contains("Total devices 2"), "{shown}");
    assert_whole(&bench, "three.img");
    for gone in ["one.img", "two.img"] {
        fails(&bench, &["info", gone], gone);
    }
    file(&bench, "one.img", 450);
    bench.run(&["replace", "start", "3", "one.img", "four.img"]);
    let status = bench.run(&["replace", "status", "four.img"]);
    assert!(status.contains("finished on"), "{status}");
    assert!(
        status.contains("0 write errs, 0 uncorr. read errs"),
        "{status}"
    );
    assert_whole(&bench, "one.img");
    fails(&bench, &["info", "three.img"], "three.img");
    // `replace` is below `device`, too.
    bench.run(&[
        "device",
        "replace",
        "start",
        "-r",
        "4",
        "three.img",
        "one.img",
    ]);
    assert_whole(&bench, "three.img");
}

#[test]
fn a_missing_or_stale_device_is_mended() {
    let bench = mirrored();
    let away = bench.path("away");
    fs::create_dir(&away).unwrap();
    fs::rename(bench.path("two.img"), away.join("two.img")).unwrap();
    fails(
        &bench,
        &["copy", "hello", "one.img:/more"],
        "device 2 (UUID",
    );
    // While a device is missing, no other device can be replaced.
    fails(
        &bench,
        &["replace", "start", "1", "three.img", "one.img"],
        "device 2 (UUID",
    );
    bench.run(&["replace", "start", "2", "three.img", "one.img"]);
    assert_whole(&bench, "three.img");
    // The replaced device is back, but it no longer counts as a part of the
    // volume.
    fs::rename(away.join("two.img"), bench.path("two.img")).unwrap();
    let shown = bench.run(&["filesystem", "show", "one.img"]);
    assert!(
        shown.contains("three.img") && !shown.contains("two.img"),
        "{shown}"
    );
    assert_whole(&bench, "one.img");
    // A device that becomes stale is its own target.
    if !can_mount() {
        return;
    }
    bench.run(&["device", "add", "four.img", "one.img"]);
    fs::rename(bench.path("four.img"), away.join("four.img")).unwrap();
    let mounted = bench.mount_source("one.img", "degraded", "mnt");
    fs::write(bench.path("mnt/later"), content(2, 3_000_000)).unwrap();
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    fs::rename(away.join("four.img"), bench.path("four.img")).unwrap();
    // Reading goes on without it, and says so.
    let read = bench.try_run(&["cat", "one.img:/later"]);
    assert!(read.status.success() && read.stdout == content(2, 3_000_000));
    let notes = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(notes.contains("has an old state"), "{notes}");
    let stale = "has an old state of device 3";
    fails(
        &bench,
        &["replace", "start", "3", "four.img", "one.img"],
        stale,
    );
    bench.run(&["replace", "start", "-f", "3", "four.img", "one.img"]);
    assert_whole(&bench, "four.img");
    let read = bench.try_run(&["cat", "four.img:/later"]);
    assert!(read.stdout == content(2, 3_000_000));
    // And gone for good.
    fs::remove_file(bench.path("four.img")).unwrap();
    bench.run(&["device", "remove", "missing", "one.img"]);
    assert_whole(&bench, "one.img");
}

/// Both commands about a device that came back treat it as missing, and a scrub
/// says that it does not verify it.
#[test]
fn a_stale_device_is_removed_as_missing() {
    if !can_mount() {
        return;
    }
    let bench = mirrored();
    bench.run(&["device", "add", "three.img", "one.img"]);
    fs::rename(bench.path("two.img"), bench.path("away")).unwrap();
    fs::create_dir(bench.path("elsewhere")).unwrap();
    fs::rename(bench.path("away"), bench.path("elsewhere/two.img")).unwrap();
    let mounted = bench.mount_source("one.img", "degraded", "mnt");
    fs::write(bench.path("mnt/later"), content(2, 3_000_000)).unwrap();
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    fs::rename(bench.path("elsewhere/two.img"), bench.path("two.img")).unwrap();
    let mounted = bench.mount_source("one.img", "degraded", "mnt");
    let scrubbed = said(&bench.try_run(&["scrub", "start", "-B", "mnt"]));
    assert!(
        scrubbed.contains("device 2 (") && scrubbed.contains("was not verified"),
        "{scrubbed}"
    );
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.run(&["device", "remove", "missing", "one.img"]);
    assert_whole(&bench, "one.img");
}

/// A target and an added device that are full in the middle.
#[test]
fn a_device_that_fails_on_the_way_is_named() {
    if !is_root() {
        return;
    }
    let bench = mirrored();
    fs::create_dir(bench.path("small")).unwrap();
    let status = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(bench.path("small"))
        .status();
    assert!(status.unwrap().success());
    let small = support::Kernel(bench.path("small"));
    file(&bench, "small/target.img", 450);
    let start = ["replace", "start", "-B", "2", "small/target.img", "one.img"];
    fails(&bench, &start, "small/target.img");
    let status = bench.run(&["replace", "status", "-1", "one.img"]);
    assert!(
        status.contains("canceled on") && status.contains("1 write errs"),
        "{status}"
    );
    assert_whole(&bench, "one.img");
    fs::remove_file(bench.path("small/target.img")).unwrap();
    if can_mount() {
        file(&bench, "small/third.img", 450);
        let mounted = bench.mount_source("one.img", "rw", "mnt");
        bench.run(&["device", "add", "small/third.img", "mnt"]);
        let convert = ["balance", "start", "-dconvert=raid1c3", "mnt"];
        fails(&bench, &convert, "has fewer copies than its profile says");
        bench.run(&["umount", "mnt"]);
        drop(mounted);
    }
    drop(small);
}

/// Tells writers to end, also if the test fails.
struct EndAtLast<'a>(&'a AtomicBool);

impl Drop for EndAtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writers and fsyncs go on while a mounted volume gets, loses and replaces
/// devices.
/// As a user names them: from the directory where the command runs, and perhaps
/// one of them twice.
#[test]
fn devices_in_the_options_of_a_mount_are_found_wherever_the_server_runs() {
    if !can_mount() {
        return;
    }
    let bench = mirrored();
    bench.run(&["device", "add", "three.img", "one.img"]);
    fs::hard_link(bench.path("two.img"), bench.path("again.img")).unwrap();
    let named = "device=two.img,device=./two.img,device=again.img,device=three.img,device=one.img";
    let mounted = bench.mount_source("one.img", named, "mnt");
    let shown = bench.run(&["device", "usage", "mnt"]);
    let three = bench.path("three.img");
    assert!(shown.contains(three.to_str().unwrap()), "{shown}");
    bench.run(&["device", "remove", "three.img", "mnt"]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    assert_whole(&bench, "one.img");
}

#[test]
fn mounted_volumes_change_devices_under_writers() {
    if !can_mount() {
        return;
    }
    let bench = mirrored();
    let mounted = bench.mount_source("one.img", "rw", "mnt");
    let ended = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = |first: u64| {
            let (bench, ended) = (&bench, &ended);
            scope.spawn(move || {
                let mut number = first;
                while !ended.load(Ordering::Acquire) {
                    let path = bench.path(&format!("mnt/{}", number % 40));
                    let bytes = content(number, 1000 + (number as usize * 7919) % 400_000);
                    fs::write(&path, &bytes).unwrap();
                    if number.is_multiple_of(3) {
                        fs::File::open(&path).unwrap().sync_all().unwrap();
                    }
                    number += 2;
                }
                number
            })
        };
        let (one, two) = (writer(0), writer(1));
        let _end = EndAtLast(&ended);
        bench.run(&["device", "add", "three.img", "mnt"]);
        bench.run(&["device", "remove", "1", "mnt"]);
        bench.run(&["replace", "start", "-B", "-f", "2", "four.img", "mnt"]);
        let resized = |mib: u64| {
            let file = fs::File::options().write(true).open(bench.path("one.img"));
            file.unwrap().set_len(mib << 20).unwrap();
        };
        resized(460);
        bench.run(&["replace", "start", "-f", "3", "one.img", "mnt"]);
        let begun = Instant::now();
        while !bench
            .run(&["filesystem", "show", "mnt"])
            .contains("one.img")
        {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
        // The device became larger after the mount.
        resized(600);
        while bench
            .run(&["replace", "status", "-1", "mnt"])
            .contains("done")
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        bench.run(&["filesystem", "resize", "3:max", "mnt"]);
        let usage = bench.run(&["device", "usage", "-b", "mnt"]);
        assert!(usage.contains(&(600_u64 << 20).to_string()), "{usage}");
        std::thread::sleep(Duration::from_millis(300));
        ended.store(true, Ordering::Release);
        [one.join().unwrap(), two.join().unwrap()]
    });
    let last = |slot: u64| {
        let of = written.iter().flat_map(|end| {
            let parity = end % 2;
            (0..*end).filter(move |number| number % 2 == parity && number % 40 == slot)
        });
        of.max()
    };
    let assert_all = |read: &dyn Fn(u64) -> Vec<u8>| {
        for slot in 0..40 {
            if let Some(number) = last(slot) {
                let wanted = content(number, 1000 + (number as usize * 7919) % 400_000);
                assert!(read(slot) == wanted, "file {slot}");
            }
        }
    };
    assert_all(&|slot| fs::read(bench.path(&format!("mnt/{slot}"))).unwrap());
    let shown = bench.run(&["filesystem", "show", "mnt"]);
    assert!(
        shown.contains("four.img") && shown.contains("one.img"),
        "{shown}"
    );
    assert!(
        !shown.contains("two.img") && !shown.contains("three.img"),
        "{shown}"
    );
    fails(&bench, &["device", "remove", "cancel", "mnt"], "no removal");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let read = |slot: u64| bench.try_run(&["cat", &format!("four.img:/{slot}")]).stdout;
    assert_all(&read);
    assert_whole(&bench, "four.img");
    // Each of the two has everything.
    for gone in ["one.img", "four.img"] {
        let other = if gone == "one.img" {
            "four.img"
        } else {
            "one.img"
        };
        fs::rename(bench.path(gone), bench.path("gone")).unwrap();
        let mounted = bench.mount_source(other, "ro,degraded", "mnt");
        assert_all(&|slot| fs::read(bench.path(&format!("mnt/{slot}"))).unwrap());
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        fs::rename(bench.path("gone"), bench.path(gone)).unwrap();
    }
}

/// Ctrl-C and kill -9 in the middle: the volume keeps its device, and what was
/// begun can be begun again.
#[test]
fn interrupted_in_the_middle() {
    let bench = Bench::new();
    bench.run(&[
        "mkfs", "-q", "-b", "900m", "-d", "single", "-m", "raid1", "one.img", "two.img",
    ]);
    fs::write(bench.path("hello"), content(1, 20_000_000)).unwrap();
    bench.run(&["copy", "hello", "one.img:/hello"]);
    for number in 0..8 {
        fs::write(bench.path("more"), content(number, 40_000_000)).unwrap();
        bench.run(&["copy", "more", &format!("one.img:/{number}")]);
    }
    file(&bench, "three.img", 900);
    let commands = [
        &["replace", "start", "-f", "1", "three.img", "two.img"][..],
        &["device", "remove", "1", "two.img"],
    ];
    for (which, words) in commands.iter().enumerate() {
        if which == 1 {
            bench.run(&["device", "add", "three.img", "two.img"]);
        }
        for (round, signal) in ["-KILL", "-INT", "-KILL", "-TERM"].iter().enumerate() {
            let mut child = Command::new(BINARY)
                .current_dir(bench.path(""))
                .args(*words)
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(20 + 60 * round as u64));
            let id = child.id().to_string();
            let _ = Command::new("kill").args([signal, &id[..]]).status();
            let status = child.wait().unwrap();
            if status.success() {
                // It was quicker, so nothing is left to interrupt.
                break;
            }
            assert_whole(&bench, "two.img");
            let shown = bench.run(&["filesystem", "show", "two.img"]);
            if !shown.contains("one.img") {
                // Killed after the last step.
                break;
            }
        }
        let shown = bench.run(&["filesystem", "show", "two.img"]);
        if shown.contains("one.img") {
            bench.run(words);
        }
        assert_whole(&bench, "two.img");
        let shown = bench.run(&["filesystem", "show", "two.img"]);
        assert!(!shown.contains("one.img"), "{shown}");
        if which == 0 {
            bench.run(&["replace", "start", "-f", "1", "one.img", "two.img"]);
        }
    }
}

/// Image files need no root.
#[test]
fn a_user_changes_devices_of_image_files() {
    const USER: u32 = 65534;
    if !is_root() {
        println!("skipped: the other tests run as a user already");
        return;
    }
    let bench = mirrored();
    let home = bench.path("");
    chown(&home, Some(USER), Some(USER)).unwrap();
    for name in ["one.img", "two.img", "three.img", "four.img"] {
        chown(bench.path(name), Some(USER), Some(USER)).unwrap();
    }
    // If other users cannot reach the binary, they use a copy.
    let binary = home.join("butterfs");
    fs::copy(BINARY, &binary).unwrap();
    let run = |words: &[&str]| {
        let user = USER.to_string();
        let output = Command::new("setpriv")
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .arg(&binary)
            .args(words)
            .current_dir(&home)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    };
    run(&["device", "add", "three.img", "one.img"]);
    run(&["device", "remove", "1", "two.img"]);
    run(&["replace", "start", "2", "four.img", "three.img"]);
    assert_whole(&bench, "three.img");
}

/// A volume that went on without a device is good, also while that device, with
/// chunks that are gone since, lies beside it.
#[test]
fn a_stale_device_beside_a_good_volume_is_no_fault() {
    if !can_mount() {
        return;
    }
    let bench = mirrored();
    fs::create_dir(bench.path("away")).unwrap();
    fs::rename(bench.path("two.img"), bench.path("away/two.img")).unwrap();
    let mounted = bench.mount_source("one.img", "degraded", "mnt");
    fs::remove_file(bench.path("mnt/hello")).unwrap();
    bench.run(&["filesystem", "sync", "mnt"]);
    bench.run(&["balance", "start", "--full-balance", "mnt"]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    fs::rename(bench.path("away/two.img"), bench.path("two.img")).unwrap();
    let checked = bench.try_run(&["check", "--check-data-csum", "one.img"]);
    let text = said(&checked);
    assert!(checked.status.success(), "{text}");
    assert!(text.contains("device 2 has an old state"), "{text}");
}
