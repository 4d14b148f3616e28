//! Subvolumes and snapshots that ButterFS makes, changes and deletes, compared
//! with a model and judged by `btrfs check` and the kernel.

mod common;

use butterfs_format::{InodeId, InodeNumber, TreeId};
use butterfs_fs::dir::Target;
use butterfs_fs::names::{NewInode, Owner};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::subvolume::Cleaning;
use butterfs_fs::{Filesystem, FsError, Options};
use butterfs_store::Access;
use common::{KernelMount, Random, check, is_root, mkfs, open_with, run};
use std::collections::BTreeMap;
use std::path::Path;

const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;

type Files = BTreeMap<String, Vec<u8>>;

/// A subvolume as it must be; its entry is in the top level.
#[derive(Clone, Debug)]
struct Sub {
    tree: TreeId,
    access: Access,
    files: Files,
}

struct World {
    fs: Filesystem,
    random: Random,
    subs: BTreeMap<String, Sub>,
    next: usize,
}

fn root(tree: TreeId) -> InodeId {
    Filesystem::root_of(tree)
}

fn directory() -> NewInode<'static> {
    NewInode::new(S_IFDIR | 0o755, Owner::default())
}

impl World {
    fn pick(&mut self, writable: bool) -> Option<String> {
        let names: Vec<String> = self
            .subs
            .iter()
            .filter(|(_, sub)| !writable || sub.access == Access::ReadWrite)
            .map(|(name, _)| name.clone())
            .collect();
        let count = names.len() as u64;
        (count > 0).then(|| names[self.random.below(count) as usize].clone())
    }

    fn pick_file(&mut self, name: &str) -> Option<String> {
        let files = &self.subs[name].files;
        let count = files.len() as u64;
        (count > 0).then(|| {
            let at = self.random.below(count) as usize;
            files.keys().nth(at).unwrap().clone()
        })
    }

    fn file(&self, tree: TreeId, name: &str) -> InodeId {
        self.fs.lookup(root(tree), name.as_bytes()).unwrap().inode
    }

    fn create_subvolume(&mut self) {
        let name = format!("v{}", self.next);
        self.next += 1;
        let tree = self
            .fs
            .create_subvolume(self.fs.root(), name.as_bytes(), &directory())
            .unwrap();
        let sub = Sub {
            tree,
            access: Access::ReadWrite,
            files: Files::new(),
        };
        self.subs.insert(name, sub);
    }

    fn snapshot(&mut self) {
        let Some(source) = self.pick(false) else {
            return;
        };
        let access = [Access::ReadOnly, Access::ReadWrite][self.random.below(2) as usize];
        let name = format!("s{}", self.next);
        self.next += 1;
        let sub = self.subs[&source].clone();
        let tree = self
            .fs
            .snapshot(sub.tree, self.fs.root(), name.as_bytes(), access)
            .unwrap();
        self.subs.insert(
            name,
            Sub {
                tree,
                access,
                files: sub.files,
            },
        );
    }

    fn delete(&mut self) {
        let Some(name) = self.pick(false) else {
            return;
        };
        self.fs
            .delete_subvolume(self.fs.root(), name.as_bytes())
            .unwrap();
        self.subs.remove(&name);
    }

    fn write(&mut self) {
        let Some(sub) = self.pick(true) else {
            return;
        };
        let tree = self.subs[&sub].tree;
        let existing = self.pick_file(&sub).filter(|_| self.random.below(3) > 0);
        let name = match existing {
            Some(name) => name,
            None => {
                let name = format!("file {}", self.next);
                self.next += 1;
                let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                self.fs.create(root(tree), name.as_bytes(), &new).unwrap();
                self.subs
                    .get_mut(&sub)
                    .unwrap()
                    .files
                    .insert(name.clone(), Vec::new());
                name
            }
        };
        let inode = self.fs.inode(self.file(tree, &name)).unwrap();
        let length = [300, 5000, 40_000][self.random.below(3) as usize];
        let length = self.random.below(length) as usize + 1;
        let offset = self.random.below(30_000) as usize;
        let data = self.random.data(length);
        let mut at = 0;
        while at < data.len() {
            at += self
                .fs
                .write(&inode, (offset + at) as u64, &data[at..])
                .unwrap();
        }
        let content = self
            .subs
            .get_mut(&sub)
            .unwrap()
            .files
            .get_mut(&name)
            .unwrap();
        content.resize(content.len().max(offset + length), 0);
        content[offset..offset + length].copy_from_slice(&data);
    }

