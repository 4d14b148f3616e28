//! Compares the tree with `BTreeMap`, at the smallest nodes, with shared roots.

#[path = "model/own_records.rs"]
mod own_records;

use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{
    Comparison, Cursor, Editor, Node, NodeSink, NodeSource, NodeStamp, Packing, TreeError, find,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

const NODE_SIZE: usize = 4096;
const TREE: TreeId = TreeId(5);

/// Nodes in memory; counts references so that leaks and double frees show.
struct Memory {
    nodes: HashMap<Logical, Arc<Node>>,
    root: NodeRef,
    generation: Generation,
    next: u64,
    stamp: NodeStamp,
    packing: Packing,
    /// Nodes that were asked for.
    reads: Cell<usize>,
}

impl Memory {
    fn new() -> Self {
        let stamp = NodeStamp {
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
        };
        let root = NodeRef {
            logical: Logical(1 << 20),
            generation: Generation(1),
            level: 0,
        };
        let leaf = Node::empty(NODE_SIZE, &stamp, root, TREE);
        Self {
            nodes: HashMap::from([(root.logical, Arc::new(leaf))]),
            root,
            generation: Generation(1),
            next: (1 << 20) + NODE_SIZE as u64,
            stamp,
            packing: Packing::Dense,
            reads: Cell::new(0),
        }
    }

    fn allocate(&mut self, level: u8) -> NodeRef {
        let logical = Logical(self.next);
        self.next += NODE_SIZE as u64;
        NodeRef {
            logical,
            generation: self.generation,
            level,
        }
    }

    fn reachable(&self, from: NodeRef, into: &mut HashSet<Logical>) {
        assert!(into.insert(from.logical), "node reached twice");
        let node = &self.nodes[&from.logical];
        if !node.is_leaf() {
            for slot in 0..node.len() {
                self.reachable(node.child(slot), into);
            }
        }
    }
}

impl NodeSource for Memory {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.reads.set(self.reads.get() + 1);
        let node = self.nodes.get(&reference.logical).expect("node exists");
        assert_eq!(node.reference(), reference);
        Ok(node.clone())
    }

    fn root(&self, _: TreeId) -> Result<NodeRef, TreeError> {
        Ok(self.root)
    }
}

impl NodeSink for Memory {
    fn packing(&self) -> Packing {
        self.packing
    }

    fn make_writable(&mut self, tree: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        if node.generation == self.generation {
            return Ok(node);
        }
        let new = self.allocate(node.level);
        let copy = self.nodes[&node.logical].copied_to(new.logical, new.generation, tree);
        self.nodes.insert(new.logical, Arc::new(copy));
        Ok(new)
    }

    fn create(&mut self, tree: TreeId, level: u8) -> Result<NodeRef, TreeError> {
        let new = self.allocate(level);
        let node = Node::empty(NODE_SIZE, &self.stamp, new, tree);
        self.nodes.insert(new.logical, Arc::new(node));
        Ok(new)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        assert_eq!(node.generation, self.generation);
        Ok(Arc::make_mut(self.nodes.get_mut(&node.logical).unwrap()))
    }

    fn release(&mut self, _: TreeId, node: NodeRef) -> Result<(), TreeError> {
        assert_eq!(node.generation, self.generation);
        assert!(self.nodes.remove(&node.logical).is_some(), "freed twice");
        Ok(())
    }

