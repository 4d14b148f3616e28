//! Which subvolumes reach an extent, from its references upwards.
//!
//! Owns two views of the volume: the state of the last commit, and the state
//! that the running generation makes. A commit applies pending reference
//! changes to the extent tree. Before that moment the extent tree alone
//! describes the last commit, and together with the pending changes it
//! describes the next one.
//!
//! A reference names the node above it: by the node's address, or by a tree in
//! which a key finds the node. Whatever reaches that node reaches the extent.
//! Levels ascend, so a walk ends. Each node is resolved once.
//!
//! Bounds: [`WORK_MAX`] references and items looked at for one view.

use super::reach_sets::{ReachSets, SetId};
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::refs::pending::{Backref, ExtentKind};
use crate::refs::record::ExtentRecord;
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::root::RootItem;
use butterfs_format::{InodeNumber, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Cursor, Node, NodeSource, TreeError};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// References and items that one view may look at.
const WORK_MAX: usize = 4_000_000;
/// Greatest length of a compressed extent after unpacking, in bytes.
const UNPACKED_MAX: u64 = 128 << 10;

/// Why the subvolumes that reach something are not known.
#[derive(Debug, Error)]
pub(super) enum Unkept {
    #[error("too much changed in one commit")]
    TooMuch,
    #[error("{0}")]
    Rule(&'static str),
    #[error("the extent at {0} is not where its references say")]
    NotFound(Logical),
    #[error(transparent)]
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for Unkept {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

/// References to an extent.
pub(super) struct Refs {
    pub(super) by: Vec<(Backref, i64)>,
    full_backref: bool,
}

/// One state of the volume.
pub(super) trait View: NodeSource {
    fn engine(&self) -> &Engine;

    /// References to an extent.
    fn refs(&self, logical: Logical, length: u64, kind: ExtentKind) -> Result<Refs, StoreError>;

    /// Root item of a subvolume.
    fn root_item(&self, tree: TreeId) -> Result<RootItem, StoreError>;
}

fn committed_refs(
    engine: &Engine,
    logical: Logical,
    length: u64,
    kind: ExtentKind,
) -> Result<Refs, StoreError> {
    let record = ExtentRecord::load(engine, logical, length, kind)?;
    let inline: u64 = record
        .inline
        .iter()
        .map(|(_, count)| u64::from(*count))
        .sum();
    let by = if inline >= record.refs {
        record.inline.clone()
    } else {
        record.all_refs(engine)?
    };
    Ok(Refs {
        by: by
            .iter()
            .map(|(by, count)| (*by, i64::from(*count)))
            .collect(),
        full_backref: record.is_full_backref(),
    })
}

/// The volume as the last commit left it.
pub(super) struct LastCommit<'e> {
    engine: &'e Engine,
    items: RefCell<FxHashMap<TreeId, RootItem>>,
}

impl<'e> LastCommit<'e> {
    pub(super) fn new(engine: &'e Engine) -> Self {
        Self {
            engine,
            items: RefCell::default(),
        }
    }
}

impl NodeSource for LastCommit<'_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.engine.node(reference)
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        if tree == TreeId::ROOT {
            let superblock = self.engine.publisher.durable();
            return Ok(NodeRef {
                logical: superblock.root,
                generation: superblock.generation,
                level: superblock.root_level,
            });
        }
        Ok(self.root_item(tree)?.root())
    }
}

impl View for LastCommit<'_> {
    fn engine(&self) -> &Engine {
        self.engine
    }

    fn refs(&self, logical: Logical, length: u64, kind: ExtentKind) -> Result<Refs, StoreError> {
        committed_refs(self.engine, logical, length, kind)
    }

    fn root_item(&self, tree: TreeId) -> Result<RootItem, StoreError> {
        if let Some(item) = self.items.borrow().get(&tree) {
            return Ok(item.clone());
        }
        let last = Key::new(tree.get(), ItemType::ROOT_ITEM, u64::MAX);
        let mut cursor = Cursor::at_root(self, self.root(TreeId::ROOT)?);
        cursor.seek_back(&last)?;
        let found = cursor
            .item()
            .filter(|(key, _)| key.objectid == tree.get() && key.item_type == ItemType::ROOT_ITEM);
        let Some((key, data)) = found else {
            return Err(TreeError::NoSuchTree(tree).into());
        };
        let item = RootItem::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
        self.items.borrow_mut().insert(tree, item.clone());
        Ok(item)
    }
}

/// The volume as the running generation makes it.
pub(super) struct Now<'e>(pub(super) &'e Engine);

impl NodeSource for Now<'_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.0.node(reference)
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        self.0.root(tree)
    }
}

