//! Root items that name a wrong number of bytes.
//!
//! Some programs never change `bytes_used` of a root item: btrfs-progs when it
//! fills a new volume, and ButterFS before it counted nodes. Linux 6.18 leaves the
//! extent tree's number a node too small at times. Kernels subtract
//! from such a number until it is below zero ([`crate::nodes::tree_bytes`]). So opening
//! for writing looks whether the numbers can be right, and mends them if not.
//!
//! To count the nodes of a tree its branches must be read. That is done only
//! where it is needed. If no node is shared, the numbers of all trees add up to
//! what the block groups of nodes have in use, which is known. If nodes may be
//! shared, the sum says less; then the trees of which a volume has one are
//! counted, the small ones first, up to [`BRANCHES_UNASKED`] in all. What bounds
//! this is not memory (a branch above leaves takes some 30 bytes of it) but the
//! time that opening takes. Subvolumes, whose numbers no kernel
//! uses, are counted after something was found to be wrong.

use crate::Purpose;
use crate::Store;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::nodes::trees::TreeState;
use crate::parallel::in_parallel;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::root::RootItem;
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{ItemType, Key, NodeRef, TreeId};
use butterfs_tree::{Cursor, NodeSource};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::cmp::Ordering;

/// Branches that are read although no number is known to be wrong.
const BRANCHES_UNASKED: usize = 1 << 10;
/// Branches that are read in any case; they lead to several hundred GiB of
/// nodes.
const BRANCHES_MAX: usize = 1 << 17;
/// Branches that are read at the same time, since a device may take long to
/// answer.
const READERS: usize = 8;
/// Nodes of the tree of roots that one commit changes.
const ITEMS_PER_COMMIT: usize = 256;

/// The number of a tree's nodes, beside what its root item says.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    tree: TreeId,
    root: NodeRef,
    bytes: u64,
}

/// All trees with root items that are not being deleted: a tree that is keeps
/// the number that it had.
#[derive(Debug, Default)]
struct Numbering {
    trees: Vec<Numbered>,
    /// Other trees have nodes too.
    has_others: bool,
    /// Subvolumes may share nodes.
    may_share: bool,
}

/// What the sum of all numbers says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sum {
    Right,
    Wrong,
    Nothing,
}

/// A root item that is to be mended.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    tree: TreeId,
    bytes: u64,
}

impl Store {
    /// Mends root items that name a wrong number of bytes, and commits. If they
    /// cannot be counted or there is no space, the log says so and they stay.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn mend_tree_bytes(&self) -> Result<(), StoreError> {
        let wrong = match self.read().wrong_tree_bytes() {
            Ok(wrong) => wrong,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the nodes of the trees cannot be counted; run a check of the volume"
                );
                return Ok(());
            }
        };
        for some in wrong.chunks(ITEMS_PER_COMMIT) {
            let nodes = some.len() + usize::from(LEVEL_MAX);
            let mended = self.commit_for((nodes, Purpose::Shrink), |engine| {
                for wrong in some {
                    engine.change_root_item(wrong.tree, |item| item.bytes_used = wrong.bytes)?;
                }
                Ok(())
            });
            match mended {
                Err(error @ StoreError::NoSpace) => {
                    tracing::warn!(%error, "root items keep a wrong number of bytes");
                    return Ok(());
                }
                result => result?,
            }
        }
        if !wrong.is_empty() {
            tracing::warn!(
                trees = wrong.len(),
                "root items named wrong numbers of bytes (older versions of ButterFS and \
                 btrfs-progs leave them so, and Linux by a node at times); they were counted anew"
            );
        }
        Ok(())
    }
}

