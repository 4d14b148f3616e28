//! Block groups: where data, nodes and the chunk tree lie.
//!
//! Groups of data cover what ext4 uses, and the copies. Groups of nodes lie in
//! free space. What is free between them in large pieces belongs to no group,
//! so that the new volume can use it for whatever it needs.

use crate::error::ConvertError;
use crate::extents::Extents;
use crate::ground::{CELL, Ground, Kind, SLAB, down, up, used_sectors};
use crate::loader::{Counter, Items, places};
use crate::source::Old;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use butterfs_format::{ItemType, Key};
use std::ops::Range;

/// Smaller gaps between data stay in a group.
const GAP_MIN: u64 = 1 << 20;
/// About this many gaps at most are left out of groups.
const GAPS: u64 = 2048;

/// A block group, whose chunk has the same range on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) range: Range<u64>,
    pub(crate) flags: BlockGroupFlags,
    /// Bytes in extents.
    pub(crate) used: u64,
    /// Ranges without extents.
    pub(crate) free: u32,
}

impl Group {
    /// Bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Its item.
    pub(crate) fn item(&self) -> (Key, Vec<u8>) {
        let key = Key::new(self.range.start, ItemType::BLOCK_GROUP_ITEM, self.length());
        let item = BlockGroupItem {
            used: self.used,
            chunk_objectid: CHUNK_OBJECTID,
            flags: self.flags,
        };
        (key, item.encode())
    }
}

/// Where nodes lie.
#[derive(Clone, Debug, Default)]
pub(crate) struct Zones {
    /// For the chunk tree.
    pub(crate) system: Vec<Range<u64>>,
    /// For the others, ascending.
    pub(crate) nodes: Vec<Range<u64>>,
}

/// Nodes that zones must hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) node_size: u64,
    pub(crate) system: u64,
    pub(crate) nodes: u64,
    /// More nodes that there should be room for.
    pub(crate) spare: u64,
}

impl Zones {
    /// Chooses zones among free runs, the longest first.
    ///
    /// # Errors
    /// How many bytes are missing.
    pub(crate) fn choose(runs: &[Range<u64>], wanted: Wanted) -> Result<Self, u64> {
        let node = wanted.node_size;
        let mut runs: Vec<Range<u64>> = runs.to_vec();
        runs.sort_by_key(|run| (std::cmp::Reverse(run.end - run.start), run.start));
        let mut zones = Self::default();
        // Twice the chunk tree, because it is copied before it is changed.
        let least = up(
            (wanted.system.saturating_mul(2).saturating_add(3)) * node,
            CELL,
        );
        let mut left = Vec::new();
        for run in runs {
            let length = run.end - run.start;
            if !zones.system.is_empty() || length < least {
                left.push(run);
                continue;
            }
            let size = [4 << 20, 1 << 20]
                .into_iter()
                .find(|size| *size >= least && *size <= length / 8 && wanted.spare > 0);
            let end = run.start + size.unwrap_or(least);
            zones.system.push(run.start..end);
            left.push(end..run.end);
        }
        let mut missing = match zones.system.is_empty() {
            true => least,
            false => 0,
        };
        let mut needed = wanted.nodes.saturating_add(wanted.spare);
        left.sort_by_key(|run| (std::cmp::Reverse(run.end - run.start), run.start));
        for run in left {
            if needed == 0 {
                break;
            }
            let want = up((needed + 1) * node, CELL);
            let zone = run.start..run.end.min(run.start.saturating_add(want));
            match places(&zone, node) {
                0 => continue,
                count => needed = needed.saturating_sub(count),
            }
            zones.nodes.push(zone);
        }
        missing += needed * node;
        zones.nodes.sort_by_key(|zone| zone.start);
        match missing {
            0 => Ok(zones),
            _ => Err(missing),
        }
    }

    /// The groups of nodes. How much of them is used is not known yet.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let group = |zone: &Range<u64>, flags| Group {
            range: zone.clone(),
            flags,
            used: 0,
            free: 1,
        };
        let system = self.system.iter();
        let system = system.map(|zone| group(zone, BlockGroupFlags::SYSTEM));
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|zone| group(zone, BlockGroupFlags::METADATA));
        system.chain(nodes).collect()
    }
}

/// The groups of data: of what ext4 uses, and of `taken`.
///
/// # Errors
/// Reading bitmaps.
pub(crate) fn data_groups(
    (old, ground): (&Old, &Ground),
    taken: &[Range<u64>],
    zones: &Zones,
) -> Result<Vec<Group>, ConvertError> {
    let mut keep_out: Vec<&Range<u64>> = zones.system.iter().chain(&zones.nodes).collect();
    keep_out.sort_by_key(|zone| zone.start);
    let mut cells = Cells {
        gap: up(GAP_MIN.max(ground.total / GAPS), CELL),
        keep_out,
        groups: Vec::new(),
    };
    let mut taken: Vec<Range<u64>> = taken.to_vec();
    taken.sort_by_key(|range| range.start);
    let mut taken = taken.into_iter().peekable();
    used_sectors(old, &mut |used| {
        while let Some(range) = taken.next_if(|range| range.start < used.start) {
            cells.add(range);
        }
        ground.cut(used, &mut |part, kind| {
            if kind == Kind::Usable {
                cells.add(part);
            }
            Ok(())
        })
    })?;
    for range in taken {
        cells.add(range);
    }
    Ok(cells.groups)
}

struct Cells<'z> {
    gap: u64,
    keep_out: Vec<&'z Range<u64>>,
    groups: Vec<Group>,
}

