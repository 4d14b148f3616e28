//! Quota groups, kept by our commits: after each commit they equal a count of
//! all trees, btrfs check finds no fault, and a rescan by the kernel finds the
//! same.

mod common;

use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::Filesystem;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::subvolume::du::Limits;
use butterfs_fs::subvolume::quota::scan;
use butterfs_store::{Access, Assigned, GroupNumbers, QuotaMode};
use common::{KernelMount, Random, check_ours, mkfs, open_subvolume, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

type Numbers = BTreeMap<GroupId, GroupNumbers>;

/// What the groups say.
fn kept(fs: &Filesystem) -> Numbers {
    let engine = fs.store().read();
    let quotas = engine.quotas().unwrap();
    let of = |group: &butterfs_store::QuotaGroup| GroupNumbers {
        referenced: group.info.referenced,
        exclusive: group.info.exclusive,
    };
    quotas.groups().map(|(id, group)| (id, of(group))).collect()
}

/// What is true, by a count of all trees.
fn counted(fs: &Filesystem) -> Numbers {
    let engine = fs.store().read();
    scan(&engine, &Limits::default(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

/// btrfs check, and our own check, which counts the groups by itself.
fn check(image: &Path) {
    common::check(image);
    check_ours(image);
}

fn is_inconsistent(fs: &Filesystem) -> bool {
    fs.store().read().quotas().unwrap().is_inconsistent()
}

/// What `btrfs qgroup show` prints of a mounted volume.
fn shown(mount: &Path) -> Numbers {
    let text = run(
        "btrfs",
        &["qgroup", "show", "--raw", mount.to_str().unwrap()],
    );
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let id = words.next()?.parse().ok()?;
            let numbers = GroupNumbers {
                referenced: words.next()?.parse().ok()?,
                exclusive: words.next()?.parse().ok()?,
            };
            Some((id, numbers))
        })
        .collect()
}

/// The kernel's own count.
fn rescanned(image: &Path, dir: &Path) -> Numbers {
    let mount = KernelMount::new(image, dir, "noatime");
    run(
        "btrfs",
        &["quota", "rescan", "-w", mount.path().to_str().unwrap()],
    );
    shown(mount.path())
}

fn btrfs(args: &[&str], path: &Path) {
    run("btrfs", &[args, &[path.to_str().unwrap()]].concat());
}

/// The kernel's part: subvolumes, snapshots, groups.
fn fill(mount: &Path, random: &mut Random) {
    btrfs(&["quota", "enable"], mount);
    btrfs(&["qgroup", "create", "1/1"], mount);
    btrfs(&["qgroup", "create", "1/2"], mount);
    btrfs(&["qgroup", "create", "2/1"], mount);
    btrfs(&["qgroup", "assign", "1/1", "2/1"], mount);
    btrfs(&["qgroup", "assign", "1/2", "2/1"], mount);
    for name in ["a", "b"] {
        let at = mount.join(name);
        btrfs(&["subvolume", "create", "-i", "1/1"], &at);
        for file in 0..150 {
            let length = random.below(20_000) as usize;
            fs::write(at.join(format!("f{file}")), random.data(length)).unwrap();
        }
        for snapshot in 0..3 {
            let target = mount.join(format!("{name}{snapshot}"));
            let source = at.to_str().unwrap();
            btrfs(&["subvolume", "snapshot", source], &target);
            for _ in 0..10 {
                let file = at.join(format!("f{}", random.below(150)));
                let length = random.below(60_000) as usize;
                fs::write(file, random.data(length)).unwrap();
            }
        }
    }
    btrfs(&["quota", "rescan", "-w"], mount);
}

struct World<'a> {
    fs: &'a Filesystem,
    random: &'a mut Random,
    names: u64,
    subvolumes_max: usize,
    subvolumes: Vec<TreeId>,
}

fn root(tree: TreeId) -> InodeId {
    Filesystem::root_of(tree)
}

impl World<'_> {
    fn name(&mut self) -> Vec<u8> {
        self.names += 1;
        format!("n{}", self.names).into_bytes()
    }

    fn pick(&mut self) -> TreeId {
        let at = self.random.below(self.subvolumes.len() as u64) as usize;
        self.subvolumes[at]
    }

    fn file(&mut self, tree: TreeId) -> InodeId {
        let name = format!("f{}", self.random.below(200));
        if let Ok(found) = self.fs.lookup(root(tree), name.as_bytes()) {
            return found.inode;
        }
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        self.fs
            .create(root(tree), name.as_bytes(), &new)
            .unwrap()
            .id
    }

    fn step(&mut self) {
        let tree = self.pick();
        let action = match self.random.below(40) {
            0..=2 if self.subvolumes.len() >= self.subvolumes_max => 3,
            action => action,
        };
        match action {
            0 => {
                let name = self.name();
                let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
                let groups = match self.random.below(2) {
                    0 => BTreeSet::new(),
                    _ => BTreeSet::from(["1/2".parse().unwrap()]),
                };
                let made = self
                    .fs
                    .create_subvolume_in_groups(self.fs.root(), &name, &new, &groups)
                    .unwrap();
                self.subvolumes.push(made);
            }
            1 | 2 => {
                let name = self.name();
                // It gets the groups of its source, so what both share stays
                // within the groups.
                let groups = {
                    let engine = self.fs.store().read();
                    let quotas = engine.quotas().unwrap();
                    quotas
                        .group(GroupId::of_tree(tree))
                        .unwrap()
                        .parents
                        .clone()
                };
                let parent = match self.random.below(2) {
                    0 => self.fs.root(),
                    _ => root(self.pick()),
                };
                let made = self
                    .fs
                    .snapshot_in_groups(tree, (parent, &name), Access::ReadWrite, &groups)
                    .unwrap();
                self.subvolumes.push(made);
            }
            3 if self.subvolumes.len() > 4 => match self.fs.delete_subvolume_by_id(tree) {
                Ok(()) => self.subvolumes.retain(|other| *other != tree),
                Err(error) => assert_eq!(error.errno(), 39, "{error}"),
            },
            4 => {
                self.fs.clean().unwrap();
            }
            5..=7 => {
                let name = format!("f{}", self.random.below(200));
                let _ = self.fs.unlink(root(tree), name.as_bytes());
            }
            8..=11 => {
                let other = self.pick();
                let (from, to) = (self.file(tree), self.file(other));
                if from != to {
                    let (from, to) = (self.fs.inode(from).unwrap(), self.fs.inode(to).unwrap());
                    let _ = self.fs.copy_range((&from, 0), (&to, 0), 1 << 20);
                }
            }
            12..=14 => {
                let file = self.file(tree);
                let inode = self.fs.inode(file).unwrap();
                let size = self.random.below(50_000);
                self.fs.truncate(&inode, size).unwrap();
            }
            _ => {
                let file = self.file(tree);
                let inode = self.fs.inode(file).unwrap();
                let (at, length) = (self.random.below(80_000), self.random.below(40_000));
                let data = self.random.data(length as usize);
                self.fs.write(&inode, at, &data).unwrap();
            }
        }
    }
}

