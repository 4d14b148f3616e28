//! A volume that may not open: its devices, identity and chunk map.
//!
//! Opening reads the superblocks and the chunk tree. If that is not enough, a
//! scan finds the rest: superblocks at other places (a partition table that is
//! lost), node size and checksum type, the numbers of devices without a
//! superblock, chunks.

use crate::chunks::{self, ChunkSource, MapFacts};
use crate::error::RescueError;
use crate::forest::Forest;
use crate::index::{Index, Shape, Span};
use crate::index_file::IndexFile;
use crate::nodes::Nodes;
use crate::roots::{self, Candidate};
use crate::scan::{ScanOptions, scan};
use crate::stripes::Ordering;
use crate::watch::Watch;
use crate::{bytes_of, memory_of};
use butterfs_device::{BlockDevice, DeviceRange, ReadOnlyDevice, WindowDevice};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::superblock::{COPIES, SIZE, SuperFlags, Superblock};
use butterfs_format::{ChecksumType, DeviceId, DeviceOffset, UuidBytes};
use butterfs_tree::{Headers, Seeds, VolumeIdentity};
use butterfs_volume::{
    ChunkMap, LogicalSpace, OnDamage, OnLoss, Trust, VolumeDevice, stripe_length,
};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Nodes of a device that are asked which device it is.
const VOTERS: usize = 8192;
/// Answers that are told apart.
const VOTES_MAX: usize = 65_536;

/// How a patient is opened.
#[derive(Clone, Debug)]
pub struct PatientOptions {
    /// UUID of the volume, where the devices have traces of several.
    pub fsid: Option<UuidBytes>,
    /// The file that keeps what a scan found.
    pub index: Option<PathBuf>,
    /// Number of threads of a scan; 0 means one for each core.
    pub threads: usize,
    /// Bytes of memory that the nodes of a scan may take.
    pub memory_max: u64,
    /// The copy of the superblock to use, counted from 0.
    pub superblock: Option<usize>,
}

impl Default for PatientOptions {
    fn default() -> Self {
        Self {
            fsid: None,
            index: None,
            threads: 0,
            memory_max: 4 << 30,
            superblock: None,
        }
    }
}

/// How much of the devices is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanScope {
    /// The chunks that hold nodes, if the chunk map is whole; otherwise
    /// everything.
    Nodes,
    /// Everything.
    Everything,
}

/// A superblock and where its volume begins on the device.
#[derive(Clone, Debug)]
pub(crate) struct FoundSuperblock {
    pub(crate) device: usize,
    pub(crate) base: u64,
    pub(crate) copy: usize,
    pub(crate) superblock: Superblock,
}

/// Which device of the volume a device is.
#[derive(Clone, Debug)]
pub(crate) struct MemberPlace {
    pub(crate) device: usize,
    pub(crate) base: u64,
    pub(crate) id: DeviceId,
    pub(crate) uuid: UuidBytes,
    pub(crate) trust: Trust,
}

/// A volume that may not open.
#[derive(Debug)]
pub struct Patient {
    devices: Vec<Arc<dyn BlockDevice>>,
    options: PatientOptions,
    pub(crate) superblocks: Vec<FoundSuperblock>,
    main: Option<Superblock>,
    members: Vec<MemberPlace>,
    facts: MapFacts,
    nodes: Arc<Nodes>,
    scanned: Option<ScanScope>,
}

impl Patient {
    /// Reads superblocks and chunk tree. Nothing is scanned yet.
    ///
    /// # Errors
    /// [`RescueError::NoDevice`], [`RescueError::SeveralVolumes`]
    pub fn open(
        devices: Vec<Arc<dyn BlockDevice>>,
        options: PatientOptions,
    ) -> Result<Self, RescueError> {
        if devices.is_empty() {
            return Err(RescueError::NoDevice);
        }
        let read_only = |device| -> Arc<dyn BlockDevice> { Arc::new(ReadOnlyDevice::new(device)) };
        let devices: Vec<_> = devices.into_iter().map(read_only).collect();
        let mut superblocks = Vec::new();
        for (number, device) in devices.iter().enumerate() {
            for (copy, offset) in COPIES.into_iter().enumerate() {
                if let Some(superblock) = read_superblock(&**device, offset, offset) {
                    superblocks.push(FoundSuperblock {
                        device: number,
                        base: 0,
                        copy,
                        superblock,
                    });
                }
            }
        }
        if let Some(copy) = options.superblock {
            superblocks.retain(|found| found.copy == copy);
        }
        let mut patient = Self {
            nodes: Arc::new(nothing(&devices)),
            devices,
            options,
            superblocks,
            main: None,
            members: Vec::new(),
            facts: MapFacts::default(),
            scanned: None,
        };
        patient.choose_volume()?;
        patient.assemble(Arc::default());
        Ok(patient)
    }

