//! `butterfs run`: programs see on a mount of ButterFS what they see on the
//! kernel's Btrfs.

#![allow(unsafe_code, reason = "a filter that refuses a system call")]

mod support;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{BINARY, Bench, can_mount, said};

/// How programs come to see Btrfs.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// A supervisor answers their calls.
    Supervised,
    /// A library in them does.
    Preloaded,
}

impl How {
    fn run(self, directory: &Path, words: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command.arg("run");
        if self == Self::Preloaded {
            command.arg("--preload");
        }
        command.arg("--").args(words);
        let command = command.current_dir(directory).stdin(Stdio::null());
        command.output().expect("the binary runs")
    }
}

fn supervised(directory: &Path, words: &[&str]) -> Output {
    How::Supervised.run(directory, words)
}

/// Whether the library is there; `scripts/test-programs` builds it.
fn has_library() -> bool {
    let library = Path::new(BINARY).with_file_name("libbutterfs_preload.so");
    let is_there = library.exists();
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "{}", library.display());
        println!("skipped: the library is not built (cargo build -p butterfs-preload)");
    }
    is_there
}

/// What a script prints in `directory`, with or without `butterfs run`.
fn script(directory: &Path, text: &str) -> String {
    let output = supervised(directory, &["sh", "-c", text]);
    assert!(output.status.success(), "{text}: {}", said(&output));
    said(&output)
}

/// Makes files with different kinds of extents, and a subvolume in another.
const FILL: &str = "
    set -e
    btrfs -q subvolume create sub
    btrfs -q subvolume create sub/inner
    echo text > sub/inner/file
    mkdir directory
    head -c 300000 /dev/zero | tr '\\0' x > directory/plain
    echo small > small
    fallocate -l 1M prealloc
    ln -s sub/inner link
    sync -f .
";

/// Questions whose answers are the same on both.
const QUESTIONS: &[&str] = &[
    "stat -f -c %t . sub directory/plain",
    // Numbers of new files are not given in order.
    "stat -c '%n %i' . sub sub/inner",
    "stat -c '%n %F %h %s %a' . sub sub/inner sub/inner/file directory small link",
    "stat -L -c '%n %i' link; [ $(stat -c %i small) -lt 1000000 ] && echo a small number",
    "[ $(stat -c %d small) = $(stat -c %d directory/plain) ] && echo one device",
    "[ $(stat -c %d sub/inner/file) = $(stat -c %d sub/inner) ] && echo one device",
    "[ $(stat -c %d sub) != $(stat -c %d .) ] && [ $(stat -c %d sub) != $(stat -c %d sub/inner) ] && echo three",
    "cd sub/inner && stat -c '%i %n' . .. file",
    "exec 3<small; stat -L -c %s /proc/self/fd/3; stat -f -c %t - <&3",
    "findmnt -n -o FSTYPE,FSROOT -T sub/inner",
    "find . -xdev -name file; find . -name file",
    "find . -inum 256 | sort",
    "cp --reflink=always directory/plain clone && cmp directory/plain clone && echo cloned",
    "filefrag -v clone | grep -c shared; filefrag clone prealloc small",
    "filefrag -v prealloc | grep -o unwritten; filefrag -v small | grep -o inline",
    "cp --reflink=always /etc/passwd passwd 2>&1 | grep -o 'Invalid cross-device link'",
    "btrfs subvolume list . | sed 's/gen [0-9]*//'",
    "btrfs subvolume snapshot -r sub sub.snap; btrfs subvolume snapshot sub sub.copy",
    "btrfs subvolume show sub | grep -v -i 'uuid\\|time\\|gen\\|flags'",
    "btrfs property get sub.snap ro; btrfs property set sub.snap ro false; btrfs property get sub.snap",
    "btrfs inspect-internal rootid sub/inner; btrfs inspect-internal inode-resolve $(stat -c %i directory) .",
    "btrfs inspect-internal subvolid-resolve 257 .",
    "btrfs subvolume snapshot -r sub one >/dev/null; btrfs send -q one >../one.stream && mkdir in && btrfs receive -q in <../one.stream && diff -r one in/one && echo equal",
    "echo more >sub/new; rm sub/inner/file; btrfs subvolume snapshot -r sub two >/dev/null; btrfs send -q -p one two | btrfs receive -q in && diff -r two in/two && echo equal",
    "btrfs send -q --proto 2 --compressed-data two | btrfs receive --dump | grep -c '^subvol'; btrfs send -q sub 2>&1 | grep -c read-only",
    "btrfs send -q -c one -f ../two.stream two && test -s ../two.stream && echo sent; btrfs subvolume delete in/* one two >/dev/null && rmdir in && echo gone",
    "btrfs filesystem label . && btrfs filesystem label . other && btrfs filesystem label .",
    "btrfs filesystem sync . && btrfs filesystem du -s --raw directory | tail -1",
    "btrfs filesystem defragment -f directory/plain && echo defragmented",
    "btrfs filesystem df . | cut -d: -f1 | grep -v GlobalReserve",
    "btrfs quota enable . && btrfs quota rescan -w . >/dev/null && btrfs qgroup show . | awk '{print $1}'",
    "btrfs qgroup create 1/5 . && btrfs qgroup limit 1G 1/5 . && btrfs qgroup show -r --raw . | grep 1/5",
    "btrfs quota disable . && echo off",
    "btrfs subvolume set-default sub && btrfs subvolume get-default . | sed 's/gen [0-9]*//'",
    "btrfs subvolume get-default . | cut -d' ' -f5-; btrfs subvolume set-default 5 .",
    "btrfs subvolume delete sub.copy/inner sub.copy 2>&1; btrfs subvolume delete -c sub.snap",
    "ls",
];

