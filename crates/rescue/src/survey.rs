//! What is there: superblocks, chunks, and the generations that files can be
//! taken from.

use crate::error::RescueError;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::patient::{Patient, ScanScope};
use crate::plan::Seen;
use crate::roots::{Candidate, RootSource};
use crate::watch::{Step, Watch};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::Node;
use rustc_hash::FxHashMap;
use std::convert::Infallible;

/// What to survey.
#[derive(Clone, Copy, Debug)]
pub struct SurveyOptions {
    /// What is scanned.
    pub scope: ScanScope,
    /// The most generations that are looked into; more are only counted.
    pub candidates_max: usize,
}

impl Default for SurveyOptions {
    fn default() -> Self {
        Self {
            scope: ScanScope::Nodes,
            candidates_max: 8,
        }
    }
}

/// How a tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeFacts {
    /// The tree.
    pub tree: TreeId,
    /// Nodes of it that can be read.
    pub nodes: u64,
    /// Nodes of it that pointers name and that cannot be read.
    pub lost: u64,
}

/// What one generation would give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateFacts {
    /// Its generation.
    pub generation: Generation,
    /// Where it is named.
    pub source: RootSource,
    /// Whether its tree of roots is whole.
    pub opens: bool,
    /// Subvolumes and snapshots.
    pub subvolumes: u64,
    /// Regular files in subvolumes that are no snapshots.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Trees with damage.
    pub damaged: Vec<TreeFacts>,
}

impl CandidateFacts {
    /// Nodes of trees that hold files, of the tree of roots or of the checksum
    /// tree that are lost.
    #[must_use]
    pub fn lost_nodes(&self) -> u64 {
        let lost = self.damaged.iter().map(|tree| tree.lost);
        lost.fold(0, u64::saturating_add)
    }
}

/// What is there.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Generations, newest first; the one put together from leaves comes last.
    pub candidates: Vec<CandidateFacts>,
    /// Generations that were not looked into.
    pub others: usize,
    /// The candidate that gives most, by its place in the list.
    pub best: Option<usize>,
}

/// What a part of a tree holds.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    files: u64,
    bytes: u64,
    nodes: u64,
    lost: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.files = self.files.saturating_add(other.files);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.lost = self.lost.saturating_add(other.lost);
    }
}

/// Counts what trees hold. Nodes that several trees or generations share are
/// read once.
struct Counter<'c> {
    nodes: &'c Nodes,
    watch: &'c dyn Watch,
    known: FxHashMap<(Logical, Generation), Count>,
}

/// Counts of nodes that are kept.
const KNOWN_MAX: usize = 8 << 20;

impl Counter<'_> {
    fn count(&mut self, reference: NodeRef, place: Option<(Key, Option<Key>)>) -> Count {
        let key = (reference.logical, reference.generation);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let node = self.nodes.read(reference).filter(|node| {
            let fits = |(first, bound): (Key, Option<Key>)| {
                node.verify_place(&first, bound.as_ref()).is_ok()
            };
            place.is_none_or(fits)
        });
        let Some(node) = node else {
            return Count {
                lost: 1,
                ..Count::default()
            };
        };
        let mut count = Count {
            nodes: 1,
            ..Count::default()
        };
        if node.is_leaf() {
            count_leaf(&node, &mut count);
        } else {
            for slot in 0..node.len() {
                let next = slot.saturating_add(1);
                let bound = (next < node.len()).then(|| node.key(next));
                let outer = place.and_then(|(_, bound)| bound);
                let place = (node.key(slot), bound.or(outer));
                count.add(self.count(node.child(slot), Some(place)));
            }
        }
        if self.known.len() < KNOWN_MAX {
            self.known.insert(key, count);
        }
        self.watch
            .progress(Step::Trees, crate::bytes_of(self.known.len()), 0);
        count
    }
}

fn count_leaf(node: &Node, count: &mut Count) {
    for slot in 0..node.len() {
        count_item(node.key(slot), node.data(slot), count);
    }
}

fn count_item(key: Key, data: &[u8], count: &mut Count) {
    if key.item_type != ItemType::INODE_ITEM || !crate::inodes::is_inode(key.objectid) {
        return;
    }
    let Ok(item) = InodeItem::parse(data) else {
        return;
    };
    if item.mode & 0o170_000 == 0o100_000 && item.nlink > 0 {
        count.files = count.files.saturating_add(1);
        count.bytes = count.bytes.saturating_add(item.size);
    }
}

