//! Workloads that make data durable: appends with fsync, and the shape of a
//! database, on ButterFS (library, FUSE), kernel Btrfs and ext4.

use super::{Mount, run};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{Access, FileDevice};
use butterfs_format::TreeId;
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 16 << 10;
const IMAGE: u64 = 6 << 30;
const DATABASE: u64 = 1 << 30;
const JOBS: usize = 4;

/// One file, whoever keeps it.
trait Handle: Send + Sync {
    fn write(&self, offset: u64, data: &[u8]);
    fn read(&self, offset: u64, data: &mut [u8]);
    fn fsync(&self);
}

impl Handle for File {
    fn write(&self, offset: u64, data: &[u8]) {
        self.write_all_at(data, offset).unwrap();
    }
    fn read(&self, offset: u64, data: &mut [u8]) {
        self.read_exact_at(data, offset).unwrap();
    }
    fn fsync(&self) {
        self.sync_all().unwrap();
    }
}

struct InLibrary {
    fs: Arc<Filesystem>,
    inode: Arc<Inode>,
}

impl Handle for InLibrary {
    fn write(&self, offset: u64, data: &[u8]) {
        assert_eq!(
            self.fs.write(&self.inode, offset, data).unwrap(),
            data.len()
        );
    }
    fn read(&self, offset: u64, data: &mut [u8]) {
        assert_eq!(self.fs.read(&self.inode, offset, data).unwrap(), data.len());
    }
    fn fsync(&self) {
        self.fs.fsync(&self.inode).unwrap();
    }
}

/// A volume to put files on.
enum Volume {
    Library(Arc<Filesystem>),
    Mounted(PathBuf),
}

impl Volume {
    fn remove(&self, name: &str) {
        match self {
            Self::Library(fs) => fs.unlink(fs.root(), name.as_bytes()).unwrap(),
            Self::Mounted(root) => fs::remove_file(root.join(name)).unwrap(),
        }
    }

    fn create(&self, name: &str, preallocated: u64) -> Arc<dyn Handle> {
        match self {
            Self::Library(fs) => {
                let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
                if preallocated > 0 {
                    let mode = FallocateMode::Allocate;
                    fs.fallocate(&inode, mode, 0, preallocated).unwrap();
                }
                Arc::new(InLibrary {
                    fs: Arc::clone(fs),
                    inode,
                })
            }
            Self::Mounted(root) => {
                let path = root.join(name);
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&path)
                    .unwrap();
                if preallocated > 0 {
                    let size = preallocated.to_string();
                    run("fallocate", &["-l", &size, path.to_str().unwrap()]);
                }
                Arc::new(file)
            }
        }
    }
}

#[derive(Debug, Default)]
struct Figures {
    /// fsync/s with 1, 4 and 16 threads.
    appends: Vec<f64>,
    /// Operations per second of the database's shape.
    database: f64,
    /// Latency in milliseconds at 50, 95 and 99 of 100 operations.
    latency_ms: [f64; 3],
    /// Standard deviation of one second's operations by their mean.
    variation: f64,
}

fn appends(volume: &Volume, threads: usize, seconds: u64) -> f64 {
    let count = AtomicU64::new(0);
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let file = volume.create(&format!("append-{threads}-{thread}"), 0);
            let count = &count;
            scope.spawn(move || {
                let data = vec![thread as u8 + 1; BLOCK];
                let mut at = 0;
                while Instant::now() < end {
                    file.write(at, &data);
                    file.fsync();
                    at += BLOCK as u64;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = count.into_inner() as f64 / start.elapsed().as_secs_f64();
    for thread in 0..threads {
        volume.remove(&format!("append-{threads}-{thread}"));
    }
    rate
}

fn database(volume: &Volume, seconds: u64, figures: &mut Figures) {
    let file = volume.create("database", DATABASE);
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let mut all: Vec<(u64, f64)> = Vec::new();
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS)
            .map(|job| {
                let file = Arc::clone(&file);
                scope.spawn(move || {
                    let mut seed = job as u64 * 77 + 5;
                    let mut random = move || {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        seed >> 33
                    };
                    let mut data = vec![job as u8; BLOCK];
                    let mut done: Vec<(u64, f64)> = Vec::new();
                    let mut writes = 0;
                    while Instant::now() < end {
                        let at = random() % (DATABASE / BLOCK as u64) * BLOCK as u64;
                        let began = Instant::now();
                        if random() % 10 < 7 {
                            data[0] = data[0].wrapping_add(1);
                            file.write(at, &data);
                            writes += 1;
                            if writes % 10 == 0 {
                                file.fsync();
                            }
                        } else {
                            file.read(at, &mut data);
                        }
                        let second = start.elapsed().as_secs();
                        done.push((second, began.elapsed().as_secs_f64() * 1e3));
                    }
                    done
                })
            })
            .collect();
        for job in jobs {
            all.extend(job.join().unwrap());
        }
    });
    figures.database = all.len() as f64 / seconds as f64;
    let mut latencies: Vec<f64> = all.iter().map(|(_, ms)| *ms).collect();
    latencies.sort_by(f64::total_cmp);
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    figures.latency_ms = [at(0.5), at(0.95), at(0.99)];
    let mut per_second = vec![0.0; seconds as usize];
    for (second, _) in &all {
        if let Some(count) = per_second.get_mut(*second as usize) {
            *count += 1.0;
        }
    }
    let mean = per_second.iter().sum::<f64>() / seconds as f64;
    let squares: f64 = per_second.iter().map(|n| (n - mean) * (n - mean)).sum();
    figures.variation = (squares / seconds as f64).sqrt() / mean;
}

