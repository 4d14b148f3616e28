//! Exact space of snapshots, proved by what the kernel frees when it deletes
//! them, and by a plain count of every tree by itself.

mod common;

use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{ItemType, NodeRef, TreeId};
use butterfs_fs::subvolume::du::{Limits, Space, SpaceSharing};
use butterfs_fs::subvolume::list::Subvolumes;
use butterfs_store::{Engine, LogPolicy, OpenOptions, Store};
use butterfs_tree::NodeSource;
use common::{KernelMount, Random, mkfs, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn open(image: &Path) -> Store {
    let device =
        butterfs_device::FileDevice::open(image, butterfs_device::Access::ReadOnly).unwrap();
    let options = OpenOptions {
        access: butterfs_device::Access::ReadOnly,
        log: LogPolicy::Ignore,
        ..OpenOptions::default()
    };
    Store::open(Arc::new(device), &options).unwrap()
}

fn compute(engine: &Engine, limits: &Limits) -> SpaceSharing {
    SpaceSharing::compute(engine, limits, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Everything that a tree reaches, by address: its length in bytes, and whether
/// it is data.
fn reached(engine: &Engine, root: NodeRef, found: &mut dyn FnMut(u64, u64, bool)) {
    let node = engine.node(root).unwrap();
    found(node.logical().get(), engine.node_size() as u64, false);
    for slot in 0..node.len() {
        if !node.is_leaf() {
            reached(engine, node.child(slot), found);
        } else if node.key(slot).item_type == ItemType::EXTENT_DATA {
            let extent = FileExtent::parse(node.data(slot)).unwrap();
            if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = extent.body
                && place.disk.get() != 0
            {
                found(place.disk.get(), place.disk_length, true);
            }
        }
    }
}

/// Who holds what, by the simplest means.
struct Plain(BTreeMap<u64, (Space, BTreeSet<TreeId>)>);

impl Plain {
    fn count(engine: &Engine) -> Self {
        let mut all: BTreeMap<u64, (Space, BTreeSet<TreeId>)> = BTreeMap::new();
        for info in Subvolumes::load(engine).unwrap().iter() {
            assert!(
                !info.is_being_deleted(),
                "the plain count knows no deletions"
            );
            let root = engine.root(info.id).unwrap();
            reached(engine, root, &mut |logical, length, is_data| {
                let mut space = Space::default();
                if is_data {
                    space.data = length;
                } else {
                    space.metadata = length;
                }
                let entry = all.entry(logical).or_insert((space, BTreeSet::new()));
                assert_eq!(entry.0, space);
                entry.1.insert(info.id);
            });
        }
        Self(all)
    }

    fn sum(&self, of: impl Fn(&BTreeSet<TreeId>) -> bool) -> Space {
        let mut sum = Space::default();
        for (space, holders) in self.0.values() {
            if of(holders) {
                sum += *space;
            }
        }
        sum
    }
}

/// What subvolumes use according to the block groups: data, and nodes that are
/// in no other tree.
fn used_by_subvolumes(engine: &Engine) -> Space {
    let used = |kind| {
        let groups = engine.groups().filter(|group| group.flags.contains(kind));
        groups.map(|group| group.used).sum::<u64>()
    };
    let mut others = 0;
    for tree in [
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::DEVICE,
        TreeId::CSUM,
        TreeId::QUOTA,
        TreeId::UUID,
        TreeId::FREE_SPACE,
        TreeId::BLOCK_GROUP,
    ] {
        if let Ok(root) = engine.root(tree) {
            reached(engine, root, &mut |_, length, _| others += length);
        }
    }
    Space {
        data: used(BlockGroupFlags::DATA),
        metadata: used(BlockGroupFlags::METADATA) - others,
    }
}

/// One change of files by the kernel.
fn change(dir: &Path, random: &mut Random) {
    let path = dir.join(format!("f{}", random.below(60)));
    match random.below(9) {
        0..=2 => {
            let data = random.below(300_000) as usize;
            fs::write(&path, random.data(data)).unwrap();
        }
        3 => {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let at = random.below(50) * 4096;
            file.unwrap().write_all_at(&random.data(9000), at).unwrap();
        }
        4 => {
            let other = dir.join(format!("f{}", random.below(60)));
            let _ = fs::hard_link(&path, other);
        }
        5 => {
            let other = dir.join(format!("f{}", random.below(60)));
            let _ = Command::new("cp")
                .args(["--reflink=always"])
                .args([&path, &other])
                .output();
        }
        6 => {
            let _ = fs::remove_file(&path);
        }
        7 => {
            if let Ok(file) = File::options().write(true).open(&path) {
                file.set_len(random.below(100_000)).unwrap();
            }
        }
        _ => {
            let _ = Command::new("fallocate")
                .args(["--punch-hole", "--offset", "8192", "--length", "20000"])
                .arg(&path)
                .output();
        }
    }
}

fn subvolume(verb: &[&str], paths: &[&Path]) {
    let words = verb.iter().copied();
    let paths = paths.iter().map(|path| path.to_str().unwrap());
    let args: Vec<&str> = ["subvolume"]
        .into_iter()
        .chain(words)
        .chain(paths)
        .collect();
    run("btrfs", &args);
}

/// Subvolumes that were changed and snapshotted; some of them are deleted
/// again.
fn fill(mount: &Path, random: &mut Random) {
    let mut living = Vec::new();
    for name in ["one", "two"] {
        let path = mount.join(name);
        subvolume(&["create"], &[&path]);
        // Enough inodes for several leaves.
        for at in 0..400 {
            fs::write(path.join(format!("small{at}")), random.data(500)).unwrap();
        }
        living.push(path);
    }
    for round in 0..40 {
        for _ in 0..12 {
            let at = random.below(living.len() as u64) as usize;
            change(&living[at], random);
        }
        let source = living[random.below(living.len() as u64) as usize].clone();
        let target = mount.join(format!("s{round}"));
        subvolume(&["snapshot"], &[&source, &target]);
        living.push(target);
        if round % 5 == 4 {
            // The original may also be deleted before its snapshots.
            let at = random.below(living.len() as u64) as usize;
            subvolume(&["delete", "-C"], &[&living.swap_remove(at)]);
            // Across subvolumes.
            let (from, to) = (&living[0], &living[living.len() - 1]);
            let _ = Command::new("cp")
                .args(["--reflink=always"])
                .args([from.join("f1"), to.join("f2")])
                .output();
        }
    }
    subvolume(&["sync"], &[mount]);
}

fn same_as_plain(engine: &Engine, sharing: &SpaceSharing, random: &mut Random) {
    let plain = Plain::count(engine);
    let rows = sharing.subvolumes();
    for row in &rows {
        let id = row.id;
        assert_eq!(row.total, plain.sum(|by| by.contains(&id)), "{id}");
        assert_eq!(row.exclusive, plain.sum(|by| *by == BTreeSet::from([id])));
    }
    for _ in 0..50 {
        let chance = 1 + random.below(10);
        let picked = rows.iter().filter(|_| random.below(10) < chance);
        let set: BTreeSet<TreeId> = picked.map(|row| row.id).collect();
        let freed = plain.sum(|by| by.is_subset(&set));
        assert_eq!(sharing.freed_by(&set), Some(freed), "{set:?}");
    }
    assert_eq!(sharing.being_freed(), Space::default());
    assert_eq!(sharing.freed_by(&BTreeSet::from([TreeId(99_999)])), None);
}

fn exercise(seed: u64, mkfs_options: &[&str], mount_options: &str) {
    let mut random = Random(seed);
    let (dir, image) = mkfs(1 << 30, mkfs_options);
    let mount = KernelMount::new(&image, dir.path(), mount_options);
    fill(mount.path(), &mut random);
    if seed.is_multiple_of(2) {
        let path = mount.path().to_str().unwrap();
        run("btrfs", &["balance", "start", "-m", "-d", path]);
    }
    drop(mount);
    for round in 0..6 {
        let (predicted, before, doomed) = {
            let store = open(&image);
            let engine = store.read();
            let sharing = compute(&engine, &Limits::default());
            same_as_plain(&engine, &sharing, &mut random);
            // Taking the addresses in several ranges changes nothing.
            let small = Limits {
                extents: 20,
                ..Limits::default()
            };
            let in_parts = compute(&engine, &small);
            assert_eq!(in_parts.subvolumes(), sharing.subvolumes());
            assert_eq!(in_parts.total(), sharing.total());
            let before = used_by_subvolumes(&engine);
            assert!(before.data > 0);
            assert_eq!(sharing.total().data, before.data, "seed {seed}");
            // All of them, with the template of data relocation.
            assert_eq!(sharing.total().metadata, before.metadata, "seed {seed}");
            let all = Subvolumes::load(&engine).unwrap();
            let mut rows: Vec<_> = all.iter().filter(|info| info.id != TreeId::FS).collect();
            let count = 1 + random.below(if round % 2 == 0 { 1 } else { 8 });
            let doomed: Vec<_> = (0..count.min(rows.len() as u64))
                .map(|_| rows.swap_remove(random.below(rows.len() as u64) as usize))
                .map(|info| {
                    (
                        info.id,
                        String::from_utf8(info.path.clone().unwrap()).unwrap(),
                    )
                })
                .collect();
            let ids = doomed.iter().map(|(id, _)| *id).collect();
            // Their entries leave the top level, whose nodes may shrink.
            let top = Plain::count(&engine)
                .sum(|by| by.contains(&TreeId::FS))
                .metadata;
            (sharing.freed_by(&ids).unwrap(), (before, top), doomed)
        };
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        for (_, path) in &doomed {
            subvolume(&["delete", "-C"], &[&mount.path().join(path)]);
        }
        subvolume(&["sync"], &[mount.path()]);
        run("sync", &["-f", mount.path().to_str().unwrap()]);
        drop(mount);
        let store = open(&image);
        let engine = store.read();
        let after = used_by_subvolumes(&engine);
        let top = Plain::count(&engine)
            .sum(|by| by.contains(&TreeId::FS))
            .metadata;
        let ((before, top_before), at) = (before, format!("seed {seed} round {round}: {doomed:?}"));
        assert_eq!(before.data - after.data, predicted.data, "{at}");
        let freed = (before.metadata - top_before) - (after.metadata - top);
        assert_eq!(freed, predicted.metadata, "{at}");
    }
}

#[test]
fn figures_are_what_the_kernel_frees() {
    if !common::is_root() {
        return;
    }
    exercise(1, &[], "noatime");
    exercise(2, &["-n", "4096"], "noatime,compress=zstd");
    exercise(
        3,
        &["-O", "^no-holes", "-R", "quota"],
        "noatime,compress-force=lzo",
    );
}

/// An interrupted deletion: what it has already freed is not counted, and the
/// rest belongs to no subvolume.
#[test]
fn a_deletion_under_way_holds_nothing() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(7);
    let (dir, image) = mkfs(2 << 30, &["-n", "4096"]);
    let mount = KernelMount::new(&image, dir.path(), "noatime");
    let big = mount.path().join("big");
    subvolume(&["create"], &[&big]);
    for at in 0..40_000 {
        let mut file = File::create(big.join(format!("f{at}"))).unwrap();
        if at % 8 == 0 {
            file.write_all(&random.data(5000)).unwrap();
        }
    }
    let kept = mount.path().join("kept");
    subvolume(&["snapshot"], &[&big, &kept]);
    for at in 0..20_000 {
        fs::write(big.join(format!("f{at}")), random.data(3000)).unwrap();
    }
    let before = {
        drop(mount);
        let store = open(&image);
        let engine = store.read();
        let sharing = compute(&engine, &Limits::default());
        same_as_plain(&engine, &sharing, &mut random);
        sharing.subvolumes().last().unwrap().total
    };
    let mount = KernelMount::new(&image, dir.path(), "noatime");
    subvolume(&["delete", "-c"], &[&mount.path().join("big")]);
    // While it is frozen, the volume is consistent. The cleaner continues in
    // between.
    let mut half_done = 0;
    for step in 0..30 {
        let point = mount.path().to_str().unwrap();
        run("fsfreeze", &["-f", point]);
        let copy = dir.path().join("copy.img");
        fs::copy(&image, &copy).unwrap();
        run("fsfreeze", &["-u", point]);
        let store = open(&copy);
        let engine = store.read();
        let all = Subvolumes::load(&engine).unwrap();
        let dying = all.iter().find(|info| info.is_being_deleted());
        half_done += u32::from(dying.is_some_and(|info| info.item.drop_progress.is_some()));
        let sharing = compute(&engine, &Limits::default());
        assert_eq!(sharing.total(), used_by_subvolumes(&engine), "step {step}");
        let rows = sharing.subvolumes();
        let kept = rows.last().unwrap();
        assert_eq!(kept.total, before);
        // What it shared with `big` is now its own.
        assert_eq!(kept.exclusive, kept.total);
        let freed = sharing.being_freed();
        assert_eq!(freed == Space::default(), dying.is_none());
        assert_eq!(sharing.freed_by(&BTreeSet::from([kept.id])), Some(before));
        if dying.is_none() {
            break;
        }
        // One step of the cleaner.
        run("sync", &["-f", point]);
    }
    println!("the cleaner was seen at work {half_done} times");
}