    fn remove(&mut self) {
        let Some(sub) = self.pick(true) else {
            return;
        };
        let Some(name) = self.pick_file(&sub) else {
            return;
        };
        let tree = self.subs[&sub].tree;
        self.fs.unlink(root(tree), name.as_bytes()).unwrap();
        self.subs.get_mut(&sub).unwrap().files.remove(&name);
    }

    /// A file of one subvolume becomes a file of another, sharing its data.
    fn reflink(&mut self) {
        let (Some(from), Some(to)) = (self.pick(false), self.pick(true)) else {
            return;
        };
        let Some(name) = self.pick_file(&from) else {
            return;
        };
        let data = self.subs[&from].files[&name].clone();
        let new_name = format!("link {}", self.next);
        self.next += 1;
        let tree = self.subs[&to].tree;
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let target = self
            .fs
            .create(root(tree), new_name.as_bytes(), &new)
            .unwrap();
        let source = self.file(self.subs[&from].tree, &name);
        let source = self.fs.inode(source).unwrap();
        let mut done = 0;
        while done < data.len() as u64 {
            let left = data.len() as u64 - done;
            done += self
                .fs
                .copy_range((&source, done), (&target, done), left)
                .unwrap();
        }
        self.subs.get_mut(&to).unwrap().files.insert(new_name, data);
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0 => self.create_subvolume(),
            1..=3 => self.snapshot(),
            4 | 5 if self.subs.len() > 3 => self.delete(),
            6..=9 => self.remove(),
            10..=13 => self.reflink(),
            14 => self.fs.sync_all().unwrap(),
            15..=17 => drop(self.fs.clean().unwrap()),
            _ => self.write(),
        }
    }

    fn assert_content(&self) {
        let mut buffer = vec![0; 1 << 20];
        for (name, sub) in &self.subs {
            for (file, data) in &sub.files {
                let inode = self.fs.inode(self.file(sub.tree, file)).unwrap();
                let mut found = Vec::new();
                loop {
                    let count = self
                        .fs
                        .read(&inode, found.len() as u64, &mut buffer)
                        .unwrap();
                    if count == 0 {
                        break;
                    }
                    found.extend_from_slice(&buffer[..count]);
                }
                assert!(found == *data, "{name}/{file} differs");
            }
        }
    }

    fn assert_in_kernel(&self, mount: &Path) {
        for (name, sub) in &self.subs {
            let mut names: Vec<String> = std::fs::read_dir(mount.join(name))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            let wanted: Vec<String> = sub.files.keys().cloned().collect();
            assert_eq!(names, wanted, "{name}");
            for (file, data) in &sub.files {
                let found = std::fs::read(mount.join(name).join(file)).unwrap();
                assert!(found == *data, "{name}/{file} differs in the kernel");
            }
        }
    }
}

fn judge(world: World, image: &Path, dir: &Path, options: &Options) -> World {
    world.fs.sync_all().unwrap();
    world.assert_content();
    let World {
        fs,
        random,
        subs,
        next,
    } = world;
    drop(fs);
    check(image);
    let world = World {
        fs: open_with(image, TreeId::FS, options),
        random,
        subs,
        next,
    };
    world.assert_content();
    if is_root() {
        let copy = dir.join("kernel.img");
        std::fs::copy(image, &copy).unwrap();
        let mount = KernelMount::new(&copy, dir, "rw");
        world.assert_in_kernel(mount.path());
        // The kernel frees what is left of deleted ones, and deletes half.
        let names: Vec<&String> = world.subs.keys().collect();
        for name in names.iter().step_by(2) {
            let path = mount.path().join(name);
            run("btrfs", &["subvolume", "delete", path.to_str().unwrap()]);
        }
        let path = mount.path().to_str().unwrap();
        run("btrfs", &["filesystem", "sync", path]);
        run("btrfs", &["subvolume", "sync", path]);
        drop(mount);
        check(&copy);
    }
    world
}

