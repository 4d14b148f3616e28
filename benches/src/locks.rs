//! What threads cost each other in the library: operations by 1 to 16 threads
//! in directories of their own, creates beside a large commit, and operations
//! beside a thread that reads from a slow device.

use super::volume::Volume;
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{Access, BlockDevice, DeviceError, FileDevice};
use butterfs_format::{DeviceOffset, InodeId, TreeId};
use butterfs_fs::attr::SetAttributes;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{LockWaits, OpenOptions, Store};
use std::fs;
use std::hint::black_box;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const IMAGE: u64 = 8 << 30;
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Runs of each number of threads; the best counts.
const RUNS: usize = 3;
/// Files of each directory that are looked up and read.
const FILES: usize = 500;
/// Threads that create beside lookups.
const CREATORS: usize = 7;
/// Items that the large commit has to write.
const CHANGED: usize = 100_000;
/// How long a read of the slow device takes.
const READ_TAKES: Duration = Duration::from_millis(2);

/// Operations per second of all threads, and how long they waited.
struct Rate {
    per_second: f64,
    /// Microseconds that an operation waited for the engine's lock.
    wait: f64,
}

/// A device whose reads take long.
#[derive(Debug)]
struct Slow(FileDevice);

impl BlockDevice for Slow {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        std::thread::sleep(READ_TAKES);
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, data)
    }
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        self.0.write_vectored_at(offset, parts)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
    fn identity(&self) -> String {
        self.0.identity()
    }
    fn access(&self) -> Access {
        self.0.access()
    }
}

fn fresh(image: &Path) {
    let _ = fs::remove_file(image);
    let device = FileDevice::create(image, IMAGE).unwrap();
    make(&device, &MkfsOptions::default()).unwrap();
}

fn library(image: &Path) -> Arc<Filesystem> {
    match Volume::open(image, Options::default()) {
        Volume::Library(fs) => fs,
        Volume::Mounted(_) => unreachable!("it was opened by the library"),
    }
}

fn new_file(fs: &Filesystem, dir: InodeId, name: &str, data: &[u8]) -> InodeId {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(dir, name.as_bytes(), &new).unwrap();
    if !data.is_empty() {
        assert_eq!(fs.write(&inode, 0, data).unwrap(), data.len());
    }
    inode.id
}

fn new_directory(fs: &Filesystem, name: &str) -> InodeId {
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    fs.create(fs.root(), name.as_bytes(), &new).unwrap().id
}

/// Lets `threads` threads call `operation` with their number and a count until
/// the time is over.
fn rate(
    threads: usize,
    time: Duration,
    waits: impl Fn() -> LockWaits,
    operation: impl Fn(usize, usize) + Sync,
) -> Rate {
    let before = waits();
    let start = Instant::now();
    let operation = &operation;
    let done: usize = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut count = 0;
                    while count % 16 != 0 || start.elapsed() < time {
                        operation(thread, count);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        jobs.into_iter().map(|job| job.join().unwrap()).sum()
    });
    let elapsed = start.elapsed().as_secs_f64();
    let waited = waits().since(&before).total.as_secs_f64();
    Rate {
        per_second: done as f64 / elapsed,
        wait: waited * 1e6 / done as f64,
    }
}

/// What the machine gives to threads that share nothing.
fn machine(threads: usize, time: Duration) -> Rate {
    rate(threads, time, LockWaits::default, |thread, count| {
        let mut value = (thread + count) as u64;
        for _ in 0..5000 {
            value = black_box(
                value
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1),
            );
        }
    })
}