/// Surveys a volume.
///
/// # Errors
/// Those of [`Patient::scan`].
pub fn survey(
    patient: &mut Patient,
    options: &SurveyOptions,
    watch: &dyn Watch,
) -> Result<Survey, RescueError> {
    patient.scan(options.scope, watch)?;
    let nodes = patient.nodes();
    let mut counter = Counter {
        nodes,
        watch,
        known: FxHashMap::default(),
    };
    let all = patient.candidates();
    let (leaves, named): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|candidate| candidate.source == RootSource::Leaves);
    let mut survey = Survey {
        others: named.len().saturating_sub(options.candidates_max),
        ..Survey::default()
    };
    for candidate in named.iter().take(options.candidates_max) {
        if watch.is_stopped() {
            return Err(RescueError::Stopped);
        }
        let facts = by_pointers(candidate, patient, &mut counter);
        survey.candidates.push(facts);
    }
    for candidate in &leaves {
        survey
            .candidates
            .push(by_leaves(candidate, patient, watch)?);
    }
    let score = |facts: &CandidateFacts| {
        let is_whole = facts.lost_nodes() == 0 && facts.opens;
        (
            facts.files > 0 && is_whole,
            facts.files,
            facts.bytes,
            facts.generation,
        )
    };
    let mut best: Option<usize> = None;
    for (number, facts) in survey.candidates.iter().enumerate() {
        let known = best.and_then(|best| survey.candidates.get(best));
        // A whole newer generation is better than an older one with more.
        let is_better = known.is_none_or(|known| {
            let (is_known_whole, ..) = score(known);
            !is_known_whole && score(facts) > score(known)
        });
        if is_better {
            best = Some(number);
        }
    }
    survey.best = best;
    Ok(survey)
}

/// What can be reached by pointers.
fn by_pointers(
    candidate: &Candidate,
    patient: &Patient,
    counter: &mut Counter<'_>,
) -> CandidateFacts {
    let mut facts = CandidateFacts {
        generation: candidate.generation,
        source: candidate.source,
        opens: false,
        subvolumes: 0,
        files: 0,
        bytes: 0,
        damaged: Vec::new(),
    };
    let roots = candidate.root.map(|root| counter.count(root, None));
    let roots = roots.unwrap_or(Count {
        lost: 1,
        ..Count::default()
    });
    facts.opens = roots.lost == 0;
    if !facts.opens {
        facts.damaged.push(tree_facts(TreeId::ROOT, roots));
    }
    if roots.nodes == 0 {
        return facts;
    }
    let forest = patient.forest(candidate);
    for tree in forest.trees.values().filter(|tree| !tree.is_dead()) {
        let Some(root) = tree.root else {
            continue;
        };
        let count = counter.count(root, None);
        if count.lost > 0 {
            facts.damaged.push(tree_facts(tree.id, count));
        }
        if tree.id.is_subvolume() {
            facts.subvolumes = facts.subvolumes.saturating_add(1);
            if !tree.is_snapshot() {
                facts.files = facts.files.saturating_add(count.files);
                facts.bytes = facts.bytes.saturating_add(count.bytes);
            }
        }
    }
    facts
}

const fn tree_facts(tree: TreeId, count: Count) -> TreeFacts {
    TreeFacts {
        tree,
        nodes: count.nodes,
        lost: count.lost,
    }
}

/// What the leaves that are left give.
fn by_leaves(
    candidate: &Candidate,
    patient: &Patient,
    watch: &dyn Watch,
) -> Result<CandidateFacts, RescueError> {
    let nodes = patient.nodes();
    let forest = patient.forest(candidate);
    let mut facts = CandidateFacts {
        generation: candidate.generation,
        source: candidate.source,
        opens: false,
        subvolumes: 0,
        files: 0,
        bytes: 0,
        damaged: Vec::new(),
    };
    let live = Live::new(nodes, &forest);
    for tree in forest.subvolumes() {
        if watch.is_stopped() {
            return Err(RescueError::Stopped);
        }
        facts.subvolumes = facts.subvolumes.saturating_add(1);
        if tree.is_snapshot() {
            continue;
        }
        let plan = forest.plan(nodes, tree.id, &live);
        let mut count = Count::default();
        let counted: Result<(), Infallible> = plan.each(nodes, |seen| {
            if let Seen::Item { key, data, .. } = seen {
                count_item(key, data, &mut count);
            }
            Ok(())
        });
        let Ok(()) = counted;
        facts.files = facts.files.saturating_add(count.files);
        facts.bytes = facts.bytes.saturating_add(count.bytes);
        if plan.lost_leaves() > 0 {
            facts.damaged.push(TreeFacts {
                tree: tree.id,
                nodes: plan.nodes,
                lost: plan.lost_leaves(),
            });
        }
    }
    Ok(facts)
}
