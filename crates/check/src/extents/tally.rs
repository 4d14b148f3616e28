//! The two sides of every reference, compared by sums.
//!
//! What the extent tree says is added, what the trees say is subtracted, in
//! one bucket for each group of addresses. A bucket that is not zero at the
//! end holds a fault, and is collected record by record in a second walk.

use crate::budget::{Taken, bytes_of};
use crate::hash::SumHash;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Buckets: a power of two.
const BUCKETS: usize = 1 << 16;
const BUCKET_BITS: u32 = 16;

/// Who refers to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum By {
    /// A tree, to one of its nodes.
    Tree(u64),
    /// A node, to one of its children.
    Parent(u64),
    /// A file, to data.
    File { root: u64, inode: u64, offset: u64 },
    /// A leaf, to data.
    Leaf(u64),
}

impl By {
    /// An even number.
    fn hash(self, hash: SumHash, logical: u64) -> u64 {
        let hash = match self {
            Self::Tree(tree) => hash.words([1, logical, tree]),
            Self::Parent(parent) => hash.words([2, logical, parent]),
            Self::File {
                root,
                inode,
                offset,
            } => hash.words([3, logical, root, inode, offset]),
            Self::Leaf(leaf) => hash.words([4, logical, leaf]),
        };
        hash & !1
    }
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tree(tree) => write!(f, "tree {tree}"),
            Self::Parent(node) => write!(f, "the node at logical {node}"),
            Self::File {
                root,
                inode,
                offset,
            } => write!(f, "tree {root}, inode {inode}, offset {offset}"),
            Self::Leaf(leaf) => write!(f, "the leaf at logical {leaf}"),
        }
    }
}

/// What an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Shape {
    /// A node of this level.
    Node(u8),
    /// Data of this many bytes.
    Data(u64),
}

impl Shape {
    /// An even number.
    fn hash(self, hash: SumHash, logical: u64) -> u64 {
        let hash = match self {
            Self::Node(level) => hash.words([5, logical, u64::from(level)]),
            Self::Data(length) => hash.words([6, logical, length]),
        };
        hash & !1
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(level) => write!(f, "a node of level {level}"),
            Self::Data(length) => write!(f, "{length} bytes of data"),
        }
    }
}

/// What one side says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The extent tree: an extent with so many references in all.
    Extent {
        shape: Shape,
        refs: u64,
        generation: u64,
        is_parent: bool,
    },
    /// The extent tree: so many references by one.
    Recorded { by: By, count: u64 },
    /// Another tree: a reference.
    Found { by: By, shape: Shape },
    /// A node of this generation was read.
    Node {
        level: u8,
        generation: u64,
        is_parent: bool,
    },
}

impl Record {
    /// What it adds to its bucket; all of an extent together is zero when both
    /// sides agree.
    fn weight(self, hash: SumHash, logical: u64, own: u64) -> u64 {
        match self {
            Self::Extent {
                shape,
                refs,
                generation,
                is_parent,
            } => {
                let node = match shape {
                    Shape::Node(level) => {
                        node_hash(hash, logical, [level.into(), generation, is_parent.into()])
                    }
                    Shape::Data(_) => 0,
                };
                let each = shape.hash(hash, logical).wrapping_add(own);
                refs.wrapping_mul(each).wrapping_add(node)
            }
            Self::Recorded { by, count } => {
                count.wrapping_mul(by.hash(hash, logical).wrapping_sub(own))
            }
            Self::Found { by, shape } => by
                .hash(hash, logical)
                .wrapping_add(shape.hash(hash, logical))
                .wrapping_neg(),
            Self::Node {
                level,
                generation,
                is_parent,
            } => {
                let words = [level.into(), generation, is_parent.into()];
                node_hash(hash, logical, words).wrapping_neg()
            }
        }
    }
}

/// Bucket of an address, by its hash.
fn bucket(own: u64) -> usize {
    usize::try_from(own >> (64_u32.saturating_sub(BUCKET_BITS))).unwrap_or(0)
}

/// An odd number for each address.
fn own_hash(hash: SumHash, logical: u64) -> u64 {
    hash.words([0, logical]) | 1
}

fn node_hash(hash: SumHash, logical: u64, [level, generation, is_parent]: [u64; 3]) -> u64 {
    hash.words([7, logical, level, generation, is_parent])
}

/// Records of the buckets that did not agree.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) records: Vec<(u64, Record)>,
    /// True when there were more than fit: whole buckets were left out.
    pub(crate) overflowed: bool,
}

/// Bytes of memory that a record takes while the list of them grows.
const RECORD_BYTES: u64 = 128;