impl Engine {
    /// The trees whose numbers are wrong, with the right ones.
    fn wrong_tree_bytes(&self) -> Result<Vec<Wrong>, StoreError> {
        let all = self.numbered_trees()?;
        let mut count = Count::new(self);
        let mut found = all.trees.iter().any(|tree| !self.is_possible(tree));
        let trees = all.trees.iter().copied();
        let (own, subvolumes): (Vec<_>, Vec<_>) = trees.partition(|tree| !tree.tree.is_subvolume());
        // Roots of these are in memory.
        let low = own.iter().filter(|tree| tree.root.level <= 1);
        found = found || !count.wrong(low, BRANCHES_UNASKED)?.is_empty();
        if !found {
            match self.sum(&mut count, &all)? {
                Sum::Right => return Ok(Vec::new()),
                Sum::Wrong => found = true,
                Sum::Nothing => {}
            }
        }
        let most = if found {
            BRANCHES_MAX
        } else {
            BRANCHES_UNASKED
        };
        // The small ones first: a tree that is too large keeps its number, and
        // no other one.
        let mut by_size: Vec<&Numbered> = own.iter().collect();
        by_size.sort_unstable_by_key(|tree| (tree.root.level, tree.bytes));
        let mut wrong = Vec::new();
        for tree in by_size {
            wrong.extend(count.wrong(std::iter::once(tree), most)?);
        }
        if found || !wrong.is_empty() {
            wrong.extend(count.wrong(subvolumes.iter(), BRANCHES_MAX)?);
        }
        if found && count.is_over {
            tracing::warn!(
                "not all trees were counted, because the volume has very many nodes; run a check \
                 of the volume if the kernel runs out of space on it"
            );
        }
        Ok(wrong)
    }

    fn numbered_trees(&self) -> Result<Numbering, StoreError> {
        let mut all = Numbering::default();
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::ROOT_ITEM {
                let item =
                    RootItem::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
                self.add_numbered(TreeId(key.objectid), &item, &mut all);
            }
            cursor.next()?;
        }
        Ok(all)
    }

    fn add_numbered(&self, tree: TreeId, item: &RootItem, all: &mut Numbering) {
        if item.refs == 0 || tree == TreeId::RELOC {
            all.has_others = true;
            return;
        }
        let root = item.root();
        // Opening may have changed the tree in memory.
        let now = |state: &TreeState| (state.root, state.item.bytes_used);
        let now = self.nodes.see_tree(tree, now);
        let (root, bytes) = now.unwrap_or((root, item.bytes_used));
        all.may_share |= item.last_snapshot.get() > 0;
        all.trees.push(Numbered { tree, root, bytes });
    }

    /// Whether a tree of this level can have so many bytes.
    fn is_possible(&self, tree: &Numbered) -> bool {
        let size = self.nodes.identity().node_size as u64;
        let least = u64::from(tree.root.level) + 1;
        let level = u32::from(tree.root.level);
        // Every branch has fewer children than it has bytes.
        let most = size.saturating_pow(level).saturating_mul(2);
        tree.bytes.is_multiple_of(size) && (least..=most).contains(&(tree.bytes / size))
    }

    /// Compares the numbers of all trees together with what the block groups
    /// say.
    fn sum(&self, count: &mut Count<'_>, all: &Numbering) -> Result<Sum, StoreError> {
        let of_nodes = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let mut used = 0_u64;
        for group in self
            .groups()
            .filter(|group| group.flags.intersects(of_nodes))
        {
            if group.flags.contains(BlockGroupFlags::DATA) {
                return Ok(Sum::Nothing);
            }
            used = used.saturating_add(group.used);
        }
        let numbers = all.trees.iter().map(|tree| tree.bytes);
        let mut named = numbers.fold(0_u64, u64::saturating_add);
        for tree in [TreeId::ROOT, TreeId::CHUNK] {
            let root = self.root(tree)?;
            let Some(nodes) = count.nodes(&[root], BRANCHES_UNASKED)? else {
                return Ok(Sum::Nothing);
            };
            named = named
                .saturating_add(nodes[0].saturating_mul(self.nodes.identity().node_size as u64));
        }
        Ok(match named.cmp(&used) {
            Ordering::Equal => Sum::Right,
            Ordering::Less if all.has_others => Sum::Nothing,
            Ordering::Greater if all.has_others || all.may_share => Sum::Nothing,
            Ordering::Less | Ordering::Greater => Sum::Wrong,
        })
    }
}

