//! Every item that the format knows, by the type in its key.

use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::csum::CsumItem;
use butterfs_format::item::device::{DeviceExtent, DeviceItem};
use butterfs_format::item::dir::{DirEntries, DirEntry};
use butterfs_format::item::extent::{ExtentItem, InlineRefs};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::free_space::{BitmapThresholds, FreeSpaceBitmap, FreeSpaceInfo};
use butterfs_format::item::inode::{ExtrefEntries, ExtrefEntry, InodeItem, RefEntries, RefEntry};
use butterfs_format::item::log::DirLogItem;
use butterfs_format::item::qgroup::{QgroupInfo, QgroupLimit, QgroupStatus};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::state::{BalanceItem, DeviceReplace, DeviceStats};
use butterfs_format::item::uuid;
use butterfs_format::{ChecksumType, ItemType, Key, Logical, ParseError};

type Parsed = Result<Option<Vec<u8>>, ParseError>;

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

/// Parses an item and encodes what it says; `None` where nothing is encoded.
pub fn parse(key: &Key, data: &[u8], checksum: ChecksumType, sector_size: u32) -> Parsed {
    let bytes = match key.item_type {
        ItemType::INODE_ITEM => InodeItem::parse(data)?.encode(),
        ItemType::INODE_REF => return joined(RefEntries::new(data), RefEntry::encode),
        ItemType::INODE_EXTREF => return joined(ExtrefEntries::new(data), ExtrefEntry::encode),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            return joined(DirEntries::new(data), DirEntry::encode);
        }
        ItemType::EXTENT_DATA => FileExtent::parse(data)?.encode(),
        ItemType::ROOT_ITEM => {
            // An encoding makes the newer fields valid.
            let _ = RootItem::parse(data)?.encode();
            return Ok(None);
        }
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => RootRef::parse(data)?.encode(),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
            let item = ExtentItem::parse(key.item_type, data)?;
            let _ = (item.is_sorted(), item.inline_count());
            item.encode()
        }
        ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF => {
            let reference = ExtentRef::parse_keyed(key, data)?;
            let _ = (reference.key(Logical(key.objectid)), reference.order());
            reference.encode_keyed()
        }
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
            let item = CsumItem::parse(key, data, checksum, sector_size)?;
            let _ = (item.find(item.start), item.find(item.end));
            let _ = item.find(Logical(u64::MAX));
            return Ok(None);
        }
        ItemType::FREE_SPACE_BITMAP => {
            let ranges = FreeSpaceBitmap::parse(key, data, sector_size)?.free_ranges();
            assert!(ranges.iter().all(|range| range.start < range.end));
            return Ok(None);
        }
        _ => {
            // Other types: the parts that items are made of.
            for reference in InlineRefs::new(data) {
                reference?;
            }
            let _ = BitmapThresholds::new(key.offset, sector_size);
            return Ok(None);
        }
    };
    Ok(Some(bytes))
}

/// Type, checksum, sector size, key, then the item.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let mut tape = Tape::new(data);
        let item_type = match tape.u8() {
            // Most numbers are no type, so known types come more often.
            pick if pick < 192 => ItemType::TABLE[usize::from(pick) % ItemType::TABLE.len()].0,
            _ => ItemType(tape.u8()),
        };
        let how = tape.u8();
        let checksum = ChecksumType::TABLE[usize::from(how & 3)].0;
        let sector_size = 4096 << (how >> 2 & 3);
        let key = Key::new(tape.u64(), item_type, tape.u64());
        let Ok(Some(bytes)) = parse(&key, tape.rest(), checksum, sector_size) else {
            return;
        };
        let again = parse(&key, &bytes, checksum, sector_size);
        assert_eq!(again, Ok(Some(bytes)), "{key}: an encoding reads the same");
    });
}
