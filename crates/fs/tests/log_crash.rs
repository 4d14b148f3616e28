//! Crashes under several threads that fsync at the same time. Everything that
//! was acknowledged is there, and nothing is there that never was.
//!
//! Each inode has a history of versions. A version counts as started at the
//! position of the device's recording at which its change began. It counts as
//! acknowledged at the position at which an fsync after it returned. After a
//! crash each inode must be one of the versions from the last acknowledged to
//! the last started.

mod common;

use butterfs_device::record::{Action, Crash, Event, Fate, Position, RecordDevice, SECTOR};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::compression::Algorithm;
use butterfs_format::superblock::COPIES;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::options::Compress;
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use common::{KernelMount, Random, check, is_root, mkfs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

const DIRS: [&str; 2] = ["da", "db"];
const THREADS: u64 = 3;

/// Names (`dir/name`) and content.
#[derive(Clone, Debug, Default)]
struct State {
    names: BTreeSet<String>,
    data: Vec<u8>,
}

struct Version {
    started: usize,
    acknowledged: Option<usize>,
    /// It was made in more than one transaction.
    steps: bool,
    state: State,
}

struct File {
    inode: Arc<Inode>,
    versions: Vec<Version>,
}

impl File {
    fn now(&self) -> &State {
        &self.versions.last().unwrap().state
    }
}

type Histories = BTreeMap<u64, Vec<Version>>;
type View = BTreeMap<u64, State>;

fn open(device: Arc<dyn BlockDevice>, options: &Options) -> Filesystem {
    let store = Store::open(device, &OpenOptions::default()).unwrap();
    butterfs_fs::log::replay(&store).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, options.clone())
}

/// One thread with files of its own in directories that all share.
struct Worker<'a> {
    fs: &'a Filesystem,
    device: &'a RecordDevice,
    random: Random,
    thread: u64,
    dirs: [InodeId; 2],
    files: Vec<File>,
    gone: Vec<File>,
}