    /// Keeps the superblocks of one volume.
    fn choose_volume(&mut self) -> Result<(), RescueError> {
        let is_seed = |sb: &Superblock| sb.flags.contains(SuperFlags::SEEDING);
        let all = self.superblocks.iter().map(|found| &found.superblock);
        let own: BTreeSet<UuidBytes> = all
            .clone()
            .filter(|superblock| !is_seed(superblock))
            .map(|superblock| superblock.fsid)
            .collect();
        let fsids = match own.is_empty() {
            true => all.map(|superblock| superblock.fsid).collect(),
            false => own,
        };
        let fsid = match (self.options.fsid, fsids.len()) {
            (Some(fsid), _) => fsid,
            (None, 0) => return Ok(()),
            (None, 1) => fsids.into_iter().next().unwrap_or_default(),
            (None, count) => {
                let names: Vec<String> = fsids.iter().map(uuid_text).collect();
                return Err(RescueError::SeveralVolumes(count, names.join(", ")));
            }
        };
        self.superblocks.retain(|found| {
            let superblock = &found.superblock;
            let is_own = [superblock.fsid, superblock.node_fsid()].contains(&fsid);
            is_own || is_seed(superblock)
        });
        let own = self.superblocks.iter().filter(|found| {
            let superblock = &found.superblock;
            [superblock.fsid, superblock.node_fsid()].contains(&fsid)
        });
        let newest = own.max_by_key(|found| {
            let generation = found.superblock.generation;
            let has_chunks = !found.superblock.sys_chunks.is_empty();
            let first = std::cmp::Reverse((found.device, found.copy));
            (generation, has_chunks, first)
        });
        self.main = newest.map(|found| found.superblock.clone());
        Ok(())
    }

    /// Finds identity, members and chunk map with what is known.
    fn assemble(&mut self, index: Arc<Index>) {
        let identity = self.identity(&index);
        self.members = self.named_members();
        let bootstrap = self.main.as_ref().map(|superblock| {
            let mut map = ChunkMap::default();
            for (logical, chunk) in &superblock.sys_chunks {
                // What does not fit is found in another way.
                let _ = map.insert(*logical, chunk.clone());
            }
            map
        });
        let space = self.space(&bootstrap.unwrap_or_default());
        let nodes = self.with(identity, space, &index);
        let (map, facts) = chunks::build(&nodes, self.main.as_ref());
        self.find_members(&map, &index, &facts);
        if !index.is_empty() {
            self.find_by_data(&nodes, &map, &facts);
        }
        let ordering = Ordering {
            nodes: &nodes,
            members: &self.members,
        };
        let map = ordering.order(map, &facts);
        let space = self.space(&map);
        self.facts = facts;
        self.nodes = Arc::new(self.with(identity, space, &index));
    }

    fn with(&self, identity: VolumeIdentity, space: LogicalSpace, index: &Arc<Index>) -> Nodes {
        let devices = self.devices.clone();
        Nodes::new(devices, identity, Arc::new(space), Arc::clone(index))
    }