fn round(seed: u64, mkfs_options: &[&str], steps: usize) {
    println!("seed {seed} {mkfs_options:?}");
    let options = Options::default();
    let (dir, image) = mkfs(512 << 20, mkfs_options);
    let mut world = World {
        fs: open_with(&image, TreeId::FS, &options),
        random: Random(seed),
        subs: BTreeMap::new(),
        next: 0,
    };
    world.create_subvolume();
    for step in 1..=steps {
        world.step();
        if step % (steps / 3) == 0 {
            world = judge(world, &image, dir.path(), &options);
        }
    }
    // Everything is deleted and freed, and an empty volume is left.
    while !world.subs.is_empty() {
        world.delete();
    }
    world.fs.clean_all().unwrap();
    assert!(!world.fs.has_dead_subvolumes().unwrap());
    world.fs.sync_all().unwrap();
    let left = {
        let engine = world.fs.store().read();
        let data = engine
            .groups()
            .filter(|g| g.flags.describe().starts_with("DATA"));
        data.map(|group| group.used).sum::<u64>()
    };
    drop(world);
    check(&image);
    assert_eq!(left, 0, "all data are free");
}

#[test]
fn random_snapshots_and_deletions() {
    let seeds = butterfs_testkit::differential::seeds(0..3);
    for seed in seeds {
        round(seed, &["-n", "4096"], 1200);
        round(seed, &[], 400);
    }
}

/// A subvolume that is made, filled and deleted in one generation. Its nodes
/// have no space any more, and no commit writes them where others may lie.
#[test]
fn nodes_of_what_was_deleted_at_once_are_not_written() {
    let (dir, image) = mkfs(256 << 20, &["-n", "4096", "--mixed"]);
    let fs = open_with(&image, TreeId::FS, &Options::default());
    let tree = fs
        .create_subvolume(fs.root(), b"brief", &directory())
        .unwrap();
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    for number in 0..2000 {
        let name = format!("a rather long name of file number {number}");
        fs.create(root(tree), name.as_bytes(), &new).unwrap();
    }
    let before = fs.store().read().dirty_bytes();
    let generation = fs.store().read().generation();
    fs.delete_subvolume(fs.root(), b"brief").unwrap();
    fs.clean_all().unwrap();
    assert_eq!(fs.store().read().generation(), generation, "no commit came");
    let after = fs.store().read().dirty_bytes();
    assert!(after * 4 < before, "{before} bytes of nodes, {after} after");
    let inode = fs.create(fs.root(), b"lasts", &new).unwrap();
    let data = vec![7; 8 << 20];
    fs.write(&inode, 0, &data).unwrap();
    fs.sync_all().unwrap();
    let mut read = vec![0; data.len()];
    fs.read(&inode, 0, &mut read).unwrap();
    assert!(read == data);
    drop(inode);
    drop(fs);
    check(&image);
    drop(dir);
}

