//! Reservation: no change begins that might run out of metadata space.

use crate::acknowledged::Acknowledged;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::kind::SpaceKind;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_volume::placement::DeviceSpace;
use std::sync::atomic::Ordering;

/// What a generation may hold for each MiB of changed nodes that it may hold
/// before it is committed: extents with pending changes.
const PENDING_PER_MIB: usize = 2400;
/// References with pending changes.
const REFERENCES_PER_MIB: usize = 4800;
/// Bytes of waiting checksums.
const CHECKSUMS_PER_MIB: usize = 512 << 10;
/// A generation may always grow to this, so that work gets on.
const GENERATION_MIN: usize = 1 << 20;

/// About the most nodes that a single change with its commit needs. The largest
/// change of the file layer is a step of an orphan's deletion. It asks for 70
/// nodes itself. The references that its 400 items drop change the rest at the
/// commit; many of them share a node.
const CHANGE_NODES_MAX: u64 = 300;
/// Nodes that a commit changes whatever is pending: paths of at most eight
/// levels in each of the volume's own eight trees.
const COMMIT_NODES: u64 = 8 * 8;
/// Nodes of the chunk tree that a new chunk changes: a path of eight levels.
const CHUNK_TREE_NODES: u64 = 8;
/// Bytes that an extent takes in the extent tree at most, with its first
/// reference: descriptor (25), item (24), first key where nodes have one (18),
/// an inline reference (29); and an item of the free-space tree (25).
const EXTENT_BYTES: u64 = 128;
/// Bytes that each further reference takes: descriptor (25) and item (28).
const REFERENCE_BYTES: u64 = 64;
/// Nodes that an extent to drop changes: a leaf of the extent tree, and one of
/// the free-space tree.
const LEAVES_OF_EXTENT: u64 = 2;
/// Items may take this many times their bytes, because a split leaves nodes
/// half full.
const HALF_FULL: u64 = 2;
/// Data should not take metadata space when less is left than for this many
/// changed nodes. That is twice what the largest flush changes.
const NODES_BEFORE_DATA: u64 = 64;

/// How much the running generation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowding {
    /// It may grow.
    Roomy,
    /// The generation is to be committed. It may grow while that is under way.
    Crowded,
    /// Nothing more before its commit.
    Full,
}

/// What a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It may add something.
    Grow,
    /// The change only removes something, or brings in what was acknowledged.
    /// It may use the reserve, so that a full volume can be emptied and nothing
    /// is lost.
    Shrink,
}

/// What may be promised to writers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promisable {
    /// Of data space.
    pub data: u64,
    /// Of metadata space, without what is kept for other uses.
    pub metadata: u64,
}

/// The state of one kind of space, in bytes of logical space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindStanding {
    /// Flags of new chunks.
    pub flags: BlockGroupFlags,
    /// Of chunks.
    pub total: u64,
    /// Used, or promised to what is being written.
    pub used: u64,
    /// Freed, and still needed by the last commit.
    pub pinned: u64,
    /// What can be allocated in chunks.
    pub free: u64,
    /// The part of that in rows that are partly used.
    pub left_over: u64,
    /// What further chunks could have if no other kind took any space.
    pub further: u64,
}

/// Where the space of a volume stands.
#[derive(Clone, Debug)]
pub struct SpaceStanding {
    /// Data.
    pub data: KindStanding,
    /// Metadata.
    pub metadata: KindStanding,
    /// Both are in the same chunks.
    pub is_mixed: bool,
    /// What may be promised to writers.
    pub promisable: Promisable,
    /// Metadata space that data do not get. It is kept for other changes, and a
    /// part of it only for deletions.
    pub kept: u64,
    /// Metadata space is so short that data are not written.
    pub is_short_of_metadata: bool,
    /// Bytes of the devices, and how many of them chunks have.
    pub devices: Vec<DeviceSpace>,
}

impl SpaceStanding {
    /// Bytes of data that files can get: the space that is there, as far as
    /// metadata can describe its content.
    #[must_use]
    pub fn writable(&self) -> u64 {
        if self.is_short_of_metadata {
            return 0;
        }
        let metadata = self.metadata.free.saturating_add(self.metadata.further);
        let metadata = metadata.saturating_sub(self.kept + Acknowledged::PER_FILE);
        let described = metadata.saturating_mul(Acknowledged::DATA_PER_METADATA);
        self.promisable.data.min(described)
    }
}

impl Engine {
    /// Whether the generation should be committed before it grows more.
    pub(crate) fn crowding(&self) -> Crowding {
        let pending = self.ledger.pending().len() + self.ledger.pending().netted_len();
        let most = self.generation_bytes.max(GENERATION_MIN);
        let of_mib = |count: usize| most / (1 << 10) * count / (1 << 10);
        let exceeds = |times: usize| {
            self.dirty_bytes() > times * most
                || pending > times * of_mib(PENDING_PER_MIB)
                || self.ledger.pending().references() > times * of_mib(REFERENCES_PER_MIB)
                || self.ledger.held_checksum_bytes() > times * of_mib(CHECKSUMS_PER_MIB)
        };
        if exceeds(2) {
            Crowding::Full
        } else if exceeds(1) {
            Crowding::Crowded
        } else {
            Crowding::Roomy
        }
    }