/// Both sides, summed or collected.
pub(crate) struct Tally {
    hash: SumHash,
    mode: Mode,
}

enum Mode {
    Sum(Box<[AtomicU64]>),
    Collect {
        wanted: Box<[bool]>,
        /// Buckets from this one on do not fit.
        below: AtomicUsize,
        taken: Taken,
        found: Mutex<Collected>,
    },
}

impl Tally {
    pub(crate) fn summing(hash: SumHash) -> Self {
        Self {
            hash,
            mode: Mode::Sum((0..BUCKETS).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    /// Collects the buckets that do not agree in `self`, as far as there is
    /// memory.
    pub(crate) fn collecting(&self, taken: Taken) -> Self {
        let wanted = match &self.mode {
            Mode::Sum(sums) => sums
                .iter()
                .map(|s| s.load(Ordering::Relaxed) != 0)
                .collect(),
            Mode::Collect { wanted, .. } => wanted.clone(),
        };
        Self {
            hash: self.hash,
            mode: Mode::Collect {
                wanted,
                below: AtomicUsize::new(BUCKETS),
                taken,
                found: Mutex::default(),
            },
        }
    }

    /// True when both sides agree.
    pub(crate) fn agrees(&self) -> bool {
        match &self.mode {
            Mode::Sum(sums) => sums.iter().all(|sum| sum.load(Ordering::Relaxed) == 0),
            Mode::Collect { found, .. } => found.lock().records.is_empty(),
        }
    }

    #[inline]
    pub(crate) fn add(&self, logical: u64, record: Record) {
        let own = own_hash(self.hash, logical);
        let index = bucket(own);
        match &self.mode {
            Mode::Sum(sums) => {
                if let Some(sum) = sums.get(index) {
                    sum.fetch_add(record.weight(self.hash, logical, own), Ordering::Relaxed);
                }
            }
            Mode::Collect {
                wanted,
                below,
                taken,
                found,
            } => {
                if wanted.get(index) != Some(&true) {
                    return;
                }
                let mut found = found.lock();
                while index < below.load(Ordering::Relaxed) {
                    if taken.try_add(RECORD_BYTES) {
                        found.records.push((logical, record));
                        return;
                    }
                    self.shrink(below, taken, &mut found);
                }
            }
        }
    }

    /// Gives up half of the buckets; those that stay are whole.
    fn shrink(&self, below: &AtomicUsize, taken: &Taken, found: &mut Collected) {
        let half = below.load(Ordering::Relaxed) / 2;
        below.store(half, Ordering::Relaxed);
        found.overflowed = true;
        let before = found.records.len();
        found
            .records
            .retain(|(logical, _)| bucket(own_hash(self.hash, *logical)) < half);
        let gone = before.saturating_sub(found.records.len());
        found.records.shrink_to_fit();
        taken.give(bytes_of(gone, RECORD_BYTES));
    }

    /// What was collected.
    pub(crate) fn into_collected(self) -> Collected {
        match self.mode {
            Mode::Sum(_) => Collected::default(),
            Mode::Collect { found, .. } => found.into_inner(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{By, Record, Shape, Tally};
    use crate::hash::SumHash;

    /// No wrong count passes, in whatever bit it is wrong.
    #[test]
    fn every_bit_of_a_count_matters() {
        for address in (4096_u64..).step_by(4096).take(8) {
            for bit in 0..64 {
                for (refs, count) in [(1_u64 << bit, 0), (0, 1 << bit)] {
                    let tally = Tally::summing(SumHash::random());
                    let (by, shape) = (By::Leaf(7), Shape::Data(4096));
                    let extent = Record::Extent {
                        shape,
                        refs: 1 ^ refs,
                        generation: 1,
                        is_parent: false,
                    };
                    let recorded = Record::Recorded {
                        by,
                        count: 1 ^ count,
                    };
                    for record in [extent, recorded, Record::Found { by, shape }] {
                        tally.add(address, record);
                    }
                    assert!(!tally.agrees(), "bit {bit} of {refs:x} or {count:x}");
                }
            }
        }
    }

    #[test]
    fn what_agrees_is_zero() {
        let tally = Tally::summing(SumHash::random());
        let (by, shape) = (By::Tree(5), Shape::Node(1));
        let generation = 9;
        let is_parent = true;
        let records = [
            Record::Extent {
                shape,
                refs: 1,
                generation,
                is_parent,
            },
            Record::Recorded { by, count: 1 },
            Record::Found { by, shape },
            Record::Node {
                level: 1,
                generation,
                is_parent,
            },
        ];
        for record in records {
            tally.add(4096, record);
        }
        assert!(tally.agrees());
    }
}