impl Worker<'_> {
    fn position(&self) -> usize {
        self.device.recording().position().0
    }

    fn place(&self, path: &str) -> (InodeId, Vec<u8>) {
        let (dir, name) = path.split_once('/').unwrap();
        let at = DIRS.iter().position(|other| *other == dir).unwrap();
        (self.dirs[at], name.as_bytes().to_vec())
    }

    fn any_name(&mut self) -> String {
        let dir = DIRS[self.random.below(2) as usize];
        format!("{dir}/t{}n{}", self.thread, self.random.below(4))
    }

    fn owner_of(&self, path: &str) -> Option<usize> {
        let has = |file: &File| file.now().names.contains(path);
        self.files.iter().position(has)
    }

    fn free_name(&mut self) -> Option<String> {
        let path = self.any_name();
        self.owner_of(&path).is_none().then_some(path)
    }

    fn begin(&mut self, at: usize, started: usize, steps: bool, change: impl FnOnce(&mut State)) {
        let versions = &mut self.files[at].versions;
        let mut state = versions.last().unwrap().state.clone();
        change(&mut state);
        versions.push(Version {
            started,
            acknowledged: None,
            steps,
            state,
        });
    }

    fn bury(&mut self) {
        let mut at = 0;
        while at < self.files.len() {
            if self.files[at].now().names.is_empty() {
                let file = self.files.remove(at);
                self.gone.push(file);
            } else {
                at += 1;
            }
        }
    }

    fn acknowledge(file: &mut File, position: usize) {
        let last = file.versions.last_mut().unwrap();
        last.acknowledged.get_or_insert(position);
    }

    fn create(&mut self) {
        let Some(path) = self.free_name() else {
            return;
        };
        let started = self.position();
        let (dir, name) = self.place(&path);
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = if self.random.below(4) == 0 {
            // As O_TMPFILE and a link.
            let inode = self.fs.create_unnamed(dir, &new).unwrap();
            self.fs.pin(&inode);
            if self.random.below(2) == 0 {
                self.fs.sync_all().unwrap();
            }
            self.fs.link(inode.id, dir, &name).unwrap();
            self.fs.unpin(&inode, 1).unwrap();
            inode
        } else {
            self.fs.create(dir, &name, &new).unwrap()
        };
        self.files.push(File {
            inode,
            versions: vec![Version {
                started,
                acknowledged: None,
                steps: false,
                state: State {
                    names: [path].into(),
                    data: Vec::new(),
                },
            }],
        });
    }

    fn change_data(&mut self, at: usize) {
        let inode = self.files[at].inode.clone();
        let started = self.position();
        match self.random.below(10) {
            0..=3 => {
                let offset = self.random.below(150_000) as usize;
                let length = 1 + self.random.below(40_000) as usize;
                let new = self.random.data(length);
                self.begin(at, started, false, |state| {
                    let data = &mut state.data;
                    data.resize(data.len().max(offset + new.len()), 0);
                    data[offset..offset + new.len()].copy_from_slice(&new);
                });
                self.fs.write(&inode, offset as u64, &new).unwrap();
            }
            4 | 5 => {
                let size = self.random.below(200_000) as usize;
                self.begin(at, started, true, |state| state.data.resize(size, 0));
                self.fs.truncate(&inode, size as u64).unwrap();
            }
            6 | 7 => {
                let start = self.random.below(40) * 4096;
                let length = 4096 * (1 + self.random.below(10));
                let mode = match self.random.below(3) {
                    0 => FallocateMode::PunchHole,
                    1 => FallocateMode::ZeroRangeKeepSize,
                    _ => FallocateMode::AllocateKeepSize,
                };
                self.begin(at, started, true, |state| {
                    if mode != FallocateMode::AllocateKeepSize {
                        let size = state.data.len();
                        let end = (start + length) as usize;
                        state.data[(start as usize).min(size)..end.min(size)].fill(0);
                    }
                });
                self.fs.fallocate(&inode, mode, start, length).unwrap();
            }
            8 => {
                let length = 1 + self.random.below(1500) as usize;
                let new = self.random.data(length);
                self.begin(at, started, true, |state| state.data = new.clone());
                self.fs.truncate(&inode, 0).unwrap();
                self.fs.write(&inode, 0, &new).unwrap();
            }
            _ => {
                let source = self.random.below(self.files.len() as u64) as usize;
                let from = 4096 * self.random.below(10) as usize;
                let to = 4096 * self.random.below(30) as usize;
                let have = self.files[source].now().data.clone();
                let length = (4096 * (1 + self.random.below(8)) as usize)
                    .min(have.len().saturating_sub(from));
                if source == at || length == 0 {
                    return;
                }
                self.begin(at, started, true, |state| {
                    let data = &mut state.data;
                    data.resize(data.len().max(to + length), 0);
                    data[to..to + length].copy_from_slice(&have[from..from + length]);
                });
                let source = self.files[source].inode.clone();
                let (from, to) = ((&source, from as u64), (&inode, to as u64));
                let copied = self.fs.copy_range(from, to, length as u64).unwrap();
                assert_eq!(copied, length as u64);
            }
        }
    }

    fn change_names(&mut self, at: usize) {
        let started = self.position();
        let names = self.files[at].now().names.clone();
        let old = names.iter().next().unwrap().clone();
        let new = self.any_name();
        let other = self.owner_of(&new);
        match self.random.below(4) {
            0 if other.is_none() => {
                let (dir, name) = self.place(&new);
                self.begin(at, started, false, |s| {
                    s.names.insert(new);
                });
                self.fs.link(self.files[at].inode.id, dir, &name).unwrap();
            }
            1 => {
                let (dir, name) = self.place(&old);
                self.begin(at, started, false, |s| {
                    s.names.remove(&old);
                });
                self.fs.unlink(dir, &name).unwrap();
            }
            kind if other != Some(at) => {
                let exchange = kind == 3 && other.is_some();
                let (from, to) = (self.place(&old), self.place(&new));
                self.begin(at, started, false, |s| {
                    s.names.remove(&old);
                    s.names.insert(new.clone());
                });
                if let Some(other) = other {
                    self.begin(other, started, false, |s| {
                        s.names.remove(&new);
                        if exchange {
                            s.names.insert(old.clone());
                        }
                    });
                }
                let mode = if exchange {
                    RenameMode::Exchange
                } else {
                    RenameMode::Replace
                };
                let from = Place {
                    dir: from.0,
                    name: &from.1,
                };
                let to = Place {
                    dir: to.0,
                    name: &to.1,
                };
                self.fs.rename(from, to, mode, OldName::Free).unwrap();
            }
            _ => {}
        }
        self.bury();
    }

    fn run(mut self, steps: usize) -> Histories {
        for _ in 0..steps {
            let kind = self.random.below(20);
            if self.files.is_empty() || kind < 2 {
                self.create();
                continue;
            }
            let at = self.random.below(self.files.len() as u64) as usize;
            match kind {
                2..=8 => self.change_data(at),
                9..=11 => self.change_names(at),
                12 if self.random.below(6) == 0 => {
                    self.fs.sync_all().unwrap();
                    let position = self.position();
                    for file in self.files.iter_mut().chain(&mut self.gone) {
                        Self::acknowledge(file, position);
                    }
                }
                13 => self.fs.flush_inode(&self.files[at].inode).unwrap(),
                _ => {
                    self.fs.fsync(&self.files[at].inode).unwrap();
                    let position = self.position();
                    Self::acknowledge(&mut self.files[at], position);
                }
            }
        }
        let all = self.files.into_iter().chain(self.gone);
        all.map(|file| (file.inode.id.number.get(), file.versions))
            .collect()
    }
}

