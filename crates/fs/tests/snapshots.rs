//! Volumes that the kernel filled, with snapshots that share nodes and data,
//! changed by ButterFS: references must stay right. Also snapshots beside
//! threads that change their source: what the snapshots have stays as it was.

mod common;
#[path = "snapshots/storm.rs"]
mod storm;

use butterfs_device::{Access, BlockDevice, FileDevice};
use butterfs_format::item::dir::FileType;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use common::paused::PausedDevice;
use common::{KernelMount, Random, check, mkfs, open_subvolume, run};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const SNAPSHOTS: usize = 100;

/// The kernel's part: a tree, and a snapshot after each round of changes.
fn fill(mount: &Path, random: &mut Random) {
    let base = mount.join("base");
    run("btrfs", &["subvolume", "create", base.to_str().unwrap()]);
    for dir in 0..10 {
        fs::create_dir(base.join(format!("d{dir}"))).unwrap();
        for file in 0..60 {
            let data = random_data(random);
            fs::write(base.join(format!("d{dir}/f{file}")), data).unwrap();
        }
    }
    for snapshot in 0..SNAPSHOTS {
        for _ in 0..8 {
            let path = base.join(format!("d{}/f{}", random.below(10), random.below(60)));
            fs::write(path, random_data(random)).unwrap();
        }
        let target = mount.join(format!("s{snapshot}"));
        let paths = [base.to_str().unwrap(), target.to_str().unwrap()];
        run("btrfs", &["subvolume", "snapshot", paths[0], paths[1]]);
    }
}

fn random_size(random: &mut Random) -> usize {
    (match random.below(3) {
        0 => random.below(2000),
        1 => random.below(20_000),
        _ => random.below(60_000),
    }) as usize
}

/// Content of all files below `root`, by path.
fn contents(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                all.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    all
}

fn read_all(fs: &Filesystem, id: InodeId) -> Vec<u8> {
    let inode = fs.inode(id).unwrap();
    let size = fs.attributes(id).unwrap().size as usize;
    let mut data = vec![0; size];
    assert_eq!(fs.read(&inode, 0, &mut data).unwrap(), size);
    data
}

/// ButterFS' part: changes in one subvolume, mirrored in a map.
fn change(fs: &Filesystem, files: &mut BTreeMap<String, Vec<u8>>, random: &mut Random) {
    let root = fs.root();
    let new_dir = format!("new{}", random.below(1_000_000));
    let dir = fs
        .create(
            root,
            new_dir.as_bytes(),
            &NewInode::new(S_IFDIR | 0o755, Owner::default()),
        )
        .unwrap();
    for round in 0..60 {
        let keys: Vec<String> = files.keys().cloned().collect();
        let path = keys[random.below(keys.len() as u64) as usize].clone();
        let (dir_name, name) = path.split_once('/').unwrap();
        let parent = fs.lookup(root, dir_name.as_bytes()).unwrap().inode;
        let id = fs.lookup(parent, name.as_bytes()).unwrap().inode;
        let inode = fs.inode(id).unwrap();
        match random.below(5) {
            0 => {
                fs.unlink(parent, name.as_bytes()).unwrap();
                files.remove(&path);
            }
            1 => {
                let data = random_data(random);
                let at = random.below(30_000) as usize;
                fs.write(&inode, at as u64, &data).unwrap();
                let model = files.get_mut(&path).unwrap();
                if !data.is_empty() {
                    if model.len() < at + data.len() {
                        model.resize(at + data.len(), 0);
                    }
                    model[at..at + data.len()].copy_from_slice(&data);
                }
            }
            2 => {
                let size = random.below(50_000) as usize;
                fs.truncate(&inode, size as u64).unwrap();
                files.get_mut(&path).unwrap().resize(size, 0);
            }
            3 => {
                let moved = format!("{new_dir}/r{round}");
                let to = moved.split_once('/').unwrap().1;
                let from = Place {
                    dir: parent,
                    name: name.as_bytes(),
                };
                let to = Place {
                    dir: dir.id,
                    name: to.as_bytes(),
                };
                fs.rename(from, to, RenameMode::Replace, OldName::Free)
                    .unwrap();
                let data = files.remove(&path).unwrap();
                files.insert(moved, data);
            }
            _ => {
                let name = format!("c{round}");
                let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                let copy = fs.create(dir.id, name.as_bytes(), &new).unwrap();
                let size = files[&path].len() as u64;
                fs.copy_range((&inode, 0), (&copy, 0), size).unwrap();
                let data = files[&path].clone();
                files.insert(format!("{new_dir}/{name}"), data);
            }
        }
    }
}

fn subvolume_ids(mount: &Path) -> BTreeMap<String, TreeId> {
    let text = run("btrfs", &["subvolume", "list", mount.to_str().unwrap()]);
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[8].to_owned(), TreeId(words[1].parse().unwrap()))
        })
        .collect()
}