    /// What all nodes share, by the superblock or by most nodes of the scan.
    fn identity(&self, index: &Index) -> VolumeIdentity {
        if let Some(superblock) = &self.main {
            let seeds = self.superblocks.iter().map(|found| &found.superblock);
            let seeds = seeds.filter(|seed| seed.fsid != superblock.fsid);
            let seeds: BTreeSet<UuidBytes> = seeds.map(Superblock::node_fsid).collect();
            let seeds: Vec<UuidBytes> = seeds.into_iter().take(Seeds::MAX).collect();
            let is_changing = superblock.flags.intersects(SuperFlags::CHANGING);
            let headers = match (is_changing, Seeds::new(&seeds)) {
                (true, _) => Headers::Changing,
                (false, Some(seeds)) => Headers::Seeded(seeds),
                (false, None) => Headers::Agree,
            };
            return VolumeIdentity {
                fsid: superblock.node_fsid(),
                node_size: memory_of(u64::from(superblock.node_size)),
                sector_size: u64::from(superblock.sector_size),
                checksum: superblock.checksum_type,
                headers,
            };
        }
        let wanted = self.options.fsid;
        let shapes = index.shapes().into_iter();
        let fitting = shapes.filter(|(shape, _)| wanted.is_none_or(|fsid| fsid == shape.fsid));
        let most = fitting.max_by_key(|(_, count)| *count);
        let shape = most.map_or(UNKNOWN, |(shape, _)| shape);
        VolumeIdentity {
            fsid: shape.fsid,
            node_size: memory_of(u64::from(shape.node_size)),
            sector_size: u64::from(shape.node_size.min(4096)),
            checksum: shape.checksum,
            headers: Headers::Agree,
        }
    }

    /// Devices by their superblocks. If two claim to be the same, the newer one
    /// is.
    fn named_members(&self) -> Vec<MemberPlace> {
        let newest = self.main.as_ref().map(|main| main.generation);
        let mut members: BTreeMap<DeviceId, (MemberPlace, u64)> = BTreeMap::new();
        for found in &self.superblocks {
            let superblock = &found.superblock;
            let generation = superblock.generation.get();
            let place = MemberPlace {
                device: found.device,
                base: found.base,
                id: superblock.device.id,
                uuid: superblock.device.uuid,
                trust: match Some(superblock.generation) == newest {
                    true => Trust::Full,
                    false => Trust::Last,
                },
            };
            let known = members.get(&place.id);
            if known.is_none_or(|(_, older)| *older < generation) {
                members.insert(place.id, (place, generation));
            }
        }
        members.into_values().map(|(place, _)| place).collect()
    }

    /// Finds out which devices those without a superblock are: the nodes on
    /// them say their addresses, and the chunks say where these lie.
    fn find_members(&mut self, map: &ChunkMap, index: &Index, facts: &MapFacts) {
        for device in 0..self.devices.len() {
            if self.members.iter().any(|member| member.device == device) {
                continue;
            }
            let Some((id, base)) = vote(map, index, device) else {
                continue;
            };
            if self.members.iter().any(|member| member.id == id) {
                continue;
            }
            let stripes = map.iter().flat_map(|(_, chunk)| &chunk.stripes);
            let mut uuids = stripes.filter(|stripe| stripe.device == id);
            let uuid = uuids.next().map_or([0; 16], |stripe| stripe.device_uuid);
            self.members.push(MemberPlace {
                device,
                base,
                id,
                uuid,
                trust: Trust::Full,
            });
        }
        // A single device without any node is still the only one.
        if self.members.is_empty() && self.devices.len() == 1 {
            let ids: BTreeSet<DeviceId> = map.stripes().map(|stripe| stripe.device).collect();
            let known = facts.devices.first().copied();
            self.members.push(MemberPlace {
                device: 0,
                base: 0,
                id: known.or(ids.first().copied()).unwrap_or(DeviceId(1)),
                uuid: [0; 16],
                trust: Trust::Full,
            });
        }
    }

    /// Finds out which devices those are that have neither a superblock nor
    /// nodes.
    fn find_by_data(&mut self, nodes: &Nodes, map: &ChunkMap, facts: &MapFacts) {
        let all = 0..self.devices.len();
        let is_known = |device: &usize| self.members.iter().any(|one| one.device == *device);
        let devices: Vec<usize> = all.filter(|device| !is_known(device)).collect();
        let ids: BTreeSet<DeviceId> = map.stripes().map(|stripe| stripe.device).collect();
        let is_there = |id: &DeviceId| self.members.iter().any(|one| one.id == *id);
        let ids: Vec<DeviceId> = ids.into_iter().filter(|id| !is_there(id)).collect();
        let ordering = Ordering {
            nodes,
            members: &self.members,
        };
        for (device, id) in ordering.find_members(map, facts, &devices, &ids) {
            self.members.push(MemberPlace {
                device,
                base: 0,
                id,
                uuid: [0; 16],
                trust: Trust::Full,
            });
        }
    }

