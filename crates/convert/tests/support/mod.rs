//! Images of ext4, what the kernel shows of them, and the judges of what they
//! become.
#![allow(dead_code, reason = "each test program uses a part")]

use butterfs_check::{DataChecksums, Fault, NoProgress, check};
use butterfs_convert::{ConvertError, Converted, Options, RolledBack, Unwatched};
use butterfs_device::{Access, BlockDevice, FileDevice};
use butterfs_format::ChecksumType;
use butterfs_testkit::Capability;
use butterfs_testkit::judge::judge_image;
use rustix::fs::{IFlags, ioctl_getflags, lgetxattr, llistxattr};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

pub const MIB: u64 = 1 << 20;

/// Whether this machine can mount images, and has the tools.
pub fn can_mount() -> bool {
    Capability::all_here(&Capability::KERNEL_MOUNT)
        && Capability::all_here(&[Capability::Program("mkfs.ext4")])
}

/// Runs a program, and gives what it printed. A mount is tried again: the loop
/// device of the one before may still be on its way out.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let mut tries = if program == "mount" { 30 } else { 1 };
    loop {
        let output = Command::new(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return printed;
        }
        tries -= 1;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(tries > 0, "{program} {arguments:?}: {printed}{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A mount that ends with its value.
pub struct Mounted {
    pub point: PathBuf,
}

impl Mounted {
    pub fn new(image: &Path, kind: &str, options: &str) -> Self {
        let point = image.with_extension("mnt");
        fs::create_dir_all(&point).unwrap();
        let (image, at) = (image.to_str().unwrap(), point.to_str().unwrap());
        let options = format!("loop,{options}");
        run("mount", &["-t", kind, "-o", &options, image, at]);
        Self { point }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).status();
    }
}

/// Makes an image with mke2fs.
pub fn mke2fs(path: &Path, size: u64, arguments: &[&str]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    let mut all = vec!["-q", "-F", "-E", "lazy_itable_init=0,nodiscard"];
    all.extend(arguments);
    all.push(path.to_str().unwrap());
    run("mke2fs", &all);
}

/// Fills an image by a script, through the kernel.
pub fn fill(path: &Path, script: &str) {
    let mounted = Mounted::new(path, "ext4", "noatime");
    butterfs_testkit::run_script(&mounted.point, script);
}

/// What the kernel shows of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: String,
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub links: u64,
    pub device: u64,
    pub times: [(i64, i64); 3],
    pub born: Option<u128>,
    pub content: Vec<u8>,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    pub flags: Option<u32>,
    pub same_as: PathBuf,
}

/// Flags that both file systems have.
fn flags_of(path: &Path) -> Option<u32> {
    let known = IFlags::IMMUTABLE
        | IFlags::APPEND
        | IFlags::NODUMP
        | IFlags::NOATIME
        | IFlags::SYNC
        | IFlags::DIRSYNC;
    let file = File::open(path).ok()?;
    ioctl_getflags(&file)
        .ok()
        .map(|flags| (flags & known).bits())
}

fn attributes_of(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let length = llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0);
    names
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

/// Everything below a directory, but the subvolume with the image.
pub fn shown(root: &Path) -> BTreeMap<PathBuf, Shown> {
    let mut all = BTreeMap::new();
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        let path = root.join(&below);
        let facts = fs::symlink_metadata(&path).unwrap();
        let kind = facts.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec()
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            ChecksumType::Sha256.compute(&bytes).to_vec()
        } else {
            Vec::new()
        };
        let special =
            kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket();
        let born = facts.created().ok();
        let same_as = match kind.is_dir() {
            true => below.clone(),
            false => first.entry(facts.ino()).or_insert(below.clone()).clone(),
        };
        let one = Shown {
            kind: format!("{kind:?}"),
            mode: facts.mode(),
            owner: (facts.uid(), facts.gid()),
            size: if facts.is_dir() { 0 } else { facts.len() },
            links: if facts.is_dir() { 0 } else { facts.nlink() },
            device: facts.rdev(),
            times: [
                (facts.atime(), facts.atime_nsec()),
                (facts.mtime(), facts.mtime_nsec()),
                (facts.ctime(), facts.ctime_nsec()),
            ],
            born: born.map(|born| born.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos())),
            content,
            attributes: attributes_of(&path),
            flags: match special || kind.is_symlink() {
                true => None,
                false => flags_of(&path),
            },
            same_as,
        };
        all.insert(below.clone(), one);
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .filter(|name| name != "ext2_saved")
                .collect();
            names.sort();
            names.reverse();
            waiting.extend(names.into_iter().map(|name| below.join(name)));
        }
    }
    // Which name is the first depends on the order of the walk.
    let mut least: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for (path, one) in &all {
        let entry = least.entry(one.same_as.clone()).or_insert(path.clone());
        *entry = (*entry).clone().min(path.clone());
    }
    for one in all.values_mut() {
        one.same_as = least[&one.same_as].clone();
    }
    all
}