impl Cells<'_> {
    /// Adds a range, which lies within a slab.
    fn add(&mut self, range: Range<u64>) {
        let range = down(range.start, CELL)..up(range.end, CELL);
        if let Some(last) = self.groups.last_mut() {
            let end = last.range.end;
            let next = self.keep_out.partition_point(|zone| zone.start < end);
            let is_free = self
                .keep_out
                .get(next)
                .is_none_or(|zone| zone.start >= range.start);
            let same_slab = down(last.range.start, SLAB) == down(range.start, SLAB);
            if range.start < end || (same_slab && is_free && range.start - end < self.gap) {
                last.range.end = end.max(range.end);
                return;
            }
        }
        self.groups.push(Group {
            range,
            flags: BlockGroupFlags::DATA,
            used: 0,
            free: 0,
        });
    }
}

/// Visits the free ranges of groups in ascending order.
pub(crate) struct FreeWalk<'g> {
    groups: &'g [Group],
    number: usize,
    at: u64,
}

/// What a walk meets.
pub(crate) enum Met<'g> {
    /// A group begins.
    Group(&'g Group),
    /// A free range of that group.
    Free(usize, Range<u64>),
}

type Meet<'m, 'g> = &'m mut dyn FnMut(Met<'g>) -> Result<(), ConvertError>;

impl<'g> FreeWalk<'g> {
    /// Begins before the first of `groups`, which ascend.
    pub(crate) fn new(groups: &'g [Group], meet: Meet<'_, 'g>) -> Result<Self, ConvertError> {
        let mut walk = Self {
            groups,
            number: 0,
            at: 0,
        };
        walk.enter(meet)?;
        Ok(walk)
    }

    fn enter(&mut self, meet: Meet<'_, 'g>) -> Result<(), ConvertError> {
        let Some(group) = self.groups.get(self.number) else {
            return Ok(());
        };
        // Nodes fill their group from its beginning.
        self.at = match group.flags == BlockGroupFlags::DATA {
            true => group.range.start,
            false => group.range.start.saturating_add(group.used),
        };
        meet(Met::Group(group))
    }

    fn leave(&mut self, meet: Meet<'_, 'g>) -> Result<(), ConvertError> {
        if let Some(group) = self.groups.get(self.number)
            && self.at < group.range.end
        {
            meet(Met::Free(self.number, self.at..group.range.end))?;
        }
        self.number = self.number.saturating_add(1);
        self.enter(meet)
    }

    /// Goes over an extent of data.
    pub(crate) fn extent(
        &mut self,
        range: &Range<u64>,
        meet: Meet<'_, 'g>,
    ) -> Result<(), ConvertError> {
        loop {
            let lost = ConvertError::Fault("an extent lies in no group");
            let group = self.groups.get(self.number).ok_or(lost)?;
            if range.start < group.range.end {
                break;
            }
            self.leave(meet)?;
        }
        if self.at < range.start {
            meet(Met::Free(self.number, self.at..range.start))?;
        }
        self.at = range.end;
        Ok(())
    }

    /// Goes to the end.
    pub(crate) fn finish(mut self, meet: Meet<'_, 'g>) -> Result<(), ConvertError> {
        while self.number < self.groups.len() {
            self.leave(meet)?;
        }
        Ok(())
    }
}

/// Counts use and free ranges of all groups, which ascend.
///
/// # Errors
/// As [`Extents::each`].
pub(crate) fn tally(groups: &mut [Group], extents: &Extents<'_>) -> Result<(), ConvertError> {
    let fixed = groups.to_vec();
    let mut used = vec![0_u64; groups.len()];
    let mut free = vec![0_u32; groups.len()];
    let mut meet = |met: Met<'_>| {
        if let Met::Free(number, _) = met
            && let Some(count) = free.get_mut(number)
        {
            *count = count.saturating_add(1);
        }
        Ok(())
    };
    let mut walk = FreeWalk::new(&fixed, &mut meet)?;
    extents.each(&mut |extent| {
        walk.extent(&extent.range, &mut meet)?;
        if let Some(sum) = used.get_mut(walk.number) {
            *sum = sum.saturating_add(extent.length());
        }
        Ok(())
    })?;
    walk.finish(&mut meet)?;
    for ((group, used), free) in groups.iter_mut().zip(used).zip(free) {
        if group.flags == BlockGroupFlags::DATA {
            group.used = used;
            group.free = free;
        }
    }
    Ok(())
}

/// Counts the nodes of the free-space tree.
pub(crate) fn count_free_space(groups: &[Group], node_size: u32) -> u64 {
    let mut counter = Counter::new(node_size);
    for group in groups {
        counter.size(FreeSpaceInfo::SIZE);
        for _ in 0..group.free {
            counter.size(0);
        }
    }
    counter.nodes()
}

/// Adds the items of the free-space tree.
///
/// # Errors
/// As [`Extents::each`]; writing.
pub(crate) fn free_space(
    groups: &[Group],
    extents: &Extents<'_>,
    items: &mut dyn Items,
) -> Result<(), ConvertError> {
    let mut meet = |met: Met<'_>| match met {
        Met::Group(group) => {
            let info = FreeSpaceInfo {
                extents: group.free,
                flags: FreeSpaceFlags::default(),
            };
            let (start, length) = (group.range.start, group.length());
            items.item(
                Key::new(start, ItemType::FREE_SPACE_INFO, length),
                info.encode(),
            )
        }
        Met::Free(_, range) => {
            let length = range.end - range.start;
            let key = Key::new(range.start, ItemType::FREE_SPACE_EXTENT, length);
            items.item(key, Vec::new())
        }
    };
    let mut walk = FreeWalk::new(groups, &mut meet)?;
    extents.each(&mut |extent| walk.extent(&extent.range, &mut meet))?;
    walk.finish(&mut meet)
}
