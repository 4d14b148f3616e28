//! Scrubbing: each copy of all that the volume refers to, and each parity, is
//! read from its device and compared with its checksum.
//!
//! Owns one step of it: a part of one stripe of a chunk, read by several
//! threads. The caller goes through the devices, decides how fast, and keeps
//! the record.
//!
//! Others may change the volume meanwhile. So what a step reads without the
//! lock of the engine is only suspect. Before the step calls it bad, it looks
//! again while it holds the engine for reading, so that no commit can publish.
//! Nothing that is in use then can be freed and overwritten before the verdict,
//! or before the copy is rewritten.
//!
//! Bounds: each thread holds the list and the checksums of at most 16 MiB of
//! extents, or of one row, and half a MiB of content, or a row.

mod holders;
mod parity;
mod plan;
mod report;
mod settle;

use crate::Store;
use crate::commit::equal_copies::CopyPlace;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::open::superblocks::read_copy_of_superblock;
use crate::parallel::in_parallel;
use butterfs_format::{DeviceId, DeviceOffset, Generation, Logical, Physical, superblock};
use butterfs_tree::{Expected, Node};
use butterfs_volume::StripeLayout;
pub use holders::HolderAt;
use parking_lot::Mutex;
use plan::{ParityPiece, Plan, Run, What};
pub use report::{ScrubCounts, ScrubFault, ScrubOutcome, ScrubStep, ScrubbedKind};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of logical space that one step looks at, at most; one row at least.
pub const STEP_BYTES_MAX: u64 = 256 << 20;
/// Bytes of logical space that one thread looks at in one go; one row at least.
const THREAD_BYTES: u64 = 16 << 20;
/// What to do about a bad copy if another copy is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// It is rewritten.
    #[default]
    Rewrite,
    /// It is reported.
    ReportOnly,
}

/// A part of a device that is a stripe of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubStretch {
    /// The chunk.
    pub chunk: Logical,
    /// Which of its stripes.
    pub stripe: usize,
    /// Where the stripe begins.
    pub place: Physical,
    /// Bytes of the stripe.
    pub length: u64,
    /// Bytes of extents on it, about, without parities.
    pub used: u64,
}

/// A stretch, valid while the chunk is as it was.
struct Part<'s> {
    stretch: &'s ScrubStretch,
    layout: StripeLayout,
}

impl Part<'_> {
    /// Whether a place is in the stretch.
    fn has(&self, place: Physical) -> bool {
        let begin = self.stretch.place;
        let within = place.offset.get().checked_sub(begin.offset.get());
        place.device == begin.device && within.is_some_and(|within| within < self.layout.length())
    }
}

/// What threads found.
#[derive(Default)]
struct Found {
    suspects: Vec<(u64, What)>,
    parities: Vec<ParityPiece>,
    no_csum: u64,
}

/// A part of a stripe, divided into parts of its chunk, one for each thread.
fn parts_of(layout: &StripeLayout, whole: &Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut at = whole.start;
    while at < whole.end {
        let (part, within) = layout.rows(at..whole.end, THREAD_BYTES);
        at = part.end;
        parts.push(within);
    }
    parts
}

impl Engine {
    /// How the chunk of a stretch lies now; `None` if it is gone.
    fn layout_of(&self, stretch: &ScrubStretch) -> Option<StripeLayout> {
        let chunk = self.space_map.chunks().get(&stretch.chunk)?;
        let stripe = chunk.stripes.get(stretch.stripe)?;
        let is_there =
            (stripe.device, stripe.offset) == (stretch.place.device, stretch.place.offset);
        StripeLayout::of(chunk, stretch.stripe).filter(|_| is_there)
    }
}

impl Store {
    /// The parts of a device that are stripes of chunks, in the order in which
    /// they lie.
    pub fn scrub_stretches(&self, device: DeviceId) -> Vec<ScrubStretch> {
        let engine = self.read();
        let groups = engine.groups().map(|group| (group.start, group.used));
        let used: BTreeMap<Logical, u64> = groups.collect();
        let mut stretches = Vec::new();
        for (logical, chunk) in engine.chunks() {
            for (stripe, place) in chunk.stripes.iter().enumerate() {
                if place.device != device {
                    continue;
                }
                let Some(layout) = StripeLayout::of(chunk, stripe) else {
                    continue;
                };
                let used = used.get(&logical).copied().unwrap_or(0);
                stretches.push(ScrubStretch {
                    chunk: logical,
                    stripe,
                    place: Physical {
                        device,
                        offset: place.offset,
                    },
                    length: layout.length(),
                    used: layout.share(used),
                });
            }
        }
        stretches.sort_by_key(|stretch| stretch.place);
        stretches
    }

