//! Reflinks, dedupe and defragmentation among writes, snapshots and deletions,
//! in random order, compared with vectors of bytes.

mod common;

use butterfs_check::{DataChecksums, NoProgress};
use butterfs_device::{Access, FileDevice};
use butterfs_format::compression::Algorithm;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::{CloneSpan, Deduped, Defragment, FallocateMode, Recompress, Sharing};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::{Compress, DataCow};
use butterfs_fs::{Filesystem, FsError, Inode, Options};
use common::{KernelMount, Random, check, is_root, mkfs, open_with, run};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const SECTOR: u64 = 4096;
const FILES: usize = 4;
/// Largest file, about.
const SIZE: u64 = 600_000;

/// What a subvolume holds, by the name of its entry in the top level.
type Model = BTreeMap<String, Vec<Vec<u8>>>;

fn name(file: usize) -> String {
    format!("f{file}")
}

struct World {
    fs: Filesystem,
    model: Model,
    random: Random,
    snapshots: usize,
    /// Bytes that were cloned, found equal and rewritten. The test must not
    /// pass because nothing happened.
    done: [u64; 3],
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let at = at as usize;
    if !data.is_empty() && model.len() < at + data.len() {
        model.resize(at + data.len(), 0);
    }
    if !data.is_empty() {
        model[at..at + data.len()].copy_from_slice(data);
    }
}

impl World {
    fn top(&self) -> InodeId {
        Filesystem::root_of(TreeId::FS)
    }

    fn pick(&mut self) -> (String, usize) {
        let names: Vec<&String> = self.model.keys().collect();
        let subvolume = names[self.random.below(names.len() as u64) as usize].clone();
        (subvolume, self.random.below(FILES as u64) as usize)
    }

    fn tree(&self, subvolume: &str) -> TreeId {
        let found = self.fs.lookup(self.top(), subvolume.as_bytes()).unwrap();
        found.inode.tree
    }

    fn inode(&self, place: &(String, usize)) -> Arc<Inode> {
        let root = Filesystem::root_of(self.tree(&place.0));
        let found = self.fs.lookup(root, name(place.1).as_bytes()).unwrap();
        self.fs.inode(found.inode).unwrap()
    }

    fn content(&mut self, place: &(String, usize)) -> &mut Vec<u8> {
        &mut self.model.get_mut(&place.0).unwrap()[place.1]
    }

    /// Few different contents, so that many are equal.
    fn data(&mut self) -> Vec<u8> {
        let length = match self.random.below(4) {
            0 => 1 + self.random.below(3000),
            1 => SECTOR * (1 + self.random.below(4)),
            _ => 1 + self.random.below(150_000),
        };
        let seed = self.random.below(3);
        if self.random.below(2) == 0 {
            return Random(seed).data(length as usize);
        }
        (0..length).map(|at| (at / SECTOR + seed) as u8).collect()
    }

