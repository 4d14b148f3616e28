//! The rows of `make bench`: what people do to files, on every subject in turn,
//! each time on a new volume. A cold subject was unmounted before.

use super::fsync::{appends, database, quantile};
use super::subject::{Kind, Subject, ZSTD};
use super::volume::{Caching, Directory, Handle, Volume};
use super::{busy_seconds, noise, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Directories of several clients.
const DIRECTORIES: usize = 16;

/// Which rows a run measures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    All,
    /// Rows of metadata, which seldom wait for the device.
    Quick,
    /// Rows that wait for the device, and cold reads.
    Durable,
}

/// Sizes of the run.
#[derive(Clone)]
pub struct Scale {
    pub rows: Rows,
    pub files: usize,
    /// MiB of the large file.
    pub mib: usize,
    /// How long steps run that repeat one thing.
    pub time: Duration,
    /// A tree to copy, and the number of its files.
    pub tree: PathBuf,
    pub tree_files: usize,
}

/// What a row is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub name: &'static str,
    pub unit: &'static str,
    /// Less is better; else more.
    pub is_time: bool,
}

/// What one step of one repeat gave.
pub struct Sample {
    pub row: Row,
    pub value: f64,
    /// CPU microseconds of the whole machine for each operation, polling
    /// included; `None` if the step is not a number of operations.
    pub cpu: Option<f64>,
}

/// One subject on one volume.
struct Pass<'a> {
    subject: &'a Subject,
    scale: &'a Scale,
    volume: Option<Volume>,
    samples: Vec<Sample>,
}

/// Measures all rows that a subject can have. Returns the server's peak memory
/// too.
pub fn measure(subject: &Subject, scale: &Scale) -> (Vec<Sample>, Option<f64>) {
    subject.fresh();
    let volume = Some(subject.open(""));
    let mut pass = Pass {
        subject,
        scale,
        volume,
        samples: Vec::new(),
    };
    let works = !subject.is_null();
    if scale.rows != Rows::Durable {
        pass.one_client();
    }
    if works && scale.rows != Rows::Durable {
        pass.two_clients();
    }
    if works {
        pass.copy_tree();
    }
    if works && scale.rows != Rows::Quick {
        pass.durable();
        pass.large_files();
        pass.dbench();
    }
    let peak = subject.server_peak();
    if works && scale.rows == Rows::All {
        pass.compressed();
    }
    let volume = pass.volume.take().unwrap();
    subject.close(volume);
    (pass.samples, peak)
}

