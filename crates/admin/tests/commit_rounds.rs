//! How many rounds a commit takes until it has recorded what it changed itself.
//!
//! BUTTERFS_SEEDS=first..last and BUTTERFS_COMMITS=number make more of it.

use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_check::{NoProgress, check};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::TreeId;
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, SpaceKind, Store};
use butterfs_testkit::Random;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// No commit may take more rounds than this.
const ROUNDS_MAX: usize = 8;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("BUTTERFS_SEEDS") else {
        return default;
    };
    let (first, last) = text.split_once("..").unwrap();
    first.parse().unwrap()..last.parse().unwrap()
}

/// Files that come and go.
struct Load {
    device: Arc<MemoryDevice>,
    files: Filesystem,
    random: Random,
    live: Vec<u64>,
    next: u64,
    /// Their number goes towards this.
    wanted: usize,
    /// How many commits took how many rounds.
    counts: Vec<u64>,
}

fn name(file: u64) -> Vec<u8> {
    format!("f{file}").into_bytes()
}

impl Load {
    fn new(seed: u64, node_size: u32, features: &str) -> Self {
        let mut options = MkfsOptions {
            node_size,
            ..MkfsOptions::default()
        };
        options.features.change(features).unwrap();
        let device = Arc::new(MemoryDevice::new(512 << 20));
        make(&*device, &options).unwrap();
        let store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
        Self {
            device,
            files: Filesystem::new(Arc::new(store), TreeId::FS, Options::default()),
            random: Random::new(seed),
            live: Vec::new(),
            next: 0,
            wanted: 20,
            counts: Vec::new(),
        }
    }

    fn create(&mut self) {
        let length = match self.random.below(4) {
            0 => 0,
            1 => self.random.below(2000),
            _ => 4096 * (1 + self.random.below(4)),
        };
        self.create_with(length);
    }

    fn create_with(&mut self, length: u64) {
        let new = NewInode::new(S_IFREG | 0o644, Owner { uid: 0, gid: 0 });
        let file = self.next;
        self.next += 1;
        let root = self.files.root();
        let inode = self.files.create(root, &name(file), &new).unwrap();
        self.live.push(file);
        let data = vec![file as u8; length as usize];
        if !data.is_empty() {
            self.files.write(&inode, 0, &data).unwrap();
        }
    }

    fn remove(&mut self) {
        let at = self.random.below(self.live.len() as u64) as usize;
        let file = self.live.swap_remove(at);
        self.files.unlink(self.files.root(), &name(file)).unwrap();
    }

    fn overwrite(&mut self) {
        let file = *self.random.pick(&self.live);
        let target = self.files.lookup(self.files.root(), &name(file)).unwrap();
        let inode = self.files.inode(target.inode).unwrap();
        let data = vec![7; 4096];
        let offset = 4096 * self.random.below(6);
        self.files.write(&inode, offset, &data).unwrap();
    }

    /// Moves all that lies in some block group.
    fn balance(&mut self) {
        let store = self.files.store();
        let starts: Vec<_> = {
            let engine = store.read();
            let groups = engine.groups();
            let wanted = groups.filter(|group| group.flags.contains(SpaceKind::Metadata.flag()));
            wanted.map(|group| group.start).collect()
        };
        let start = *self.random.pick(&starts);
        let moved = store.relocate_group(start, &mut |_| ControlFlow::Continue(()));
        moved.unwrap();
    }

    fn commit(&mut self, context: &str) {
        self.files.sync_all().unwrap();
        self.note_rounds(context);
    }

    fn note_rounds(&mut self, context: &str) {
        let rounds = self.files.store().read().commit_rounds();
        assert!(rounds.most <= ROUNDS_MAX, "{rounds:?}: {context}");
        self.counts
            .resize(self.counts.len().max(rounds.last + 1), 0);
        self.counts[rounds.last] += 1;
    }

    /// Changes something and commits.
    fn turn(&mut self, context: &str) {
        if self.random.one_in(100) {
            let most = *self.random.pick(&[10, 60, 1000]);
            self.wanted = self.random.below(most) as usize;
        }
        let far = self.live.len().abs_diff(self.wanted) as u64;
        let most = 1 + self.random.below(4 + far);
        for _ in 0..1 + self.random.below(most) {
            match self.live.len() {
                0 => self.create(),
                _ if self.random.one_in(4) => self.overwrite(),
                count if count < self.wanted => self.create(),
                _ => self.remove(),
            }
        }
        self.commit(context);
        if self.random.one_in(150) {
            self.balance();
            self.note_rounds(context);
        }
    }

    /// The volume is sound.
    fn check(self, context: &str) {
        let Self { device, files, .. } = self;
        drop(files);
        let options = butterfs_check::Options::default();
        let report = check(vec![device as Arc<dyn BlockDevice>], &options, &NoProgress).unwrap();
        assert!(report.is_clean(), "{context}: {:#?}", report.faults);
    }
}

fn exercise(seed: u64, node_size: u32, features: &str, commits: u64) {
    let mut load = Load::new(seed, node_size, features);
    for turn in 0..commits {
        load.turn(&format!(
            "seed {seed}, {node_size}, {features}, turn {turn}"
        ));
    }
    println!("{node_size} {features}: {:?}", load.counts);
    load.check(&format!("seed {seed}, {node_size}, {features}"));
}

/// The extent tree has just filled a leaf, whichever leaf that is, when many
/// nodes of another tree are freed by the commit itself. That is the case in
/// which it once made two nodes and freed two in each round.
#[test]
fn removing_many_checksums_takes_few_rounds() {
    for (seed, features) in (0..).zip(["", "^free-space-tree,^block-group-tree"]) {
        let mut load = Load::new(seed, 4096, features);
        for turn in 0..number("BUTTERFS_COMMITS", 60) {
            let context = format!("{features}, turn {turn}");
            let data = 1 + load.random.below(30);
            let empty = load.random.below(600) as usize;
            let kept = load.live.len();
            for _ in 0..data {
                load.create_with(512 << 10);
            }
            load.commit(&context);
            for file in load.live.split_off(kept) {
                load.files.unlink(load.files.root(), &name(file)).unwrap();
            }
            while load.live.len() < empty {
                load.create_with(0);
            }
            while load.live.len() > empty {
                load.remove();
            }
            load.commit(&context);
            if load.random.one_in(10) {
                load.balance();
            }
        }
        load.check(features);
    }
}

#[test]
fn commits_take_few_rounds() {
    let commits = number("BUTTERFS_COMMITS", 60);
    for seed in seeds(0..1) {
        for features in ["", "^free-space-tree,^block-group-tree", "^skinny-metadata"] {
            for node_size in [4096, 8192, 16384, 32768, 65536] {
                exercise(seed, node_size, features, commits);
            }
        }
    }
}