/// btrfs check 6.2 misreads a quota tree of several nodes, also one that the
/// kernel made. So there may be only as many subvolumes as one node has room
/// for.
fn exercise(seed: u64, mkfs_options: &[&str], (rounds, subvolumes_max): (u64, usize)) {
    let mut random = Random(seed);
    let (dir, image) = mkfs(2 << 30, mkfs_options);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        fill(mount.path(), &mut random);
    }
    for part in 0..2 {
        let fs = open_subvolume(&image, TreeId::FS);
        assert!(!is_inconsistent(&fs));
        assert_eq!(
            kept(&fs),
            counted(&fs),
            "seed {seed}: as the kernel left it"
        );
        let subvolumes = kept(&fs).keys().filter_map(|id| id.tree()).collect();
        let subvolumes: Vec<TreeId> = Vec::from_iter::<BTreeSet<TreeId>>(subvolumes);
        let mut world = World {
            fs: &fs,
            random: &mut random,
            names: part * 1_000_000,
            subvolumes_max,
            subvolumes: subvolumes
                .into_iter()
                .filter(|t| *t != TreeId::FS)
                .collect(),
        };
        for round in 0..rounds {
            for _ in 0..world.random.below(60) {
                world.step();
            }
            fs.sync_all().unwrap();
            let at = format!("seed {seed} part {part} round {round}");
            assert!(!is_inconsistent(&fs), "{at}");
            assert_eq!(kept(&fs), counted(&fs), "{at}");
        }
        fs.clean_all().unwrap();
        fs.sync_all().unwrap();
        let ours = kept(&fs);
        assert_eq!(ours, counted(&fs));
        drop(world);
        drop(fs);
        check(&image);
        {
            let mount = KernelMount::new(&image, dir.path(), "noatime");
            assert_eq!(
                shown(mount.path()),
                ours,
                "seed {seed}: shown by the kernel"
            );
        }
        assert_eq!(
            rescanned(&image, dir.path()),
            ours,
            "seed {seed}: rescanned"
        );
    }
}

