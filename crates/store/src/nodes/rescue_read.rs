//! Opening and reading past damage: where that was asked for, and without being
//! asked where no file is concerned.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::rescue::{OnFault, Rescue};

impl Engine {
    /// Which damage is passed over.
    #[must_use]
    pub const fn rescue(&self) -> Rescue {
        self.rescue
    }

    /// How many nodes were read though their checksum is wrong. Everything that
    /// came from them may be wrong: names, metadata, places of data.
    #[must_use]
    pub fn nodes_passed_over(&self) -> usize {
        self.nodes.passed_over()
    }

    /// Passes over damage of trees that reading files does not need.
    ///
    /// # Errors
    /// That of `result`, unless it is damage that is to be passed over. If it is
    /// damage, the error says how it can be passed over.
    pub(crate) fn pass_over(&self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        match result {
            Err(error) if self.rescue.roots == OnFault::PassOver && error.is_damage() => {
                tracing::warn!(%error, "damage is passed over");
                Ok(())
            }
            Err(error @ StoreError::PassableDamage(_)) => Err(error),
            Err(error) if error.is_damage() => Err(StoreError::PassableDamage(Box::new(error))),
            other => other,
        }
    }

    /// Opens the volume without something optional that is damaged, which no
    /// file needs. `follows` says in the log what that means.
    ///
    /// # Errors
    /// That of `result`, unless it is damage.
    pub(crate) fn go_without(
        &self,
        result: Result<(), StoreError>,
        follows: &str,
    ) -> Result<(), StoreError> {
        match result {
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "{follows}");
                Ok(())
            }
            other => other,
        }
    }
}