fn measure_one(volume: &Volume, seconds: u64) -> Figures {
    let mut figures = Figures {
        appends: [1, 4, 16]
            .map(|threads| appends(volume, threads, seconds))
            .to_vec(),
        ..Figures::default()
    };
    database(volume, seconds * 2, &mut figures);
    figures
}

/// Measures all targets and prints a table.
pub fn measure(base: &Path, seconds: u64) -> io::Result<()> {
    let work = base.join(format!("butterfs-fsync-{}", std::process::id()));
    fs::create_dir_all(work.join("mnt"))?;
    let image = work.join("volume.img");
    let point = work.join("mnt");
    let fresh = |filled: &dyn Fn(&FileDevice)| {
        let _ = fs::remove_file(&image);
        let device = FileDevice::create(&image, IMAGE).unwrap();
        filled(&device);
    };
    let btrfs = |device: &FileDevice| make(device, &MkfsOptions::default()).map_or((), |_| ());
    let mut rows: Vec<(&str, Figures)> = Vec::new();
    let names = (image.to_str().unwrap(), point.to_str().unwrap());
    let mounted = |what: Mount, kernel: bool| match (what, kernel) {
        (Mount::On, true) => run("mount", &["-o", "loop", names.0, names.1]),
        (Mount::Off, true) => run("umount", &[names.1]),
        (Mount::On, false) => run(&super::program(), &["mount", names.0, names.1]),
        (Mount::Off, false) => run(&super::program(), &["umount", names.1]),
    };
    for (name, kernel) in [("kernel Btrfs", true), ("ext4", true), ("FUSE", false)] {
        eprintln!("{name}");
        if name == "ext4" {
            fresh(&|_| ());
            run("mkfs.ext4", &["-q", "-F", names.0]);
        } else {
            fresh(&btrfs);
        }
        mounted(Mount::On, kernel);
        rows.push((name, measure_one(&Volume::Mounted(point.clone()), seconds)));
        mounted(Mount::Off, kernel);
    }
    eprintln!("library");
    fresh(&btrfs);
    let device = FileDevice::open(&image, Access::ReadWrite).map_err(io::Error::other)?;
    let store = Store::open(Arc::new(device), &OpenOptions::default());
    let store = Arc::new(store.map_err(io::Error::other)?);
    let files = Arc::new(Filesystem::new(store, TreeId::FS, Options::default()));
    rows.push(("library", measure_one(&Volume::Library(files), seconds)));
    fs::remove_dir_all(&work)?;
    println!(
        "| target | fsync/s, 1 thread | 4 threads | 16 threads | database op/s | p50 ms | p95 ms | p99 ms | variation |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let reference = &rows[0].1;
    for (name, row) in &rows {
        let ratio = |own: f64, other: f64| format!("{own:.0} ({:.2})", own / other);
        println!(
            "| {name} | {} | {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.2} |",
            ratio(row.appends[0], reference.appends[0]),
            ratio(row.appends[1], reference.appends[1]),
            ratio(row.appends[2], reference.appends[2]),
            ratio(row.database, reference.database),
            row.latency_ms[0],
            row.latency_ms[1],
            row.latency_ms[2],
            row.variation
        );
    }
    println!("\nIn brackets: by kernel Btrfs in the same run.");
    Ok(())
}