/// Operations on the whole volume. Names of loop devices, numbers of chunks and
/// times are left out, and whether the tool trims a new device, which it decides
/// by what sysfs says of the device and not by the mount.
const OPERATIONS: &[&str] = &[
    "btrfs scrub start -B . | grep 'Status\\|Error summary'; btrfs scrub status . | grep Status",
    "cat /sys/fs/btrfs/$(btrfs filesystem show . | sed -n 's/.*uuid: //p')/exclusive_operation",
    "btrfs scrub start -B -r . | grep 'Status\\|Error summary'; btrfs scrub cancel . 2>&1",
    "btrfs balance start --full-balance . | cut -d, -f1; btrfs balance status .",
    "btrfs balance pause . 2>&1; btrfs balance cancel . 2>&1; btrfs balance resume . 2>&1",
    "btrfs balance start -mconvert=raid1 . 2>&1 | head -1",
    "btrfs balance start -mconvert=single . 2>&1 | head -1",
    "btrfs balance start -f -mconvert=single . | cut -d, -f1; btrfs filesystem df . | grep -v Glob | cut -d: -f1",
    "btrfs balance start -mconvert=dup . | cut -d, -f1; btrfs filesystem df . | grep -v Glob | cut -d: -f1",
    "btrfs filesystem resize -32M . | cut -d' ' -f1-4; btrfs filesystem resize 1:max . | cut -d' ' -f1-4",
    "btrfs filesystem resize 1:+1e . 2>&1; btrfs filesystem resize 9:max . 2>&1",
    "btrfs filesystem resize 1m . 2>&1; btrfs filesystem resize cancel . 2>&1",
    "btrfs device remove 1 . 2>&1; btrfs device remove missing . 2>&1; btrfs device remove 7 . 2>&1",
    "for n in 1 2; do truncate -s 1G ../more$n; losetup -f --show ../more$n >../loop$n; done",
    "btrfs device add -f $(cat ../loop1) . | grep -v 'discard\\|TRIM'; btrfs device usage -b . | grep -c ID",
    "btrfs device add -f $(cat ../loop1) . 2>&1 | grep -c 'mounted\\|busy'",
    "btrfs balance start -dconvert=raid1 -mconvert=raid1 . | cut -d, -f1; btrfs filesystem df . | grep -c RAID1",
    "btrfs device remove 2 . 2>&1",
    "btrfs replace start -B -f 2 $(cat ../loop2) . 2>&1 | grep -v 'discard\\|TRIM'; btrfs replace status -1 . | sed 's/ on .*, 0 w/, 0 w/'",
    "btrfs replace cancel . 2>&1; btrfs device stats . | grep -c ' 0$'; btrfs scrub start -B . | grep 'Error summary'",
    "btrfs balance start -f -dconvert=single -mconvert=dup . | cut -d, -f1",
    "btrfs device remove $(cat ../loop2) . && btrfs device usage -b . | grep -c ID",
    "for n in 1 2; do losetup -d $(cat ../loop$n); done; find . -name plain | xargs md5sum",
];