/// A crash between any two steps of a deletion: it continues, here and in the
/// kernel.
#[test]
fn deletions_go_on_where_they_ended() {
    let (dir, image) = mkfs(512 << 20, &["-n", "4096"]);
    let options = Options::default();
    let fs = open_with(&image, TreeId::FS, &options);
    let tree = fs
        .create_subvolume(fs.root(), b"origin", &directory())
        .unwrap();
    let mut random = Random(7);
    let write = |tree: TreeId, names: std::ops::Range<usize>, random: &mut Random| {
        for number in names {
            let name = format!("a rather long name of file number {number}");
            let new = NewInode::new(S_IFREG | 0o644, Owner::default());
            let inode = match fs.create(root(tree), name.as_bytes(), &new) {
                Ok(inode) => inode,
                Err(FsError::Exists) => {
                    let target: Target = fs.lookup(root(tree), name.as_bytes()).unwrap();
                    fs.inode(target.inode).unwrap()
                }
                Err(error) => panic!("{error}"),
            };
            let data = random.data(100 + 5000 * (number % 2));
            fs.write(&inode, 0, &data).unwrap();
        }
    };
    write(tree, 0..3000, &mut random);
    let kept = fs
        .snapshot(tree, fs.root(), b"kept", Access::ReadOnly)
        .unwrap();
    write(tree, 1000..1500, &mut random);
    let second = fs
        .snapshot(tree, fs.root(), b"second", Access::ReadWrite)
        .unwrap();
    write(second, 2000..2400, &mut random);
    fs.sync_all().unwrap();
    fs.delete_subvolume(fs.root(), b"origin").unwrap();
    fs.delete_subvolume(fs.root(), b"second").unwrap();
    let mut steps = 0;
    loop {
        fs.sync_all().unwrap();
        let crashed = dir.path().join("crashed.img");
        std::fs::copy(&image, &crashed).unwrap();
        if steps % 4 == 0 {
            check(&crashed);
            let again = open_with(&crashed, TreeId::FS, &options);
            again.clean_all().unwrap();
            again.sync_all().unwrap();
            drop(again);
            check(&crashed);
        } else if steps % 4 == 2 && is_root() {
            let mount = KernelMount::new(&crashed, dir.path(), "rw");
            let path = mount.path().to_str().unwrap();
            run("btrfs", &["subvolume", "sync", path]);
            drop(mount);
            check(&crashed);
        }
        steps += 1;
        if fs.clean().unwrap() == Cleaning::Idle {
            break;
        }
    }
    assert!(steps > 10, "{steps} steps");
    let _ = kept;
    let left = fs.lookup(fs.root(), b"kept").unwrap();
    assert_eq!(left.inode.number, InodeNumber::ROOT);
}

#[test]
fn rules_of_subvolumes() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_with(&image, TreeId::FS, &Options::default());
    let top = fs.root();
    let a = fs.create_subvolume(top, b"a", &directory()).unwrap();
    let file = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(root(a), b"file", &file).unwrap();
    let nested = fs
        .create_subvolume(root(a), b"nested", &directory())
        .unwrap();
    // Nested subvolumes keep their holder from being deleted.
    let refused = |result: Result<(), FsError>, errno: i32| {
        assert_eq!(result.unwrap_err().errno(), errno);
    };
    refused(fs.delete_subvolume(top, b"a").map(drop), 39);
    refused(fs.rmdir(top, b"a"), 39);
    refused(fs.unlink(top, b"a"), 21);
    refused(fs.delete_subvolume(root(a), b"file").map(drop), 22);
    // A snapshot shows an empty directory in place of a nested subvolume.
    let snapshot = fs.snapshot(a, top, b"snapshot", Access::ReadOnly).unwrap();
    let shown = fs.lookup(root(snapshot), b"nested").unwrap();
    assert!(butterfs_fs::dir::is_absent_subvolume(shown.inode));
    // Read-only means so.
    refused(fs.create(root(snapshot), b"x", &file).map(drop), 30);
    refused(fs.unlink(root(snapshot), b"file"), 30);
    let inode = fs
        .inode(fs.lookup(root(snapshot), b"file").unwrap().inode)
        .unwrap();
    refused(fs.write(&inode, 0, b"x").map(drop), 30);
    refused(fs.truncate(&inode, 10), 30);
    refused(
        fs.create_subvolume(root(snapshot), b"y", &directory())
            .map(drop),
        30,
    );
    // Only a subvolume itself can move to another subvolume.
    let place = |dir: InodeId, name: &'static [u8]| Place { dir, name };
    let rename = |from, to| fs.rename(from, to, RenameMode::Replace, OldName::Free);
    refused(rename(place(root(a), b"file"), place(top, b"file")), 18);
    refused(
        fs.link(fs.lookup(root(a), b"file").unwrap().inode, top, b"file"),
        18,
    );
    rename(place(root(a), b"nested"), place(top, b"moved")).unwrap();
    refused(rename(place(top, b"a"), place(root(a), b"itself")), 22);
    assert_eq!(fs.lookup(top, b"moved").unwrap().inode, root(nested));
    fs.rmdir(top, b"moved").unwrap();
    // A directory that is removed takes nothing, though somebody has it open.
    let gone = fs.create(top, b"gone", &directory()).unwrap();
    fs.pin(&gone);
    fs.rmdir(top, b"gone").unwrap();
    refused(
        fs.create_subvolume(gone.id, b"x", &directory()).map(drop),
        2,
    );
    let taken = fs.snapshot(a, gone.id, b"x", Access::ReadWrite);
    refused(taken.map(drop), 2);
    refused(fs.create(gone.id, b"x", &file).map(drop), 2);
    fs.unpin(&gone, 1).unwrap();
    // The default one stays.
    fs.set_default_subvolume(a).unwrap();
    refused(fs.delete_subvolume(top, b"a").map(drop), 1);
    fs.set_default_subvolume(TreeId::FS).unwrap();
    fs.set_subvolume_access(snapshot, Access::ReadWrite)
        .unwrap();
    fs.unlink(root(snapshot), b"file").unwrap();
    fs.rmdir(root(snapshot), b"nested").unwrap();
    fs.delete_subvolume(top, b"a").unwrap();
    fs.rmdir(top, b"snapshot").unwrap();
    fs.clean_all().unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