/// Whether `found` is what a crash at `at` may leave of an inode.
fn judge_one(versions: &[Version], at: usize, found: Option<&State>) -> Result<(), String> {
    let last = versions.iter().rposition(|version| version.started <= at);
    let first = versions
        .iter()
        .rposition(|version| version.acknowledged.is_some_and(|position| position <= at));
    let Some(last) = last else {
        return match found {
            Some(_) => Err("it was not made yet".into()),
            None => Ok(()),
        };
    };
    let allowed = &versions[first.unwrap_or(0)..=last];
    let Some(found) = found else {
        let gone = first.is_none() || allowed.iter().any(|v| v.state.names.is_empty());
        return gone
            .then_some(())
            .ok_or_else(|| format!("it is gone; last acknowledged {first:?} of {last}"));
    };
    if !allowed.iter().any(|v| v.state.names == found.names) {
        let names: Vec<_> = allowed.iter().map(|v| &v.state.names).collect();
        return Err(format!(
            "names {:?}, expected one of {names:?}",
            found.names
        ));
    }
    if allowed.iter().any(|v| v.state.data == found.data) {
        return Ok(());
    }
    let mixed = allowed.iter().skip(1).any(|v| v.steps)
        && found.data.iter().enumerate().all(|(at, byte)| {
            let of = |v: &Version| v.state.data.get(at).copied().unwrap_or(0);
            *byte == 0 || allowed.iter().any(|v| of(v) == *byte)
        });
    if mixed {
        return Ok(());
    }
    let differences: Vec<_> = allowed
        .iter()
        .map(|v| {
            let at = found
                .data
                .iter()
                .zip(&v.state.data)
                .position(|(a, b)| a != b);
            (v.state.data.len(), at)
        })
        .collect();
    Err(format!(
        "content of {} bytes; sizes and first differences of {first:?}..={last}: {differences:?}",
        found.data.len()
    ))
}

fn judge(histories: &Histories, at: usize, view: &View, who: &str) {
    for (number, versions) in histories {
        if let Err(reason) = judge_one(versions, at, view.get(number)) {
            panic!("{who}: inode {number} after a crash at {at}: {reason}");
        }
    }
    for number in view.keys() {
        assert!(
            histories.contains_key(number),
            "{who}: inode {number} is unknown"
        );
    }
}

fn view_of(fs: &Filesystem) -> View {
    let mut view = View::new();
    for dir in DIRS {
        let id = fs.lookup(fs.root(), dir.as_bytes()).unwrap().inode;
        let mut entries = Vec::new();
        fs.read_dir(id, 2, &mut |entry| {
            entries.push((entry.name, entry.target.inode));
            true
        })
        .unwrap();
        for (name, inode) in entries {
            let state = view.entry(inode.number.get()).or_default();
            state
                .names
                .insert(format!("{dir}/{}", String::from_utf8(name).unwrap()));
            let inode = fs.inode(inode).unwrap();
            let size = fs.attributes_of(&inode).unwrap().size;
            state.data = vec![0; size as usize];
            fs.read(&inode, 0, &mut state.data).unwrap();
        }
    }
    view
}

fn view_mounted(root: &Path) -> View {
    let mut view = View::new();
    for dir in DIRS {
        for entry in fs::read_dir(root.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::metadata(&path).unwrap();
            let state = view.entry(meta.ino()).or_default();
            let name = path.file_name().unwrap().to_str().unwrap();
            state.names.insert(format!("{dir}/{name}"));
            state.data = fs::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        }
    }
    view
}

fn fate(random: &mut Random, kind: u64, event: &Event) -> Fate {
    let Action::Write { offset, data } = &event.action else {
        return Fate::Kept;
    };
    match kind {
        // The kernel reads only the first copy of the superblock, and writes it
        // as one block, as if it could not tear.
        2 if *offset == COPIES[0] => match random.below(2) {
            0 => Fate::Kept,
            _ => Fate::Lost,
        },
        0 => Fate::Kept,
        1 => Fate::Lost,
        _ => match random.below(3) {
            0 => Fate::Kept,
            1 => Fate::Lost,
            _ => Fate::Torn(
                (0..data.len().div_ceil(SECTOR))
                    .map(|_| random.below(2) == 0)
                    .collect(),
            ),
        },
    }
}

