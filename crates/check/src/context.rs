//! What every part of a check needs: the volume's identity, the reading of
//! nodes, and the collector of faults.

use crate::budget::{Budget, Taken};
use crate::code::FaultCode;
use crate::extents::charges::Charges;
use crate::hash::SumHash;
use crate::progress::{Phase, Progress, Status};
use crate::report::{Collector, Place};
use crate::superblocks::Member;
use crate::visited::Visited;
use crate::{DataChecksums, Options};
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{DeviceId, Logical, NodeRef, Physical, TreeId, UuidBytes};
use butterfs_tree::{
    Expected, Headers, Node, NodeFault, NodeSource, Seeds, TreeError, VolumeIdentity,
};
use butterfs_volume::{ChunkMap, CopyFault, LogicalSpace, VolumeDevice, VolumeError};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a node is bad: the kind of fault, a text, and where the copy lies.
type BadNode = (FaultCode, String, Option<Physical>);

/// Text for a node of which no present device has a copy.
const ALL_MISSING: &str = "the devices that have it are missing";

/// Nodes between two reports of progress.
const STATUS_EVERY: u64 = 1024;

/// The progress of the check.
#[derive(Debug)]
pub(crate) struct Counter {
    phase: Mutex<Phase>,
    done: AtomicU64,
    total: AtomicU64,
}