impl View for Now<'_> {
    fn engine(&self) -> &Engine {
        self.0
    }

    fn refs(&self, logical: Logical, length: u64, kind: ExtentKind) -> Result<Refs, StoreError> {
        let pending = self.0.ledger.pending().get(logical);
        let mut refs = if pending.is_some_and(|pending| pending.new) {
            Refs {
                by: Vec::new(),
                full_backref: false,
            }
        } else {
            committed_refs(self.0, logical, length, kind)?
        };
        let Some(pending) = pending else {
            return Ok(refs);
        };
        refs.full_backref |= pending.set_full_backref;
        let mut sums: BTreeMap<Backref, i64> = BTreeMap::new();
        for (by, count) in refs.by.into_iter().chain(pending.changes.iter()) {
            let sum = sums.entry(by).or_default();
            *sum = sum.saturating_add(count);
        }
        refs.by = sums.into_iter().collect();
        Ok(refs)
    }

    fn root_item(&self, tree: TreeId) -> Result<RootItem, StoreError> {
        Ok(self.0.tree_state(tree)?.item)
    }
}

/// What is known of a node.
#[derive(Clone, Copy)]
struct Known {
    set: SetId,
    full_backref: bool,
}

/// Finds who reaches extents in one view.
pub(super) struct Reach<V> {
    view: V,
    known: FxHashMap<Logical, Known>,
    work: usize,
}

/// A data reference in the form by which its tree is searched.
struct Wanted {
    tree: TreeId,
    inode: InodeNumber,
    offset: u64,
    logical: Logical,
    length: u64,
    count: i64,
}

impl<V: View> Reach<V> {
    pub(super) fn new(view: V) -> Self {
        Self {
            view,
            known: FxHashMap::default(),
            work: 0,
        }
    }

    fn work(&mut self, amount: usize) -> Result<(), Unkept> {
        self.work = self.work.saturating_add(amount);
        if self.work > WORK_MAX {
            return Err(Unkept::TooMuch);
        }
        Ok(())
    }

    /// Subvolumes that reach an extent.
    pub(super) fn of(
        &mut self,
        sets: &mut ReachSets,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
    ) -> Result<SetId, Unkept> {
        if let ExtentKind::Node { level, .. } = kind {
            return Ok(self.node(sets, logical, level)?.set);
        }
        let refs = self.view.refs(logical, length, kind)?;
        self.work(refs.by.len())?;
        let mut set = SetId::EMPTY;
        for (by, count) in refs.by {
            let part = match by {
                _ if count <= 0 => continue,
                Backref::Data { root, .. } if !root.is_subvolume() => continue,
                Backref::Data {
                    root,
                    inode,
                    offset,
                } => {
                    let wanted = Wanted {
                        tree: root,
                        inode,
                        offset,
                        logical,
                        length,
                        count,
                    };
                    self.find_data(sets, &wanted)?
                }
                Backref::SharedData(leaf) => self.node(sets, leaf, 0)?.set,
                Backref::Tree(_) | Backref::SharedNode(_) => return Err(Unkept::NotFound(logical)),
            };
            set = sets.union(set, part);
        }
        Ok(set)
    }

    /// Subvolumes that reach the node at `logical`.
    fn node(&mut self, sets: &mut ReachSets, logical: Logical, level: u8) -> Result<Known, Unkept> {
        if let Some(known) = self.known.get(&logical) {
            return Ok(*known);
        }
        let length = u64::try_from(self.view.engine().node_size()).unwrap_or(u64::MAX);
        let kind = ExtentKind::Node {
            level,
            first_key: None,
        };
        let refs = self.view.refs(logical, length, kind)?;
        self.work(refs.by.len().saturating_add(1))?;
        let mut set = SetId::EMPTY;
        for (by, count) in refs.by {
            let part = match by {
                _ if count <= 0 => continue,
                Backref::Tree(tree) if !tree.is_subvolume() => continue,
                Backref::Tree(tree) => self.find_node(sets, tree, logical, level)?,
                Backref::SharedNode(parent) => {
                    let above = level.checked_add(1).ok_or(Unkept::NotFound(logical))?;
                    self.node(sets, parent, above)?.set
                }
                Backref::Data { .. } | Backref::SharedData(_) => {
                    return Err(Unkept::NotFound(logical));
                }
            };
            set = sets.union(set, part);
        }
        let known = Known {
            set,
            full_backref: refs.full_backref,
        };
        self.known.insert(logical, known);
        Ok(known)
    }

