//! A damaged volume that is open for its repair.
//!
//! Owns the choice of superblocks, the reading of nodes from their first good
//! copy, and the writing of nodes and superblocks. Searches no tree.

use crate::error::RepairError;
use crate::overlay::copies;
use butterfs_device::BlockDevice;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::chunk::Chunk;
use butterfs_format::node::{HEADER_SIZE, NodeHeader, POINTER_SIZE, field};
use butterfs_format::superblock::{SIZE, SuperFlags, Superblock};
use butterfs_format::{DeviceOffset, Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{
    Cursor, Expected, Headers, Node, NodeFault, NodeSource, NodeStamp, TreeError, VolumeIdentity,
};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which state of the volume is repaired.
#[derive(Clone, Debug, Default)]
pub struct Begin {
    /// Copy of the superblock, counted from 0. If `None`, the primary copy is
    /// used if it is good, otherwise the newest other one.
    pub superblock: Option<usize>,
    /// Root of the tree of roots instead of the superblock's.
    pub tree_root: Option<Logical>,
    /// Root of the chunk tree instead of the superblock's.
    pub chunk_root: Option<Logical>,
    /// Whether the newest backup roots in the superblock are used that can be
    /// read.
    pub backup: bool,
    /// Chunks that were found otherwise; the chunk tree is then not read.
    pub chunks: Option<ChunkMap>,
}

impl Begin {
    /// Whether the tree of roots is the one that the superblock names.
    pub(crate) const fn is_at_superblock(&self) -> bool {
        self.tree_root.is_none() && !self.backup
    }

    /// Whether it is the state that the superblock names.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.superblock.is_none()
            && self.tree_root.is_none()
            && self.chunk_root.is_none()
            && !self.backup
            && self.chunks.is_none()
    }
}

/// A device of the volume.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) superblock: Superblock,
}

/// Why a node cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadNode {
    /// It lies in no chunk.
    Unmapped,
    /// Its devices do not answer: it may be there.
    Silent,
    /// What lies there is not the node.
    Fault(NodeFault),
}

/// The open volume.
#[derive(Debug)]
pub(crate) struct Patient {
    pub(crate) superblock: Superblock,
    pub(crate) members: Vec<Member>,
    pub(crate) space: LogicalSpace,
    pub(crate) identity: VolumeIdentity,
    pub(crate) stamp: NodeStamp,
    /// The chunk tree is to be made anew: its chunks were given.
    pub(crate) lacks_chunk_tree: bool,
    /// Chunks that were read otherwise than they are written.
    pub(crate) corrected: Vec<(Logical, Chunk)>,
    pub(crate) chunk_root: NodeRef,
    pub(crate) tree_root: NodeRef,
}

/// Chooses the superblock of a device, as the check does. If its chunks are
/// known otherwise, those in the superblock may be damaged.
fn choose(device: &dyn BlockDevice, begin: &Begin) -> Option<Superblock> {
    let wanted = begin.superblock;
    let read = |at: DeviceOffset| {
        let mut bytes = vec![0; SIZE];
        device.read_at(at, &mut bytes).ok()?;
        match &begin.chunks {
            Some(_) => Superblock::parse_but_chunks(&bytes, at).ok(),
            None => Superblock::parse(&bytes, at).ok(),
        }
    };
    let all: Vec<Option<Superblock>> = copies(device.size()).map(read).collect();
    if let Some(wanted) = wanted {
        return all.into_iter().nth(wanted)?;
    }
    let primary = all.first().cloned().flatten();
    let newest = all.into_iter().flatten().max_by_key(|copy| copy.generation);
    let (Some(primary), Some(newest)) = (&primary, &newest) else {
        return primary.or(newest);
    };
    let ahead = newest
        .generation
        .get()
        .saturating_sub(primary.generation.get());
    let is_same = newest.fsid == primary.fsid && newest.device.uuid == primary.device.uuid;
    Some(
        if ahead > 1 && is_same {
            newest
        } else {
            primary
        }
        .clone(),
    )
}