/// What every part of a check needs.
#[derive(Clone)]
pub(crate) struct Context<'a> {
    pub(crate) superblock: Arc<Superblock>,
    pub(crate) space: Arc<LogicalSpace>,
    pub(crate) map: Arc<ChunkMap>,
    /// The device item in the superblock of each device.
    pub(crate) device_items: Arc<[DeviceItem]>,
    /// Devices from which the volume may have grown.
    pub(crate) seeds: Arc<[Member]>,
    /// Devices whose state is too old to be looked at.
    stale: Arc<[DeviceId]>,
    pub(crate) identity: VolumeIdentity,
    pub(crate) faults: Arc<Collector>,
    pub(crate) hash: SumHash,
    pub(crate) options: &'a Options,
    pub(crate) budget: Arc<Budget>,
    /// What simple quotas charge; `None` if they are off.
    pub(crate) charges: Option<Arc<Charges>>,
    progress: &'a dyn Progress,
    counter: Arc<Counter>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        superblock: Superblock,
        space: LogicalSpace,
        faults: Arc<Collector>,
        options: &'a Options,
        progress: &'a dyn Progress,
    ) -> Self {
        let identity = VolumeIdentity {
            fsid: superblock.node_fsid(),
            node_size: usize::try_from(superblock.node_size).unwrap_or(0),
            sector_size: u64::from(superblock.sector_size),
            checksum: superblock.checksum_type,
            // Some headers are changed and some not after a change of the fsid
            // or checksum type that was cut short. That is reported elsewhere.
            headers: match superblock.flags.intersects(SuperFlags::CHANGING) {
                true => Headers::Changing,
                false => Headers::Agree,
            },
        };
        Self {
            superblock: Arc::new(superblock),
            map: space.map(),
            space: Arc::new(space),
            device_items: Arc::new([]),
            seeds: Arc::new([]),
            stale: Arc::new([]),
            identity,
            faults,
            hash: SumHash::random(),
            options,
            budget: Budget::new(options.memory_max),
            charges: None,
            progress,
            counter: Arc::new(Counter {
                phase: Mutex::new(Phase::Chunks),
                done: AtomicU64::new(0),
                total: AtomicU64::new(0),
            }),
        }
    }

    /// The same context, with the device items of the superblocks.
    pub(crate) fn with_device_items(mut self, items: Vec<DeviceItem>) -> Self {
        self.device_items = items.into();
        self
    }

    /// The same context, with the devices whose state is too old.
    pub(crate) fn with_stale(mut self, stale: Vec<DeviceId>) -> Self {
        self.stale = stale.into();
        self
    }

    /// Whether a device was given whose state is too old.
    pub(crate) fn is_stale(&self, id: DeviceId) -> bool {
        self.stale.contains(&id)
    }

    /// The same context, with devices from which the volume may have grown.
    /// Those on which the superblock's chunks lie become readable at once.
    pub(crate) fn with_seeds(mut self, seeds: Vec<Member>) -> Self {
        let fsids: BTreeSet<UuidBytes> = seeds
            .iter()
            .map(|seed| seed.superblock.node_fsid())
            .collect();
        let fsids: Vec<UuidBytes> = fsids.into_iter().take(Seeds::MAX).collect();
        if let Some(known) = Seeds::new(&fsids).filter(|_| !fsids.is_empty()) {
            self.identity.headers = Headers::Seeded(known);
        }
        for seed in &seeds {
            let own = &seed.superblock.device;
            let chunks = self.superblock.sys_chunks.iter();
            let mut stripes = chunks.flat_map(|(_, chunk)| &chunk.stripes);
            if stripes.any(|stripe| (stripe.device, stripe.device_uuid) == (own.id, own.uuid)) {
                self.add_seed(seed);
            }
        }
        self.seeds = seeds.into();
        self
    }

    /// Whether the device with this number was given and belongs to the volume
    /// itself, not to a seed.
    pub(crate) fn is_own_device(&self, id: DeviceId) -> bool {
        self.space.own_devices().any(|(own, _)| own == id)
    }

    /// Makes the content of a seed readable.
    pub(crate) fn add_seed(&self, seed: &Member) {
        let own = &seed.superblock.device;
        let device = VolumeDevice::seed(own.id, own.uuid, Arc::clone(&seed.device));
        self.space.add_device(device);
    }

    /// The same context with a new chunk map.
    pub(crate) fn with_map(&self, map: ChunkMap) -> Self {
        self.space.set_map(map);
        Self {
            map: self.space.map(),
            ..self.clone()
        }
    }

    /// The same context, with charges of simple quotas. Extents count from the
    /// generation `from` on.
    pub(crate) fn with_charges(&self, from: u64) -> Self {
        Self {
            charges: Some(Arc::new(Charges::new(from, self.taken()))),
            ..self.clone()
        }
    }

    /// The same context, but faults are not reported (again).
    pub(crate) fn quiet(&self) -> Self {
        Self {
            faults: Arc::new(Collector::muted()),
            charges: self
                .charges
                .as_ref()
                .map(|old| Arc::new(old.emptied(self.taken()))),
            ..self.clone()
        }
    }

    /// Makes an account of memory for one part of the check.
    pub(crate) fn taken(&self) -> Taken {
        Taken::new(&self.budget)
    }

    /// Makes the marks for nodes that were reached. None is marked yet.
    pub(crate) fn visited(&self) -> Visited {
        Visited::new(&self.map, self.sector(), &self.budget)
    }

    pub(crate) fn sector(&self) -> u64 {
        self.identity.sector_size
    }

    pub(crate) fn node_bytes(&self) -> u64 {
        u64::from(self.superblock.node_size)
    }

    pub(crate) fn fault(&self, code: FaultCode, place: Place, sentence: impl Into<String>) {
        self.faults.add(code, place, sentence);
    }

    /// Begins a phase; `total` bytes are to be read.
    pub(crate) fn begin(&self, phase: Phase, total: u64) {
        *self.counter.phase.lock() = phase;
        self.counter.done.store(0, Ordering::Relaxed);
        self.counter.total.store(total, Ordering::Relaxed);
        self.tell();
    }

    fn tell(&self) {
        self.progress.status(Status {
            phase: *self.counter.phase.lock(),
            done: self.counter.done.load(Ordering::Relaxed),
            total: self.counter.total.load(Ordering::Relaxed),
        });
    }

    /// Counts bytes that were read.
    pub(crate) fn advance(&self, bytes: u64) {
        let step = self.node_bytes().saturating_mul(STATUS_EVERY).max(1);
        let before = self.counter.done.fetch_add(bytes, Ordering::Relaxed);
        let after = before.saturating_add(bytes);
        if before.checked_div(step) != after.checked_div(step) {
            self.tell();
        }
    }

    /// True if devices of the volume are missing.
    pub(crate) fn is_degraded(&self) -> bool {
        let there = u64::try_from(self.space.devices().count());
        there.is_ok_and(|there| there < self.superblock.num_devices)
    }

    /// The number of copies at an address, and the number of all ways to read
    /// it. The ways after the copies rebuild the content from other devices.
    pub(crate) fn ways(&self, logical: Logical) -> (usize, usize) {
        let copies = self.map.copies(logical).max(1);
        (copies, self.space.ways(logical).max(copies))
    }

    /// Reads a node in one of the ways to read it; `None` if the device of that
    /// copy is missing.
    fn read_copy(&self, expected: Expected, copy: usize) -> Option<Result<Node, BadNode>> {
        match self.read_way(expected, copy) {
            Err((FaultCode::DeviceMissing, _, _)) => None,
            other => Some(other),
        }
    }

    fn read_way(&self, expected: Expected, copy: usize) -> Result<Node, BadNode> {
        let mut bytes = vec![0; self.identity.node_size].into_boxed_slice();
        let mapping = self
            .map
            .map(expected.logical, self.node_bytes())
            .map_err(|error| (FaultCode::NodeUnmapped, error.to_string(), None))?;
        let place = mapping.copies.get(copy).copied();
        self.space
            .read_copy(expected.logical, copy, &mut bytes)
            .map_err(|error| match is_missing(&error) {
                true => (FaultCode::DeviceMissing, error.to_string(), place),
                false => (FaultCode::NodeUnreadable, error.to_string(), place),
            })?;
        Node::verify(bytes, &self.identity, expected)
            .map_err(|fault| (code_of(fault), fault.to_string(), place))
    }

    /// Reads a node from its first good copy and reports nothing.
    pub(crate) fn peek(&self, expected: Expected) -> Result<Node, (FaultCode, String)> {
        let mut first = None;
        for way in 0..self.ways(expected.logical).1 {
            match self.read_copy(expected, way) {
                Some(Ok(node)) => return Ok(node),
                Some(Err((code, text, _))) => {
                    first.get_or_insert((code, text));
                }
                None => {}
            }
        }
        Err(first.unwrap_or_else(|| (FaultCode::NodeUnreadable, ALL_MISSING.to_owned())))
    }

    /// Reads a node and reports what is wrong with it or its copies.
    pub(crate) fn load(&self, tree: TreeId, expected: Expected) -> Option<Node> {
        self.advance(self.node_bytes());
        let place = Place {
            tree: Some(tree),
            key: None,
            logical: Some(expected.logical),
        };
        let (copies, ways) = self.ways(expected.logical);
        let every = self.options.data == DataChecksums::Verify;
        let mut good: Option<Node> = None;
        let mut differ = false;
        let mut bad = Vec::new();
        for way in 0..ways {
            if good.is_some() && (!every || way >= copies) {
                break;
            }
            match self.read_copy(expected, way) {
                Some(Ok(node)) => match &good {
                    Some(first) => differ |= first.bytes() != node.bytes(),
                    None => good = Some(node),
                },
                // A way after the copies rebuilds the node from several devices,
                // so its fault does not tell which of them is bad.
                Some(Err(fault)) if way < copies => bad.push(fault),
                Some(Err(_)) | None => {}
            }
        }
        if good.is_none() {
            let all_missing = || (FaultCode::NodeUnreadable, ALL_MISSING.to_owned(), None);
            let (code, text, _) = bad.into_iter().next().unwrap_or_else(all_missing);
            self.fault(code, place, text);
            return None;
        }
        if differ {
            let text = "its copies are valid and differ; the first one is checked".to_owned();
            self.fault(FaultCode::NodeCopiesDiffer, place, text);
        }
        for (_, text, physical) in bad {
            let at = physical.map_or_else(String::new, |physical| {
                format!(
                    " at offset {} of device {}",
                    physical.offset, physical.device
                )
            });
            let text = format!("the copy{at} is bad ({text}); another one is good");
            self.fault(FaultCode::NodeCopyDamaged, place, text);
        }
        good
    }
}

