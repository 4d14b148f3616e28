//! Hashes that collide: of names, extended attributes and references to data.
//! Chains of them grow, and are removed in every order.

use super::common::{KernelMount, Random, check, check_ours, is_root, mkfs, open_subvolume, run};
use super::{SECTOR, content, create, data, find};
use butterfs_format::TreeId;
use butterfs_format::checksum::name_hash;
use butterfs_fs::file::{CloneSpan, FallocateMode};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use butterfs_fs::{Filesystem, FsError, Inode};
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check};
use butterfs_testkit::op::names::{colliding, colliding_offsets};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Links of the longest chain.
const LONG: usize = 20;

/// All orders of `count` things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for order in orders(count - 1) {
        for at in 0..count {
            let mut longer = order.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}

/// Orders of a long chain: from either end, and some at random.
fn some_orders(count: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let ascending: Vec<usize> = (0..count).collect();
    let mut all = vec![ascending.iter().rev().copied().collect(), ascending.clone()];
    let more = std::env::var("BUTTERFS_ROUNDS").map_or(2, |text| text.parse().unwrap());
    for _ in 0..more {
        let mut order = ascending.clone();
        for at in (1..count).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        all.push(order);
    }
    all
}

/// An extent of two sectors with enough references that some get items of
/// their own.
fn crowded_extent(fs: &Filesystem) -> Arc<Inode> {
    let source = create(fs, "source", &data(1, 2 * SECTOR));
    let crowd = create(fs, "crowd", b"");
    for at in 0..60 {
        share(fs, &source, &crowd, at << 20);
    }
    fs.sync_all().unwrap();
    source
}

fn share(fs: &Filesystem, source: &Arc<Inode>, target: &Arc<Inode>, to: u64) {
    let span = CloneSpan {
        from: 0,
        to,
        length: 2 * SECTOR,
    };
    assert_eq!(fs.clone_range(source, target, span).unwrap(), 2 * SECTOR);
}

fn punch(fs: &Filesystem, file: &Arc<Inode>, at: u64, length: u64) {
    fs.fallocate(file, FallocateMode::PunchHole, at, length)
        .unwrap();
}

fn judge(image: &Path) {
    check_ours(image);
    check(image);
}

/// Reads what a file has at `offset`.
fn sectors(fs: &Filesystem, file: &Inode, offset: u64) -> Vec<u8> {
    let mut found = vec![0; 2 * SECTOR as usize];
    let length = fs.read(file, offset, &mut found).unwrap();
    found.truncate(length);
    found
}

#[test]
fn a_hole_among_colliding_references_is_passed() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let source = crowded_extent(&fs);
    let target = create(&fs, "target", b"");
    for at in [0, 17_999_258_914_816] {
        share(&fs, &source, &target, at);
        fs.sync_all().unwrap();
    }
    for at in [0, 17_999_258_914_816] {
        punch(&fs, &target, at, 2 * SECTOR);
        fs.sync_all().unwrap();
    }
    drop(fs);
    judge(&image);
}

/// Makes a chain of references and takes it apart in `order`. An inode with a
/// second reference loses both at once.
fn chain(
    fs: &Filesystem,
    source: &Arc<Inode>,
    order: &[usize],
    sync_after_each: &mut dyn FnMut() -> bool,
) {
    let offsets: Vec<u64> = colliding_offsets(order.len() as u64).collect();
    let expected = content(fs, source);
    let target = create(fs, "target", b"");
    for at in &offsets {
        share(fs, source, &target, *at);
        if sync_after_each() {
            fs.sync_all().unwrap();
        }
    }
    for (step, gone) in order.iter().enumerate() {
        let at = offsets[*gone];
        punch(fs, &target, at, 2 * SECTOR);
        match step % 3 {
            // The reference comes back, into the hole or behind it, and as two
            // references.
            0 => {
                share(fs, source, &target, at);
                fs.write(&target, at + SECTOR / 2, b"between").unwrap();
                fs.sync_all().unwrap();
                let span = CloneSpan {
                    from: 0,
                    to: at,
                    length: SECTOR,
                };
                fs.clone_range(source, &target, span).unwrap();
                fs.sync_all().unwrap();
                punch(fs, &target, at, 2 * SECTOR);
            }
            1 => share(fs, source, &target, at),
            _ => {}
        }
        punch(fs, &target, at, 2 * SECTOR);
        if sync_after_each() {
            fs.sync_all().unwrap();
        }
        for left in &order[step + 1..] {
            assert!(sectors(fs, &target, offsets[*left]) == expected);
        }
    }
    fs.unlink(fs.root(), b"target").unwrap();
    drop(target);
    fs.sync_all().unwrap();
}

