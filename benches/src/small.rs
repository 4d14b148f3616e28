//! Many small files until they are durable: the library beside kernel Btrfs,
//! and what flushing them costs, one by one and together.

use super::noise;
use super::subject::Subject;
use super::volume::Volume;
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{Access, FileDevice};
use butterfs_format::compression::{Algorithm, Level};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::Compress;
use butterfs_fs::{Filesystem, Inode, Options};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const RUNS: usize = 5;
/// Files of a directory.
const TOGETHER: usize = 1000;
/// Files that wait when they are flushed.
const WAITING: usize = 10_000;

/// The middle one.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Makes files of `size` bytes that wait in memory.
fn waiting(fs: &Filesystem, size: usize, data: &[u8]) -> Vec<Arc<Inode>> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    (0..WAITING)
        .map(|number| {
            let name = format!("f{number}");
            let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
            let from = number * 61 % (data.len() - size);
            fs.write(&inode, 0, &data[from..from + size]).unwrap();
            inode
        })
        .collect()
}

/// Microseconds that flushing a file takes, one by one and together.
fn flushes(image: &Path, size: usize, options: &Options) -> [f64; 2] {
    // Half of it compresses away.
    let data: Vec<u8> = noise().iter().map(|byte| byte & 15).collect();
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (way, took) in took.iter_mut().enumerate() {
            let device = FileDevice::open(image, Access::ReadWrite).unwrap();
            make(&device, &MkfsOptions::default()).unwrap();
            drop(device);
            let Volume::Library(fs) = Volume::open(image, options.clone()) else {
                unreachable!("it was opened by the library");
            };
            let inodes = waiting(&fs, size, &data);
            let start = Instant::now();
            match way {
                0 => inodes.iter().for_each(|one| fs.flush_inode(one).unwrap()),
                _ => fs.flush_all().unwrap(),
            }
            took.push(start.elapsed().as_secs_f64() * 1e6 / WAITING as f64);
            assert_eq!(fs.dirty_bytes(), 0);
            fs.sync_all().unwrap();
        }
    }
    took.map(median)
}

/// Files of 4 KiB a second, until all are durable.
fn until_durable(subject: &Subject, files: usize) -> f64 {
    let data = &noise()[..4096];
    subject.fresh();
    let volume = subject.open("");
    let start = Instant::now();
    for first in (0..files).step_by(TOGETHER) {
        let directory = volume.directory(&format!("d{first}"));
        for number in first..files.min(first + TOGETHER) {
            directory.create(&format!("f{number}"), data);
        }
    }
    volume.sync();
    let rate = files as f64 / start.elapsed().as_secs_f64();
    subject.close(volume);
    rate
}

/// Measures everything, on kernel Btrfs and the library, and prints it.
pub fn measure(subjects: &[Subject; 2], files: usize) {
    let plain = Options::default();
    let packed = Options {
        compress: Compress::Try(Algorithm::Zstd, Level(3)),
        ..Options::default()
    };
    println!("| flush of {WAITING} files, µs for each | one by one | together | ratio |");
    println!("|---|---|---|---|");
    for (name, size, options) in [
        ("100 bytes", 100, &plain),
        ("4 KiB", 4096, &plain),
        ("16 KiB", 16 << 10, &plain),
        ("8 KiB, zstd:3", 8 << 10, &packed),
    ] {
        let [alone, together] = flushes(&subjects[1].device, size, options);
        let ratio = alone / together;
        println!("| {name} | {alone:.1} | {together:.1} | {ratio:.2} |");
    }
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (subject, rates) in subjects.iter().zip(&mut rates) {
            rates.push(until_durable(subject, files));
        }
    }
    let [kernel, library] = rates.map(median);
    println!("\n| {files} files of 4 KiB until they are durable | files/s |");
    println!("|---|---|");
    println!("| kernel Btrfs | {kernel:.0} |");
    println!("| library | {library:.0} ({:.2}) |", library / kernel);
}
