//! Deleted subvolumes that cannot be read to their end: what can be is freed,
//! the rest stays, and keeps nobody from anything. When it can be read again,
//! it is freed.

mod common;

use butterfs_format::{InodeId, NodeRef, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::subvolume::Cleaning;
use butterfs_fs::subvolume::du::Limits;
use butterfs_fs::{Filesystem, FsError};
use butterfs_store::{Access, QuotaMode};
use butterfs_tree::NodeSource;
use common::{Random, check, check_ours, mkfs, open_subvolume};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

const NODE: usize = 4096;

type Files = BTreeMap<String, Vec<u8>>;

fn directory() -> NewInode<'static> {
    NewInode::new(S_IFDIR | 0o755, Owner::default())
}

/// Makes files, or writes over those that are there.
fn fill(fs: &Filesystem, dir: InodeId, numbers: std::ops::Range<usize>, random: &mut Random) {
    for number in numbers {
        let name = format!("a rather long name of file number {number}");
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = match fs.lookup(dir, name.as_bytes()) {
            Ok(found) => fs.inode(found.inode).unwrap(),
            Err(_) => fs.create(dir, name.as_bytes(), &new).unwrap(),
        };
        let data = random.data(100 + 5000 * (number % 2));
        fs.write(&inode, 0, &data).unwrap();
    }
}

fn files_of(fs: &Filesystem, dir: InodeId) -> Files {
    let mut found = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        if entry.name.starts_with(b"a ") {
            found.push((entry.name.clone(), entry.target.inode));
        }
        true
    })
    .unwrap();
    let read = |(name, id): (Vec<u8>, InodeId)| {
        let inode = fs.inode(id).unwrap();
        let mut data = vec![0; fs.attributes(id).unwrap().size as usize];
        fs.read(&inode, 0, &mut data).unwrap();
        (String::from_utf8(name).unwrap(), data)
    };
    found.into_iter().map(read).collect()
}

/// All nodes of a tree, those above before those below, with their owners.
fn nodes_of(fs: &Filesystem, tree: TreeId) -> Vec<(NodeRef, TreeId)> {
    let engine = fs.store().read();
    let mut all = Vec::new();
    let mut waiting = vec![engine.tree_state(tree).unwrap().root];
    while let Some(reference) = waiting.pop() {
        let node = engine.node(reference).unwrap();
        all.push((reference, node.owner()));
        if !node.is_leaf() {
            waiting.extend((0..node.len()).rev().map(|slot| node.child(slot)));
        }
    }
    all
}

/// A node's places on the device, and what is there.
struct Damage {
    file: File,
    places: Vec<(u64, Vec<u8>)>,
}

impl Damage {
    /// Writes over a node.
    fn make(image: &Path, node: NodeRef) -> Self {
        let bytes = fs::read(image).unwrap();
        let fsid = &bytes[0x10020..0x10030];
        let is_node = |at: &usize| {
            let header = &bytes[*at..at + 56];
            header[32..48] == *fsid && header[48..] == node.logical.get().to_le_bytes()
        };
        let places = (0x20000..bytes.len()).step_by(NODE).filter(is_node);
        let places: Vec<_> = places
            .map(|at| (at as u64, bytes[at..at + NODE].to_vec()))
            .collect();
        assert!(!places.is_empty(), "{node:?} is not there");
        let file = File::options().write(true).open(image).unwrap();
        for (at, _) in &places {
            file.write_all_at(&[0x5a; 200], at + 200).unwrap();
        }
        Self { file, places }
    }

    fn undo(self) {
        for (at, bytes) in &self.places {
            self.file.write_all_at(bytes, *at).unwrap();
        }
    }
}

/// Cleans until nothing is left to do.
fn clean(fs: &Filesystem) -> Vec<Cleaning> {
    let mut done = Vec::new();
    loop {
        match fs.clean().unwrap() {
            Cleaning::Idle => return done,
            step => done.push(step),
        }
    }
}

fn open(image: &Path) -> Filesystem {
    open_subvolume(image, TreeId::FS)
}

/// The deleted subvolumes of [`volume`].
struct Deleted {
    /// Shares most of its nodes with a snapshot.
    large: TreeId,
    /// Comes after it.
    small: TreeId,
    /// Content of the snapshot.
    kept: Files,
}

fn volume(image: &Path) -> Deleted {
    let mut random = Random(3);
    let fs = open(image);
    let make = |name: &[u8]| fs.create_subvolume(fs.root(), name, &directory()).unwrap();
    let (large, small) = (make(b"large"), make(b"small"));
    fill(&fs, Filesystem::root_of(large), 0..3000, &mut random);
    fill(&fs, Filesystem::root_of(small), 0..200, &mut random);
    let kept = fs
        .snapshot(large, fs.root(), b"kept", Access::ReadOnly)
        .unwrap();
    fill(&fs, Filesystem::root_of(large), 200..300, &mut random);
    fill(&fs, Filesystem::root_of(large), 3000..3200, &mut random);
    fs.sync_all().unwrap();
    let kept = files_of(&fs, Filesystem::root_of(kept));
    assert_eq!(kept.len(), 3000);
    for name in [b"large", b"small"] {
        fs.delete_subvolume(fs.root(), name).unwrap();
    }
    fs.sync_all().unwrap();
    Deleted { large, small, kept }
}

fn dead(fs: &Filesystem) -> Vec<TreeId> {
    fs.store().read().dead_trees().unwrap()
}

