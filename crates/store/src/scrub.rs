//! Scrubbing: each copy of all that the volume refers to is read from its
//! device and compared with its checksum.
//!
//! Owns one step of it: a stretch of one device, read by several threads. Who
//! goes through a device, how fast, and where that is written down, is the
//! caller's.
//!
//! Others may change the volume meanwhile. So what a step reads without the
//! engine is only suspected: before it is called bad it is looked at again with
//! the engine held for reading. No commit can publish then, so nothing that is
//! referred to now can be freed and overwritten before the verdict, or before
//! the copy is rewritten.
//!
//! Bounds: a step holds the list and the checksums of at most
//! [`STEP_BYTES_MAX`] bytes of extents, and [`RUN_BYTES`] for each thread.

use crate::Store;
use crate::checksums::SectorChecksums;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::extent::pending::{Backref, ExtentKind};
use crate::extent::record::{ExtentRecord, FLAG_DATA};
use crate::item_fault::ItemFault;
use crate::open::read_copy_of_superblock;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{
    DeviceId, DeviceOffset, Generation, InodeNumber, ItemType, Key, Logical, Physical, TreeId,
    superblock,
};
use butterfs_tree::{Cursor, Expected, Node};
use butterfs_volume::Profile;
use parking_lot::Mutex;
use std::ops::{AddAssign, ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of logical space that one step looks at, at most.
pub const STEP_BYTES_MAX: u64 = 256 << 20;
/// Bytes that a thread reads at once: they stay in its cache while they are
/// verified.
const RUN_BYTES: u64 = 512 << 10;
/// Longer gaps between extents are not read.
const GAP_MAX: u64 = 128 << 10;
/// Data extents are verified in parts of this size.
const PART_BYTES: u64 = 256 << 10;
/// Holders of damaged data that are named.
const HOLDERS_MAX: usize = 8;

/// What is done about a bad copy where another one is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// It is rewritten.
    #[default]
    Rewrite,
    /// It is reported.
    ReportOnly,
}

/// A part of a device that holds one copy of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubStretch {
    /// The chunk.
    pub chunk: Logical,
    /// Which of its copies.
    pub copy: usize,
    /// Where the copy begins.
    pub place: Physical,
    /// Bytes.
    pub length: u64,
}

/// What was found, counted as the kernel does: errors in sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Extents of data.
    pub data_extents: u64,
    /// Nodes.
    pub tree_extents: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of nodes.
    pub tree_bytes: u64,
    /// Sectors that could not be read.
    pub read_errors: u64,
    /// Sectors of data that differ from their checksum.
    pub csum_errors: u64,
    /// Sectors of nodes that are not what they should be.
    pub verify_errors: u64,
    /// Sectors of data without a checksum.
    pub no_csum: u64,
    /// Bad copies of the superblock.
    pub super_errors: u64,
    /// Bad sectors of which no copy is good.
    pub uncorrectable_errors: u64,
    /// Bad sectors that were rewritten.
    pub corrected_errors: u64,
    /// Bad sectors that could be rewritten, and were not.
    pub repairable_errors: u64,
}

impl AddAssign for ScrubCounts {
    fn add_assign(&mut self, other: Self) {
        self.data_extents += other.data_extents;
        self.tree_extents += other.tree_extents;
        self.data_bytes += other.data_bytes;
        self.tree_bytes += other.tree_bytes;
        self.read_errors += other.read_errors;
        self.csum_errors += other.csum_errors;
        self.verify_errors += other.verify_errors;
        self.no_csum += other.no_csum;
        self.super_errors += other.super_errors;
        self.uncorrectable_errors += other.uncorrectable_errors;
        self.corrected_errors += other.corrected_errors;
        self.repairable_errors += other.repairable_errors;
    }
}

/// What became of a bad copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubOutcome {
    /// It was rewritten from a good one.
    Corrected,
    /// Another copy is good; this one was left alone.
    Repairable,
    /// No copy is good.
    Uncorrectable,
}

/// What a bad copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubbedKind {
    /// A sector of file data.
    Data,
    /// A node of this level.
    Node(u8),
}

