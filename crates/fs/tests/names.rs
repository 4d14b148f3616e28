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

/// A directory with files whose names are of 6 bytes.
fn made(fs: &Filesystem, count: usize) -> InodeId {
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let dir = fs.create(fs.root(), b"dir", &new).unwrap().id;
    for file in 0..count {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        fs.create(dir, format!("a{file:05}").as_bytes(), &new)
            .unwrap();
    }
    dir
}

/// A part of a listing, as a server answers a request.
fn part(
    fs: &Filesystem,
    dir: InodeId,
    from: u64,
    at_once: usize,
) -> Vec<butterfs_fs::dir::ListedEntry> {
    let mut part = Vec::new();
    fs.read_dir(dir, from, &mut |entry| {
        // The entry that does not fit is not taken.
        let fits = part.len() < at_once;
        if fits {
            part.push(entry);
        }
        fits
    })
    .unwrap();
    part
}

/// Programs of 32 bits take no greater position. As in the kernel, "." and ".."
/// are at 0 and 1, and an entry is at its index.
#[test]
fn positions_are_small_and_any_number_is_one() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let dir = made(&fs, FILES);
    let all = part(&fs, dir, 0, usize::MAX);
    assert_eq!(all.len(), FILES + 2);
    for (number, entry) in all.iter().enumerate() {
        assert!(
            i32::try_from(entry.next).is_ok(),
            "{number}: {:#x}",
            entry.next
        );
        let after = part(&fs, dir, entry.next, usize::MAX);
        assert_eq!(after[..], all[number + 1..], "after {number}");
        let rest = part(&fs, dir, number as u64, usize::MAX);
        assert_eq!(rest[..], all[number..], "from {number}");
    }
    assert_eq!(all.last().unwrap().next, 0x7fff_ffff);
    assert_eq!(part(&fs, dir, FILES as u64 + 2, 9), []);
    // What was made meanwhile does not come after the end.
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(dir, b"later", &new).unwrap();
    assert_eq!(part(&fs, dir, 0x7fff_ffff, 9), []);
    assert_eq!(part(&fs, dir, 0, usize::MAX).len(), FILES + 3);
}

/// Another program lists the directory again and again, in parts, while each
/// file is renamed as soon as it is listed.
#[test]
fn a_listing_ends_while_others_begin() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let dir = made(&fs, FILES);
    let mut other = 0;
    let (mut from, mut seen) = (0, 0);
    loop {
        let listed = part(&fs, dir, from, 10);
        let Some(last) = listed.last() else { break };
        from = last.next;
        for entry in listed.iter().filter(|entry| !entry.name.starts_with(b".")) {
            let to = [b"b", &entry.name[..]].concat();
            let place = |name| Place { dir, name };
            fs.rename(
                place(&entry.name),
                place(&to),
                RenameMode::Replace,
                OldName::Free,
            )
            .unwrap();
            seen += 1;
            for _ in 0..10 {
                let more = part(&fs, dir, other, 7);
                other = more.last().map_or(0, |last| last.next);
            }
        }
        assert!(seen <= FILES, "the listing does not end");
    }
    assert_eq!(seen, FILES);
}

/// Several programs list a directory in parts of different sizes, begin at
/// different times, stop, and ask again, while names come and go. Each name that
/// is there during a whole listing comes once.
#[test]
fn listings_at_the_same_time_have_all_that_stays() {
    use std::collections::BTreeMap;
    struct Lister {
        from: u64,
        at_once: usize,
        /// What was there when it began, and how often it came.
        expected: BTreeMap<Vec<u8>, usize>,
    }
    let seeds = std::env::var("BUTTERFS_SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|text| text.split_once(".."));
    let (first, end) = seeds.map_or((0, 6), |(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
    for seed in first..end {
        let (_dir, image) = mkfs(256 << 20, &[]);
        let fs = open_subvolume(&image, TreeId::FS);
        let dir = made(&fs, 60);
        let mut names: Vec<Vec<u8>> = list(&fs, dir).into_iter().map(|e| e.name).collect();
        let mut state: u64 = seed * 2 + 1;
        let mut below = |count: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % count
        };
        let begin = |names: &[Vec<u8>], at_once| Lister {
            from: 0,
            at_once,
            expected: names.iter().map(|name| (name.clone(), 0)).collect(),
        };
        let mut listers: Vec<Lister> = (0..4).map(|_| begin(&names, 1 + below(20))).collect();
        let mut ended = 0;
        for step in 0..4000 {
            match below(4) {
                0 if names.len() < 120 => {
                    let name = format!("n{step}").into_bytes();
                    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                    fs.create(dir, &name, &new).unwrap();
                    names.push(name);
                }
                1 if names.len() > 20 => {
                    let name = names.swap_remove(below(names.len()));
                    fs.unlink(dir, &name).unwrap();
                    for lister in &mut listers {
                        lister.expected.remove(&name);
                    }
                }
                _ => {
                    let number = below(listers.len());
                    let lister = &mut listers[number];
                    let listed = part(&fs, dir, lister.from, lister.at_once);
                    if below(5) == 0 {
                        // The answer is lost, and asked for again.
                        continue;
                    }
                    if below(60) == 0 {
                        // Nobody goes on with this listing.
                        listers[number] = begin(&names, 1 + below(20));
                        continue;
                    }
                    // A part of an answer may be all that there is room for.
                    let taken = if below(4) == 0 {
                        1 + below(lister.at_once)
                    } else {
                        usize::MAX
                    };
                    for entry in listed.iter().take(taken) {
                        lister.from = entry.next;
                        if let Some(count) = lister.expected.get_mut(&entry.name) {
                            *count += 1;
                        }
                    }
                    if listed.is_empty() {
                        ended += 1;
                        for (name, count) in &lister.expected {
                            let name = name.escape_ascii();
                            assert_eq!(*count, 1, "seed {seed}, step {step}: {name}");
                        }
                        listers[number] = begin(&names, 1 + below(20));
                    }
                }
            }
        }
        assert!(ended > 50, "{ended}");
    }
}
