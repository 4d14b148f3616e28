//! What commands say and leave if they cannot do all of their work: output that
//! goes nowhere, a full volume, Ctrl-C. No command takes that for success, none
//! panics, and no cut file stays under its name.

mod support;

use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{PipeWriter, pipe};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use support::{BINARY, Bench, said};

/// Exit code where the reader of standard output is gone.
const READER_GONE: i32 = 141;

/// Commands, in a directory with what [`template`] makes.
const COMMANDS: &[&str] = &[
    "mkfs -b 128m new.img",
    "convert --dry-run ext4.img",
    "convert ext4.img",
    "mkfs -O list-all",
    "mkfs --json -b 128m new.img",
    "mount -o help",
    "filesystem df volume",
    "filesystem usage volume",
    "filesystem du volume:/base",
    "filesystem du -s --json volume:/base volume:/one",
    "filesystem usage -T volume",
    "filesystem show volume",
    "filesystem label volume",
    "filesystem label volume other",
    "filesystem defragment volume:/base/file",
    "ls -lR volume:/",
    "ls --json volume:/",
    "cat volume:/base/file",
    "info volume",
    "info --json volume",
    "tree volume",
    "find volume:/base",
    "du volume",
    "copy host volume:/",
    "copy volume:/base out",
    "copy volume:/base/file volume:/base/cloned",
    "mv volume:/base/file volume:/base/moved",
    "rm volume:/base/twin",
    "mkdir volume:/base/made",
    "ln volume:/base/file volume:/base/linked",
    "chmod 600 volume:/base/file",
    "chown 1:2 volume:/base/file",
    "tar create volume:/base",
    "tar extract -f host.tar volume:/base",
    "build -o built.img --from host",
    "reflink volume:/base/file volume:/base/shared",
    "dedupe volume:/base/file volume:/base/twin",
    "subvolume create volume:/made volume:/more",
    "subvolume snapshot -r volume:/base volume:/three",
    "subvolume delete volume:/one volume:/two",
    "subvolume sync volume",
    "subvolume list volume",
    "subvolume list --json volume",
    "subvolume show volume:/base",
    "subvolume find-new volume:/base 0",
    "subvolume du volume",
    "subvolume diff volume:/one volume:/two",
    "subvolume diff --json volume:/one volume:/two",
    "subvolume history volume:/base/file",
    "subvolume get-default volume",
    "subvolume set-default volume:/base",
    "property get volume:/one ro",
    "property set volume:/one ro false",
    "property list volume:/one",
    "property get volume:/one",
    "quota enable volume",
    "quota status volume",
    "quota rescan volume",
    "quota disable volume",
    "qgroup create 1/0 volume",
    "qgroup destroy 1/2 volume",
    "qgroup assign 0/256 1/1 volume",
    "qgroup remove 0/257 1/1 volume",
    "qgroup limit 1g 0/256 volume",
    "qgroup clear-stale volume",
    "qgroup show volume",
    "send volume:/one",
    "send -p volume:/one volume:/two",
    "receive -q -f one.stream copy:/",
    "receive --json -f one.stream copy:/",
    "receive --dump -f one.stream",
    "device stats volume",
    "device stats -z volume",
    "device scan .",
    "device add -f spare volume",
    "device remove 2 pair",
    "replace start -f 1 spare volume",
    "replace status -1 volume",
    "device replace start -f 1 spare copy",
    "device replace status -1 volume",
    "tune -m volume",
    "tune -f -u copy",
    "tune -f --csum xxhash copy",
    "image volume volume.image",
    "image -c 9 -ss volume -",
    "filesystem usage --explain volume",
    "device usage volume",
    "balance plan volume",
    "balance plan --json volume",
    "balance start -dusage=50 volume",
    "balance status volume",
    "scrub start -B volume",
    "scrub start -B -r --json volume",
    "scrub status volume",
    "scrub limit volume",
    "filesystem resize max volume",
    "filesystem trim volume",
    "rescue log-preview volume",
    "rescue zero-log volume",
    "rescue guide volume",
    "rescue survey volume",
    "rescue chunk-recover volume",
    "rescue clear-uuid-tree volume",
    "rescue clear-space-cache volume",
    "rescue clear-ino-cache volume",
    "rescue create-control-device",
    "rescue fix-data-checksum volume",
    "rescue fix-device-size volume",
    "rescue super-recover volume",
    "restore --all -D volume",
    "undelete volume",
    "check --repair volume",
    "check volume",
    "check --json volume",
    "check --list-codes",
    "inspect dump-super volume",
    "inspect dump-tree volume",
    "inspect list-chunks volume",
    "inspect list-chunks --json volume",
    "inspect min-dev-size volume",
    "inspect tree-stats volume",
    "inspect tree-stats --json -t root volume",
    "inspect rootid volume:/base",
    "inspect inode-resolve 256 volume:/base",
    "inspect subvolid-resolve 256 volume",
    "lab list",
    "lab plan smoke",
    "completions bash",
    "manual",
    "manual subvolume list",
    "--help",
    "subvolume --help",
    "--version",
];

