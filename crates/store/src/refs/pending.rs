//! Reference changes that are not yet in the extent tree.
//!
//! Owns their netting: an extent that is allocated and freed within one
//! generation leaves no change behind.

use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use butterfs_format::{InodeNumber, ItemType, Key, Logical, NodeRef, TreeId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// What refers to an extent.
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

impl ExtentKind {
    /// That of a node.
    pub const fn of_node(reference: NodeRef) -> Self {
        Self::Node {
            level: reference.level,
            first_key: None,
        }
    }
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
    /// For a new extent, the tree that allocated it.
    pub owner: Option<TreeId>,
    /// Its children's references are by parent from now on.
    pub set_full_backref: bool,
    /// Nobody else can refer to it: the extent goes with these changes.
    pub is_last: bool,
    /// Net change of each reference.
    pub changes: Changes,
}

impl PendingExtent {
    /// Sum of all changes.
    pub const fn net(&self) -> i64 {
        self.changes.net
    }
}

/// Net changes of an extent's references, none zero.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    by: ByReference,
    /// Sum of all.
    net: i64,
}

/// Most extents have a reference or two, a few have very many.
#[derive(Clone, Debug)]
enum ByReference {
    /// Searched one by one.
    Few(Vec<(Backref, i64)>),
    /// More than [`FEW`].
    Many(BTreeMap<Backref, i64>),
}

/// References that are searched one by one.
const FEW: usize = 16;

impl Default for ByReference {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Changes {
    fn of_one(by: Backref, count: i64) -> Self {
        Self {
            by: ByReference::Few(vec![(by, count)]),
            net: count,
        }
    }

    /// Number of references that change.
    pub fn len(&self) -> usize {
        match &self.by {
            ByReference::Few(few) => few.len(),
            ByReference::Many(many) => many.len(),
        }
    }

    /// The change of one reference.
    pub fn get(&self, by: Backref) -> i64 {
        let found = match &self.by {
            ByReference::Few(few) => few.iter().find(|(other, _)| *other == by).map(|(_, n)| *n),
            ByReference::Many(many) => many.get(&by).copied(),
        };
        found.unwrap_or(0)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Backref, i64)> {
        let (few, many) = match &self.by {
            ByReference::Few(few) => (&few[..], None),
            ByReference::Many(many) => (&[][..], Some(many)),
        };
        let many = many.into_iter().flatten();
        few.iter().copied().chain(many.map(|(by, n)| (*by, *n)))
    }

    fn add(&mut self, by: Backref, count: i64) {
        self.net += count;
        match &mut self.by {
            ByReference::Few(few) => {
                if let Some(at) = few.iter().position(|(other, _)| *other == by) {
                    few[at].1 += count;
                    if few[at].1 == 0 {
                        few.remove(at);
                    }
                } else if few.len() < FEW {
                    few.push((by, count));
                } else {
                    let all = few.drain(..).chain([(by, count)]);
                    self.by = ByReference::Many(all.collect());
                }
            }
            ByReference::Many(many) => {
                let sum = many.entry(by).or_default();
                *sum += count;
                if *sum == 0 {
                    many.remove(&by);
                }
            }
        }
    }
}

/// All of a generation's net changes, by address.
#[derive(Debug, Default)]
pub struct PendingRefs {
    extents: BTreeMap<Logical, PendingExtent>,
    /// References that change, over all extents.
    references: usize,
    /// Old extents whose changes came to nothing; `None` while these are not
    /// remembered.
    netted: Option<BTreeMap<Logical, NettedExtent>>,
    /// Extents whose changes began lately; `None` while these are not noted.
    arrivals: Option<Vec<Logical>>,
}

/// An extent that has the references of the last commit again. Which subvolumes
/// reach it may have changed all the same, because a node that refers to it may
/// have left a tree.
#[derive(Clone, Copy, Debug)]
pub struct NettedExtent {
    /// Bytes.
    pub length: u64,
    /// What it holds.
    pub kind: ExtentKind,
}

/// What a change made of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change waits for the commit.
    Waits,
    /// The extent was new and has no reference left: its space is free at once.
    Vanished,
}

