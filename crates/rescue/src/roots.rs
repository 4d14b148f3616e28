//! Trees of roots: which generations there may be.

use crate::forest::Forest;
use crate::live::has_roots;
use crate::nodes::Nodes;
use butterfs_format::superblock::Superblock;
use butterfs_format::{Generation, NodeRef, TreeId};
use std::collections::BTreeMap;

/// Roots that are looked for.
const ROOTS_MAX: usize = 1024;

/// Where a tree of roots is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootSource {
    /// A superblock.
    Superblock,
    /// A backup root in a superblock.
    Backup,
    /// A node that the scan found.
    Scan,
    /// Nothing: it is put together from the leaves that are left.
    Leaves,
}

impl RootSource {
    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Backup => "backup root",
            Self::Scan => "scan",
            Self::Leaves => "leaves",
        }
    }
}

/// A tree of roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its root; `None` if it is to be put together.
    pub root: Option<NodeRef>,
    /// Its generation.
    pub generation: Generation,
    /// Where it is named.
    pub source: RootSource,
}

/// All of them, newest first; the one that is put together comes last.
pub(crate) fn candidates(nodes: &Nodes, superblocks: &[Superblock]) -> Vec<Candidate> {
    let mut all: BTreeMap<Generation, Candidate> = BTreeMap::new();
    let mut add = |root: NodeRef, source| {
        if root.generation.get() == 0 || root.logical.get() == 0 {
            return;
        }
        let new = Candidate {
            root: Some(root),
            generation: root.generation,
            source,
        };
        let known = all.entry(root.generation).or_insert(new);
        if source < known.source {
            *known = new;
        }
    };
    for superblock in superblocks {
        let root = NodeRef {
            logical: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        };
        add(root, RootSource::Superblock);
        for backup in &superblock.backup_roots {
            add(backup.tree_root, RootSource::Backup);
        }
    }
    for root in scanned(nodes) {
        add(root, RootSource::Scan);
    }
    let mut list: Vec<Candidate> = all.into_values().rev().collect();
    let committed = superblocks.iter().map(|superblock| superblock.generation);
    let newest = committed.max().unwrap_or_else(|| newest(nodes));
    list.push(Candidate {
        root: None,
        generation: newest,
        source: RootSource::Leaves,
    });
    list
}

/// Nodes that are the root of a whole tree of roots. Of each generation, those
/// with the highest level may be. A transaction can have written its root more
/// than once: the extent tree has only the last one.
fn scanned(nodes: &Nodes) -> Vec<NodeRef> {
    let mut found: Vec<NodeRef> = Vec::new();
    let mut top: Option<NodeRef> = None;
    for record in nodes.index.of_tree(TreeId::ROOT) {
        let root = record.reference();
        if top.is_none_or(|top| top.generation != root.generation) {
            top = Some(root);
        }
        let is_top = top.is_some_and(|top| top.level == root.level);
        let is_known = found.iter().rev().take(ROOTS_MAX).any(|one| *one == root);
        if is_top && !is_known && is_root(nodes, root) {
            found.push(root);
        }
        if found.len() >= ROOTS_MAX {
            break;
        }
    }
    found
}

/// Whether the trees that a node names agree that it is a root. If that cannot
/// be read any more, it may be one.
fn is_root(nodes: &Nodes, root: NodeRef) -> bool {
    let forest = Forest::load(nodes, Some(root), root.generation, None);
    let extents = forest.trees.get(&TreeId::EXTENT);
    let extents = extents.and_then(|tree| tree.root);
    extents.is_some_and(|extents| has_roots(nodes, extents, root) != Some(false))
}

/// The newest generation of any node. It may not have been committed.
fn newest(nodes: &Nodes) -> Generation {
    let found = nodes.index.nodes.iter().map(|node| node.generation);
    found.max().unwrap_or(Generation(u64::MAX))
}