    fn set_root(&mut self, _: TreeId, root: NodeRef) -> Result<(), TreeError> {
        self.root = root;
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u16),
    Replace(u16, u16),
    Touch(u16),
    Remove(u16),
    Rekey(u16, u16),
    RemoveRange(u16, u16),
    Pack(Packing),
    Commit,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![8 => 0_u16..200, 2 => 200_u16..1500, 1 => 3500_u16..=3970];
    prop_oneof![
        10 => (0_u16..3000, size.clone()).prop_map(|(k, s)| Op::Insert(k, s)),
        3 => (0_u16..3000, size).prop_map(|(k, s)| Op::Replace(k, s)),
        2 => (0_u16..3000).prop_map(Op::Touch),
        6 => (0_u16..3000).prop_map(Op::Remove),
        3 => (0_u16..3000, 0_u16..3000).prop_map(|(k, n)| Op::Rekey(k, n)),
        1 => (0_u16..3000, 0_u16..600).prop_map(|(k, n)| Op::RemoveRange(k, n)),
        1 => Just(Op::Pack(Packing::Dense)),
        1 => Just(Op::Pack(Packing::Lasting)),
        1 => Just(Op::Commit),
    ]
}

fn key(number: u16) -> Key {
    Key::new(
        u64::from(number / 50),
        ItemType((number % 5) as u8),
        u64::from(number % 50),
    )
}

fn value(number: u16, size: u16) -> Vec<u8> {
    (0..size).map(|i| (i ^ number) as u8).collect()
}

fn contents(tree: &Memory) -> BTreeMap<Key, Vec<u8>> {
    let mut cursor = Cursor::seek_in(tree, TREE, &Key::MIN).unwrap();
    let mut all = BTreeMap::new();
    while let Some((key, data)) = cursor.item() {
        all.insert(key, data.to_vec());
        cursor.next().unwrap();
    }
    all
}

/// Checks the comparison of two trees against that of two maps.
fn compare(
    tree: &Memory,
    old: &(NodeRef, BTreeMap<Key, Vec<u8>>),
    new: &(NodeRef, BTreeMap<Key, Vec<u8>>),
) {
    let keys: BTreeSet<Key> = old.1.keys().chain(new.1.keys()).copied().collect();
    let expected: Vec<_> = keys
        .into_iter()
        .map(|key| (key, old.1.get(&key).cloned(), new.1.get(&key).cloned()))
        .filter(|(_, old, new)| old != new)
        .collect();
    let mut comparison = Comparison::new(tree, Some(old.0), new.0).unwrap();
    let mut found = Vec::new();
    while let Some(change) = comparison.next().unwrap() {
        let data = |item: Option<butterfs_tree::ComparedItem>| item.map(|i| i.data().to_vec());
        found.push((change.key, data(change.old), data(change.new)));
    }
    assert!(found == expected, "{} != {}", found.len(), expected.len());
}

