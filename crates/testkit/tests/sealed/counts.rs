//! Counts that lie, one kind at a time, and the commands that would free,
//! overwrite or remove something if they believed them.

use super::lie::{Number, Part};
use butterfs_format::ItemType;

fn word(data: &[u8], at: usize) -> u64 {
    let word = data.get(at..at + 8).and_then(|word| word.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Each lie, and the commands that would believe it.
pub const COUNTS: &[(Number, &[&str])] = &[
    (
        Number {
            what: "a full block group counts nothing",
            of: |key, data| {
                key.item_type == ItemType::BLOCK_GROUP_ITEM
                    && key.offset == 8 << 20
                    && word(data, 16) & 1 != 0
            },
            part: Part::Data,
            place: 0,
            width: 8,
            change: |_| 0,
        },
        &[
            "nothing",
            "write",
            "balance",
            "shrink",
            "replace",
            "trim",
            "clear_cache",
        ],
    ),
    (
        Number {
            what: "block groups of metadata count nothing",
            of: |key, data| key.item_type == ItemType::BLOCK_GROUP_ITEM && word(data, 16) & 4 != 0,
            part: Part::Data,
            place: 0,
            width: 8,
            change: |_| 0,
        },
        &[
            "nothing",
            "write",
            "balance -m",
            "many files",
            "fsync",
            "trim",
        ],
    ),
    (
        Number {
            what: "free space begins a sector early",
            of: |key, _| key.item_type == ItemType::FREE_SPACE_EXTENT,
            part: Part::Key,
            place: 0,
            width: 8,
            change: |old| old - 4096,
        },
        &[
            "nothing",
            "write",
            "many files",
            "fsync",
            "trim",
            "defragment",
            "balance",
        ],
    ),
    (
        Number {
            what: "extents with several references count one",
            of: |key, data| {
                matches!(
                    key.item_type,
                    ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM
                ) && word(data, 0) > 1
            },
            part: Part::Data,
            place: 0,
            width: 8,
            change: |_| 1,
        },
        &[
            "rm",
            "rm of everything",
            "write without copy-on-write",
            "write to preallocated space",
            "snapshot delete",
            "subvolume delete",
            "delete of all snapshots",
            "truncate",
            "defragment",
        ],
    ),
    (
        Number {
            what: "files with several names count one",
            of: |key, data| key.item_type == ItemType::INODE_ITEM && data[40] > 1,
            part: Part::Data,
            place: 40,
            width: 4,
            change: |_| 1,
        },
        &["rm of one name", "rm -r", "rm of everything"],
    ),
    (
        Number {
            what: "files count no names",
            of: |key, _| key.item_type == ItemType::INODE_ITEM && key.objectid > 256,
            part: Part::Data,
            place: 40,
            width: 4,
            change: |_| 0,
        },
        &[
            "rm of one name",
            "open and close",
            "rename",
            "link",
            "fsync",
        ],
    ),
    (
        Number {
            what: "subvolumes know of no snapshot",
            of: |key, _| key.item_type == ItemType::ROOT_ITEM && key.objectid > 255,
            part: Part::Data,
            place: 200,
            width: 8,
            change: |_| 0,
        },
        &[
            "write",
            "write without copy-on-write",
            "write to preallocated space",
            "rm",
            "rm of everything",
            "snapshot and write",
            "snapshot delete",
        ],
    ),
    (
        Number {
            what: "what is to be deleted is something that lives",
            of: |key, _| key.item_type == ItemType::ORPHAN_ITEM,
            part: Part::Key,
            place: 9,
            width: 8,
            change: |old| if old == 257 { 256 } else { 262 },
        },
        &[
            "nothing",
            "free deleted",
            "open and close",
            "subvolume delete",
        ],
    ),
    (
        Number {
            what: "what is to be deleted is the tree of roots",
            of: |key, _| key.item_type == ItemType::ORPHAN_ITEM,
            part: Part::Key,
            place: 9,
            width: 8,
            change: |_| 1,
        },
        &["free deleted", "nothing", "write", "subvolume delete"],
    ),
    (
        Number {
            what: "the deletion of a subvolume begins again",
            of: |key, data| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid > 255 && data[216] == 0
            },
            part: Part::Data,
            place: 220,
            width: 8,
            change: |_| 0,
        },
        &[
            "free deleted",
            "balance",
            "delete of all snapshots",
            "snapshot delete",
        ],
    ),
    (
        Number {
            what: "devices count nothing",
            of: |key, _| key.item_type == ItemType::DEV_ITEM,
            part: Part::Data,
            place: 16,
            width: 8,
            change: |_| 0,
        },
        &[
            "nothing",
            "many files",
            "shrink",
            "balance",
            "device add and remove",
        ],
    ),
    (
        Number {
            what: "the items of extents are no such items",
            of: |key, _| key.item_type == ItemType::EXTENT_ITEM,
            part: Part::Key,
            place: 8,
            width: 1,
            change: |_| 0x79,
        },
        &["replace", "replace", "replace", "replace"],
    ),
    (
        Number {
            what: "block groups of data have no item",
            of: |key, data| key.item_type == ItemType::BLOCK_GROUP_ITEM && word(data, 16) & 1 != 0,
            part: Part::Key,
            place: 8,
            width: 1,
            change: |_| 0xbf,
        },
        &["replace", "replace", "replace", "replace"],
    ),
    (
        Number {
            what: "the items of nodes are no such items",
            of: |key, _| key.item_type == ItemType::METADATA_ITEM && key.offset == 0,
            part: Part::Key,
            place: 8,
            width: 1,
            change: |_| 0xaa,
        },
        &["tune -u", "tune --csum", "tune -u", "tune --csum"],
    ),
];