/// One seed; more for a soak: BUTTERFS_SEEDS=first..last.
fn seeds(one: u64) -> std::ops::Range<u64> {
    let Ok(seeds) = std::env::var("BUTTERFS_SEEDS") else {
        return one..one + 1;
    };
    let (first, last) = seeds.split_once("..").unwrap();
    first.parse().unwrap()..last.parse().unwrap()
}

#[test]
fn numbers_follow_every_commit() {
    if !common::is_root() {
        return;
    }
    for seed in seeds(1) {
        exercise(seed, &[], (25, 40));
        exercise(seed + 1000, &["-n", "4096"], (40, 12));
    }
}

/// We switch quotas on, make groups, and switch quotas off again.
#[test]
fn quotas_are_switched_on_and_off() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(5);
    let (dir, image) = mkfs(1 << 30, &[]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        let a = mount.path().join("a");
        btrfs(&["subvolume", "create"], &a);
        for file in 0..50 {
            fs::write(a.join(format!("f{file}")), random.data(9000)).unwrap();
        }
        btrfs(
            &["subvolume", "snapshot", a.to_str().unwrap()],
            &mount.path().join("s"),
        );
        fs::write(a.join("f1"), random.data(50_000)).unwrap();
    }
    let go_on = &mut |_: &butterfs_fs::subvolume::du::Progress| ControlFlow::Continue(());
    let fs = open_subvolume(&image, TreeId::FS);
    fs.enable_quotas(QuotaMode::Full, &Limits::default(), go_on)
        .unwrap();
    let (a, group) = (GroupId::of_tree(TreeId(256)), "1/7".parse().unwrap());
    fs.change_quotas(|engine| Ok(engine.quota_state_mut().create_group(group)?))
        .unwrap();
    let assigned = fs
        .change_quotas(|engine| Ok(engine.assign_quota_group(a, group)?))
        .unwrap();
    assert_eq!(assigned, Assigned::NeedsRescan);
    assert!(is_inconsistent(&fs));
    fs.rescan_quotas(&Limits::default(), go_on).unwrap();
    assert!(!is_inconsistent(&fs));
    let ours = kept(&fs);
    assert_eq!(ours, counted(&fs));
    assert_eq!(ours[&a], ours[&group]);
    drop(fs);
    check(&image);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        assert_eq!(shown(mount.path()), ours);
    }
    assert_eq!(rescanned(&image, dir.path()), ours);
    let fs = open_subvolume(&image, TreeId::FS);
    fs.disable_quotas().unwrap();
    drop(fs);
    check(&image);
    let mount = KernelMount::new(&image, dir.path(), "noatime");
    btrfs(&["quota", "enable"], mount.path());
}