    /// Who reaches a node that `tree` refers to.
    fn find_node(
        &mut self,
        sets: &mut ReachSets,
        tree: TreeId,
        logical: Logical,
        level: u8,
    ) -> Result<SetId, Unkept> {
        let mut at = self.view.root(tree)?;
        if at.logical == logical {
            return Ok(sets.single(tree));
        }
        let node = self.view.engine().node_at(logical, Some(level))?;
        let key = node.first_key().ok_or(Unkept::NotFound(logical))?;
        while at.level > level {
            let branch = self.view.node(at)?;
            if branch.is_empty() {
                break;
            }
            let child = branch.child(branch.child_slot(&key));
            if child.logical == logical {
                return Ok(self.node(sets, at.logical, at.level)?.set);
            }
            at = child;
        }
        Err(Unkept::NotFound(logical))
    }

    /// Who reaches a data extent by the file extents of one inode.
    fn find_data(&mut self, sets: &mut ReachSets, wanted: &Wanted) -> Result<SetId, Unkept> {
        // It is not known where in the extent the file extent begins.
        let span = wanted.length.max(UNPACKED_MAX);
        let is_wrapped = i64::try_from(wanted.offset).is_err();
        let start = if is_wrapped { 0 } else { wanted.offset };
        let mut first = Key::new(wanted.inode.get(), ItemType::EXTENT_DATA, start);
        // What a deletion has freed may hold something else by now.
        let item = self.view.root_item(wanted.tree)?;
        if let Some(freed) = item.drop_progress.filter(|_| item.refs == 0) {
            first = first.max(freed);
        }
        // Most extents have one file extent, in a leaf of their own tree.
        let mut leaves = self.leaves_with(wanted, first, span, Stop::AtFirst)?;
        let (mut set, mut left) = self.join(sets, wanted, &leaves)?;
        if left > 0 {
            leaves = self.leaves_with(wanted, first, span, Stop::AtEnd)?;
            (set, left) = self.join(sets, wanted, &leaves)?;
        }
        if left > 0 {
            return Err(Unkept::NotFound(wanted.logical));
        }
        Ok(set)
    }

    /// The subvolumes that reach `leaves`, and how many of the wanted
    /// references these leaves do not account for.
    fn join(
        &mut self,
        sets: &mut ReachSets,
        wanted: &Wanted,
        leaves: &[Holding],
    ) -> Result<(SetId, i64), Unkept> {
        let mut set = SetId::EMPTY;
        let mut left = wanted.count;
        for leaf in leaves {
            let known = self.node(sets, leaf.logical, 0)?;
            set = sets.union(set, known.set);
            if leaf.owner == wanted.tree && !known.full_backref {
                left = left.saturating_sub(leaf.count);
            }
        }
        Ok((set, left))
    }

    /// Leaves with file extents of the wanted data extents.
    fn leaves_with(
        &mut self,
        wanted: &Wanted,
        first: Key,
        span: u64,
        stop: Stop,
    ) -> Result<Vec<Holding>, Unkept> {
        let mut leaves: Vec<Holding> = Vec::new();
        let mut seen = 0_usize;
        let mut cursor = Cursor::seek_in(&self.view, wanted.tree, &first)?;
        while let (Some((key, data)), Some((leaf, _))) = (cursor.item(), cursor.leaf()) {
            if key.objectid != wanted.inode.get()
                || key.item_type != ItemType::EXTENT_DATA
                || key.offset.wrapping_sub(wanted.offset) > span
                || seen > WORK_MAX
            {
                break;
            }
            seen = seen.saturating_add(1);
            let extent =
                FileExtent::parse(data).map_err(|error| bad_item(wanted.tree, key, &error))?;
            if holds(&extent, key, wanted) {
                match leaves.last_mut() {
                    Some(last) if last.logical == leaf.logical() => {
                        last.count = last.count.saturating_add(1);
                    }
                    _ => leaves.push(Holding {
                        logical: leaf.logical(),
                        owner: leaf.owner(),
                        count: 1,
                    }),
                }
                if stop == Stop::AtFirst && leaf.owner() == wanted.tree && wanted.count == 1 {
                    break;
                }
            }
            cursor.next()?;
        }
        drop(cursor);
        self.work(seen)?;
        Ok(leaves)
    }
}

/// How far the search for file extents goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// To the first one, if that may be the only one.
    AtFirst,
    /// To the last that can be.
    AtEnd,
}

/// A leaf with file extents of an extent.
struct Holding {
    logical: Logical,
    owner: TreeId,
    count: i64,
}

fn holds(extent: &FileExtent<'_>, key: Key, wanted: &Wanted) -> bool {
    let (FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)) = &extent.body else {
        return false;
    };
    let ExtentPlace { disk, offset, .. } = place;
    *disk == wanted.logical && key.offset.wrapping_sub(*offset) == wanted.offset
}
