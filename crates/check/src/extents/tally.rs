//! Compares the two sides of every reference by sums.
//!
//! Each address belongs to a bucket. Records of the extent tree are added to the
//! sum of the bucket, records of the other trees are subtracted. If a sum is not
//! zero at the end, its bucket holds a fault, and a second walk collects the
//! records of the bucket.

use crate::budget::{Taken, bytes_of};
use crate::hash::SumHash;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of buckets, a power of two.
const BUCKETS: usize = 1 << 16;
const BUCKET_BITS: u32 = 16;

/// What refers to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum By {
    /// A tree refers to one of its nodes.
    Tree(u64),
    /// A node refers to one of its children.
    Parent(u64),
    /// A file refers to data.
    File { root: u64, inode: u64, offset: u64 },
    /// A leaf refers to data.
    Leaf(u64),
}

impl By {
    /// Hashes the reference to an even number.
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

/// The kind and size of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Shape {
    /// A node of this level.
    Node(u8),
    /// Data of this many bytes.
    Data(u64),
}

impl Shape {
    /// Hashes the shape to an even number.
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

/// One record of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The extent tree has an extent; `refs` is its number of references.
    Extent {
        shape: Shape,
        refs: u64,
        generation: u64,
        is_parent: bool,
    },
    /// The extent tree records `count` references by `by`.
    Recorded { by: By, count: u64 },
    /// Another tree refers to the extent.
    Found { by: By, shape: Shape },
    /// A node was read at the address.
    Node {
        level: u8,
        generation: u64,
        is_parent: bool,
    },
}

impl Record {
    /// What the record adds to its bucket. The records of an extent add up to
    /// zero if both sides agree. The factors of counts are odd, so that a wrong
    /// count always changes the sum.
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

/// Returns the bucket of an address by the address's hash.
fn bucket(own: u64) -> usize {
    usize::try_from(own >> (64_u32.saturating_sub(BUCKET_BITS))).unwrap_or(0)
}

/// Hashes an address to an odd number.
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
    /// True if not all records fit in memory. Whole buckets were left out.
    pub(crate) overflowed: bool,
}

/// Bytes of memory for each record, while the list of them grows.
const RECORD_BYTES: u64 = 128;

/// Sums up both sides, or collects their records.
pub(crate) struct Tally {
    hash: SumHash,
    mode: Mode,
}

enum Mode {
    Sum(Box<[AtomicU64]>),
    Collect {
        wanted: Box<[bool]>,
        /// Only buckets below this one are collected.
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

    /// Makes a tally that collects the buckets that do not agree in `self`, as
    /// many as fit in memory.
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

    /// True if both sides agree.
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

    /// Gives up half of the buckets. All records of the others are kept.
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

    /// Returns the collected records.
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

    /// A wrong count is found, whatever bit of it is wrong.
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
