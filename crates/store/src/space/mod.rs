//! The space of a volume, and how much of it can be given out.
//!
//! Owns chunks, block groups and their totals (`block_groups`), what is free in
//! them (`allocate`), the space that was freed and cannot be used again yet
//! (`pins`, `view_pins`), the promises of space (`reserve`), and the tree that
//! records free space (`free_space_tree`). Does not own what lies in the space:
//! extents and their references are in the extent tree, devices in `volume`.
//!
//! Invariants: each change of a block group goes through [`BlockGroups::change`],
//! which keeps the totals. Only ranges in the free set of a loaded group are
//! given out. Space that a generation frees is not given out before the
//! generation's superblock is durable, nor while a view reads it. A node is
//! written only where its space was given out ([`SpaceMap::verify_given_out`]).

mod allocate;
pub mod balance_estimate;
pub mod block_group;
pub mod block_groups;
pub mod chunks;
pub mod free_space_tree;
mod full_stripes;
pub mod gap;
pub mod kind;
mod pins;
pub mod ranges;
mod remake;
pub mod reserve;
mod unused;
pub mod view_pins;
mod views;

use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use block_group::BlockGroup;
use block_groups::BlockGroups;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use butterfs_volume::stripe_length;
use kind::SpaceKind;
use ranges::RangeSet;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use view_pins::{ViewPins, ViewPinsId};

/// Whether the free-space tree is to be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remake {
    /// It is, before anything else.
    Due,
    /// It is not, or it was.
    No,
}

/// What a volume that opens does with its free-space tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeSpaceTree {
    /// It is valid and kept.
    Kept,
    /// It is made anew before anything else.
    Remade,
    /// There is none, or it is not valid.
    Ignored,
}

/// The new chunks of one kind that there is room for.
#[derive(Clone, Copy, Debug)]
struct Unallocated {
    /// Bytes of all of them.
    bytes: u64,
    /// Bytes of the next one.
    next: u64,
}

/// Room for new chunks, per kind. It is known until a chunk is made or removed.
#[derive(Debug, Default)]
struct UnallocatedCache(parking_lot::Mutex<[Option<Unallocated>; 3]>);

impl UnallocatedCache {
    /// Room for chunks of `kind`; `look` finds it if it is not known.
    fn get(&self, kind: SpaceKind, look: impl FnOnce() -> Unallocated) -> Unallocated {
        *self.0.lock()[kind as usize].get_or_insert_with(look)
    }

    /// Forgets it, because a chunk was made or removed.
    fn forget(&mut self) {
        *self.0.get_mut() = [None; 3];
    }
}

/// Chunks, block groups, and which of their space can be given out.
#[derive(Debug)]
pub struct SpaceMap {
    /// Chunks by their addresses.
    chunks: BTreeMap<Logical, Chunk>,
    /// Block groups, with totals.
    groups: BlockGroups,
    /// Groups whose space contradicts itself: nothing is written to them while
    /// the volume is open, whatever else makes groups writable again.
    distrusted: BTreeSet<Logical>,
    /// The group that was allocated from last, per kind.
    current: [Option<Logical>; 3],
    /// Room for new chunks.
    unallocated_cache: UnallocatedCache,
    /// The flags that new chunks get, and that block groups must have to be
    /// allocated from, per kind, while a conversion is under way.
    new_profiles: [Option<BlockGroupFlags>; 3],
    /// The ends beyond which devices take no new chunks, while they shrink.
    device_ends: FxHashMap<DeviceId, u64>,
    /// The free-space tree is there, valid and kept.
    free_space_tree: bool,
    /// Whether it is to be made anew before anything else; it is not believed
    /// until then.
    remake: Remake,
    /// Gaps between block groups for which that tree has items; the next
    /// commit removes them.
    orphan_free_space: Vec<std::ops::Range<u64>>,
    /// Freed in the running generation.
    pinned: RangeSet,
    /// Space freed in the generation that is being published.
    pinned_writing: RangeSet,
    /// Space freed by commits, and kept from being overwritten while somebody
    /// reads an older state.
    view_pins: Option<ViewPins>,
    /// The reader of an older state that came last.
    last_view_pins: ViewPinsId,
}