/// A bad copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubFault {
    /// Where it is in logical space.
    pub logical: Logical,
    /// Where it lies.
    pub place: Physical,
    /// What it holds.
    pub kind: ScrubbedKind,
    /// The device could not read it.
    pub unreadable: bool,
    /// What became of it.
    pub outcome: ScrubOutcome,
}

/// What a step did.
#[derive(Clone, Debug, Default)]
pub struct ScrubStep {
    /// What was found.
    pub counts: ScrubCounts,
    /// Bad copies.
    pub faults: Vec<ScrubFault>,
    /// Bytes of the stretch that are done.
    pub done: u64,
}

/// A file that holds data at an address, or held it: a snapshot that shares
/// the file is not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderAt {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode.
    pub inode: InodeNumber,
    /// Offset of the address in it; of the extent, where that is compressed.
    pub offset: u64,
}

/// Something to verify.
#[derive(Clone, Copy, Debug)]
struct Piece {
    range: (u64, u64),
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Node { level: u8, generation: Generation },
    Data,
}

/// What is to be verified in a step.
#[derive(Default)]
struct Plan {
    pieces: Vec<Piece>,
    counts: ScrubCounts,
    /// Checksums from the first sector of data on.
    sums: Option<(u64, SectorChecksums)>,
    end: u64,
}

/// Neighbouring pieces that are read at once.
struct Run {
    range: (u64, u64),
    pieces: Range<usize>,
}

/// What seemed to be bad.
#[derive(Clone, Copy)]
struct Suspect {
    logical: u64,
    what: What,
}

/// What a thread found.
#[derive(Default)]
struct Found {
    suspects: Vec<Suspect>,
    no_csum: u64,
}

impl Engine {
    /// What lies in `range` of a chunk that ends at `chunk_end`.
    fn plan_scrub(&self, range: &Range<u64>, chunk_end: u64) -> Result<Plan, StoreError> {
        let mut plan = Plan {
            end: range.end,
            ..Plan::default()
        };
        self.visit_extents(range, &mut |record, length| {
            let start = record.key.objectid;
            let end = start.saturating_add(length);
            if end > chunk_end {
                let fault = ItemFault::BeyondChunk;
                return Err(crate::corrupt_item(TreeId::EXTENT, record.key, fault));
            }
            plan.add(start, end, record);
            plan.end = plan.end.max(end);
            Ok(ControlFlow::Continue(()))
        })?;
        let is_data = |piece: &&Piece| matches!(piece.what, What::Data);
        let mut data = plan.pieces.iter().filter(is_data);
        if let Some(first) = data.next() {
            let end = data.next_back().unwrap_or(first).range.1;
            let start = first.range.0;
            plan.sums = Some((start, self.data_checksums(start..end)?));
        }
        Ok(plan)
    }

    /// Whether the device has, or should have, what lies at `logical` now; for a
    /// node its generation.
    fn generation_on_device(&self, logical: Logical, level: u8) -> Option<Generation> {
        let in_memory = self.dirty.contains_key(&logical) || self.writing.contains_key(&logical);
        if in_memory || self.pending.get(logical).is_some_and(|extent| extent.new) {
            return None;
        }
        let kind = ExtentKind::Node {
            level,
            first_key: None,
        };
        let record = ExtentRecord::load(self, logical, self.node_size() as u64, kind);
        record.ok().map(|record| record.generation)
    }