/// Writes of 64 KiB until one is refused. Returns how many bytes were written.
fn fill_up(fs: &Filesystem, tree: TreeId, name: &str) -> u64 {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = match fs.create(root(tree), name.as_bytes(), &new) {
        Ok(inode) => inode,
        Err(error) => {
            assert_eq!(error.errno(), 122, "{error}");
            return 0;
        }
    };
    let mut random = Random(9);
    let data: Vec<u8> = (0..1 << 16).map(|_| random.below(256) as u8).collect();
    let mut at = 0;
    loop {
        match fs.write(&inode, at, &data) {
            Ok(written) => at += written as u64,
            Err(error) => {
                assert_eq!(error.errno(), 122, "{error}");
                return at;
            }
        }
    }
}

/// Limits also hold for what waits in memory, and in groups of groups. When
/// something is deleted, there is room again.
#[test]
fn limits_are_kept() {
    if !common::is_root() {
        return;
    }
    let (dir, image) = mkfs(1 << 30, &[]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        btrfs(&["quota", "enable"], mount.path());
        btrfs(&["qgroup", "create", "1/1"], mount.path());
        for name in ["a", "b"] {
            btrfs(
                &["subvolume", "create", "-i", "1/1"],
                &mount.path().join(name),
            );
        }
        btrfs(&["qgroup", "limit", "8M", "0/256"], mount.path());
        btrfs(&["qgroup", "limit", "-e", "12M", "1/1"], mount.path());
        btrfs(&["quota", "rescan", "-w"], mount.path());
    }
    let (a, b) = (TreeId(256), TreeId(257));
    let fs = open_subvolume(&image, TreeId::FS);
    let used = |id: &str| kept(&fs)[&id.parse::<GroupId>().unwrap()];
    let written = fill_up(&fs, a, "f");
    assert!((7 << 20..=8 << 20).contains(&written), "{written}");
    // Overwriting needs room until the next commit, as in the kernel.
    let first = fs.lookup(root(a), b"f").unwrap().inode;
    let error = fs.write(&fs.inode(first).unwrap(), 0, &[1; 1 << 20]);
    assert_eq!(error.unwrap_err().errno(), 122);
    let written = fill_up(&fs, b, "f");
    assert!((3 << 20..=4 << 20).contains(&written), "{written}");
    fs.sync_all().unwrap();
    assert!(used("0/256").referenced <= 8 << 20);
    assert!(used("1/1").exclusive <= 12 << 20);
    assert_eq!(kept(&fs), counted(&fs));
    fs.unlink(root(a), b"f").unwrap();
    let written = fill_up(&fs, b, "g");
    assert!(written >= 7 << 20, "{written}");
    // This group has no limit, so writes do not end. The other group's limit
    // still holds.
    fs.change_quotas(|engine| {
        let none = butterfs_store::LimitChange {
            exclusive: Some(None),
            ..Default::default()
        };
        Ok(engine
            .quota_state_mut()
            .limit_group("1/1".parse().unwrap(), none)?)
    })
    .unwrap();
    let other = fs.lookup(root(b), b"g").unwrap().inode;
    fs.write(&fs.inode(other).unwrap(), 0, &vec![3; 20 << 20])
        .unwrap();
    fs.sync_all().unwrap();
    assert_eq!(kept(&fs), counted(&fs));
    drop(fs);
    check(&image);
}

/// More than ten thousand changes, with the same result as the kernel's rescan.
#[test]
fn numbers_are_the_kernels_after_ten_thousand_changes() {
    if !common::is_root() {
        return;
    }
    for seed in seeds(77) {
        exercise(seed, &[], (200, 40));
    }
}

