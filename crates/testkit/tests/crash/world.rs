//! A volume under a workload, recorded.
//!
//! A workload is text: operations separated by semicolons.

use super::mapped::Pages;
use super::model::{Effect, Found, Model, Number};
use butterfs::du::Limits;
use butterfs::quota::QuotaMode;
use butterfs::{
    BlockDevice, Deduped, Defragment, FallocateMode, Filesystem, FsError, Inode, InodeId,
    MemoryDevice, NewInode, OldName, OpenOptions, Owner, Place, RenameMode, SetMode, Sharing,
    Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::RecordDevice;
use butterfs_device::record::Action;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const S_IFREG: u32 = 0o100_644;
const S_IFDIR: u32 = 0o040_755;
const ATTRIBUTE: &[u8] = b"user.crash";

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub node_size: u32,
    pub features: &'static str,
    pub device_bytes: u64,
    pub options: &'static str,
}

/// Bytes of a device with two copies of the superblock.
pub const SMALL: u64 = 128 << 20;

pub const KINDS: [Kind; 5] = [
    Kind {
        node_size: 4096,
        features: "",
        device_bytes: SMALL,
        options: "",
    },
    Kind {
        node_size: 16384,
        features: "",
        device_bytes: SMALL,
        options: "compress-force=zstd",
    },
    Kind {
        node_size: 4096,
        features: "^block-group-tree,^no-holes",
        device_bytes: SMALL,
        options: "",
    },
    Kind {
        node_size: 4096,
        features: "^block-group-tree",
        device_bytes: SMALL,
        options: "nodatacow",
    },
    Kind {
        node_size: 4096,
        features: "",
        device_bytes: SMALL,
        options: "notreelog",
    },
];

/// Options for opening. Commits happen when the workload asks for them.
pub fn options(list: &str) -> OpenOptions {
    let mut options = butterfs::MountOptions::parse(list)
        .expect("options")
        .open_options();
    options.commit_interval = Duration::from_secs(3600);
    options.cleaner = butterfs::Cleaner::OnDemand;
    options
}

pub fn blank(kind: Kind) -> MemoryDevice {
    let device = MemoryDevice::new(kind.device_bytes);
    let mut wanted = MkfsOptions {
        node_size: kind.node_size,
        ..MkfsOptions::default()
    };
    for word in kind.features.split(',').filter(|word| !word.is_empty()) {
        wanted.features.change(word).expect("a feature");
    }
    make(&device, &wanted).expect("mkfs");
    device
}

pub type Outcome<T> = Result<T, butterfs::Error>;

pub struct World {
    pub device: Arc<RecordDevice>,
    pub base: MemoryDevice,
    pub model: Model,
    pub volume: Arc<Volume>,
    /// Files without a name.
    unnamed: BTreeMap<String, Arc<Inode>>,
    /// What programs stored to mappings.
    pub mapped: BTreeMap<String, Pages>,
    pub counter: u64,
}

impl World {
    /// A blank volume.
    pub fn new(kind: Kind) -> Self {
        let base = blank(kind);
        let under = Arc::new(base.snapshot());
        Self::on(kind, base, under)
    }

    /// A volume on `under`, which holds the content of `base`.
    pub fn on(kind: Kind, base: MemoryDevice, under: Arc<dyn BlockDevice>) -> Self {
        let device = Arc::new(RecordDevice::new(under));
        Self::open(kind, base, device).expect("opens")
    }