#[test]
fn colliding_references_go_in_every_order() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let source = crowded_extent(&fs);
    for order in orders(4) {
        chain(&fs, &source, &order, &mut || true);
    }
    let mut random = Random(7);
    for order in some_orders(LONG, &mut random) {
        chain(&fs, &source, &order, &mut || random.below(3) > 0);
    }
    let crowd = find(&fs, "crowd");
    assert!(sectors(&fs, &crowd, 59 << 20) == content(&fs, &source));
    drop(fs);
    judge(&image);
}

/// The kernel fills a hole with a second item for a reference whose first item
/// lies behind the hole. Both are removed here in one commit.
#[test]
fn two_items_of_one_reference_are_taken_together() {
    if !is_root() {
        return;
    }
    let (dir, image) = mkfs(256 << 20, &[]);
    let [first, second] = [0, 17_999_258_914_816];
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        let path = |name: &str| mount.path().join(name).display().to_string();
        std::fs::write(path("source"), data(1, 2 * SECTOR)).unwrap();
        let reflink = |name: &str, length: u64, at: u64| {
            let command = format!("reflink {} 0 {at} {length}", path("source"));
            run("xfs_io", &["-f", "-c", &command, &path(name)]);
        };
        let sync = || run("sync", &["-f", mount.path().to_str().unwrap()]);
        for at in 0..60 {
            reflink("crowd", 2 * SECTOR, at << 20);
        }
        for at in [first, second] {
            reflink("target", 2 * SECTOR, at);
            sync();
        }
        let punch = format!("fpunch {first} {}", 2 * SECTOR);
        run("xfs_io", &["-c", &punch, &path("target")]);
        sync();
        let write = format!("pwrite {second} {SECTOR}");
        run("xfs_io", &["-c", &write, &path("target")]);
        sync();
        reflink("target", SECTOR, second);
        sync();
    }
    let items = run(
        "btrfs",
        &[
            "inspect-internal",
            "dump-tree",
            "-t",
            "extent",
            image.to_str().unwrap(),
        ],
    );
    let twice = format!("offset {second} count 1");
    assert_eq!(
        items.matches(&twice).count(),
        2,
        "the kernel made two items"
    );
    // `btrfs check` counts that as a fault of the volume.
    check_ours(&image);
    let fs = open_subvolume(&image, TreeId::FS);
    punch(&fs, &find(&fs, "target"), second, 2 * SECTOR);
    fs.sync_all().unwrap();
    drop(fs);
    judge(&image);
}

/// The kernel continues chains with holes that we leave, and the other way
/// round.
#[test]
fn the_kernel_goes_on_with_a_chain() {
    if !is_root() {
        return;
    }
    let (dir, image) = mkfs(256 << 20, &[]);
    let offsets: Vec<u64> = colliding_offsets(LONG as u64).collect();
    let fs = open_subvolume(&image, TreeId::FS);
    let source = crowded_extent(&fs);
    let target = create(&fs, "target", b"");
    for at in &offsets {
        share(&fs, &source, &target, *at);
    }
    fs.sync_all().unwrap();
    for at in offsets.iter().step_by(3) {
        punch(&fs, &target, *at, 2 * SECTOR);
    }
    fs.sync_all().unwrap();
    drop((source, target, fs));
    judge(&image);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        let path = mount.path().join("target").display().to_string();
        for at in offsets.iter().skip(1).step_by(3) {
            run(
                "xfs_io",
                &["-c", &format!("fpunch {at} {}", 2 * SECTOR), &path],
            );
        }
    }
    // The other mode finds nothing behind the holes that the kernel left.
    check_ours(&image);
    btrfs_check(&image, Mode::Original, DataChecksums::Verify).assert_clean("kernel");
    let fs = open_subvolume(&image, TreeId::FS);
    let (source, target) = (find(&fs, "source"), find(&fs, "target"));
    for at in offsets.iter().skip(2).step_by(3) {
        assert!(sectors(&fs, &target, *at) == content(&fs, &source));
        punch(&fs, &target, *at, 2 * SECTOR);
    }
    fs.sync_all().unwrap();
    drop((source, target, fs));
    judge(&image);
}

