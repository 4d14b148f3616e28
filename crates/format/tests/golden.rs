//! Leaves of volumes that Linux 6.18 filled, parsed and encoded item by item.
//!
//! `testdata/leaves` holds at least one leaf with each item type and each form
//! of inline reference, file extent and directory entry that the kernel wrote:
//! among them a quota tree, simple quotas, an fsync log, a paused balance, a
//! device replacement under way, snapshots and hard links beyond one item. The
//! name begins with the checksum of the volume.

mod common;

use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::csum::CsumItem;
use butterfs_format::item::device::{DeviceExtent, DeviceItem};
use butterfs_format::item::dir::{DirEntries, DirEntry};
use butterfs_format::item::extent::ExtentItem;
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::free_space::{FreeSpaceBitmap, FreeSpaceInfo};
use butterfs_format::item::inode::{ExtrefEntries, ExtrefEntry, InodeItem, RefEntries, RefEntry};
use butterfs_format::item::log::DirLogItem;
use butterfs_format::item::qgroup::{QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupStatus};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::state::{BalanceItem, DeviceReplace, DeviceStats};
use butterfs_format::item::uuid;
use butterfs_format::{
    ChecksumType, DeviceId, FileOffset, InodeNumber, ItemType, Key, Logical, ParseError, TreeId,
};
use common::{Item, items, leaves};
use std::collections::BTreeSet;

type Parsed = Result<Option<Vec<u8>>, ParseError>;

/// Encodes each entry of a packed item again.
fn joined<T>(
    entries: impl Iterator<Item = Result<T, ParseError>>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Parsed {
    let mut out = Vec::new();
    for entry in entries {
        out.extend(encode(&entry?));
    }
    Ok(Some(out))
}

/// Parses an item and encodes it; `None` where there is nothing to encode.
fn again(item: &Item, checksum: ChecksumType) -> Parsed {
    let (key, data) = (&item.key, &item.data[..]);
    let bytes = match key.item_type {
        ItemType::INODE_ITEM => InodeItem::parse(data)?.encode(),
        ItemType::INODE_REF => return joined(RefEntries::new(data), RefEntry::encode),
        ItemType::INODE_EXTREF => return joined(ExtrefEntries::new(data), ExtrefEntry::encode),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            return joined(DirEntries::new(data), DirEntry::encode);
        }
        ItemType::EXTENT_DATA => FileExtent::parse(data)?.encode(),
        ItemType::ROOT_ITEM => {
            let root = RootItem::parse(data)?;
            // A program that does not know the newer fields wrote it, such as
            // mkfs. Encoding it makes the fields valid.
            if root.generation_v2 != root.generation {
                return Ok(None);
            }
            root.encode()
        }
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => RootRef::parse(data)?.encode(),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
            ExtentItem::parse(key.item_type, data)?.encode()
        }
        ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF => ExtentRef::parse_keyed(key, data)?.encode_keyed(),
        ItemType::BLOCK_GROUP_ITEM => BlockGroupItem::parse(data)?.encode(),
        ItemType::FREE_SPACE_INFO => FreeSpaceInfo::parse(data)?.encode(),
        ItemType::DEV_EXTENT => DeviceExtent::parse(data)?.encode(),
        ItemType::DEV_ITEM => DeviceItem::parse(data)?.encode(),
        ItemType::CHUNK_ITEM => Chunk::parse(data)?.encode(),
        ItemType::QGROUP_STATUS => QgroupStatus::parse(data)?.encode(),
        ItemType::QGROUP_INFO => QgroupInfo::parse(data)?.encode(),
        ItemType::QGROUP_LIMIT => QgroupLimit::parse(data)?.encode(),
        ItemType::PERSISTENT_ITEM => DeviceStats::parse(data)?.encode(),
        ItemType::TEMPORARY_ITEM => BalanceItem::parse(data)?.encode(),
        ItemType::DEV_REPLACE => DeviceReplace::parse(data)?.encode(),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => uuid::encode(&uuid::parse(data)?),
        ItemType::DIR_LOG_INDEX | ItemType::DIR_LOG_ITEM => DirLogItem::parse(data)?.encode(),
        ItemType::EXTENT_CSUM => {
            let item = CsumItem::parse(key, data, checksum, 4096)?;
            assert!(item.find(item.start).is_some());
            assert!(item.find(item.end).is_none());
            return Ok(None);
        }
        ItemType::FREE_SPACE_BITMAP => {
            let _ = FreeSpaceBitmap::parse(key, data, 4096)?.free_ranges();
            return Ok(None);
        }
        ItemType::FREE_SPACE_EXTENT | ItemType::ORPHAN_ITEM | ItemType::QGROUP_RELATION => {
            Vec::new()
        }
        _ => panic!("no parser for {key}"),
    };
    Ok(Some(bytes))
}

#[test]
fn every_item_is_parsed_and_encoded_to_the_same_bytes() {
    let mut seen = BTreeSet::new();
    for leaf in leaves() {
        assert!(leaf.checksum.verify_block(&leaf.bytes), "{}", leaf.name);
        for item in items(&leaf.bytes) {
            let place = format!("{} {}", leaf.name, item.key);
            let bytes = again(&item, leaf.checksum).unwrap_or_else(|e| panic!("{place}: {e}"));
            if let Some(bytes) = bytes {
                assert_eq!(bytes, item.data, "{place}");
            }
            seen.insert(item.key.item_type);
        }
    }
    // There is an item of every type, except those of verity, old directory
    // logs and RAID stripes, and those that nobody writes: keyed owner
    // references and strings.
    let rare = [
        ItemType::VERITY_DESC,
        ItemType::VERITY_MERKLE,
        ItemType::DIR_LOG_ITEM,
        ItemType::RAID_STRIPE,
        ItemType::EXTENT_OWNER_REF,
        ItemType::STRING_ITEM,
    ];
    for (item_type, name) in ItemType::TABLE {
        let expected = !rare.contains(item_type);
        assert_eq!(seen.contains(item_type), expected, "{name}");
    }
}

