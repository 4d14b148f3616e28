//! The tree that a node's header names as its owner. In volumes of the kernel, a
//! node of every kind (shared or not, a parent of references or not, held by a
//! tree or by a parent) gets other owners. Our check must report what `btrfs
//! check` reports. It may also report an owner that holds the node by another
//! tree's reference, and wrong owners of parents.

mod support;

use butterfs_check::FaultCode;
use butterfs_format::node::field;
use butterfs_format::{ItemType, Logical, TreeId};
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, scratch_dir};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use support::image::Image;
use support::{assert_clean, report, volume};

/// Makes a subvolume with small files and three snapshots, and changes files in
/// all of them.
const SNAPSHOTS: &str = r#"
btrfs -q subvolume create sub
for i in $(seq 400); do echo "line $i" > sub/file-$i; done; sync
for i in 1 2 3; do
  btrfs -q subvolume snapshot sub snap$i
  echo $i > snap$i/new; echo $i >> snap$i/file-$i; echo $i >> sub/file-20$i; sync
done
"#;

/// Deletes the subvolume that wrote most of the nodes.
const WITHOUT_SOURCE: &str = r#"
btrfs -q subvolume delete sub; sync; btrfs -q subvolume sync .
"#;

/// Makes files that fill more than one block group of nodes, and two snapshots.
/// Then balances only the block groups after the first. So relocation makes
/// parents above nodes that stay where they were.
const BALANCED: &str = r#"
x=$(printf 'x%.0s' $(seq 1900)); mkdir d
for i in $(seq 4500); do echo "$x" > d/file-$i; done; sync
for i in 1 2; do btrfs -q subvolume snapshot . snap$i; echo more > snap$i/d/file-$i; sync; done
btrfs -q balance start -mvrange=22020096..18446744073709551615 . > /dev/null; sync
"#;

/// What decides the verdict on a node. One node of each kind is tested.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    level: u8,
    /// Subvolumes that reach it.
    holders: BTreeSet<u64>,
    owner: u64,
    /// Its references to its children or data are by parent.
    is_parent: bool,
    /// A reference to it is by parent.
    is_below_parent: bool,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn subvolumes(image: &Image) -> BTreeSet<u64> {
    let items = image.items(TreeId::ROOT).into_iter();
    items
        .filter(|(key, _)| {
            key.item_type == ItemType::ROOT_ITEM && TreeId(key.objectid).is_subvolume()
        })
        .map(|(key, _)| key.objectid)
        .collect()
}

/// Returns a node of each kind.
fn nodes(image: &Image) -> BTreeMap<Kind, Logical> {
    let mut holders: BTreeMap<Logical, BTreeSet<u64>> = BTreeMap::new();
    for tree in subvolumes(image) {
        for node in image.nodes(TreeId(tree)) {
            holders.entry(node).or_default().insert(tree);
        }
    }
    let mut nodes = BTreeMap::new();
    for (key, data) in image.items(TreeId::EXTENT) {
        let node = Logical(key.objectid);
        let Some(holders) = holders.get(&node) else {
            continue;
        };
        if key.item_type != ItemType::METADATA_ITEM {
            continue;
        }
        let bytes = image.read(node);
        // Each inline reference is a type and a number.
        let mut references = data[24..].chunks(9);
        let kind = Kind {
            level: bytes[field::LEVEL],
            holders: holders.clone(),
            owner: word(&bytes, field::OWNER),
            is_parent: word(&data, 16) & 1 << 8 != 0,
            is_below_parent: references
                .any(|reference| reference[0] == ItemType::SHARED_BLOCK_REF.0),
        };
        nodes.entry(kind).or_insert(node);
    }
    nodes
}

/// Gives a node of each kind other owners, and returns where the two checks do
/// not agree.
fn compare(path: &Path, name: &str) -> Vec<String> {
    let mut image = Image::open(path);
    let nodes = nodes(&image);
    let subvolumes = subvolumes(&image);
    let first = *subvolumes.first().expect("there are subvolumes");
    let last = *subvolumes.last().expect("there are subvolumes");
    // Two subvolumes that exist, one that never did, and a tree that is none.
    let owners = [first, last, last + 1, TreeId::CSUM.get()];
    let mut differences = Vec::new();
    let mut reported = 0;
    for (kind, node) in &nodes {
        for owner in owners.into_iter().filter(|owner| *owner != kind.owner) {
            let set = |image: &mut Image, owner: u64| {
                image.raw(*node, |bytes| {
                    bytes[field::OWNER..][..8].copy_from_slice(&owner.to_le_bytes());
                });
            };
            set(&mut image, owner);
            let ours = report(path);
            let theirs = btrfs_check(path, Mode::Original, DataChecksums::Ignore);
            set(&mut image, kind.owner);
            reported += usize::from(!theirs.clean);
            let agree = if theirs.clean {
                ours.is_clean() || kind.is_parent || kind.holders.contains(&owner)
            } else {
                ours.has(FaultCode::NodeOwner)
            };
            if !agree {
                differences.push(format!(
                    "{name}, {kind:?}, node {node}, owner {owner}: {:?}\n{}",
                    ours.counts, theirs.output
                ));
            }
        }
    }
    println!(
        "{name}: {} kinds of nodes, {reported} reported",
        nodes.len()
    );
    assert!(reported > 0, "{name}: no owner was reported");
    differences
}

#[test]
fn owners_are_judged_as_btrfs_check_does() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let mut differences = Vec::new();
    let small: &[&str] = &["-n", "4096", "-m", "single"];

    volume::make(&path, &["-m", "single"], "", SNAPSHOTS);
    assert_clean(&report(&path), "snapshots");
    differences.extend(compare(&path, "snapshots"));

    volume::change(&path, "", WITHOUT_SOURCE);
    assert_clean(&report(&path), "without the source");
    differences.extend(compare(&path, "without the source"));

    volume::make(&path, small, "", BALANCED);
    assert_clean(&report(&path), "balanced");
    let found = nodes(&Image::open(&path));
    let is_moved = |kind: &Kind| kind.is_below_parent && !kind.is_parent;
    assert!(
        found.keys().any(is_moved),
        "no parent is above a node that stayed: {found:?}"
    );
    differences.extend(compare(&path, "balanced"));

    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