    /// Files that hold what lies at `logical`, as far as references say.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn holders_at(&self, logical: Logical) -> Result<Vec<HolderAt>, StoreError> {
        let last = Key::new(logical.get(), ItemType::EXTENT_ITEM, u64::MAX);
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &last)?;
        let record = loop {
            if !cursor.prev()? {
                return Ok(Vec::new());
            }
            let Some((key, data)) = cursor.item() else {
                return Ok(Vec::new());
            };
            if key.item_type == ItemType::EXTENT_ITEM {
                break ExtentRecord::parse(key, data)
                    .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
            }
        };
        let start = record.key.objectid;
        let within = logical.get().saturating_sub(start);
        if within >= record.key.offset || record.flags & FLAG_DATA == 0 {
            return Ok(Vec::new());
        }
        let mut holders = Vec::new();
        for (by, _) in record.all_refs(self)? {
            if holders.len() >= HOLDERS_MAX {
                break;
            }
            match by {
                Backref::Data {
                    root,
                    inode,
                    offset,
                } => holders.push(HolderAt {
                    tree: root,
                    inode,
                    offset: offset.wrapping_add(within),
                }),
                Backref::SharedData(leaf) => {
                    self.holders_in_leaf(leaf, (start, within), &mut holders)?;
                }
                Backref::Tree(_) | Backref::SharedNode(_) => {}
            }
        }
        Ok(holders)
    }

    fn holders_in_leaf(
        &self,
        leaf: Logical,
        (start, within): (u64, u64),
        holders: &mut Vec<HolderAt>,
    ) -> Result<(), StoreError> {
        let leaf = self.leaf_at(leaf)?;
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::parse(leaf.data(slot))
                .map_err(|error| bad_item(leaf.owner(), key, &error))?;
            if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = extent.body
                && place.disk.get() == start
            {
                holders.push(HolderAt {
                    tree: leaf.owner(),
                    inode: InodeNumber(key.objectid),
                    offset: key.offset.wrapping_sub(place.offset).wrapping_add(within),
                });
            }
        }
        Ok(())
    }
}

impl Plan {
    fn add(&mut self, start: u64, end: u64, record: &ExtentRecord) {
        if record.flags & FLAG_DATA == 0 {
            let level = match (&record.info, record.key.item_type) {
                (Some(info), _) => info[Key::SIZE],
                (None, _) => u8::try_from(record.key.offset).unwrap_or(u8::MAX),
            };
            self.counts.tree_extents += 1;
            self.counts.tree_bytes += end - start;
            self.pieces.push(Piece {
                range: (start, end),
                what: What::Node {
                    level,
                    generation: record.generation,
                },
            });
            return;
        }
        self.counts.data_extents += 1;
        self.counts.data_bytes += end - start;
        let mut at = start;
        while at < end {
            let next = end.min(at.saturating_add(PART_BYTES));
            self.pieces.push(Piece {
                range: (at, next),
                what: What::Data,
            });
            at = next;
        }
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            let (start, end) = piece.range;
            if let Some(run) = runs.last_mut()
                && start.saturating_sub(run.range.1) <= GAP_MAX
                && end - run.range.0 <= RUN_BYTES
            {
                run.range.1 = end;
                run.pieces.end = index + 1;
                continue;
            }
            runs.push(Run {
                range: (start, end),
                pieces: index..index + 1,
            });
        }
        runs
    }
}

impl Store {
    /// The parts of a device that hold copies of chunks, as they lie.
    ///
    /// # Errors
    /// A chunk whose profile is striped.
    pub fn scrub_stretches(&self, device: DeviceId) -> Result<Vec<ScrubStretch>, StoreError> {
        let engine = self.read();
        let mut stretches = Vec::new();
        for (logical, chunk) in engine.chunks() {
            let profile = Profile::from_flags(chunk.flags);
            if profile.is_none_or(Profile::is_striped) {
                return Err(StoreError::NotScrubbed(chunk.flags.profile_name()));
            }
            for (copy, stripe) in chunk.stripes.iter().enumerate() {
                if stripe.device == device {
                    stretches.push(ScrubStretch {
                        chunk: logical,
                        copy,
                        place: Physical {
                            device,
                            offset: stripe.offset,
                        },
                        length: chunk.length,
                    });
                }
            }
        }
        stretches.sort_by_key(|stretch| stretch.place);
        Ok(stretches)
    }

