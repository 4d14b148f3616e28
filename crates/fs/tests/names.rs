//! Names, links, attributes and renames on volumes of each kind, judged by
//! btrfs check and the kernel, and changed by the kernel in between.

mod common;

use butterfs_format::{InodeId, TreeId};
use butterfs_fs::Filesystem;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use common::{KernelMount, check, mkfs, open_subvolume, run};

const DIRS: usize = 12;
const FILES: usize = 300;

fn list(fs: &Filesystem, dir: InodeId) -> Vec<butterfs_fs::dir::ListedEntry> {
    let mut entries = Vec::new();
    fs.read_dir(dir, 2, &mut |entry| {
        entries.push(entry);
        true
    })
    .unwrap();
    entries
}

fn count(fs: &Filesystem, dir: InodeId) -> usize {
    let below = |id: InodeId| {
        if fs.attributes(id).unwrap().is_directory() {
            count(fs, id)
        } else {
            0
        }
    };
    list(fs, dir)
        .iter()
        .map(|entry| 1 + below(entry.target.inode))
        .sum()
}

fn remove_all(fs: &Filesystem, dir: InodeId) {
    for entry in list(fs, dir) {
        if fs.attributes(entry.target.inode).unwrap().is_directory() {
            remove_all(fs, entry.target.inode);
            fs.rmdir(dir, &entry.name).unwrap();
        } else {
            fs.unlink(dir, &entry.name).unwrap();
        }
    }
}

fn fill(fs: &Filesystem) -> Vec<InodeId> {
    let owner = Owner::default();
    let mut dirs = Vec::new();
    for dir in 0..DIRS {
        let new = NewInode::new(S_IFDIR | 0o755, owner);
        let made = fs.create(fs.root(), format!("dir{dir}").as_bytes(), &new);
        let id = made.unwrap().id;
        for file in 0..FILES {
            let new = NewInode::new(S_IFREG | 0o644, owner);
            fs.create(id, format!("file-{file:05}").as_bytes(), &new)
                .unwrap();
        }
        dirs.push(id);
    }
    dirs
}

