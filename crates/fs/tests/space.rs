//! Free space in every form in which volumes keep it: extents, bitmaps, the old
//! space cache, none. Chunks that are made and removed.

mod common;

use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::{Filesystem, FsError, Inode};
use butterfs_store::{SpaceKind, StoreError};
use common::{KernelMount, check, is_root, mkfs, open_subvolume, run};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn write(fs: &Filesystem, name: &str, data: &[u8]) {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
    assert_eq!(fs.write(&inode, 0, data).unwrap(), data.len());
}

fn pattern(file: usize) -> Vec<u8> {
    (0..5000).map(|at| (at * 7 + file * 13) as u8).collect()
}

/// Every second of `count` small files, so that free space lies in pieces.
fn fragment(mount: &Path, count: usize) {
    for file in 0..count {
        fs::write(mount.join(format!("f{file}")), pattern(file)).unwrap();
    }
    run("sync", &["-f", mount.to_str().unwrap()]);
    for file in (0..count).step_by(2) {
        fs::remove_file(mount.join(format!("f{file}"))).unwrap();
    }
}

fn read_all(mount: &Path, expected: &[(String, Vec<u8>)]) {
    for (name, data) in expected {
        assert!(fs::read(mount.join(name)).unwrap() == *data, "{name}");
    }
}

/// Fills the holes and makes new ones. Returns what must be there.
fn change(fs: &Filesystem, count: usize) -> Vec<(String, Vec<u8>)> {
    for file in (1..count).step_by(4) {
        fs.unlink(fs.root(), format!("f{file}").as_bytes()).unwrap();
    }
    fs.sync_all().unwrap();
    let mut expected = Vec::new();
    for file in 0..count / 2 {
        let name = format!("n{file}");
        write(fs, &name, &pattern(file + 1));
        if file % 16 == 0 {
            fs.sync_all().unwrap();
        }
        expected.push((name, pattern(file + 1)));
    }
    for file in (3..count).step_by(4) {
        expected.push((format!("f{file}"), pattern(file)));
    }
    fs.sync_all().unwrap();
    expected
}

#[test]
fn bitmaps_of_the_kernel_are_kept() {
    if !is_root() {
        return;
    }
    const FILES: usize = 8000;
    let (dir, image) = mkfs(512 << 20, &["-R", "free-space-tree"]);
    {
        let mount = KernelMount::new(&image, dir.path(), "max_inline=0");
        fragment(mount.path(), FILES);
    }
    let tree = |image: &Path| {
        run(
            "btrfs",
            &[
                "inspect-internal",
                "dump-tree",
                "-t",
                "10",
                image.to_str().unwrap(),
            ],
        )
    };
    assert!(
        tree(&image).contains("FREE_SPACE_BITMAP"),
        "the kernel made no bitmaps"
    );
    let fs = open_subvolume(&image, TreeId::FS);
    let expected = change(&fs, FILES);
    drop(fs);
    assert!(tree(&image).contains("FREE_SPACE_BITMAP"));
    check(&image);
    {
        let mount = KernelMount::new(&image, dir.path(), "rw");
        read_all(mount.path(), &expected);
        fs::write(mount.path().join("more"), vec![1; 20 << 20]).unwrap();
        run(
            "btrfs",
            &["scrub", "start", "-B", mount.path().to_str().unwrap()],
        );
    }
    check(&image);
}

#[test]
fn an_old_space_cache_is_put_out_of_use() {
    if !is_root() {
        return;
    }
    const FILES: usize = 1000;
    let (dir, image) = mkfs(512 << 20, &["-R", "^free-space-tree"]);
    {
        let mount = KernelMount::new(&image, dir.path(), "space_cache=v1,max_inline=0");
        fragment(mount.path(), FILES);
    }
    let fs = open_subvolume(&image, TreeId::FS);
    let expected = change(&fs, FILES);
    drop(fs);
    check(&image);
    {
        // It must not believe the cache that it wrote before.
        let mount = KernelMount::new(&image, dir.path(), "space_cache=v1");
        read_all(mount.path(), &expected);
        fs::write(mount.path().join("more"), vec![1; 100 << 20]).unwrap();
        run("sync", &["-f", mount.path().to_str().unwrap()]);
        read_all(mount.path(), &expected);
        run(
            "btrfs",
            &["scrub", "start", "-B", mount.path().to_str().unwrap()],
        );
    }
    check(&image);
    // And again, with a cache that the kernel wrote after us.
    let fs = open_subvolume(&image, TreeId::FS);
    fs.unlink(fs.root(), b"more").unwrap();
    fs.sync_all().unwrap();
    write(&fs, "last", &vec![3; 40 << 20]);
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
    let mount = KernelMount::new(&image, dir.path(), "space_cache=v1");
    read_all(mount.path(), &expected);
    assert!(fs::read(mount.path().join("last")).unwrap() == vec![3; 40 << 20]);
}

