//! Deleted subvolumes that cannot be read to their end, or whose references the
//! extent tree lacks. What can be freed is freed, the rest stays, and nothing
//! else is affected. When the subvolume is whole again, it is freed.

mod common;

use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeId, ItemType, Key, NodeRef, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::subvolume::Cleaning;
use butterfs_fs::subvolume::du::Limits;
use butterfs_fs::{Filesystem, FsError};
use butterfs_store::{Access, Purpose, QuotaMode};
use butterfs_tree::NodeSource;
use common::{Random, check, check_ours, mkfs, open_subvolume};
use std::collections::{BTreeMap, BTreeSet};
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

/// Deletes what is deleted in the volume, with a node that cannot be read.
/// Returns how many steps went well before it.
fn judge(image: &Path, deleted: &Deleted, node: NodeRef) -> usize {
    let damage = Damage::make(image, node);
    judge_damaged(image, deleted, || damage.undo())
}

/// Deletes what is deleted in a volume with damage in the large subvolume.
/// `undo` undoes the damage.
fn judge_damaged(image: &Path, deleted: &Deleted, undo: impl FnOnce()) -> usize {
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
    // What is written now goes into the space that was freed.
    let dir = fs.create(fs.root(), b"new", &directory()).unwrap().id;
    fs.sync_all().unwrap();
    fill(&fs, dir, 0..400, &mut random);
    let new = files_of(&fs, dir);
    fs.sync_all().unwrap();
    drop(fs);
    // Nothing behind it was freed, and the next step stops there at once.
    let fs = open(image);
    assert_eq!(clean(&fs), [stuck]);
    assert_eq!(dead(&fs), [deleted.large]);
    assert_eq!(files_of(&fs, dir), new);
    fill(&fs, dir, 400..500, &mut random);
    fs.sync_all().unwrap();
    drop(fs);
    undo();
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

/// What the extent tree lacks of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    /// Its item.
    All,
    /// The reference: it names another tree.
    Reference,
}

/// Sets items of the extent tree, or removes them.
fn set_extent(image: &Path, key: Key, data: Option<&[u8]>) {
    let fs = open(image);
    let mut transaction = fs.store().begin(64, Purpose::Grow).unwrap();
    match data {
        Some(data) => butterfs_tree::replace(&mut *transaction, TreeId::EXTENT, &key, data),
        None => butterfs_tree::remove(&mut *transaction, TreeId::EXTENT, &key).map(drop),
    }
    .unwrap();
    transaction.finish();
    fs.store().commit().unwrap();
}

fn extent(image: &Path, key: Key) -> Vec<u8> {
    let fs = open(image);
    let engine = fs.store().read();
    let found = butterfs_tree::find(&*engine, TreeId::EXTENT, &key).unwrap();
    let (leaf, slot) = found.unwrap_or_else(|| panic!("no {key:?}"));
    leaf.data(slot).to_vec()
}

/// Keys of the items of the data extents in a leaf.
fn data_of(fs: &Filesystem, leaf: NodeRef) -> Vec<Key> {
    let node = fs.store().read().node(leaf).unwrap();
    let slots = (0..node.len()).filter(|slot| node.key(*slot).item_type == ItemType::EXTENT_DATA);
    let extents = slots.filter_map(|slot| {
        let extent = FileExtent::parse(node.data(slot)).unwrap();
        let FileExtentBody::Regular(place) = extent.body else {
            return None;
        };
        let (start, length) = (place.disk.get(), place.disk_length);
        (start != 0).then(|| Key::new(start, ItemType::EXTENT_ITEM, length))
    });
    extents.collect()
}