/// Commands whose output these tests do not touch, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("rescue commit", "needs an overlay; repair.rs has it"),
    ("rescue undo", "needs an undo file; repair.rs has it"),
    ("umount", "prints nothing, and needs a mount"),
    ("run", "prints what its program prints; run_tools.rs has it"),
    ("device ready", "prints nothing"),
    ("filesystem sync", "prints nothing, and needs a mount"),
    (
        "filesystem mkswapfile",
        "needs a mount of the kernel's; beside_btrfs.rs has one",
    ),
    (
        "filesystem commit-stats",
        "needs a mount of the kernel's; kernel_mounts.rs has one",
    ),
    (
        "inspect map-swapfile",
        "needs a mount of the kernel's; beside_btrfs.rs has one",
    ),
    (
        "inspect logical-resolve",
        "needs an address; resolve.rs has some",
    ),
    ("balance resume", "needs a balance that waits"),
    ("balance cancel", "needs a balance that waits"),
    ("balance pause", "needs a balance that runs"),
    ("scrub resume", "needs a scrub that was interrupted"),
    ("scrub cancel", "needs a scrub that runs"),
    ("replace cancel", "needs a replacement that runs"),
    ("device replace cancel", "is replace cancel"),
    ("lab doctor", "measures the machine for seconds"),
    ("lab run", "takes minutes"),
    ("lab resume", "takes minutes"),
    ("lab report", "needs the results of a run"),
    ("lab compare", "needs the results of two runs"),
    ("lab choose", "asks questions"),
    ("help", "is --help"),
];

/// A volume with two snapshots and quota groups, one that is empty, one on two
/// devices, a file for another device, a stream, and a directory of the host.
fn template() -> Bench {
    let bench = Bench::new();
    std::fs::remove_file(bench.path("volume")).expect("a volume");
    bench.run(&["mkfs", "-q", "-b", "128m", "volume"]);
    bench.run(&["mkfs", "-q", "-b", "128m", "copy"]);
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(bench.path("ext4.img"))
        .arg("32M")
        .status();
    assert!(made.expect("mke2fs").success());
    std::fs::create_dir(bench.path("host")).expect("a directory");
    std::fs::write(bench.path("host/file"), vec![7; 900_000]).expect("a file");
    std::fs::write(bench.path("host/twin"), vec![7; 900_000]).expect("a file");
    bench.run(&["subvolume", "create", "volume:/base"]);
    bench.run(&["copy", "-q", "host/file", "host/twin", "volume:/base"]);
    bench.run(&["subvolume", "snapshot", "-r", "volume:/base", "volume:/one"]);
    bench.run(&["copy", "-q", "host", "volume:/base"]);
    bench.run(&["subvolume", "snapshot", "-r", "volume:/base", "volume:/two"]);
    bench.run(&["quota", "enable", "volume"]);
    bench.run(&["qgroup", "create", "1/1", "volume"]);
    bench.run(&["qgroup", "create", "1/2", "volume"]);
    bench.run(&["qgroup", "assign", "0/257", "1/1", "volume"]);
    bench.run(&["send", "-q", "-f", "one.stream", "volume:/one"]);
    bench.run(&["tar", "create", "-f", "host.tar", "volume:/base/host"]);
    for (name, size) in [
        ("pair", 128 << 20),
        ("second", 128 << 20),
        ("spare", 200 << 20),
    ] {
        let file = File::create(bench.path(name)).expect("a file");
        file.set_len(size).expect("its size");
    }
    bench.run(&["mkfs", "-q", "pair"]);
    bench.run(&["device", "add", "second", "pair"]);
    bench
}

