//! Space that is kept because somebody reads an older state.

use crate::space::ranges::RangeSet;

/// Space of nodes that is held for views.
#[derive(Debug)]
pub(crate) struct ViewPins {
    pub(crate) id: ViewPinsId,
    pub(crate) views: usize,
    /// Freed by commits since the first of the views.
    pub(crate) freed: RangeSet,
}

/// A period of holding. No other period gets its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewPinsId(u64);

impl ViewPinsId {
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