    /// A volume on which somebody else has worked, as `model` says. Of `device`,
    /// `waiting` is not durable yet.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn after(
        kind: Kind,
        base: MemoryDevice,
        waiting: &[butterfs_device::record::Event],
        model: Model,
    ) -> Outcome<Self> {
        let device = Arc::new(RecordDevice::new(Arc::new(base.snapshot())));
        for event in waiting {
            match &event.action {
                Action::Write { offset, data } => device.write_at(*offset, data),
                Action::Discard(range) => device.discard(*range),
                Action::Flush { .. } => Ok(()),
            }
            .expect("memory");
        }
        let mut world = Self::open(kind, base, device)?;
        world.model = model;
        // No two write the same bytes.
        world.counter = 1 << 40;
        Ok(world)
    }

    fn open(kind: Kind, base: MemoryDevice, device: Arc<RecordDevice>) -> Outcome<Self> {
        let shared: Arc<dyn BlockDevice> = device.clone();
        let mut options = options(kind.options);
        if kind.node_size == 4096 {
            // All nodes are written before the commit, not by it.
            options.store.left_to_commit = 0;
        }
        let volume = Volume::open_device(shared, options)?;
        Ok(Self {
            device,
            base,
            model: Model::default(),
            volume: Arc::new(volume),
            unnamed: BTreeMap::new(),
            mapped: BTreeMap::new(),
            counter: 0,
        })
    }

    /// All that was done is durable now.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn acknowledge_all(&mut self) {
        let now = self.now();
        self.model.acknowledge_all(now);
    }

    /// Another program on the same volume. It knows what was done so far.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn beside(&self, number: u64) -> Self {
        Self {
            device: self.device.clone(),
            base: self.base.snapshot(),
            model: self.model.clone(),
            volume: Arc::clone(&self.volume),
            unnamed: BTreeMap::new(),
            mapped: BTreeMap::new(),
            // No two write the same bytes.
            counter: (number + 1) << 32,
        }
    }

    /// The device below the volume, in its current state.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn under(&self) -> MemoryDevice {
        let device = self.base.snapshot();
        for event in self.device.events() {
            if let butterfs_device::record::Action::Write { offset, data } = &event.action {
                device.write_at(*offset, data).expect("memory");
            }
        }
        device
    }

    fn files(&self) -> &Arc<Filesystem> {
        self.volume.files()
    }

    pub fn now(&self) -> usize {
        self.device.recording().position().0
    }

    /// Bytes that occur nowhere else.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.counter += 1;
        let mut state = self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let squeezable = self.counter.is_multiple_of(2);
        (0..length)
            .map(|at| {
                if at % 8 == 0 || !squeezable {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                }
                (state >> 56) as u8 | 1
            })
            .collect()
    }

    fn inode(&self, path: &str) -> Outcome<Arc<Inode>> {
        if let Some(inode) = self.unnamed.get(path) {
            return Ok(Arc::clone(inode));
        }
        let id = self.volume.resolve(path.as_bytes())?;
        Ok(self.files().inode(id)?)
    }

    fn number(&self, path: &str) -> Number {
        match self.unnamed.get(path) {
            Some(inode) => inode.id.number.get(),
            None => self.model.number(path),
        }
    }

    fn place<'a>(&self, path: &'a str) -> Outcome<(InodeId, &'a [u8])> {
        self.volume.resolve_parent(path.as_bytes())
    }

    /// Runs all operations of a workload, which must succeed.
    pub fn run(&mut self, workload: &str) {
        if let Err(error) = self.try_run(workload) {
            panic!("{workload}: {error}");
        }
    }

    /// Runs the operations of a workload up to the first that fails.
    pub fn try_run(&mut self, workload: &str) -> Outcome<()> {
        for operation in workload.split(';') {
            let words: Vec<&str> = operation.split_whitespace().collect();
            if !words.is_empty() {
                self.operate(&words)?;
            }
        }
        Ok(())
    }

    pub fn operate(&mut self, words: &[&str]) -> Outcome<()> {
        let started = self.now();
        self.model.begin(started);
        let path = words.get(1).copied().unwrap_or_default();
        let number = |at: usize| -> u64 { words[at].parse().expect("a number") };
        let files = Arc::clone(self.files());
        match words[0] {
            "create" | "mkdir" => {
                let mode = if words[0] == "mkdir" {
                    S_IFDIR
                } else {
                    S_IFREG
                };
                let (dir, name) = self.place(path)?;
                let made = files.create(dir, name, &NewInode::new(mode, Owner::default()));
                let made = unique(&subvolume_of(path), made?.id.number.get());
                self.model.bind(started, path, Some(made));
                if words[0] == "create" {
                    self.model.add_file(started, made);
                }
            }
            "tmpfile" => {
                let new = NewInode::new(S_IFREG, Owner::default());
                let inode = files.create_unnamed(files.root(), &new)?;
                files.pin(&inode);
                self.model.add_file(started, inode.id.number.get());
                self.unnamed.insert(path.to_owned(), inode);
            }
            "nocow" | "cow" => {
                let inode = self.inode(path)?;
                let old = inode.state.read().item.flags;
                let wanted = match words[0] {
                    "nocow" => old | butterfs::InodeFlags::NODATACOW,
                    _ => old.without(butterfs::InodeFlags::NODATACOW),
                };
                files.set_flags(&inode, wanted)?;
            }
            "name" => {
                let inode = self.unnamed.remove(path).expect("an unnamed file");
                let (dir, name) = self.place(words[2])?;
                files.link(inode.id, dir, name)?;
                files.unpin(&inode, 1)?;
                let made = Some(inode.id.number.get());
                self.model.bind(started, words[2], made);
            }
            "write" => {
                let data = self.bytes(number(3) as usize);
                self.write_bytes(path, number(2), &data)?;
            }
            "store" => {
                let (start, length) = (number(2) as usize, number(3) as usize);
                self.store_mapped(path, start..start + length);
            }
            "writeback" => {
                let (first, count) = (number(2) as usize, number(3) as usize);
                self.write_back(path, first..first + count)?;
            }
            "msync" => {
                let (start, length) = (number(2) as usize, number(3) as usize);
                self.msync(path, start..start + length)?;
            }
            "receive" => self.receive(path, number(2) as usize)?,
            "append" => {
                let end = self.model.content(path).data.len().to_string();
                self.operate(&["write", path, &end, words[2]])?;
            }
            "truncate" => {
                let size = number(2);
                let id = self.number(path);
                self.truncate_mapped(path, size as usize);
                self.model
                    .change_file(started, id, Effect::AtOnce, |content| {
                        content.data.resize(size as usize, 0);
                    });
                files.truncate(&*self.inode(path)?, size)?;
            }
            "punch" | "zero" => {
                let (start, length) = (number(2), number(3));
                let id = self.number(path);
                self.model
                    .change_file(started, id, Effect::AtOnce, |content| {
                        let size = content.data.len() as u64;
                        let range = start.min(size) as usize..(start + length).min(size) as usize;
                        content.data[range].fill(0);
                    });
                let mode = if words[0] == "punch" {
                    FallocateMode::PunchHole
                } else {
                    FallocateMode::ZeroRangeKeepSize
                };
                files.fallocate(&*self.inode(path)?, mode, start, length)?;
            }
            "keep" => {
                // Space beyond the size, which shows nowhere.
                let mode = FallocateMode::AllocateKeepSize;
                files.fallocate(&*self.inode(path)?, mode, number(2), number(3))?;
            }
            "allocate" => {
                let end = (number(2) + number(3)) as usize;
                let id = self.number(path);
                self.model
                    .change_file(started, id, Effect::Delayed, |content| {
                        content.data.resize(content.data.len().max(end), 0);
                    });
                let mode = FallocateMode::Allocate;
                files.fallocate(&*self.inode(path)?, mode, number(2), number(3))?;
            }
            "clone" => {
                let (from, to) = (self.inode(path)?, self.inode(words[2])?);
                let data = self.model.content(path).data.clone();
                let id = self.number(words[2]);
                self.model
                    .change_file(started, id, Effect::Delayed, |content| {
                        content.data.resize(content.data.len().max(data.len()), 0);
                        content.data[..data.len()].copy_from_slice(&data);
                    });
                let length = data.len() as u64;
                files.copy_range((&from, 0), (&to, 0), length)?;
            }
            "same" => {
                let data = self.model.content(path).data.clone();
                self.write_bytes(words[2], 0, &data)?;
            }
            "dedupe" => {
                let (from, to) = (self.inode(path)?, self.inode(words[2])?);
                let length = self.model.content(path).data.len() as u64;
                let deduped = files.dedupe_range((&from, 0), length, &[(to, 0)]);
                for result in deduped {
                    assert!(matches!(result?, Deduped::Shared(_)), "{words:?}");
                }
            }
            "defragment" => {
                let wanted = Defragment {
                    sharing: Sharing::Break,
                    ..Defragment::default()
                };
                files.defragment(&*self.inode(path)?, &wanted)?;
            }
            "attribute" => {
                let value = self.bytes(30);
                let id = self.number(path);
                self.model
                    .change_file(started, id, Effect::AtOnce, |content| {
                        content.attribute = Some(value.clone());
                    });
                files.set_xattr(&*self.inode(path)?, ATTRIBUTE, &value, SetMode::Any)?;
            }
            "noattribute" => {
                let id = self.number(path);
                self.model
                    .change_file(started, id, Effect::AtOnce, |content| {
                        content.attribute = None
                    });
                files.remove_xattr(&*self.inode(path)?, ATTRIBUTE)?;
            }
            "link" => {
                let (dir, name) = self.place(words[2])?;
                let inode = self.inode(path)?;
                let made = self.number(path);
                self.model.bind(started, words[2], Some(made));
                files.link(inode.id, dir, name)?;
            }
            "unlink" | "rmdir" => {
                let (dir, name) = self.place(path)?;
                self.model.bind(started, path, None);
                let done = if words[0] == "rmdir" {
                    files.rmdir(dir, name)
                } else {
                    files.unlink(dir, name)
                };
                done?;
            }
            "rename" | "exchange" => self.rename(words, started)?,
            "fsync" => {
                self.model.begin_fsync();
                files.fsync(&*self.inode(path)?)?;
                let (now, number) = (self.now(), self.number(path));
                self.model.acknowledge_file(now, number);
            }
            "fsyncdir" => {
                self.model.begin_fsync();
                let dir = match path {
                    "" => files.inode(files.root())?,
                    path => self.inode(path)?,
                };
                files.fsync_directory(&dir)?;
                let now = self.now();
                self.model.acknowledge_directory(now, path);
            }
            "sync" => {
                files.sync_all()?;
                let now = self.now();
                self.model.acknowledge_all(now);
            }
            "subvolume" => {
                let (dir, name) = self.place(path)?;
                let number = unique(&name_of(path), 256);
                self.model.bind(started, path, Some(number));
                files.create_subvolume(dir, name, &NewInode::new(S_IFDIR, Owner::default()))?;
                // This is a commit, which makes all names durable.
                let now = self.now();
                self.model.acknowledge_names(now);
            }
            "snapshot" => self.snapshot(path, words[2], started)?,
            "delete" => {
                let (dir, name) = self.place(path)?;
                let below = format!("{path}/");
                let gone: Vec<String> = self.model.paths.keys().cloned().collect();
                for other in gone {
                    if other == path || other.starts_with(&below) {
                        self.model.bind(started, &other, None);
                    }
                }
                files.delete_subvolume(dir, name)?;
            }
            "clean" => {
                files.clean()?;
            }
            "quotas" => {
                let mode = if path == "simple" {
                    QuotaMode::Simple
                } else {
                    QuotaMode::Full
                };
                files.enable_quotas(
                    mode,
                    &Limits::default(),
                    &mut |_| ControlFlow::Continue(()),
                )?;
                // This is a commit, which makes all names durable.
                let now = self.now();
                self.model.acknowledge_names(now);
            }
            "noquotas" => {
                files.disable_quotas()?;
                let now = self.now();
                self.model.acknowledge_names(now);
            }
            "counted" => {
                let engine = self.volume.files().store().read();
                let quotas = engine.quotas().expect("quotas are on");
                assert!(!quotas.is_inconsistent(), "{:?}", quotas.reason());
            }
            "fill" => self.fill(path)?,
            "many" => {
                for number in 0..number(2) {
                    self.small_file(started, &format!("{path}/m{number}"))?;
                }
            }
            other => panic!("no operation {other}"),
        }
        Ok(())
    }

    /// One of many small files that an operation makes.
    fn small_file(&mut self, started: usize, path: &str) -> Outcome<()> {
        let (dir, name) = self.place(path)?;
        let new = NewInode::new(S_IFREG, Owner::default());
        let made = self.files().create(dir, name, &new)?;
        let number = unique(&subvolume_of(path), made.id.number.get());
        self.model.bind(started, path, Some(number));
        self.model.add_file(started, number);
        let data = self.bytes(1500);
        self.write_bytes(path, 0, &data)
    }

    /// Writes `data`, and tells the model.
    pub fn write_bytes(&mut self, path: &str, offset: u64, data: &[u8]) -> Outcome<()> {
        let started = self.now();
        let (inode, id) = (self.inode(path)?, self.number(path));
        self.model
            .change_file(started, id, Effect::Delayed, |content| {
                let (start, end) = (offset as usize, offset as usize + data.len());
                content.data.resize(content.data.len().max(end), 0);
                content.data[start..end].copy_from_slice(data);
            });
        let written = self.files().write(&inode, offset, data)?;
        assert_eq!(written, data.len());
        Ok(())
    }

    /// A snapshot of a subvolume, with all that waits in memory.
    fn snapshot(&mut self, from: &str, to: &str, started: usize) -> Outcome<()> {
        let tree = self.volume.resolve(from.as_bytes())?.tree;
        let (dir, name) = self.place(to)?;
        let subvolume = name_of(to);
        self.model.bind(started, to, Some(unique(&subvolume, 256)));
        let below = format!("{from}/");
        let inside: Vec<(String, Number)> = self
            .model
            .paths
            .iter()
            .filter(|(path, _)| path.starts_with(&below))
            .filter_map(|(path, history)| Some((path.clone(), (*history.last())?)))
            .collect();
        for (path, number) in inside {
            let copy = unique(&subvolume, number & u64::from(u32::MAX));
            let target = format!("{to}/{}", &path[below.len()..]);
            self.model.bind(started, &target, Some(copy));
            if let Some(content) = self.model.files.get(&number) {
                let content = content.last().clone();
                self.model.add_copy(started, copy, content);
            }
        }
        let access = butterfs::Access::ReadWrite;
        self.files().snapshot(tree, dir, name, access)?;
        let now = self.now();
        self.model.acknowledge_names(now);
        Ok(())
    }

    fn rename(&mut self, words: &[&str], started: usize) -> Outcome<()> {
        let (from, to) = (words[1], words[2]);
        let target = self.model.paths.get(to).and_then(|history| *history.last());
        if target == Some(self.model.number(from)) {
            // Two names of one file: both stay.
            return Ok(());
        }
        if words[0] == "exchange" {
            self.model.exchange(started, from, to);
        } else {
            self.model.rename(started, from, to);
        }
        if let Some(pages) = self.mapped.remove(from) {
            self.mapped.insert(to.to_owned(), pages);
        }
        let (from, to) = (self.place(from)?, self.place(to)?);
        let mode = if words[0] == "exchange" {
            RenameMode::Exchange
        } else {
            RenameMode::Replace
        };
        let place = |(dir, name)| Place { dir, name };
        self.files()
            .rename(place(from), place(to), mode, OldName::Free)?;
        Ok(())
    }

    /// Writes until nothing fits any more.
    fn fill(&mut self, path: &str) -> Outcome<()> {
        let inode = self.inode(path)?;
        let data = vec![0x5a; 1 << 20];
        let mut at = 0;
        loop {
            let started = self.now();
            let id = self.number(path);
            match self.files().write(&inode, at, &data) {
                Ok(written) => {
                    self.model
                        .change_file(started, id, Effect::Delayed, |content| {
                            content.data.resize(at as usize + written, 0x5a);
                        });
                    at += written as u64;
                }
                Err(error) => {
                    if error.errno() == 28 {
                        return Ok(());
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Stops the volume without closing it. Returns what was recorded.
    pub fn crash(self) -> (MemoryDevice, Model, Vec<butterfs_device::record::Event>) {
        let events = self.device.events();
        (self.base, self.model, events)
    }
}

/// Subvolumes begin with this letter, and nothing else does.
const SUBVOLUME: char = 'S';

/// The subvolume that contains a path. The top level has no name.
fn subvolume_of(path: &str) -> String {
    match path.split_once('/') {
        Some((first, _)) if first.starts_with(SUBVOLUME) => first.to_owned(),
        _ => String::new(),
    }
}

/// The name of a subvolume, which is in the top level.
fn name_of(path: &str) -> String {
    assert!(path.starts_with(SUBVOLUME) && !path.contains('/'), "{path}");
    path.to_owned()
}

/// A number for an inode that no inode of another subvolume has. The tree's
/// number would do, but the kernel does not show it.
pub fn unique(subvolume: &str, inode: u64) -> Number {
    let letters = subvolume.bytes().take(4);
    let tree = letters.fold(0_u64, |tree, letter| tree << 8 | u64::from(letter));
    tree << 32 | inode
}

/// Opens what a crash left, which replays its log, and looks at all of it.
pub fn look(device: Arc<dyn BlockDevice>, list: &str) -> Result<(Volume, Found), butterfs::Error> {
    let volume = Volume::open_device(device, options(list))?;
    let mut found = Found::default();
    let files = Arc::clone(volume.files());
    let mut waiting = vec![(files.root(), String::new(), String::new())];
    while let Some((dir, prefix, subvolume)) = waiting.pop() {
        let mut entries = Vec::new();
        files.read_dir(dir, 2, &mut |entry| {
            entries.push(entry);
            true
        })?;
        for entry in entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let path = if prefix.is_empty() {
                name
            } else {
                format!("{prefix}/{name}")
            };
            let id = entry.target.inode;
            let attributes = files.attributes(id)?;
            let subvolume = if entry.target.subvolume {
                path.clone()
            } else {
                subvolume.clone()
            };
            let number = unique(&subvolume, id.number.get());
            found.paths.insert(path.clone(), number);
            if attributes.is_directory() {
                waiting.push((id, path, subvolume));
                continue;
            }
            let inode = files.inode(id)?;
            let mut data = vec![0; attributes.size as usize];
            files.read(&inode, 0, &mut data)?;
            let attribute = match files.get_xattr(id, ATTRIBUTE) {
                Ok(value) => Some(value),
                Err(FsError::NoAttribute) => None,
                Err(error) => return Err(error.into()),
            };
            let content = super::model::Content { data, attribute };
            found.files.insert(number, content);
        }
    }
    Ok((volume, found))
}

#[allow(dead_code, reason = "each test uses a part")]
/// Removes everything and makes something new.
pub fn empty_and_refill(volume: &Volume, found: &Found) -> Result<(), butterfs::Error> {
    let files = volume.files();
    for path in found.paths.keys().filter(|path| !path.contains('/')) {
        let found = volume.resolve(path.as_bytes())?;
        if found.tree != files.root().tree {
            // What was received, or sent, is read-only.
            files.set_subvolume_access(found.tree, butterfs::Access::ReadWrite)?;
        }
    }
    for path in found.paths.keys().rev() {
        let (dir, name) = volume.resolve_parent(path.as_bytes())?;
        let target = files.lookup(dir, name)?;
        if target.subvolume {
            files.delete_subvolume(dir, name)?;
        } else if files.attributes(target.inode)?.is_directory() {
            files.rmdir(dir, name)?;
        } else {
            files.unlink(dir, name)?;
        }
    }
    files.clean_all()?;
    let new = NewInode::new(S_IFREG, Owner::default());
    let inode = files.create(files.root(), b"new", &new)?;
    files.write(&inode, 0, &[7; 20_000])?;
    files.fsync(&inode)?;
    Ok(files.sync_all()?)
}