/// What [`template`] makes.
const NAMES: [&str; 9] = [
    "ext4.img",
    "volume",
    "copy",
    "pair",
    "second",
    "spare",
    "one.stream",
    "host",
    "host.tar",
];

fn copy_into(template: &Bench, directory: &Path) {
    let copied = Command::new("cp")
        .args(["-r", "--sparse=always", "--reflink=auto"])
        .args(NAMES.map(|name| template.path(name)))
        .arg(directory)
        .status();
    assert!(copied.expect("cp runs").success());
}

/// A directory that a command may change.
fn fresh(template: &Bench) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    copy_into(template, directory.path());
    directory
}

/// Where output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    Read,
    ClosedPipe,
    FullDevice,
}

impl Sink {
    fn open(self) -> Stdio {
        match self {
            Self::Read => Stdio::piped(),
            Self::ClosedPipe => {
                let (reader, writer) = pipe().expect("a pipe");
                drop(reader);
                wait_for_no_reader(&writer);
                writer.into()
            }
            Self::FullDevice => {
                let full = File::options().write(true).open("/dev/full");
                full.expect("/dev/full").into()
            }
        }
    }
}

/// A process that another test starts has a copy of the reader until its exec.
fn wait_for_no_reader(writer: &PipeWriter) {
    let mut polled = [PollFd::new(writer, PollFlags::empty())];
    while !polled[0].revents().contains(PollFlags::ERR) {
        poll(&mut polled, None).expect("the pipe is polled");
    }
}

fn run(template: &Bench, line: &str, out: Sink, notes: Sink) -> Output {
    let directory = fresh(template);
    let output = Command::new(BINARY)
        .args(line.split(' '))
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(out.open())
        .stderr(notes.open())
        .output()
        .expect("the binary runs");
    let text = said(&output);
    assert!(!text.contains("panicked"), "{line}: {text}");
    assert_ne!(output.status.code(), Some(101), "{line}: {text}");
    assert!(output.status.signal().is_none(), "{line}: {text}");
    if out != Sink::Read && (line.contains("delete") || line.contains("receive")) {
        check(line, directory.path());
    }
    output
}

fn in_directory(directory: &Path, line: &str) -> Output {
    let mut command = Command::new(BINARY);
    command.args(line.split(' ')).current_dir(directory);
    command.output().expect("the binary runs")
}

/// The volumes that a command names are clean.
fn check(line: &str, directory: &Path) {
    for volume in ["volume", "copy", "pair"] {
        if line.contains(volume) {
            let mut checked = in_directory(directory, &format!("check {volume}"));
            if line.contains("replace start") && !checked.status.success() {
                // It came to its end, and the volume is elsewhere.
                checked = in_directory(directory, "check spare");
            }
            assert!(checked.status.success(), "{line}: {}", said(&checked));
        }
    }
}

