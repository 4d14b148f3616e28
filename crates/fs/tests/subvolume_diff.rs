//! Differences between snapshots and the history of files, compared with a
//! full walk of what the kernel shows of both, after random operations.

mod common;

use butterfs_format::{InodeId, InodeNumber, TreeId};
use butterfs_fs::FsError;
use butterfs_fs::subvolume::diff::{
    Compared, Difference, DifferenceKind, Field, FileDifference, diff,
};
use butterfs_fs::subvolume::history::{AtPath, Subject, history};
use butterfs_fs::subvolume::list::Subvolumes;
use butterfs_store::{Engine, LogPolicy, OpenOptions, Store};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Op, TreeView};
use common::{KernelMount, Random, mkfs, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

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

/// An inode as the kernel shows it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    born: SystemTime,
    changed: (i64, i64),
    mode: u32,
    uid: u32,
    gid: u32,
    device: u64,
    modified: (i64, i64),
    size: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Directory and name, with the path.
    names: BTreeMap<(u64, Vec<u8>), Vec<u8>>,
}

/// All inodes of a subvolume by number.
type Walked = BTreeMap<u64, Seen>;

fn walk(root: &Path) -> Walked {
    let mut all = Walked::new();
    let view = MountedTree::new(root);
    let mut waiting = vec![(root.to_owned(), Vec::new(), None)];
    while let Some((at, path, name)) = waiting.pop() {
        let meta = fs::symlink_metadata(&at).unwrap();
        if meta.ino() == InodeNumber::EMPTY_SUBVOLUME.get() || (name.is_some() && meta.ino() == 256)
        {
            continue;
        }
        let seen = all.entry(meta.ino()).or_insert_with(|| Seen {
            born: meta.created().unwrap(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            device: meta.rdev(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            size: meta.size(),
            content: if meta.is_file() {
                fs::read(&at).unwrap()
            } else {
                Vec::new()
            },
            xattrs: view.xattrs(&at).unwrap().into_iter().collect(),
            names: BTreeMap::new(),
        });
        if let Some(name) = name {
            seen.names.insert(name, path.clone());
        }
        if meta.is_dir() {
            for entry in fs::read_dir(&at).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().as_bytes().to_vec();
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(&name);
                waiting.push((entry.path(), below, Some((meta.ino(), name))));
            }
        }
    }
    all
}

fn paths(seen: &Seen) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = seen.names.values().cloned().collect();
    if paths.is_empty() {
        paths.push(Vec::new());
    }
    paths.sort();
    paths
}

/// Paths of the names of `one` that `other` does not have.
fn names_only(one: &Seen, other: &Seen) -> Vec<Vec<u8>> {
    let names = one.names.iter();
    let only = names.filter(|(name, _)| !other.names.contains_key(*name));
    let mut paths: Vec<_> = only.map(|(_, path)| path.clone()).collect();
    paths.sort();
    paths
}

fn fields(old: &Seen, new: &Seen) -> Vec<Field> {
    let mut fields = BTreeSet::new();
    for (field, differs) in [
        (Field::Mode, old.mode != new.mode),
        (Field::Uid, old.uid != new.uid),
        (Field::Gid, old.gid != new.gid),
        (Field::Device, old.device != new.device),
        (Field::Modified, old.modified != new.modified),
    ] {
        if differs {
            fields.insert(field);
        }
    }
    for name in old.xattrs.keys().chain(new.xattrs.keys()) {
        if old.xattrs.get(name) != new.xattrs.get(name) {
            fields.insert(Field::Xattr(name.clone()));
        }
    }
    fields.into_iter().collect()
}

fn same_file(old: &Seen, new: &Seen) -> bool {
    old.born == new.born
}

/// Checks what was found of one inode against both walks.
fn judge(found: Option<&FileDifference>, old: &Seen, new: &Seen, at: &str) {
    let unchanged = old.changed == new.changed
        && names_only(old, new).is_empty()
        && names_only(new, old).is_empty();
    let Some(found) = found else {
        assert_eq!(fields(old, new), [], "{at}");
        assert_eq!(names_only(old, new), Vec::<Vec<u8>>::new(), "{at}");
        assert_eq!(names_only(new, old), Vec::<Vec<u8>>::new(), "{at}");
        assert!(old.content == new.content, "{at}: content");
        return;
    };
    assert!(!unchanged, "{at}: nothing changed, but {found:?}");
    assert_eq!(found.kind, DifferenceKind::Changed, "{at}");
    assert_eq!(found.mode, new.mode, "{at}");
    assert_eq!(found.paths, paths(new), "{at}");
    assert_eq!(found.names_removed, names_only(old, new), "{at}");
    assert_eq!(found.names_added, names_only(new, old), "{at}");
    let visible = found.fields.iter().filter(|field| **field != Field::Flags);
    assert_eq!(
        visible.cloned().collect::<Vec<_>>(),
        fields(old, new),
        "{at}"
    );
    if new.mode & 0o170_000 != 0o100_000 {
        return;
    }
    assert_eq!(
        (found.size_old, found.size_new),
        (old.size, new.size),
        "{at}"
    );
    let end = old.size.max(new.size);
    let mut equal_from = 0;
    for range in found
        .content
        .iter()
        .cloned()
        .chain(std::iter::once(end..end))
    {
        assert!(
            range.start >= equal_from && range.end <= end,
            "{at}: {found:?}"
        );
        let equal = equal_from as usize..range.start as usize;
        let part = |content: &[u8]| {
            let part = content.get(equal.clone()).map(<[u8]>::to_vec);
            part.filter(|_| !equal.is_empty())
        };
        assert!(
            part(&old.content) == part(&new.content),
            "{at}: bytes {equal_from}..{} differ, found {found:?}",
            range.start
        );
        equal_from = range.end;
    }
}

