//! Node ids and the kernel's lookups of them.
//!
//! Owns the table of nodes the kernel knows, each with its inode and the
//! number of lookups. A node pins its inode once while it has lookups, so that
//! a file without names lives until the kernel forgets it.
//!
//! In the mounted subvolume a node id is the inode number (256, the root, is
//! 1). Elsewhere it is the subvolume's id above 40 bits of inode number. Ids
//! are the same in every mount. Programs see them as inode numbers, so no two
//! directories look alike.

use butterfs::{Filesystem, FsError, Inode, InodeId, InodeNumber, TreeId};
use butterfs_fuse::NodeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Bits of an inode number in a node id.
const NUMBER_BITS: u32 = 40;
/// Subvolumes' ids below this have node ids below 2^63.
const TREES: u64 = 1 << 23;

struct Known {
    inode: Arc<Inode>,
    lookups: u64,
}

/// Nodes the kernel knows.
pub struct Nodes {
    tree: TreeId,
    shards: Vec<Mutex<HashMap<u64, Known>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inode that programs see as `number` (st_ino) on a mount. A number that
/// names no subvolume means one in `tree`. The inode need not exist.
#[must_use]
pub fn inode_shown_as(number: u64, tree: TreeId) -> InodeId {
    let tree = match number >> NUMBER_BITS {
        0 => tree,
        other => TreeId(other),
    };
    InodeId {
        tree,
        number: InodeNumber(number & ((1 << NUMBER_BITS) - 1)),
    }
}

impl Nodes {
    /// No nodes but the root, which belongs to `tree`.
    pub fn new(tree: TreeId) -> Self {
        Self {
            tree,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, node: u64) -> MutexGuard<'_, HashMap<u64, Known>> {
        lock(&self.shards[(node % SHARDS as u64) as usize])
    }

    /// The node id of an inode.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] if the inode number or the subvolume's id is
    /// too large for a node id.
    pub fn node_of(&self, id: InodeId) -> Result<NodeId, FsError> {
        if id == self.root() {
            return Ok(NodeId::ROOT);
        }
        if id.number.get() >> NUMBER_BITS != 0 || id.tree.get() >= TREES {
            return Err(FsError::NotSupported("an inode number this great"));
        }
        if id.tree == self.tree {
            return Ok(NodeId(id.number.get()));
        }
        Ok(NodeId((id.tree.get() << NUMBER_BITS) | id.number.get()))
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
        inode_shown_as(node.0, self.tree)
    }

    /// The inode of a node the kernel named.
    pub fn get(&self, files: &Filesystem, node: NodeId) -> Result<Arc<Inode>, FsError> {
        if let Some(known) = self.shard(node.0).get(&node.0) {
            return Ok(Arc::clone(&known.inode));
        }
        files.inode(self.id(node))
    }

    /// Counts one lookup of `inode`; gives its node id.
    pub fn remember(&self, files: &Filesystem, inode: &Arc<Inode>) -> Result<NodeId, FsError> {
        let node = self.node_of(inode.id)?;
        let mut shard = self.shard(node.0);
        let known = shard.entry(node.0).or_insert_with(|| {
            files.pin(inode);
            Known {
                inode: Arc::clone(inode),
                lookups: 0,
            }
        });
        known.lookups += 1;
        Ok(node)
    }

    /// Takes back lookups. The last one ends the inode's pin.
    pub fn forget(&self, files: &Filesystem, node: NodeId, lookups: u64) -> Result<(), FsError> {
        let inode = {
            let mut shard = self.shard(node.0);
            let Some(known) = shard.get_mut(&node.0) else {
                return Ok(());
            };
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups > 0 {
                return Ok(());
            }
            let known = shard.remove(&node.0);
            known.map(|known| known.inode)
        };
        inode.map_or(Ok(()), |inode| files.unpin(&inode, 1))
    }

    /// Takes back all lookups, at the end.
    pub fn forget_all(&self, files: &Filesystem) {
        for shard in &self.shards {
            let all: Vec<Known> = lock(shard).drain().map(|(_, known)| known).collect();
            for known in all {
                if let Err(error) = files.unpin(&known.inode, 1) {
                    tracing::error!(%error, "a file without names could not be deleted");
                }
            }
        }
    }
}