/// What is known of a branch.
enum Branch {
    /// Of the lowest level: it has so many leaves.
    Lowest(u64),
    Upper(Vec<NodeRef>),
}

/// Counts nodes. Each branch is read once, whatever number of trees has it. A
/// pointer that disagrees with its branch about level or generation is another
/// one, which cannot be read.
struct Count<'e> {
    engine: &'e Engine,
    branches: FxHashMap<NodeRef, Branch>,
    /// Nodes of a branch and below it.
    below: FxHashMap<NodeRef, u64>,
    /// There were more branches than may be read.
    is_over: bool,
}

impl<'e> Count<'e> {
    fn new(engine: &'e Engine) -> Self {
        Self {
            engine,
            branches: FxHashMap::default(),
            below: FxHashMap::default(),
            is_over: false,
        }
    }

    /// Those of `trees` whose numbers are wrong; none if more than `most`
    /// branches would have to be read.
    fn wrong<'t>(
        &mut self,
        trees: impl Iterator<Item = &'t Numbered>,
        most: usize,
    ) -> Result<Vec<Wrong>, StoreError> {
        let trees: Vec<&Numbered> = trees.collect();
        let roots: Vec<NodeRef> = trees.iter().map(|tree| tree.root).collect();
        let Some(nodes) = self.nodes(&roots, most)? else {
            return Ok(Vec::new());
        };
        let size = self.engine.nodes.identity().node_size as u64;
        let counted = trees.into_iter().zip(nodes);
        Ok(counted
            .map(|(tree, nodes)| (tree, nodes.saturating_mul(size)))
            .filter(|(tree, bytes)| tree.bytes != *bytes)
            .map(|(tree, bytes)| Wrong {
                tree: tree.tree,
                bytes,
            })
            .collect())
    }

    /// The number of nodes of each tree; `None` if more than `most` branches
    /// would have to be read.
    fn nodes(&mut self, roots: &[NodeRef], most: usize) -> Result<Option<Vec<u64>>, StoreError> {
        for level in (1..=LEVEL_MAX).rev() {
            let above = self.branches.values().flat_map(|branch| match branch {
                Branch::Upper(children) => children.as_slice(),
                Branch::Lowest(_) => &[],
            });
            let mut wanted: Vec<NodeRef> = roots
                .iter()
                .chain(above)
                .filter(|node| node.level == level && !self.branches.contains_key(node))
                .copied()
                .collect();
            wanted.sort_unstable_by_key(|node| (node.logical, node.level, node.generation));
            wanted.dedup();
            if self.branches.len() + wanted.len() > most {
                self.is_over = true;
                return Ok(None);
            }
            self.read(&wanted)?;
        }
        Ok(Some(roots.iter().map(|root| self.total(*root)).collect()))
    }

    fn read(&mut self, wanted: &[NodeRef]) -> Result<(), StoreError> {
        let found = Mutex::new(Vec::with_capacity(wanted.len()));
        in_parallel(wanted, READERS, |reference| {
            let node = self.engine.node(*reference)?;
            let branch = match reference.level {
                1 => Branch::Lowest(node.len() as u64),
                _ => Branch::Upper((0..node.len()).map(|slot| node.child(slot)).collect()),
            };
            found.lock().push((*reference, branch));
            Ok::<(), StoreError>(())
        })?;
        self.branches.extend(found.into_inner());
        Ok(())
    }

    /// Nodes of a tree from this node on. The level falls at each step, whatever
    /// pointers say.
    fn total(&mut self, node: NodeRef) -> u64 {
        if node.level == 0 {
            return 1;
        }
        if let Some(known) = self.below.get(&node) {
            return *known;
        }
        let children = match self.branches.get(&node) {
            Some(Branch::Upper(children)) => children.clone(),
            Some(Branch::Lowest(leaves)) => return leaves.saturating_add(1),
            None => return 0,
        };
        let below = children.into_iter().map(|child| self.total(child));
        let total = below.fold(1_u64, u64::saturating_add);
        self.below.insert(node, total);
        total
    }
}