fn files(engine: &Engine, compared: Compared) -> BTreeMap<u64, Vec<FileDifference>> {
    let mut found: BTreeMap<u64, Vec<FileDifference>> = BTreeMap::new();
    diff::<FsError>(engine, compared, &mut |difference| {
        if let Difference::File(file) = difference {
            found.entry(file.inode.get()).or_default().push(file);
        }
        Ok(())
    })
    .unwrap();
    found
}

fn judge_pair(engine: &Engine, ids: [TreeId; 2], walks: [&Walked; 2], at: &str) {
    let compared = Compared {
        old: ids[0],
        new: ids[1],
    };
    let found = files(engine, compared);
    let [old, new] = walks;
    let inodes: BTreeSet<u64> = old
        .keys()
        .chain(new.keys())
        .chain(found.keys())
        .copied()
        .collect();
    for inode in inodes {
        let at = format!("{at}, inode {inode}");
        let found = found.get(&inode).map_or(&[][..], |all| all);
        match (old.get(&inode), new.get(&inode)) {
            (Some(old), Some(new)) if same_file(old, new) => {
                assert!(found.len() < 2, "{at}");
                judge(found.first(), old, new, &at);
            }
            (old, new) => {
                let whole = [(old, DifferenceKind::Removed), (new, DifferenceKind::Added)];
                let expected: Vec<_> = whole
                    .into_iter()
                    .filter_map(|(seen, kind)| Some((kind, paths(seen?), seen?.mode)))
                    .collect();
                let found = found.iter();
                let found: Vec<_> = found
                    .map(|file| (file.kind, file.paths.clone(), file.mode))
                    .collect();
                assert_eq!(found, expected, "{at}");
            }
        }
    }
}

