//! Space that views of older commits keep from being used again.

use super::SpaceMap;
use super::block_group::BlockGroup;
use super::kind::SpaceKind;
use super::ranges::RangeSet;
use super::view_pins::{ViewPins, ViewPinsId};
use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use std::ops::Range;

/// Space of nodes that may always be held.
const HELD_LEAST: u64 = 4 << 20;

impl SpaceMap {
    /// From now on, keeps nodes unchanged that commits free.
    pub(crate) fn begin_view(&mut self) -> ViewPinsId {
        if let Some(held) = &mut self.view_pins {
            held.views += 1;
            return held.id;
        }
        self.last_view_pins = self.last_view_pins.next();
        self.view_pins = Some(ViewPins {
            id: self.last_view_pins,
            views: 1,
            freed: RangeSet::default(),
        });
        self.last_view_pins
    }

    /// True while nothing that was held since then was given back.
    pub(crate) fn holds(&self, id: ViewPinsId) -> bool {
        self.view_pins.as_ref().is_some_and(|held| held.id == id)
    }

    /// A reader of that period is done.
    pub(crate) fn end_view(&mut self, id: ViewPinsId) {
        if let Some(held) = self.view_pins.as_mut().filter(|held| held.id == id) {
            held.views -= 1;
            if held.views == 0 {
                self.release_nodes();
            }
        }
    }

    fn release_nodes(&mut self) {
        let held = self.view_pins.take();
        let ranges: Vec<_> = held.iter().flat_map(|held| held.freed.iter()).collect();
        self.give_back_pinned(&ranges);
    }

    /// Lets the space that a published commit freed be used again, unless it is
    /// held.
    fn unpin(&mut self, freed: &[Range<u64>]) {
        let Some(mut held) = self.view_pins.take() else {
            return self.give_back_pinned(freed);
        };
        let holds_nodes = |group: &BlockGroup| group.flags.contains(BlockGroupFlags::METADATA);
        let (kept, rest): (Vec<_>, Vec<_>) = freed.iter().cloned().partition(|range| {
            let group = self.groups.containing(Logical(range.start));
            group.is_some_and(holds_nodes)
        });
        for range in kept {
            held.freed.insert(range);
        }
        self.give_back_pinned(&rest);
        let free = self.groups.available(SpaceKind::Metadata);
        let free = free.saturating_add(HELD_LEAST);
        let is_too_much = held.freed.total() > free;
        self.view_pins = Some(held);
        if is_too_much {
            self.release_nodes();
        }
    }

    fn give_back_pinned(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            let result = self.for_each_group_part(range, |group, part| {
                group.pinned = group.pinned.saturating_sub(part.end - part.start);
                group.release(part);
            });
            debug_assert!(result.is_ok(), "pinned space lies in block groups");
        }
    }

    /// True when a range must not be discarded although it is free.
    pub(crate) fn is_kept(&self, range: &Range<u64>) -> bool {
        let group = self.groups.containing(Logical(range.start));
        let has_nodes = group.is_some_and(|group| group.flags.contains(BlockGroupFlags::METADATA));
        self.view_pins.is_some() && has_nodes
    }

    /// Lets what the published commit freed be used again, unless a view reads
    /// it.
    pub(crate) fn unpin_published(&mut self) {
        let freed: Vec<_> = std::mem::take(&mut self.pinned_writing).iter().collect();
        self.unpin(&freed);
    }
}
