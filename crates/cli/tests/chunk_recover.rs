//! `butterfs rescue chunk-recover` as a program, on volumes of the kernel and of
//! ours: afterwards `btrfs check` in both modes and the kernel find nothing
//! wrong, and every file is as it was.

mod support;

use butterfs_format::ChecksumType;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_testkit::content::content;
use butterfs_testkit::judge::{
    Access, DataChecksums, KernelMount, Loop, Mode, btrfs_check, judge_image,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{is_root, said};

const CHUNK_TREE: u64 = 3;

fn butterfs(words: &[&str]) -> Output {
    let mut command = Command::new(support::BINARY);
    command.args(words).output().expect("the program runs")
}

fn run(words: &[&str], code: i32) -> String {
    let output = butterfs(words);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    said
}

struct Devices {
    _directory: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Devices {
    fn new(count: usize) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = (1..=count).map(|number| {
            let path = directory.path().join(format!("{number}.img"));
            let file = File::create(&path).expect("an image");
            // The order of stripes is not that of the devices.
            let size = (200 + 40 * number as u64) << 20;
            file.set_len(size).expect("an image");
            path
        });
        Self {
            paths: paths.collect(),
            _directory: directory,
        }
    }

    fn names(&self) -> Vec<&str> {
        let names = self.paths.iter().map(|path| path.to_str());
        names
            .map(|name| name.expect("a path of characters"))
            .collect()
    }

    fn bytes(&self) -> Vec<[u8; 32]> {
        let digest = |path: &PathBuf| {
            let bytes = fs::read(path).expect("an image");
            ChecksumType::Sha256.compute(&bytes)
        };
        self.paths.iter().map(digest).collect()
    }

    fn superblock(&self) -> Superblock {
        let mut bytes = vec![0; SIZE];
        let file = File::open(&self.paths[0]).expect("an image");
        file.read_exact_at(&mut bytes, COPIES[0].get())
            .expect("a superblock");
        Superblock::parse(&bytes, COPIES[0]).expect("a superblock")
    }

    /// Zeroes nodes of the chunk tree for which `is_wanted` is true; gives how
    /// many.
    fn zero_nodes(&self, is_wanted: impl Fn(u64) -> bool) -> usize {
        let superblock = self.superblock();
        let mut count = 0;
        for path in &self.paths {
            let bytes = fs::read(path).expect("an image");
            let file = File::options().write(true).open(path).expect("an image");
            for (number, node) in bytes.chunks(4096).enumerate() {
                let logical = u64::from_le_bytes(node[48..56].try_into().expect("8 bytes"));
                if node[32..48] == superblock.fsid
                    && node[88..96] == CHUNK_TREE.to_le_bytes()
                    && is_wanted(logical)
                {
                    let at = number as u64 * 4096;
                    file.write_all_at(&vec![0; superblock.node_size as usize], at)
                        .expect("it can be written");
                    count += 1;
                }
            }
        }
        count
    }

    /// Makes the arrays of system chunks in all superblocks impossible, with
    /// good checksums.
    fn damage_arrays(&self) {
        for path in &self.paths {
            let file = File::options()
                .read(true)
                .write(true)
                .open(path)
                .expect("an image");
            let size = file.metadata().expect("an image").len();
            for copy in COPIES.iter().filter(|copy| copy.get() < size) {
                let mut bytes = vec![0; SIZE];
                file.read_exact_at(&mut bytes, copy.get())
                    .expect("a superblock");
                bytes[0x32b..0x32b + 97].fill(0xff);
                ChecksumType::Crc32c.seal_block(&mut bytes);
                file.write_all_at(&bytes, copy.get()).expect("a superblock");
            }
        }
    }
}

/// The files that a volume is filled with, by name.
fn files() -> BTreeMap<String, Vec<u8>> {
    let sizes = [3000, 70_000, 400_000, 4_000_000, 0, 131_072, 900_001];
    let files = (0..60_u64).map(|number| {
        let size = sizes[(number % 7) as usize];
        (format!("{number}"), content(number, size))
    });
    files.collect()
}

fn fill(root: &Path) {
    fs::create_dir(root.join("many")).expect("a directory");
    for (name, bytes) in files() {
        fs::write(root.join("many").join(name), bytes).expect("a file");
    }
}

fn assert_files(root: &Path, context: &str) {
    for (name, bytes) in files() {
        let found = fs::read(root.join("many").join(&name)).expect("a file");
        assert!(found == bytes, "{context}: {name}");
    }
}

/// A volume that mkfs.btrfs and the kernel made.
fn by_kernel(data: &str, metadata: &str, count: usize) -> Devices {
    let devices = Devices::new(count);
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "-f", "-d", data, "-m", metadata])
        .args(&devices.paths)
        .output()
        .expect("mkfs.btrfs runs");
    assert!(made.status.success(), "{}", said(&made));
    let mount = KernelMount::mount_all(&devices.paths, Access::ReadWrite, "").expect("a mount");
    fill(mount.path());
    mount.unmount().expect("it ends");
    devices
}

