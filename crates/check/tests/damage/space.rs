//! Damage of chunks, extents, checksums and free space.

use crate::nodes::free_at;
use crate::support::image::Image;
use crate::{Damage, damage};
use butterfs_check::FaultCode as C;
use butterfs_format::features::CompatRo;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use std::os::unix::fs::FileExt;

const CHUNK: TreeId = TreeId::CHUNK;
const EXTENT: TreeId = TreeId::EXTENT;
const DEVICE: TreeId = TreeId::DEVICE;
const FREE: TreeId = TreeId::FREE_SPACE;
const CSUM: TreeId = TreeId::CSUM;

/// Sizes in bytes of an extent item with one reference, by a leaf or by a file.
const ONE_REFERENCE: [usize; 2] = [37, 53];

fn data_chunk(image: &Image) -> (Key, Vec<u8>) {
    image.find(CHUNK, |key, data| {
        key.item_type == ItemType::CHUNK_ITEM && data[24] == 1
    })
}

fn group(image: &Image) -> Key {
    let (chunk, _) = data_chunk(image);
    let at = chunk.offset;
    let (key, _) = image.find(EXTENT, |key, _| {
        key.item_type == ItemType::BLOCK_GROUP_ITEM && key.objectid == at
    });
    key
}

fn data_extent(image: &Image) -> Key {
    let (key, _) = image.find(EXTENT, |key, data| {
        key.item_type == ItemType::EXTENT_ITEM
            && data[16] == 1
            && key.offset > 65536
            && ONE_REFERENCE.contains(&data.len())
    });
    key
}

fn node_extent(image: &Image) -> Key {
    image.first(EXTENT, ItemType::METADATA_ITEM).0
}

fn is(image: &Image, at: Logical, flags: BlockGroupFlags) -> bool {
    image
        .map
        .find(at)
        .is_some_and(|(_, chunk)| chunk.flags.contains(flags))
}

/// Returns a free range in a block group of data: the key of its item, and an
/// address in it.
fn free_data(image: &Image) -> (Key, u64) {
    free_at(image, |at| is(image, at, BlockGroupFlags::DATA))
}

/// Builds an extent item with one reference by a file.
pub fn extent_item(key: Key, root: u64) -> Vec<u8> {
    let mut data = Vec::new();
    for word in [1_u64, 5, 1] {
        data.extend(word.to_le_bytes());
    }
    data.push(178);
    for word in [root, 257, key.offset] {
        data.extend(word.to_le_bytes());
    }
    data.extend(1_u32.to_le_bytes());
    data
}

fn insert_extent(image: &mut Image, at: u64) {
    let key = Key::new(at, ItemType::EXTENT_ITEM, 4096);
    let data = extent_item(key, 5);
    image.insert(EXTENT, key, &data);
}

fn info(image: &Image) -> Key {
    let at = group(image).objectid;
    let (key, _) = image.find(FREE, |key, _| {
        key.item_type == ItemType::FREE_SPACE_INFO && key.objectid == at
    });
    key
}

fn with(key: Key, change: impl FnOnce(&mut Key)) -> Key {
    let mut key = key;
    change(&mut key);
    key
}