/// Checks the end of a command that could not do its work: it did not panic, it
/// says why it failed, and it leaves nothing half-made.
fn ended_well(line: &str, directory: &Path, output: &Output) {
    let text = said(output);
    assert!(!text.contains("panicked"), "{line}: {text}");
    assert_ne!(output.status.code(), Some(101), "{line}: {text}");
    let by_signal = output.status.signal();
    assert!(
        by_signal.is_none_or(|signal| signal == libc::SIGINT),
        "{line}: {text}"
    );
    let failed = output.status.code().is_some_and(|code| code != 0);
    // A check that finds faults says so in its report.
    let has_word = !output.stderr.is_empty() || line.starts_with("check");
    assert!(!failed || has_word, "{line}: fails without a word: {text}");
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_string_lossy();
        assert!(
            !name.contains("partial") && !name.starts_with('.'),
            "{line}: {name}"
        );
    }
}

/// The next of a row of numbers that look random, below `end`.
fn next_below(state: &mut u64, end: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % end
}

#[test]
fn ctrl_c_at_any_moment_leaves_volumes_whole() {
    let template = template();
    let mut state = 15;
    for line in COMMANDS {
        let directory = fresh(&template);
        let child = Command::new("env")
            .args(["--default-signal=INT", BINARY])
            .args(line.split(' '))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let longest = [20_000, 60_000, 200_000][next_below(&mut state, 3) as usize];
        let wait = next_below(&mut state, longest);
        std::thread::sleep(std::time::Duration::from_micros(wait));
        let id = i32::try_from(child.id()).expect("a process");
        let process = rustix::process::Pid::from_raw(id).expect("a process");
        // It may have ended, but nobody has asked for its status yet.
        rustix::process::kill_process(process, rustix::process::Signal::INT).expect("a child");
        let output = child.wait_with_output().expect("it ends");
        let at = format!("{line} (after {wait} us)");
        ended_well(&at, directory.path(), &output);
        finish_tuning(line, &at, directory.path());
        check(line, directory.path());
    }
}

/// A change of every node that was cut short is marked in the superblock, and can
/// be resumed.
fn finish_tuning(line: &str, at: &str, directory: &Path) {
    let volume = line.rsplit(' ').next().unwrap_or_default();
    let is_whole = || {
        in_directory(directory, &format!("check {volume}"))
            .status
            .success()
    };
    if line.starts_with("tune") && !is_whole() {
        let again = in_directory(directory, line);
        assert!(again.status.success(), "{at}: {}", said(&again));
    }
}

#[test]
fn cut_input_is_an_error_with_a_word() {
    let template = template();
    let mut state = 15;
    for line in COMMANDS {
        let directory = fresh(&template);
        let share = [2, 30, 60, 90][next_below(&mut state, 4) as usize];
        for name in ["volume", "copy", "pair", "one.stream", "host.tar"] {
            let file = File::options()
                .write(true)
                .open(directory.path().join(name));
            let file = file.expect("a file");
            let size = file.metadata().expect("its size").len();
            file.set_len(size * share / 100).expect("it is cut");
        }
        let output = Command::new(BINARY)
            .args(line.split(' '))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs");
        let line = format!("{line} ({share}% of its input)");
        ended_well(&line, directory.path(), &output);
        // A volume can be read if nothing of it lay beyond the cut.
        for taken in ["receive", "tar extract"] {
            assert!(
                !line.starts_with(taken) || !output.status.success(),
                "{line}"
            );
        }
    }
}

