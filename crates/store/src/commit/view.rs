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
use crate::space::view_pins::ViewPinsId;
use crate::{Purpose, Reading, Store};
use std::ops::Deref;

/// Keeps the nodes of a view until it is dropped.
#[derive(Debug)]
struct Hold<'s> {
    store: &'s Store,
    id: ViewPinsId,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.store.change().space_map.end_view(self.id);
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
        self.hold.store.read().space_map.holds(self.hold.id)
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
            Ok::<_, StoreError>(wanted.then(|| engine.space_map.begin_view()))
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
