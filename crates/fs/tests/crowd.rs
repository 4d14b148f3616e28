//! Sixteen threads do all kinds of things beside commits, fsyncs and snapshots.
//! Each of them knows what its directory should hold. At the end the volume has
//! it, and is whole.

mod common;

use butterfs_device::{Access, FileDevice};
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::{Filesystem, FsError, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::{Random, differential};
use common::{check, check_ours, mkfs};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const THREADS: u64 = 16;
const STEPS: usize = 500;

/// What one thread has made: names and what their files hold.
type Files = BTreeMap<String, Vec<u8>>;

fn open(image: &Path, cache_bytes: usize) -> Filesystem {
    let options = OpenOptions {
        cache_bytes,
        left_to_commit: 8,
        ..OpenOptions::default()
    };
    let device = FileDevice::open(image, Access::ReadWrite).unwrap();
    let store = Store::open(Arc::new(device), &options).unwrap();
    butterfs_fs::log::replay(&store).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
}

fn new_directory(fs: &Filesystem, name: &str) -> InodeId {
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    fs.create(fs.root(), name.as_bytes(), &new).unwrap().id
}

fn names(fs: &Filesystem, dir: InodeId) -> Vec<String> {
    let mut names = Vec::new();
    let visit = &mut |entry: butterfs_fs::dir::ListedEntry| {
        names.push(String::from_utf8(entry.name).unwrap());
        true
    };
    fs.read_dir(dir, 0, visit).unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

fn verify(fs: &Filesystem, dir: InodeId, files: &Files) {
    let known: Vec<String> = files.keys().cloned().collect();
    assert_eq!(names(fs, dir), known);
    for (name, content) in files {
        let found = fs.lookup(dir, name.as_bytes()).unwrap();
        let inode = fs.inode(found.inode).unwrap();
        let mut bytes = vec![0; content.len() + 1];
        let read = fs.read(&inode, 0, &mut bytes).unwrap();
        assert_eq!(&bytes[..read], &content[..], "{name}");
    }
}

/// A random step of a thread in its directory.
fn step(fs: &Filesystem, dir: InodeId, files: &mut Files, random: &mut Random, count: usize) {
    let picked = files
        .keys()
        .nth(random.below(files.len().max(1) as u64) as usize);
    let picked = picked.cloned();
    let inode_of = |name: &str| {
        let found = fs.lookup(dir, name.as_bytes()).unwrap();
        fs.inode(found.inode).unwrap()
    };
    match (random.below(12), picked) {
        (0..=3, _) | (_, None) => {
            let name = format!("f{count}");
            let new = NewInode::new(S_IFREG | 0o644, Owner::default());
            let inode = fs.create(dir, name.as_bytes(), &new).unwrap();
            let size = [0, 100, 4096, 50_000][random.below(4) as usize];
            let content = vec![count as u8 | 1; size];
            if !content.is_empty() {
                assert_eq!(fs.write(&inode, 0, &content).unwrap(), size);
            }
            files.insert(name, content);
        }
        (4, Some(name)) => {
            fs.unlink(dir, name.as_bytes()).unwrap();
            files.remove(&name);
        }
        (5, Some(name)) => {
            let to = format!("r{count}");
            let place = |name| Place { dir, name };
            let (from, to_place) = (place(name.as_bytes()), place(to.as_bytes()));
            let (mode, old) = (RenameMode::Replace, OldName::Free);
            fs.rename(from, to_place, mode, old).unwrap();
            let content = files.remove(&name).unwrap();
            files.insert(to, content);
        }
        (6, Some(name)) => {
            let to = format!("l{count}");
            fs.link(inode_of(&name).id, dir, to.as_bytes()).unwrap();
            // Nothing writes to the file while it has two names: both show the
            // same content.
            let content = files[&name].clone();
            fs.unlink(dir, name.as_bytes()).unwrap();
            files.remove(&name);
            files.insert(to, content);
        }
        (7, Some(name)) => {
            let inode = inode_of(&name);
            let content = files.get_mut(&name).unwrap();
            let more = vec![random.below(256) as u8; 3000];
            let at = content.len() as u64;
            assert_eq!(fs.write(&inode, at, &more).unwrap(), more.len());
            content.extend_from_slice(&more);
        }
        (8 | 9, Some(name)) => fs.fsync(&inode_of(&name)).unwrap(),
        (10, Some(name)) => {
            let inode = inode_of(&name);
            let mut bytes = vec![0; files[&name].len() + 1];
            let read = fs.read(&inode, 0, &mut bytes).unwrap();
            assert_eq!(&bytes[..read], &files[&name][..], "{name}");
        }
        _ => {
            let known: Vec<String> = files.keys().cloned().collect();
            assert_eq!(names(fs, dir), known);
        }
    }
}

/// Makes and deletes snapshots until the others are done.
fn snapshots(fs: &Filesystem, done: &AtomicBool) {
    let mut count = 0;
    while !done.load(Ordering::Relaxed) {
        let name = format!("snapshot{count}");
        let access = butterfs_store::Access::ReadOnly;
        fs.snapshot(TreeId::FS, fs.root(), name.as_bytes(), access)
            .unwrap();
        if count % 2 == 1 {
            let old = format!("snapshot{}", count - 1);
            match fs.delete_subvolume(fs.root(), old.as_bytes()) {
                Ok(_) | Err(FsError::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
            let _ = fs.clean().unwrap();
        }
        count += 1;
        thread::sleep(Duration::from_millis(20));
    }
    assert!(count > 0);
}

fn crowd(seed: u64, cache_bytes: usize) {
    let (_scratch, image) = mkfs(2 << 30, &[]);
    let fs = open(&image, cache_bytes);
    let done = AtomicBool::new(false);
    let all: Vec<(InodeId, Files)> = thread::scope(|scope| {
        let (fs, done) = (&fs, &done);
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let dir = new_directory(fs, &format!("d{number}"));
                scope.spawn(move || {
                    let mut random = Random::new(seed * 100 + number);
                    let mut files = Files::new();
                    for count in 0..STEPS {
                        step(fs, dir, &mut files, &mut random, count);
                    }
                    (dir, files)
                })
            })
            .collect();
        let committing = scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                fs.store().commit().unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let snapshotting = scope.spawn(move || snapshots(fs, done));
        let all: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        done.store(true, Ordering::Relaxed);
        committing.join().unwrap();
        snapshotting.join().unwrap();
        all.into_iter().map(Result::unwrap).collect()
    });
    for (dir, files) in &all {
        verify(&fs, *dir, files);
    }
    fs.sync_all().unwrap();
    drop(fs);
    let fs = open(&image, cache_bytes);
    for (dir, files) in &all {
        verify(&fs, *dir, files);
    }
    fs.clean_all().unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
    check_ours(&image);
}

/// More rounds: BUTTERFS_SEEDS=first..last.
#[test]
fn sixteen_threads_keep_what_they_made() {
    for seed in differential::seeds(1..2) {
        crowd(seed, 64 << 20);
    }
}

#[test]
fn sixteen_threads_that_have_no_memory_for_nodes() {
    for seed in differential::seeds(2..3) {
        crowd(seed, 0);
    }
}