impl Pass<'_> {
    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    /// Afterwards nothing is in memory, and everything is durable.
    fn cold(&mut self, option: &str) {
        self.subject.close(self.volume.take().unwrap());
        self.volume = Some(self.subject.open(option));
    }

    fn note(&mut self, name: &'static str, unit: &'static str, value: f64, cpu: Option<f64>) {
        eprintln!("  {name}: {value:.1} {unit}");
        let is_time = unit == "ms";
        let row = Row {
            name,
            unit,
            is_time,
        };
        self.samples.push(Sample { row, value, cpu });
    }

    /// Runs a step, which gives how many operations it made.
    fn step(
        &mut self,
        name: &'static str,
        unit: &'static str,
        work: impl FnOnce(&Volume) -> usize,
    ) {
        let (cpu, start) = (busy_seconds(), Instant::now());
        let amount = work(self.volume()) as f64;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = (busy_seconds() - cpu) / amount * 1e6;
        self.note(name, unit, amount / seconds, Some(cpu));
    }

    fn one_client(&mut self) {
        let files = self.scale.files;
        let data = &noise()[..4096];
        // The null server has no directories.
        let (empty, full) = if self.subject.is_null() {
            ("", "")
        } else {
            ("empty", "full")
        };
        let names = |kind: &str| (0..files).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
        let (of_empty, of_full) = (names("e"), names("f"));
        self.step("create", "files/s", |volume| {
            let directory = volume.directory(empty);
            of_empty.iter().for_each(|name| directory.create(name, &[]));
            files
        });
        self.volume().sync();
        self.step("create + 4 KiB", "files/s", |volume| {
            let directory = volume.directory(full);
            of_full.iter().for_each(|name| directory.create(name, data));
            files
        });
        self.cold("");
        self.step("stat, cold", "files/s", |volume| {
            let directory = volume.directory(empty);
            of_empty.iter().for_each(|name| directory.stat(name));
            files
        });
        self.cold("");
        self.step("list with attributes, cold", "files/s", |volume| {
            volume.directory(full).list()
        });
        self.step("unlink", "files/s", |volume| {
            let directory = volume.directory(empty);
            of_empty.iter().for_each(|name| directory.unlink(name));
            files
        });
        self.volume().sync();
    }

    fn two_clients(&mut self) {
        let data = &noise()[..4096];
        let of = |client: usize, kind: &str, volume: &Volume| -> Vec<Arc<dyn Directory>> {
            let names = (0..DIRECTORIES / 2).map(|n| format!("{kind}{client}-{n}"));
            names.map(|name| volume.directory(&name)).collect()
        };
        let each = self.scale.files / 2;
        let both = |work: &(dyn Fn(usize) + Sync)| {
            std::thread::scope(|scope| {
                scope.spawn(|| work(0));
                work(1);
            });
            each * 2
        };
        let create = |own: &[Arc<dyn Directory>], data: &[u8]| {
            for n in 0..each {
                own[n % own.len()].create(&format!("f{n}"), data);
            }
        };
        let empty = [0, 1].map(|client| of(client, "empty", self.volume()));
        self.step("create, 2 clients", "files/s", |_| {
            both(&|client| create(&empty[client], &[]))
        });
        self.volume().sync();
        let full = [0, 1].map(|client| of(client, "full", self.volume()));
        self.step("create + 4 KiB, 2 clients", "files/s", |_| {
            both(&|client| create(&full[client], data))
        });
        self.volume().sync();
        self.step("unlink, 2 clients", "files/s", |_| {
            both(&|client| {
                let own = &empty[client];
                for n in 0..each {
                    own[n % own.len()].unlink(&format!("f{n}"));
                }
            })
        });
        self.volume().sync();
    }

    /// For the library, this is `butterfs copy`.
    fn copy_tree(&mut self) {
        let (tree, files) = (self.scale.tree.clone(), self.scale.tree_files);
        let subject = self.subject;
        if subject.is_mounted() {
            return self.step("cp -a of a tree, durable", "files/s", |volume| {
                let [from, to] = [&tree, &subject.point].map(|path| path.to_str().unwrap());
                run("cp", &["-a", from, to]);
                volume.sync();
                files
            });
        }
        subject.close(self.volume.take().unwrap());
        let (cpu, start) = (busy_seconds(), Instant::now());
        let target = format!("{}:/", subject.device.display());
        let source = tree.to_str().unwrap();
        run(&subject.program, &["copy", "-q", source, &target]);
        let seconds = start.elapsed().as_secs_f64();
        let cpu = (busy_seconds() - cpu) / files as f64 * 1e6;
        self.volume = Some(subject.open(""));
        let rate = files as f64 / seconds;
        self.note("cp -a of a tree, durable", "files/s", rate, Some(cpu));
    }

    /// Workloads that wait for the device.
    fn durable(&mut self) {
        let time = self.scale.time;
        for (threads, name, p99) in [
            (
                1,
                "append 16 KiB + fsync",
                "append 16 KiB + fsync, 99 of 100 in",
            ),
            (
                4,
                "append 16 KiB + fsync, 4 threads",
                "append 16 KiB + fsync, 4 threads, 99 of 100 in",
            ),
            (
                16,
                "append 16 KiB + fsync, 16 threads",
                "append 16 KiB + fsync, 16 threads, 99 of 100 in",
            ),
        ] {
            let mut took = Vec::new();
            self.step(name, "operations/s", |volume| {
                took = appends(volume, threads, time);
                took.len()
            });
            self.note(p99, "ms", quantile(&took, 0.99), None);
            self.volume().sync();
        }
        let data = &noise()[..4096];
        let directory = self.volume().directory("mails");
        let mut took = Vec::new();
        self.step("create + 4 KiB + fsync", "files/s", |_| {
            let start = Instant::now();
            while start.elapsed() < time {
                let began = Instant::now();
                let file = directory.open_new(&format!("m{}", took.len()));
                file.write(0, data);
                file.fsync();
                took.push(began.elapsed().as_secs_f64() * 1e3);
            }
            took.len()
        });
        took.sort_by(f64::total_cmp);
        let p99 = quantile(&took, 0.99);
        self.note("create + 4 KiB + fsync, 99 of 100 in", "ms", p99, None);
        drop(directory);
        self.volume().sync();
        let mut all = Vec::new();
        self.step("database, 4 jobs", "operations/s", |volume| {
            all = database(volume, time);
            all.len()
        });
        let mut took: Vec<f64> = all.into_iter().map(|(_, ms)| ms).collect();
        took.sort_by(f64::total_cmp);
        let p99 = quantile(&took, 0.99);
        self.note("database, 99 of 100 in", "ms", p99, None);
        self.volume().sync();
    }

    fn large_files(&mut self) {
        let (mib, time) = (self.scale.mib, self.scale.time);
        let noise = noise();
        let records = noise.repeat(16);
        self.step("write 16 MiB, durable", "MiB/s", |volume| {
            write_all(&*volume.create("records", 0), &records, 16 * MIB, mib)
        });
        drop(records);
        self.volume().remove("records");
        self.volume().sync();
        self.step("write 1 MiB, durable", "MiB/s", |volume| {
            write_all(&*volume.create("large", 0), &noise, MIB, mib)
        });
        let small = mib / 4;
        self.step("write 8 KiB, durable", "MiB/s", |volume| {
            write_all(&*volume.create("small", 0), &noise, 8 << 10, small)
        });
        self.step(
            "write 1 byte, durable at the end",
            "operations/s",
            |volume| {
                let (file, start, mut count) = (volume.create("bytes", 0), Instant::now(), 0);
                while start.elapsed() < time {
                    file.write(count, &noise[..1]);
                    count += 1;
                }
                file.fsync();
                count as usize
            },
        );
        let mut buffer = vec![0; MIB];
        let mut read = |volume: &Volume| {
            let file = volume.file("large", Caching::Cached);
            for at in 0..mib {
                file.read((at * MIB) as u64, &mut buffer);
                assert!(buffer[..64] == noise[..64]);
            }
            mib
        };
        self.cold("");
        self.step("read 1 MiB, cold", "MiB/s", &mut read);
        self.step("read 1 MiB, hot", "MiB/s", &mut read);
        self.cold("");
        let file = self.volume().file("large", Caching::Direct);
        let mut memory = vec![0; 4096 * 2];
        let aligned = memory.as_ptr().align_offset(4096);
        let page = &mut memory[aligned..aligned + 4096];
        let places = mib * 256;
        self.step("read 4 KiB at random, O_DIRECT", "operations/s", |_| {
            at_random(places, time, |at| file.read(at, page))
        });
        // The library cannot bypass its buffer.
        if self.subject.is_mounted() {
            page.copy_from_slice(&noise[..4096]);
            self.step("write 4 KiB at random, O_DIRECT", "operations/s", |_| {
                at_random(places, time, |at| file.write(at, page))
            });
        }
        drop(file);
        self.volume().remove("large");
        self.volume().remove("small");
        self.volume().remove("bytes");
        self.volume().sync();
    }

    fn dbench(&mut self) {
        if !self.subject.is_mounted() {
            return;
        }
        let names = [
            (1, "dbench, 1 client"),
            (5, "dbench, 5 clients"),
            (20, "dbench, 20 clients"),
            (50, "dbench, 50 clients"),
        ];
        for (clients, name) in names {
            // dbench reports nothing about its first second.
            let seconds = self.scale.time.as_secs().max(2);
            let output = Command::new("dbench")
                .args(["-t", &seconds.to_string(), "-D"])
                .arg(&self.subject.point)
                .arg(clients.to_string())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let rate = said.lines().find_map(|line| {
                let rest = line.strip_prefix("Throughput ")?;
                rest.split_whitespace().next()?.parse().ok()
            });
            let Some(rate) = rate.filter(|_| output.status.success()) else {
                panic!("dbench: {}\n{said}", output.status);
            };
            self.note(name, "MB/s", rate, None);
            self.volume().sync();
        }
    }

    /// Half of the data compresses away.
    fn compressed(&mut self) {
        self.cold(ZSTD);
        let mib = self.scale.mib / 2;
        let data: Vec<u8> = noise().iter().map(|byte| byte & 15).collect();
        self.step("write 1 MiB, zstd:3, durable", "MiB/s", |volume| {
            write_all(&*volume.create("compressed", 0), &data, MIB, mib)
        });
        self.volume().remove("compressed");
    }
}

