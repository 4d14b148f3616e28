//! Space that is kept because somebody reads an older state.

use super::ranges::RangeSet;

/// Space of nodes that is held for views.
#[derive(Debug)]
pub(super) struct ViewPins {
    pub(super) id: ViewPinsId,
    pub(super) views: usize,
    /// Freed by commits since the first of the views.
    pub(super) freed: RangeSet,
}

/// A period of holding. No other period gets its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewPinsId(u64);

impl ViewPinsId {
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
