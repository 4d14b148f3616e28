//! Discarding free space on request (FITRIM).
//!
//! Owns what is discarded: free ranges of block groups, and parts of devices
//! that no chunk has. All of it was free in the last commit too.
//!
//! While space is being discarded, none is given out: a step holds the engine
//! for reading. Steps are small, because changes wait for them.

use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::ranges::RangeSet;
use butterfs_device::DeviceRange;
use butterfs_format::superblock::{COPIES, COPY_SPAN};
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use std::ops::Range;

/// Bytes that a step discards at most.
const STEP_BYTES: u64 = 64 << 20;
/// Ranges that a step discards at most.
const STEP_RANGES: usize = 64;
/// The beginning of a device is left to boot loaders.
const DEVICE_START: u64 = 1 << 20;

/// What free space to discard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trim {
    /// The range in the volume's logical space. Space without a chunk has no
    /// logical address and is always discarded.
    pub window: Range<u64>,
    /// Shorter free ranges are left alone.
    pub length_min: u64,
}

impl Trim {
    /// All of it.
    pub const EVERYTHING: Self = Self {
        window: 0..u64::MAX,
        length_min: 1,
    };
}

/// Takes ranges until a step is full.
struct Step {
    ranges: Vec<Range<u64>>,
    left: u64,
}

impl Step {
    const fn new() -> Self {
        Self {
            ranges: Vec::new(),
            left: STEP_BYTES,
        }
    }

    /// False when the step is full.
    fn take(&mut self, range: &Range<u64>) -> bool {
        let end = range.end.min(range.start.saturating_add(self.left));
        self.left -= end - range.start;
        self.ranges.push(range.start..end);
        self.left > 0 && self.ranges.len() < STEP_RANGES
    }

    fn of(free: impl Iterator<Item = Range<u64>>, wanted: &Trim) -> Self {
        let mut step = Self::new();
        for range in free {
            if range.end - range.start >= wanted.length_min && !step.take(&range) {
                break;
            }
        }
        step
    }

    /// Where the next step begins.
    fn end(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.end)
    }

    fn bytes(&self) -> u64 {
        STEP_BYTES - self.left
    }
}

impl Store {
    /// Discards free space on the devices; gives how many bytes.
    ///
    /// # Errors
    /// The volume is not writable; the free-space tree cannot be read; a device
    /// failed. A device that cannot discard is no error.
    pub fn trim(&self, wanted: &Trim) -> Result<u64, StoreError> {
        self.check_writable()?;
        self.settle_copies()?;
        let groups: Vec<Range<u64>> = {
            let engine = self.read();
            let spans = engine.space_map.groups().values();
            spans
                .map(|group| group.start.get()..group.end())
                .filter(|span| span.start < wanted.window.end && wanted.window.start < span.end)
                .collect()
        };
        let mut trimmed = 0;
        for span in groups {
            trimmed += self.trim_group(&span, wanted)?;
        }
        Ok(trimmed + self.trim_unallocated(wanted)?)
    }

    fn trim_group(&self, span: &Range<u64>, wanted: &Trim) -> Result<u64, StoreError> {
        let end = span.end.min(wanted.window.end);
        let mut at = span.start.max(wanted.window.start);
        let mut trimmed = 0;
        while at < end {
            self.check_writable()?;
            self.engine.write().load_group_at(Logical(span.start))?;
            let engine = self.engine.read();
            let group = engine.space_map.groups().get(Logical(span.start));
            // The group was removed meanwhile, or must not be written to.
            let Some(free) = group
                .filter(|group| !group.read_only)
                .and_then(|group| group.free.as_ref())
            else {
                break;
            };
            let step = Step::of(free.overlapping(at..end), wanted);
            for range in &step.ranges {
                engine.verify_unused(range)?;
                self.space
                    .discard(Logical(range.start), range.end - range.start)?;
            }
            trimmed += step.bytes();
            let Some(next) = step.end() else { break };
            at = next;
        }
        Ok(trimmed)
    }

    fn trim_unallocated(&self, wanted: &Trim) -> Result<u64, StoreError> {
        let devices: Vec<DeviceId> = self.space.own_devices().map(|(id, _)| id).collect();
        let mut trimmed = 0;
        for device in devices {
            let mut at = DEVICE_START;
            loop {
                self.check_writable()?;
                let engine = self.engine.read();
                let free = engine.unallocated_of(device);
                let step = Step::of(free.overlapping(at..u64::MAX), wanted);
                let mut members = self.space.own_devices();
                let Some((_, block)) = members.find(|(id, _)| *id == device) else {
                    break;
                };
                for range in &step.ranges {
                    let start = DeviceOffset(range.start);
                    block.discard(DeviceRange::new(start, range.end - range.start))?;
                }
                trimmed += step.bytes();
                let Some(next) = step.end() else { break };
                at = next;
            }
        }
        Ok(trimmed)
    }
}

impl Engine {
    /// Parts of a device that no chunk and no superblock copy has.
    fn unallocated_of(&self, device: DeviceId) -> RangeSet {
        let mut free = RangeSet::default();
        for space in self.device_spaces() {
            if space.device != device || space.size <= DEVICE_START {
                continue;
            }
            free.insert(DEVICE_START..space.size);
            for range in space.allocated {
                free.remove(range);
            }
        }
        for copy in COPIES {
            free.remove(copy.get()..copy.get() + COPY_SPAN);
        }
        free
    }
}