#[test]
fn a_full_disk_leaves_volumes_whole() {
    if !support::is_root() {
        println!("skipped: mounting a small tmpfs needs root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let template = template();
    let point = template.path("full");
    std::fs::create_dir(&point).expect("a directory");
    let mount = |words: &[&str]| {
        let done = Command::new("mount").args(words).arg(&point).status();
        assert!(done.expect("mount runs").success());
    };
    let mut state = 15;
    let mut failures = 0;
    for line in COMMANDS {
        mount(&["-t", "tmpfs", "-o", "size=64m", "tmpfs"]);
        let mounted = Tmpfs(point.clone());
        copy_into(&template, &point);
        let facts = rustix::fs::statvfs(&point).expect("its size");
        let used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize;
        let left = [0, 64 << 10, 256 << 10, 1 << 20][next_below(&mut state, 4) as usize];
        let size = used + left;
        mount(&["-o", &format!("remount,size={size}")]);
        let output = Command::new(BINARY)
            .args(line.split(' '))
            .current_dir(&point)
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs");
        mount(&["-o", "remount,size=64m"]);
        failures += u32::from(!output.status.success());
        let at = format!("{line} ({left} bytes left)");
        ended_well(&at, &point, &output);
        finish_tuning(line, &at, &point);
        check(line, &point);
        drop(mounted);
    }
    assert!(failures > 10, "{failures} commands met the full disk");
}

#[test]
fn no_command_takes_lost_output_for_success() {
    let template = template();
    for line in COMMANDS {
        let usual = run(&template, line, Sink::Read, Sink::Read);
        assert!(usual.status.success(), "{line}: {}", said(&usual));
        let prints = !usual.stdout.is_empty();
        let closed = run(&template, line, Sink::ClosedPipe, Sink::Read);
        let full = run(&template, line, Sink::FullDevice, Sink::Read);
        if prints {
            assert_eq!(closed.status.code(), Some(READER_GONE), "{line}");
            assert_eq!(closed.stderr, b"", "{line}: {}", said(&closed));
            assert!(!full.status.success(), "{line}");
            assert!(
                said(&full).contains("standard output"),
                "{line}: {}",
                said(&full)
            );
        } else {
            assert_eq!([closed.status, full.status], [usual.status; 2], "{line}");
        }
    }
}

#[test]
fn nobody_has_to_read_what_is_said_beside() {
    let template = template();
    let wrong = [
        "ls volume:/absent",
        "check copy.absent",
        "send volume:/base",
        "receive -f one.stream absent:/",
        "subvolume --nonsense",
        "copy absent volume:/",
    ];
    let right = [
        "send -v volume:/one",
        "receive -v -f one.stream copy:/",
        "receive -f one.stream copy:/",
        "copy volume:/base out",
    ];
    for line in wrong.iter().chain(&right) {
        let usual = run(&template, line, Sink::Read, Sink::Read);
        assert!(
            !usual.stderr.is_empty() || line.starts_with("copy v"),
            "{line}"
        );
        for notes in [Sink::ClosedPipe, Sink::FullDevice] {
            let unread = run(&template, line, Sink::Read, notes);
            assert_eq!(unread.status, usual.status, "{line}, {notes:?}");
            assert_eq!(unread.stdout, usual.stdout, "{line}, {notes:?}");
        }
    }
}

/// The commands that the help names, with those below them.
fn commands_of_help(words: &[&str], found: &mut BTreeSet<String>) {
    let output = Command::new(BINARY).args(words).arg("--help").output();
    let help = said(&output.expect("the binary runs"));
    // All commands are in groups.
    let (begin, end) = match words {
        [] => ("Usage:", "\nOptions:\n"),
        _ => ("Commands:\n", "\n\n"),
    };
    let list = help.split_once(begin).map_or("", |(_, list)| list);
    let below: Vec<&str> = list
        .split_once(end)
        .map_or(list, |(list, _)| list)
        .lines()
        .filter_map(|line| {
            line.strip_prefix("  ")
                .filter(|line| !line.starts_with(' '))
        })
        .filter_map(|line| line.split(' ').next())
        .collect();
    if below.is_empty() {
        found.insert(words.join(" "));
    }
    for name in below.into_iter().filter(|name| *name != "help") {
        commands_of_help(&[words, &[name]].concat(), found);
    }
}

#[test]
fn the_table_has_every_command() {
    let mut all = BTreeSet::new();
    commands_of_help(&[], &mut all);
    assert!(all.len() > 40, "{all:?}");
    for command in all {
        let listed = COMMANDS
            .iter()
            .copied()
            .chain(LEFT_OUT.iter().map(|(command, _)| *command))
            .any(|line| line == command || line.starts_with(&format!("{command} ")));
        assert!(listed, "{command} is in no table of this file");
    }
}

#[test]
fn a_stream_file_is_whole_or_not_there() {
    let bench = template();
    std::fs::write(bench.path("old.stream"), "an old one").expect("a file");
    for file in ["new.stream", "old.stream"] {
        // The second one is not read-only: it fails after the first was sent.
        let cut = bench.try_run(&["send", "-f", file, "volume:/one", "volume:/base"]);
        assert!(!cut.status.success());
    }
    assert!(!bench.path("new.stream").exists());
    let old = std::fs::read(bench.path("old.stream")).expect("the old one");
    assert_eq!(old, b"an old one");
    bench.run(&["send", "-f", "old.stream", "volume:/one"]);
    let one = std::fs::read(bench.path("one.stream")).expect("a stream");
    assert!(one == std::fs::read(bench.path("old.stream")).expect("a stream"));
    let names = std::fs::read_dir(bench.path("")).expect("a directory");
    for name in names {
        let name = name.expect("an entry").file_name();
        assert!(!name.to_string_lossy().contains("partial"), "{name:?}");
    }
}

/// Starts a receive, gives it a part of the stream, and sends Ctrl-C when it
/// has applied some of it.
fn interrupt(bench: &Bench, target: &str, stream: &[u8], seen: &str) -> ExitStatus {
    // If these tests run in the background, Ctrl-C is ignored, and the programs
    // that they start would inherit that.
    let mut child = Command::new("env")
        .args(["--default-signal=INT", BINARY, "receive", "-v", target])
        .current_dir(bench.path(""))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(stream).expect("it reads");
    let mut notes = child.stderr.take().expect("piped");
    let mut text = String::new();
    while !text.contains(seen) {
        let mut piece = [0; 512];
        let count = notes.read(&mut piece).expect("it says what it does");
        assert_ne!(count, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    let id = i32::try_from(child.id()).expect("a process");
    let process = rustix::process::Pid::from_raw(id).expect("a process");
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it is there");
    notes.read_to_string(&mut text).expect("it ends");
    let status = child.wait().expect("its status");
    drop(input);
    assert!(text.contains("--resume"), "{text}");
    status
}

#[test]
fn a_receive_that_was_interrupted_goes_on() {
    let bench = template();
    std::fs::create_dir(bench.path("plain")).expect("a directory");
    let stream = std::fs::read(bench.path("one.stream")).expect("a stream");
    for target in ["copy:/", "plain"] {
        let part = &stream[..stream.len() * 9 / 10];
        let status = interrupt(&bench, target, part, "write  ");
        assert_eq!(status.signal(), Some(libc::SIGINT), "{target}");
        let again = bench.try_run(&["receive", "-f", "one.stream", target]);
        assert!(!again.status.success(), "{target}");
        bench.run(&["receive", "--resume", "-f", "one.stream", target]);
    }
    let file = std::fs::read(bench.path("host/file")).expect("a file");
    assert!(std::fs::read(bench.path("plain/one/file")).expect("a file") == file);
    bench.run(&["copy", "-q", "copy:/one/file", "copied"]);
    assert!(std::fs::read(bench.path("copied")).expect("a file") == file);
    bench.run(&["check", "copy"]);
}

/// Content that no compression makes smaller.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn a_copy_into_a_full_volume_leaves_no_cut_file() {
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-b", "128m", "small"]);
    std::fs::create_dir(bench.path("tree")).expect("a directory");
    std::fs::write(bench.path("kept"), "the old one").expect("a file");
    bench.run(&["copy", "-q", "kept", "small:/kept"]);
    std::fs::write(bench.path("kept"), noise(150 << 20, 1)).expect("a file");
    for (name, bytes) in [("a", 10 << 20), ("b", 20 << 20), ("c", 150 << 20)] {
        std::fs::write(bench.path("tree").join(name), noise(bytes, bytes as u64)).expect("a file");
    }
    for (source, target) in [("kept", "small:/kept"), ("tree", "small:/")] {
        let full = bench.try_run(&["copy", source, target]);
        assert_eq!(full.status.code(), Some(1), "{}", said(&full));
        assert!(said(&full).contains("no space"), "{}", said(&full));
        assert!(said(&full).contains("whole"), "{}", said(&full));
    }
    assert_eq!(bench.run(&["cat", "small:/kept"]), "the old one");
    let listed = bench.run(&["ls", "-R", "small:/"]);
    assert!(
        !listed.contains("tree/c") && !listed.contains("partial"),
        "{listed}"
    );
    for name in ["a", "b"]
        .iter()
        .filter(|name| listed.contains(&format!("tree/{name}")))
    {
        let whole = std::fs::read(bench.path("tree").join(name)).expect("a file");
        bench.run(&["copy", "-q", &format!("small:/tree/{name}"), "back"]);
        assert!(std::fs::read(bench.path("back")).expect("a file") == whole);
    }
    bench.run(&["check", "small"]);
    // What was written of it is free again.
    bench.run(&["copy", "-q", "tree/a", "small:/again"]);
}

/// A small file system of the host, undone when dropped.
struct Tmpfs(std::path::PathBuf);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_copy_into_a_full_directory_leaves_no_cut_file() {
    if !support::is_root() {
        println!("skipped: mounting a small tmpfs needs root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let bench = Bench::new();
    std::fs::write(bench.path("small"), "the new one").expect("a file");
    std::fs::write(bench.path("large"), noise(3 << 20, 3)).expect("a file");
    bench.run(&["copy", "-q", "small", "large", "volume:/"]);
    let full = bench.path("full");
    std::fs::create_dir(&full).expect("a directory");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&full)
        .status();
    assert!(mounted.expect("mount runs").success());
    let mounted = Tmpfs(full);
    std::fs::write(mounted.0.join("large"), "the old one").expect("a file");
    bench.run(&["copy", "-q", "volume:/small", "full"]);
    let failed = bench.try_run(&["copy", "volume:/large", "full"]);
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    assert!(said(&failed).contains("No space left"), "{}", said(&failed));
    let text = |name| std::fs::read_to_string(mounted.0.join(name)).expect("a file");
    assert_eq!(
        (text("small"), text("large")),
        ("the new one".into(), "the old one".into())
    );
    assert_eq!(
        std::fs::read_dir(&mounted.0).expect("a directory").count(),
        2
    );
    let failed = bench.try_run(&["send", "-f", "full/stream", "volume:/"]);
    assert!(!failed.status.success());
    assert!(!mounted.0.join("stream").exists());
}

#[test]
fn a_mkfs_that_is_refused_leaves_no_file() {
    let bench = Bench::new();
    for words in [
        &["mkfs", "-b", "1m", "new.img"][..],
        &["mkfs", "-b", "128m", "-n", "5000", "new.img"],
        &["mkfs", "-b", "128m", "--root-owner", "ann", "new.img"],
    ] {
        assert!(!bench.try_run(words).status.success());
        assert!(!bench.path("new.img").exists(), "{words:?}");
    }
}

#[test]
fn the_root_directory_belongs_to_who_is_named() {
    let bench = Bench::new();
    let owner = |words: &[&str]| {
        bench.run(&[&["mkfs", "-q", "-f", "-b", "128m"], words, &["new.img"]].concat());
        bench.run(&["inspect", "dump-tree", "-t", "5", "new.img"])
    };
    assert!(owner(&["--root-owner", "1234:56"]).contains("uid 1234 gid 56"));
    if support::is_root() {
        assert!(owner(&["--root-owner", "77"]).contains("uid 77 gid 0"));
        assert!(owner(&[]).contains("uid 0 gid 0"));
    }
}