    /// Verifies about `bytes` of a stretch, from `from` bytes behind its
    /// beginning.
    ///
    /// # Errors
    /// The extent tree or the checksum tree cannot be read. What is found bad is
    /// no error.
    pub fn scrub_step(
        &self,
        stretch: &ScrubStretch,
        (from, bytes): (u64, u64),
        repair: Repair,
        threads: usize,
    ) -> Result<ScrubStep, StoreError> {
        let start = stretch.chunk.get() + from;
        let chunk_end = stretch.chunk.get() + stretch.length;
        let end = chunk_end.min(start.saturating_add(bytes.min(STEP_BYTES_MAX)));
        // A chunk that was removed meanwhile has nothing to verify.
        let is_there = |engine: &Engine| {
            let chunk = engine.chunks.get(&stretch.chunk);
            let stripe = chunk.and_then(|chunk| chunk.stripes.get(stretch.copy));
            stripe.is_some_and(|stripe| {
                (stripe.device, stripe.offset) == (stretch.place.device, stretch.place.offset)
            })
        };
        let plan = self.look(|engine| match is_there(engine) {
            true => engine.plan_scrub(&(start..end), chunk_end).map(Some),
            false => Ok(None),
        })?;
        let Some(plan) = plan else {
            return Ok(ScrubStep {
                done: stretch.length,
                ..ScrubStep::default()
            });
        };
        let found = self.verify_plan(stretch.copy, &plan, threads);
        let mut step = ScrubStep {
            counts: plan.counts,
            faults: Vec::new(),
            done: plan.end - stretch.chunk.get(),
        };
        step.counts.no_csum += found.no_csum;
        for suspect in found.suspects {
            self.settle(stretch, suspect, repair, &mut step);
        }
        Ok(step)
    }

    fn verify_plan(&self, copy: usize, plan: &Plan, threads: usize) -> Found {
        let runs = plan.runs();
        let next = AtomicUsize::new(0);
        let all = Mutex::new(Found::default());
        let work = || {
            let mut buffer = Vec::new();
            let mut found = Found::default();
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.verify_run(copy, plan, run, &mut buffer, &mut found);
            }
            let mut all = all.lock();
            all.suspects.append(&mut found.suspects);
            all.no_csum += found.no_csum;
        };
        let threads = threads.clamp(1, runs.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let mut found = all.into_inner();
        found.suspects.sort_by_key(|suspect| suspect.logical);
        found
    }

    fn verify_run(
        &self,
        copy: usize,
        plan: &Plan,
        run: &Run,
        buffer: &mut Vec<u8>,
        found: &mut Found,
    ) {
        let (start, end) = run.range;
        buffer.resize((end - start) as usize, 0);
        let read = self.space.read_copy(Logical(start), copy, buffer);
        let sector = self.identity.sector_size;
        for piece in &plan.pieces[run.pieces.clone()] {
            let (from, to) = piece.range;
            let bytes = &buffer[(from - start) as usize..(to - start) as usize];
            match piece.what {
                What::Node { level, generation } => {
                    if read.is_err() || !self.is_node(bytes, from, level, generation) {
                        found.suspects.push(Suspect {
                            logical: from,
                            what: piece.what,
                        });
                    }
                }
                What::Data => {
                    for (index, bytes) in bytes.chunks(sector as usize).enumerate() {
                        let logical = from + index as u64 * sector;
                        let sum = plan.sums.as_ref().and_then(|(first, sums)| {
                            sums.get(((logical - first) / sector) as usize)
                        });
                        match sum {
                            None => found.no_csum += 1,
                            Some(sum) if read.is_ok() && self.has_sum(bytes, sum) => {}
                            Some(_) => found.suspects.push(Suspect {
                                logical,
                                what: What::Data,
                            }),
                        }
                    }
                }
            }
        }
    }

    fn has_sum(&self, sector: &[u8], sum: &[u8]) -> bool {
        self.identity.checksum.compute(sector)[..sum.len()] == *sum
    }

    fn is_node(&self, bytes: &[u8], logical: u64, level: u8, generation: Generation) -> bool {
        let expected = Expected {
            logical: Logical(logical),
            generation: Some(generation),
            level: Some(level),
        };
        Node::verify(bytes.into(), &self.identity, expected).is_ok()
    }