#[test]
fn keys_are_what_the_items_say() {
    for leaf in leaves() {
        for Item { key, data } in items(&leaf.bytes) {
            let place = format!("{} {key}", leaf.name);
            match key.item_type {
                ItemType::DIR_ITEM | ItemType::XATTR_ITEM => {
                    for entry in DirEntries::new(&data) {
                        assert_eq!(name_hash(entry.unwrap().name), key.offset, "{place}");
                    }
                }
                ItemType::INODE_EXTREF => {
                    for entry in ExtrefEntries::new(&data) {
                        let entry = entry.unwrap();
                        assert_eq!(extref_hash(entry.parent, entry.name), key.offset, "{place}");
                    }
                }
                ItemType::TREE_BLOCK_REF
                | ItemType::SHARED_BLOCK_REF
                | ItemType::EXTENT_DATA_REF
                | ItemType::SHARED_DATA_REF => {
                    let reference = ExtentRef::parse_keyed(&key, &data).unwrap();
                    assert_eq!(reference.key(Logical(key.objectid)), key, "{place}");
                }
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                    let item = ExtentItem::parse(key.item_type, &data).unwrap();
                    assert!(item.is_sorted(), "{place}: {:?}", item.inline);
                    assert!(item.inline_count() <= item.header.refs, "{place}");
                }
                ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
                    let found = uuid::uuid_of(&key);
                    assert_eq!(uuid::key(&found, key.item_type), key, "{place}");
                }
                _ => {}
            }
        }
    }
}

/// Values that dump-tree printed for the same items.
#[test]
fn values_are_those_of_dump_tree() {
    let find = |leaf: &str, key: Key| {
        let leaf = leaves().into_iter().find(|found| found.name == leaf);
        let all = items(&leaf.expect("the leaf is there").bytes);
        all.into_iter().find(|item| item.key == key).unwrap().data
    };
    let data = find("crc32c-root-1", Key::new(5, ItemType::ROOT_REF, 256));
    let reference = RootRef::parse(&data).unwrap();
    assert_eq!(reference.name, b"sub");
    assert_eq!(reference.directory, InodeNumber(256));

    let key = Key::new(
        13_631_488,
        ItemType::EXTENT_DATA_REF,
        1_002_667_597_653_129_933,
    );
    let data = find("crc32c-extent-2", key);
    let expected = ExtentRef::Data {
        root: TreeId(256),
        inode: InodeNumber(265),
        offset: FileOffset(0),
        count: 1,
    };
    assert_eq!(ExtentRef::parse_keyed(&key, &data), Ok(expected));
    assert_eq!(expected.order(), key.offset);

    let group = |item_type| Key::new(0, item_type, 256);
    let limit = find("sha256-quota-1", group(ItemType::QGROUP_LIMIT));
    let limit = QgroupLimit::parse(&limit).unwrap();
    assert_eq!(limit.flags, QgroupLimitFlags::MAX_REFERENCED);
    assert_eq!((limit.referenced_max, limit.exclusive_max), (10 << 20, 0));

    let paused = Key::new(
        butterfs_format::object::BALANCE,
        ItemType::TEMPORARY_ITEM,
        0,
    );
    let paused = BalanceItem::parse(&find("sha256-root-1", paused)).unwrap();
    assert_eq!(paused.flags, BlockGroupFlags(7));
    let filters = paused.filters().unwrap();
    assert_eq!(BalanceItem::with_filters(paused.flags, &filters), paused);

    let replaced = find("sha256-device-1", Key::new(0, ItemType::DEV_REPLACE, 0));
    let replaced = DeviceReplace::parse(&replaced).unwrap();
    assert_eq!((replaced.source, replaced.state), (DeviceId(1), 1));
    assert!(replaced.started_seconds > replaced.stopped_seconds);
    assert_eq!(replaced.write_errors + replaced.read_errors, 0);
}

/// Cut or changed bytes give an error or other values, never a panic; and what
/// is accepted survives an encoding.
#[test]
fn damaged_items_never_panic() {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for leaf in leaves() {
        for item in items(&leaf.bytes) {
            for length in 0..item.data.len() {
                let cut = Item {
                    key: item.key,
                    data: item.data[..length].to_vec(),
                };
                let _ = again(&cut, leaf.checksum);
            }
            for _ in 0..200 {
                let mut changed = Item {
                    key: item.key,
                    data: item.data.clone(),
                };
                if !changed.data.is_empty() {
                    for _ in 0..=random() % 3 {
                        let at = random() as usize % changed.data.len();
                        changed.data[at] = random() as u8;
                    }
                }
                if random() % 4 == 0 {
                    changed.key.objectid = random();
                    changed.key.offset = random();
                }
                if random() % 8 == 0 {
                    changed.data.push(random() as u8);
                }
                if let Ok(Some(bytes)) = again(&changed, leaf.checksum) {
                    let stable = Item {
                        key: changed.key,
                        data: bytes.clone(),
                    };
                    let twice = again(&stable, leaf.checksum);
                    assert_eq!(twice, Ok(Some(bytes)), "{} {}", leaf.name, item.key);
                }
            }
        }
    }
}
