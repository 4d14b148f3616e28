//! From bytes to a [`Node`]: every check that needs only the node itself.

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
    /// The volume grew from seeds: a node has the volume's UUID, or that of a
    /// seed.
    Seeded(Seeds),
}

/// UUIDs of the volumes that a volume grew from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    /// Unused entries are zero.
    fsids: [UuidBytes; Self::MAX],
}

impl Seeds {
    /// How many a volume can have here. The format sets no bound; a volume
    /// rarely has more than one.
    pub const MAX: usize = 8;

    /// A set of these; `None` if they are more than [`Seeds::MAX`].
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
    /// Makes a node from bytes that were read from a device, after all checks.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn verify(
        bytes: Box<[u8]>,
        identity: &VolumeIdentity,
        expected: Expected,
    ) -> Result<Self, NodeFault> {
        Self::check(&bytes, identity, expected)?;
        Ok(Self { bytes })
    }

    /// [`Node::verify`] for callers that do not need the node.
    ///
    /// # Errors
    /// As there.
    pub fn check(
        bytes: &[u8],
        identity: &VolumeIdentity,
        expected: Expected,
    ) -> Result<(), NodeFault> {
        check_size(bytes, identity)?;
        if !identity.has_good_checksum(bytes) {
            return Err(NodeFault::Checksum);
        }
        check_content(bytes, identity, expected)
    }

    /// [`Node::verify`] without a check of the checksum, for callers that want
    /// what is left of a damaged volume.
    ///
    /// # Errors
    /// As there.
    pub fn verify_without_checksum(
        bytes: Box<[u8]>,
        identity: &VolumeIdentity,
        expected: Expected,
    ) -> Result<Self, NodeFault> {
        check_size(&bytes, identity)?;
        check_content(&bytes, identity, expected)?;
        Ok(Self { bytes })
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
        // The upper 16 bits hold the level of a quota group, which is no tree.
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

fn check_size(bytes: &[u8], identity: &VolumeIdentity) -> Result<(), NodeFault> {
    match bytes.len() == identity.node_size && bytes.len() >= 4096 {
        true => Ok(()),
        false => Err(NodeFault::Size),
    }
}

fn generation_of(bytes: &[u8]) -> Generation {
    Generation(raw::u64_at(bytes, field::GENERATION))
}

/// Checks everything but the checksum.
fn check_content(
    bytes: &[u8],
    identity: &VolumeIdentity,
    expected: Expected,
) -> Result<(), NodeFault> {
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
    if raw::u64_at(bytes, field::LOGICAL) != expected.logical.get() {
        return Err(NodeFault::Address);
    }
    let generation = generation_of(bytes);
    if expected.generation.is_some_and(|g| g != generation) {
        return Err(NodeFault::Generation);
    }
    let level = bytes[field::LEVEL];
    if level > LEVEL_MAX || expected.level.is_some_and(|l| l != level) {
        return Err(NodeFault::Level);
    }
    let count = raw::u32_at(bytes, field::ITEM_COUNT) as usize;
    match level {
        0 => check_leaf(bytes, count),
        _ => check_branch(bytes, count, identity),
    }
}

fn check_leaf(bytes: &[u8], count: usize) -> Result<(), NodeFault> {
    let room = bytes.len() - HEADER_SIZE;
    if count > room / ITEM_SIZE {
        return Err(NodeFault::ItemCount);
    }
    let mut end = room as u64;
    let mut previous: Option<Key> = None;
    for slot in 0..count {
        let at = HEADER_SIZE + slot * ITEM_SIZE;
        let key = raw::key_at(bytes, at);
        if previous.is_some_and(|p| p >= key) {
            return Err(NodeFault::KeyOrder);
        }
        previous = Some(key);
        let offset = u64::from(raw::u32_at(bytes, at + Key::SIZE));
        let size = u64::from(raw::u32_at(bytes, at + Key::SIZE + 4));
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

fn check_branch(bytes: &[u8], count: usize, identity: &VolumeIdentity) -> Result<(), NodeFault> {
    if count > (bytes.len() - HEADER_SIZE) / POINTER_SIZE {
        return Err(NodeFault::ItemCount);
    }
    if count == 0 {
        return Err(NodeFault::Empty);
    }
    let mut previous: Option<Key> = None;
    for slot in 0..count {
        let at = HEADER_SIZE + slot * POINTER_SIZE;
        let key = raw::key_at(bytes, at);
        if previous.is_some_and(|p| p >= key) {
            return Err(NodeFault::KeyOrder);
        }
        previous = Some(key);
        let logical = raw::u64_at(bytes, at + Key::SIZE);
        let end = logical.checked_add(identity.node_size as u64);
        if logical == 0 || end.is_none() || !logical.is_multiple_of(identity.sector_size) {
            return Err(NodeFault::Pointer);
        }
        let generation = Generation(raw::u64_at(bytes, at + Key::SIZE + 8));
        if generation > generation_of(bytes) {
            return Err(NodeFault::PointerGeneration);
        }
    }
    Ok(())
}