    /// Verifies about `bytes` of a stretch, from `from` bytes behind its
    /// beginning. Striped profiles are verified in whole rows.
    ///
    /// # Errors
    /// The extent tree or the checksum tree cannot be read. Bad content is no
    /// error here.
    pub fn scrub_step(
        &self,
        stretch: &ScrubStretch,
        (from, bytes): (u64, u64),
        repair: Repair,
        threads: usize,
    ) -> Result<ScrubStep, StoreError> {
        let Some(layout) = self.read().layout_of(stretch) else {
            // A chunk that was removed meanwhile has nothing to verify.
            return Ok(ScrubStep {
                done: stretch.length,
                ..ScrubStep::default()
            });
        };
        let wanted = from..from.saturating_add(bytes.max(1));
        let most = bytes.saturating_mul(layout.columns());
        let (whole, _) = layout.rows(wanted, most.min(STEP_BYTES_MAX));
        let parts = parts_of(&layout, &whole);
        let all = Mutex::new((ScrubCounts::default(), Found::default()));
        in_parallel(&parts, threads, |part| {
            let planned = self.look(|engine| match engine.layout_of(stretch) {
                Some(now) if now == layout => {
                    engine.plan_scrub(stretch.chunk, &layout, part).map(Some)
                }
                _ => Ok(None),
            })?;
            let Some(plan) = planned else { return Ok(()) };
            let mut found = self.verify_plan(stretch.place, &plan);
            let mut all = all.lock();
            all.0 += plan.counts;
            all.0.no_csum += found.no_csum;
            all.1.suspects.append(&mut found.suspects);
            all.1.parities.append(&mut found.parities);
            Ok::<(), StoreError>(())
        })?;
        let (counts, mut found) = all.into_inner();
        found.suspects.sort_by_key(|(logical, _)| *logical);
        found.parities.sort_by_key(|piece| piece.row);
        let mut step = ScrubStep {
            counts,
            faults: Vec::new(),
            done: whole.end,
        };
        let part = Part { stretch, layout };
        for suspect in found.suspects {
            self.settle(&part, suspect, repair, &mut step);
        }
        for suspect in &found.parities {
            self.settle_parity(&part, suspect, repair, &mut step)?;
        }
        Ok(step)
    }

    fn verify_plan(&self, begin: Physical, plan: &Plan) -> Found {
        let mut found = Found {
            suspects: plan.split_nodes.clone(),
            ..Found::default()
        };
        let mut buffer = Vec::new();
        for run in &plan.runs() {
            self.verify_run(begin, plan, run, &mut buffer, &mut found);
        }
        let parities = plan.parities.iter();
        let suspects = parities.filter(|piece| self.is_parity_suspect(plan, piece));
        found.parities.extend(suspects.cloned());
        found
    }

    fn verify_run(
        &self,
        begin: Physical,
        plan: &Plan,
        run: &Run,
        buffer: &mut Vec<u8>,
        found: &mut Found,
    ) {
        let Range { start, end } = run.range;
        buffer.resize((end - start) as usize, 0);
        let from = Physical {
            offset: begin.offset.saturating_add(start),
            ..begin
        };
        let is_read = self.space.read_physical(from, buffer).is_ok();
        let sector = self.identity.sector_size;
        for piece in &plan.pieces[run.pieces.clone()] {
            let bytes = &buffer[(piece.at - start) as usize..][..piece.length as usize];
            match piece.what {
                What::Node { level, generation } => {
                    if !is_read || !self.is_node(bytes, piece.logical, level, generation) {
                        found.suspects.push((piece.logical, piece.what));
                    }
                }
                What::Data => {
                    for (index, bytes) in bytes.chunks(sector as usize).enumerate() {
                        let logical = piece.logical + index as u64 * sector;
                        let sum = plan.sum(logical, sector);
                        found.no_csum += u64::from(sum.is_none());
                        if !is_read || sum.is_some_and(|sum| !self.has_sum(bytes, sum)) {
                            found.suspects.push((logical, What::Data));
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
        Node::check(bytes, &self.identity, expected).is_ok()
    }

    /// Copies of the superblock on a device that are not the last commit's. If
    /// `repair` asks for it, they are written anew.
    ///
    /// # Errors
    /// Writing, which fails the volume.
    pub fn scrub_superblocks(&self, device: DeviceId, repair: Repair) -> Result<u64, StoreError> {
        let _no_other_is_written = self.committing.lock();
        let bad: Vec<_> = {
            let engine = self.read();
            let mut members = self.space.own_devices();
            let Some((_, block)) = members.find(|(id, _)| *id == device) else {
                return Ok(0);
            };
            let wanted = engine.publisher.durable().generation;
            let Some(item) = engine.publisher.durable_devices().get(&device) else {
                return Ok(0);
            };
            let is_bad =
                |offset: &DeviceOffset| match read_copy_of_superblock(&*block, item, *offset) {
                    None => false,
                    Some(Ok(copy)) => copy.generation != wanted,
                    Some(Err(_)) => true,
                };
            let bad = superblock::COPIES.into_iter().filter(is_bad);
            bad.map(|offset| (device, offset)).collect()
        };
        if !bad.is_empty() && repair == Repair::Rewrite {
            self.check_writable()?;
            // A mirror may stand in for a bad primary copy.
            self.flush()
                .and_then(|()| {
                    let is_primary = |(_, offset): &CopyPlace| *offset == superblock::COPIES[0];
                    let (primary, mirrors): (Vec<_>, Vec<_>) =
                        bad.iter().copied().partition(is_primary);
                    self.rewrite_copies([&primary, &mirrors])
                })
                .inspect_err(|error| self.fail(error))?;
        }
        Ok(bad.len() as u64)
    }
}
