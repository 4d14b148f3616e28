//! Branches that are lost, made again from the nodes that lie below them.
//!
//! The extent tree names every node, with its level and who refers to it. The
//! children of a lost branch are the nodes one level below it that its tree
//! refers to, or the branch itself, and whose keys lie in its range. So a lost
//! branch, or the root of a subvolume, costs nothing if the extent tree can be
//! read and its children can. If some of these are lost, too, the search goes on
//! below them. A subvolume whose root is lost, and of which nothing else is left,
//! becomes an empty directory.
//!
//! Memory: 64 bytes for each node below a lost branch.

use crate::error::RepairError;
use crate::items;
use crate::patient::BadNode;
use crate::prune::is_made_anew;
use crate::step::{Step, StepKind};
use crate::walk::{By, Found, Lost, Recorded, WalkTree};
use crate::writer::Writer;
use butterfs_format::item::extent::{ExtentFlags, ExtentItem};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::{ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Editor, NodeSource};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What the extent tree says of a node.
#[derive(Clone, Debug)]
struct Listed {
    node: NodeRef,
    by: Vec<By>,
}

/// Calls `see` with every node that the extent tree lists.
fn each_listed(
    writer: &Writer,
    mut see: impl FnMut(Listed) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    let mut current: Option<Listed> = None;
    items::each(writer, TreeId::EXTENT, Key::MIN..=Key::MAX, |key, data| {
        let own = current
            .as_mut()
            .filter(|listed| listed.node.logical.get() == key.objectid);
        match (key.item_type, own) {
            (ItemType::METADATA_ITEM | ItemType::EXTENT_ITEM, _) => {
                if let Some(last) = current.take() {
                    see(last)?;
                }
                current = listed(key, data);
            }
            (ItemType::TREE_BLOCK_REF, Some(listed)) => listed.by.push(By::Tree(key.offset)),
            (ItemType::SHARED_BLOCK_REF, Some(listed)) => listed.by.push(By::Parent(key.offset)),
            _ => {}
        }
        Ok(())
    })?;
    current.map_or(Ok(()), see)
}

fn listed(key: Key, data: &[u8]) -> Option<Listed> {
    let item = ExtentItem::parse(key.item_type, data).ok()?;
    if !item.header.flags.contains(ExtentFlags::TREE_BLOCK) {
        return None;
    }
    let level = match &item.header.tree_block {
        Some(info) => info.level,
        None => u8::try_from(key.offset).ok()?,
    };
    let by = item.inline.iter().filter_map(|one| match one {
        ExtentRef::TreeBlock { root } => Some(By::Tree(root.get())),
        ExtentRef::SharedBlock { parent } => Some(By::Parent(parent.get())),
        _ => None,
    });
    Some(Listed {
        node: NodeRef {
            logical: Logical(key.objectid),
            generation: item.header.generation,
            level,
        },
        by: by.collect(),
    })
}

/// A node below a lost branch, with its first and its last key.
#[derive(Clone, Copy, Debug)]
struct Child {
    first: Key,
    last: Key,
    node: NodeRef,
}

/// Nodes of one level below a lost branch.
#[derive(Debug, Default)]
struct Level {
    good: Vec<Child>,
    /// How many cannot be read.
    unreadable: usize,
}

/// A lost branch, and what is known of the nodes below it.
struct Branch<'f> {
    lost: &'f Lost,
    /// Who may refer to nodes below it.
    by: BTreeSet<By>,
    /// The level that is looked for.
    wanted: Option<u8>,
    levels: BTreeMap<u8, Level>,
}

impl<'f> Branch<'f> {
    fn new(lost: &'f Lost) -> Self {
        let mut by = BTreeSet::from([By::Parent(lost.node.logical.get())]);
        if lost.first.is_none() {
            by.insert(By::Tree(lost.tree.get()));
        }
        Self {
            lost,
            by,
            wanted: lost.node.level.checked_sub(1),
            levels: BTreeMap::new(),
        }
    }

