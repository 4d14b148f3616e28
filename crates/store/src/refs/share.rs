//! Copy-on-write of nodes that several trees may share.
//!
//! Owns the movement of references when a node is copied. The format lets the
//! first owner of a node hold its children's references by tree. When that
//! owner copies the node while others still hold it, the old node's children
//! are referred to by parent from then on (FULL_BACKREF).
//!
//! Source: the documentation's chapter on back references, and extent trees
//! of volumes that the kernel made.

use super::pending::{Backref, ExtentKind};
use super::record::ExtentRecord;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::item_fault::ItemFault;
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::node::FLAG_RELOC;
use butterfs_format::{InodeNumber, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Node, NodeSource};

/// How children refer to their parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyed {
    /// By the tree.
    ByTree(TreeId),
    /// By the node itself.
    ByParent(Logical),
}

/// References of an extent, changes of this generation included.
#[derive(Clone, Copy, Debug)]
pub struct ExtentState {
    /// References.
    pub count: u64,
    /// Its children are referred to by parent.
    pub full_backref: bool,
}

impl Engine {
    /// Moves references after `old` of `tree` was copied.
    pub(crate) fn move_references(&mut self, tree: TreeId, old: &Node) -> Result<(), StoreError> {
        let reference = old.reference();
        let may_be_shared = tree.is_subvolume() && self.may_be_shared(tree, old)?;
        if may_be_shared {
            let state = self.extent_state(
                reference.logical,
                self.nodes.identity().node_size as u64,
                ExtentKind::of_node(reference),
            )?;
            if state.count > 1 {
                if old.owner() == tree && !state.full_backref {
                    // The copy takes over the references by tree from the old
                    // node.
                    self.refer_to_children(old, Keyed::ByParent(reference.logical), 1)?;
                    self.mark_full_backref(reference);
                } else {
                    self.refer_to_children(old, Keyed::ByTree(tree), 1)?;
                }
            } else if state.full_backref {
                self.refer_to_children(old, Keyed::ByTree(tree), 1)?;
                self.refer_to_children(old, Keyed::ByParent(reference.logical), -1)?;
            }
        }
        self.drop_node_ref(reference, Backref::Tree(tree));
        if tree.is_subvolume() && !may_be_shared {
            // The root item says so. If it lies, the children of the node now
            // lack references.
            self.ledger.pending.note_last(reference.logical);
        }
        Ok(())
    }

