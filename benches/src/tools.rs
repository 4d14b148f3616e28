//! Scrub, balance, conversion, replacement and removal of devices: the tool
//! beside the kernel's Btrfs, each on a copy of one volume with a real tree and
//! 20 snapshots. Needs root.

use super::small::median;
use super::{program, run};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const DEVICE: u64 = 3 << 30;
const SNAPSHOTS: usize = 20;
/// What the tree is made of.
const SOURCES: [&str; 2] = ["/usr/share", "/usr/include"];

/// Files in memory, and where the kernel mounts them.
struct Ground {
    work: PathBuf,
    point: PathBuf,
}

/// Loop devices with direct I/O over files, until this is dropped.
struct Loops(Vec<String>);

impl Loops {
    fn new(ground: &Ground, names: &[&str]) -> Self {
        let attach = |name: &&str| {
            let mut losetup = Command::new("losetup");
            let output = losetup
                .args(["--direct-io=on", "-f", "--show"])
                .arg(ground.work.join(name))
                .output()
                .unwrap();
            assert!(output.status.success(), "losetup {name}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        Self(names.iter().map(attach).collect())
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

/// A mount by the kernel, until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(ground: &Ground, device: &str) -> Self {
        let point = ground.point.to_str().unwrap();
        run("mount", &["-t", "btrfs", "-o", "noatime", device, point]);
        Self(ground.point.clone())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn files_below(directory: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), all);
        } else if kind.is_file() {
            all.push(entry.path());
        }
    }
}

/// Makes the volume of which all others are copies: a tree and its snapshots.
/// Between two snapshots, half a percent of the files changes.
fn grow(ground: &Ground) {
    let image = ground.work.join("grown");
    File::create(&image).unwrap().set_len(DEVICE).unwrap();
    // mkfs.btrfs prints its defaults even with -q.
    let mut mkfs = Command::new("mkfs.btrfs");
    let made = mkfs.arg("-q").arg(&image).output().unwrap();
    assert!(made.status.success(), "mkfs.btrfs");
    let loops = Loops::new(ground, &["grown"]);
    let mounted = Mounted::new(ground, loops.names()[0]);
    let base = ground.point.join("base");
    let tree = base.to_str().unwrap();
    run("btrfs", &["-q", "subvolume", "create", tree]);
    for source in SOURCES {
        run("cp", &["-a", source, tree]);
    }
    let mut files = Vec::new();
    files_below(&base, &mut files);
    files.sort();
    for number in 0..SNAPSHOTS {
        let name = ground.point.join(format!("snapshot-{number}"));
        let snapshot = ["-q", "subvolume", "snapshot", tree, name.to_str().unwrap()];
        run("btrfs", &snapshot);
        for file in files.iter().skip(number).step_by(200) {
            let mut content = fs::read(file).unwrap();
            content.extend(b"changed\n");
            fs::write(file, content).unwrap();
        }
    }
    run("sync", &[]);
    drop(mounted);
}

/// Seconds that a program takes; it must succeed.
pub fn took(program: &str, words: &[&str]) -> f64 {
    let began = Instant::now();
    let output = Command::new(program).args(words).output().unwrap();
    let seconds = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {said}");
    seconds
}

/// Steps that follow each other on one volume.
const STEPS: [&str; 6] = [
    "scrub",
    "full balance",
    "convert to raid1",
    "replace a device",
    "convert to single and dup",
    "remove a device",
];

/// Seconds of each step. `second` and `third` are further devices.
fn steps(program: &str, volume: &str, second: &str, third: &str) -> [f64; 6] {
    let mirror = ["-f", "-dconvert=raid1", "-mconvert=raid1", volume];
    let single = ["-f", "-dconvert=single", "-mconvert=dup", volume];
    let balance = |filters: &[&str]| took(program, &[&["balance", "start"], filters].concat());
    let scrub = took(program, &["scrub", "start", "-B", volume]);
    let full = balance(&["--full-balance", volume]);
    took(program, &["device", "add", "-f", second, volume]);
    let mirrored = balance(&mirror);
    let replace = ["replace", "start", "-B", "-f", second, third, volume];
    let replaced = took(program, &replace);
    let alone = balance(&single);
    let removed = took(program, &["device", "remove", third, volume]);
    [scrub, full, mirrored, replaced, alone, removed]
}

const DEVICES: [&str; 3] = ["first", "second", "third"];

/// Makes the files anew; the first one is the volume.
fn fresh(ground: &Ground) {
    let files = DEVICES.map(|name| ground.work.join(name));
    for file in &files {
        let _ = fs::remove_file(file);
        File::create(file).unwrap().set_len(DEVICE).unwrap();
    }
    let (from, to) = (ground.work.join("grown"), &files[0]);
    let copy = [
        "--sparse=always",
        from.to_str().unwrap(),
        to.to_str().unwrap(),
    ];
    run("cp", &copy);
}

/// Measures everything and prints it.
pub fn measure(base: &Path, repeats: usize) -> io::Result<()> {
    let work = base.join(format!("butterfs-tools-{}", std::process::id()));
    let point = work.join("mnt");
    fs::create_dir_all(&point)?;
    let ground = Ground { work, point };
    grow(&ground);
    let mut kernel = Vec::new();
    let mut own = Vec::new();
    for _ in 0..repeats {
        fresh(&ground);
        let loops = Loops::new(&ground, &DEVICES);
        let [first, second, third] = loops.names()[..] else {
            unreachable!("there are as many as there are files")
        };
        let mounted = Mounted::new(&ground, first);
        let point = ground.point.to_str().unwrap();
        kernel.push(steps("btrfs", point, second, third));
        drop((mounted, loops));
        fresh(&ground);
        let loops = Loops::new(&ground, &DEVICES);
        let [first, second, third] = loops.names()[..] else {
            unreachable!("there are as many as there are files")
        };
        own.push(steps(&program(), first, second, third));
        took("btrfs", &["check", "--check-data-csum", first]);
    }
    println!("| step | kernel Btrfs, s | ButterFS, not mounted, s | ratio |");
    println!("|---|---|---|---|");
    for (number, step) in STEPS.iter().enumerate() {
        let column = |runs: &[[f64; 6]]| median(runs.iter().map(|run| run[number]).collect());
        let (kernel, own) = (column(&kernel), column(&own));
        let ratio = kernel / own;
        println!("| {step} | {kernel:.2} | {own:.2} | {ratio:.2} |");
    }
    fs::remove_dir_all(&ground.work)
}
