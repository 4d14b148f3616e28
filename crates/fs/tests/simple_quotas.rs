//! Simple quotas: extents are charged to the subvolume that allocated them.
//! After each commit, the numbers equal what our own check counts from the
//! owner references. We continue what the kernel began, and the other way
//! round.

mod common;

use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::Filesystem;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::subvolume::du::Limits;
use butterfs_kernel::{QuotaSwitch, switch_quotas};
use butterfs_store::{Access, QuotaMode};
use common::{KernelMount, Random, check_ours, mkfs, open_subvolume, run};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;

type Numbers = BTreeMap<String, u64>;

fn kept(fs: &Filesystem) -> Numbers {
    let engine = fs.store().read();
    let quotas = engine.quotas().unwrap();
    assert!(quotas.is_simple());
    let groups = quotas.groups().map(|(id, group)| {
        assert_eq!(group.info.referenced, group.info.exclusive, "{id}");
        (id.to_string(), group.info.referenced)
    });
    groups.collect()
}

/// What `btrfs qgroup show` prints of a mounted volume.
fn shown(mount: &Path) -> Numbers {
    run("btrfs", &["filesystem", "sync", mount.to_str().unwrap()]);
    let text = run(
        "btrfs",
        &["qgroup", "show", "--raw", mount.to_str().unwrap()],
    );
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let id = words.next()?.parse::<GroupId>().ok()?;
        let (referenced, exclusive) = (words.next()?, words.next()?);
        assert_eq!(referenced, exclusive, "{line}");
        Some((id.to_string(), referenced.parse().ok()?))
    });
    rows.collect()
}

fn btrfs(args: &[&str], path: &Path) {
    run("btrfs", &[args, &[path.to_str().unwrap()]].concat());
}

