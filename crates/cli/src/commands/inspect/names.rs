//! Names of trees, objects and keys, as the Btrfs tools print them.

use butterfs::TreeId;
use butterfs_format::{ItemType, Key};

/// Trees by name: on the command line, and as the Btrfs tools print them.
pub(super) const NAMES: &[(TreeId, &str, &str)] = &[
    (TreeId::ROOT, "root", "ROOT_TREE"),
    (TreeId::EXTENT, "extent", "EXTENT_TREE"),
    (TreeId::CHUNK, "chunk", "CHUNK_TREE"),
    (TreeId::DEVICE, "dev", "DEV_TREE"),
    (TreeId::FS, "fs", "FS_TREE"),
    (TreeId::ROOT_TREE_DIR, "", "ROOT_TREE_DIR"),
    (TreeId::CSUM, "csum", "CSUM_TREE"),
    (TreeId::QUOTA, "quota", "QUOTA_TREE"),
    (TreeId::UUID, "uuid", "UUID_TREE"),
    (TreeId::FREE_SPACE, "free-space", "FREE_SPACE_TREE"),
    (TreeId::BLOCK_GROUP, "block-group", "BLOCK_GROUP_TREE"),
    (TreeId::DATA_RELOC, "data-reloc", "DATA_RELOC_TREE"),
    (TreeId::RELOC, "reloc", "TREE_RELOC"),
    (TreeId::LOG, "log", "TREE_LOG"),
];

pub(super) fn object_name(number: u64) -> String {
    let known = NAMES.iter().find(|(tree, ..)| tree.get() == number);
    match (known, number) {
        (Some((_, _, name)), _) => (*name).to_owned(),
        (None, u64::MAX) => "-1".to_owned(),
        (None, n) if n == u64::MAX - 4 => "ORPHAN".to_owned(),
        (None, n) if n == u64::MAX - 9 => "EXTENT_CSUM".to_owned(),
        (None, n) => n.to_string(),
    }
}

/// A key as the Btrfs tools print it.
pub(super) fn key_text(tree: TreeId, key: Key) -> String {
    // Objects are trees in the tree of roots alone.
    let object = match tree {
        TreeId::ROOT | TreeId::CSUM => object_name(key.objectid),
        _ if key.item_type == ItemType::ORPHAN_ITEM => object_name(key.objectid),
        TreeId::CHUNK if key.item_type == ItemType::CHUNK_ITEM => "FIRST_CHUNK_TREE".to_owned(),
        TreeId::CHUNK if key.item_type == ItemType::DEV_ITEM => "DEV_ITEMS".to_owned(),
        _ => key.objectid.to_string(),
    };
    format!("({object} {:?} {})", key.item_type, key.offset)
}
