//! Volumes that the kernel has mounted: what changes them asks the kernel.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Bench, Kernel, Loop, is_root, said};

/// A volume that the kernel made and mounted, with files, and three devices
/// that are free.
struct World {
    bench: Bench,
    // In this order: what is mounted is unmounted before its devices go.
    mount: Kernel,
    devices: Vec<Loop>,
}

impl World {
    /// With sparse devices of this many GiB.
    fn new(size: u64) -> Option<Self> {
        if !is_root() {
            println!("skipped: kernel mounts need root");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return None;
        }
        let bench = Bench::new();
        let files = ["one", "two", "three", "four"];
        let devices = files.map(|name| {
            let file = fs::File::create(bench.path(name)).expect("a file");
            file.set_len(size << 30).expect("its size");
            Loop::new(&bench.path(name))
        });
        ran("mkfs.btrfs", &["-q", "-f", devices[0].name()]);
        let point = bench.path("kernel");
        fs::create_dir(&point).expect("a mountpoint");
        ran("mount", &[devices[0].name(), point.to_str().expect("text")]);
        let world = Self {
            mount: Kernel(point),
            devices: devices.into(),
            bench,
        };
        for number in 0..24_u8 {
            let name = world.at(&format!("file {number}"));
            fs::write(name, vec![number; 2_000_000]).expect("a file");
        }
        ran("sync", &["-f", world.point()]);
        Some(world)
    }

    fn point(&self) -> &str {
        self.mount.0.to_str().expect("text")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mount.0.join(name)
    }

    fn device(&self, number: usize) -> &str {
        self.devices[number].name()
    }

    /// Runs what must succeed at the mountpoint.
    fn run(&self, words: &[&str]) -> String {
        self.bench.run(&[words, &[self.point()]].concat())
    }

