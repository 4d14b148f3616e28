//! Finding nodes in memory, and reading those that are not there.

use super::{NodeStore, OnMissing, branch_cache};
use crate::error::StoreError;
use crate::rescue::OnFault;
use butterfs_format::{Logical, NodeRef};
use butterfs_tree::{Expected, Node, NodeFault, TreeError};
use butterfs_volume::LogicalSpace;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl NodeStore {
    /// The node that a reference means. `on_missing` says what happens if it is
    /// not in memory.
    pub(crate) fn find(
        &self,
        space: &LogicalSpace,
        reference: NodeRef,
        on_missing: impl FnOnce(NodeRef) -> OnMissing,
    ) -> Result<Arc<Node>, TreeError> {
        if let Some(node) = self.in_memory(reference.logical) {
            // A cached node may have been verified against another pointer.
            if node.reference() == reference {
                return Ok(node);
            }
        }
        match on_missing(reference) {
            OnMissing::Use(node) => {
                self.cache.insert(Arc::clone(&node));
                Ok(node)
            }
            OnMissing::GiveUp => Err(TreeError::Missing(reference)),
            OnMissing::Read => Ok(self.read_expected(space, Expected::from(reference))?),
        }
    }

    /// What `look` sees of the node that a reference means.
    pub(crate) fn see<R>(
        &self,
        space: &LogicalSpace,
        reference: NodeRef,
        on_missing: impl FnOnce(NodeRef) -> OnMissing,
        look: impl FnOnce(&Node) -> R,
    ) -> Result<R, TreeError> {
        let logical = reference.logical;
        let find = || self.find(space, reference, on_missing);
        let changed = self.dirty.find(logical);
        let Some(changed) = changed.or_else(|| self.writing.find(logical)) else {
            if reference.level == 0 {
                return find().map(|node| look(&node));
            }
            return branch_cache::see(self.number, reference, find, look);
        };
        let seen = changed.see(|node| match node.reference() == reference {
            true => Ok(look(node)),
            false => Err(look),
        });
        seen.or_else(|look| find().map(|node| look(&node)))
    }

    /// The node at an address, of any generation. If a level is named, the node
    /// must have it.
    ///
    /// # Errors
    /// There is no node, or it has another level; reading failed.
    pub(crate) fn node_at(
        &self,
        space: &LogicalSpace,
        logical: Logical,
        level: Option<u8>,
    ) -> Result<Arc<Node>, StoreError> {
        let fits = |node: &Arc<Node>| level.is_none_or(|level| node.level() == level);
        if let Some(node) = self.in_memory(logical).filter(fits) {
            return Ok(node);
        }
        if self.has_changed(logical) {
            // The device has what was there before.
            let fault = NodeFault::Level;
            return Err(TreeError::Corrupt { logical, fault }.into());
        }
        let expected = Expected {
            logical,
            generation: None,
            level,
        };
        self.read_expected(space, expected)
    }

    pub(super) fn read_expected(
        &self,
        space: &LogicalSpace,
        expected: Expected,
    ) -> Result<Arc<Node>, StoreError> {
        self.reads_under_lock.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; self.identity.node_size];
        let mut node = None;
        let mut fault = None;
        let verify = &mut |bytes: &[u8]| match Node::verify(bytes.into(), &self.identity, expected)
        {
            Ok(good) => {
                node = Some(Arc::new(good));
                true
            }
            Err(bad) => {
                fault = Some(bad);
                false
            }
        };
        let result = space.read_verified_as(self.read_as, expected.logical, &mut buffer, verify);
        match (result, node) {
            (Ok(_), Some(node)) => {
                self.cache.insert(node.clone());
                Ok(node)
            }
            (Err(error), _) => match fault {
                Some(NodeFault::Checksum) if self.on_wrong_checksum == OnFault::PassOver => {
                    self.read_without_checksum(space, expected)
                }
                Some(fault) => Err(TreeError::Corrupt {
                    logical: expected.logical,
                    fault,
                }
                .into()),
                None => Err(error.into()),
            },
            (Ok(_), None) => Err(StoreError::Internal("a node was read but not verified")),
        }
    }
}