    /// The logical space of a map.
    pub(crate) fn space(&self, map: &ChunkMap) -> LogicalSpace {
        let mut devices: Vec<VolumeDevice> = Vec::new();
        for member in &self.members {
            let Some(device) = self.devices.get(member.device) else {
                continue;
            };
            let mut device = Arc::clone(device);
            if member.base > 0 {
                let left = device.size().saturating_sub(member.base);
                let range = DeviceRange::new(DeviceOffset(member.base), left);
                let Ok(window) = WindowDevice::new(device, range) else {
                    continue;
                };
                device = Arc::new(window);
            }
            devices.push(VolumeDevice {
                trust: member.trust,
                ..VolumeDevice::present(member.id, member.uuid, device)
            });
        }
        let known: BTreeSet<DeviceId> = devices.iter().map(|device| device.id).collect();
        let stripes = map.iter().flat_map(|(_, chunk)| &chunk.stripes);
        let others = stripes.filter(|stripe| !known.contains(&stripe.device));
        let missing: BTreeMap<DeviceId, UuidBytes> = others
            .map(|stripe| (stripe.device, stripe.device_uuid))
            .collect();
        for (id, uuid) in missing {
            devices.push(VolumeDevice::missing(id, uuid));
        }
        LogicalSpace::over(devices, map.clone(), OnDamage::Leave, OnLoss::Fail)
    }

    /// Scans the devices, unless that was done; goes on where an earlier scan
    /// into the same index file ended.
    ///
    /// # Errors
    /// [`RescueError::Stopped`], [`RescueError::TooManyNodes`],
    /// [`RescueError::NothingFound`], the index file.
    pub fn scan(&mut self, scope: ScanScope, watch: &dyn Watch) -> Result<(), RescueError> {
        let is_done = |done: ScanScope| done == scope || done == ScanScope::Everything;
        if self.scanned.is_some_and(is_done) {
            return Ok(());
        }
        let sizes: Vec<u64> = self.devices.iter().map(|device| device.size()).collect();
        let spans = self.spans(scope, &sizes);
        let all = self.spans(ScanScope::Everything, &sizes);
        let mut file = None;
        let mut index = Index::default();
        if let Some(path) = &self.options.index {
            let (opened, known) = IndexFile::open(path, &sizes)?;
            file = Some(opened);
            if known.spans == spans || known.spans == all {
                index = known;
            }
        }
        if index.spans.is_empty() {
            index.spans = spans;
            if let Some(file) = &mut file {
                file.begin(&sizes, &index)?;
            }
        }
        let options = ScanOptions {
            threads: self.options.threads,
            memory_max: self.options.memory_max,
            shapes: self.known_shapes(),
        };
        scan(&self.devices, &mut index, file.as_mut(), &options, watch)?;
        self.scanned = Some(match index.spans == all {
            true => ScanScope::Everything,
            false => scope,
        });
        self.take_superblocks(&index);
        self.choose_volume()?;
        if self.main.is_none() && index.is_empty() {
            return Err(RescueError::NothingFound);
        }
        let identity = self.identity(&index);
        if self.options.fsid.is_some() && identity.fsid == [0; 16] {
            return Err(RescueError::NoSuchVolume);
        }
        if identity.headers == Headers::Agree {
            index.keep_volume(identity.fsid);
        }
        self.assemble(Arc::new(index));
        Ok(())
    }

