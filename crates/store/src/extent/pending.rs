//! Reference changes that are not yet in the extent tree.
//!
//! Owns their netting: an extent that is born and freed within a generation
//! leaves nothing behind.

use butterfs_format::{InodeNumber, Key, Logical, TreeId};
use std::collections::BTreeMap;

/// Who refers to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backref {
    /// A node, from a tree that owns it.
    Tree(TreeId),
    /// A node, from the node above it.
    SharedNode(Logical),
    /// A data extent, from a tree's inode. `offset` is the file offset minus
    /// the offset into the extent; it may wrap below zero.
    Data {
        /// Tree that owns the leaf.
        root: TreeId,
        /// Inode.
        inode: InodeNumber,
        /// File offset of the extent's first byte.
        offset: u64,
    },
    /// A data extent, from a leaf.
    SharedData(Logical),
}

/// What an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// File data.
    Data,
    /// A tree node.
    Node {
        /// Its level.
        level: u8,
        /// Its first key when it was made (for items without the skinny form).
        first_key: Option<Key>,
    },
}

/// Net change of one extent.
#[derive(Clone, Debug)]
pub struct PendingExtent {
    /// Bytes.
    pub length: u64,
    /// What it holds.
    pub kind: ExtentKind,
    /// It is not in the extent tree yet.
    pub new: bool,
    /// The tree that allocated it, of a new one.
    pub owner: Option<TreeId>,
    /// Its children's references are by parent from now on.
    pub set_full_backref: bool,
    /// Net change of each reference, none zero.
    pub changes: Vec<(Backref, i64)>,
}

impl PendingExtent {
    /// Sum of all changes.
    pub fn net(&self) -> i64 {
        self.changes.iter().map(|(_, count)| count).sum()
    }
}

/// All of a generation's net changes, by address.
#[derive(Debug, Default)]
pub struct PendingRefs {
    extents: BTreeMap<Logical, PendingExtent>,
    /// Old extents whose changes came to nothing; `None` where nobody asks.
    netted: Option<BTreeMap<Logical, NettedExtent>>,
}

/// An extent that has the references of the last commit again. Who reaches it
/// may differ all the same: a node that refers to it may have left a tree.
#[derive(Clone, Copy, Debug)]
pub struct NettedExtent {
    /// Bytes.
    pub length: u64,
    /// What it holds.
    pub kind: ExtentKind,
}

/// What became of an extent by a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change waits for the commit.
    Waits,
    /// The extent was new and has no reference left: its space is free at once.
    Vanished,
}

impl PendingRefs {
    /// Notes a new extent, with its first reference.
    pub fn insert_new(&mut self, logical: Logical, length: u64, kind: ExtentKind, by: Backref) {
        let owner = match by {
            Backref::Tree(tree) | Backref::Data { root: tree, .. } => Some(tree),
            Backref::SharedNode(_) | Backref::SharedData(_) => None,
        };
        let old = self.extents.insert(
            logical,
            PendingExtent {
                length,
                kind,
                new: true,
                owner,
                set_full_backref: false,
                changes: vec![(by, 1)],
            },
        );
        assert!(old.is_none(), "an allocated extent was allocated again");
    }

    /// Changes the count of one reference.
    pub fn change(
        &mut self,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
        (by, count): (Backref, i64),
    ) -> Outcome {
        let extent = self.entry(logical, length, kind);
        match extent.changes.iter_mut().find(|(other, _)| *other == by) {
            Some((_, sum)) => *sum += count,
            None => extent.changes.push((by, count)),
        }
        extent.changes.retain(|(_, sum)| *sum != 0);
        if extent.new {
            if extent.net() == 0 {
                self.extents.remove(&logical);
                return Outcome::Vanished;
            }
        } else if extent.changes.is_empty() && !extent.set_full_backref {
            self.extents.remove(&logical);
            if let Some(netted) = &mut self.netted {
                netted.insert(logical, NettedExtent { length, kind });
            }
        }
        Outcome::Waits
    }

    /// Marks a node's children as referred to by parent.
    pub fn set_full_backref(&mut self, logical: Logical, length: u64, kind: ExtentKind) {
        self.entry(logical, length, kind).set_full_backref = true;
    }

    fn entry(&mut self, logical: Logical, length: u64, kind: ExtentKind) -> &mut PendingExtent {
        self.extents.entry(logical).or_insert(PendingExtent {
            length,
            kind,
            new: false,
            owner: None,
            set_full_backref: false,
            changes: Vec::new(),
        })
    }

    /// The change of one extent.
    pub fn get(&self, logical: Logical) -> Option<&PendingExtent> {
        self.extents.get(&logical)
    }

    /// Remembers extents whose changes come to nothing from now on, until
    /// [`PendingRefs::forget_netted`].
    pub fn note_netted(&mut self) {
        self.netted.get_or_insert_default();
    }

    /// Ends what [`PendingRefs::note_netted`] began.
    pub fn forget_netted(&mut self) {
        self.netted = None;
    }

    /// Old extents whose changes came to nothing, perhaps for a time only.
    pub fn netted(&self) -> impl Iterator<Item = (Logical, NettedExtent)> {
        let netted = self.netted.iter().flatten();
        netted.map(|(logical, extent)| (*logical, *extent))
    }

    /// Number of those.
    pub fn netted_len(&self) -> usize {
        self.netted.as_ref().map_or(0, BTreeMap::len)
    }

    /// All changes, ascending by address.
    pub fn iter(&self) -> impl Iterator<Item = (Logical, &PendingExtent)> {
        self.extents
            .iter()
            .map(|(logical, extent)| (*logical, extent))
    }

    /// Number of extents with changes.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// True without changes.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Takes the changes of the first `most` extents, ascending by address.
    pub fn take(&mut self, most: usize) -> BTreeMap<Logical, PendingExtent> {
        let rest = match self.extents.keys().nth(most).copied() {
            Some(first) if most < self.extents.len() => self.extents.split_off(&first),
            _ => BTreeMap::new(),
        };
        std::mem::replace(&mut self.extents, rest)
    }
}