fn apply(editor: &mut Editor<'_, Memory>, model: &mut BTreeMap<Key, Vec<u8>>, op: &Op) {
    match *op {
        Op::Insert(k, size) => {
            let result = editor.insert(&key(k), &value(k, size));
            match model.entry(key(k)) {
                Entry::Occupied(_) => assert!(matches!(result, Err(TreeError::Exists(_)))),
                Entry::Vacant(free) => {
                    result.unwrap();
                    free.insert(value(k, size));
                }
            }
        }
        Op::Replace(k, size) => {
            editor.replace(&key(k), &value(k, size)).unwrap();
            model.insert(key(k), value(k, size));
        }
        Op::Touch(k) => {
            let found = editor.get_mut(&key(k)).unwrap();
            assert_eq!(found.is_some(), model.contains_key(&key(k)));
            if let Some(data) = found {
                data.fill(7);
                model.get_mut(&key(k)).unwrap().fill(7);
            }
        }
        Op::Remove(k) => {
            assert_eq!(
                editor.remove(&key(k)).unwrap(),
                model.remove(&key(k)).is_some()
            );
        }
        Op::Rekey(k, n) => {
            let (old, near) = (key(k), key(n));
            // The key nearest to `near` between those beside the old one.
            let new = if near < old {
                let below = model.range(..old).next_back();
                let least = below.and_then(|(before, _)| before.successor());
                least.map_or(near, |least| near.max(least))
            } else {
                let above = model.range(old..).find(|(key, _)| **key > old);
                match above {
                    Some((after, _)) if *after <= near => {
                        let offset = after.offset.saturating_sub(1);
                        Key::new(after.objectid, after.item_type, offset)
                    }
                    _ => near,
                }
            };
            if model.contains_key(&new) || (near < old) != (new < old) {
                return;
            }
            let found = editor.rekey(&old, &new).unwrap();
            let data = model.remove(&old);
            assert_eq!(found, data.is_some());
            model.extend(data.map(|data| (new, data)));
        }
        Op::RemoveRange(k, n) => {
            let range = key(k).min(key(k + n))..=key(k).max(key(k + n));
            let before = model.len();
            model.retain(|key, _| !range.contains(key));
            assert_eq!(editor.remove_range(range).unwrap(), before - model.len());
        }
        Op::Pack(packing) => editor.sink().packing = packing,
        Op::Commit => unreachable!("handled by the caller"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_map(batches in prop::collection::vec(
        prop::collection::vec(op(), 1..60), 1..20)
    ) {
        let mut tree = Memory::new();
        let mut model = BTreeMap::new();
        let mut past = Vec::new();
        for batch in &batches {
            let commit = batch.iter().any(|op| matches!(op, Op::Commit));
            let mut editor = Editor::new(&mut tree, TREE);
            for op in batch.iter().filter(|op| !matches!(op, Op::Commit)) {
                apply(&mut editor, &mut model, op);
            }
            prop_assert_eq!(&contents(&tree), &model);
            let mut live = HashSet::new();
            tree.reachable(tree.root, &mut live);
            for (reference, node) in &tree.nodes {
                if node.generation() == tree.generation {
                    prop_assert!(live.contains(reference), "a new node leaked");
                }
            }
            if commit {
                past.push((tree.root, model.clone()));
                tree.generation = Generation(tree.generation.get() + 1);
            }
        }
        for pair in past.windows(2) {
            compare(&tree, &pair[0], &pair[1]);
            compare(&tree, &pair[1], &past[0]);
        }
        // Every committed state is still there, unchanged.
        let now = tree.root;
        for (root, model) in past {
            tree.root = root;
            prop_assert_eq!(contents(&tree), model);
        }
        tree.root = now;
        // Backwards and by key.
        let mut cursor = Cursor::seek_in(&tree, TREE, &Key::MAX).unwrap();
        let mut backwards = Vec::new();
        while cursor.prev().unwrap() {
            backwards.push(cursor.key().unwrap());
        }
        backwards.reverse();
        prop_assert!(backwards.iter().eq(model.keys()));
        for (key, data) in &model {
            let (leaf, slot) = find(&tree, TREE, key).unwrap().expect("present");
            prop_assert_eq!(leaf.data(slot), &data[..]);
        }
    }
}

#[test]
fn ascending_inserts_fill_leaves_and_all_can_go() {
    fill_and_empty(Packing::Dense);
    fill_and_empty(Packing::Lasting);
}

fn fill_and_empty(removing: Packing) {
    let mut tree = Memory::new();
    let mut editor = Editor::new(&mut tree, TREE);
    for n in 0..100_000_u64 {
        editor
            .insert(&Key::new(n, ItemType::INODE_ITEM, 0), &[9; 60])
            .unwrap();
    }
    let per_leaf = (NODE_SIZE - 101) / 85;
    assert!(tree.nodes.len() < 100_000 / per_leaf * 105 / 100 + 50);
    tree.packing = removing;
    let mut editor = Editor::new(&mut tree, TREE);
    for n in (0..100_000).rev() {
        assert!(
            editor
                .remove(&Key::new(n, ItemType::INODE_ITEM, 0))
                .unwrap()
        );
    }
    assert_eq!(tree.nodes.len(), 1);
    assert_eq!(tree.root.level, 0);
}

/// Files get inode items when they are made, and file extents when they are
/// flushed.
#[test]
fn items_added_to_many_objects_leave_no_small_leaves() {
    const OBJECTS: u64 = 20_000;
    let mut tree = Memory::new();
    let mut editor = Editor::new(&mut tree, TREE);
    for (item_type, size) in [(ItemType::INODE_ITEM, 160), (ItemType::EXTENT_DATA, 53)] {
        for n in 0..OBJECTS {
            let key = Key::new(n, item_type, 0);
            editor.insert(&key, &vec![9; size]).unwrap();
        }
    }
    let bytes = OBJECTS as usize * (160 + 53 + 2 * 25);
    let fewest = bytes / (NODE_SIZE - 101);
    assert!(tree.nodes.len() < fewest * 2, "{}", tree.nodes.len());
}

/// Neighbours that grow at the same time soon fill leaves of their own.
#[test]
fn objects_that_grow_beside_each_other_fill_leaves() {
    const ITEMS: u64 = 20_000;
    let mut tree = Memory::new();
    let mut editor = Editor::new(&mut tree, TREE);
    for n in 0..ITEMS {
        for object in [257, 258] {
            let key = Key::new(object, ItemType::DIR_INDEX, n);
            editor.insert(&key, &[9; 40]).unwrap();
        }
    }
    let per_leaf = (NODE_SIZE - 101) / 65;
    let fewest = 2 * ITEMS as usize / per_leaf;
    assert!(tree.nodes.len() < fewest * 11 / 10, "{}", tree.nodes.len());
}

#[test]
fn comparing_reads_only_what_changed() {
    let mut tree = Memory::new();
    let key = |n| Key::new(n, ItemType::INODE_ITEM, 0);
    let mut editor = Editor::new(&mut tree, TREE);
    for n in 0..100_000 {
        editor.insert(&key(2 * n), &[9; 60]).unwrap();
    }
    let old = tree.root;
    tree.generation = Generation(2);
    let mut editor = Editor::new(&mut tree, TREE);
    for n in [0, 50_000, 99_999] {
        editor.insert(&key(2 * n + 1), &[8; 60]).unwrap();
    }
    assert!(editor.remove(&key(70_000)).unwrap());
    tree.reads.set(0);
    let mut comparison = Comparison::new(&tree, Some(old), tree.root).unwrap();
    let mut count = 0;
    while comparison.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 4);
    // Two paths for each place that changed. The tree has some 2,500 nodes.
    assert!(tree.reads.get() <= 4 * 2 * 4, "{} reads", tree.reads.get());
    tree.reads.set(0);
    let mut same = Comparison::new(&tree, Some(old), old).unwrap();
    assert!(same.next().unwrap().is_none());
    assert_eq!(tree.reads.get(), 2, "the root alone, on both sides");
}

#[test]
fn a_leaf_whose_last_key_is_out_of_place_is_not_merged() {
    for damaged in [false, true] {
        let mut tree = Memory::new();
        let key = |n| Key::new(n, ItemType::INODE_ITEM, 0);
        let mut editor = Editor::new(&mut tree, TREE);
        for n in 0..20_000 {
            editor.insert(&key(n), &[9; 60]).unwrap();
        }
        // The last leaf of a branch that is not the last, and the leaf before it.
        let branch = tree.node(tree.node(tree.root).unwrap().child(1)).unwrap();
        let last = branch.child(branch.len() - 1);
        let first_key = |slot| branch.key(slot).objectid;
        let (before, start) = (first_key(branch.len() - 2), first_key(branch.len() - 1));
        // No neighbour is too full to be merged.
        let mut editor = Editor::new(&mut tree, TREE);
        for n in start..start + 20 {
            assert!(editor.remove(&key(n)).unwrap());
        }
        if damaged {
            let leaf = tree.edit(last).unwrap();
            let place = butterfs_format::node::HEADER_SIZE
                + (leaf.len() - 1) * butterfs_format::node::ITEM_SIZE;
            leaf.bytes_mut()[place..place + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        }
        let mut editor = Editor::new(&mut tree, TREE);
        for n in before + 1..start {
            assert!(editor.remove(&key(n)).unwrap());
        }
        assert_eq!(tree.nodes.contains_key(&last.logical), damaged);
    }
}