#[test]
fn tools_see_what_they_see_on_the_kernels_btrfs() {
    compare(How::Supervised, QUESTIONS);
}

#[test]
fn tools_with_the_library_see_the_same() {
    if has_library() {
        compare(How::Preloaded, QUESTIONS);
    }
}

/// As in a container that forbids watching: the kernel refuses the filter.
#[test]
fn where_calls_cannot_be_watched_the_library_is_loaded() {
    if !can_mount() || !has_library() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let mut command = Command::new(BINARY);
    command.args(["run", "--", "stat", "-f", "-c", "%t", "."]);
    command.current_dir(bench.path("mnt")).stdin(Stdio::null());
    let output = seccomp_refused(&mut command).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "9123683e\n");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("libbutterfs_preload.so is loaded"), "{told}");
    drop(mounted);
}

/// Has the program run where seccomp(2) fails with EPERM.
fn seccomp_refused(command: &mut Command) -> &mut Command {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ERROR: u32 = 0x0005_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(libc::SYS_seccomp).expect("a number");
    let mut filter = [
        instruction(LOAD, 0, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 1, number),
        instruction(RETURN, 0, 0, ERROR | libc::EPERM.cast_unsigned()),
        instruction(RETURN, 0, 0, ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog {
            len: 4,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: numbers, and a program that lives until the call returns.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        match done {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes two system calls.
    unsafe { command.pre_exec(install) }
}

#[test]
fn operations_on_the_volume_are_as_on_the_kernels_btrfs() {
    // Loop devices are root's.
    if rustix::process::geteuid().is_root() {
        compare(How::Supervised, OPERATIONS);
    }
}

fn compare(how: How, questions: &[&str]) {
    if !can_mount() {
        return;
    }
    let (ours, kernels) = (Bench::new(), Bench::new());
    let mounted = ours.mount("rw");
    script(&ours.path("mnt"), FILL);
    let done = kernels.with_kernel(|kernel| {
        script(kernel, FILL);
        for question in questions {
            let ask = |directory: &Path| {
                let output = how.run(directory, &["sh", "-c", question]);
                assert_eq!(output.status.signal(), None, "{question}");
                let place = directory.display().to_string();
                let text = format!("{:?}\n{}", output.status, said(&output));
                let device = ours.path("volume").display().to_string();
                let words = text.replace(&device, "/dev/loop").replace(&place, "MNT");
                let words = words.split_inclusive([' ', '\n', '\'']).map(|word| {
                    match word.contains("/dev/loop") {
                        true => "LOOP ",
                        false => word,
                    }
                });
                words.collect::<String>()
            };
            let answer = ask(&ours.path("mnt"));
            assert_eq!(answer, ask(kernel), "{question}");
            if question.starts_with("stat -f") {
                assert!(answer.contains("9123683e\n"), "{answer}");
            }
        }
    });
    drop(mounted);
    ours.check();
    if !done {
        println!("not compared with the kernel");
    }
}

/// A program that is killed ends what it began.
#[test]
fn an_operation_ends_with_its_caller() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let mnt = bench.path("mnt");
    std::fs::write(mnt.join("file"), vec![7; 60 << 20]).expect("a file");
    for (words, what) in [
        ("balance start --full-balance", "balance"),
        ("scrub start -B", "scrub"),
    ] {
        let text = format!(
            "btrfs {words} . >../said 2>&1 & sleep 0.05; kill -9 $!; wait $!; btrfs {what} status ."
        );
        let status = said(&supervised(&mnt, &["sh", "-c", &text]));
        assert!(!status.contains("running"), "{status}");
    }
    drop(mounted);
    bench.check();
}

#[test]
fn the_program_ends_as_without_a_supervisor() {
    let here = Path::new("/");
    let code = |words: &[&str]| supervised(here, words).status.code();
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["/nowhere/program"]), Some(127));
    assert_eq!(code(&["/etc/passwd"]), Some(126));
    let killed = supervised(here, &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGTERM));
    // The supervisor of a supervised program is the one that it has.
    let nested = supervised(here, &[BINARY, "run", "--", "sh", "-c", "exit 9"]);
    assert_eq!(nested.status.code(), Some(9));
    let shell = Command::new(BINARY)
        .arg("run")
        .env("SHELL", "/bin/true")
        .status();
    assert_eq!(shell.expect("it runs").code(), Some(0));
}

