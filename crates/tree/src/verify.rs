//! From bytes to a [`Node`]: every check that a node alone can be given.

use crate::error::NodeFault;
use crate::node::Node;
use crate::raw;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, LEVEL_MAX, POINTER_SIZE, field};
use butterfs_format::{ChecksumType, Generation, Key, Logical, NodeRef, TreeId, UuidBytes};

/// What all nodes of a volume share.
#[derive(Clone, Copy, Debug)]
pub struct VolumeIdentity {
    /// Volume (metadata UUID).
    pub fsid: UuidBytes,
    /// Bytes of a node.
    pub node_size: usize,
    /// Bytes of a sector: addresses are multiples of it.
    pub sector_size: u64,
    /// Checksum of nodes.
    pub checksum: ChecksumType,
    /// Whether all nodes have this UUID and this checksum.
    pub headers: Headers,
}

/// Whether the headers of a volume's nodes agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// All nodes have the volume's UUID and checksum.
    #[default]
    Agree,
    /// The UUID or the checksum of nodes is being changed: each node has the old
    /// or the new one.
    Changing,
    /// The volume grew from others: a node has its UUID, or that of one of them.
    Seeded(Seeds),
}

/// UUIDs of the volumes that a volume grew from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    /// Those that are none are zero.
    fsids: [UuidBytes; Self::MAX],
}

impl Seeds {
    /// How many a volume can have here. The format sets no bound; a volume
    /// rarely has more than one.
    pub const MAX: usize = 8;

    /// These; `None` where they are too many.
    #[must_use]
    pub fn new(fsids: &[UuidBytes]) -> Option<Self> {
        let mut seeds = Self::default();
        seeds.fsids.get_mut(..fsids.len())?.copy_from_slice(fsids);
        Some(seeds)
    }

    fn has(&self, fsid: &[u8]) -> bool {
        self.fsids.iter().any(|one| one == fsid && *one != [0; 16])
    }
}

impl VolumeIdentity {
    /// Whether the checksum of a node is right.
    fn has_good_checksum(&self, bytes: &[u8]) -> bool {
        let others = ChecksumType::TABLE
            .iter()
            .filter(|_| self.headers == Headers::Changing);
        self.checksum.verify_block(bytes)
            || others
                .into_iter()
                .any(|(other, _, _)| other.verify_block(bytes))
    }
}

/// What must be found at an address. Fields that the caller does not know are
/// `None`.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Address.
    pub logical: Logical,
    /// Generation, where a pointer names it.
    pub generation: Option<Generation>,
    /// Level, where a pointer names it.
    pub level: Option<u8>,
}

impl From<NodeRef> for Expected {
    fn from(reference: NodeRef) -> Self {
        Self {
            logical: reference.logical,
            generation: Some(reference.generation),
            level: Some(reference.level),
        }
    }
}