    fn sectors(&mut self, below: u64) -> u64 {
        self.random.below(below / SECTOR + 1) * SECTOR
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=5 => self.write(),
            6 => self.truncate(),
            7 => self.fallocate(),
            8..=10 => self.clone_one(),
            11..=13 => self.dedupe(),
            14..=16 => self.defragment(),
            17 => self.snapshot(),
            18 => self.delete(),
            _ => self.fs.sync_all().unwrap(),
        }
    }

    fn write(&mut self) {
        let place = self.pick();
        let (inode, data) = (self.inode(&place), self.data());
        let size = self.content(&place).len() as u64;
        let at = match self.random.below(3) {
            0 => size.min(SIZE),
            1 => self.sectors(SIZE / 2),
            _ => self.random.below(size.min(SIZE) + 5000),
        };
        assert_eq!(self.fs.write(&inode, at, &data).unwrap(), data.len());
        put(self.content(&place), at, &data);
        if self.random.below(2) == 0 {
            self.fs.flush_inode(&inode).unwrap();
        }
    }

    fn truncate(&mut self) {
        let place = self.pick();
        let size = match self.random.below(3) {
            0 => self.random.below(3000),
            1 => self.sectors(SIZE),
            _ => self.random.below(SIZE),
        };
        self.fs.truncate(&self.inode(&place), size).unwrap();
        self.content(&place).resize(size as usize, 0);
    }

    fn fallocate(&mut self) {
        let place = self.pick();
        let (at, length) = (self.random.below(SIZE), 1 + self.random.below(100_000));
        let punch = self.random.below(2) == 0;
        let mode = match punch {
            true => FallocateMode::PunchHole,
            false => FallocateMode::Allocate,
        };
        self.fs
            .fallocate(&self.inode(&place), mode, at, length)
            .unwrap();
        let model = self.content(&place);
        let end = (at + length) as usize;
        if punch {
            let end = end.min(model.len());
            if (at as usize) < end {
                model[at as usize..end].fill(0);
            }
        } else if model.len() < end {
            model.resize(end, 0);
        }
    }

    /// What FICLONERANGE accepts, for files that both have checksums or both
    /// have none.
    fn is_cloneable(
        &mut self,
        from: &(String, usize),
        to: &(String, usize),
        s: &CloneSpan,
    ) -> bool {
        let (source, target) = (
            self.content(from).len() as u64,
            self.content(to).len() as u64,
        );
        let length = if s.length == 0 && s.from <= source {
            source - s.from
        } else {
            s.length
        };
        if length == 0 && s.from <= source {
            return true;
        }
        let end = s.from.saturating_add(length);
        if !s.from.is_multiple_of(SECTOR)
            || !s.to.is_multiple_of(SECTOR)
            || s.from > source
            || end > source
        {
            return false;
        }
        let whole = length.next_multiple_of(SECTOR);
        let overlap = from == to && s.from < s.to + whole && s.to < s.from + whole;
        let tail_fits = length % SECTOR == 0 || (end == source && s.to + length >= target);
        !overlap && tail_fits
    }

    fn clone_one(&mut self) {
        let (from, to) = (self.pick(), self.pick());
        let size = self.content(&from).len() as u64;
        let mut span = CloneSpan {
            from: self.sectors(size),
            to: self.sectors(SIZE / 2),
            length: self.sectors(200_000),
        };
        match self.random.below(5) {
            0 => span.length = 0,
            1 => span.length = size.saturating_sub(span.from),
            2 => span.length += self.random.below(2) * 77,
            3 => span.from += self.random.below(2) * 99,
            _ => {}
        }
        let (source, target) = (self.inode(&from), self.inode(&to));
        let done = self.fs.clone_range(&source, &target, span);
        if !self.is_cloneable(&from, &to, &span) {
            assert!(
                matches!(done, Err(FsError::Invalid(_))),
                "{span:?}: {done:?}"
            );
            return;
        }
        let length = done.unwrap();
        assert!(length == span.length || span.length == 0);
        let start = span.from as usize;
        let data = self.content(&from)[start..start + length as usize].to_vec();
        put(self.content(&to), span.to, &data);
        self.done[0] += length;
    }

    fn dedupe(&mut self) {
        let (from, mut to) = (self.pick(), self.pick());
        if self.random.below(2) == 0 {
            // Another version of the same file.
            to.1 = from.1;
        }
        let sizes = [
            self.content(&from).len() as u64,
            self.content(&to).len() as u64,
        ];
        let same = self.random.below(2) == 0;
        let start = self.sectors(sizes[0]);
        let at = if same { start } else { self.sectors(sizes[1]) };
        let left = sizes[0]
            .saturating_sub(start)
            .min(sizes[1].saturating_sub(at));
        let length = left.min(1 + self.random.below(200_000));
        let length = if self.random.below(3) == 0 {
            left
        } else {
            length
        };
        let (source, target) = (self.inode(&from), self.inode(&to));
        let mut results = self
            .fs
            .dedupe_range((&source, start), length, &[(target, at)]);
        let result = results.pop().unwrap();
        let whole = start + length == sizes[0] && at + length == sizes[1];
        let compared = if whole {
            length
        } else {
            length / SECTOR * SECTOR
        };
        if from == to && start < at + compared && at < start + compared {
            assert!(matches!(result, Err(FsError::Invalid(_))));
            return;
        }
        let part = |data: &[u8], at: u64| {
            data.get(at as usize..(at + compared) as usize)
                .unwrap_or_default()
                .to_vec()
        };
        let left = part(self.content(&from), start);
        let equal = left == part(self.content(&to), at);
        match result.unwrap() {
            Deduped::Differs => assert!(!equal, "equal ranges were called different"),
            Deduped::Shared(0) => assert!(compared <= SECTOR),
            Deduped::Shared(bytes) => {
                assert!(equal, "different ranges were called equal");
                assert_eq!(bytes, compared);
                self.done[1] += bytes;
            }
        }
    }

    fn defragment(&mut self) {
        let place = self.pick();
        let algorithm = Algorithm::ALL[self.random.below(3) as usize];
        let start = self.sectors(SIZE / 2);
        let wanted = Defragment {
            range: match self.random.below(2) {
                0 => 0..u64::MAX,
                _ => start..start + self.random.below(300_000),
            },
            large: [1 << 20, 32 << 20, 65_536][self.random.below(3) as usize],
            compress: match self.random.below(3) {
                0 => Recompress::With(algorithm, algorithm.default_level()),
                1 => Recompress::Plain,
                _ => Recompress::Keep,
            },
            sharing: match self.random.below(2) {
                0 => Sharing::Break,
                _ => Sharing::Keep,
            },
        };
        let inode = self.inode(&place);
        let before = self.fs.attributes_of(&inode).unwrap();
        let planned = self.fs.plan_defragment(&inode, &wanted).unwrap();
        let done = self.fs.defragment(&inode, &wanted).unwrap();
        assert_eq!(planned.shared, done.shared);
        assert!(done.rewritten <= planned.rewritten);
        let after = self.fs.attributes_of(&inode).unwrap();
        assert_eq!((before.mtime, before.size), (after.mtime, after.size));
        self.done[2] += done.rewritten;
    }

    fn snapshot(&mut self) {
        if self.model.len() > 5 {
            return;
        }
        let (source, _) = self.pick();
        self.snapshots += 1;
        let new = format!("s{}", self.snapshots);
        let tree = self.tree(&source);
        self.fs
            .snapshot(tree, self.top(), new.as_bytes(), Access::ReadWrite)
            .unwrap();
        let content = self.model[&source].clone();
        self.model.insert(new, content);
    }

    fn delete(&mut self) {
        let (victim, _) = self.pick();
        if self.model.len() < 4 {
            return;
        }
        self.fs
            .delete_subvolume(self.top(), victim.as_bytes())
            .unwrap();
        self.model.remove(&victim);
        for _ in 0..self.random.below(4) {
            self.fs.clean().unwrap();
        }
    }

    fn compare(&self) {
        for (subvolume, files) in &self.model {
            for (file, model) in files.iter().enumerate() {
                let inode = self.inode(&(subvolume.clone(), file));
                let mut found = vec![0; model.len() + 1];
                let read = self.fs.read(&inode, 0, &mut found).unwrap();
                assert_eq!(read, model.len(), "{subvolume}/{file}");
                let differs = (0..read).find(|at| found[*at] != model[*at]);
                assert_eq!(differs, None, "{subvolume}/{file}");
            }
        }
    }
}

