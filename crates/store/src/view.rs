//! The last commit, read for a while.
//!
//! Owns the nodes of a commit that somebody reads. Later commits are kept from
//! overwriting them, so a reader delays nobody.
//!
//! Bounds: nodes are kept only in space that nothing else needs. When more
//! space is needed, theirs is given back, and reading a view may fail from then
//! on. A view never gives wrong content, because a node says which generation
//! wrote it. A view heals nothing, because a copy that differs may be newer.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::block_group::BlockGroup;
use crate::space::kind::SpaceKind;
use crate::space::ranges::RangeSet;
use crate::view_pins::ViewPins;
use crate::view_pins::ViewPinsId;
use crate::{Purpose, Reading, Store};
use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use std::ops::{Deref, Range};

/// Space of nodes that may always be held.
const HELD_LEAST: u64 = 4 << 20;

/// Keeps the nodes of a view until it is dropped.
#[derive(Debug)]
struct Hold<'s> {
    store: &'s Store,
    id: ViewPinsId,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.store.change().end_hold(self.id);
    }
}

/// The volume as a commit left it. Nothing changes it.
#[derive(Debug)]
pub struct View<'s> {
    engine: Engine,
    hold: Hold<'s>,
}

impl View<'_> {
    /// False if the volume needed the space of its nodes. An error of reading
    /// then says nothing about the volume.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.hold.store.read().holds(self.hold.id)
    }

    pub(crate) const fn hold_id(&self) -> ViewPinsId {
        self.hold.id
    }
}

impl Deref for View<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// A volume that does not change while it is looked at.
#[derive(Debug)]
pub enum Steady<'s> {
    /// It is open for reading alone.
    Still(Reading<'s>),
    /// Its last commit.
    View(Box<View<'s>>),
}

impl Steady<'_> {
    /// As [`View::is_whole`].
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Still(_) => true,
            Self::View(view) => view.is_whole(),
        }
    }
}

impl Deref for Steady<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        match self {
            Self::Still(engine) => engine,
            Self::View(view) => view,
        }
    }
}

impl Store {
    /// The volume as it is now. The caller may read it for as long as that
    /// takes, while others change the volume. Commits, if the volume can be
    /// written.
    ///
    /// # Errors
    /// No space; reading, writing.
    pub fn steady(&self) -> Result<Steady<'_>, StoreError> {
        if self.check_writable().is_err() {
            return Ok(Steady::Still(self.read()));
        }
        let view = self.commit_with_view(0, |_| Ok(true))?;
        let view = view.ok_or(StoreError::Internal("a view that was wanted"))?;
        Ok(Steady::View(Box::new(view)))
    }

    /// [`Store::commit_with`], and a view of that commit if `change` asks for
    /// one.
    pub(crate) fn commit_with_view(
        &self,
        nodes: usize,
        change: impl FnOnce(&mut Engine) -> Result<bool, StoreError>,
    ) -> Result<Option<View<'_>>, StoreError> {
        self.write_back()?;
        let _one_at_a_time = self.lock_commits();
        let id = self.commit_with_alone((nodes, Purpose::Grow), |engine| {
            let wanted = change(engine)?;
            Ok::<_, StoreError>(wanted.then(|| engine.begin_hold()))
        })?;
        let Some(id) = id else {
            return Ok(None);
        };
        let hold = Hold { store: self, id };
        // No other commit comes in between.
        let engine = crate::open::view(&self.engine.read())?;
        Ok(Some(View { engine, hold }))
    }
}

impl Engine {
    /// From now on, keeps nodes unchanged that commits free.
    fn begin_hold(&mut self) -> ViewPinsId {
        if let Some(held) = &mut self.allocation.view_pins {
            held.views += 1;
            return held.id;
        }
        self.allocation.last_view_pins = self.allocation.last_view_pins.next();
        self.allocation.view_pins = Some(ViewPins {
            id: self.allocation.last_view_pins,
            views: 1,
            freed: RangeSet::default(),
        });
        self.allocation.last_view_pins
    }

    /// True while nothing that was held since then was given back.
    pub(crate) fn holds(&self, id: ViewPinsId) -> bool {
        self.allocation
            .view_pins
            .as_ref()
            .is_some_and(|held| held.id == id)
    }

    fn end_hold(&mut self, id: ViewPinsId) {
        if let Some(held) = self
            .allocation
            .view_pins
            .as_mut()
            .filter(|held| held.id == id)
        {
            held.views -= 1;
            if held.views == 0 {
                self.release_nodes();
            }
        }
    }

    fn release_nodes(&mut self) {
        let held = self.allocation.view_pins.take();
        let ranges: Vec<_> = held.iter().flat_map(|held| held.freed.iter()).collect();
        self.give_back_pinned(&ranges);
    }

    /// Lets the space that a published commit freed be used again, unless it is
    /// held.
    pub(crate) fn unpin(&mut self, freed: &[Range<u64>]) {
        let Some(mut held) = self.allocation.view_pins.take() else {
            return self.give_back_pinned(freed);
        };
        let holds_nodes = |group: &BlockGroup| group.flags.contains(BlockGroupFlags::METADATA);
        let (kept, rest): (Vec<_>, Vec<_>) = freed.iter().cloned().partition(|range| {
            let group = self.allocation.groups.containing(Logical(range.start));
            group.is_some_and(holds_nodes)
        });
        for range in kept {
            held.freed.insert(range);
        }
        self.give_back_pinned(&rest);
        let free = self.allocation.groups.available(SpaceKind::Metadata);
        let free = free.saturating_add(HELD_LEAST);
        let is_too_much = held.freed.total() > free;
        self.allocation.view_pins = Some(held);
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
        let group = self.allocation.groups.containing(Logical(range.start));
        let has_nodes = group.is_some_and(|group| group.flags.contains(BlockGroupFlags::METADATA));
        self.allocation.view_pins.is_some() && has_nodes
    }
}