    /// Takes a node of the wanted level, if it lies below the branch. True if it
    /// can be read.
    fn add(&mut self, writer: &Writer, listed: &Listed) -> bool {
        let is_below = self.wanted == Some(listed.node.level)
            && listed.node.generation <= self.lost.node.generation
            && listed.by.iter().any(|by| self.by.contains(by));
        if !is_below {
            return false;
        }
        let level = self.levels.entry(listed.node.level).or_default();
        let Ok(node) = writer.look(listed.node) else {
            level.unreadable = level.unreadable.saturating_add(1);
            self.by.insert(By::Parent(listed.node.logical.get()));
            return false;
        };
        let (Some(first), Some(last)) = (node.first_key(), node.last_key()) else {
            return false;
        };
        let begins = self.lost.first.is_none_or(|lost| lost <= first);
        let ends = self.lost.bound.is_none_or(|bound| last < bound);
        let is_child = begins && ends && node.verify_owner_below(self.lost.tree).is_ok();
        if is_child {
            level.good.push(Child {
                first,
                last,
                node: listed.node,
            });
        }
        is_child
    }

    /// Looks further down for what lies below nodes that cannot be read.
    fn descend(&mut self) {
        self.wanted = self.wanted.and_then(|level| {
            let found = self.levels.get(&level)?;
            (found.unreadable > 0).then_some(level)?.checked_sub(1)
        });
    }

    /// Leaves that cannot be read, or branches of which nothing below was found.
    fn unreadable(&self) -> usize {
        let lowest = self.levels.values().next();
        lowest.map_or(0, |level| level.unreadable)
    }

    /// The children in their order. Branches among them that cannot be read are
    /// made again, too.
    fn children(&self, writer: &mut Writer) -> Result<Vec<(Key, NodeRef)>, RepairError> {
        let mut below: Vec<Child> = Vec::new();
        for (level, found) in &self.levels {
            let mut own = in_order(&found.good);
            let mut pointed = BTreeSet::new();
            for child in own.iter().filter(|_| !below.is_empty()) {
                let node = writer.node(child.node)?;
                pointed.extend((0..node.len()).map(|slot| node.child(slot).logical));
            }
            below.retain(|child| !pointed.contains(&child.node.logical));
            // What lies between two branches that can be read belonged to others.
            let place = |child: &Child| own.partition_point(|one| one.first <= child.first);
            let groups = below.chunk_by(|one, other| place(one) == place(other));
            let most = writer.pointers_max().max(1);
            let mut made = Vec::new();
            for group in groups.flat_map(|group| group.chunks(most)) {
                let pointers: Vec<_> = group.iter().map(|one| (one.first, one.node)).collect();
                let node = Editor::new(writer, self.lost.tree).make_branch(*level, &pointers)?;
                if let (Some(first), Some(last)) = (group.first(), group.last()) {
                    let (first, last) = (first.first, last.last);
                    made.push(Child { first, last, node });
                }
            }
            own.extend(made);
            own.sort_by_key(|child| child.first);
            below = own;
        }
        let top = self.lost.node.level.checked_sub(1);
        let is_top = |child: &&Child| Some(child.node.level) == top;
        let pointers = below.iter().filter(is_top);
        Ok(pointers.map(|child| (child.first, child.node)).collect())
    }
}

/// Nodes of a level in their order. Of two that have the same keys, the newer
/// one is taken.
fn in_order(nodes: &[Child]) -> Vec<Child> {
    let mut sorted = nodes.to_vec();
    sorted.sort_by_key(|child| (child.first, Reverse(child.node.generation)));
    let mut order: Vec<Child> = Vec::new();
    for child in sorted {
        let before = order.last().filter(|before| before.last >= child.first);
        match before.map(|before| before.node.generation < child.node.generation) {
            Some(false) => continue,
            Some(true) => drop(order.pop()),
            None => {}
        }
        order.push(child);
    }
    order
}