impl SpaceMap {
    /// No space yet.
    pub(crate) fn new(tree: FreeSpaceTree) -> Self {
        Self {
            chunks: BTreeMap::new(),
            groups: BlockGroups::default(),
            distrusted: BTreeSet::new(),
            current: [None; 3],
            unallocated_cache: UnallocatedCache::default(),
            new_profiles: [None; 3],
            device_ends: FxHashMap::default(),
            free_space_tree: tree == FreeSpaceTree::Kept,
            remake: match tree {
                FreeSpaceTree::Remade => Remake::Due,
                FreeSpaceTree::Kept | FreeSpaceTree::Ignored => Remake::No,
            },
            orphan_free_space: Vec::new(),
            pinned: RangeSet::default(),
            pinned_writing: RangeSet::default(),
            view_pins: None,
            last_view_pins: ViewPinsId::default(),
        }
    }

    /// Chunks by their addresses.
    #[must_use]
    pub(crate) const fn chunks(&self) -> &BTreeMap<Logical, Chunk> {
        &self.chunks
    }

    /// The chunk that begins at `at` or before it.
    pub(crate) fn chunk_before(&self, at: Logical) -> Option<(&Logical, &Chunk)> {
        self.chunks.range(..=at).next_back()
    }

    /// Takes over the chunks that the chunk tree has.
    pub(crate) fn set_chunks(&mut self, chunks: BTreeMap<Logical, Chunk>) {
        self.chunks = chunks;
    }

    /// Block groups, with totals.
    pub(crate) const fn groups(&self) -> &BlockGroups {
        &self.groups
    }

    /// Takes over the block groups that the trees have.
    pub(crate) fn set_groups(&mut self, groups: BlockGroups) {
        self.groups = groups;
    }

    /// Adds a block group.
    pub(crate) fn insert_group(&mut self, group: BlockGroup) {
        self.groups.insert(group);
    }

    /// Allocates nothing from the block group at `start` any more.
    pub(crate) fn close_group(&mut self, start: Logical) {
        self.groups.change(start, |group| group.read_only = true);
        self.forget_current(start);
    }

    /// Allocates from the block group at `start` again, unless its space
    /// contradicts itself.
    pub(crate) fn reopen_group(&mut self, start: Logical) {
        let stays = self.distrusted.contains(&start);
        self.groups.change(start, |group| group.read_only = stays);
    }

    /// The next allocations do not begin with the block group at `start`.
    fn forget_current(&mut self, start: Logical) {
        for current in &mut self.current {
            current.take_if(|at| *at == start);
        }
    }

    /// Gives new chunks of `kind` these flags, or ends that.
    pub(crate) fn set_flags_of_new_chunks(
        &mut self,
        kind: SpaceKind,
        flags: Option<BlockGroupFlags>,
    ) {
        self.new_profiles[kind as usize] = flags;
        self.unallocated_cache.forget();
        self.current = [None; 3];
    }

    /// Forgets how much room there is for new chunks, because devices changed.
    pub(crate) fn forget_unallocated(&mut self) {
        self.unallocated_cache.forget();
    }

    /// Makes no chunk beyond `end` of a device, or ends that.
    pub(crate) fn limit_device(&mut self, device: DeviceId, end: Option<u64>) {
        match end {
            Some(end) => self.device_ends.insert(device, end),
            None => self.device_ends.remove(&device),
        };
        self.unallocated_cache.forget();
    }

    /// Whether the free-space tree is there, valid and kept.
    pub(crate) const fn has_free_space_tree(&self) -> bool {
        self.free_space_tree
    }

    /// Whether that tree is to be made anew before anything else.
    pub(crate) fn remakes_free_space(&self) -> bool {
        self.remake == Remake::Due
    }

    /// Says whether that tree is to be made anew.
    pub(crate) const fn set_remake(&mut self, remake: Remake) {
        self.remake = remake;
    }

    /// Notes gaps between block groups for which that tree has items.
    pub(crate) fn note_orphan_free_space(&mut self, gaps: Vec<Range<u64>>) {
        self.orphan_free_space = gaps;
    }