fn unsupported(text: impl Into<String>) -> RepairError {
    RepairError::Unsupported(text.into())
}

/// Refuses what repair does not know.
fn verify(members: &[Member]) -> Result<(), RepairError> {
    let Some(first) = members.first().map(|member| &member.superblock) else {
        return Err(RepairError::Unreadable("no device has a superblock"));
    };
    let unknown = first.incompat.without(Incompat::SUPPORTED);
    let unknown_ro = first
        .compat_ro
        .without(CompatRo::SUPPORTED | CompatRo::VERITY);
    if !unknown.is_empty() || !unknown_ro.is_empty() {
        let names = [unknown.names(), unknown_ro.names()].concat();
        return Err(unsupported(format!("it uses {}", names.join(", "))));
    }
    if !first.flags.without(SuperFlags::SUPPORTED).is_empty() {
        return Err(unsupported(
            "a change of the whole volume was cut short; `butterfs tune` goes on with it",
        ));
    }
    let metadump = SuperFlags::METADUMP | SuperFlags::METADUMP_V2;
    if first.flags.intersects(SuperFlags::SEEDING | metadump) {
        return Err(unsupported("it is a seed, or an image of metadata"));
    }
    let there = u64::try_from(members.len()).unwrap_or(u64::MAX);
    if there < first.num_devices {
        return Err(unsupported(format!(
            "{} of its {} devices are missing; give all of them",
            first.num_devices.saturating_sub(there),
            first.num_devices
        )));
    }
    for member in members {
        let own = &member.superblock;
        let behind = first.generation.get().saturating_sub(own.generation.get());
        if own.fsid != first.fsid || behind > 1 {
            return Err(unsupported(format!(
                "{} belongs to another volume, or lacks the last commits",
                member.device.identity()
            )));
        }
    }
    Ok(())
}

impl Patient {
    /// Opens the volume on `devices`, as far as its chunks.
    ///
    /// # Errors
    /// [`RepairError::Unreadable`], [`RepairError::Unsupported`]
    pub(crate) fn open(
        devices: Vec<Arc<dyn BlockDevice>>,
        begin: &Begin,
    ) -> Result<Self, RepairError> {
        let mut members: Vec<Member> = Vec::new();
        for device in devices {
            match choose(&*device, begin) {
                Some(superblock) => members.push(Member { device, superblock }),
                None => return Err(RepairError::Unreadable("a device has no good superblock")),
            }
        }
        members.sort_by_key(|member| {
            let own = &member.superblock;
            (std::cmp::Reverse(own.generation), own.device.id)
        });
        verify(&members)?;
        let Some(first) = members.first().map(|member| member.superblock.clone()) else {
            return Err(RepairError::Unreadable("no device has a superblock"));
        };
        let map = match &begin.chunks {
            Some(map) => map.clone(),
            None => {
                let mut map = ChunkMap::default();
                for (logical, chunk) in &first.sys_chunks {
                    map.insert(*logical, chunk.clone())?;
                }
                map
            }
        };
        let given = members.iter();
        let given = given.map(|one| (one.superblock.device.id, Arc::clone(&one.device)));
        let space = LogicalSpace::new(given.collect(), map, OnDamage::Heal);
        let identity = VolumeIdentity {
            fsid: first.node_fsid(),
            node_size: usize::try_from(first.node_size).unwrap_or(0),
            sector_size: u64::from(first.sector_size),
            checksum: first.checksum_type,
            headers: Headers::Agree,
        };
        let mut patient = Self {
            chunk_root: chunk_root(&first),
            tree_root: tree_root(&first),
            stamp: NodeStamp {
                fsid: first.node_fsid(),
                chunk_tree_uuid: [0; 16],
            },
            superblock: first,
            lacks_chunk_tree: false,
            corrected: Vec::new(),
            members,
            space,
            identity,
        };
        patient.begin(begin)?;
        if begin.chunks.is_none() {
            patient.read_chunks()?;
        }
        Ok(patient)
    }