    /// Runs what must end with this exit code, and print this text.
    fn ends(&self, words: &[&str], code: i32, text: &str) {
        let output = self.bench.try_run(&[words, &[self.point()]].concat());
        let told = said(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {told}");
        assert!(told.contains(text), "{words:?}: {told}");
    }

    fn devices_shown(&self) -> Vec<String> {
        let shown = self.run(&["filesystem", "show"]);
        let lines = shown.lines().filter(|line| line.contains("devid"));
        lines.map(str::to_owned).collect()
    }
}

fn ran(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {words:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `is_so`, for 30 seconds at most.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn devices_come_go_and_are_replaced() {
    // On smaller devices Linux 6.18 finds no room to set the metadata's block
    // group aside, as it must before it copies a device.
    let Some(world) = World::new(8) else {
        return;
    };
    world.run(&["device", "add", world.device(1)]);
    assert_eq!(world.devices_shown().len(), 2);
    world.ends(&["device", "add", world.device(1)], 1, "in use");
    let file = world.bench.path("three");
    let file = file.to_str().expect("text");
    world.ends(&["device", "add", file], 1, "losetup -f --show");
    // What holds a file system is taken with -f alone.
    ran("mkfs.ext4", &["-q", "-F", world.device(2)]);
    world.ends(&["device", "add", world.device(2)], 1, "use the -f option");

    world.run(&["balance", "start", "-dconvert=raid1", "-mconvert=raid1"]);
    let used = world.run(&["filesystem", "df"]);
    assert!(used.contains("Data, RAID1"), "{used}");
    assert!(!used.contains("Data, single"), "{used}");
    world.ends(&["device", "remove", "2"], 1, "needs 2 devices");
    world.ends(&["device", "remove", "7"], 1, "no device of the volume");
    world.ends(&["device", "remove", "missing"], 1, "device");

    world.ends(
        &["replace", "start", "2", world.device(2)],
        1,
        "use the -f option",
    );
    world.ends(&["replace", "status"], 0, "Never started");
    world.run(&["replace", "start", "-B", "-f", "2", world.device(2)]);
    world.ends(&["replace", "status"], 0, "finished on");
    // Nothing says any more what the target held.
    let found = ran(
        "wipefs",
        &["--noheadings", "--output", "TYPE", world.device(2)],
    );
    assert_eq!(found.trim(), "btrfs");
    let shown = world.devices_shown().join("\n");
    assert!(shown.contains(world.device(2)), "{shown}");
    assert!(!shown.contains(world.device(1)), "{shown}");
    // By its path, in the background.
    world.run(&["replace", "start", world.device(2), world.device(3)]);
    until("replaced", || {
        world
            .devices_shown()
            .iter()
            .any(|line| line.contains(world.device(3)))
    });
    world.ends(&["replace", "cancel"], 2, "not started");

    // The kernel shows the new device a moment before it lets others change.
    until("free for other changes", || {
        let words = ["device", "add", "-f", world.device(1), world.point()];
        world.bench.try_run(&words).status.success()
    });
    world.run(&["device", "remove", world.device(3)]);
    assert_eq!(world.devices_shown().len(), 2);
    world.ends(&["device", "remove", "cancel"], 1, "no removal");
    for number in 0..24_u8 {
        let content = fs::read(world.at(&format!("file {number}"))).expect("a file");
        assert!(content == vec![number; 2_000_000], "file {number}");
    }
    let World { mount, devices, .. } = world;
    drop(mount);
    ran("btrfs", &["check", "--check-data-csum", devices[0].name()]);
}

#[test]
fn balances_are_begun_paused_and_ended() {
    let Some(world) = World::new(1) else {
        return;
    };
    world.ends(&["balance", "status"], 0, "No balance found");
    world.ends(&["balance", "pause"], 2, "no balance runs");
    world.ends(&["balance", "cancel"], 2, "no balance runs or waits");
    world.ends(&["balance", "resume"], 2, "no balance waits");
    let planned = world.run(&["balance", "plan", "-d"]);
    assert!(planned.contains("Nothing was written"), "{planned}");
    world.ends(
        &["balance", "start", "-dconvert=raid1"],
        1,
        "does not take these filters",
    );
    let done = world.run(&["balance", "start", "-dusage=1..100"]);
    assert!(done.starts_with("Done, had to relocate "), "{done}");
    let done = world.run(&["balance", "start", "--full-balance"]);
    assert!(done.starts_with("Done, had to relocate "), "{done}");

    // While one waits, no other change begins.
    let point = world.point().to_owned();
    let full = ["balance", "start", "--full-balance", &point];
    let begun = Command::new(support::BINARY).args(full).spawn();
    let mut begun = begun.expect("it runs");
    let paused = || world.bench.try_run(&["balance", "pause", &point]);
    let mut is_paused = false;
    while !is_paused && begun.try_wait().expect("a process").is_none() {
        is_paused = paused().status.success();
    }
    let ended = begun.wait().expect("it ends");
    if !is_paused {
        println!("the balance was done before it could be paused");
        return;
    }
    assert!(!ended.success());
    world.ends(&["balance", "status"], 1, "is paused");
    world.ends(&["filesystem", "resize", "1:900m"], 1, "runs");
    world.ends(&["balance", "start", "-dusage=5"], 1, "runs or waits");
    world.run(&["balance", "cancel"]);
    world.ends(&["balance", "status"], 0, "No balance found");
    world.run(&["filesystem", "resize", "1:900m"]);
}

/// Where a kind of space has two profiles, the commands that end a balance warn,
/// as those of the Btrfs tools do.
#[test]
fn a_balance_in_the_background_goes_on_and_profiles_that_differ_are_named() {
    let Some(world) = World::new(1) else {
        return;
    };
    world.run(&["balance", "start", "--background", "-dconvert=dup,soft"]);
    until("done", || {
        let status = world.bench.try_run(&["balance", "status", world.point()]);
        said(&status).contains("No balance found")
    });
    let dup = world.run(&["filesystem", "df"]);
    assert!(dup.contains("Data, DUP"), "{dup}");
    assert!(!dup.contains("Data, single"), "{dup}");
    world.ends(
        &["balance", "start", "--bg", "-dconvert=raid1"],
        1,
        "filters",
    );
    // One of several data chunks gets another profile.
    fs::write(world.at("more"), vec![7; 150_000_000]).expect("a file");
    ran("sync", &["-f", world.point()]);
    world.run(&["balance", "start", "-dconvert=single,limit=1"]);
    let mixed = "WARNING: Multiple block group profiles detected";
    world.ends(&["balance", "pause"], 2, mixed);
    world.ends(&["balance", "cancel"], 2, mixed);
}

/// Destroys what the first device has of a file's data.
fn damage(device: &Path, content: u8) {
    let bytes = fs::read(device).expect("the device");
    let sector = vec![content; 4096];
    let mut sectors = bytes.chunks_exact(4096).enumerate();
    let found = sectors.find(|(_, bytes)| *bytes == sector);
    let (number, _) = found.expect("the file's data");
    let file = fs::File::options()
        .write(true)
        .open(device)
        .expect("the device");
    let at = u64::try_from(number).expect("a place") * 4096;
    file.write_all_at(&[0xee; 512], at).expect("it is damaged");
    file.sync_all().expect("it is on the device");
}

#[test]
fn scrubs_are_done_by_the_kernel() {
    let Some(world) = World::new(1) else {
        return;
    };
    let point = world.point().to_owned();
    let shown = world.run(&["scrub", "start", "-B"]);
    assert!(shown.contains("no errors found"), "{shown}");
    world.ends(&["scrub", "cancel"], 2, "not running");
    world.ends(&["scrub", "resume"], 2, "nothing to resume");
    // The Btrfs tools show the same record.
    let theirs = ran("btrfs", &["scrub", "status", &point]);
    assert!(theirs.contains("Status:           finished"), "{theirs}");

    world.run(&["scrub", "limit", "-l", "8m"]);
    world.ends(&["scrub", "limit"], 0, " 1  8.00MiB  /dev/loop");
    world.run(&["scrub", "start"]);
    world.ends(&["scrub", "status"], 0, "running");
    world.ends(&["scrub", "start", "-B"], 1, "under way");
    world.run(&["scrub", "cancel"]);
    world.ends(&["scrub", "status"], 0, "aborted");
    world.run(&["scrub", "limit", "-l", "0"]);
    let shown = world.run(&["scrub", "resume", "-B"]);
    assert!(shown.contains("Status:           finished"), "{shown}");

    damage(&world.devices[0].0, 7);
    world.ends(&["scrub", "start", "-B", "-r"], 3, "csum=1");
    let shown = world.run(&["scrub", "status", "-R"]);
    assert!(shown.contains("uncorrectable_errors: 1"), "{shown}");
}

#[test]
fn a_replacement_that_was_interrupted_is_cancelled_without_the_kernel() {
    // As above, on smaller devices there is no room.
    let Some(world) = World::new(8) else {
        return;
    };
    let content: Vec<u8> = (0..300 << 20_u32).map(|at| (at >> 9) as u8).collect();
    fs::write(world.at("large"), &content).expect("a file");
    ran("sync", &["-f", world.point()]);
    // The kernel may be done before it is interrupted.
    let target = (1..6).find(|round| {
        let target = round % 2;
        let begin = ["replace", "start", "-f", "1", world.device(target)];
        ran("btrfs", &[&begin[..], &[world.point()]].concat());
        ran("mount", &["-o", "remount,ro", world.point()]);
        let state = ran("btrfs", &["replace", "status", "-1", world.point()]);
        let is_suspended = state.contains("suspended");
        if !is_suspended {
            ran("mount", &["-o", "remount,rw", world.point()]);
        }
        is_suspended
    });
    let target = target.expect("an interrupted replacement") % 2;
    let World {
        bench,
        mount,
        devices,
    } = world;
    // The program that began it may need a moment to end.
    until("unmounted", || {
        let unmounted = Command::new("umount").arg(&mount.0).status();
        unmounted.expect("umount runs").success()
    });
    std::mem::forget(mount);
    for device in &devices {
        // The kernel remembers what it saw on it.
        let mut forget = Command::new("btrfs");
        forget.args(["device", "scan", "--forget", device.name()]);
        let _ = forget.output();
    }
    drop(devices);

    let (source, target) = (["two", "one"][target], ["one", "two"][target]);
    // The content, whichever device is named.
    for name in [source, target] {
        let read = bench.try_run(&["cat", &format!("{name}:/large")]);
        assert!(read.stdout == content, "{}", said(&read));
        bench.run(&["check", "--check-data-csum", name]);
    }
    let status = bench.run(&["replace", "status", "-1", source]);
    assert!(status.contains("Started on"), "{status}");
    assert!(!status.contains("finished"), "{status}");
    let refused = said(&bench.try_run(&["mkdir", &format!("{source}:/new")]));
    assert!(refused.contains("butterfs replace cancel"), "{refused}");

    let mut superblock = vec![0; 128 << 10];
    let read = fs::File::open(bench.path(target)).expect("the target");
    read.read_exact_at(&mut superblock, 0).expect("its start");
    bench.run(&["replace", "cancel", source]);
    let status = bench.run(&["replace", "status", "-1", source]);
    assert!(status.contains("canceled on"), "{status}");
    // As a crash leaves it between the commit and the end of the target.
    let file = fs::File::options().write(true).open(bench.path(target));
    let written = file.expect("the target").write_all_at(&superblock, 0);
    written.expect("its start is written");
    bench.run(&["replace", "cancel", source]);
    let none = bench.try_run(&["replace", "cancel", source]);
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));

    bench.run(&["mkdir", &format!("{source}:/new")]);
    bench.run(&["check", "--check-data-csum", source]);
    let devices = [source, target].map(|name| Loop::new(&bench.path(name)));
    let point = bench.path("kernel");
    ran("btrfs", &["check", devices[0].name()]);
    ran("mount", &[devices[0].name(), point.to_str().expect("text")]);
    let mount = Kernel(point);
    assert!(fs::read(mount.0.join("large")).expect("a file") == content);
    assert!(mount.0.join("new").is_dir());
    let used = ran("wipefs", &["--noheadings", devices[1].name()]);
    assert_eq!(used, "", "the target holds no superblock");
    drop(mount);
}

/// What btrfs-progs after 6.2 have, in the words of 6.14 and 7.3.
#[test]
fn newer_verbs_and_options_are_answered() {
    let Some(world) = World::new(1) else {
        return;
    };
    let stats = world.run(&["filesystem", "commit-stats"]);
    for line in [
        "UUID: ",
        "Commit stats since mount:\n  Total commits:  ",
        "  cur_commit_ms  ",
        "  Last commit duration:  ",
        "ms\n  Max commit duration:  ",
        "ms\n  Total time spent in commit:  ",
    ] {
        assert!(stats.contains(line), "{line}: {stats}");
    }
    // The kernel asks for CAP_SYS_RESOURCE, which root of a container lacks.
    let reset = ["filesystem", "commit-stats", "--reset", world.point()];
    let reset = world.bench.try_run(&reset);
    let stats = world.run(&["filesystem", "commit-stats", "--json"]);
    match reset.status.success() {
        true => assert!(stats.contains("\"max_commit_ms\": 0"), "{stats}"),
        false => assert!(said(&reset).contains("not permitted"), "{}", said(&reset)),
    }

    let limits = world.run(&["scrub", "limit"]);
    // The columns are as wide as the loop device's name.
    assert!(limits.contains("Id  Limit "), "{limits}");
    assert!(limits.contains("\n 1      -  /dev/loop"), "{limits}");
    let set = world.run(&["scrub", "limit", "-a", "-l", "10m"]);
    assert!(
        set.ends_with("Set scrub limit of devid 1 from unlimited to 10.00MiB/s\n"),
        "{set}"
    );
    assert!(
        world
            .run(&["scrub", "limit", "--raw"])
            .contains(" 1  10485760  /dev")
    );
    let set = world.run(&["scrub", "limit", "-d", "1", "-l", "0"]);
    assert!(
        set.ends_with("devid 1 from 10.00MiB/s to unlimited\n"),
        "{set}"
    );
    world.ends(&["scrub", "limit", "-d", "2", "-l", "1m"], 1, "devid 2");

    let chunks = world.run(&["inspect-internal", "list-chunks", "--sort", "-type,devid"]);
    let kinds: Vec<&str> = chunks
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let rank = |kind: &&str| {
        ["System", "Metadata", "Data"]
            .iter()
            .position(|name| kind.starts_with(name))
    };
    assert!(kinds.len() > 3 && kinds.is_sorted_by_key(rank), "{chunks}");
    assert!(chunks.contains("   Metadata/DUP    "), "{chunks}");

    let status = world.run(&["quota", "status"]);
    assert!(status.ends_with(":\n  Enabled: no\n"), "{status}");
    world.ends(&["quota", "status", "--is-enabled"], 1, "");
    world.run(&["quota", "enable"]);
    world.run(&["quota", "status", "--is-enabled"]);
    let status = world.run(&["quota", "status"]);
    for line in [
        "  Mode:                    qgroup (full accounting)",
        "  Inconsistent:            no",
        "  Override limits:         no",
        "  Drop subtree threshold:  ",
        "  Total count:             1",
        "  Level 0:                 1",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    world.run(&["qgroup", "show", "--sort=-path"]);
    let groups = world.run(&["--format", "json", "qgroup", "show"]);
    assert!(
        groups.contains("\"qgroup-show\": [") && groups.contains("\"max_referenced\": \"none\"")
    );

    let made = world.at("made");
    let made = made.to_str().expect("text");
    world.bench.run(&["subvolume", "create", made]);
    for words in [
        &["--dry-run", "subvolume", "delete"][..],
        &["subvolume", "delete", "--dry-run"],
    ] {
        let told = world.bench.run(&[words, &[made]].concat());
        assert!(
            told.starts_with("Delete subvolume 256 (no-commit): '"),
            "{told}"
        );
    }
    let plain = world.at("plain");
    fs::create_dir(&plain).expect("a directory");
    let refused = world.bench.try_run(&[
        "--dry-run",
        "subvolume",
        "delete",
        plain.to_str().expect("text"),
    ]);
    assert!(!refused.status.success() && said(&refused).contains("no subvolume"));
    world.ends(
        &["--dry-run", "subvolume", "delete", "-i", "999"],
        1,
        "no subvolume 999",
    );
    assert!(world.at("made").is_dir());

    let file = world.at("file 7");
    let file = file.to_str().expect("text");
    for words in [
        &["-c"][..],
        &["-rc"],
        &["-czstd", "-L", "9"],
        &["--nocomp"],
        &["--step", "1m", "-f"],
    ] {
        world
            .bench
            .run(&[&["filesystem", "defragment"], words, &[file]].concat());
        assert_eq!(fs::read(file).expect("a file"), vec![7; 2_000_000]);
    }
    world.ends(
        &["filesystem", "resize", "--offline", "+1m"],
        1,
        "not mounted",
    );
    world.ends(&["device", "stats", "--offline"], 1, "directory");
    world
        .bench
        .run(&["device", "stats", "--offline", world.device(0)]);
    let swap = world.at("swap");
    let told = world.bench.run(&[
        "filesystem",
        "mkswapfile",
        "-p",
        "8k",
        "-s",
        "1m",
        swap.to_str().expect("text"),
    ]);
    assert!(told.contains("page size 8192"), "{told}");
}

/// The kernel mounts a volume of several devices by one of them if somebody told
/// it of the others.
#[test]
fn a_scan_tells_the_kernel() {
    let Some(world) = World::new(1) else {
        return;
    };
    let (one, other) = (world.device(2), world.device(3));
    ran("mkfs.btrfs", &["-q", "-f", "-d", "raid0", one, other]);
    let point = world.bench.path("pair");
    fs::create_dir(&point).expect("a mountpoint");
    let mount = || Command::new("mount").arg(one).arg(&point).output();
    world.bench.run(&["device", "scan", "--forget", one, other]);
    let refused = mount().expect("mount runs");
    assert!(!refused.status.success(), "the kernel knows it still");
    world.bench.run(&["-q", "device", "scan", one, other]);
    let mounted = mount().expect("mount runs");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let mounted = Kernel(point.clone());
    let busy = world.bench.try_run(&["device", "scan", "--forget", other]);
    assert!(said(&busy).contains("mounted"), "{}", said(&busy));
    drop(mounted);
    world.bench.run(&["device", "scan", "-u"]);
    assert!(!mount().expect("mount runs").status.success());
}