    /// The shapes that the superblocks name.
    fn known_shapes(&self) -> Vec<Shape> {
        let is_changing = |sb: &Superblock| sb.flags.intersects(SuperFlags::CHANGING);
        if self.main.as_ref().is_none_or(is_changing) {
            return Vec::new();
        }
        let mut shapes: Vec<Shape> = Vec::new();
        for found in &self.superblocks {
            let shape = Shape {
                fsid: found.superblock.node_fsid(),
                chunk_tree_uuid: [0; 16],
                node_size: found.superblock.node_size,
                checksum: found.superblock.checksum_type,
            };
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }

    /// What to scan.
    fn spans(&self, scope: ScanScope, sizes: &[u64]) -> Vec<Span> {
        let numbered = || (0_u16..).zip(sizes);
        let everything = || {
            let spans = numbered().map(|(device, size)| Span {
                device,
                start: 0,
                length: *size,
            });
            spans.collect()
        };
        if scope == ScanScope::Everything || self.facts.source != ChunkSource::Tree {
            return everything();
        }
        let mut parts: BTreeMap<(u16, u64), u64> = BTreeMap::new();
        for (_, chunk) in self.nodes.space.map().iter() {
            let nodes = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
            if !chunk.flags.intersects(nodes) {
                continue;
            }
            for stripe in &chunk.stripes {
                let members = self.members.iter();
                let mut places = members.filter(|member| member.id == stripe.device);
                let Some(member) = places.next() else {
                    continue;
                };
                let (Ok(device), Some(start)) = (
                    u16::try_from(member.device),
                    member.base.checked_add(stripe.offset.get()),
                ) else {
                    continue;
                };
                let size = sizes.get(member.device).copied().unwrap_or(0);
                let length = stripe_length(chunk).min(size.saturating_sub(start));
                parts.insert((device, start), length);
            }
        }
        let spans = parts.into_iter().map(|((device, start), length)| Span {
            device,
            start,
            length,
        });
        spans.collect()
    }

    /// Takes superblocks that lie elsewhere than at their places on the whole
    /// device.
    fn take_superblocks(&mut self, index: &Index) {
        for place in &index.superblocks {
            let number = usize::from(place.device);
            let own = place.own_offset;
            let base = place.offset.get().checked_sub(own.get());
            let (Some(device), Some(base)) = (self.devices.get(number), base) else {
                continue;
            };
            let copy = COPIES.iter().position(|copy| *copy == own);
            let is_known = |found: &FoundSuperblock| {
                (found.device, found.base) == (number, base) && Some(found.copy) == copy
            };
            let wanted = self.options.superblock;
            let is_wanted = wanted.is_none_or(|wanted| Some(wanted) == copy);
            if self.superblocks.iter().any(is_known) || !is_wanted {
                continue;
            }
            // With a superblock at its place, others are of images in files.
            let has_own = |found: &FoundSuperblock| found.device == number && found.base == 0;
            if base != 0 && self.superblocks.iter().any(has_own) {
                continue;
            }
            if let (Some(copy), Some(superblock)) =
                (copy, read_superblock(&**device, place.offset, own))
            {
                self.superblocks.push(FoundSuperblock {
                    device: number,
                    base,
                    copy,
                    superblock,
                });
            }
        }
        self.keep_largest_volume(index);
    }

    /// Of superblocks that the scan found, keeps those of the volume that has
    /// most nodes: others lie in files that are images.
    fn keep_largest_volume(&mut self, index: &Index) {
        if self.main.is_some() || self.options.fsid.is_some() {
            return;
        }
        let mut counts: FxHashMap<UuidBytes, u64> = FxHashMap::default();
        for (shape, count) in index.shapes() {
            let sum = counts.entry(shape.fsid).or_default();
            *sum = sum.saturating_add(count);
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        if let Some((fsid, _)) = most {
            self.superblocks
                .retain(|found| found.superblock.node_fsid() == fsid);
        }
    }

    /// Whether what was read so far cannot be enough.
    #[must_use]
    pub fn needs_scan(&self) -> bool {
        self.scanned.is_none() && (self.main.is_none() || self.facts.source != ChunkSource::Tree)
    }

    /// What a scan covered so far.
    #[must_use]
    pub const fn scanned(&self) -> Option<ScanScope> {
        self.scanned
    }

    /// Bytes that a scan reads.
    #[must_use]
    pub fn scan_bytes(&self, scope: ScanScope) -> u64 {
        let sizes: Vec<u64> = self.devices.iter().map(|device| device.size()).collect();
        let spans = self.spans(scope, &sizes);
        let lengths = spans.iter().map(|span| span.length);
        lengths.fold(0, u64::saturating_add)
    }

    /// The newest good superblock.
    #[must_use]
    pub const fn superblock(&self) -> Option<&Superblock> {
        self.main.as_ref()
    }

    /// Copies of the superblock that are good, of those that the devices have
    /// room for.
    #[must_use]
    pub fn superblock_copies(&self) -> (usize, usize) {
        let mut room = 0_usize;
        for device in &self.devices {
            let size = device.size();
            let copies = COPIES.iter().filter(|copy| {
                let end = copy.get().saturating_add(bytes_of(SIZE));
                end <= size
            });
            room = room.saturating_add(copies.count());
        }
        (self.superblocks.len(), room)
    }

    /// How the chunk map was found.
    #[must_use]
    pub const fn map_facts(&self) -> &MapFacts {
        &self.facts
    }

    /// What all nodes share.
    #[must_use]
    pub fn identity_found(&self) -> VolumeIdentity {
        self.nodes.identity
    }

    /// Devices of the volume that were not given.
    #[must_use]
    pub fn missing(&self) -> Vec<DeviceId> {
        let map = self.nodes.space.map();
        let ids: BTreeSet<DeviceId> = map.stripes().map(|stripe| stripe.device).collect();
        let is_there = |id: &DeviceId| self.members.iter().any(|member| member.id == *id);
        ids.into_iter().filter(|id| !is_there(id)).collect()
    }

    /// Where the volume begins on its devices, if that is not the first byte.
    #[must_use]
    pub fn bases(&self) -> Vec<(String, u64)> {
        let members = self.members.iter().filter(|member| member.base > 0);
        let named = members.filter_map(|member| {
            let device = self.devices.get(member.device)?;
            Some((device.identity(), member.base))
        });
        named.collect()
    }

    /// The nodes that a scan found.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.nodes.index
    }

    /// Trees of roots, newest first.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        let superblocks: Vec<Superblock> = self
            .superblocks
            .iter()
            .map(|found| found.superblock.clone())
            .collect();
        roots::candidates(&self.nodes, &superblocks)
    }

