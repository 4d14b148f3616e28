//! Opening and reading past damage: where that was asked for, and without being
//! asked where no file is concerned.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::rescue::{OnFault, Rescue};
use butterfs_tree::{Expected, Node, TreeError};
use std::sync::Arc;

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
        self.nodes_passed_over.len()
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

    /// A node whose checksum no copy matches, from the first copy that is
    /// otherwise as it should be.
    pub(crate) fn read_without_checksum(
        &self,
        expected: Expected,
    ) -> Result<Arc<Node>, StoreError> {
        let logical = expected.logical;
        let mut buffer = vec![0; self.identity.node_size];
        let mut seen = Err(None);
        let verify = &mut |bytes: &[u8]| {
            let node = Node::verify_without_checksum(bytes.into(), &self.identity, expected);
            seen = node.map(Arc::new).map_err(Some);
            seen.is_ok()
        };
        let read = self
            .space
            .read_verified_as(self.forest.read_as, logical, &mut buffer, verify);
        match (read, seen) {
            (Ok(_), Ok(node)) => {
                if self.nodes_passed_over.add(logical) {
                    tracing::warn!(%logical, "a node with a wrong checksum is read");
                }
                self.forest.cache.insert(Arc::clone(&node));
                Ok(node)
            }
            (_, Err(Some(fault))) => Err(TreeError::Corrupt { logical, fault }.into()),
            (Err(error), _) => Err(error.into()),
            (Ok(_), Err(None)) => Err(StoreError::Internal("a node was read but not verified")),
        }
    }
}
