//! Operations on a whole volume, one at a time.

use crate::Store;
use crate::error::StoreError;
use crate::exclusive_kind::ExclusiveKind;

/// While this lives, nothing else of its kind begins.
#[derive(Debug)]
#[must_use = "it lasts until it is dropped"]
pub struct Exclusive<'s>(&'s Store);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        *self.0.exclusive.lock() = None;
    }
}

impl Store {
    /// Begins an operation that excludes all others of its kind.
    ///
    /// # Errors
    /// [`StoreError::Exclusive`] while another one is under way.
    pub fn begin_exclusive(&self, kind: ExclusiveKind) -> Result<Exclusive<'_>, StoreError> {
        let mut now = self.exclusive.lock();
        match *now {
            Some(other) => Err(StoreError::Exclusive(other)),
            None => {
                *now = Some(kind);
                Ok(Exclusive(self))
            }
        }
    }

    /// What is under way, if anything is.
    pub fn exclusive(&self) -> Option<ExclusiveKind> {
        *self.exclusive.lock()
    }
}