fn crash_round(seed: u64, mkfs_options: &[&str], options: &Options) {
    println!("seed {seed} {mkfs_options:?} {:?}", options.compress);
    let mut random = Random(seed);
    let (dir, image) = mkfs(128 << 20, mkfs_options);
    let base = MemoryDevice::load(&image).unwrap();
    let device = Arc::new(RecordDevice::new(Arc::new(base.snapshot())));
    let filesystem = open(device.clone(), options);
    let dirs = DIRS.map(|name| {
        let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
        let made = filesystem.create(filesystem.root(), name.as_bytes(), &new);
        made.unwrap().id
    });
    filesystem.sync_all().unwrap();
    let begin = device.recording().position().0;
    let histories: Histories = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let worker = Worker {
                    fs: &filesystem,
                    device: &device,
                    random: Random(seed * 31 + thread),
                    thread,
                    dirs,
                    files: Vec::new(),
                    gone: Vec::new(),
                };
                scope.spawn(move || worker.run(150))
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().unwrap())
            .collect()
    });
    let events = device.events();
    let flushes: Vec<usize> = (begin..events.len())
        .filter(|at| matches!(events[*at].action, Action::Flush { .. }))
        .collect();
    for number in 0..30 {
        let flush = flushes[random.below(flushes.len() as u64) as usize];
        let at = match random.below(3) {
            0 => flush,
            1 => flush + 1,
            _ => begin + random.below((events.len() - begin) as u64 + 1) as usize,
        }
        .max(begin);
        let by_kernel = number % 5 == 0;
        let kind = random.below(if by_kernel { 3 } else { 4 });
        let crash = Crash::new(&events, Position(at));
        let bases = [base.snapshot()];
        let crashed = crash.replay(&bases, |_, event| fate(&mut random, kind, event));
        let crashed = crashed.unwrap().remove(0);
        let who = format!("seed {seed} {mkfs_options:?} state {number} kind {kind}");
        let path = dir.path().join("crashed.img");
        crashed.save(&path).unwrap();
        if by_kernel {
            let kernel = dir.path().join("kernel.img");
            fs::copy(&path, &kernel).unwrap();
            let mount = KernelMount::new(&kernel, dir.path(), "rw");
            let view = view_mounted(mount.path());
            judge(&histories, at, &view, &format!("{who} by the kernel"));
            drop(mount);
            check(&kernel);
        }
        // A crash in the middle of the replay leaves the same.
        let again = RecordDevice::new(Arc::new(crashed.snapshot()));
        let fs = open(Arc::new(again.clone()), options);
        judge(&histories, at, &view_of(&fs), &format!("{who} by ButterFS"));
        let replayed = again.events();
        let cut = Position(random.below(replayed.len() as u64 + 1) as usize);
        let twice =
            Crash::new(&replayed, cut).replay(&[crashed], |_, event| fate(&mut random, 2, event));
        let twice = twice.unwrap().remove(0);
        let second = open(Arc::new(twice), options);
        judge(
            &histories,
            at,
            &view_of(&second),
            &format!("{who} twice by ButterFS"),
        );
        if by_kernel {
            fs.delete_orphans(TreeId::FS).unwrap();
            fs.sync_all().unwrap();
            drop(fs);
            let ours = Crash::new(&again.events(), again.recording().position())
                .replay(&[MemoryDevice::load(&path).unwrap()], |_, _| Fate::Kept)
                .unwrap()
                .remove(0);
            ours.save(&path).unwrap();
            check(&path);
        }
    }
}

#[test]
fn what_threads_fsynced_survives_any_crash() {
    if !is_root() {
        return;
    }
    let fresh = u64::from(std::process::id());
    let seeds: Vec<u64> = match std::env::var("BUTTERFS_SEEDS") {
        Ok(range) => {
            let (first, last) = range.split_once("..").unwrap();
            (first.parse().unwrap()..last.parse().unwrap()).collect()
        }
        Err(_) => vec![1, 2, fresh],
    };
    for seed in seeds {
        let zstd = Algorithm::Zstd;
        let compressed = Options {
            compress: Compress::Force(zstd, zstd.default_level()),
            ..Options::default()
        };
        crash_round(seed, &["-n", "4096"], &Options::default());
        crash_round(seed, &["-O", "^no-holes"], &Options::default());
        crash_round(seed, &["--csum", "xxhash"], &compressed);
        crash_round(seed, &["-M"], &Options::default());
    }
}