/// Makes lost branches again, and lost roots of subvolumes. Space of everything
/// that the extent tree lists must be kept free of new nodes. True if something
/// was changed: then the trees reach more than before.
///
/// # Errors
/// Reading the extent tree, changing a tree.
pub(crate) fn regrow(
    writer: &mut Writer,
    trees: &[WalkTree],
    found: &Found,
    recorded: &Recorded,
    (memory_max, steps): (u64, &mut Vec<Step>),
) -> Result<bool, RepairError> {
    let is_live = |id: TreeId| trees.iter().any(|tree| tree.id == id && !tree.is_passing);
    let candidates = found.lost.iter().filter(|lost| {
        let is_own = [TreeId::CHUNK, TreeId::ROOT].contains(&lost.tree);
        let is_mended = !is_own && !is_made_anew(lost.tree) && lost.bad != BadNode::Silent;
        is_mended && is_live(lost.tree)
    });
    let mut lost: Vec<&Lost> = candidates.collect();
    // A node is lost once, however many pointers lead to it.
    lost.sort_by_key(|lost| (lost.node.logical, lost.first));
    lost.dedup_by_key(|lost| lost.node.logical);
    if lost.is_empty() || !recorded.is_whole {
        return Ok(false);
    }
    let mut branches = branches(writer, &lost, memory_max)?;
    let mut changed = false;
    for branch in &mut branches {
        let children = branch.children(writer)?;
        let lost = branch.lost;
        if !children.is_empty() && replace(writer, lost, &children)? {
            changed = true;
            let text = format!(
                "The node at logical {}, with {} nodes below it.",
                lost.node.logical,
                children.len()
            );
            let step = Step::new(StepKind::Branch, text);
            steps.push(match branch.unreadable() {
                0 => step,
                more => step.losing(format!("what {more} more nodes below it had")),
            });
        } else if lost.first.is_none() && lost.tree.is_subvolume() {
            changed = true;
            writer.empty(lost.tree)?;
            let text = format!("Subvolume {}.", lost.tree);
            let what = format!("all files of subvolume {}", lost.tree);
            steps.push(Step::new(StepKind::Emptied, text).losing(what));
        }
    }
    Ok(changed)
}

/// Reads what lies below lost branches.
fn branches<'f>(
    writer: &Writer,
    lost: &[&'f Lost],
    memory_max: u64,
) -> Result<Vec<Branch<'f>>, RepairError> {
    let own = lost.iter();
    let mut branches: BTreeMap<Logical, Branch<'f>> = own
        .map(|lost| (lost.node.logical, Branch::new(lost)))
        .collect();
    // Who refers to a branch may be its owner, in whose name it refers to its
    // children.
    each_listed(writer, |listed| {
        if let Some(branch) = branches.get_mut(&listed.node.logical) {
            let trees = listed.by.iter();
            branch
                .by
                .extend(trees.filter(|by| matches!(by, By::Tree(_))));
        }
        Ok(())
    })?;
    let mut all: Vec<Branch<'f>> = branches.into_values().collect();
    let each = u64::try_from(size_of::<Child>()).unwrap_or(u64::MAX);
    let mut bytes = 0_u64;
    while all.iter().any(|branch| branch.wanted.is_some()) {
        each_listed(writer, |listed| {
            for branch in &mut all {
                if branch.add(writer, &listed) {
                    bytes = bytes.saturating_add(each);
                }
            }
            match bytes > memory_max {
                true => Err(RepairError::Memory(memory_max)),
                false => Ok(()),
            }
        })?;
        all.iter_mut().for_each(Branch::descend);
    }
    Ok(all)
}

/// Puts a branch with `children` in the place of a lost one, in every tree that
/// has it.
fn replace(
    writer: &mut Writer,
    lost: &Lost,
    children: &[(Key, NodeRef)],
) -> Result<bool, RepairError> {
    let trees: Vec<TreeId> = match lost.first {
        None => vec![lost.tree],
        Some(_) => {
            let all = writer.roots.keys().copied();
            let shares = |tree: &TreeId| tree.is_subvolume() && lost.tree.is_subvolume();
            all.filter(|tree| *tree == lost.tree || shares(tree))
                .collect()
        }
    };
    let mut replaced = false;
    for tree in trees {
        // Other damage on the way is another loss.
        replaced |= Editor::new(writer, tree)
            .replace_branch(lost.first.as_ref(), lost.node, children)
            .unwrap_or(false);
    }
    Ok(replaced)
}