    /// Looks at a suspect again while nothing can be published, and sees to it
    /// where it is bad.
    fn settle(
        &self,
        stretch: &ScrubStretch,
        suspect: Suspect,
        repair: Repair,
        step: &mut ScrubStep,
    ) {
        let engine = self.read();
        let logical = Logical(suspect.logical);
        let sector = self.identity.sector_size;
        let (length, sum, node) = match suspect.what {
            What::Node { level, .. } => {
                let Some(generation) = engine.generation_on_device(logical, level) else {
                    return;
                };
                let node = Some((level, generation));
                (self.identity.node_size as u64, None, node)
            }
            What::Data => {
                let range = logical.get()..logical.get() + sector;
                let sums = engine.data_checksums(range);
                let sum = sums.ok().and_then(|sums| sums.get(0).map(<[u8]>::to_vec));
                if sum.is_none() {
                    return;
                }
                (sector, sum, None)
            }
        };
        let is_good = |bytes: &[u8]| match (&sum, node) {
            (Some(sum), _) => self.has_sum(bytes, sum),
            (None, Some((level, generation))) => {
                self.is_node(bytes, logical.get(), level, generation)
            }
            (None, None) => false,
        };
        let mut bytes = vec![0; length as usize];
        let read = self.space.read_copy(logical, stretch.copy, &mut bytes);
        if read.is_ok() && is_good(&bytes) {
            return;
        }
        let unreadable = read.is_err();
        let sectors = length / sector;
        match (unreadable, node) {
            (true, _) => step.counts.read_errors += sectors,
            (false, Some(_)) => step.counts.verify_errors += sectors,
            (false, None) => step.counts.csum_errors += sectors,
        }
        if let Some(stats) = self.space.stats(stretch.place.device)
            && !unreadable
        {
            stats.corruption_errs.fetch_add(1, Ordering::Relaxed);
        }
        let copies = self.space.copies(logical);
        let good = (0..copies)
            .filter(|copy| *copy != stretch.copy)
            .any(|copy| {
                let read = self.space.read_copy(logical, copy, &mut bytes);
                read.is_ok() && is_good(&bytes)
            });
        let outcome = match good {
            false => ScrubOutcome::Uncorrectable,
            true if repair == Repair::ReportOnly => ScrubOutcome::Repairable,
            true => {
                let written = self.space.rewrite_copy(logical, stretch.copy, &bytes);
                let read = self.space.read_copy(logical, stretch.copy, &mut bytes);
                match written.is_ok() && read.is_ok() && is_good(&bytes) {
                    true => ScrubOutcome::Corrected,
                    false => ScrubOutcome::Repairable,
                }
            }
        };
        match outcome {
            ScrubOutcome::Corrected => step.counts.corrected_errors += sectors,
            ScrubOutcome::Repairable => step.counts.repairable_errors += sectors,
            ScrubOutcome::Uncorrectable => step.counts.uncorrectable_errors += sectors,
        }
        let offset = stretch.place.offset.get() + (logical.get() - stretch.chunk.get());
        step.faults.push(ScrubFault {
            logical,
            place: Physical {
                device: stretch.place.device,
                offset: DeviceOffset(offset),
            },
            kind: node.map_or(ScrubbedKind::Data, |(level, _)| ScrubbedKind::Node(level)),
            unreadable,
            outcome,
        });
    }

    /// Copies of the superblock on a device that are not the last commit's.
    /// Where `repair` says so, a commit writes them anew.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn scrub_superblocks(&self, device: DeviceId, repair: Repair) -> Result<u64, StoreError> {
        let (bad, is_primary) = {
            let _no_other_is_written = self.committing.lock();
            let engine = self.read();
            let mut members = self.space.devices();
            let Some((_, block)) = members.find(|(id, _)| *id == device) else {
                return Ok(0);
            };
            let wanted = engine.durable.generation;
            let is_bad = |offset: &DeviceOffset| match read_copy_of_superblock(&*block, *offset) {
                None => false,
                Some(Ok(copy)) => copy.generation != wanted,
                Some(Err(_)) => true,
            };
            let bad: Vec<_> = superblock::COPIES.into_iter().filter(is_bad).collect();
            (bad.len() as u64, bad.contains(&superblock::COPIES[0]))
        };
        if bad > 0 && repair == Repair::Rewrite {
            {
                let mut engine = self.change_writable()?;
                engine.note_edit();
                engine.superblock_changed = true;
                engine.primary_damaged |= is_primary;
            }
            self.commit()?;
        }
        Ok(bad)
    }
}
