//! A tree that has a record of each of its own nodes, as the extent tree has:
//! recording a change changes the tree.

use super::*;
use butterfs_tree::Packing;

const RECORD: usize = 33;

fn record(at: Logical) -> Key {
    Key::new(at.get(), ItemType::METADATA_ITEM, 0)
}

/// A tree whose nodes' births and deaths wait until they are recorded.
struct Ledger {
    tree: Memory,
    /// +1 or -1.
    pending: BTreeMap<Logical, i64>,
}

/// How a commit records.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// As `store/commit/record_all` does.
    Settling,
    /// What waits is taken out in one piece before it is recorded, and each round
    /// is like the first.
    InBatches,
}

impl Ledger {
    fn new() -> Self {
        let tree = Memory::new();
        let pending = BTreeMap::from([(tree.root.logical, 1)]);
        Self { tree, pending }
    }

    fn note(&mut self, at: Logical, count: i64) {
        let sum = self.pending.entry(at).or_default();
        *sum += count;
        if *sum == 0 {
            self.pending.remove(&at);
        }
    }

    /// A node of another tree comes.
    fn add_other(&mut self) -> Logical {
        let at = self.tree.allocate(0).logical;
        self.note(at, 1);
        at
    }

    fn record(&mut self, at: Logical, count: i64) {
        let mut editor = Editor::new(self, TREE);
        match count {
            1 => editor.insert(&record(at), &[0; RECORD]).unwrap(),
            -1 => assert!(editor.remove(&record(at)).unwrap()),
            _ => unreachable!("a node is there or not"),
        }
    }

    /// Records all that waits; gives the number of rounds. `late` nodes of other
    /// trees go in the second round, as those of a tree that shrinks because of
    /// what the first round records.
    fn commit(&mut self, way: Way, late: &[Logical]) -> usize {
        for round in 1..=64 {
            if round == 2 {
                late.iter().for_each(|at| self.note(*at, -1));
            }
            match way {
                Way::InBatches => {
                    for (at, count) in std::mem::take(&mut self.pending) {
                        self.record(at, count);
                    }
                }
                Way::Settling => {
                    if round == 2 {
                        self.tree.packing = Packing::Lasting;
                    }
                    self.settle(round);
                }
            }
            let all_went = round > 1 || late.is_empty();
            if self.pending.is_empty() && all_went {
                self.tree.packing = Packing::Dense;
                self.tree.generation = Generation(self.tree.generation.get() + 1);
                return round;
            }
        }
        panic!("the commit goes round in a circle");
    }

    /// Copies what the records will touch, until nothing is left to copy.
    fn copy_first(&mut self) {
        let mut touched = BTreeSet::new();
        loop {
            let waiting: Vec<Logical> = self.pending.keys().copied().collect();
            let new = waiting.into_iter().filter(|at| touched.insert(*at));
            let new: Vec<Logical> = new.collect();
            if new.is_empty() {
                return;
            }
            for at in new {
                Editor::new(self, TREE).touch(&record(at)).unwrap();
            }
        }
    }

    fn settle(&mut self, round: usize) {
        if round > 1 {
            self.copy_first();
        }
        let mut from = Logical(0);
        while let Some((at, _)) = self.pending.range(from..).next() {
            let at = *at;
            let count = self.pending.remove(&at).unwrap();
            self.record(at, count);
            from = Logical(at.get() + 1);
        }
    }

    /// The records are those of the tree's nodes and of `others`.
    fn check(&self, others: &BTreeSet<Logical>) {
        let mut live = HashSet::new();
        self.tree.reachable(self.tree.root, &mut live);
        let expected: BTreeSet<Key> = live.iter().chain(others).map(|at| record(*at)).collect();
        let found: BTreeSet<Key> = contents(&self.tree).into_keys().collect();
        assert_eq!(found, expected);
    }
}

impl NodeSource for Ledger {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.tree.node(reference)
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        self.tree.root(tree)
    }
}

impl NodeSink for Ledger {
    fn packing(&self) -> Packing {
        self.tree.packing
    }

    fn make_writable(&mut self, tree: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        let new = self.tree.make_writable(tree, node)?;
        if new != node {
            self.note(new.logical, 1);
            self.note(node.logical, -1);
        }
        Ok(new)
    }

    fn create(&mut self, tree: TreeId, level: u8) -> Result<NodeRef, TreeError> {
        let new = self.tree.create(tree, level)?;
        self.note(new.logical, 1);
        Ok(new)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        self.tree.edit(node)
    }

    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError> {
        self.tree.release(tree, node)?;
        self.note(node.logical, -1);
        Ok(())
    }

    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError> {
        self.tree.set_root(tree, root)
    }
}

/// A tree with one full leaf and every number of records about that, to which
/// records come in the first round of a commit, and from which records go in the
/// second.
fn rounds_at_the_edge_of_a_leaf(way: Way) -> usize {
    let mut most = 0;
    for before in 55..75 {
        for (come, go) in (0..12).flat_map(|come| (0..8).map(move |go| (come, go))) {
            let mut ledger = Ledger::new();
            let mut others: Vec<Logical> = (0..before).map(|_| ledger.add_other()).collect();
            ledger.commit(way, &[]);
            let late: Vec<Logical> = others.drain(..go).collect();
            others.extend((0..come).map(|_| ledger.add_other()));
            most = most.max(ledger.commit(way, &late));
            ledger.check(&others.into_iter().collect());
        }
    }
    most
}

#[test]
fn a_tree_that_records_itself_settles_at_the_edge_of_a_leaf() {
    assert!(rounds_at_the_edge_of_a_leaf(Way::Settling) <= 5);
}

/// The margin between splits and merges alone keeps nodes from coming and going
/// in turn.
#[test]
fn a_margin_is_enough_at_the_edge_of_a_leaf() {
    assert!(rounds_at_the_edge_of_a_leaf(Way::InBatches) <= 8);
}

/// More seeds: BUTTERFS_SEEDS=first..last.
#[test]
fn a_tree_that_records_itself_settles() {
    let seeds = std::env::var("BUTTERFS_SEEDS").map_or(0..4, |text| {
        let (first, last) = text.split_once("..").unwrap();
        first.parse().unwrap()..last.parse().unwrap()
    });
    let mut counts = [0_u64; 65];
    for seed in seeds {
        let mut state: u64 = seed;
        let mut below = |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % limit
        };
        let mut ledger = Ledger::new();
        let mut others = Vec::new();
        let mut wanted = 50;
        for _ in 0..1500 {
            if below(50) == 0 {
                wanted = [20, 100, 500, 4000][below(4)];
            }
            let change = below(3 + others.len().abs_diff(wanted).min(200));
            for _ in 0..change {
                if others.is_empty() || below(4) > 0 && others.len() < wanted {
                    others.push(ledger.add_other());
                } else {
                    let gone = others.swap_remove(below(others.len()));
                    ledger.note(gone, -1);
                }
            }
            let late: Vec<Logical> = (0..below(4))
                .filter_map(|_| {
                    let at = below(others.len().max(1));
                    (at < others.len()).then(|| others.swap_remove(at))
                })
                .filter(|at| match ledger.pending.contains_key(at) {
                    true => {
                        ledger.note(*at, -1);
                        false
                    }
                    false => true,
                })
                .collect();
            let rounds = ledger.commit(Way::Settling, &late);
            counts[rounds] += 1;
        }
        ledger.check(&others.into_iter().collect());
    }
    println!("{counts:?}");
    assert!(counts[7..].iter().all(|count| *count == 0), "{counts:?}");
}