/// If the rule for snapshots does not hold, the status says so, and a scan
/// corrects the numbers.
#[test]
fn what_cannot_be_followed_is_inconsistent_until_a_scan() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(3);
    let (dir, image) = mkfs(1 << 30, &[]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        fill(mount.path(), &mut random);
    }
    let fs = open_subvolume(&image, TreeId::FS);
    // The snapshot enters a group that has other members and that its source is
    // not in.
    let groups = BTreeSet::from(["1/2".parse().unwrap()]);
    let a = TreeId(256);
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    fs.create_subvolume_in_groups(fs.root(), b"other", &new, &groups)
        .unwrap();
    assert!(!is_inconsistent(&fs));
    let missing = BTreeSet::from(["1/77".parse().unwrap()]);
    let error = fs.snapshot_in_groups(a, (fs.root(), b"x"), Access::ReadOnly, &missing);
    assert_eq!(error.unwrap_err().errno(), 2);
    fs.snapshot_in_groups(a, (fs.root(), b"x"), Access::ReadOnly, &groups)
        .unwrap();
    assert!(is_inconsistent(&fs));
    drop(fs);
    check(&image);
    // It stays so until somebody counts.
    let fs = open_subvolume(&image, TreeId::FS);
    assert!(is_inconsistent(&fs));
    let name = fs.lookup(root(a), b"f1").unwrap().inode;
    fs.write(&fs.inode(name).unwrap(), 0, &[1; 70_000]).unwrap();
    fs.rescan_quotas(&Limits::default(), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert!(!is_inconsistent(&fs));
    let ours = kept(&fs);
    assert_eq!(ours, counted(&fs));
    drop(fs);
    check(&image);
    assert_eq!(rescanned(&image, dir.path()), ours);
}

/// A fsync log that is replayed is counted like other changes.
#[test]
fn a_replay_is_counted() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(4);
    let (dir, image) = mkfs(1 << 30, &[]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        fill(mount.path(), &mut random);
    }
    let crashed = dir.path().join("crashed.img");
    {
        let fs = open_subvolume(&image, TreeId::FS);
        for name in ["f1", "f2", "f3"] {
            let file = fs.lookup(root(TreeId(256)), name.as_bytes()).unwrap();
            let inode = fs.inode(file.inode).unwrap();
            let data = random.data(90_000);
            fs.write(&inode, random.below(9) * 4096, &data).unwrap();
            fs.fsync(&inode).unwrap();
        }
        fs::copy(&image, &crashed).unwrap();
    }
    let fs = open_subvolume(&crashed, TreeId::FS);
    fs.sync_all().unwrap();
    assert!(!is_inconsistent(&fs));
    let ours = kept(&fs);
    assert_eq!(ours, counted(&fs));
    drop(fs);
    check(&crashed);
    assert_eq!(rescanned(&crashed, dir.path()), ours);
}

/// Nobody waits for a count: what is committed during the count is in its
/// numbers. The volume is changed from within the count, which would hang if
/// the count held a lock.
#[test]
fn a_count_is_made_beside_changes() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(8);
    let (dir, image) = mkfs(1 << 30, &["-n", "4096"]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        fill(mount.path(), &mut random);
    }
    let fs = open_subvolume(&image, TreeId::FS);
    let mut calls = 0;
    let crashed = dir.path().join("crashed.img");
    let go_on = &mut |_: &butterfs_fs::subvolume::du::Progress| {
        calls += 1;
        if calls > 20 {
            return ControlFlow::Continue(());
        }
        assert!(is_inconsistent(&fs));
        for file in 0..10 {
            let name = format!("f{}", random.below(150));
            let Ok(found) = fs.lookup(root(TreeId(256)), name.as_bytes()) else {
                continue;
            };
            if file == 0 {
                fs.unlink(root(TreeId(256)), name.as_bytes()).unwrap();
                continue;
            }
            let inode = fs.inode(found.inode).unwrap();
            let data = random.data(30_000);
            fs.write(&inode, random.below(9) * 4096, &data).unwrap();
        }
        fs.sync_all().unwrap();
        if calls == 2 {
            fs::copy(&image, &crashed).unwrap();
        }
        ControlFlow::Continue(())
    };
    fs.rescan_quotas(&Limits::default(), go_on).unwrap();
    assert!(calls >= 2, "the count told of its progress {calls} times");
    assert!(!is_inconsistent(&fs));
    assert_eq!(kept(&fs), counted(&fs));
    // What was held is free again, so the file can be overwritten many times.
    for _ in 0..20 {
        let found = fs.lookup(root(TreeId(257)), b"f1").unwrap();
        let inode = fs.inode(found.inode).unwrap();
        fs.write(&inode, 0, &random.data(100_000)).unwrap();
        fs.sync_all().unwrap();
    }
    let ours = kept(&fs);
    assert_eq!(ours, counted(&fs));
    drop(fs);
    check(&image);
    assert_eq!(rescanned(&image, dir.path()), ours);
    // The copy is what a crash in the middle of the count leaves. The kernel
    // counts anew when it mounts it.
    check(&crashed);
    let by_kernel = dir.path().join("by-kernel.img");
    fs::copy(&crashed, &by_kernel).unwrap();
    {
        let mount = KernelMount::new(&by_kernel, dir.path(), "noatime");
        btrfs(&["quota", "rescan", "-W"], mount.path());
    }
    check(&by_kernel);
    let fs = open_subvolume(&by_kernel, TreeId::FS);
    assert!(!is_inconsistent(&fs));
    assert_eq!(kept(&fs), counted(&fs));
    drop(fs);
    // Readers and writers of ours see that a count was interrupted, and say so.
    let fs = open_subvolume(&crashed, TreeId::FS);
    let reason = |fs: &Filesystem| {
        let engine = fs.store().read();
        engine.quotas().unwrap().reason().map(str::to_owned)
    };
    assert!(is_inconsistent(&fs));
    assert_eq!(reason(&fs).as_deref(), Some("a rescan was interrupted"));
    // A count that is interrupted leaves the same.
    let stop = &mut |_: &butterfs_fs::subvolume::du::Progress| ControlFlow::Break(());
    assert!(fs.rescan_quotas(&Limits::default(), stop).is_err());
    assert!(is_inconsistent(&fs));
    assert_eq!(reason(&fs).as_deref(), Some("a count failed"));
    fs.rescan_quotas(&Limits::default(), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert!(!is_inconsistent(&fs));
    assert_eq!(kept(&fs), counted(&fs));
    drop(fs);
    check(&crashed);
}

