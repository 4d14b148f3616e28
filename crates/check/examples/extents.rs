//! Measures the memory of a check: `extents [EXTENTS]`. The volume has many
//! extents of 4 KiB with checksums. Free space follows each of them, so that no
//! two ranges of used, checksummed or free space join. Prints the time and the
//! greatest resident memory of our check and of `btrfs check`.
//!
//! Metadata are written. Data are all of one pattern and are not written, so 10
//! million extents take about 6 GiB of `/dev/shm` instead of 46.

use butterfs::{FallocateMode, NewInode, OpenOptions, Owner, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_check::{NoProgress, Options, check};
use butterfs_device::{Access, BlockDevice, DeviceError, DeviceRange, FileDevice};
use butterfs_format::DeviceOffset;
use butterfs_testkit::judge::scratch_dir;
use std::io::IoSlice;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECTOR: u64 = 4096;
const PATTERN: u8 = 0xa5;
const BATCH: u64 = 1 << 20;

/// A file that drops writes of the pattern.
#[derive(Debug)]
struct Forgetful(FileDevice);

impl BlockDevice for Forgetful {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        if data.iter().all(|byte| *byte == PATTERN) {
            return Ok(());
        }
        self.0.write_at(offset, data)
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        if parts
            .iter()
            .all(|part| part.iter().all(|byte| *byte == PATTERN))
        {
            return Ok(());
        }
        self.0.write_vectored_at(offset, parts)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        self.0.discard(range)
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn access(&self) -> Access {
        self.0.access()
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if first.as_deref() == Some("--check") {
        return ours(Path::new(&words.next().expect("a path")));
    }
    let extents: u64 = first.map_or(10_000_000, |word| word.parse().expect("a number"));
    let dir = scratch_dir();
    let image = dir.path().join("extents.img");
    fill(&image, extents);
    let path = image.to_str().expect("a path of characters");
    let own = std::env::current_exe().expect("this program has a path");
    let own = own.to_str().expect("a path of characters");
    println!("| check | time | peak |\n|---|---|---|");
    measure("ours", &[own, "--check", path]);
    measure("btrfs check", &["btrfs", "check", path]);
}

fn ours(path: &Path) {
    let device = FileDevice::open(path, Access::ReadOnly).expect("the image opens");
    let report = check(vec![Arc::new(device)], &Options::default(), &NoProgress);
    let report = report.expect("it can be checked");
    assert!(report.is_clean(), "{:?}", report.faults);
}

/// Makes the volume: allocates extents for two files in turn, removes one file
/// and writes the other.
fn fill(image: &Path, extents: u64) {
    let begin = Instant::now();
    let size = extents * SECTOR * 2 + extents * 4096 + (4 << 30);
    let device = FileDevice::create(image, size).expect("a file");
    let mut options = MkfsOptions::default();
    // Debian's btrfs check does not know the block group tree.
    let made = options.features.change("^block-group-tree");
    made.and_then(|()| make(&device, &options)).expect("mkfs");
    let device = Arc::new(Forgetful(device));
    let volume = Volume::open_device(device, OpenOptions::default()).expect("it opens");
    let files = volume.files();
    let new = NewInode::new(0o100_644, Owner::default());
    let make = |name: &[u8]| files.create(files.root(), name, &new).expect("a file");
    let (kept, gone) = (make(b"kept"), make(b"gone"));
    for number in 0..extents {
        for file in [&kept, &gone] {
            files
                .fallocate(file, FallocateMode::Allocate, number * SECTOR, SECTOR)
                .expect("space");
        }
        if number % BATCH == 0 {
            eprintln!("{number} extents, {:.0} s", begin.elapsed().as_secs_f64());
        }
    }
    drop(gone);
    volume.sync().expect("a commit");
    files.unlink(files.root(), b"gone").expect("a name");
    volume.sync().expect("a commit");
    eprintln!("unlinked, {:.0} s", begin.elapsed().as_secs_f64());
    let data = vec![PATTERN; BATCH as usize];
    let end = extents * SECTOR;
    for at in (0..end).step_by(BATCH as usize) {
        let part = &data[..(end - at).min(BATCH) as usize];
        let written = files.write(&kept, at, part).expect("it is written");
        assert_eq!(written, part.len());
    }
    drop(kept);
    volume.close().expect("all is written");
    eprintln!("written, {:.0} s", begin.elapsed().as_secs_f64());
}

/// Runs a program to its end and prints its time and greatest memory.
fn measure(name: &str, words: &[&str]) {
    let begin = Instant::now();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .spawn()
        .expect("the program starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let done = loop {
        if let Some(done) = child.try_wait().expect("the program can be waited for") {
            break done;
        }
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        peak = peak.max(kib.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = begin.elapsed().as_secs_f64();
    println!("| {name} ({done}) | {seconds:.1} s | {} MiB |", peak >> 10);
}
