//! The space of a volume, and how much of it can be given out.
//!
//! Owns chunks, block groups and their totals, and the space that was freed and
//! cannot be used again yet. Says nothing of what lies in the space.

use crate::space::block_groups::BlockGroups;
use crate::space::kind::SpaceKind;
use crate::space::ranges::RangeSet;
use crate::view_pins::ViewPins;
use crate::view_pins::ViewPinsId;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::{DeviceId, Logical};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The new chunks of one kind that there is room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unallocated {
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    /// Bytes of the next one.
    pub(crate) next: u64,
}

/// Room for new chunks, per kind. It is known until a chunk is made or removed.
#[derive(Debug, Default)]
pub(crate) struct UnallocatedCache(parking_lot::Mutex<[Option<Unallocated>; 3]>);

impl UnallocatedCache {
    /// Room for chunks of `kind`; `look` finds it if it is not known.
    pub(crate) fn get(&self, kind: SpaceKind, look: impl FnOnce() -> Unallocated) -> Unallocated {
        *self.0.lock()[kind as usize].get_or_insert_with(look)
    }

    /// Forgets it, because a chunk was made or removed.
    pub(crate) fn forget(&mut self) {
        *self.0.get_mut() = [None; 3];
    }
}

/// Chunks, block groups, and which of their space can be given out.
#[derive(Debug, Default)]
pub(crate) struct Allocation {
    /// Chunks by their addresses.
    pub(crate) chunks: BTreeMap<Logical, Chunk>,
    /// Block groups, with totals.
    pub(crate) groups: BlockGroups,
    /// Groups whose space contradicts itself: nothing is written to them while
    /// the volume is open, whatever else makes groups writable again.
    pub(crate) distrusted: BTreeSet<Logical>,
    /// The group that was allocated from last, per kind.
    pub(crate) current: [Option<Logical>; 3],
    /// Room for new chunks.
    pub(crate) unallocated_cache: UnallocatedCache,
    /// The flags that new chunks get, and that block groups must have to be
    /// allocated from, per kind, while a conversion is under way.
    pub(crate) new_profiles: [Option<BlockGroupFlags>; 3],
    /// The ends beyond which devices take no new chunks, while they shrink.
    pub(crate) device_ends: FxHashMap<DeviceId, u64>,
    /// The free-space tree is there, valid and kept.
    pub(crate) free_space_tree: bool,
    /// It is to be made anew before anything else, and is not believed until
    /// then.
    pub(crate) remakes_free_space: bool,
    /// Gaps between block groups for which that tree has items; the next
    /// commit removes them.
    pub(crate) orphan_free_space: Vec<std::ops::Range<u64>>,
    /// Freed in the running generation.
    pub(crate) pinned: RangeSet,
    /// Space freed in the generation that is being published.
    pub(crate) pinned_writing: RangeSet,
    /// Space freed by commits, and kept from being overwritten while somebody
    /// reads an older state.
    pub(crate) view_pins: Option<ViewPins>,
    /// The reader of an older state that came last.
    pub(crate) last_view_pins: ViewPinsId,
}