/// EDQUOT wherever something is added. Removing, and growing a hole, cost
/// nothing.
#[test]
fn limits_hold_everywhere() {
    if !common::is_root() {
        return;
    }
    let (dir, image) = mkfs(1 << 30, &[]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        btrfs(&["quota", "enable"], mount.path());
        for name in ["a", "b"] {
            btrfs(&["subvolume", "create"], &mount.path().join(name));
        }
        fs::write(mount.path().join("a/f"), vec![1; 200_000]).unwrap();
        fs::write(mount.path().join("b/f"), vec![1; 2_000_000]).unwrap();
        btrfs(&["qgroup", "create", "1/1"], mount.path());
        btrfs(&["qgroup", "limit", "1M", "1/1"], mount.path());
        btrfs(&["quota", "rescan", "-w"], mount.path());
    }
    let (a, b) = (TreeId(256), TreeId(257));
    let fs = open_subvolume(&image, TreeId::FS);
    let limit = |tree: TreeId, bytes: Option<u64>| {
        let change = butterfs_store::LimitChange {
            referenced: Some(bytes),
            ..Default::default()
        };
        let set = |engine: &mut butterfs_store::Engine| {
            Ok(engine
                .quota_state_mut()
                .limit_group(GroupId::of_tree(tree), change)?)
        };
        fs.change_quotas(set).unwrap();
    };
    // The subvolume uses more than it may already.
    limit(a, Some(100_000));
    let refused = |result: Result<(), butterfs_fs::FsError>| {
        assert_eq!(result.expect_err("a limit").errno(), 122);
    };
    let file = NewInode::new(S_IFREG | 0o644, Owner::default());
    let dir_of = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let symlink = NewInode::symlink(b"target", Owner::default());
    for new in [&file, &dir_of, &symlink] {
        refused(fs.create(root(a), b"new", new).map(drop));
    }
    refused(fs.create_unnamed(root(a), &file).map(drop));
    let f = fs.lookup(root(a), b"f").unwrap().inode;
    let inode = fs.inode(f).unwrap();
    refused(fs.link(f, root(a), b"g"));
    let place = |name: &'static [u8]| butterfs_fs::rename::Place { dir: root(a), name };
    let mode = butterfs_fs::rename::RenameMode::Replace;
    let old = butterfs_fs::rename::OldName::Free;
    refused(fs.rename(place(b"f"), place(b"g"), mode, old));
    let any = butterfs_fs::xattr::SetMode::Any;
    refused(fs.set_xattr(&inode, b"user.x", b"value", any));
    let grow = butterfs_fs::file::FallocateMode::Allocate;
    refused(fs.fallocate(&inode, grow, 0, 1 << 20));
    let other = fs.lookup(root(b), b"f").unwrap().inode;
    let source = fs.inode(other).unwrap();
    refused(fs.copy_range((&source, 0), (&inode, 0), 1 << 20).map(drop));
    refused(fs.create_subvolume(root(a), b"sub", &dir_of).map(drop));
    refused(fs.snapshot(b, root(a), b"sub", Access::ReadWrite).map(drop));
    // These cost nothing: a longer hole, a shorter file, and no file.
    fs.truncate(&inode, 10 << 20).unwrap();
    fs.truncate(&inode, 100).unwrap();
    fs.unlink(root(a), b"f").unwrap();
    fs.sync_all().unwrap();
    fs.create(root(a), b"new", &file).unwrap();
    // A snapshot enters a group with everything that it reaches.
    let groups = BTreeSet::from(["1/1".parse().unwrap()]);
    let entered = fs.snapshot_in_groups(b, (fs.root(), b"s"), Access::ReadOnly, &groups);
    refused(entered.map(drop));
    // A snapshot may use what its source may.
    limit(b, Some(5 << 20));
    let s = fs.snapshot(b, fs.root(), b"s", Access::ReadWrite).unwrap();
    let max = |tree: TreeId| {
        let engine = fs.store().read();
        let group = engine.quotas().unwrap().group(GroupId::of_tree(tree));
        group.unwrap().limit.referenced_max
    };
    assert_eq!(max(s), 5 << 20);
    fs.sync_all().unwrap();
    assert!(!is_inconsistent(&fs));
    assert_eq!(kept(&fs), counted(&fs));
    drop(fs);
    check(&image);
}

