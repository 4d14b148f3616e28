//! Node ids and the kernel's lookups of them.
//!
//! Owns the table of nodes the kernel knows, each with the number of lookups. A
//! node pins its inode once while it has lookups, so that a file without names
//! lives until the kernel forgets it. The kernel may know millions of nodes, so the
//! table has nothing else of them.
//!
//! In the mounted subvolume a node id is the inode number (256, the root, is
//! 1). Elsewhere it is the subvolume's id above 40 bits of inode number. Such
//! ids are the same in every mount. Where one of the two numbers is too great,
//! the mount numbers their upper parts as it meets them. Programs see node ids
//! as inode numbers, so no two directories look alike.

use butterfs::{
    Filesystem, FsError, Inode, InodeId, InodeNumber, TreeId, absent_subvolume, in_place_of_absent,
};
use butterfs_fuse::NodeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const SHARDS: usize = 64;
/// Bits of an inode number in a node id.
const NUMBER_BITS: u32 = 40;
/// Set in these bits for the empty directory in place of a subvolume, whose id
/// is below it.
const ABSENT: u64 = 1 << (NUMBER_BITS - 1);
/// Subvolumes' ids below this have node ids below 2^63.
const TREES: u64 = 1 << 23;
/// Set in node ids that have the number of a prefix in place of the
/// subvolume's id.
const PREFIXED: u64 = 1 << 63;

/// What does not fit a node id: the subvolume, and the upper bits of the inode
/// number.
type Prefix = (TreeId, u64);

/// Prefixes that the mount met.
#[derive(Default)]
struct Prefixes {
    numbers: HashMap<Prefix, u64>,
    all: Vec<Prefix>,
}

impl Prefixes {
    /// `None` if there are too many.
    fn number_of(&mut self, prefix: Prefix) -> Option<u64> {
        if let Some(number) = self.numbers.get(&prefix) {
            return Some(*number);
        }
        let number = self.all.len() as u64;
        if number >= TREES {
            return None;
        }
        self.numbers.insert(prefix, number);
        self.all.push(prefix);
        Some(number)
    }
}

/// Nodes the kernel knows.
pub struct Nodes {
    tree: TreeId,
    /// Lookups of each node.
    shards: Vec<Mutex<HashMap<u64, u64>>>,
    /// Nodes in all shards.
    count: AtomicUsize,
    prefixes: RwLock<Prefixes>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inode that programs see as `number` (st_ino) on a mount. A number that
/// names no subvolume means one in `tree`. The inode need not exist. A number
/// that only its mount understands gives an inode that does not.
#[must_use]
pub fn inode_shown_as(number: u64, tree: TreeId) -> InodeId {
    let tree = match number >> NUMBER_BITS {
        0 => tree,
        other if other >= TREES => TreeId(0),
        other => TreeId(other),
    };
    below((tree, 0), number)
}

/// The inode of this prefix whose lower bits a node id has.
fn below((tree, upper): Prefix, node: u64) -> InodeId {
    let lower = node & (ABSENT - 1);
    if node & ABSENT != 0 {
        return in_place_of_absent(tree, lower);
    }
    InodeId {
        tree,
        number: InodeNumber(upper << (NUMBER_BITS - 1) | lower),
    }
}

impl Nodes {
    /// No nodes but the root, which belongs to `tree`.
    pub fn new(tree: TreeId) -> Self {
        Self {
            tree,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            prefixes: RwLock::default(),
        }
    }

    fn shard(&self, node: u64) -> MutexGuard<'_, HashMap<u64, u64>> {
        lock(&self.shards[(node % SHARDS as u64) as usize])
    }

    /// The node id of an inode.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] after 2^23 different prefixes.
    pub fn node_of(&self, id: InodeId) -> Result<NodeId, FsError> {
        if id == self.root() {
            return Ok(NodeId::ROOT);
        }
        let (upper, lower) = match absent_subvolume(id) {
            Some(subvolume) => (0, ABSENT | (subvolume % ABSENT)),
            None => (id.number.get() / ABSENT, id.number.get() % ABSENT),
        };
        if upper == 0 && id.tree == self.tree {
            return Ok(NodeId(lower));
        }
        if upper == 0 && id.tree.get() < TREES {
            return Ok(NodeId(id.tree.get() << NUMBER_BITS | lower));
        }
        let mut prefixes = self
            .prefixes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let number = prefixes.number_of((id.tree, upper));
        let number = number.ok_or(FsError::NotSupported("more inode numbers this great"))?;
        Ok(NodeId(PREFIXED | number << NUMBER_BITS | lower))
    }

    fn root(&self) -> InodeId {
        InodeId {
            tree: self.tree,
            number: InodeNumber::ROOT,
        }
    }