#[test]
fn chunks_come_with_data_and_go_without() {
    let (_dir, image) = mkfs(4 << 30, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let total = |fs: &Filesystem| fs.store().read().groups().map(|g| g.length).sum::<u64>();
    let empty = total(&fs);
    for file in 0..40 {
        write(&fs, &format!("f{file}"), &vec![file as u8 ^ 0x5a; 32 << 20]);
    }
    fs.sync_all().unwrap();
    let full = total(&fs);
    assert!(full > empty + (1 << 30), "{empty} {full}");
    for file in 0..40 {
        fs.unlink(fs.root(), format!("f{file}").as_bytes()).unwrap();
    }
    for round in 0..3 {
        fs.sync_all().unwrap();
        write(&fs, &format!("tick{round}"), b"x");
    }
    fs.sync_all().unwrap();
    let after = total(&fs);
    assert!(after < full / 2, "empty chunks stayed: {after} of {full}");
    drop(fs);
    check(&image);
    let fs = open_subvolume(&image, TreeId::FS);
    write(&fs, "again", &vec![9; 200 << 20]);
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

fn file(fs: &Filesystem, dir: InodeId, name: &str) -> Result<Arc<Inode>, FsError> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(dir, name.as_bytes(), &new)
}

#[test]
fn what_is_free_can_be_preallocated() {
    const MIB: u64 = 1 << 20;
    for (volume, wanted) in [(1 << 10, 750), (1 << 20, 200 << 10)] {
        let (_dir, image) = mkfs(volume * MIB, &[]);
        let fs = open_subvolume(&image, TreeId::FS);
        let inode = file(&fs, fs.root(), "file").unwrap();
        let all = FallocateMode::Allocate;
        fs.fallocate(&inode, all, 0, wanted * MIB).unwrap();
        // A request for more than is free gets nothing.
        let free = fs.store().read().available(SpaceKind::Data);
        let more = file(&fs, fs.root(), "more").unwrap();
        let refused = fs.fallocate(&more, all, 0, free + MIB);
        assert!(is_full(&refused), "{refused:?}");
        write(&fs, "after", &pattern(1));
        fs.sync_all().unwrap();
        drop(fs);
        check(&image);
    }
}

fn is_full<T>(result: &Result<T, FsError>) -> bool {
    matches!(result, Err(FsError::Store(StoreError::NoSpace)))
}

#[test]
fn a_mixed_volume_keeps_little_for_deletions() {
    let (_dir, image) = mkfs(64 << 20, &["--mixed"]);
    let fs = open_subvolume(&image, TreeId::FS);
    let block: Vec<u8> = (0..1_u32 << 20)
        .map(|at| (at.wrapping_mul(at) >> 7) as u8)
        .collect();
    let mut written = 0;
    loop {
        let inode = file(&fs, fs.root(), &format!("f{written}")).unwrap();
        match fs.write(&inode, 0, &block) {
            Ok(length) if length == block.len() => written += 1,
            Ok(_) | Err(FsError::Store(StoreError::NoSpace)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    fs.sync_all().unwrap();
    let left = fs.store().read().available(SpaceKind::Data);
    assert!(left < 6 << 20, "{left} bytes are left");
    for name in ["one", "two"] {
        file(&fs, fs.root(), name).unwrap();
    }
    // Names until no more fit; then all can be deleted.
    let mut names = 0;
    while file(&fs, fs.root(), &format!("{:0200}", names)).is_ok() {
        names += 1;
    }
    for number in 0..names {
        let name = format!("{number:0200}");
        fs.unlink(fs.root(), name.as_bytes()).unwrap();
    }
    for number in 0..written {
        fs.unlink(fs.root(), format!("f{number}").as_bytes())
            .unwrap();
    }
    fs.sync_all().unwrap();
    write(&fs, "again", &vec![3; 40 << 20]);
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

/// Only a thread that needs their space frees the deleted subvolumes.
#[test]
fn writers_wait_for_the_space_of_deleted_subvolumes() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let fill = |names: usize| {
        let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
        let tree = fs.create_subvolume(fs.root(), b"sub", &new).unwrap();
        let root = Filesystem::root_of(tree);
        for number in 0..names {
            file(&fs, root, &format!("f{number}")).unwrap();
        }
        let large = file(&fs, root, "large").unwrap();
        let free = fs.store().read().available(SpaceKind::Data) - (16 << 20);
        fs.fallocate(&large, FallocateMode::Allocate, 0, free)
            .unwrap();
        fs.sync_all().unwrap();
        fs.delete_subvolume(fs.root(), b"sub").unwrap();
        fs.sync_all().unwrap();
        free
    };
    // A thread that preallocates frees them.
    let free = fill(3000);
    let inode = file(&fs, fs.root(), "preallocated").unwrap();
    fs.fallocate(&inode, FallocateMode::Allocate, 0, free)
        .unwrap();
    fs.unlink(fs.root(), b"preallocated").unwrap();
    fs.sync_all().unwrap();
    // A thread that writes frees them.
    let free = fill(10);
    write(&fs, "written", &vec![5; free as usize]);
    fs.sync_all().unwrap();
    assert!(!fs.has_dead_subvolumes().unwrap());
    // Nothing is left to wait for.
    let refused = fs.fallocate(
        &inode_of(&fs, "written"),
        FallocateMode::Allocate,
        0,
        1 << 30,
    );
    assert!(is_full(&refused), "{refused:?}");
    drop(fs);
    check(&image);
}

fn inode_of(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    fs.inode(found.inode).unwrap()
}