/// This many names with one hash.
fn names(count: usize) -> Vec<Vec<u8>> {
    let mut random = butterfs_testkit::Random::new(5);
    let [firsts, seconds] = [16, 2].map(|count| colliding(&mut random, count));
    let mut all = Vec::new();
    for second in &seconds {
        all.extend(firsts.iter().map(|first| [&first[..], second].concat()));
    }
    all.truncate(count);
    assert!(all.iter().all(|name| name_hash(name) == name_hash(&all[0])));
    all
}

/// Names of the root, without those of the crowd.
fn listed(fs: &Filesystem) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    let visit = &mut |entry: butterfs_fs::dir::ListedEntry| {
        if entry.name.len() > 2 && entry.name.len() < 200 {
            assert!(found.insert(entry.name), "a name came twice");
        }
        true
    };
    fs.read_dir(fs.root(), 0, visit).unwrap();
    found
}

/// What a chain of names leads to.
enum Named<'i> {
    /// Each to a file of its own.
    Files,
    /// All to one.
    Links(&'i Inode),
}

/// Names that collide, which are removed in `order`; now and then one is
/// renamed over another.
fn name_chain(fs: &Filesystem, names: &[Vec<u8>], order: &[usize], named: &Named<'_>) {
    let root = fs.root();
    for name in names {
        match named {
            Named::Links(inode) => fs.link(inode.id, root, name).unwrap(),
            Named::Files => {
                let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                fs.create(root, name, &new).unwrap();
                let again = fs.create(root, name, &new);
                assert!(matches!(again, Err(FsError::Exists)));
            }
        }
    }
    fs.sync_all().unwrap();
    let mut left: BTreeSet<Vec<u8>> = names.iter().cloned().collect();
    for (step, gone) in order.iter().enumerate() {
        let name = &names[*gone];
        let other = left.iter().find(|other| *other != name).cloned();
        let place = |name| Place { dir: root, name };
        match other {
            _ if !left.contains(name) => {
                let gone = fs.unlink(root, name);
                assert!(matches!(gone, Err(FsError::NotFound)));
            }
            Some(other) if step % 3 == 0 => {
                let (from, to) = (place(&name[..]), place(&other[..]));
                fs.rename(from, to, RenameMode::Replace, OldName::Free)
                    .unwrap();
                if matches!(named, Named::Files) {
                    left.remove(name);
                }
            }
            _ => {
                fs.unlink(root, name).unwrap();
                left.remove(name);
            }
        }
        assert_eq!(listed(fs), left);
        for name in names {
            assert_eq!(fs.lookup(root, name).is_ok(), left.contains(name));
        }
        if step % 4 == 0 {
            fs.sync_all().unwrap();
        }
    }
    for name in left {
        fs.unlink(root, &name).unwrap();
    }
}

#[test]
fn colliding_names_go_in_every_order() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let names = names(LONG);
    for order in orders(4) {
        name_chain(&fs, &names[..4], &order, &Named::Files);
    }
    let mut random = Random(11);
    for order in some_orders(LONG, &mut random) {
        name_chain(&fs, &names, &order, &Named::Files);
    }
    // With enough other names that the chain lies in extended references.
    let file = create(&fs, "f", b"");
    for at in 0..70 {
        let name = format!("{at:0>255}");
        fs.link(file.id, fs.root(), name.as_bytes()).unwrap();
    }
    for order in some_orders(LONG, &mut random) {
        name_chain(&fs, &names, &order, &Named::Links(&file));
    }
    for name in names.iter().step_by(2) {
        fs.link(file.id, fs.root(), name).unwrap();
    }
    fs.sync_all().unwrap();
    assert_eq!(fs.attributes_of(&file).unwrap().nlink, 71 + LONG as u32 / 2);
    drop((file, fs));
    judge(&image);
}