#[test]
fn what_the_extent_tree_lacks_stays_and_the_rest_goes() {
    let (dir, image) = mkfs(128 << 20, &["-n", "4096", "-m", "single"]);
    let deleted = volume(&image);
    let fs = open(&image);
    let kept = fs.lookup(fs.root(), b"kept").unwrap().inode.tree;
    let shared: Vec<_> = nodes_of(&fs, kept).into_iter().map(|(at, _)| at).collect();
    let nodes = nodes_of(&fs, deleted.large);
    let leaves = nodes.iter().map(|(at, _)| *at).filter(|at| at.level == 0);
    let (shared, own): (Vec<_>, Vec<_>) = leaves.partition(|at| shared.contains(at));
    let node = |at: NodeRef| Key::new(at.logical.get(), ItemType::METADATA_ITEM, 0);
    let data = |leaves: &[NodeRef]| {
        let mut found = leaves.iter().map(|leaf| data_of(&fs, *leaf));
        *found.find(|keys| !keys.is_empty()).unwrap().last().unwrap()
    };
    let victims = [
        ("a node of its own", node(own[own.len() / 2])),
        ("data of its own", data(&own[own.len() / 2..])),
        ("a shared node", node(shared[shared.len() / 2])),
        ("shared data", data(&shared[shared.len() / 2..])),
    ];
    drop(fs);
    let mut before = Vec::new();
    for (what, key) in victims {
        for lacks in [Lacks::All, Lacks::Reference] {
            println!("{what} lacks {lacks:?}");
            let copy = dir.path().join("copy.img");
            fs::copy(&image, &copy).unwrap();
            let old = extent(&copy, key);
            let mut other = old.clone();
            // The tree of its only reference, which is inline.
            let tree = 25..33;
            assert_eq!(
                other[tree.clone()],
                deleted.large.get().to_le_bytes(),
                "{what}"
            );
            other[tree].copy_from_slice(&TreeId::FS.get().to_le_bytes());
            let new = (lacks == Lacks::Reference).then_some(&other[..]);
            set_extent(&copy, key, new);
            let undo = || {
                let mut item = old.clone();
                if lacks == Lacks::Reference {
                    // The rest of the item may have changed meanwhile, so only
                    // the tree is put back.
                    item = extent(&copy, key);
                    item[25..33].copy_from_slice(&old[25..33]);
                }
                set_extent(&copy, key, Some(&item));
            };
            before.push(judge_damaged(&copy, &deleted, undo));
        }
    }
    println!("steps that went well before: {before:?}");
}

/// Other operations can go on as long as they need nothing from a leaf of the
/// extent tree that cannot be read.
#[test]
fn a_leaf_of_the_extent_tree_that_cannot_be_read_stops_the_cleaning_alone() {
    let (_dir, image) = mkfs(128 << 20, &["-n", "4096", "-m", "single"]);
    let deleted = volume(&image);
    let fs = open(&image);
    let own = nodes_of(&fs, deleted.large).into_iter().map(|(at, _)| at);
    let own = own.filter(|at| at.level == 0 && !data_of(&fs, *at).is_empty());
    let wanted: BTreeSet<Key> = own.flat_map(|at| data_of(&fs, at)).collect();
    let leaves = nodes_of(&fs, TreeId::EXTENT).into_iter().map(|(at, _)| at);
    let only_data = |at: &NodeRef| {
        let node = fs.store().read().node(*at).unwrap();
        at.level == 0 && (0..node.len()).all(|slot| wanted.contains(&node.key(slot)))
    };
    // Opening reads the leaves at the ends of block groups.
    let all: Vec<NodeRef> = leaves.filter(only_data).collect();
    let victim = all[all.len() / 2];
    assert!(all.len() > 2, "{all:?}");
    drop(fs);
    let damage = Damage::make(&image, victim);
    let fs = open(&image);
    let steps = clean(&fs);
    assert!(steps.contains(&Cleaning::Stuck(deleted.large)), "{steps:?}");
    assert_eq!(steps.last(), Some(&Cleaning::Freed(deleted.small)));
    let dir = fs.create(fs.root(), b"new", &directory()).unwrap().id;
    fs.sync_all().unwrap();
    assert_eq!(fs.store().poison(), None);
    drop(fs);
    damage.undo();
    let fs = open(&image);
    let steps = clean(&fs);
    assert_eq!(steps.last(), Some(&Cleaning::Freed(deleted.large)));
    fill(&fs, dir, 0..400, &mut Random(6));
    fs.sync_all().unwrap();
    let place = fs.lookup(fs.root(), b"kept").unwrap().inode;
    assert!(files_of(&fs, place) == deleted.kept, "the snapshot changed");
    drop(fs);
    check(&image);
    check_ours(&image);
}

/// If a deleted subvolume cannot be read, quota groups cannot follow what it
/// shared. It is freed all the same, because it has no other use for those
/// nodes.
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