/// False where this kernel does not know simple quotas.
fn enable_by_kernel(mount: &Path) -> bool {
    let directory = File::open(mount).unwrap();
    match switch_quotas(directory.as_fd(), QuotaSwitch::OnSimple) {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == 22 => {
            println!("skipped: this kernel does not know simple quotas");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn root(tree: TreeId) -> InodeId {
    Filesystem::root_of(tree)
}

fn write(fs: &Filesystem, tree: TreeId, name: &str, data: &[u8]) {
    let inode = match fs.lookup(root(tree), name.as_bytes()) {
        Ok(found) => fs.inode(found.inode).unwrap(),
        Err(_) => {
            let new = NewInode::new(S_IFREG | 0o644, Owner::default());
            fs.create(root(tree), name.as_bytes(), &new).unwrap()
        }
    };
    fs.write(&inode, 0, data).unwrap();
}

/// The scrub of a mounted volume finds nothing.
fn scrub(mount: &Path) {
    let text = run("btrfs", &["scrub", "start", "-B", mount.to_str().unwrap()]);
    assert!(text.contains("no errors found"), "{text}");
}

/// The kernel's part: some extents from before, some from after.
fn fill(mount: &Path, random: &mut Random) -> bool {
    let a = mount.join("a");
    btrfs(&["subvolume", "create"], &a);
    for file in 0..40 {
        let length = random.below(30_000) as usize;
        fs::write(a.join(format!("f{file}")), random.data(length)).unwrap();
    }
    btrfs(&["filesystem", "sync"], mount);
    if !enable_by_kernel(mount) {
        return false;
    }
    btrfs(&["qgroup", "create", "1/1"], mount);
    btrfs(&["qgroup", "assign", "0/256", "1/1"], mount);
    for file in 20..80 {
        let length = random.below(60_000) as usize;
        fs::write(a.join(format!("f{file}")), random.data(length)).unwrap();
    }
    let source = a.to_str().unwrap();
    btrfs(&["subvolume", "snapshot", source], &mount.join("s"));
    // A subvolume within a member of a group is in the group too.
    btrfs(&["subvolume", "create"], &a.join("nested"));
    for file in 30..50 {
        let length = random.below(60_000) as usize;
        fs::write(a.join(format!("f{file}")), random.data(length)).unwrap();
    }
    true
}

#[test]
fn numbers_of_the_kernel_are_kept() {
    if !common::is_root() {
        return;
    }
    for (seed, options) in [(1, &[][..]), (2, &["-n", "4096"])] {
        let mut random = Random(seed);
        let (dir, image) = mkfs(1 << 30, options);
        let theirs = {
            let mount = KernelMount::new(&image, dir.path(), "noatime");
            if !fill(mount.path(), &mut random) {
                return;
            }
            shown(mount.path())
        };
        common::check_theirs(&image);
        let (a, s) = (TreeId(256), TreeId(257));
        let fs = open_subvolume(&image, TreeId::FS);
        assert_eq!(kept(&fs), theirs, "as the kernel left it");
        change(&fs, &mut random, (a, s));
        let ours = kept(&fs);
        drop(fs);
        check_ours(&image);
        // The kernel reads, goes on and agrees with a count of its own items.
        let theirs = {
            let mount = KernelMount::new(&image, dir.path(), "noatime");
            assert_eq!(shown(mount.path()), ours);
            scrub(mount.path());
            for file in 0..90 {
                let path = mount.path().join(format!("a/f{file}"));
                if file % 3 == 0 && path.exists() {
                    fs::remove_file(path).unwrap();
                } else {
                    let length = random.below(40_000) as usize;
                    fs::write(path, random.data(length)).unwrap();
                }
            }
            let gone = mount.path().join("s");
            btrfs(&["subvolume", "delete", "-C"], &gone);
            btrfs(&["subvolume", "sync"], mount.path());
            shown(mount.path())
        };
        check_ours(&image);
        let fs = open_subvolume(&image, TreeId::FS);
        assert_eq!(kept(&fs), theirs);
        drop(fs);
    }
}

/// Everything that may remove owner references or leave them behind.
fn change(fs: &Filesystem, random: &mut Random, (a, s): (TreeId, TreeId)) {
    let before = kept(fs);
    write(fs, a, "new", &random.data(300_000));
    write(fs, a, "f70", &random.data(90_000));
    for file in 60..66 {
        let _ = fs.unlink(root(s), format!("f{file}").as_bytes());
    }
    fs.sync_all().unwrap();
    assert_ne!(kept(fs), before);
    // A reference of another subvolume costs it nothing.
    let other = fs
        .snapshot(a, fs.root(), b"other", Access::ReadWrite)
        .unwrap();
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let empty = fs.create_subvolume(root(a), b"within", &new).unwrap();
    fs.sync_all().unwrap();
    let middle = kept(fs);
    let node = fs.store().read().node_size() as u64;
    assert_eq!(middle[&format!("0/{other}")], node);
    // The new subvolume has the groups of the subvolume that holds it.
    {
        let engine = fs.store().read();
        let group = engine.quotas().unwrap().group(GroupId::of_tree(empty));
        let parents = &group.unwrap().parents;
        assert_eq!(
            parents.iter().map(GroupId::to_string).collect::<Vec<_>>(),
            ["1/1"]
        );
    }
    let source = fs.lookup(root(a), b"new").unwrap().inode;
    let file = NewInode::new(S_IFREG | 0o644, Owner::default());
    let target = fs.create(root(empty), b"clone", &file).unwrap();
    let copied = fs.copy_range((&fs.inode(source).unwrap(), 0), (&target, 0), 300_000);
    assert_eq!(copied.unwrap(), 300_000);
    fs.sync_all().unwrap();
    let shared = kept(fs);
    assert!(shared[&format!("0/{empty}")] < 10 * node, "{shared:?}");
    // The subvolume that allocated them pays for as long as anyone holds them.
    fs.unlink(root(a), b"new").unwrap();
    fs.sync_all().unwrap();
    assert!(kept(fs)["0/256"] + 2 * node >= shared["0/256"]);
    fs.delete_subvolume_by_id(other).unwrap();
    fs.clean_all().unwrap();
    fs.sync_all().unwrap();
    assert!(!kept(fs).contains_key(&format!("0/{other}")));
    // A replayed log is charged too.
    write(fs, a, "f71", &random.data(50_000));
    let inode = fs.lookup(root(a), b"f71").unwrap().inode;
    fs.fsync(&fs.inode(inode).unwrap()).unwrap();
    fs.sync_all().unwrap();
}

#[test]
fn our_simple_quotas_are_the_kernels() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(11);
    let (dir, image) = mkfs(1 << 30, &[]);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        btrfs(&["subvolume", "create"], &mount.path().join("a"));
        fs::write(mount.path().join("a/old"), random.data(70_000)).unwrap();
    }
    let go_on = &mut |_: &butterfs_fs::subvolume::du::Progress| ControlFlow::Continue(());
    let fs = open_subvolume(&image, TreeId::FS);
    // Data that wait when quotas are switched on are written later, so they are
    // charged.
    write(&fs, TreeId(256), "waits", &[3; 20_000]);
    fs.enable_quotas(QuotaMode::Simple, &Limits::default(), go_on)
        .unwrap();
    let wrong = fs.enable_quotas(QuotaMode::Full, &Limits::default(), go_on);
    assert_eq!(wrong.unwrap_err().errno(), 22);
    let wrong = fs.rescan_quotas(&Limits::default(), go_on);
    assert_eq!(wrong.unwrap_err().errno(), 22);
    assert_eq!(kept(&fs)["0/256"], 0);
    write(&fs, TreeId(256), "new", &random.data(200_000));
    fs.unlink(root(TreeId(256)), b"old").unwrap();
    let s = fs
        .snapshot(TreeId(256), fs.root(), b"s", Access::ReadOnly)
        .unwrap();
    fs.unlink(root(TreeId(256)), b"new").unwrap();
    fs.sync_all().unwrap();
    let numbers = kept(&fs);
    assert!(numbers["0/256"] >= 16_384, "{numbers:?}");
    // A group stays while others hold what its subvolume allocated.
    fs.delete_subvolume_by_id(TreeId(256)).unwrap();
    fs.clean_all().unwrap();
    fs.sync_all().unwrap();
    assert!(kept(&fs)["0/256"] > 0);
    let busy = fs.change_quotas(|engine| Ok(engine.destroy_quota_group(GroupId(256))?));
    assert_eq!(busy.unwrap_err().errno(), 16);
    drop(fs);
    check_ours(&image);
    {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        let ours = shown(mount.path());
        assert!(ours["0/256"] > 0);
        scrub(mount.path());
        btrfs(&["subvolume", "create"], &mount.path().join("b"));
        fs::write(mount.path().join("b/f"), random.data(99_000)).unwrap();
    }
    check_ours(&image);
    let fs = open_subvolume(&image, TreeId::FS);
    fs.delete_subvolume_by_id(s).unwrap();
    fs.clean_all().unwrap();
    fs.sync_all().unwrap();
    assert_eq!(kept(&fs)["0/256"], 0);
    fs.change_quotas(|engine| Ok(engine.destroy_quota_group(GroupId(256))?))
        .unwrap();
    // Limits count what is allocated.
    let limit = butterfs_store::LimitChange {
        referenced: Some(Some(1 << 20)),
        ..Default::default()
    };
    let b = fs.lookup(fs.root(), b"b").unwrap().inode.tree;
    fs.change_quotas(|engine| {
        Ok(engine
            .quota_state_mut()
            .limit_group(GroupId::of_tree(b), limit)?)
    })
    .unwrap();
    let file = fs.lookup(root(b), b"f").unwrap().inode;
    let refused = fs.write(&fs.inode(file).unwrap(), 0, &vec![1; 2 << 20]);
    assert_eq!(refused.unwrap_err().errno(), 122);
    drop(fs);
    check_ours(&image);
    // Off, and on again in the other mode: the owner references stay.
    let fs = open_subvolume(&image, TreeId::FS);
    fs.disable_quotas().unwrap();
    fs.enable_quotas(QuotaMode::Full, &Limits::default(), go_on)
        .unwrap();
    drop(fs);
    check_ours(&image);
    let mount = KernelMount::new(&image, dir.path(), "noatime");
    run(
        "btrfs",
        &["quota", "rescan", "-w", mount.path().to_str().unwrap()],
    );
    scrub(mount.path());
}

/// The same changes by both: the charge for data is equal to the byte.
#[test]
fn the_same_changes_cost_the_same() {
    if !common::is_root() {
        return;
    }
    let sizes: Vec<usize> = (1..30).map(|n| n * 7001).collect();
    let name = |at: usize| format!("f{at}");
    // Random bytes: compression is off on both sides.
    let mut random = Random(5);
    let data = |random: &mut Random, length: usize| -> Vec<u8> {
        (0..length).map(|_| random.below(256) as u8).collect()
    };
    let (dir, image) = mkfs(1 << 30, &[]);
    let theirs = {
        let mount = KernelMount::new(&image, dir.path(), "noatime");
        if !enable_by_kernel(mount.path()) {
            return;
        }
        let a = mount.path().join("a");
        btrfs(&["subvolume", "create"], &a);
        for (at, size) in sizes.iter().enumerate() {
            fs::write(a.join(name(at)), data(&mut random, *size)).unwrap();
        }
        btrfs(&["filesystem", "sync"], mount.path());
        btrfs(
            &["subvolume", "snapshot", a.to_str().unwrap()],
            &mount.path().join("s"),
        );
        for at in 0..10 {
            fs::remove_file(a.join(name(at))).unwrap();
        }
        shown(mount.path())
    };
    let (_second, image) = mkfs(1 << 30, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    fs.enable_quotas(QuotaMode::Simple, &Limits::default(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let a = fs.create_subvolume(fs.root(), b"a", &new).unwrap();
    for (at, size) in sizes.iter().enumerate() {
        write(&fs, a, &name(at), &data(&mut random, *size));
    }
    fs.sync_all().unwrap();
    fs.snapshot(a, fs.root(), b"s", Access::ReadWrite).unwrap();
    for at in 0..10 {
        fs.unlink(root(a), name(at).as_bytes()).unwrap();
    }
    fs.sync_all().unwrap();
    assert_eq!(kept(&fs), theirs);
}

/// A subvolume that is in a group by two ways counts once.
#[test]
fn groups_that_overlap_are_exact() {
    let (_dir, image) = mkfs(512 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    fs.enable_quotas(QuotaMode::Simple, &Limits::default(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    fs.sync_all().unwrap();
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let [one, two] = [(&b"one"[..], 100_000), (b"two", 200_000)].map(|(name, size)| {
        let tree = fs.create_subvolume(fs.root(), name, &new).unwrap();
        write(&fs, tree, "file", &vec![7; size]);
        GroupId::of_tree(tree)
    });
    fs.sync_all().unwrap();
    let [low, high]: [GroupId; 2] = ["1/1", "2/1"].map(|id| id.parse().unwrap());
    for group in [low, high] {
        fs.change_quotas(|engine| Ok(engine.quota_state_mut().create_group(group)?))
            .unwrap();
    }
    let numbers = kept(&fs);
    let used = |group: GroupId| numbers[&group.to_string()];
    let (one_used, both) = (used(one), used(one) + used(two));
    assert!(one_used > 100_000 && both > one_used + 200_000);
    let joins = [
        (one, low, true, 0),
        (two, low, true, 0),
        (one, high, true, one_used),
        (low, high, true, both),
        (low, high, false, one_used),
        (one, high, false, 0),
        (low, high, true, both),
        (one, high, true, both),
        (low, high, false, one_used),
        (one, high, false, 0),
    ];
    for (child, parent, joins, expected) in joins {
        fs.change_quotas(|engine| {
            Ok(match joins {
                true => engine.assign_quota_group(child, parent)?,
                false => engine.remove_quota_relation(child, parent)?,
            })
        })
        .unwrap();
        let numbers = kept(&fs);
        assert_eq!(numbers["2/1"], expected, "{child} {parent} {joins}");
    }
    assert_eq!(kept(&fs)["1/1"], both);
    fs.sync_all().unwrap();
    drop(fs);
    check_ours(&image);
}
