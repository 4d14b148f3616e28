//! Allocating nodes side by side.
//!
//! Addresses in one free range lie between the same two extents. So the records
//! of nodes that are allocated there go to one place of the extent tree.

use super::SpaceMap;
use super::kind::SpaceKind;
use butterfs_format::Logical;

/// A free range with room for this many nodes is enough.
const NODES: u64 = 64;

/// Where nodes are allocated from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationPlace {
    /// The group that was allocated from last.
    current: Option<Logical>,
    /// The group that has the gap, and its cursor.
    group: (Logical, u64),
}

impl SpaceMap {
    /// Lets nodes be allocated from the start of a large free range on. Gives
    /// the address of the first one, and the place for [`SpaceMap::leave_gap`].
    /// `None` if there is no suitable range.
    pub(crate) fn aim_at_gap(&mut self, node_size: u64) -> Option<(Logical, AllocationPlace)> {
        let kind = SpaceKind::Metadata;
        let wanted = self.new_profiles[kind as usize];
        let current = self.current[kind as usize];
        let gap_of = |start: Logical| {
            let group = self.groups.get(start).filter(|group| !group.read_only)?;
            let suitable = wanted.is_none_or(|flags| group.flags == flags);
            let range = group.free.as_ref()?.greatest_range().filter(|_| suitable)?;
            let first = range.start.next_multiple_of(node_size);
            let nodes = range.end.checked_sub(first)? / node_size;
            (nodes > 0).then_some((start, first, nodes))
        };
        let near = current.and_then(gap_of);
        let roomiest = || gap_of(self.groups.roomiest(kind)?.1);
        let found = near.filter(|(.., nodes)| *nodes >= NODES);
        let (start, first, _) = found.or_else(roomiest).or(near)?;
        let before = self
            .groups
            .change(start, |group| std::mem::replace(&mut group.cursor, first))?;
        self.current[kind as usize] = Some(start);
        let place = AllocationPlace {
            current,
            group: (start, before),
        };
        Some((Logical(first), place))
    }

    /// Lets nodes be allocated where they were before.
    pub(crate) fn leave_gap(&mut self, place: AllocationPlace) {
        let (start, cursor) = place.group;
        self.groups.change(start, |group| group.cursor = cursor);
        self.current[SpaceKind::Metadata as usize] = place.current;
    }
}