    /// Chooses the roots, and reads the root of the chunk tree.
    fn begin(&mut self, begin: &Begin) -> Result<(), RepairError> {
        if begin.backup {
            let mut backups = self.superblock.backup_roots.to_vec();
            backups.retain(|backup| backup.tree_root.logical.get() != 0);
            backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root.generation));
            let good = backups.into_iter().find(|backup| {
                let chunks = self.load(backup.chunk_root.into());
                chunks.is_ok()
                    && (self.load(backup.tree_root.into()).is_ok() || begin.chunks.is_none())
            });
            let Some(good) = good else {
                return Err(RepairError::Unreadable(
                    "none of its backup roots can be read",
                ));
            };
            self.superblock = self.superblock.with_roots_of(&good);
            self.chunk_root = good.chunk_root;
            self.tree_root = good.tree_root;
        }
        if let Some(logical) = begin.chunk_root {
            self.chunk_root = self.root_at(logical, TreeId::CHUNK)?;
        }
        let root = self.load(self.chunk_root.into());
        if root.is_err() && begin.chunks.is_none() {
            return Err(RepairError::Unreadable("its chunk tree is damaged"));
        }
        self.lacks_chunk_tree = root.is_err() || begin.chunks.is_some();
        if let Some(logical) = begin.tree_root {
            if begin.chunks.is_none() {
                self.read_chunks()?;
            }
            self.tree_root = self.root_at(logical, TreeId::ROOT)?;
        }
        // Every node has the UUID of the chunk tree.
        let stamped = root.or_else(|_| self.load(self.tree_root.into()));
        if let Ok(node) = stamped
            && let Ok(header) = NodeHeader::parse(node.bytes())
        {
            self.stamp.chunk_tree_uuid = header.chunk_tree_uuid;
        }
        Ok(())
    }

    /// The root of `tree` that lies at `logical`.
    fn root_at(&self, logical: Logical, tree: TreeId) -> Result<NodeRef, RepairError> {
        let expected = Expected {
            logical,
            generation: None,
            level: None,
        };
        match self.load(expected) {
            Ok(node) if node.owner() == tree => Ok(node.reference()),
            _ => Err(RepairError::Unreadable(
                "no root of the tree lies at the address that was given",
            )),
        }
    }

    fn read_chunks(&mut self) -> Result<(), RepairError> {
        let mut map = ChunkMap::clone(&self.space.map());
        let mut corrected = Vec::new();
        let mut only_in_superblock: BTreeMap<Logical, Chunk> =
            self.superblock.sys_chunks.iter().cloned().collect();
        let damaged = |_| RepairError::Unreadable("its chunk tree is damaged");
        let source = Plain(self);
        let mut cursor = Cursor::at_root(&source, self.chunk_root);
        cursor.seek(&Key::MIN).map_err(damaged)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::CHUNK_ITEM
                && let Ok(chunk) = Chunk::parse(data)
            {
                let logical = Logical(key.offset);
                only_in_superblock.remove(&logical);
                let in_superblock = map.find(logical).filter(|(at, _)| *at == logical);
                if let Some((at, known)) = in_superblock {
                    let end = at.saturating_add(known.length);
                    // The chunk tree was found by it.
                    if (at..end).contains(&self.chunk_root.logical) {
                        if *known != chunk {
                            corrected.push((at, known.clone()));
                        }
                        cursor.next().map_err(damaged)?;
                        continue;
                    }
                    map = map.without(logical);
                }
                if map.insert(Logical(key.offset), chunk.clone()).is_err() {
                    let chunk = usual(chunk, self.superblock.sector_size);
                    if map.insert(Logical(key.offset), chunk.clone()).is_err() {
                        return Err(unsupported("its chunks are impossible"));
                    }
                    corrected.push((Logical(key.offset), chunk));
                }
            }
            cursor.next().map_err(damaged)?;
        }
        drop(cursor);
        let is_possible = |map: &ChunkMap| {
            let devices = map.check_devices(|id| self.space.device(id).map(|_| u64::MAX));
            devices.is_ok()
        };
        // The chunk tree lost the item of such a chunk, or the chunk is gone and
        // other chunks lie in its place.
        let mut with_all = true;
        if !is_possible(&map) {
            with_all = false;
            for logical in only_in_superblock.keys() {
                map = map.without(*logical);
            }
        }
        if !is_possible(&map) || map.find(self.chunk_root.logical).is_none() {
            return Err(unsupported(
                "its chunks lie on each other, or on unknown devices",
            ));
        }
        if with_all {
            corrected.extend(only_in_superblock);
        }
        self.corrected = corrected;
        self.space.set_map(map);
        Ok(())
    }

    pub(crate) fn node_bytes(&self) -> u64 {
        u64::from(self.superblock.node_size)
    }

    /// Reads one copy of a node; the numbers behind those of the copies rebuild
    /// it from parity.
    pub(crate) fn load_copy(&self, expected: Expected, copy: usize) -> Result<Node, BadNode> {
        let mut bytes = vec![0; self.identity.node_size].into_boxed_slice();
        let read = self.space.read_copy(expected.logical, copy, &mut bytes);
        match read {
            Err(butterfs_volume::VolumeError::NoGoodCopy { .. }) => return Err(BadNode::Silent),
            Err(_) => return Err(BadNode::Unmapped),
            Ok(()) => {}
        }
        Node::verify(bytes, &self.identity, expected).map_err(BadNode::Fault)
    }

    /// Reads a node from its first good copy.
    pub(crate) fn load(&self, expected: Expected) -> Result<Node, BadNode> {
        let mut first = None;
        for way in 0..self.space.ways(expected.logical).max(1) {
            match self.load_copy(expected, way) {
                Ok(node) => return Ok(node),
                // A copy that cannot be read may be good.
                Err(BadNode::Silent) => first = Some(BadNode::Silent),
                Err(bad) => {
                    first.get_or_insert(bad);
                }
            }
        }
        Err(first.unwrap_or(BadNode::Unmapped))
    }

    /// Makes the copies of a node equal to `node`; gives how many were not.
    pub(crate) fn heal(&self, node: &Node) -> Result<u64, RepairError> {
        let logical = node.logical();
        let copies = self.space.copies(logical);
        let mut healed = 0_u64;
        if copies < 2 {
            return Ok(0);
        }
        for copy in 0..copies {
            let mut bytes = vec![0; node.bytes().len()];
            let read = self.space.read_copy(logical, copy, &mut bytes);
            if read.is_ok() && bytes == node.bytes() {
                continue;
            }
            if self.space.rewrite_copy(logical, copy, node.bytes())? {
                healed = healed.saturating_add(1);
            }
        }
        Ok(healed)
    }

    /// A branch that is right but for some of its pointers, without those.
    pub(crate) fn without_bad_pointers(&self, expected: Expected) -> Option<Node> {
        let copies = self.space.copies(expected.logical).max(1);
        (0..copies).find_map(|copy| {
            let mut bytes = vec![0; self.identity.node_size].into_boxed_slice();
            let read = self.space.read_copy(expected.logical, copy, &mut bytes);
            read.ok()?;
            if !self.identity.checksum.verify_block(&bytes) {
                return None;
            }
            let header = NodeHeader::parse(&bytes).ok()?;
            if header.level == 0 || Some(header.generation) != expected.generation {
                return None;
            }
            let count = usize::try_from(header.item_count).ok()?;
            let all = bytes
                .get(HEADER_SIZE..)?
                .chunks_exact(POINTER_SIZE)
                .take(count);
            let is_good = |pointer: &&[u8]| {
                let number = |at: usize| {
                    let field = pointer.get(at..at.saturating_add(8));
                    field
                        .and_then(|field| field.try_into().ok())
                        .map(u64::from_le_bytes)
                };
                let (at, generation) = (number(Key::SIZE), number(Key::SIZE.saturating_add(8)));
                at.is_some_and(|at| at != 0 && at.is_multiple_of(self.identity.sector_size))
                    && at.is_some_and(|at| self.space.map().find(Logical(at)).is_some())
                    && generation.is_some_and(|one| one <= header.generation.get())
            };
            let good: Vec<u8> = all.filter(is_good).flatten().copied().collect();
            let left = good.len().checked_div(POINTER_SIZE)?;
            if left == 0 {
                return None;
            }
            let count = u32::try_from(left).ok()?;
            bytes
                .get_mut(field::ITEM_COUNT..field::ITEM_COUNT.saturating_add(4))?
                .copy_from_slice(&count.to_le_bytes());
            let end = HEADER_SIZE.saturating_add(good.len());
            bytes.get_mut(HEADER_SIZE..end)?.copy_from_slice(&good);
            bytes.get_mut(end..)?.fill(0);
            Node::verify_without_checksum(bytes, &self.identity, expected).ok()
        })
    }

    /// Writes a node in the place where it is.
    pub(crate) fn rewrite(&self, mut node: Node) -> Result<(), RepairError> {
        self.identity.checksum.seal_block(node.bytes_mut());
        Ok(self.space.write(node.logical(), node.bytes())?)
    }

    /// Writes the superblock of `self` to all devices, after everything before
    /// is durable.
    pub(crate) fn publish(&self) -> Result<(), RepairError> {
        self.space.flush()?;
        for member in &self.members {
            let own = self.superblock.on_device(&member.superblock.device);
            for at in copies(member.device.size()) {
                let size = u64::try_from(SIZE).unwrap_or(u64::MAX);
                let end = at.saturating_add(size).get();
                if at != butterfs_format::superblock::COPIES[0] && end >= own.device.total_bytes {
                    continue;
                }
                member.device.write_at(at, &own.encode(at))?;
            }
        }
        for member in &self.members {
            member.device.flush()?;
        }
        Ok(())
    }

    /// The generation that the repair writes.
    pub(crate) fn next_generation(&self) -> Generation {
        let newest = self
            .members
            .iter()
            .map(|one| one.superblock.generation)
            .max();
        let newest = newest.unwrap_or_default().max(self.superblock.generation);
        newest.saturating_add(1)
    }
}

