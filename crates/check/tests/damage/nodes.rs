//! Damage of superblocks and single nodes.

use crate::support::image::Image;
use crate::{Damage, damage};
use butterfs_check::FaultCode as C;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, field};

use butterfs_format::superblock::{COPIES, LABEL_SIZE, SIZE, SuperFlags};
use butterfs_format::{ChecksumType, Generation, ItemType, Key, Logical, TreeId};
use std::os::unix::fs::FileExt;

const FS: TreeId = TreeId::FS;

fn leaf(image: &mut Image, change: impl FnOnce(&mut [u8])) {
    let (leaf, _, _) = image.leaf(FS, 1);
    image.raw(leaf.logical, change);
}

fn pointer(image: &mut Image, change: impl FnOnce(&mut [u8])) {
    let (_, root, at) = image.leaf(FS, 1);
    image.raw(root, |bytes| change(&mut bytes[at..at + 33]));
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn add(bytes: &mut [u8], at: usize, by: u64) {
    let old = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    put(bytes, at, old.wrapping_add(by));
}

pub fn all() -> Vec<Damage> {
    vec![
        damage(C::SuperblockCopyInvalid, |i| {
            i.file
                .write_all_at(b"damage", COPIES[1].get() + 100)
                .unwrap();
        }),
        damage(C::SuperblockCopyStale, |i| {
            i.superblock.generation = Generation(i.superblock.generation.get() - 5);
            let bytes = i.superblock.encode(COPIES[1]);
            assert_eq!(bytes.len(), SIZE);
            i.file.write_all_at(&bytes, COPIES[1].get()).unwrap();
        }),
        damage(C::SuperblockField, |i| i.superblock(|s| s.root_dir = 7)),
        // A change of the fsid was cut short.
        damage(C::SuperblockField, |i| {
            i.superblock(|s| s.flags |= SuperFlags::CHANGING_FSID);
        }),
        damage(C::SuperblockField, |i| {
            i.superblock(|s| s.stripe_size = 65536);
        }),
        damage(C::SuperblockField, |i| {
            i.superblock(|s| s.label = vec![b'L'; LABEL_SIZE]);
        }),
        damage(C::SuperblockField, |i| {
            i.superblock(|s| s.bytes_used = s.total_bytes + 1);
        }),
        damage(C::SuperblockBytesUsed, |i| {
            i.superblock(|s| s.bytes_used += 4096)
        }),
        damage(C::SuperblockTotalBytes, |i| {
            i.superblock(|s| s.total_bytes += 4096)
        }),
        damage(C::SuperblockDevices, |i| {
            let (key, mut data) = i.first(TreeId::CHUNK, ItemType::DEV_ITEM);
            data[..8].copy_from_slice(&2_u64.to_le_bytes());
            i.insert(
                TreeId::CHUNK,
                Key::new(key.objectid, key.item_type, 2),
                &data,
            );
        }),
        damage(C::SuperblockDeviceItem, |i| {
            i.superblock(|s| s.device.bytes_used += 65536);
        }),
        damage(C::SuperblockChunks, |i| {
            i.superblock(|s| s.sys_chunks[0].1.io_align += 1);
        }),
        damage(C::NodeUnmapped, |i| pointer(i, |p| put(p, 17, 1 << 40))),
        damage(C::NodeCopyDamaged, |i| {
            let (leaf, _, _) = i.leaf(FS, 1);
            let copy = i.map.map(leaf.logical, 4096).unwrap().copies[0];
            i.file
                .write_all_at(b"damage", copy.offset.get() + 500)
                .unwrap();
        }),
        damage(C::NodeCopiesDiffer, |i| {
            let (leaf, _, _) = i.leaf(FS, 1);
            let mut bytes = i.read(leaf.logical);
            let at = bytes.len() - 1;
            bytes[at] ^= 1;
            ChecksumType::Crc32c.seal_block(&mut bytes);
            let copy = i.map.map(leaf.logical, 4096).unwrap().copies[1];
            i.file.write_all_at(&bytes, copy.offset.get()).unwrap();
        }),
        damage(C::NodeChecksum, |i| {
            let (leaf, _, _) = i.leaf(FS, 1);
            let mut bytes = i.read(leaf.logical);
            bytes[5000] ^= 1;
            i.write(leaf.logical, &bytes);
        }),
        damage(C::NodeFsid, |i| leaf(i, |b| b[field::FSID] ^= 1)),
        damage(C::NodeAddress, |i| {
            leaf(i, |b| add(b, field::LOGICAL, 4096))
        }),
        damage(C::NodeGeneration, |i| {
            leaf(i, |b| add(b, field::GENERATION, 1))
        }),
        damage(C::NodeLevel, |i| leaf(i, |b| b[field::LEVEL] = 1)),
        damage(C::NodeItemCount, |i| {
            leaf(i, |b| b[field::ITEM_COUNT + 1] = 0xff)
        }),
        damage(C::NodeEmpty, |i| {
            leaf(i, |b| b[field::ITEM_COUNT..][..4].fill(0))
        }),
        damage(C::NodeKeyOrder, |i| {
            leaf(i, |b| {
                let (first, second) = b[HEADER_SIZE..].split_at_mut(ITEM_SIZE);
                first[..17].swap_with_slice(&mut second[..17]);
            });
        }),
        damage(C::NodeFirstKey, |i| pointer(i, |p| add(p, 9, 1))),
        damage(C::NodeLastKey, |i| {
            leaf(i, |b| {
                let count = usize::from(u16::from_le_bytes([b[96], b[97]]));
                put(b, HEADER_SIZE + (count - 1) * ITEM_SIZE, 1 << 50);
            });
        }),
        damage(C::NodeItemRange, |i| leaf(i, |b| b[HEADER_SIZE + 21] ^= 1)),
        damage(C::NodePointer, |i| pointer(i, |p| add(p, 17, 1))),
        damage(C::NodePointerGeneration, |i| {
            pointer(i, |p| add(p, 25, 1000))
        }),
        damage(C::NodeOwner, |i| {
            let root = i.root(FS);
            i.raw(root.logical, |b| put(b, field::OWNER, 257));
        }),
        damage(C::NodeOwner, |i| {
            leaf(i, |b| put(b, field::OWNER, (1 << 48) + 300))
        }),
        // The top-level subvolume and a snapshot share this leaf.
        damage(C::NodeOwner, |i| {
            let snapshot = i.nodes(TreeId(258));
            let mut own = i.nodes(FS).into_iter();
            let shared = own.rfind(|node| snapshot.contains(node)).unwrap();
            i.raw(shared, |b| put(b, field::OWNER, 256));
        }),
        damage(C::NodeFlags, |i| leaf(i, |b| b[field::FLAGS] = 0)),
        damage(C::NodeReachedTwice, |i| {
            let twin = i.root(TreeId::DEVICE);
            let (key, _) = i.find(TreeId::ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::UUID.get()
            });
            i.update(TreeId::ROOT, key, |item| {
                put(item, 160, twin.generation.get());
                put(item, 176, twin.logical.get());
            });
        }),
    ]
}

/// Returns the first free range of more than 1 MiB whose start is `within`: the
/// key of its item, and an address in it.
pub fn free_at(image: &Image, within: impl Fn(Logical) -> bool) -> (Key, u64) {
    let (key, _) = image.find(TreeId::FREE_SPACE, |key, _| {
        key.item_type == ItemType::FREE_SPACE_EXTENT
            && key.offset > 1 << 20
            && within(Logical(key.objectid))
    });
    (key, key.objectid + 65536)
}
