//! Whether the copies of a volume's trees come from one history.
//!
//! Two halves of a mirrored volume may have been changed, each without the
//! other, up to the same generation. Their nodes may lie at the same addresses,
//! and all of them are valid. But each commit notes its time in the items of
//! the subvolumes that changed, so the copies of the tree of roots differ.

use crate::engine::Engine;
use butterfs_format::TreeId;
use butterfs_tree::{Expected, Node, NodeSource};

/// Nodes of the tree of roots that are compared, at most.
const COMPARED_MAX: usize = 64;

impl Engine {
    /// True unless a node of the tree of roots has two copies that are valid
    /// and differ. Of large trees only a part is compared. Nodes that cannot be
    /// read count as equal: whoever needs them meets the error.
    pub(super) fn has_one_history(&self) -> bool {
        let mut waiting: Vec<_> = self.root(TreeId::ROOT).into_iter().collect();
        for _ in 0..COMPARED_MAX {
            let Some(reference) = waiting.pop() else {
                break;
            };
            let Ok(node) = self.node(reference) else {
                continue;
            };
            if self.has_other_copy(&node, Expected::from(reference)) {
                return false;
            }
            if !node.is_leaf() {
                waiting.extend((0..node.len()).map(|slot| node.child(slot)));
            }
        }
        true
    }

    /// Whether a valid copy of a node differs from it.
    fn has_other_copy(&self, node: &Node, expected: Expected) -> bool {
        let mut bytes = vec![0; self.node_size()];
        (0..self.space.copies(node.logical())).any(|copy| {
            let read = self.space.read_copy(node.logical(), copy, &mut bytes);
            read.is_ok()
                && bytes != node.bytes()
                && Node::verify(bytes.as_slice().into(), self.nodes.identity(), expected).is_ok()
        })
    }
}