fn exercise(seed: u64, options: &[&str], rounds: usize) {
    let mut random = Random(seed);
    let (dir, image) = mkfs(1 << 30, options);
    let mount = KernelMount::new(&image, dir.path(), "rw");
    fill(mount.path(), &mut random);
    let ids = subvolume_ids(mount.path());
    let mut models: BTreeMap<String, _> = ids
        .keys()
        .map(|name| (name.clone(), contents(&mount.path().join(name))))
        .collect();
    drop(mount);
    check(&image);
    for round in 0..rounds {
        for name in ["base", "s0", "s50", "s99"] {
            let fs = open_subvolume(&image, ids[name]);
            for (path, data) in &models[name] {
                let (dir, file) = path.split_once('/').unwrap();
                let dir = fs.lookup(fs.root(), dir.as_bytes()).unwrap().inode;
                let id = fs.lookup(dir, file.as_bytes()).unwrap().inode;
                assert!(
                    read_all(&fs, id) == *data,
                    "{name}/{path} reads differently"
                );
            }
            change(&fs, models.get_mut(name).unwrap(), &mut random);
            fs.sync_all().unwrap();
        }
        check(&image);
        let mount = KernelMount::new(&image, dir.path(), "rw");
        for (name, model) in &models {
            let now = contents(&mount.path().join(name));
            assert!(
                now == *model,
                "seed {seed} round {round}: {name} differs in the kernel"
            );
        }
        // The kernel deletes one, snapshots another, and balances metadata.
        let victim = format!("s{}", 10 + round);
        let path = mount.path().join(&victim);
        run(
            "btrfs",
            &["subvolume", "delete", "-C", path.to_str().unwrap()],
        );
        models.remove(&victim);
        let root = mount.path().to_str().unwrap();
        run("btrfs", &["subvolume", "sync", root]);
        let more = mount.path().join(format!("base-again{round}"));
        let base = mount.path().join("base");
        run(
            "btrfs",
            &[
                "subvolume",
                "snapshot",
                base.to_str().unwrap(),
                more.to_str().unwrap(),
            ],
        );
        models.insert(format!("base-again{round}"), models["base"].clone());
        if round == 3 {
            run("btrfs", &["balance", "start", "--full-balance", root]);
        }
        drop(mount);
        check(&image);
    }
}

#[test]
fn shared_nodes_stay_right() {
    if !common::is_root() {
        return;
    }
    // A longer run, with a balance by the kernel: BUTTERFS_ROUNDS=6.
    let rounds = std::env::var("BUTTERFS_ROUNDS").map_or(1, |text| text.parse().unwrap());
    exercise(1, &[], rounds);
    exercise(2, &["-n", "4096"], rounds);
}

fn random_data(random: &mut Random) -> Vec<u8> {
    let size = random_size(random);
    random.data(size)
}

/// Opens a volume through a device that pauses.
fn open_paused(image: &Path) -> (Arc<PausedDevice>, Filesystem) {
    let file = FileDevice::open(image, Access::ReadWrite).unwrap();
    let device = Arc::new(PausedDevice::new(Arc::new(file)));
    let under = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let store = Store::open(under, &OpenOptions::default()).unwrap();
    let fs = Filesystem::new(Arc::new(store), TreeId::FS, Options::default());
    (device, fs)
}

fn create(fs: &Filesystem, name: &str, flags: InodeFlags) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
    fs.set_flags(&inode, flags).unwrap();
    inode
}

/// Content of all files of a subvolume, by path.
fn files_of(fs: &Filesystem, tree: TreeId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![(Vec::new(), Filesystem::root_of(tree))];
    while let Some((path, dir)) = waiting.pop() {
        let mut found = Vec::new();
        fs.read_dir(dir, 0, &mut |entry| {
            let kind = entry.target.kind;
            let named = entry.name != b"." && entry.name != b"..";
            let is_here = named && !entry.target.subvolume;
            if is_here && [FileType::Regular, FileType::Directory].contains(&kind) {
                found.push((entry.name.clone(), kind, entry.target.inode));
            }
            true
        })
        .unwrap();
        for (name, kind, id) in found {
            let path = [&path[..], &name].concat();
            if kind == FileType::Regular {
                files.insert(path, read_all(fs, id));
            } else {
                waiting.push(([&path[..], b"/"].concat(), id));
            }
        }
    }
    files
}

#[test]
fn a_write_in_place_does_not_reach_a_snapshot() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let (device, fs) = open_paused(&image);
    let file = create(&fs, "file", InodeFlags::NODATACOW);
    let other = create(&fs, "other", InodeFlags::default());
    fs.write(&file, 0, &[b'a'; 65_536]).unwrap();
    fs.sync_all().unwrap();
    fs.write(&other, 0, &[1; 65_536]).unwrap();
    let (names, named) = mpsc::channel();
    thread::scope(|scope| {
        let (fs, device, file, said) = (&fs, &device, &file, names.clone());
        let snapshot = scope.spawn(move || {
            said.send(device.hold_me()).unwrap();
            fs.snapshot(TreeId::FS, fs.root(), b"snap", Access::ReadOnly)
        });
        // The snapshot has decided what it flushes. What is written from now on
        // comes later.
        let maker = named.recv().unwrap();
        device.wait_until_stopped(&maker);
        fs.write(file, 0, &[b'b'; 65_536]).unwrap();
        let writer = scope.spawn(move || {
            names.send(device.hold_me()).unwrap();
            fs.flush_inode(file)
        });
        // The flush has decided to overwrite the data in place.
        let writes = named.recv().unwrap();
        device.wait_until_stopped(&writes);
        device.release(&maker);
        let started = Instant::now();
        while !snapshot.is_finished() && started.elapsed() < Duration::from_millis(300) {
            thread::sleep(Duration::from_millis(5));
        }
        let first = snapshot.is_finished().then(|| {
            let tree = fs.lookup(fs.root(), b"snap").unwrap().inode.tree;
            files_of(fs, tree)
        });
        device.release(&writes);
        writer.join().unwrap().unwrap();
        let tree = snapshot.join().unwrap().unwrap();
        let last = files_of(fs, tree);
        if let Some(first) = first {
            assert!(first == last, "a read-only snapshot changed");
        }
        assert_eq!(read_all(fs, file.id), [b'b'; 65_536]);
    });
    drop((file, other, fs, device));
    check(&image);
}
