//! Names of trees, objects and keys, as the Btrfs tools print them.

use crate::fail::{Failure, fail};
use butterfs::TreeId;
use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{ItemType, Key, object};

/// A tree's names.
pub(super) struct TreeName {
    pub tree: TreeId,
    /// On the command line.
    pub word: &'static str,
    /// In keys.
    pub object: &'static str,
    /// In front of its nodes.
    pub title: &'static str,
}

const fn name(
    tree: TreeId,
    word: &'static str,
    object: &'static str,
    title: &'static str,
) -> TreeName {
    TreeName {
        tree,
        word,
        object,
        title,
    }
}

pub(super) const NAMES: &[TreeName] = &[
    name(TreeId::ROOT, "root", "ROOT_TREE", "root"),
    name(TreeId::EXTENT, "extent", "EXTENT_TREE", "extent"),
    name(TreeId::CHUNK, "chunk", "CHUNK_TREE", "chunk"),
    name(TreeId::DEVICE, "dev", "DEV_TREE", "device"),
    name(TreeId::FS, "fs", "FS_TREE", "fs"),
    name(TreeId::ROOT_TREE_DIR, "", "ROOT_TREE_DIR", "directory"),
    name(TreeId::CSUM, "csum", "CSUM_TREE", "checksum"),
    name(TreeId::QUOTA, "quota", "QUOTA_TREE", "quota"),
    name(TreeId::UUID, "uuid", "UUID_TREE", "uuid"),
    name(
        TreeId::FREE_SPACE,
        "free-space",
        "FREE_SPACE_TREE",
        "free space",
    ),
    name(
        TreeId::BLOCK_GROUP,
        "block-group",
        "BLOCK_GROUP_TREE",
        "block group",
    ),
    name(
        TreeId::DATA_RELOC,
        "data-reloc",
        "DATA_RELOC_TREE",
        "data reloc",
    ),
    name(TreeId::RELOC, "reloc", "TREE_RELOC", "reloc"),
    name(TreeId::LOG, "log", "TREE_LOG", "log"),
];

/// Other names that the Btrfs tools take.
const ALIASES: &[(&str, TreeId)] = &[
    ("device", TreeId::DEVICE),
    ("checksum", TreeId::CSUM),
    ("tree-log", TreeId::LOG),
    ("tree-reloc", TreeId::RELOC),
];

/// Objects that are no trees.
const OBJECTS: &[(u64, &str)] = &[
    (u64::MAX, "-1"),
    (object::BALANCE, "BALANCE"),
    (object::ORPHAN, "ORPHAN"),
    (object::EXTENT_CSUM, "EXTENT_CSUM"),
    (object::FREE_SPACE, "FREE_SPACE"),
    (object::FREE_INO, "FREE_INO"),
];

pub(super) fn object_name(number: u64) -> String {
    let tree = NAMES.iter().find(|known| known.tree.get() == number);
    let object = OBJECTS.iter().find(|(known, _)| *known == number);
    match (tree, object) {
        (Some(known), _) => known.object.to_owned(),
        (None, Some((_, name))) => (*name).to_owned(),
        (None, None) => number.to_string(),
    }
}

/// A tree by its number or a name.
pub(super) fn parse_tree(name: &str) -> Result<TreeId, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(TreeId(number));
    }
    let plain = name.to_ascii_lowercase().replace('_', "-");
    let known = NAMES.iter().find(|known| {
        let object = known.object.eq_ignore_ascii_case(name);
        !known.word.is_empty() && (known.word == plain || object)
    });
    let alias = ALIASES.iter().find(|(word, _)| *word == plain);
    let known = known
        .map(|known| &known.tree)
        .or(alias.map(|(_, tree)| tree));
    match known {
        Some(tree) => Ok(*tree),
        None => fail(format!("there is no tree named {name}; see --help")),
    }
}

/// What precedes the nodes of a tree in the output; other trees hold files.
pub(super) fn title(tree: TreeId) -> &'static str {
    let known = NAMES.iter().find(|known| known.tree == tree);
    known.map_or("file", |known| known.title)
}

/// A key as the Btrfs tools print it.
pub(super) fn key_text(key: Key) -> String {
    let kind = match (key.item_type.0, key.objectid) {
        (0, object::FREE_SPACE) => "UNTYPED".to_owned(),
        _ => format!("{:?}", key.item_type),
    };
    let (object, offset) = match key.item_type {
        ItemType::QGROUP_RELATION => (GroupId(key.objectid).to_string(), group(key.offset)),
        ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT => {
            (object_name(key.objectid), group(key.offset))
        }
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => (
            format!("{:#018x}", key.objectid),
            format!("{:#018x}", key.offset),
        ),
        ItemType::DEV_ITEM if key.objectid == 1 => ("DEV_ITEMS".to_owned(), key.offset.to_string()),
        ItemType::CHUNK_ITEM if key.objectid == 256 => {
            ("FIRST_CHUNK_TREE".to_owned(), key.offset.to_string())
        }
        ItemType::PERSISTENT_ITEM if key.objectid == 0 => {
            ("DEV_STATS".to_owned(), key.offset.to_string())
        }
        ItemType::DEV_EXTENT => (key.objectid.to_string(), key.offset.to_string()),
        ItemType::ROOT_ITEM if key.objectid == TreeId::RELOC.get() => {
            (object_name(key.objectid), object_name(key.offset))
        }
        ItemType::ROOT_ITEM => (object_name(key.objectid), key.offset.to_string()),
        _ if key.offset == u64::MAX => (object_name(key.objectid), "-1".to_owned()),
        _ => (object_name(key.objectid), key.offset.to_string()),
    };
    format!("({object} {kind} {offset})")
}

fn group(number: u64) -> String {
    GroupId(number).to_string()
}

#[cfg(test)]
mod tests {
    use super::parse_tree;
    use butterfs::TreeId;

    #[test]
    fn names_of_the_btrfs_tools_are_taken() {
        let names = [
            ("device", TreeId::DEVICE),
            ("dev", TreeId::DEVICE),
            ("quota", TreeId::QUOTA),
            ("free_space", TreeId::FREE_SPACE),
            ("free-space", TreeId::FREE_SPACE),
            ("BLOCK_GROUP_TREE", TreeId::BLOCK_GROUP),
            ("checksum", TreeId::CSUM),
            ("257", TreeId(257)),
        ];
        for (name, tree) in names {
            assert_eq!(parse_tree(name).ok(), Some(tree), "{name}");
        }
        assert!(parse_tree("nothing").is_err());
    }
}