fn chunks() -> Vec<Damage> {
    vec![
        damage(C::ChunkInvalid, |i| {
            let (key, _) = data_chunk(i);
            i.bump(CHUNK, key, 16, 4096);
        }),
        damage(C::ChunkInvalid, |i| {
            let (key, _) = data_chunk(i);
            i.update(CHUNK, key, |data| data[64] ^= 1);
        }),
        // Data and metadata in one chunk, without the feature.
        damage(C::ChunkInvalid, |i| {
            let (key, _) = data_chunk(i);
            i.update(CHUNK, key, |data| data[24] |= 4);
        }),
        damage(C::ChunkWithoutBlockGroup, |i| {
            let key = group(i);
            i.remove(EXTENT, key);
        }),
        damage(C::ChunkWithoutDeviceExtent, |i| {
            let (key, _) = i.first(DEVICE, ItemType::DEV_EXTENT);
            i.remove(DEVICE, key);
        }),
        damage(C::BlockGroupInvalid, |i| {
            let key = group(i);
            i.bump(EXTENT, key, 0, 1 << 50);
        }),
        damage(C::BlockGroupInvalid, |i| {
            let key = group(i);
            i.bump(EXTENT, key, 8, 128);
        }),
        damage(C::BlockGroupWithoutChunk, |i| {
            let (_, data) = i.first(EXTENT, ItemType::BLOCK_GROUP_ITEM);
            let key = Key::new(1 << 40, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
            i.insert(EXTENT, key, &data);
        }),
        damage(C::BlockGroupFlags, |i| {
            let key = group(i);
            i.update(EXTENT, key, |data| data[16] = 4);
        }),
        damage(C::BlockGroupUsed, |i| {
            let key = group(i);
            i.bump(EXTENT, key, 0, 4096);
        }),
        damage(C::DeviceItemInvalid, |i| {
            let (key, _) = i.first(CHUNK, ItemType::DEV_ITEM);
            i.bump(CHUNK, key, 16, 1 << 50);
        }),
        damage(C::DeviceItemInvalid, |i| {
            let (key, _) = i.first(CHUNK, ItemType::DEV_ITEM);
            i.update(CHUNK, key, |data| data[82] ^= 1);
        }),
        damage(C::DeviceItemInvalid, |i| {
            let (key, _) = i.first(CHUNK, ItemType::DEV_ITEM);
            i.rekey(CHUNK, key, Key::new(2, ItemType::DEV_ITEM, 1));
        }),
        damage(C::ItemUnexpected, |i| {
            let (key, _) = i.first(DEVICE, ItemType::PERSISTENT_ITEM);
            i.rekey(DEVICE, key, Key::MIN);
        }),
        damage(C::DeviceExtentInvalid, |i| {
            let (key, _) = i.first(DEVICE, ItemType::DEV_EXTENT);
            i.update(DEVICE, key, |data| data[24..32].fill(0));
        }),
        damage(C::DeviceExtentWithoutChunk, |i| {
            let (_, data) = i.first(DEVICE, ItemType::DEV_EXTENT);
            i.insert(DEVICE, Key::new(1, ItemType::DEV_EXTENT, 1 << 29), &data);
        }),
        damage(C::DeviceExtentOverlap, |i| {
            let (key, _) = i.first(DEVICE, ItemType::DEV_EXTENT);
            i.bump(DEVICE, key, 24, 1 << 30);
        }),
        damage(C::DeviceExtentBeyondDevice, |i| {
            let (_, data) = i.first(DEVICE, ItemType::DEV_EXTENT);
            i.insert(DEVICE, Key::new(1, ItemType::DEV_EXTENT, 1 << 40), &data);
        }),
        damage(C::DeviceBytesUsed, |i| {
            let (key, _) = i.first(CHUNK, ItemType::DEV_ITEM);
            i.bump(CHUNK, key, 16, 4096);
        }),
        damage(C::DeviceSize, |i| {
            i.file
                .set_len(i.superblock.total_bytes - (1 << 20))
                .unwrap();
        }),
    ]
}

fn extents() -> Vec<Damage> {
    vec![
        damage(C::ExtentItemInvalid, |i| {
            let key = node_extent(i);
            i.update(EXTENT, key, |data| data[..8].fill(0));
        }),
        damage(C::ExtentOverlap, |i| {
            let key = data_extent(i);
            let at = key.objectid + 4096;
            insert_extent(i, at);
        }),
        damage(C::ExtentOutsideBlockGroup, |i| insert_extent(i, 1 << 40)),
        damage(C::ExtentWrongBlockGroup, |i| {
            let (_, at) = free_at(i, |at| is(i, at, BlockGroupFlags::METADATA));
            insert_extent(i, at);
        }),
        damage(C::ExtentMissing, |i| {
            let key = data_extent(i);
            i.remove(EXTENT, key);
        }),
        damage(C::ExtentLength, |i| {
            let key = data_extent(i);
            i.rekey(EXTENT, key, with(key, |k| k.offset -= 4096));
        }),
        damage(C::ExtentGeneration, |i| {
            let key = node_extent(i);
            i.bump(EXTENT, key, 8, u64::MAX);
        }),
        damage(C::ExtentUnreferenced, |i| {
            let (_, at) = free_data(i);
            insert_extent(i, at);
        }),
        damage(C::ExtentReferenceCount, |i| {
            let key = node_extent(i);
            i.bump(EXTENT, key, 0, 1 << 63);
        }),
        damage(C::ExtentReferenceMissing, |i| {
            let key = data_extent(i);
            i.bump(EXTENT, key, 25, 1);
        }),
        damage(C::ExtentReferenceExtra, |i| {
            let key = data_extent(i);
            i.bump(EXTENT, key, 25, 1);
        }),
        damage(C::ExtentByParent, |i| {
            let key = node_extent(i);
            i.update(EXTENT, key, |data| data[17] |= 1);
        }),
        damage(C::ExtentByParent, |i| {
            let root = i.root(TreeId::FS).logical.get();
            let (key, _) = i.find(EXTENT, |key, _| {
                key.item_type == ItemType::METADATA_ITEM && key.objectid == root
            });
            i.update(EXTENT, key, |data| data[17] |= 1);
        }),
        damage(C::ExtentReferenceCount, |i| {
            let key = data_extent(i);
            i.bump(EXTENT, key, 0, 1);
        }),
    ]
}

fn checksums() -> Vec<Damage> {
    vec![
        damage(C::ChecksumItemInvalid, |i| {
            let (key, _) = i.first(CSUM, ItemType::EXTENT_CSUM);
            i.rekey(CSUM, key, with(key, |k| k.offset += 1));
        }),
        damage(C::ChecksumOverlap, |i| {
            let (key, _) = i.find(CSUM, |_, data| data.len() > 64);
            i.insert(CSUM, with(key, |k| k.offset += 4096), &[0; 4]);
        }),
        damage(C::ChecksumWithoutExtent, |i| {
            let (_, at) = free_data(i);
            let (key, _) = i.first(CSUM, ItemType::EXTENT_CSUM);
            i.insert(CSUM, with(key, |k| k.offset = at), &[0; 4]);
        }),
        damage(C::ChecksumMissing, |i| {
            let (key, _) = i.first(CSUM, ItemType::EXTENT_CSUM);
            i.remove(CSUM, key);
        }),
        damage(C::ChecksumMissing, |i| {
            // Compressed data must have checksums even if the inode is
            // NODATASUM.
            let (key, _) = i.find(TreeId::FS, |key, data| {
                key.item_type == ItemType::EXTENT_DATA
                    && data[20] == 1
                    && data[29..37] == 8192_u64.to_le_bytes()
                    && data[8..16] == 8192_u64.to_le_bytes()
            });
            i.update(TreeId::FS, key, |data| data[16] = 3);
        }),
        damage(C::ChecksumUnexpected, |i| {
            let (extent, _) = i.find(TreeId::FS, |key, data| {
                key.item_type == ItemType::EXTENT_DATA && data[20] == 1 && data[28] == 0
            });
            let key = Key::new(extent.objectid, ItemType::INODE_ITEM, 0);
            i.update(TreeId::FS, key, |data| data[64] |= 1);
        }),
        damage(C::DataChecksum, |i| {
            let (key, _) = i.first(CSUM, ItemType::EXTENT_CSUM);
            let copy = i.map.map(Logical(key.offset), 4096).unwrap().copies[0];
            i.file
                .write_all_at(b"damage", copy.offset.get() + 7)
                .unwrap();
        }),
    ]
}

fn free_space() -> Vec<Damage> {
    vec![
        damage(C::FreeSpaceInvalid, |i| {
            let key = info(i);
            i.update(FREE, key, |data| data[4] = 4);
        }),
        damage(C::FreeSpaceOrphan, |i| {
            i.insert(
                FREE,
                Key::new(1 << 40, ItemType::FREE_SPACE_EXTENT, 4096),
                &[],
            );
        }),
        damage(C::FreeSpaceNotValid, |i| {
            i.superblock(|s| s.compat_ro -= CompatRo::FREE_SPACE_TREE_VALID);
        }),
        damage(C::FreeSpaceInfoMissing, |i| {
            let key = info(i);
            i.remove(FREE, key);
        }),
        damage(C::FreeSpaceWrongGroup, |i| {
            let (key, _) = free_data(i);
            i.rekey(FREE, key, with(key, |k| k.offset += 1 << 32));
        }),
        // An info that begins before the first block group and reaches into it.
        damage(C::FreeSpaceWrongGroup, |i| {
            let key = Key::new(4096, ItemType::FREE_SPACE_INFO, 1 << 40);
            i.insert(FREE, key, &[0; 8]);
        }),
        damage(C::FreeSpaceCount, |i| {
            let key = info(i);
            i.update(FREE, key, |data| data[0] += 1);
        }),
        damage(C::FreeSpaceOverlapsExtent, |i| {
            let (key, _) = free_data(i);
            i.rekey(FREE, key, with(key, |k| k.objectid -= 4096));
        }),
        damage(C::FreeSpaceMissing, |i| {
            let (key, _) = free_data(i);
            i.rekey(FREE, key, with(key, |k| k.offset -= 4096));
        }),
    ]
}

pub fn all() -> Vec<Damage> {
    let mut all = chunks();
    all.extend(extents());
    all.extend(checksums());
    all.extend(free_space());
    all
}
