//! Building one leaf from its items.

use butterfs_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_WRITTEN, HEADER_SIZE, ITEM_SIZE,
    NodeHeader,
};
use butterfs_format::{ChecksumType, Key};

/// Bytes of a sealed leaf of `size` with `items` (in any order).
///
/// Panics when they do not fit: what mkfs puts into a leaf always does.
pub fn encode(
    mut header: NodeHeader,
    mut items: Vec<(Key, Vec<u8>)>,
    size: usize,
    checksum: ChecksumType,
) -> Vec<u8> {
    items.sort_by_key(|(key, _)| *key);
    header.item_count = items.len() as u32;
    header.flags = FLAG_WRITTEN | (BACKREF_REVISION_MIXED << BACKREF_REVISION_SHIFT);
    let mut bytes = vec![0; size];
    bytes[..HEADER_SIZE].copy_from_slice(&header.encode());
    let mut end = size;
    for (slot, (key, data)) in items.iter().enumerate() {
        let at = HEADER_SIZE + slot * ITEM_SIZE;
        end -= data.len();
        assert!(end >= at + ITEM_SIZE, "the items fit a leaf");
        let offset = (end - HEADER_SIZE) as u32;
        bytes[at..at + Key::SIZE].copy_from_slice(&key.to_bytes());
        bytes[at + 17..at + 21].copy_from_slice(&offset.to_le_bytes());
        bytes[at + 21..at + 25].copy_from_slice(&(data.len() as u32).to_le_bytes());
        bytes[end..end + data.len()].copy_from_slice(data);
    }
    checksum.seal_block(&mut bytes);
    bytes
}