fn change(fs: &Filesystem, dirs: &[InodeId], at: usize) {
    let dir = dirs[at];
    for file in 0..FILES {
        let name = format!("file-{file:05}");
        let name = name.as_bytes();
        let other = |step: usize| dirs[(at + step) % DIRS];
        match (file + at) % 7 {
            0 => fs.unlink(dir, name).unwrap(),
            1 => {
                let id = fs.lookup(dir, name).unwrap().inode;
                let link = format!("link{at}-{file}");
                fs.link(id, other(3), link.as_bytes()).unwrap();
            }
            2 => {
                let moved = format!("moved{at}-{file}");
                let to = Place {
                    dir: other(5),
                    name: moved.as_bytes(),
                };
                let from = Place { dir, name };
                fs.rename(from, to, RenameMode::Replace, OldName::Free)
                    .unwrap();
            }
            3 => {
                let inode = fs.inode(fs.lookup(dir, name).unwrap().inode).unwrap();
                fs.set_xattr(&inode, b"user.x", &vec![1; file], SetMode::Any)
                    .unwrap();
            }
            4 => {
                let new = NewInode::symlink(b"../target", Owner::default());
                fs.create(dir, format!("sym{file}").as_bytes(), &new)
                    .unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn names_of_all_kinds_on_volumes_of_all_kinds() {
    if !common::is_root() {
        return;
    }
    let kinds: [&[&str]; 5] = [
        &["-n", "4096"],
        &[],
        &["-M"],
        &["-R", "^free-space-tree"],
        &["-O", "^no-holes,^skinny-metadata"],
    ];
    for options in kinds {
        let (dir, image) = mkfs(300 << 20, options);
        let fs = open_subvolume(&image, TreeId::FS);
        let dirs = fill(&fs);
        for at in 0..DIRS {
            change(&fs, &dirs, at);
            if at == DIRS / 2 {
                fs.store().commit().unwrap();
                check(&image);
            }
        }
        fs.store().commit().unwrap();
        let ours = count(&fs, fs.root());
        drop(fs);
        check(&image);
        let mount = KernelMount::new(&image, dir.path(), "rw");
        let theirs = run("find", &[mount.path().to_str().unwrap(), "-mindepth", "1"]);
        assert_eq!(theirs.lines().count(), ours);
        let target = mount.path().join("etc");
        run("cp", &["-r", "/etc", target.to_str().unwrap()]);
        let added = run("find", &[target.to_str().unwrap()]).lines().count();
        drop(mount);
        let fs = open_subvolume(&image, TreeId::FS);
        assert_eq!(count(&fs, fs.root()), ours + added);
        remove_all(&fs, fs.root());
        fs.store().commit().unwrap();
        check(&image);
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        fs.create(fs.root(), b"after", &new).unwrap();
        fs.store().commit().unwrap();
        drop(fs);
        check(&image);
    }
}

#[test]
fn names_of_one_file_in_one_directory_are_bounded_without_extended_references() {
    let (_dir, image) = mkfs(256 << 20, &["-O", "^extref", "-n", "4096"]);
    let fs = open_subvolume(&image, TreeId::FS);
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), b"first", &new).unwrap();
    let name = |at: usize| format!("{at:0>200}").into_bytes();
    let mut made = 0;
    let refused = loop {
        match fs.link(inode.id, fs.root(), &name(made)) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, butterfs_fs::FsError::TooManyLinks),
        "{refused}"
    );
    assert!((10..40).contains(&made), "{made}");
    // A rename within the directory frees the room that it needs. A rename to a
    // longer name does not, and changes nothing.
    let dir = fs.root();
    let (last, other) = (name(made - 1), name(99));
    let rename = |from: &[u8], to: &[u8]| {
        let (from, to) = (Place { dir, name: from }, Place { dir, name: to });
        fs.rename(from, to, RenameMode::Replace, OldName::Free)
    };
    rename(&last, &other).unwrap();
    assert!(rename(b"first", &name(77)).is_err());
    assert_eq!(fs.lookup(fs.root(), b"first").unwrap().inode, inode.id);
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

/// If a program replaces a file without fsync, it finds the old content or the
/// new one after a crash, even if the fsync of another file made the commit.
#[test]
fn a_file_that_replaced_another_has_its_data_in_the_same_commit() {
    if !common::is_root() {
        return;
    }
    let (_dir, image) = mkfs(300 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let dir = fs.root();
    let file = |name: &[u8], data: &[u8]| {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = fs.create(dir, name, &new).unwrap();
        fs.write(&inode, 0, data).unwrap();
    };
    for size in [30, 300_000] {
        file(b"HEAD", &vec![1; size]);
        fs.sync_all().unwrap();
        file(b"HEAD.lock", &vec![2; size]);
        let (from, to) = (b"HEAD.lock", b"HEAD");
        let (from, to) = (Place { dir, name: from }, Place { dir, name: to });
        fs.rename(from, to, RenameMode::Replace, OldName::Free)
            .unwrap();
        fs.store().commit().unwrap();
        let crashed = image.with_extension("crashed");
        std::fs::copy(&image, &crashed).unwrap();
        let after = open_subvolume(&crashed, TreeId::FS);
        let found = after.lookup(after.root(), b"HEAD").unwrap();
        let mut data = vec![0; size + 1];
        let inode = after.inode(found.inode).unwrap();
        let length = after.read(&inode, 0, &mut data).unwrap();
        assert_eq!((length, data[0], data[size - 1]), (size, 2, 2));
        drop(after);
        fs.unlink(dir, b"HEAD").unwrap();
    }
}

/// Each entry is renamed as soon as it is listed, and so gets the greatest
/// index. The listing still ends, and has each file once.
#[test]
fn a_listing_ends_while_files_are_renamed() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let dir = fs.create(fs.root(), b"dir", &new).unwrap().id;
    for file in 0..FILES {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        fs.create(dir, format!("a{file}").as_bytes(), &new).unwrap();
    }
    for at_once in [1, 7, usize::MAX] {
        let mut seen = Vec::new();
        let mut from = 0;
        loop {
            // As a server does, one request after the other.
            let mut part = Vec::new();
            fs.read_dir(dir, from, &mut |entry| {
                part.push(entry);
                part.len() < at_once && seen.len() + part.len() <= 2 * FILES
            })
            .unwrap();
            let Some(last) = part.last() else { break };
            from = last.next;
            for entry in part.iter().filter(|entry| !entry.name.starts_with(b".")) {
                let to = [b"b", &entry.name[..]].concat();
                let place = |name| Place { dir, name };
                let (mode, old) = (RenameMode::Replace, OldName::Free);
                fs.rename(place(&entry.name), place(&to), mode, old)
                    .unwrap();
                seen.push(entry.target.inode);
            }
            assert!(seen.len() <= FILES, "the listing does not end");
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), FILES, "{at_once} at once");
    }
}