/// Whether missing devices are the only reason why a copy cannot be read.
pub(crate) fn is_missing(error: &VolumeError) -> bool {
    match error {
        VolumeError::NoGoodCopy { copies, .. } => {
            let mut faults = copies.iter().map(|copy| &copy.fault);
            !copies.is_empty() && faults.all(|fault| matches!(fault, CopyFault::Missing))
        }
        _ => false,
    }
}

/// The code for a fault that [`Node::verify`] found.
pub(crate) const fn code_of(fault: NodeFault) -> FaultCode {
    match fault {
        NodeFault::Size => FaultCode::NodeSize,
        NodeFault::Checksum => FaultCode::NodeChecksum,
        NodeFault::Fsid => FaultCode::NodeFsid,
        NodeFault::Address => FaultCode::NodeAddress,
        NodeFault::Generation => FaultCode::NodeGeneration,
        NodeFault::Level => FaultCode::NodeLevel,
        NodeFault::ItemCount => FaultCode::NodeItemCount,
        NodeFault::Empty => FaultCode::NodeEmpty,
        NodeFault::KeyOrder => FaultCode::NodeKeyOrder,
        NodeFault::FirstKey => FaultCode::NodeFirstKey,
        NodeFault::LastKey => FaultCode::NodeLastKey,
        NodeFault::ItemRange => FaultCode::NodeItemRange,
        NodeFault::Pointer => FaultCode::NodePointer,
        NodeFault::PointerGeneration => FaultCode::NodePointerGeneration,
        _ => FaultCode::NodeUnreadable,
    }
}

/// Trees to search in. Faults of their nodes are not reported.
pub(crate) struct Lookup<'c, 'a> {
    pub(crate) context: &'c Context<'a>,
    pub(crate) roots: &'c FxHashMap<TreeId, NodeRef>,
}

impl NodeSource for Lookup<'_, '_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        let found = self.context.peek(reference.into());
        found.map(Arc::new).map_err(|_| TreeError::Corrupt {
            logical: reference.logical,
            fault: NodeFault::Checksum,
        })
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        let root = self.roots.get(&tree).copied();
        root.ok_or(TreeError::NoSuchTree(tree))
    }
}

/// Makes a `Logical` from a number.
pub(crate) const fn logical(at: u64) -> Logical {
    Logical(at)
}