    /// The inode that a node id stands for; it need not exist.
    pub fn id(&self, node: NodeId) -> InodeId {
        if node == NodeId::ROOT {
            return self.root();
        }
        if node.0 & PREFIXED == 0 {
            return inode_shown_as(node.0, self.tree);
        }
        let number = (node.0 & !PREFIXED) >> NUMBER_BITS;
        let prefixes = self.prefixes.read().unwrap_or_else(PoisonError::into_inner);
        let prefix = usize::try_from(number)
            .ok()
            .and_then(|at| prefixes.all.get(at));
        // Nothing is in tree 0.
        below(prefix.copied().unwrap_or((TreeId(0), 0)), node.0)
    }

    /// The inode of a node the kernel named.
    pub fn get(&self, files: &Filesystem, node: NodeId) -> Result<Arc<Inode>, FsError> {
        files.inode(self.id(node))
    }

    /// Counts one lookup of `inode`; gives its node id.
    pub fn remember(&self, files: &Filesystem, inode: &Arc<Inode>) -> Result<NodeId, FsError> {
        let node = self.node_of(inode.id)?;
        let mut shard = self.shard(node.0);
        let lookups = shard.entry(node.0).or_insert_with(|| {
            files.pin(inode);
            self.count.fetch_add(1, Ordering::Relaxed);
            0
        });
        *lookups += 1;
        Ok(node)
    }

    /// Whether the kernel knows the node of an inode. If it does not, it has
    /// neither its attributes nor a name in it, and will ask for both.
    pub fn knows(&self, id: InodeId) -> Option<NodeId> {
        let node = self.node_of(id).ok()?;
        let is_known = node == NodeId::ROOT || self.shard(node.0).contains_key(&node.0);
        is_known.then_some(node)
    }

    /// How many nodes the kernel knows.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Nodes that the kernel knows, at most `most`, without the root. Which ones is
    /// left to chance.
    pub fn some(&self, most: usize) -> Vec<NodeId> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let share = most.div_ceil(SHARDS).min(most - found.len());
            let shard = lock(shard);
            let known = shard.keys().map(|node| NodeId(*node));
            found.extend(known.filter(|node| *node != NodeId::ROOT).take(share));
        }
        found
    }

    /// Takes back lookups. The last one ends the inode's pin.
    pub fn forget(&self, files: &Filesystem, node: NodeId, lookups: u64) -> Result<(), FsError> {
        {
            let mut shard = self.shard(node.0);
            let Some(known) = shard.get_mut(&node.0) else {
                return Ok(());
            };
            *known = known.saturating_sub(lookups);
            if *known > 0 {
                return Ok(());
            }
            shard.remove(&node.0);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        files.unpin_id(self.id(node), 1)
    }

    /// The nodes of a subvolume that the kernel knows.
    pub fn known_in(&self, tree: TreeId) -> Vec<NodeId> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let known = shard.keys().map(|node| NodeId(*node));
            found.extend(known.filter(|node| self.id(*node).tree == tree));
        }
        found
    }

    /// Takes back all lookups, at the end.
    pub fn forget_all(&self, files: &Filesystem) {
        for shard in &self.shards {
            let all: Vec<u64> = lock(shard).drain().map(|(node, _)| node).collect();
            for node in all {
                if let Err(error) = files.unpin_id(self.id(NodeId(node)), 1) {
                    tracing::error!(%error, "a file without names could not be deleted");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inode_has_a_node_of_its_own() {
        let own = TreeId(TREES + 7);
        let trees = [5, 256, TREES - 1, TREES, own.get(), (1 << 48) - 1].map(TreeId);
        let numbers = [
            256,
            257,
            ABSENT - 1,
            ABSENT,
            2 * ABSENT,
            2 * ABSENT + 257,
            u64::MAX - 256,
        ];
        let nodes = Nodes::new(own);
        let mut seen = HashMap::new();
        for tree in trees {
            let real = numbers.map(|number| InodeId {
                tree,
                number: InodeNumber(number),
            });
            let absent = [256, TREES + 3].map(|subvolume| in_place_of_absent(tree, subvolume));
            for id in real.into_iter().chain(absent) {
                let node = nodes.node_of(id).expect("a node");
                assert_eq!(nodes.id(node), id);
                assert_eq!(seen.insert(node.0, id), None, "{id:?}");
                assert_eq!(nodes.node_of(id).expect("a node"), node);
            }
        }
        assert_eq!(nodes.node_of(nodes.root()).expect("a node"), NodeId::ROOT);
        let unknown = nodes.id(NodeId(PREFIXED | 1000 << NUMBER_BITS | 256));
        assert_eq!(unknown.tree, TreeId(0));
    }

    #[test]
    fn numbers_are_the_same_in_every_mount() {
        let nodes = Nodes::new(TreeId::FS);
        let id = |tree: u64, number: u64| InodeId {
            tree: TreeId(tree),
            number: InodeNumber(number),
        };
        for (inode, node) in [
            (id(5, 300), 300),
            (id(256, 256), 256 << 40 | 256),
            (
                in_place_of_absent(TreeId(300), 256),
                300 << 40 | 1 << 39 | 256,
            ),
        ] {
            assert_eq!(nodes.node_of(inode).expect("a node"), NodeId(node));
            assert_eq!(inode_shown_as(node, TreeId::FS), inode);
        }
    }
}