/// A subvolume that is in a group by two ways counts once.
#[test]
fn groups_that_overlap_are_exact_or_counted_anew() {
    let (_dir, image) = mkfs(512 << 20, &[]);
    let go_on = &mut |_: &butterfs_fs::subvolume::du::Progress| ControlFlow::Continue(());
    let fs = open_subvolume(&image, TreeId::FS);
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let [one, two] = [&b"one"[..], b"two"].map(|name| {
        let tree = fs.create_subvolume(fs.root(), name, &new).unwrap();
        let file = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = fs.create(root(tree), b"file", &file).unwrap();
        fs.write(&inode, 0, &[7; 300_000]).unwrap();
        GroupId::of_tree(tree)
    });
    fs.sync_all().unwrap();
    fs.enable_quotas(QuotaMode::Full, &Limits::default(), go_on)
        .unwrap();
    let [low, high]: [GroupId; 2] = ["1/1", "2/1"].map(|id| id.parse().unwrap());
    for group in [low, high] {
        fs.change_quotas(|engine| Ok(engine.quota_state_mut().create_group(group)?))
            .unwrap();
    }
    let joins = [
        (one, low, true),
        (two, low, true),
        (one, high, true),
        (low, high, true),
        (low, high, false),
        (one, high, false),
        (low, high, true),
        (one, high, true),
        (low, high, false),
    ];
    let mut anew = 0;
    for (child, parent, joins) in joins {
        let assigned = fs.change_quotas(|engine| {
            Ok(match joins {
                true => engine.assign_quota_group(child, parent)?,
                false => engine.remove_quota_relation(child, parent)?,
            })
        });
        let assigned = assigned.unwrap();
        assert_eq!(is_inconsistent(&fs), assigned == Assigned::NeedsRescan);
        if assigned == Assigned::NeedsRescan {
            anew += 1;
            fs.rescan_quotas(&Limits::default(), go_on).unwrap();
        }
        assert_eq!(kept(&fs), counted(&fs), "{child} {parent} {joins}");
    }
    assert_eq!(anew, 3, "only where subvolumes are there already");
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}