impl PendingRefs {
    /// Notes a new extent, with its first reference.
    ///
    /// # Errors
    /// Something changed references to an extent there, so the volume calls
    /// space free that is used. Nothing is noted.
    pub fn insert_new(
        &mut self,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
        by: Backref,
    ) -> Result<(), StoreError> {
        let owner = match by {
            Backref::Tree(tree) | Backref::Data { root: tree, .. } => Some(tree),
            Backref::SharedNode(_) | Backref::SharedData(_) => None,
        };
        let Entry::Vacant(vacant) = self.extents.entry(logical) else {
            let key = Key::new(logical.get(), ItemType::FREE_SPACE_EXTENT, 0);
            return Err(corrupt_item(
                TreeId::FREE_SPACE,
                key,
                ItemFault::FreeButUsed,
            ));
        };
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.push(logical);
        }
        vacant.insert(PendingExtent {
            length,
            kind,
            new: true,
            owner,
            set_full_backref: false,
            is_last: false,
            changes: Changes::of_one(by, 1),
        });
        self.references += 1;
        Ok(())
    }

    /// [`PendingRefs::insert_new`] of an extent that replaces another one. The
    /// owner of the old extent stays the owner.
    ///
    /// # Errors
    /// As there.
    pub fn insert_moved(
        &mut self,
        (logical, length): (Logical, u64),
        kind: ExtentKind,
        by: Backref,
        owner: Option<TreeId>,
    ) -> Result<(), StoreError> {
        self.insert_new(logical, length, kind, by)?;
        if let Some(extent) = self.extents.get_mut(&logical) {
            extent.owner = owner;
        }
        Ok(())
    }

    /// Changes the count of one reference.
    pub fn change(
        &mut self,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
        (by, count): (Backref, i64),
    ) -> Outcome {
        if count == 0 {
            return Outcome::Waits;
        }
        let extent = self.entry(logical, length, kind);
        let before = extent.changes.len();
        extent.changes.add(by, count);
        let after = extent.changes.len();
        let (new, net) = (extent.new, extent.net());
        let comes_to_nothing = after == 0 && !extent.set_full_backref;
        self.references = self.references + after - before;
        if new {
            if net == 0 {
                self.extents.remove(&logical);
                self.references -= after;
                return Outcome::Vanished;
            }
        } else if comes_to_nothing {
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

    /// The changes of an extent are its last ones: nobody else refers to it.
    pub fn note_last(&mut self, logical: Logical) {
        if let Some(extent) = self.extents.get_mut(&logical) {
            extent.is_last = true;
        }
    }

    fn entry(&mut self, logical: Logical, length: u64, kind: ExtentKind) -> &mut PendingExtent {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.push(logical);
        }
        self.extents.entry(logical).or_insert(PendingExtent {
            length,
            kind,
            new: false,
            owner: None,
            set_full_backref: false,
            is_last: false,
            changes: Changes::default(),
        })
    }

    /// The change of one extent.
    pub fn get(&self, logical: Logical) -> Option<&PendingExtent> {
        self.extents.get(&logical)
    }

    /// From now on, remembers extents whose changes come to nothing, until
    /// [`PendingRefs::forget_netted`].
    pub fn note_netted(&mut self) {
        self.netted.get_or_insert_default();
    }

    /// Ends what [`PendingRefs::note_netted`] began.
    pub fn forget_netted(&mut self) {
        self.netted = None;
    }

    /// Old extents whose changes came to nothing, perhaps only for a time.
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

    /// Number of references with changes, over all extents.
    pub const fn references(&self) -> usize {
        self.references
    }

    /// True without changes.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// New extents that lie in `range`: the extent tree calls their space free.
    pub fn new_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let extents = self.extents.range(Logical(range.start)..Logical(range.end));
        extents
            .filter(|(_, extent)| extent.new)
            .map(|(logical, extent)| logical.get()..logical.get() + extent.length)
    }

    /// From now on, notes the extents whose changes begin, until
    /// [`PendingRefs::ignore_arrivals`].
    pub fn note_arrivals(&mut self) {
        self.arrivals.get_or_insert_default();
    }

    /// Ends what [`PendingRefs::note_arrivals`] began.
    pub fn ignore_arrivals(&mut self) {
        self.arrivals = None;
    }

    /// The extents that were noted since the last call, ascending.
    pub fn take_arrivals(&mut self) -> Vec<Logical> {
        let mut arrivals = self.arrivals.as_mut().map_or_else(Vec::new, std::mem::take);
        arrivals.sort_unstable();
        arrivals.dedup();
        arrivals
    }

    /// Address of the first extent with changes, at `from` or behind it.
    pub fn next(&self, from: Logical) -> Option<Logical> {
        self.extents.range(from..).next().map(|(at, _)| *at)
    }

    /// Takes the pending changes of one extent.
    pub fn take(&mut self, logical: Logical) -> Option<PendingExtent> {
        let extent = self.extents.remove(&logical)?;
        self.references -= extent.changes.len();
        Some(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(offset: u64) -> Backref {
        Backref::Data {
            root: TreeId::FS,
            inode: InodeNumber(257),
            offset,
        }
    }

    /// If a volume calls space free that an extent uses, the same address is
    /// given out twice.
    #[test]
    fn space_that_is_used_is_no_new_extent() {
        let mut pending = PendingRefs::default();
        let (used, free) = (Logical(4096), Logical(8192));
        let insert =
            |pending: &mut PendingRefs, at| pending.insert_new(at, 4096, ExtentKind::Data, by(0));
        pending.change(used, 4096, ExtentKind::Data, (by(1), -1));
        let error = insert(&mut pending, used).unwrap_err().to_string();
        assert!(error.contains("calls space free that is used"), "{error}");
        insert(&mut pending, free).unwrap();
        assert!(insert(&mut pending, free).is_err());
        assert_eq!((pending.len(), pending.references()), (2, 2));
        assert_eq!(pending.get(used).map(PendingExtent::net), Some(-1));
    }

    /// Few and many references, changed at random, against a plain map.
    #[test]
    fn changes_are_netted() {
        let mut pending = PendingRefs::default();
        let mut expected = BTreeMap::<(u64, u64), i64>::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (extent, offset) = (random >> 60, (random >> 40) % 40);
            let count = if random >> 33 & 1 == 0 { 1 } else { -1 };
            let at = Logical(4096 * extent);
            pending.change(at, 4096, ExtentKind::Data, (by(offset), count));
            let sum = expected.entry((extent, offset)).or_default();
            *sum += count;
            if *sum == 0 {
                expected.remove(&(extent, offset));
            }
        }
        assert_eq!(pending.references(), expected.len());
        let found: usize = pending.iter().map(|(_, e)| e.changes.iter().count()).sum();
        assert_eq!(found, expected.len());
        for (logical, extent) in pending.iter() {
            let sum: i64 = extent.changes.iter().map(|(_, count)| count).sum();
            assert_eq!(sum, extent.net());
            for (offset, count) in (0..40).map(|offset| (offset, extent.changes.get(by(offset)))) {
                let expected = expected.get(&(logical.get() / 4096, offset));
                assert_eq!(count, expected.copied().unwrap_or(0));
            }
        }
        let mut taken = 0;
        while let Some(extent) = pending.next(Logical(0)).and_then(|at| pending.take(at)) {
            taken += extent.changes.len();
        }
        assert_eq!((taken, pending.references()), (expected.len(), 0));
    }
}