/// A chunk with the numbers that all chunks have.
fn usual(mut chunk: Chunk, sector_size: u32) -> Chunk {
    const ELEMENT: u32 = 64 << 10;
    chunk.stripe_length = u64::from(ELEMENT);
    chunk.io_align = ELEMENT;
    chunk.io_width = ELEMENT;
    chunk.sector_size = sector_size;
    chunk
}

fn chunk_root(superblock: &Superblock) -> NodeRef {
    NodeRef {
        logical: superblock.chunk_root,
        generation: superblock.chunk_root_generation,
        level: superblock.chunk_root_level,
    }
}

fn tree_root(superblock: &Superblock) -> NodeRef {
    NodeRef {
        logical: superblock.root,
        generation: superblock.generation,
        level: superblock.root_level,
    }
}

/// Reads nodes of a patient, for cursors.
pub(crate) struct Plain<'p>(pub(crate) &'p Patient);

impl NodeSource for Plain<'_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        let node = self.0.load(reference.into());
        node.map(Arc::new).map_err(|bad| bad.at(reference.logical))
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        match tree {
            TreeId::CHUNK => Ok(self.0.chunk_root),
            TreeId::ROOT => Ok(self.0.tree_root),
            other => Err(TreeError::NoSuchTree(other)),
        }
    }
}

impl BadNode {
    /// The error of a tree that has this node.
    pub(crate) const fn at(self, logical: Logical) -> TreeError {
        let fault = match self {
            Self::Fault(fault) => fault,
            Self::Unmapped => NodeFault::Address,
            Self::Silent => NodeFault::Checksum,
        };
        TreeError::Corrupt { logical, fault }
    }
}