#[test]
fn colliding_attributes_go_in_every_order() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let file = create(&fs, "f", b"");
    let names: Vec<_> = names(LONG)
        .iter()
        .map(|name| [&b"user."[..], name].concat())
        .collect();
    let value = |at: usize, round: usize| vec![at as u8; (at * 37 + round * 91) % 500];
    let mut random = Random(13);
    let mut all = orders(4);
    all.extend(some_orders(LONG, &mut random));
    for (round, order) in all.iter().enumerate() {
        let names = &names[..order.len()];
        for (at, name) in names.iter().enumerate() {
            fs.set_xattr(&file, name, &value(at, 0), SetMode::Create)
                .unwrap();
        }
        let mut now: BTreeMap<usize, Vec<u8>> =
            (0..names.len()).map(|at| (at, value(at, 0))).collect();
        for (step, gone) in order.iter().enumerate() {
            fs.remove_xattr(&file, &names[*gone]).unwrap();
            now.remove(gone);
            // Another one grows or shrinks among its neighbours.
            if let Some(at) = order.get(step + 2) {
                fs.set_xattr(&file, &names[*at], &value(*at, step), SetMode::Replace)
                    .unwrap();
                now.insert(*at, value(*at, step));
            }
            for (at, name) in names.iter().enumerate() {
                let found = fs.get_xattr(file.id, name).ok();
                assert_eq!(found.as_ref(), now.get(&at), "round {round}");
            }
            assert_eq!(fs.list_xattrs(file.id).unwrap().len(), now.len());
            if step % 4 == 0 {
                fs.sync_all().unwrap();
            }
        }
    }
    for (at, name) in names.iter().enumerate().skip(1).step_by(2) {
        fs.set_xattr(&file, name, &value(at, 3), SetMode::Any)
            .unwrap();
    }
    fs.sync_all().unwrap();
    drop((file, fs));
    judge(&image);
}

/// The kernel removes every second name and attribute of our chains, then we
/// remove the rest.
#[test]
fn the_kernel_goes_on_with_names_and_attributes() {
    if !is_root() {
        return;
    }
    let (dir, image) = mkfs(256 << 20, &[]);
    let names = names(LONG);
    let fs = open_subvolume(&image, TreeId::FS);
    let file = create(&fs, "f", b"");
    let attribute = |name: &[u8]| [&b"user."[..], name].concat();
    for name in &names {
        fs.link(file.id, fs.root(), name).unwrap();
        fs.set_xattr(&file, &attribute(name), name, SetMode::Create)
            .unwrap();
    }
    fs.sync_all().unwrap();
    drop((file, fs));
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        let os = |name: &[u8]| mount.path().join(OsStr::from_bytes(name));
        assert_eq!(std::fs::read_dir(mount.path()).unwrap().count(), LONG + 1);
        for name in names.iter().step_by(2) {
            std::fs::remove_file(os(name)).unwrap();
            let path = os(b"f");
            let out = Command::new("setfattr")
                .arg("-x")
                .arg(OsStr::from_bytes(&attribute(name)))
                .arg(path)
                .status();
            assert!(out.unwrap().success());
        }
    }
    judge(&image);
    let fs = open_subvolume(&image, TreeId::FS);
    let file = find(&fs, "f");
    for (at, name) in names.iter().enumerate().rev() {
        let there = at % 2 == 1;
        assert_eq!(fs.unlink(fs.root(), name).is_ok(), there);
        assert_eq!(fs.remove_xattr(&file, &attribute(name)).is_ok(), there);
    }
    assert_eq!(fs.attributes_of(&file).unwrap().nlink, 1);
    fs.sync_all().unwrap();
    drop((file, fs));
    judge(&image);
}