/// `butterfs check`.
fn check_here(image: &Path) {
    let device = FileDevice::open(image, Access::ReadOnly).unwrap();
    let options = butterfs_check::Options {
        data: DataChecksums::Verify,
        ..butterfs_check::Options::default()
    };
    let report = butterfs_check::check(vec![Arc::new(device)], &options, &NoProgress).unwrap();
    assert!(report.is_exact(), "{report:?}");
}

fn exercise(seed: u64, words: &[&str], options: &Options, steps: usize) -> [u64; 3] {
    let (dir, image) = mkfs(1 << 30, words);
    let mut world = World {
        fs: open_with(&image, TreeId::FS, options),
        model: Model::new(),
        random: Random(seed),
        snapshots: 0,
        done: [0; 3],
    };
    for subvolume in ["a", "b"] {
        let mut new = NewInode::new(0o040_755, Owner::default());
        let top = world.top();
        let tree = world
            .fs
            .create_subvolume(top, subvolume.as_bytes(), &new)
            .unwrap();
        new.mode = S_IFREG | 0o644;
        for file in 0..FILES {
            let root = Filesystem::root_of(tree);
            world.fs.create(root, name(file).as_bytes(), &new).unwrap();
        }
        let empty = vec![Vec::new(); FILES];
        world.model.insert(subvolume.to_owned(), empty);
    }
    for _ in 0..3 {
        for _ in 0..steps {
            world.step();
        }
        world.compare();
        world.fs.sync_all().unwrap();
        let World {
            fs,
            model,
            random,
            snapshots,
            done,
        } = world;
        drop(fs);
        check(&image);
        check_here(&image);
        if is_root() {
            let mount = KernelMount::new(&image, dir.path(), "ro");
            for (subvolume, files) in &model {
                for (file, content) in files.iter().enumerate() {
                    let path = mount.path().join(subvolume).join(name(file));
                    assert!(
                        std::fs::read(path).unwrap() == *content,
                        "{subvolume}/{file}"
                    );
                }
            }
        }
        let fs = open_with(&image, TreeId::FS, options);
        world = World {
            fs,
            model,
            random,
            snapshots,
            done,
        };
        world.compare();
    }
    let done = world.done;
    drop(world);
    if is_root() {
        // The kernel goes on where we stopped.
        let mount = KernelMount::new(&image, dir.path(), "rw");
        run(
            "btrfs",
            &["scrub", "start", "-B", mount.path().to_str().unwrap()],
        );
    }
    check(&image);
    done
}

#[test]
fn random_sequences_of_shared_data() {
    let with = |compress, data_cow| Options {
        compress,
        data_cow,
        ..Options::default()
    };
    let zstd = Algorithm::Zstd;
    let ways: [(&[&str], Options); 5] = [
        (&[], Options::default()),
        (
            &["-n", "4096"],
            with(Compress::Try(zstd, zstd.default_level()), DataCow::On),
        ),
        (&["-O", "^no-holes"], Options::default()),
        (&[], with(Compress::Off, DataCow::Off)),
        (&["--csum", "xxhash"], with(Compress::Off, DataCow::NoSum)),
    ];
    // More rounds for a soak: BUTTERFS_SEEDS=first..last.
    let seeds = std::env::var("BUTTERFS_SEEDS").unwrap_or_else(|_| "0..1".into());
    let (first, last) = seeds.split_once("..").expect("first..last");
    for seed in first.parse::<u64>().unwrap()..last.parse::<u64>().unwrap() {
        for (index, (words, options)) in ways.iter().enumerate() {
            let seed = seed * 100 + index as u64;
            let done = exercise(seed, words, options, 150);
            eprintln!("seed {seed}: cloned, deduped, rewritten {done:?} bytes");
            assert!(done.iter().all(|bytes| *bytes > 0), "{done:?}");
        }
    }
}
