//! The items about space: extents, checksums and free space, in words that two
//! volumes with the same history have in common. An extent is named by who
//! refers to it, since each allocator chooses its own addresses.

use super::record::{Fields, Parts, Record, items};
use butterfs::Volume;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::csum::CsumItem;
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::item::free_space::FreeSpaceInfo;
use butterfs_format::{ItemType, TreeId};
use std::collections::BTreeMap;

/// A data extent and all its references.
struct Extent {
    length: u64,
    header: ExtentHeader,
    inline: usize,
    refs: Vec<ExtentRef>,
}

/// Everything about the space of `volume`.
pub fn record_space(volume: &Volume, parts: &Parts, record: &mut Record) {
    let sums = checksums(volume);
    let sector = u64::from(volume.trees().superblock().sector_size);
    let mut by_leaves = Vec::new();
    for (start, extent) in extents(volume) {
        let mut refs: Vec<String> = extent.refs.iter().map(described).collect();
        refs.sort();
        if !refs[0].starts_with(|first: char| first.is_ascii_digit()) {
            by_leaves.push(extent.length);
            continue;
        }
        let name = refs[0].rsplit_once(" (").map_or("", |(name, _)| name);
        let mut to = Fields::of(record, format!("extent of {name}, {} bytes", extent.length));
        to.put("refs", extent.header.refs);
        to.put("flags", extent.header.flags.0);
        to.put("generation", parts.generation(extent.header.generation));
        to.put("references", refs.join(", "));
        to.put("references in the item", extent.inline);
        let sectors = (start..start + extent.length).step_by(sector as usize);
        let own: Vec<_> = sectors.filter_map(|at| sums.get(&at)).collect();
        to.put("sectors with checksums", own.len());
        to.put(
            "checksums",
            crc32c(own.iter().flat_map(|sum| sum.iter().copied())),
        );
    }
    by_leaves.sort_unstable();
    Fields::of(record, "extents of leaves".to_owned()).put("lengths", format!("{by_leaves:?}"));
    free_space(volume, record);
}

/// Without the counts of what lies elsewhere.
fn described(entry: &ExtentRef) -> String {
    match *entry {
        ExtentRef::Data {
            root,
            inode,
            offset,
            count,
        } => format!("{root} {inode} at {} ({count})", offset.get().cast_signed()),
        ExtentRef::SharedData { count, .. } => format!("a leaf ({count})"),
        ref other => format!("{other:?}"),
    }
}

fn extents(volume: &Volume) -> BTreeMap<u64, Extent> {
    let mut extents: BTreeMap<u64, Extent> = BTreeMap::new();
    items(volume, TreeId::EXTENT, |key, data| match key.item_type {
        ItemType::EXTENT_ITEM => {
            let item = ExtentItem::parse(key.item_type, data).unwrap();
            assert!(item.is_sorted(), "{key}");
            if item.header.flags.contains(ExtentFlags::DATA) {
                let extent = Extent {
                    length: key.offset,
                    header: item.header,
                    inline: item.inline.len(),
                    refs: item.inline,
                };
                extents.insert(key.objectid, extent);
            }
        }
        ItemType::EXTENT_DATA_REF | ItemType::SHARED_DATA_REF => {
            let entry = ExtentRef::parse_keyed(&key, data).unwrap();
            extents.get_mut(&key.objectid).unwrap().refs.push(entry);
        }
        _ => {}
    });
    extents
}

/// Checksums by the addresses of their sectors.
fn checksums(volume: &Volume) -> BTreeMap<u64, Vec<u8>> {
    let superblock = volume.trees().superblock().clone();
    let (kind, sector) = (superblock.checksum_type, superblock.sector_size);
    let mut sums = BTreeMap::new();
    items(volume, TreeId::CSUM, |key, data| {
        let item = CsumItem::parse(&key, data, kind, sector).unwrap();
        let sectors = (item.start.get()..item.end.get()).step_by(sector as usize);
        let each = data.chunks(data.len() / sectors.clone().count());
        for (at, sum) in sectors.zip(each) {
            assert!(sums.insert(at, sum.to_vec()).is_none(), "{at} twice");
        }
    });
    sums
}

/// How the free space of each kind of block group is kept.
fn free_space(volume: &Volume, record: &mut Record) {
    let mut kinds = BTreeMap::new();
    for tree in [TreeId::EXTENT, TreeId::BLOCK_GROUP] {
        if volume.trees().root(tree).is_err() {
            continue;
        }
        items(volume, tree, |key, data| {
            if key.item_type == ItemType::BLOCK_GROUP_ITEM {
                let flags = BlockGroupItem::parse(data).unwrap().flags;
                kinds.insert(key.objectid, flags.describe());
            }
        });
    }
    let (mut infos, mut counts) = (BTreeMap::new(), BTreeMap::<u64, u32>::new());
    let mut group = 0;
    items(volume, TreeId::FREE_SPACE, |key, data| {
        match key.item_type {
            ItemType::FREE_SPACE_INFO => {
                group = key.objectid;
                infos.insert(group, FreeSpaceInfo::parse(data).unwrap());
            }
            ItemType::FREE_SPACE_EXTENT => *counts.entry(group).or_default() += 1,
            _ => panic!("{key}: a small volume has no bitmaps"),
        }
    });
    // mkfs.btrfs 6.2 leaves the items of block groups that it removed.
    infos.retain(|group, _| kinds.contains_key(group));
    assert_eq!(infos.len(), kinds.len(), "some have no free space");
    for (group, info) in infos {
        let mut to = Fields::of(record, format!("free space of {}", kinds[&group]));
        to.put("flags", info.flags.0);
        let counted = counts.get(&group).copied().unwrap_or_default();
        to.put("extents are counted", info.extents == counted);
    }
}

fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    let bytes: Vec<u8> = bytes.collect();
    butterfs_format::checksum::crc32c(&bytes)
}