/// Writes this many MiB in blocks, and waits for the device.
fn write_all(file: &dyn Handle, data: &[u8], block: usize, mib: usize) -> usize {
    for at in (0..mib * MIB).step_by(block) {
        file.write(at as u64, &data[at % data.len()..][..block]);
    }
    file.fsync();
    mib
}

/// Does something at random 4 KiB until the time is over. Returns how often.
fn at_random(places: usize, time: Duration, mut work: impl FnMut(u64)) -> usize {
    let (start, mut seed, mut count) = (Instant::now(), 1_u64, 0);
    while start.elapsed() < time {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        work(((seed >> 33) as usize % places * 4096) as u64);
        count += 1;
    }
    count
}

/// A tree of small files like that of a project: 40 in a directory, 0 to 24
/// KiB, the same ones every time.
pub fn grow_tree(root: &Path, files: usize) {
    let noise = noise();
    let mut seed = 3_u64;
    for number in 0..files {
        let directory = root.join(format!("d{}", number / 40));
        if number % 40 == 0 {
            std::fs::create_dir_all(&directory).unwrap();
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(7);
        // Small ones are more frequent.
        let size = 24 << 10 >> (seed >> 60);
        let from = (seed >> 40) as usize % (MIB - (24 << 10));
        std::fs::write(
            directory.join(format!("f{number}")),
            &noise[from..from + size],
        )
        .unwrap();
    }
}

impl Subject {
    /// Its figures change with what waking a processor costs.
    pub fn wakes(&self) -> bool {
        matches!(self.kind, Kind::Fuse(_) | Kind::Null(_))
    }
}