/// A nested subvolume is moved into a snapshot, beside the empty directory that
/// stands for it there: the two stay two things.
#[test]
fn a_subvolume_beside_the_directory_that_stood_for_it() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_with(&image, TreeId::FS, &Options::default());
    let top = fs.root();
    let a = fs.create_subvolume(top, b"a", &directory()).unwrap();
    let nested = fs.create_subvolume(root(a), b"in", &directory()).unwrap();
    let file = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(root(nested), b"file", &file).unwrap();
    let copy = fs.snapshot(a, top, b"copy", Access::ReadWrite).unwrap();
    let place = |dir: InodeId, name: &'static [u8]| Place { dir, name };
    let (from, to) = (place(root(a), b"in"), place(root(copy), b"moved"));
    fs.rename(from, to, RenameMode::Replace, OldName::Free)
        .unwrap();
    let shown = fs.lookup(root(copy), b"in").unwrap().inode;
    assert!(butterfs_fs::dir::is_absent_subvolume(shown));
    assert_eq!(fs.lookup(root(copy), b"moved").unwrap().inode, root(nested));
    let refused = fs.delete_subvolume(root(copy), b"in").unwrap_err();
    assert_eq!(refused.errno(), 22);
    fs.rmdir(root(copy), b"in").unwrap();
    assert!(fs.lookup(root(nested), b"file").is_ok());
    fs.delete_subvolume(root(copy), b"moved").unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

/// As in the kernel: a snapshot has the generation of its source's last change,
/// even if that is the running one.
#[test]
fn a_snapshot_knows_when_its_source_changed() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_with(&image, TreeId::FS, &Options::default());
    let item = |tree| fs.store().read().tree_state(tree).unwrap().item;
    let top = fs.root();
    let source = fs.create_subvolume(top, b"source", &directory()).unwrap();
    fs.sync_all().unwrap();
    let file = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(root(source), b"file", &file).unwrap();
    let changed = fs
        .snapshot(source, top, b"changed", Access::ReadOnly)
        .unwrap();
    let [first, snapshot] = [item(source), item(changed)];
    assert_eq!(snapshot.ctransid, snapshot.otransid);
    assert_eq!(snapshot.ctransid, first.ctransid);
    fs.sync_all().unwrap();
    let same = fs.snapshot(source, top, b"same", Access::ReadOnly).unwrap();
    let later = item(same);
    assert_eq!((later.ctransid, later.ctime), (first.ctransid, first.ctime));
    assert!(later.otransid > later.ctransid);
    // The top level, which mkfs made, and nobody changed before.
    fs.create(top, b"file", &file).unwrap();
    let of_top = fs
        .snapshot(TreeId::FS, top, b"top", Access::ReadOnly)
        .unwrap();
    assert_eq!(item(of_top).ctransid, item(of_top).otransid);
    drop(fs);
    check(&image);
}
