//! Files are made beside readers and beside each other.

mod common;

use butterfs_format::{InodeId, TreeId};
use butterfs_fs::Filesystem;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFLNK, S_IFREG};
use common::{check, check_ours, mkfs, open_subvolume};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

fn make(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    let new = match mode {
        S_IFLNK => NewInode::symlink(b"somewhere", Owner::default()),
        _ => NewInode::new(mode | 0o644, Owner::default()),
    };
    fs.create(dir, name.as_bytes(), &new).unwrap().id
}

fn names(fs: &Filesystem, dir: InodeId) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let visit = &mut |entry: butterfs_fs::dir::ListedEntry| {
        assert!(names.insert(String::from_utf8(entry.name).unwrap()));
        true
    };
    fs.read_dir(dir, 2, visit).unwrap();
    names
}

#[test]
fn files_are_made_while_somebody_reads_the_engine() {
    let (_folder, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let dir = make(&fs, fs.root(), "dir", S_IFDIR);
    make(&fs, dir, "first", S_IFREG);
    thread::scope(|scope| {
        // A change that takes the engine for itself would wait for this.
        let reading = fs.store().read();
        let (done, waits) = channel();
        scope.spawn(|| {
            let done = done;
            for (name, mode) in [("file", S_IFREG), ("link", S_IFLNK), ("below", S_IFDIR)] {
                make(&fs, dir, name, mode);
            }
            done.send(()).unwrap();
        });
        let made = waits.recv_timeout(Duration::from_secs(20));
        drop(reading);
        made.expect("the files are made beside a reader");
    });
    let all = ["below", "file", "first", "link"].map(str::to_owned);
    assert_eq!(names(&fs, dir), BTreeSet::from(all));
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
    check_ours(&image);
}

/// Directories that were made one after the other lie side by side in the tree,
/// so threads that fill them meet in leaves.
#[test]
fn neighbours_are_filled_beside_commits_and_listings() {
    const THREADS: usize = 4;
    const FILES: usize = 3000;
    let (_folder, image) = mkfs(512 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let dirs: Vec<InodeId> = (0..THREADS)
        .map(|number| make(&fs, fs.root(), &format!("dir{number}"), S_IFDIR))
        .collect();
    let (start, ended) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
    let inodes: Vec<BTreeSet<InodeId>> =
        thread::scope(|scope| {
            let makers: Vec<_> = dirs
                .iter()
                .map(|dir| {
                    let (fs, start) = (&fs, &start);
                    scope.spawn(move || {
                        start.wait();
                        let one = |count| {
                            let id = make(fs, *dir, &format!("f{count}"), S_IFREG);
                            let found = fs.lookup(*dir, format!("f{count}").as_bytes()).unwrap();
                            assert_eq!(found.inode, id);
                            id
                        };
                        (0..FILES).map(one).collect()
                    })
                })
                .collect();
            scope.spawn(|| {
                start.wait();
                while !ended.load(Ordering::Relaxed) {
                    fs.sync_all().unwrap();
                    for dir in &dirs {
                        // Names come in the order in which they were made.
                        let seen = names(&fs, *dir).len();
                        assert!((0..seen).all(|count| {
                            fs.lookup(*dir, format!("f{count}").as_bytes()).is_ok()
                        }));
                    }
                }
            });
            let made = makers.into_iter().map(|maker| maker.join().unwrap());
            let made = made.collect();
            ended.store(true, Ordering::Relaxed);
            made
        });
    let all: BTreeSet<InodeId> = inodes.iter().flatten().copied().collect();
    assert_eq!(all.len(), THREADS * FILES, "no number was given twice");
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
    check_ours(&image);
    let fs = open_subvolume(&image, TreeId::FS);
    for dir in &dirs {
        assert_eq!(names(&fs, *dir).len(), FILES);
    }
}

#[test]
fn a_thread_counts_inodes_without_gaps() {
    let (_folder, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let first = make(&fs, fs.root(), "0", S_IFREG).number.get();
    for count in 1..500 {
        let id = make(&fs, fs.root(), &count.to_string(), S_IFREG);
        assert_eq!(id.number.get(), first + count);
        assert!(
            fs.create(fs.root(), b"0", &NewInode::new(S_IFREG, Owner::default()))
                .is_err()
        );
    }
}