/// All rows of one number of threads, on a new volume.
fn rows(image: &Path, threads: usize, time: Duration) -> Vec<(&'static str, Rate)> {
    fresh(image);
    let fs = library(image);
    let dirs: Vec<InodeId> = (0..threads)
        .map(|n| new_directory(&fs, &format!("d{n}")))
        .collect();
    let data = vec![7; 4096];
    let waits = || fs.store().lock_waits();
    let files: Vec<Vec<InodeId>> = dirs
        .iter()
        .map(|dir| {
            let new = |n| new_file(&fs, *dir, &format!("f{n}"), &data);
            (0..FILES).map(new).collect()
        })
        .collect();
    fs.sync_all().unwrap();
    let mut rows = vec![("(machine)", machine(threads, time))];
    let lookup = rate(threads, time, waits, |thread, count| {
        let name = format!("f{}", count * 7 % FILES);
        let found = fs.lookup(dirs[thread], name.as_bytes()).unwrap();
        fs.attributes(found.inode).unwrap();
    });
    rows.push(("lookup, getattr", lookup));
    let read = rate(threads, time, waits, |thread, count| {
        let inode = fs.inode(files[thread][count * 7 % FILES]).unwrap();
        let mut buffer = [0; 4096];
        assert_eq!(fs.read(&inode, 0, &mut buffer).unwrap(), 4096);
    });
    rows.push(("read 4 KiB", read));
    let list = rate(threads, time, waits, |thread, _| {
        let mut names = 0;
        let visit = &mut |_| {
            names += 1;
            true
        };
        fs.read_dir(dirs[thread], 0, visit).unwrap();
        assert!(names >= FILES);
    });
    rows.push(("readdir of 500", list));
    let create = rate(threads, time, waits, |thread, count| {
        new_file(&fs, dirs[thread], &format!("c{count}"), &[]);
    });
    rows.push(("create", create));
    fs.sync_all().unwrap();
    let create = rate(threads, time, waits, |thread, count| {
        new_file(&fs, dirs[thread], &format!("w{count}"), &data);
    });
    rows.push(("create, 4 KiB", create));
    fs.sync_all().unwrap();
    rows
}

/// Median, 99.9th percentile and maximum of milliseconds.
fn tail(mut took: Vec<f64>) -> String {
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    format!(
        "{} | {:.3} | {:.2} | {:.2} |",
        took.len(),
        at(0.5),
        at(0.999),
        at(1.0)
    )
}

/// Repeats `operation` until `end` is set. Returns the milliseconds of each.
fn times(end: &AtomicBool, mut operation: impl FnMut(usize)) -> Vec<f64> {
    let mut took = Vec::new();
    while !end.load(Ordering::Relaxed) {
        let start = Instant::now();
        operation(took.len());
        took.push(start.elapsed().as_secs_f64() * 1e3);
    }
    took
}

/// Creates and fsyncs while a commit of [`CHANGED`] items runs.
fn beside_commit(image: &Path) {
    println!(
        "\n| beside a commit of {CHANGED} changed items | number | median ms | p99.9 ms | longest ms |"
    );
    println!("|---|---|---|---|---|");
    fresh(image);
    let fs = library(image);
    let mut files = Vec::with_capacity(CHANGED);
    for d in 0..CHANGED / 2000 {
        let dir = new_directory(&fs, &format!("d{d}"));
        files.extend((0..2000).map(|n| new_file(&fs, dir, &format!("f{n}"), &[])));
    }
    let (creates, appends) = (new_directory(&fs, "creates"), new_directory(&fs, "appends"));
    let appended = new_file(&fs, appends, "file", &[1; 4096]);
    let appended = fs.inode(appended).unwrap();
    for (what, round) in [("create", 0), ("append and fsync", 1)] {
        fs.sync_all().unwrap();
        let set = SetAttributes {
            mode: Some(0o600 + round),
            ..SetAttributes::default()
        };
        for id in &files {
            let inode = fs.inode(*id).unwrap();
            fs.set_attributes(&inode, &set).unwrap();
        }
        let end = AtomicBool::new(false);
        let (took, commit) = std::thread::scope(|scope| {
            let job = scope.spawn(|| {
                times(&end, |count| {
                    if round == 0 {
                        new_file(&fs, creates, &format!("c{count}"), &[]);
                    } else {
                        fs.write(&appended, 4096 * (count as u64 + 1), &[2; 4096])
                            .unwrap();
                        fs.fsync(&appended).unwrap();
                    }
                })
            });
            std::thread::sleep(Duration::from_millis(50));
            let start = Instant::now();
            fs.store().commit().unwrap();
            let commit = start.elapsed();
            end.store(true, Ordering::Relaxed);
            (job.join().unwrap(), commit)
        });
        println!("| {what} (the commit took {commit:.0?}) | {}", tail(took));
    }
}