    /// The trees of a candidate.
    pub(crate) fn forest(&self, candidate: &Candidate) -> Forest {
        let generation = candidate.generation;
        let superblocks = self.superblocks.iter().map(|found| &found.superblock);
        let mut backups = superblocks.flat_map(|superblock| &superblock.backup_roots);
        let backup = backups.find(|backup| backup.tree_root.generation == generation);
        Forest::load(&self.nodes, candidate.root, generation, backup)
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn members(&self) -> &[MemberPlace] {
        &self.members
    }
}

/// A shape that no node has.
const UNKNOWN: Shape = Shape {
    fsid: [0; 16],
    chunk_tree_uuid: [0; 16],
    node_size: 16384,
    checksum: ChecksumType::Crc32c,
};

/// Nodes of a volume of which nothing is known.
fn nothing(devices: &[Arc<dyn BlockDevice>]) -> Nodes {
    let identity = VolumeIdentity {
        fsid: UNKNOWN.fsid,
        node_size: memory_of(u64::from(UNKNOWN.node_size)),
        sector_size: 4096,
        checksum: UNKNOWN.checksum,
        headers: Headers::Agree,
    };
    let map = ChunkMap::default();
    let space = LogicalSpace::over(Vec::new(), map, OnDamage::Leave, OnLoss::Fail);
    Nodes::new(devices.to_vec(), identity, Arc::new(space), Arc::default())
}

fn read_superblock(
    device: &dyn BlockDevice,
    at: DeviceOffset,
    own: DeviceOffset,
) -> Option<Superblock> {
    let mut bytes = vec![0; SIZE];
    device.read_at(at, &mut bytes).ok()?;
    Superblock::parse_but_chunks(&bytes, own).ok()
}

/// Which device of the volume a device is, and where the volume begins on it.
fn vote(map: &ChunkMap, index: &Index, device: usize) -> Option<(DeviceId, u64)> {
    let on_device = || {
        let nodes = index.nodes.iter();
        nodes.filter(|node| usize::from(node.device) == device)
    };
    let step = on_device().count().div_ceil(VOTERS).max(1);
    let mut votes: FxHashMap<(DeviceId, u64), u64> = FxHashMap::default();
    for node in on_device().step_by(step) {
        let Ok(mapping) = map.map(node.logical, 1) else {
            continue;
        };
        for copy in mapping.copies {
            let Some(base) = node.offset.get().checked_sub(copy.offset.get()) else {
                continue;
            };
            if votes.len() < VOTES_MAX || votes.contains_key(&(copy.device, base)) {
                let count = votes.entry((copy.device, base)).or_default();
                *count = count.saturating_add(1);
            }
        }
    }
    let best = votes
        .into_iter()
        .max_by_key(|((id, base), count)| (*count, std::cmp::Reverse((*base, *id))));
    best.map(|(found, _)| found)
}

/// A UUID as people write it.
pub(crate) fn uuid_text(uuid: &UuidBytes) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |start: usize, end: usize| hex.get(start..end).unwrap_or_default().to_owned();
    let parts = [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ];
    parts.join("-")
}
