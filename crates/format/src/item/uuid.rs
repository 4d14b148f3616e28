//! UUID_KEY_SUBVOL and UUID_KEY_RECEIVED_SUBVOL: subvolumes by UUID.
//!
//! The key is the UUID itself: its halves, little-endian, are object and
//! offset. The body is a row of tree numbers; several subvolumes may have one
//! received UUID.

use crate::bytes::{Reader, Writer};
use crate::{ItemType, Key, ParseError, TreeId, UuidBytes};

const WHAT: &str = "UUID item";

/// Key of `uuid` with [`ItemType::UUID_SUBVOL`] or
/// [`ItemType::UUID_RECEIVED_SUBVOL`].
#[must_use]
pub fn key(uuid: &UuidBytes, item_type: ItemType) -> Key {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *uuid;
    Key::new(
        u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        item_type,
        u64::from_le_bytes([i, j, k, l, m, n, o, p]),
    )
}

/// The UUID in a key.
#[must_use]
pub fn uuid_of(key: &Key) -> UuidBytes {
    let mut uuid = [0; 16];
    let (first, second) = uuid.split_at_mut(8);
    first.copy_from_slice(&key.objectid.to_le_bytes());
    second.copy_from_slice(&key.offset.to_le_bytes());
    uuid
}

/// Trees of an item.
///
/// # Errors
/// [`ParseError::TooShort`] for none, or for a part of a number at the end.
pub fn parse(data: &[u8]) -> Result<Vec<TreeId>, ParseError> {
    let mut r = Reader::new(WHAT, data);
    let mut trees = vec![TreeId(r.u64()?)];
    while r.remaining() > 0 {
        trees.push(TreeId(r.u64()?));
    }
    Ok(trees)
}

/// Bytes of an item with `trees`.
#[must_use]
pub fn encode(trees: &[TreeId]) -> Vec<u8> {
    let mut w = Writer::default();
    for tree in trees {
        w.u64(tree.get());
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_the_key() {
        let uuid = *b"\x01\x02\x03\x04\x05\x06\x07\x08abcdefgh";
        let key = key(&uuid, ItemType::UUID_SUBVOL);
        assert_eq!(key.objectid, 0x0807_0605_0403_0201);
        assert_eq!(uuid_of(&key), uuid);
        assert!(parse(&[]).is_err());
        assert!(parse(&[0; 12]).is_err());
        assert_eq!(parse(&encode(&[TreeId(5), TreeId(300)])).unwrap().len(), 2);
    }
}