    /// Whether another tree shares a node on the way to `key` of a subvolume,
    /// and so what its leaf refers to. The extent tree says so, whatever the
    /// root item says about snapshots.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn is_way_shared(&self, tree: TreeId, key: &Key) -> Result<bool, StoreError> {
        let mut at = self.root(tree)?;
        loop {
            let length = self.nodes.identity().node_size as u64;
            let state = self.extent_state(at.logical, length, ExtentKind::of_node(at))?;
            if state.count > 1 {
                return Ok(true);
            }
            let node = self.node(at)?;
            if node.is_leaf() {
                return Ok(false);
            }
            at = node.child(node.child_slot(key));
        }
    }

    fn may_be_shared(&self, tree: TreeId, node: &Node) -> Result<bool, StoreError> {
        let last_snapshot = self.tree_state(tree)?.item.last_snapshot;
        Ok(node.generation() <= last_snapshot || node.flags() & FLAG_RELOC != 0)
    }

    /// References of an extent as they will be at the commit.
    pub(crate) fn extent_state(
        &self,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
    ) -> Result<ExtentState, StoreError> {
        let pending = self.ledger.pending.get(logical);
        let (count, full_backref) = if pending.is_some_and(|p| p.new) {
            (0, false)
        } else {
            let record = ExtentRecord::load(self, logical, length, kind)?;
            (record.refs, record.is_full_backref())
        };
        let net = pending.map_or(0, |p| p.net());
        let marked = pending.is_some_and(|p| p.set_full_backref);
        let count = count.checked_add_signed(net).ok_or_else(|| {
            corrupt_item(
                TreeId::EXTENT,
                Key::new(logical.get(), ItemType::EXTENT_ITEM, length),
                ItemFault::FewerRefsThanFound,
            )
        })?;
        Ok(ExtentState {
            count,
            full_backref: full_backref || marked,
        })
    }

    /// Errors unless an extent has the references that are to be dropped, as of
    /// the coming commit. If one is missing, that commit would fail, and the
    /// volume with it.
    pub(crate) fn verify_refs(
        &self,
        (logical, length): (Logical, u64),
        kind: ExtentKind,
        drops: &[(Backref, i64)],
    ) -> Result<(), StoreError> {
        let fault = |fault| {
            let key = Key::new(logical.get(), ItemType::EXTENT_ITEM, length);
            Err(corrupt_item(TreeId::EXTENT, key, fault))
        };
        let pending = self.ledger.pending.get(logical);
        let record = match pending {
            Some(pending) if pending.new => None,
            _ => Some(ExtentRecord::load(self, logical, length, kind)?),
        };
        let waits = |by| pending.map_or(0, |pending| pending.changes.get(by));
        for (by, count) in drops {
            let wanted = count - waits(*by);
            if wanted <= 0 {
                continue;
            }
            let Some(record) = &record else {
                return fault(ItemFault::NewLacksRef);
            };
            let mut has = record.count_of(self, *by)?;
            if has < wanted {
                // The reference is counted in two places, or lies far behind
                // others whose hashes collide.
                let all = record.all_refs(self)?;
                let same = all.iter().filter(|(other, _)| other == by);
                has = same.map(|(_, count)| i64::from(*count)).sum();
            }
            if has < wanted {
                return fault(ItemFault::LacksRef);
            }
        }
        let dropped: i64 = drops.iter().map(|(_, count)| count).sum();
        let net = pending.map_or(0, |pending| pending.net()) - dropped;
        let refs = record.as_ref().map_or(0, |record| record.refs);
        let left = match refs.checked_add_signed(net) {
            Some(left) => left,
            None => return fault(ItemFault::FewerRefsThanFound),
        };
        let inline = record.iter().flat_map(|record| &record.inline);
        let mut kept = inline.filter(|(by, count)| {
            let drops = drops.iter().filter(|(other, _)| other == by);
            let drops: i64 = drops.map(|(_, count)| count).sum();
            i64::from(*count) + waits(*by) > drops
        });
        if left == 0 && kept.next().is_some() {
            return fault(ItemFault::MoreRefsThanCounted);
        }
        Ok(())
    }

    /// [`Engine::verify_refs`] of the references of a node to all its children.
    pub(crate) fn verify_refs_of_children(
        &self,
        node: &Node,
        keyed: Keyed,
    ) -> Result<(), StoreError> {
        if !node.is_leaf() {
            for slot in 0..node.len() {
                self.verify_node_ref(node.child(slot), keyed.of_node())?;
            }
            return Ok(());
        }
        let mut children: Vec<_> = data_children(node, keyed)?
            .into_iter()
            .map(|(place, by)| ((place.disk, place.disk_length), by))
            .collect();
        children.sort_unstable();
        for same in children.chunk_by(|(a, _), (b, _)| a == b) {
            let drops: Vec<_> = same
                .chunk_by(|(_, a), (_, b)| a == b)
                .map(|same| (same[0].1, same.len() as i64))
                .collect();
            self.verify_refs(same[0].0, ExtentKind::Data, &drops)?;
        }
        Ok(())
    }

    /// [`Engine::verify_refs`] of one reference to a node.
    pub(crate) fn verify_node_ref(&self, node: NodeRef, by: Backref) -> Result<(), StoreError> {
        let extent = (node.logical, self.nodes.identity().node_size as u64);
        self.verify_refs(extent, ExtentKind::of_node(node), &[(by, 1)])
    }

    /// From now on the children of `node` are referred to by the node itself.
    pub(crate) fn mark_full_backref(&mut self, node: NodeRef) {
        let length = self.nodes.identity().node_size as u64;
        self.ledger
            .pending
            .set_full_backref(node.logical, length, ExtentKind::of_node(node));
    }

    /// Changes the references of a node to all its children.
    pub(crate) fn refer_to_children(
        &mut self,
        node: &Node,
        keyed: Keyed,
        count: i64,
    ) -> Result<(), StoreError> {
        if !node.is_leaf() {
            for slot in 0..node.len() {
                self.change_node_ref(node.child(slot), keyed.of_node(), count);
            }
            return Ok(());
        }
        for (place, by) in data_children(node, keyed)? {
            self.ledger.pending.change(
                place.disk,
                place.disk_length,
                ExtentKind::Data,
                (by, count),
            );
        }
        Ok(())
    }
}

impl Keyed {
    /// As the reference to a node.
    pub(crate) const fn of_node(self) -> Backref {
        match self {
            Self::ByTree(tree) => Backref::Tree(tree),
            Self::ByParent(parent) => Backref::SharedNode(parent),
        }
    }
}

/// The data extents that a leaf refers to, with the references.
pub(crate) fn data_children(
    leaf: &Node,
    keyed: Keyed,
) -> Result<Vec<(ExtentPlace, Backref)>, StoreError> {
    let mut children = Vec::new();
    for slot in 0..leaf.len() {
        let key = leaf.key(slot);
        if key.item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let extent = FileExtent::parse(leaf.data(slot))
            .map_err(|error| bad_item(leaf.owner(), key, &error))?;
        let (FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)) = extent.body else {
            continue;
        };
        if place.disk.get() == 0 {
            continue;
        }
        let by = match keyed {
            Keyed::ByTree(root) => Backref::Data {
                root,
                inode: InodeNumber(key.objectid),
                offset: key.offset.wrapping_sub(place.offset),
            },
            Keyed::ByParent(parent) => Backref::SharedData(parent),
        };
        children.push((place, by));
    }
    Ok(children)
}