/// Deletes what is deleted in the volume, with a node that cannot be read;
/// gives how many steps went well before it.
fn judge(image: &Path, deleted: &Deleted, node: NodeRef) -> usize {
    let damage = Damage::make(image, node);
    let mut random = Random(4);
    let fs = open(image);
    let steps = clean(&fs);
    let stuck = Cleaning::Stuck(deleted.large);
    let before = steps.iter().position(|step| *step == stuck).unwrap();
    assert_eq!(steps.iter().filter(|step| **step == stuck).count(), 1);
    assert_eq!(steps.last(), Some(&Cleaning::Freed(deleted.small)));
    assert_eq!(dead(&fs), [deleted.large]);
    let error = fs.clean_all().unwrap_err();
    assert!(matches!(error, FsError::Damaged { .. }), "{error}");
    assert_eq!(fs.store().poison(), None);
    // What is written now comes into the space that was freed.
    let dir = fs.create(fs.root(), b"new", &directory()).unwrap().id;
    fs.sync_all().unwrap();
    fill(&fs, dir, 0..400, &mut random);
    let new = files_of(&fs, dir);
    fs.sync_all().unwrap();
    drop(fs);
    // Nothing went on behind it, and the next one stops there at once.
    let fs = open(image);
    assert_eq!(clean(&fs), [stuck]);
    assert_eq!(dead(&fs), [deleted.large]);
    assert_eq!(files_of(&fs, dir), new);
    fill(&fs, dir, 400..500, &mut random);
    fs.sync_all().unwrap();
    drop(fs);
    damage.undo();
    check(image);
    check_ours(image);
    let fs = open(image);
    let steps = clean(&fs);
    assert_eq!(steps.last(), Some(&Cleaning::Freed(deleted.large)));
    fs.clean_all().unwrap();
    let place = fs.lookup(fs.root(), b"kept").unwrap().inode;
    assert!(files_of(&fs, place) == deleted.kept, "the snapshot changed");
    assert_eq!(files_of(&fs, dir).len(), 500);
    fs.sync_all().unwrap();
    drop(fs);
    check(image);
    check_ours(image);
    before
}

#[test]
fn what_cannot_be_read_stays_and_the_rest_goes() {
    let (dir, image) = mkfs(128 << 20, &["-n", "4096", "-m", "single"]);
    let deleted = volume(&image);
    let fs = open(&image);
    let nodes = nodes_of(&fs, deleted.large);
    let kept = fs.lookup(fs.root(), b"kept").unwrap().inode.tree;
    let shared: Vec<_> = nodes_of(&fs, kept).into_iter().map(|(at, _)| at).collect();
    drop(fs);
    let (shared, own): (Vec<_>, Vec<_>) = nodes
        .iter()
        .map(|(at, _)| *at)
        .partition(|at| shared.contains(at));
    let leaf = |node: &&NodeRef| node.level == 0;
    let leaves: Vec<_> = own.iter().filter(leaf).collect();
    let shared_leaves: Vec<_> = shared.iter().filter(leaf).collect();
    let branch = |nodes: &[NodeRef]| *nodes.iter().rfind(|node| node.level == 1).unwrap();
    let victims = [
        own[0],
        branch(&own),
        *leaves[0],
        *leaves[leaves.len() / 2],
        *leaves[leaves.len() - 1],
        branch(&shared),
        *shared_leaves[shared_leaves.len() / 2],
        *shared_leaves[shared_leaves.len() - 1],
    ];
    println!("{} own nodes, {} shared", own.len(), shared.len());
    assert!(own[0].level == 2 && leaves.len() > 60 && shared_leaves.len() > 60);
    let mut before = Vec::new();
    for victim in victims {
        let copy = dir.path().join("copy.img");
        fs::copy(&image, &copy).unwrap();
        before.push(judge(&copy, &deleted, victim));
    }
    println!("steps that went well before: {before:?}");
    assert_eq!(before[0], 0);
    assert!(before[4] > 2 && before[7] > 1, "{before:?}");
}

/// Quota groups cannot follow what a deleted subvolume shared when it cannot be
/// read. It is freed all the same: it has no other use for those nodes.
#[test]
fn what_is_shared_and_cannot_be_read_makes_numbers_inconsistent() {
    let (_dir, image) = mkfs(128 << 20, &["-n", "4096", "-m", "single"]);
    let mut random = Random(5);
    let fs = open(&image);
    let tree = fs
        .create_subvolume(fs.root(), b"origin", &directory())
        .unwrap();
    fill(&fs, Filesystem::root_of(tree), 0..600, &mut random);
    fs.enable_quotas(QuotaMode::Full, &Limits::default(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let snapshot = fs
        .snapshot(tree, fs.root(), b"snapshot", Access::ReadOnly)
        .unwrap();
    fs.delete_subvolume(fs.root(), b"snapshot").unwrap();
    fs.sync_all().unwrap();
    let is_inconsistent = |fs: &Filesystem| {
        let engine = fs.store().read();
        engine.quotas().unwrap().is_inconsistent()
    };
    assert!(!is_inconsistent(&fs));
    let nodes = nodes_of(&fs, snapshot);
    let leaf = nodes.iter().filter(|(at, _)| at.level == 0).nth(40);
    let (victim, owner) = *leaf.unwrap();
    assert_eq!(owner, tree);
    drop(fs);
    let damage = Damage::make(&image, victim);
    let fs = open(&image);
    let steps = clean(&fs);
    assert_eq!(steps.last(), Some(&Cleaning::Freed(snapshot)), "{steps:?}");
    fs.sync_all().unwrap();
    assert_eq!(fs.store().poison(), None);
    assert!(is_inconsistent(&fs));
    drop(fs);
    damage.undo();
    check(&image);
    check_ours(&image);
}