    /// Bytes that `nodes` more changed nodes and the commit need at most.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] if they do not fit.
    pub(crate) fn room_for(&self, nodes: usize, purpose: Purpose) -> Result<u64, StoreError> {
        let need = (nodes as u64 + self.commit_nodes_max()) * self.node_size() as u64;
        let available = self.available(SpaceKind::Metadata);
        let kept = match purpose {
            Purpose::Grow => self.kept_in_reserve() + self.acknowledged.metadata(),
            Purpose::Shrink => 0,
        };
        if available < need + kept || self.would_take_promised(need) {
            return Err(StoreError::NoSpace);
        }
        Ok(need)
    }

    /// Makes sure that `nodes` more changed nodes and the commit fit.
    pub(crate) fn reserve(&mut self, nodes: usize, purpose: Purpose) -> Result<(), StoreError> {
        let size = self.node_size() as u64;
        let need = self.room_for(nodes, purpose)?;
        self.load_up_to(SpaceKind::Metadata, need)?;
        self.ensure_loaded(SpaceKind::System, CHUNK_TREE_NODES * size)
    }

    /// Loads free space for the commit of what is pending. The estimate of what
    /// the commit needs is far above what it really needs. So finding less is
    /// no error here; it is one when a node finds no space later.
    pub(crate) fn load_for_commit(&mut self) -> Result<(), StoreError> {
        let size = self.node_size() as u64;
        let need = self.commit_nodes_max() * size;
        self.load_up_to(SpaceKind::Metadata, need)?;
        self.ensure_loaded(SpaceKind::System, CHUNK_TREE_NODES * size)
    }

    /// How many extents may lose a reference in one step, wherever they lie, so
    /// that the commit fits even if each is in nodes of its own. A few always
    /// may.
    #[must_use]
    pub fn extents_to_drop_max(&self) -> usize {
        const ALWAYS: u64 = 16;
        let nodes = self.available(SpaceKind::Metadata) / self.node_size() as u64;
        let free = nodes.saturating_sub(self.commit_nodes_max());
        usize::try_from((free / LEAVES_OF_EXTENT).max(ALWAYS)).unwrap_or(usize::MAX)
    }

    /// The counts of what waits in memory.
    #[must_use]
    pub const fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    /// True if metadata space is so short that data should not take it.
    #[must_use]
    pub fn is_short_of_metadata(&self) -> bool {
        let kept = self.kept_in_reserve() + self.acknowledged.metadata();
        let need = (NODES_BEFORE_DATA + self.commit_nodes_max()) * self.node_size() as u64;
        self.available(SpaceKind::Metadata) < kept + need
    }

    /// True if a change of this many nodes fits now, together with the commit
    /// of what is pending.
    #[must_use]
    pub fn has_room_for(&self, nodes: usize) -> bool {
        let need = (nodes as u64 + self.commit_nodes_max()) * self.node_size() as u64;
        self.available(SpaceKind::Metadata) >= need && !self.would_take_promised(need)
    }

    /// What may be promised to writers. Space that no chunk has is promised
    /// only once: if metadata will need a further chunk, data do not get its
    /// space.
    #[must_use]
    pub fn promisable(&self) -> Promisable {
        let mixed = self.is_mixed();
        let kept = self.kept_from_data();
        let need = kept + self.acknowledged.metadata();
        if mixed {
            let available = self.available(SpaceKind::Data);
            return Promisable {
                data: available.saturating_sub(need),
                metadata: available.saturating_sub(kept),
            };
        }
        let further = self.further_metadata(need);
        Promisable {
            data: self.data_beside(further),
            metadata: (self.space_map.groups.available(SpaceKind::Metadata) + further)
                .saturating_sub(kept),
        }
    }

    /// Bytes of metadata space that data do not get.
    fn kept_from_data(&self) -> u64 {
        /// Kept for changes that are not those of data.
        const KEPT: u64 = 4 << 20;
        /// The same for mixed block groups, where data lose the space that is
        /// kept.
        const KEPT_MIXED: u64 = 1 << 20;
        let nodes = CHANGE_NODES_MAX * self.node_size() as u64;
        let least = if self.is_mixed() { KEPT_MIXED } else { KEPT };
        self.kept_in_reserve() + least.max(nodes)
    }

