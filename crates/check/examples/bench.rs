//! Compares `btrfs check` with our check on one volume of many small files:
//! `bench [FILES]`, as root. The kernel makes the volume in a file in memory.
//! The two programs take turns in which one runs first.

use butterfs_check::{NoProgress, Options, check};
use butterfs_device::{Access, FileDevice};
use butterfs_testkit::judge::{self, KernelMount, mkfs_btrfs, scratch_dir};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RUNS: usize = 3;
const PER_DIRECTORY: usize = 1000;

fn main() {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if first.as_deref() == Some("--ours") {
        return ours(Path::new(&words.next().expect("a path")));
    }
    let files: usize = first.map_or(1_000_000, |word| word.parse().expect("a number of files"));
    let dir = scratch_dir();
    let image = dir.path().join("many.img");
    fill(&image, files);
    let own = std::env::current_exe().expect("this program has a path");
    let path = image.to_str().expect("a path of characters");
    let ours = [own.to_str().expect("a path of characters"), "--ours", path];
    let theirs = ["btrfs", "check", path];
    println!("| run | btrfs check | ours | ratio | btrfs check, peak | ours, peak |");
    println!("|---|---|---|---|---|---|");
    for run in 1..=RUNS {
        let (a, b) = if run % 2 == 1 {
            let a = measure(&theirs);
            (a, measure(&ours))
        } else {
            let b = measure(&ours);
            (measure(&theirs), b)
        };
        println!(
            "| {run} | {:.2} s | {:.2} s | {:.1} | {} MiB | {} MiB |",
            a.0.as_secs_f64(),
            b.0.as_secs_f64(),
            a.0.as_secs_f64() / b.0.as_secs_f64(),
            a.1 >> 10,
            b.1 >> 10
        );
    }
}

fn ours(path: &Path) {
    let device = FileDevice::open(path, Access::ReadOnly).expect("the image opens");
    let report = check(vec![Arc::new(device)], &Options::default(), &NoProgress);
    let report = report.expect("it can be checked");
    assert!(report.is_clean(), "{:?}", report.faults);
}

/// Makes the volume. Half of the files are inline, half have an extent.
fn fill(image: &Path, files: usize) {
    mkfs_btrfs(image, (files as u64 * 8192).max(1 << 30), &[]);
    let mount = KernelMount::mount(image, judge::Access::ReadWrite, "").expect("a mount");
    for number in 0..files {
        let directory = mount
            .path()
            .join(format!("directory-{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            std::fs::create_dir(&directory).expect("a directory");
        }
        let bytes = if number % 2 == 0 { 100 } else { 5000 };
        let file = directory.join(format!("file-number-{number}.txt"));
        std::fs::write(file, vec![b'x'; bytes]).expect("a file");
    }
    mount.unmount().expect("it unmounts");
}

/// Runs a program and returns its time and its greatest resident memory in KiB.
fn measure(words: &[&str]) -> (Duration, u64) {
    let begin = Instant::now();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        if let Some(done) = child.try_wait().expect("the program can be waited for") {
            assert!(done.success(), "{words:?}: {done}");
            return (begin.elapsed(), peak);
        }
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        peak = peak.max(kib.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
}