/// What the kernel's ext4 shows of an image.
pub fn shown_by_ext4(image: &Path) -> BTreeMap<PathBuf, Shown> {
    let mounted = Mounted::new(image, "ext4", "ro,noload");
    shown(&mounted.point)
}

pub fn assert_same(
    before: &BTreeMap<PathBuf, Shown>,
    after: &BTreeMap<PathBuf, Shown>,
    context: &str,
) {
    let names = |all: &BTreeMap<PathBuf, Shown>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(before), names(after), "{context}");
    for (path, before) in before {
        let mut after = after[path].clone();
        if before.born.is_none() {
            after.born = None;
        }
        assert_eq!(*before, after, "{context}: {}", path.display());
    }
}

pub fn device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap())
}

pub fn options() -> Options {
    Options {
        // Sorting in small runs, as large file systems are sorted.
        sort_memory: 100_000,
        ..Options::default()
    }
}

pub fn convert(path: &Path, options: &Options) -> Result<Converted, ConvertError> {
    butterfs_convert::convert(&device(path), options, &Unwatched)
}

pub fn rollback(path: &Path) -> Result<RolledBack, ConvertError> {
    butterfs_convert::rollback(&device(path), &Unwatched)
}

/// What our own check says.
pub fn faults(device: Arc<dyn BlockDevice>) -> Vec<Fault> {
    let options = butterfs_check::Options {
        data: DataChecksums::Verify,
        threads: 1,
        ..butterfs_check::Options::default()
    };
    let report = check(vec![device], &options, &NoProgress).unwrap();
    report.faults
}

/// Our own check finds nothing.
pub fn judge_device(device: Arc<dyn BlockDevice>, context: &str) {
    let faults = faults(device);
    assert!(faults.is_empty(), "{context}: {faults:#?}");
}

/// btrfs check in both modes, and ours.
pub fn judge(path: &Path, context: &str) {
    judge_device(
        Arc::new(FileDevice::open(path, Access::ReadOnly).unwrap()),
        context,
    );
    judge_image(path, context);
}

/// The bytes that ext4 uses, as the blocks of a copy; others are zero.
pub fn used(image: &Path) -> Vec<u8> {
    let file = File::open(image).unwrap();
    let old = butterfs_ext4::FileSystem::open(file).unwrap();
    let superblock = old.superblock().clone();
    let block = superblock.block_size();
    let mut bytes = vec![0; (superblock.blocks * block) as usize];
    let mut ranges: Vec<_> = std::iter::once(0..u64::from(superblock.first_block)).collect();
    for group in 0..superblock.groups() {
        ranges.extend(old.used_blocks_of(group).unwrap());
    }
    for range in ranges {
        let (start, end) = (range.start * block, range.end * block);
        let target = &mut bytes[start as usize..end as usize];
        old.read(start, target).unwrap();
    }
    bytes
}

/// Compares all bytes, where `before` has no zeros in free blocks.
pub fn assert_same_bytes(before: &[u8], after: &[u8], context: &str) {
    assert_eq!(before.len(), after.len(), "{context}");
    for (number, (one, other)) in before.chunks(512).zip(after.chunks(512)).enumerate() {
        assert!(one == other, "{context}: sector {number} differs");
    }
}

/// Converts, compares, and goes back.
pub fn round_trip(image: &Path, options: &Options, context: &str) {
    let whole = fs::read(image).unwrap();
    let old = used(image);
    let before = shown_by_ext4(image);
    assert_same_bytes(&whole, &fs::read(image).unwrap(), context);
    convert(image, options).unwrap_or_else(|error| panic!("{context}: {error}"));
    // The image, for whoever looks into a failure.
    if let Some(copy) = std::env::var_os("BUTTERFS_KEEP") {
        fs::copy(image, copy).unwrap();
    }
    judge(image, context);
    {
        let mounted = Mounted::new(image, "btrfs", "ro,noatime");
        assert_same(&before, &shown(&mounted.point), context);
        let saved = fs::read(mounted.point.join("ext2_saved/image")).unwrap();
        let copy = image.with_extension("saved");
        fs::write(&copy, &saved).unwrap();
        let of_copy = used(&copy);
        fs::remove_file(&copy).unwrap();
        assert_same_bytes(&old, &of_copy, context);
    }
    rollback(image).unwrap_or_else(|error| panic!("{context}: {error}"));
    let after = fs::read(image).unwrap();
    assert_same_bytes(&old, &used(image), context);
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
    assert_same_bytes(&whole, &after, &format!("{context}: the whole device"));
}