    /// The state of space, by kind and by device.
    #[must_use]
    pub fn standing_of_space(&self) -> SpaceStanding {
        let kind = |kind: SpaceKind| {
            let groups = self
                .space_map
                .groups
                .values()
                .filter(|group| group.flags.contains(kind.flag()));
            let mut standing = KindStanding {
                flags: self.flags_for(kind),
                total: 0,
                used: 0,
                pinned: 0,
                free: self.space_map.groups.available(kind),
                left_over: 0,
                further: self.unallocated(kind),
            };
            for group in groups {
                standing.total += group.length;
                standing.used += group.used + group.promised;
                standing.pinned += group.pinned;
                standing.left_over += group.left_over.total();
            }
            standing
        };
        SpaceStanding {
            data: kind(SpaceKind::Data),
            metadata: kind(SpaceKind::Metadata),
            is_mixed: self.is_mixed(),
            promisable: self.promisable(),
            kept: self.kept_from_data(),
            is_short_of_metadata: self.is_short_of_metadata(),
            devices: self.device_spaces(),
        }
    }

    fn is_mixed(&self) -> bool {
        let flags = self.flags_for(SpaceKind::Data);
        flags.contains(BlockGroupFlags::METADATA)
    }

    /// Bytes of metadata chunks that must be made so that `need` bytes fit.
    fn further_metadata(&self, need: u64) -> u64 {
        let further = match need.checked_sub(self.space_map.groups.available(SpaceKind::Metadata)) {
            None | Some(0) => 0,
            Some(missing) => missing.max(self.next_chunk(SpaceKind::Metadata)),
        };
        further.min(self.unallocated(SpaceKind::Metadata))
    }

    /// Data space that is left when this much more becomes metadata space.
    fn data_beside(&self, further_metadata: u64) -> u64 {
        let each = self.copies(SpaceKind::Data).max(1);
        let copies = self.copies(SpaceKind::Metadata).div_ceil(each);
        self.available(SpaceKind::Data)
            .saturating_sub(further_metadata.saturating_mul(copies))
    }

    /// True if a metadata chunk would take space that was promised to data, and
    /// a commit may do without the chunk. The less is pending, the less a
    /// commit needs.
    fn would_take_promised(&self, need: u64) -> bool {
        if self.ledger.pending().is_empty()
            || self.space_map.groups.available(SpaceKind::Metadata) >= need
            || self.is_mixed()
        {
            return false;
        }
        self.is_promised_beside(need)
    }

    /// True if `need` bytes of metadata take space that was promised to data.
    fn is_promised_beside(&self, need: u64) -> bool {
        let waiting = self.acknowledged.bytes.load(Ordering::SeqCst);
        waiting > 0 && self.data_beside(self.further_metadata(need)) < waiting
    }

    /// Makes a metadata chunk if a further data chunk would leave too little
    /// space for what the metadata may need. Otherwise a chunk is made only
    /// when a node has no place, because a commit uses far less than it may
    /// need at most.
    pub(crate) fn leave_space_for_metadata(&mut self) -> Result<(), StoreError> {
        if self.is_mixed() {
            return Ok(());
        }
        let commit = self.commit_nodes_max() * self.node_size() as u64;
        let wanted = commit + self.kept_in_reserve() + self.acknowledged.metadata();
        // `reserve` compared what a commit needs with the promises.
        let takes_promised = self.is_promised_beside(wanted);
        let need = if takes_promised { commit } else { wanted };
        let missing = need.saturating_sub(self.space_map.groups.available(SpaceKind::Metadata));
        if missing == 0 || self.unallocated_beside_data_chunk() >= missing {
            return Ok(());
        }
        match self.create_chunk(SpaceKind::Metadata) {
            Err(StoreError::NoSpace) => Ok(()),
            other => other,
        }
    }

    /// Bytes of metadata space that only deletions may use. In mixed block
    /// groups, most of the used space is data.
    #[must_use]
    pub fn kept_in_reserve(&self) -> u64 {
        let share = if self.is_mixed() { 32 } else { 4 };
        (self.used(SpaceKind::Metadata) / share).clamp(1 << 20, 64 << 20)
    }

    /// Nodes that the commit of what is pending changes at most.
    pub(crate) fn commit_nodes_max(&self) -> u64 {
        let size = self.node_size() as u64;
        let pending = self.ledger.pending().len() as u64;
        // Each pending extent touches one leaf of the extent tree and one of
        // the free-space tree, but all of them together touch no more nodes
        // than these trees have. New items fill further nodes.
        let existing = self.used(SpaceKind::Metadata) / size;
        // Further references of an extent have items of their own.
        let further = (self.ledger.pending().references() as u64).saturating_sub(pending);
        let items = pending * EXTENT_BYTES + further * REFERENCE_BYTES;
        let new = items / size + self.ledger.checksum_bytes() as u64 / size;
        let quotas = self.quotas().map_or(0, |q| q.commit_nodes_max(size));
        (LEAVES_OF_EXTENT * pending + further).min(existing)
            + HALF_FULL * new
            + quotas
            + COMMIT_NODES
    }
}