/// A volume of ours.
fn by_us(data: &str, metadata: &str, count: usize) -> Devices {
    let devices = Devices::new(count);
    let mut words = vec!["mkfs", "-q", "-f", "-d", data, "-m", metadata];
    words.extend(devices.names());
    run(&words, 0);
    let host = tempfile::tempdir().expect("a directory");
    fill(host.path());
    let from = host.path().join("many");
    let to = format!("{}:/many", devices.names()[0]);
    run(
        &["copy", from.to_str().expect("a path of characters"), &to],
        0,
    );
    devices
}

/// Everybody finds the volume as it was before the damage.
fn judge(devices: &Devices, context: &str) {
    let names = devices.names();
    run(&[&["check", "--check-data-csum"], &names[..]].concat(), 0);
    {
        // The others are found among the loop devices.
        let loops = devices
            .paths
            .iter()
            .map(|path| Loop::attach(path, Access::ReadOnly));
        let loops: Vec<Loop> = loops.collect::<Result<_, _>>().expect("loop devices");
        judge_image(loops[0].path(), context);
    }
    let mut mount = KernelMount::mount_all(&devices.paths, Access::ReadWrite, "").expect("a mount");
    assert_files(mount.path(), context);
    mount.scrub().assert_clean(context);
    fs::write(mount.path().join("new"), b"written afterwards").expect("a file");
    let complaints = mount.unmount().expect("it ends");
    assert_eq!(complaints, Vec::<String>::new(), "{context}");
    run(&[&["check"], &names[..]].concat(), 0);
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Root,
    AllNodes,
    AllNodesAndArrays,
}

impl Damage {
    fn make(self, devices: &Devices) {
        let root = devices.superblock().chunk_root.get();
        let count = match self {
            Self::Root => devices.zero_nodes(|logical| logical == root),
            Self::AllNodes | Self::AllNodesAndArrays => devices.zero_nodes(|_| true),
        };
        assert!(count > 0);
        if matches!(self, Self::AllNodesAndArrays) {
            devices.damage_arrays();
        }
    }
}

/// `btrfs rescue chunk-recover` on copies of the images, if
/// `BUTTERFS_BESIDE` is set: whether `btrfs check` finds no fault afterwards.
fn beside(devices: &Devices, context: &str) {
    if std::env::var_os("BUTTERFS_BESIDE").is_none() {
        return;
    }
    let copy = |path: &PathBuf| {
        let copy = path.with_extension("copy");
        fs::copy(path, &copy).expect("a copy");
        copy
    };
    let copies: Vec<PathBuf> = devices.paths.iter().map(copy).collect();
    let loops = copies
        .iter()
        .map(|path| Loop::attach(path, Access::ReadWrite));
    let loops: Vec<Loop> = loops.collect::<Result<_, _>>().expect("loop devices");
    let first = loops[0].path();
    let theirs = Command::new("btrfs")
        .args(["rescue", "chunk-recover", "-y"])
        .arg(first)
        .output()
        .expect("btrfs runs");
    let checked = btrfs_check(first, Mode::Original, DataChecksums::Verify);
    println!(
        "{context}: btrfs rescue chunk-recover ends with {:?}, btrfs check is clean: {}",
        theirs.status.code(),
        checked.clean
    );
    drop(loops);
    for copy in copies {
        fs::remove_file(copy).expect("it is there");
    }
}

