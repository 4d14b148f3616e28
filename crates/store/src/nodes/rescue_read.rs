//! Reading nodes whose checksum is wrong, where that was asked for.

use super::NodeStore;
use crate::error::StoreError;
use butterfs_tree::{Expected, Node, TreeError};
use butterfs_volume::LogicalSpace;
use std::sync::Arc;

impl NodeStore {
    /// A node whose checksum no copy matches, from the first copy that is
    /// otherwise as it should be.
    pub(super) fn read_without_checksum(
        &self,
        space: &LogicalSpace,
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
        let read = space.read_verified_as(self.read_as, logical, &mut buffer, verify);
        match (read, seen) {
            (Ok(_), Ok(node)) => {
                if self.passed_over.add(logical) {
                    tracing::warn!(%logical, "a node with a wrong checksum is read");
                }
                self.cache.insert(Arc::clone(&node));
                Ok(node)
            }
            (_, Err(Some(fault))) => Err(TreeError::Corrupt { logical, fault }.into()),
            (Err(error), _) => Err(error.into()),
            (Ok(_), Err(None)) => Err(StoreError::Internal("a node was read but not verified")),
        }
    }
}
