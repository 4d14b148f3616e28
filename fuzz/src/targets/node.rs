//! Nodes: every check of one, then access to all that it holds.

use super::items;
use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_format::node::field;
use butterfs_format::{ChecksumType, Generation, Logical};
use butterfs_tree::{Expected, Node, VolumeIdentity};

/// A first byte with level and checksum, then the node from its address on.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let mut tape = Tape::new(data);
        let how = tape.u8();
        let size = 4096 << (how & 1);
        let identity = VolumeIdentity {
            fsid: [7; 16],
            node_size: size,
            sector_size: 4096,
            checksum: ChecksumType::TABLE[usize::from(how >> 1 & 3)].0,
            headers: butterfs_tree::Headers::Agree,
        };
        let mut bytes = vec![0; size];
        let rest = tape.bytes(size - field::LOGICAL);
        // The data of items lie at the end, so half of the input goes there.
        let (head, tail) = rest.split_at(rest.len() - rest.len() / 2);
        bytes[field::LOGICAL..][..head.len()].copy_from_slice(head);
        bytes[size - tail.len()..].copy_from_slice(tail);
        bytes[field::FSID..field::FSID + 16].fill(7);
        identity.checksum.seal_block(&mut bytes);
        let at = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap());
        let expected = Expected {
            logical: Logical(at(field::LOGICAL)),
            generation: (how & 8 != 0).then_some(Generation(at(field::GENERATION))),
            level: (how & 16 != 0).then_some(bytes[field::LEVEL]),
        };
        if let Ok(node) = Node::verify(bytes.into_boxed_slice(), &identity, expected) {
            use_it(&node, &identity);
        }
    });
}

fn use_it(node: &Node, identity: &VolumeIdentity) {
    let _ = (node.reference(), node.owner(), node.flags());
    let _ = (node.first_key(), node.last_key(), node.used_bytes());
    for slot in 0..node.len() {
        let key = node.key(slot);
        assert_eq!(node.search(&key), Ok(slot));
        if node.is_leaf() {
            let _ = items::parse(&key, node.data(slot), identity.checksum, 4096);
        } else {
            assert_eq!(node.child_slot(&key), slot);
            let _ = node.child(slot);
        }
    }
    if node.is_leaf() {
        let used: usize = (0..node.len()).map(|slot| node.data(slot).len()).sum();
        assert!(used + node.free_bytes() <= node.bytes().len());
    }
    if let Some(first) = node.first_key() {
        let _ = node.verify_place(&first, None);
    }
}