impl Node {
    /// Takes bytes from disk.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn verify(
        bytes: Box<[u8]>,
        identity: &VolumeIdentity,
        expected: Expected,
    ) -> Result<Self, NodeFault> {
        if bytes.len() != identity.node_size || bytes.len() < 4096 {
            return Err(NodeFault::Size);
        }
        if !identity.has_good_checksum(&bytes) {
            return Err(NodeFault::Checksum);
        }
        Self::verify_without_checksum(bytes, identity, expected)
    }

    /// As [`Node::verify`], whatever the checksum is: for those who want what is
    /// left of a damaged volume.
    ///
    /// # Errors
    /// As there.
    pub fn verify_without_checksum(
        bytes: Box<[u8]>,
        identity: &VolumeIdentity,
        expected: Expected,
    ) -> Result<Self, NodeFault> {
        if bytes.len() != identity.node_size || bytes.len() < 4096 {
            return Err(NodeFault::Size);
        }
        let fsid = &bytes[field::FSID..field::FSID + 16];
        let is_known = *fsid == identity.fsid
            || match identity.headers {
                Headers::Agree => false,
                Headers::Changing => true,
                Headers::Seeded(seeds) => seeds.has(fsid),
            };
        if !is_known {
            return Err(NodeFault::Fsid);
        }
        let node = Self { bytes };
        if node.logical() != expected.logical {
            return Err(NodeFault::Address);
        }
        if expected.generation.is_some_and(|g| g != node.generation()) {
            return Err(NodeFault::Generation);
        }
        if node.level() > LEVEL_MAX || expected.level.is_some_and(|l| l != node.level()) {
            return Err(NodeFault::Level);
        }
        if node.is_leaf() {
            node.verify_leaf()?;
        } else {
            node.verify_branch(identity)?;
        }
        Ok(node)
    }

    fn verify_leaf(&self) -> Result<(), NodeFault> {
        let room = self.bytes.len() - HEADER_SIZE;
        let count = self.len();
        if count > room / ITEM_SIZE {
            return Err(NodeFault::ItemCount);
        }
        let mut end = room as u64;
        let mut previous: Option<Key> = None;
        for slot in 0..count {
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            let key = raw::key_at(&self.bytes, at);
            if previous.is_some_and(|p| p >= key) {
                return Err(NodeFault::KeyOrder);
            }
            previous = Some(key);
            let offset = u64::from(raw::u32_at(&self.bytes, at + Key::SIZE));
            let size = u64::from(raw::u32_at(&self.bytes, at + Key::SIZE + 4));
            if offset + size != end {
                return Err(NodeFault::ItemRange);
            }
            end = offset;
        }
        if end < (count * ITEM_SIZE) as u64 {
            return Err(NodeFault::ItemRange);
        }
        Ok(())
    }

    fn verify_branch(&self, identity: &VolumeIdentity) -> Result<(), NodeFault> {
        let count = self.len();
        if count > (self.bytes.len() - HEADER_SIZE) / POINTER_SIZE {
            return Err(NodeFault::ItemCount);
        }
        if count == 0 {
            return Err(NodeFault::Empty);
        }
        let mut previous: Option<Key> = None;
        for slot in 0..count {
            let key = self.key(slot);
            if previous.is_some_and(|p| p >= key) {
                return Err(NodeFault::KeyOrder);
            }
            previous = Some(key);
            let child = self.child(slot);
            let logical = child.logical.get();
            let end = logical.checked_add(identity.node_size as u64);
            if logical == 0 || end.is_none() || !logical.is_multiple_of(identity.sector_size) {
                return Err(NodeFault::Pointer);
            }
            if child.generation > self.generation() {
                return Err(NodeFault::PointerGeneration);
            }
        }
        Ok(())
    }

    /// Checks a child's owner against its parent's: subvolumes share nodes with
    /// each other, other trees share none.
    ///
    /// # Errors
    /// [`NodeFault::Owner`]
    #[inline]
    pub fn verify_owner(&self, parent: &Self) -> Result<(), NodeFault> {
        self.verify_owner_below(parent.owner())
    }

    /// [`Node::verify_owner`] by the tree that owns the parent.
    ///
    /// # Errors
    /// [`NodeFault::Owner`]
    pub fn verify_owner_below(&self, above: TreeId) -> Result<(), NodeFault> {
        // Above are the levels of quota groups, which are no trees.
        let of_subvolume = |tree: TreeId| tree.is_subvolume() && tree.get() >> 48 == 0;
        let owner = self.owner();
        let relocated = owner == TreeId::RELOC || above == TreeId::RELOC;
        if owner == above || relocated || (of_subvolume(owner) && of_subvolume(above)) {
            return Ok(());
        }
        Err(NodeFault::Owner)
    }

    /// Checks a child against what its parent says of its keys: it begins with
    /// `first` and ends before `bound`.
    ///
    /// # Errors
    /// [`NodeFault::Empty`], [`NodeFault::FirstKey`], [`NodeFault::LastKey`]
    #[inline]
    pub fn verify_place(&self, first: &Key, bound: Option<&Key>) -> Result<(), NodeFault> {
        let Some(last) = self.last_key() else {
            return Err(NodeFault::Empty);
        };
        if self.key(0) != *first {
            return Err(NodeFault::FirstKey);
        }
        if bound.is_some_and(|bound| last >= *bound) {
            return Err(NodeFault::LastKey);
        }
        Ok(())
    }
}
