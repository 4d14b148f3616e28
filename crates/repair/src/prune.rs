//! Pointers that lead to no node.

use crate::error::RepairError;
use crate::patient::BadNode;
use crate::step::{Step, StepKind};
use crate::walk::{Found, Lost, is_derived};
use crate::writer::Writer;
use butterfs_format::{Key, TreeId};
use butterfs_tree::{Editor, Node, TreeError};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Trees that are made anew as a whole if a part of them is lost.
pub(crate) fn is_made_anew(tree: TreeId) -> bool {
    is_derived(tree) && tree != TreeId::CSUM
}

fn range(lost: &Lost) -> String {
    let end = |key: Option<Key>| key.map_or_else(|| "the end".to_owned(), |key| key.to_string());
    let from = lost
        .first
        .map_or_else(|| "the beginning".to_owned(), |key| key.to_string());
    format!(
        "items of tree {} from {from} to {}",
        lost.tree,
        end(lost.bound)
    )
}

/// The leaf that a pointer names wrongly, if its items are those of the tree.
fn salvage(writer: &Writer, lost: &Lost) -> Option<Arc<Node>> {
    let leaf = writer.look(lost.node).ok().filter(|node| node.is_leaf())?;
    let above = lost.above?;
    let is_own = leaf.verify_owner_below(above).is_ok();
    let is_placed = lost
        .first
        .is_some_and(|first| leaf.verify_place(&first, lost.bound.as_ref()).is_ok());
    // The keys or the owner may be wrong, not both.
    (is_own || is_placed).then_some(leaf)
}

/// Adds items of a leaf that the tree does not have.
fn put_back(writer: &mut Writer, tree: TreeId, leaf: &Node) -> Result<(), RepairError> {
    for slot in 0..leaf.len() {
        match Editor::new(writer, tree).insert(&leaf.key(slot), leaf.data(slot)) {
            Ok(()) | Err(TreeError::Exists(_) | TreeError::Corrupt { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Drops pointers to nodes that are damaged in all copies, from every tree that
/// has them. A node whose device does not answer may be good, so its pointer
/// stays.
///
/// # Errors
/// Changing a tree.
pub(crate) fn prune(
    writer: &mut Writer,
    found: &Found,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let trees: BTreeSet<TreeId> = writer.roots.keys().copied().collect();
    for lost in &found.lost {
        let Some(first) = lost.first else {
            continue;
        };
        let is_own = [TreeId::CHUNK, TreeId::ROOT].contains(&lost.tree);
        if is_made_anew(lost.tree) || is_own || lost.bad == BadNode::Silent {
            continue;
        }
        let kept = salvage(writer, lost);
        let mut dropped = false;
        for tree in &trees {
            if *tree != lost.tree && !(tree.is_subvolume() && lost.tree.is_subvolume()) {
                continue;
            }
            // Other damage on the way is another loss.
            let is_dropped = Editor::new(writer, *tree)
                .drop_pointer(&first, lost.node)
                .unwrap_or(false);
            if let (true, Some(leaf)) = (is_dropped, &kept) {
                put_back(writer, *tree, leaf)?;
            }
            dropped |= is_dropped;
        }
        if dropped && kept.is_some() {
            let text = format!("The leaf at logical {}.", lost.node.logical);
            steps.push(Step::new(StepKind::PutBack, text));
        } else if dropped {
            let text = format!("The node at logical {}.", lost.node.logical);
            steps.push(Step::new(StepKind::PointerDropped, text).losing(range(lost)));
        }
    }
    Ok(())
}