fn lost_and_found(devices: &Devices, damage: Damage, context: &str) {
    damage.make(devices);
    beside(devices, context);
    let before = devices.bytes();
    let names = devices.names();
    let refused = run(&[&["check"], &names[..]].concat(), 8);
    assert!(
        refused.contains("rescue chunk-recover"),
        "{context}: {refused}"
    );
    let refused = run(&["ls", &format!("{}:/", names[0])], 1);
    assert!(
        refused.contains("rescue chunk-recover"),
        "{context}: {refused}"
    );
    let said = run(&[&["rescue", "chunk-recover"], &names[..]].concat(), 0);
    for words in ["chunks are certain", "step 1: ", "butterfs rescue commit"] {
        assert!(said.contains(words), "{context}: {words}: {said}");
    }
    assert!(
        devices.bytes() == before,
        "{context}: the devices were written"
    );
    let overlay = format!("{}.overlay", names[0]);
    run(&[&["check", "--overlay", &overlay], &names[..]].concat(), 0);
    let again = run(&[&["rescue", "chunk-recover"], &names[..]].concat(), 0);
    assert!(
        again.contains("is whole; nothing was changed"),
        "{context}: {again}"
    );
    run(&["rescue", "commit", &overlay], 0);
    let again = run(&[&["rescue", "chunk-recover"], &names[..]].concat(), 1);
    // The overlay belongs to the volume as it was.
    assert!(again.contains(&overlay), "{context}: {again}");
    fs::rename(&overlay, format!("{overlay}.done")).expect("it is there");
    let again = run(&[&["rescue", "chunk-recover"], &names[..]].concat(), 0);
    assert!(
        again.contains("is whole; nothing was changed"),
        "{context}: {again}"
    );
    assert!(!Path::new(&overlay).exists());
    judge(devices, context);
}

fn trial(made: fn(&str, &str, usize) -> Devices, who: &str) {
    if !is_root() {
        println!("skipped: kernel mounts need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let kinds = [
        ("single", "dup", 1, Damage::Root),
        ("single", "dup", 1, Damage::AllNodesAndArrays),
        ("raid1", "raid1", 2, Damage::AllNodes),
        ("raid0", "raid1", 3, Damage::AllNodesAndArrays),
        ("raid10", "raid10", 4, Damage::AllNodes),
        ("raid10", "raid10", 4, Damage::AllNodesAndArrays),
        ("raid5", "raid1", 3, Damage::Root),
        ("raid5", "raid5", 3, Damage::AllNodesAndArrays),
        ("raid6", "raid1c3", 4, Damage::AllNodesAndArrays),
    ];
    for (data, metadata, count, damage) in kinds {
        let context = format!("{who}: {data}, {metadata}, {count} devices, {damage:?}");
        println!("{context}");
        lost_and_found(&made(data, metadata, count), damage, &context);
    }
}

#[test]
fn the_kernels_volumes_come_back() {
    trial(by_kernel, "kernel");
}

#[test]
fn our_volumes_come_back() {
    trial(by_us, "ours");
}

#[test]
fn what_is_not_certain_is_named_and_nothing_is_changed() {
    let devices = Devices::new(2);
    let names = devices.names();
    run(
        &[
            &["mkfs", "-q", "-f", "-d", "raid0", "-m", "raid1"],
            &names[..],
        ]
        .concat(),
        0,
    );
    let host = tempfile::tempdir().expect("a directory");
    let file = host.path().join("precious");
    fs::write(&file, content(1, 3_000_000)).expect("a file");
    let file = file.to_str().expect("a path of characters");
    let to = format!("{}:/precious", names[0]);
    run(&["copy", "-o", "nodatasum", file, &to], 0);
    devices.zero_nodes(|_| true);
    let before = devices.bytes();
    let said = run(&[&["rescue", "chunk-recover"], &names[..]].concat(), 1);
    for words in [
        "DATA|RAID0",
        "several orders of its stripes are possible",
        "/precious",
        "nothing was changed",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(devices.bytes() == before);
    assert!(!Path::new(&format!("{}.overlay", names[0])).exists());
}

#[test]
fn a_commit_can_be_undone() {
    let devices = Devices::new(1);
    let name = devices.names()[0];
    run(&["mkfs", "-q", "-f", name], 0);
    devices.zero_nodes(|_| true);
    let before = devices.bytes();
    run(&["rescue", "chunk-recover", "--in-place", "-v", name], 0);
    run(&["check", name], 0);
    run(&["rescue", "undo", &format!("{name}.overlay")], 0);
    assert!(devices.bytes() == before);
}