/// Lookups while many threads create: no lookup starves.
fn beside_creates(image: &Path) {
    println!(
        "\n| beside creates by {CREATORS} threads | number | median ms | p99.9 ms | longest ms |"
    );
    println!("|---|---|---|---|---|");
    fresh(image);
    let fs = library(image);
    let dirs: Vec<InodeId> = (0..CREATORS)
        .map(|n| new_directory(&fs, &format!("d{n}")))
        .collect();
    let looked = new_directory(&fs, "looked");
    new_file(&fs, looked, "file", &[]);
    let end = AtomicBool::new(false);
    let (fs, end) = (&fs, &end);
    let (looks, creates) = std::thread::scope(|scope| {
        let creators: Vec<_> = dirs
            .iter()
            .map(|dir| {
                scope.spawn(move || {
                    times(end, |count| {
                        new_file(fs, *dir, &format!("c{count}"), &[]);
                    })
                })
            })
            .collect();
        let looks = scope.spawn(move || {
            times(end, |_| {
                fs.lookup(looked, b"file").unwrap();
            })
        });
        std::thread::sleep(Duration::from_secs(1));
        end.store(true, Ordering::Relaxed);
        let creates: Vec<f64> = creators
            .into_iter()
            .flat_map(|job| job.join().unwrap())
            .collect();
        (looks.join().unwrap(), creates)
    });
    println!("| lookup | {}", tail(looks));
    println!("| create | {}", tail(creates));
}

/// Lookups and creates of what is in memory, while another thread looks up what
/// is not, on a device whose reads take long.
fn beside_cold_reads(image: &Path) {
    println!(
        "\n| beside cold lookups on a device whose reads take {READ_TAKES:?} | number | median ms | p99.9 ms | longest ms |"
    );
    println!("|---|---|---|---|---|");
    fresh(image);
    let fs = library(image);
    let cold: Vec<InodeId> = (0..40)
        .map(|n| new_directory(&fs, &format!("cold{n}")))
        .collect();
    for dir in &cold {
        for n in 0..500 {
            new_file(&fs, *dir, &format!("f{n}"), &[]);
        }
    }
    let warm = new_directory(&fs, "warm");
    new_file(&fs, warm, "file", &[]);
    fs.sync_all().unwrap();
    drop(fs);
    for what in ["lookup", "create"] {
        let device = Slow(FileDevice::open(image, Access::ReadWrite).unwrap());
        let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
        let fs = Filesystem::new(Arc::new(store), TreeId::FS, Options::default());
        let warm = fs.lookup(fs.root(), b"warm").unwrap().inode;
        fs.lookup(warm, b"file").unwrap();
        new_file(&fs, warm, &format!("first {what}"), &[]);
        let before = fs.store().lock_waits();
        let end = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            let job = scope.spawn(|| {
                times(&end, |count| {
                    if what == "lookup" {
                        fs.lookup(warm, b"file").unwrap();
                    } else {
                        new_file(&fs, warm, &format!("{what}{count}"), &[]);
                    }
                })
            });
            for (n, dir) in cold.iter().enumerate() {
                fs.lookup(*dir, format!("f{}", n * 7).as_bytes()).unwrap();
                let mut names = 0;
                let visit = &mut |_| {
                    names += 1;
                    true
                };
                fs.read_dir(*dir, 0, visit).unwrap();
            }
            end.store(true, Ordering::Relaxed);
            job.join().unwrap()
        });
        let waits = fs.store().lock_waits().since(&before);
        println!(
            "| {what} (nodes read: {} under the lock, {} outside) | {}",
            waits.reads_under_lock,
            waits.reads_outside,
            tail(took)
        );
        fs.store().abandon();
    }
}

/// Measures everything and prints it.
pub fn measure(base: &Path, milliseconds: usize) -> io::Result<()> {
    let time = Duration::from_millis(milliseconds as u64);
    let image = base.join(format!("butterfs-locks-{}.img", std::process::id()));
    let mut best: Vec<Vec<(&str, Rate)>> = Vec::new();
    for threads in THREADS {
        let mut all: Vec<(&str, Rate)> = rows(&image, threads, time);
        for _ in 1..RUNS {
            for (old, new) in all.iter_mut().zip(rows(&image, threads, time)) {
                if new.1.per_second > old.1.per_second {
                    *old = new;
                }
            }
        }
        best.push(all);
    }
    let head = THREADS.map(|threads| format!(" {threads} |")).concat();
    println!("| operations/s by threads (ratio to one; µs of waiting each) |{head}");
    println!("|---|{}", "---|".repeat(THREADS.len()));
    for (row, (name, one)) in best[0].iter().enumerate() {
        let cell = |all: &Vec<(&str, Rate)>| {
            let rate = &all[row].1;
            let ratio = rate.per_second / one.per_second;
            format!(" {:.0} ({ratio:.2}; {:.1}) |", rate.per_second, rate.wait)
        };
        println!("| {name} |{}", best.iter().map(cell).collect::<String>());
    }
    beside_commit(&image);
    beside_creates(&image);
    beside_cold_reads(&image);
    fs::remove_file(&image)
}