    /// Those gaps. The caller removes the items.
    pub(crate) fn take_orphan_free_space(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.orphan_free_space)
    }

    /// Whether no record of space waits for its tree.
    pub(crate) fn is_recorded(&self) -> bool {
        self.orphan_free_space.is_empty() && self.groups.first_new().is_none()
    }

    /// The items of the block groups that changed. They count as written from
    /// now on.
    pub(crate) fn take_changed_items(&mut self) -> Vec<(Key, BlockGroupItem)> {
        let mut items = Vec::new();
        for start in self.groups.dirty() {
            self.groups.change(start, |group| {
                if !group.is_new() {
                    group.dirty = false;
                    items.push((group.item_key(), group.item()));
                }
            });
        }
        items
    }

    /// Chunks that the superblock lists.
    pub(crate) fn system_chunks(&self) -> Vec<(Logical, Chunk)> {
        self.chunks
            .iter()
            .filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::SYSTEM))
            .map(|(logical, chunk)| (*logical, chunk.clone()))
            .collect()
    }

    /// Bytes of devices that the chunk at `start` takes.
    #[must_use]
    pub fn device_bytes(&self, start: Logical) -> u64 {
        self.chunks.get(&start).map_or(0, |chunk| {
            stripe_length(chunk).saturating_mul(chunk.stripes.len() as u64)
        })
    }

    /// Whether blocks at this address may be overwritten in place: not while
    /// they are being relocated.
    pub(crate) fn is_being_relocated(&self, logical: Logical) -> bool {
        let group = self.groups.containing(logical);
        group.is_some_and(|group| group.read_only)
    }

    /// Chunks that have a part beyond `end` of a device, with the end of that
    /// part.
    pub(crate) fn chunks_beyond(
        &self,
        device: DeviceId,
        end: u64,
    ) -> impl Iterator<Item = (u64, Logical)> {
        self.chunks.iter().filter_map(move |(logical, chunk)| {
            let stripes = chunk.stripes.iter();
            let ends = stripes
                .filter(|stripe| stripe.device == device)
                .map(|stripe| stripe.offset.get().saturating_add(stripe_length(chunk)));
            let last = ends.max().filter(|last| *last > end)?;
            Some((last, *logical))
        })
    }

    /// The end of the last chunk on a device.
    pub(crate) fn allocated_end(&self, device: DeviceId) -> u64 {
        let ends = self.chunks.values().flat_map(|chunk| {
            let stripes = chunk.stripes.iter();
            let stripes = stripes.filter(|stripe| stripe.device == device);
            stripes.map(|stripe| stripe.offset.get().saturating_add(stripe_length(chunk)))
        });
        ends.max().unwrap_or(0)
    }

    /// Nothing is written to a block group any more: what is known about it
    /// contradicts itself.
    fn distrust(&mut self, start: Logical, error: &StoreError) {
        tracing::error!(
            group = %start,
            %error,
            "nothing more is written to a block group, because what is known of its space \
             contradicts itself; unmount the volume and run `butterfs check` on it, and if that \
             finds only the free-space tree wrong, mount it with -o clear_cache"
        );
        self.forget_current(start);
        self.distrusted.insert(start);
        self.groups.change(start, |group| {
            group.set_free(RangeSet::default());
            group.read_only = true;
        });
    }

    /// Calls `visit` for the part of `range` in each block group.
    pub(crate) fn for_each_group_part(
        &mut self,
        range: &Range<u64>,
        mut visit: impl FnMut(&mut BlockGroup, Range<u64>),
    ) -> Result<(), StoreError> {
        let mut at = range.start;
        while at < range.end {
            let Some(group) = self.groups.containing(Logical(at)) else {
                return Err(corrupt_item(
                    TreeId::EXTENT,
                    Key::new(at, ItemType::EXTENT_ITEM, range.end - at),
                    ItemFault::InNoGroup,
                ));
            };
            let (start, end) = (group.start, range.end.min(group.end()));
            self.groups.change(start, |group| visit(group, at..end));
            at = end;
        }
        Ok(())
    }

    /// Errors unless each of these addresses has space of `length` that was
    /// given out. What is written elsewhere would overwrite what belongs to
    /// somebody else.
    pub(crate) fn verify_given_out(
        &self,
        addresses: impl IntoIterator<Item = Logical>,
        length: u64,
    ) -> Result<(), StoreError> {
        for logical in addresses {
            let group = self.groups.containing(logical);
            let free = group.and_then(|group| group.free.as_ref());
            let range = logical.get()..logical.get() + length;
            if group.is_none() || free.is_some_and(|free| free.overlapping(range).next().is_some())
            {
                return Err(StoreError::Internal("a changed node lies in free space"));
            }
        }
        Ok(())
    }
}