#[test]
fn a_daemon_keeps_its_supervisor_and_holds_nothing() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let point = bench.path("mnt");
    // The shell ends at once; what it left goes on under the supervisor.
    let left = "(while [ ! -e go ]; do sleep 0.05; done; stat -f -c %t mnt > answer.new; \
                mv answer.new answer) >/dev/null 2>&1 &";
    let output = supervised(point.parent().expect("a directory"), &["sh", "-c", left]);
    assert!(output.status.success(), "{}", said(&output));
    std::fs::write(bench.path("go"), "").expect("a file");
    let answer = bench.path("answer");
    while !answer.exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let answer = std::fs::read_to_string(&answer).expect("an answer");
    assert_eq!(answer.trim(), "9123683e");
    // A program unmounts where it was started.
    let unmount = format!("cd / && {BINARY} umount {}", point.display());
    let output = supervised(&point, &["sh", "-c", &unmount]);
    assert!(output.status.success(), "{}", said(&output));
    drop(mounted);
}

#[test]
fn signals_reach_the_program() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = "trap 'echo term > got; exit 3' TERM; touch ready; while :; do sleep 0.05; done";
    let mut child = Command::new(BINARY)
        .args(["run", "--", "sh", "-c", text])
        .current_dir(directory.path())
        .spawn()
        .expect("it runs");
    while !directory.path().join("ready").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it lives");
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
    let got = std::fs::read_to_string(directory.path().join("got")).expect("it was told");
    assert_eq!(got, "term\n");
}

/// What the kernel waits for in vain ends all the same: a stream whose reader is
/// gone, a table of mounts for a process that may open no file more, a program
/// that somebody stopped and continued.
#[test]
fn nothing_hangs() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let point = bench.path("mnt");
    let send = "btrfs -q subvolume create sub && head -c 3000000 /dev/urandom >sub/file && \
                btrfs -q subvolume snapshot -r sub one && btrfs send -q one | head -c 1000 | wc -c; \
                btrfs -q subvolume delete one && echo gone";
    assert_eq!(
        script(&point, &format!("timeout 60 sh -c '{send}' 2>/dev/null")),
        "1000\ngone\n"
    );
    let limited = "(ulimit -n 3; read line </proc/mounts) 2>/dev/null || echo refused";
    assert_eq!(script(&point, limited), "refused\n");
    let stopped = "(sleep 0.2; kill -STOP $$; sleep 0.2; kill -CONT $$) & sleep 1; echo on";
    assert_eq!(script(&point, stopped), "on\n");
    drop(mounted);
    bench.check();
}