fn judge_history(engine: &Engine, ids: &[TreeId], walks: &[Walked], random: &mut Random) {
    let last = walks.len() - 1;
    for _ in 0..10 {
        let from = random.below(walks.len() as u64) as usize;
        let inodes: Vec<_> = walks[from].keys().copied().collect();
        let inode = inodes[random.below(inodes.len() as u64) as usize];
        let wanted = &walks[from][&inode];
        let path = paths(wanted)[0].clone();
        let subject = Subject {
            inode: InodeId {
                tree: ids[from],
                number: InodeNumber(inode),
            },
            path: &path,
        };
        let entries = history(engine, subject).unwrap();
        // The original comes last: it changed after the last snapshot.
        let snapshots: Vec<_> = entries
            .iter()
            .filter(|e| ids.contains(&e.subvolume))
            .collect();
        assert_eq!(snapshots.len(), ids.len());
        assert_eq!(entries.len(), ids.len() + 1);
        let mut before: Option<&Seen> = None;
        for (at, entry) in snapshots.iter().enumerate().take(last + 1) {
            let text = format!("history of {inode}, snapshot {at}");
            assert_eq!(entry.subvolume, ids[at], "{text}");
            let here = walks[at].get(&inode).filter(|seen| same_file(seen, wanted));
            assert_eq!(entry.file.is_some(), here.is_some(), "{text}");
            let holder = walks[at]
                .iter()
                .find(|(_, seen)| paths(seen).contains(&path));
            match (entry.at_path, holder) {
                (AtPath::Nothing, None) => {}
                (AtPath::SameFile, Some((found, _))) => {
                    assert!(*found == inode && here.is_some(), "{text}");
                }
                (AtPath::Other(found), Some((holder, seen))) => {
                    assert_eq!(found.get(), *holder, "{text}");
                    assert!(found.get() != inode || !same_file(seen, wanted), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
            if let (Some(file), Some(here)) = (&entry.file, here) {
                assert_eq!(file.paths, paths(here), "{text}");
                match before {
                    Some(old) => judge(file.change.as_ref(), old, here, &text),
                    None => assert_eq!(file.change, None, "{text}"),
                }
                before = Some(here);
            }
        }
    }
}

fn exercise(seed: u64, mkfs_options: &[&str], mount_options: &str) {
    let mut random = Random(seed);
    let (dir, image) = mkfs(1 << 30, mkfs_options);
    let mount = KernelMount::new(&image, dir.path(), mount_options);
    let live = mount.path().join("live");
    run("btrfs", &["subvolume", "create", live.to_str().unwrap()]);
    // Some hundred files that stay as they are.
    fs::create_dir(live.join("still")).unwrap();
    for at in 0..300 {
        fs::write(live.join(format!("still/{at}")), random.data(3000)).unwrap();
    }
    let mut ops = Generator::new(seed);
    let mut walks = Vec::new();
    for snapshot in 0..8 {
        let mut count = [5, 40, 150][random.below(3) as usize];
        while count > 0 {
            count -= 1;
            match ops.next().unwrap() {
                Op::Remount | Op::Snapshot { .. } => {}
                op => drop(apply_to_path(&op, &live)),
            }
        }
        let target = mount.path().join(format!("s{snapshot}"));
        let paths = [live.to_str().unwrap(), target.to_str().unwrap()];
        run(
            "btrfs",
            &["subvolume", "snapshot", "-r", paths[0], paths[1]],
        );
        walks.push(walk(&target));
    }
    fs::write(live.join("after"), "all snapshots").unwrap();
    drop(mount);
    let store = open(&image);
    let engine = store.read();
    let all = Subvolumes::load(&engine).unwrap();
    let ids: Vec<TreeId> = (0..walks.len())
        .map(|at| all.by_path(format!("s{at}").as_bytes()).unwrap().id)
        .collect();
    for old in 0..walks.len() {
        for new in 0..walks.len() {
            let at = format!("seed {seed}, s{old} to s{new}");
            judge_pair(
                &engine,
                [ids[old], ids[new]],
                [&walks[old], &walks[new]],
                &at,
            );
        }
    }
    judge_history(&engine, &ids, &walks, &mut random);
}

#[test]
fn differences_are_those_of_a_full_walk() {
    if !common::is_root() {
        return;
    }
    clear_umask();
    let seeds = std::env::var("BUTTERFS_SEEDS").ok().map(|text| {
        let (first, last) = text.split_once("..").unwrap();
        first.parse().unwrap()..=last.parse().unwrap()
    });
    for seed in seeds.unwrap_or(1..=6u64) {
        match seed % 3 {
            0 => exercise(seed, &["-n", "4096"], "noatime,compress=zstd"),
            1 => exercise(seed, &[], "relatime"),
            _ => exercise(
                seed,
                &["-n", "4096", "-O", "^no-holes"],
                "noatime,compress-force=lzo",
            ),
        }
    }
}

/// The cost follows what changed, not what exists; nested subvolumes show.
#[test]
fn what_is_shared_is_not_read() {
    if !common::is_root() {
        return;
    }
    let (dir, image) = mkfs(1 << 30, &["-n", "4096"]);
    let mount = KernelMount::new(&image, dir.path(), "noatime");
    let path = |name: &str| mount.path().join(name).to_str().unwrap().to_owned();
    run("btrfs", &["subvolume", "create", &path("live")]);
    for at in 0..20_000 {
        fs::write(mount.path().join(format!("live/f{at}")), "x").unwrap();
    }
    run("btrfs", &["subvolume", "create", &path("live/leaves")]);
    run(
        "btrfs",
        &["subvolume", "snapshot", "-r", &path("live"), &path("s0")],
    );
    for at in [10, 7000, 19_990] {
        fs::write(mount.path().join(format!("live/f{at}")), "y").unwrap();
    }
    run(
        "btrfs",
        &["subvolume", "delete", "-C", &path("live/leaves")],
    );
    run("btrfs", &["subvolume", "create", &path("live/comes")]);
    run(
        "btrfs",
        &["subvolume", "snapshot", "-r", &path("live"), &path("s1")],
    );
    drop(mount);
    let store = open(&image);
    let engine = store.read();
    let all = Subvolumes::load(&engine).unwrap();
    let id = |name: &str| all.by_path(name.as_bytes()).unwrap().id;
    let compared = Compared {
        old: id("s0"),
        new: id("s1"),
    };
    let mut found = Vec::new();
    let cost = diff::<FsError>(&engine, compared, &mut |difference| {
        found.push(match difference {
            Difference::File(file) => {
                let path = String::from_utf8(file.paths[0].clone()).unwrap();
                format!("{path} {:?} {:?}", file.content, file.fields)
            }
            Difference::Subvolume { kind, path, .. } => {
                format!("{kind:?} {}", String::from_utf8(path).unwrap())
            }
        });
        Ok(())
    })
    .unwrap();
    found.sort();
    let expected = [
        " [] [Modified]",
        "Added comes",
        "Removed leaves",
        "f10 [0..1] [Modified]",
        "f19990 [0..1] [Modified]",
        "f7000 [0..1] [Modified]",
    ];
    assert_eq!(found, expected);
    println!("{cost:?}");
    assert!(cost.read < 80, "{cost:?}");
    let none = diff::<FsError>(
        &engine,
        Compared {
            new: compared.old,
            ..compared
        },
        &mut |d| panic!("{d:?}"),
    );
    assert!(none.unwrap().read <= 2);
}
