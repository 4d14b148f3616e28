//! Damage of inodes, names, file extents and subvolumes.

use crate::support::image::Image;
use crate::{Damage, damage};
use butterfs_check::FaultCode as C;
use butterfs_format::features::Incompat;
use butterfs_format::{ItemType, Key, TreeId};

const FS: TreeId = TreeId::FS;
const ROOT: TreeId = TreeId::ROOT;

/// Returns the item of a name: its DIR_ITEM or DIR_INDEX, by `item_type`.
fn entry(image: &Image, name: &str, item_type: ItemType) -> (Key, Vec<u8>) {
    image.find(FS, |key, data| {
        key.item_type == item_type && data.get(30..) == Some(name.as_bytes())
    })
}

/// Returns the key of the inode of a name.
fn inode(image: &Image, name: &str) -> Key {
    let (_, data) = entry(image, name, ItemType::DIR_INDEX);
    let number = u64::from_le_bytes(data[..8].try_into().unwrap());
    Key::new(number, ItemType::INODE_ITEM, 0)
}

/// Returns the key of an inode's first item of a type. A name selects the inode.
fn of(image: &Image, name: &str, item_type: ItemType) -> Key {
    let number = inode(image, name).objectid;
    let fits = |key: Key, _: &[u8]| key.objectid == number && key.item_type == item_type;
    image.find(FS, fits).0
}

/// Returns the key of the root item of the subvolume `sub`.
fn sub(image: &Image) -> Key {
    let (key, _) = image.find(ROOT, |key, _| {
        key.item_type == ItemType::ROOT_ITEM && key.objectid == 256
    });
    key
}

fn inodes() -> Vec<Damage> {
    vec![
        damage(C::ItemInvalid, |i| {
            let (key, _) = i.first(FS, ItemType::XATTR_ITEM);
            i.update(FS, key, |data| data[31] ^= 1);
        }),
        damage(C::ItemUnexpected, |i| {
            let key = inode(i, "tiny");
            i.insert(FS, Key::new(key.objectid, ItemType(77), 0), &[0; 4]);
        }),
        damage(C::InodeInvalid, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[52..56].fill(0));
        }),
        damage(C::InodeInvalid, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[54] = 1);
        }),
        // Flags that no kernel knows.
        damage(C::InodeInvalid, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[66] |= 0x10);
        }),
        damage(C::InodeInvalid, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[68] |= 0x80);
        }),
        damage(C::InodeInvalid, |i| {
            let key = inode(i, "symlink");
            i.update(FS, key, |data| data[64] |= 64);
        }),
        damage(C::InodeCache, |i| {
            let key = Key::new(u64::MAX - 11, ItemType::INODE_ITEM, 0);
            i.insert(FS, key, &[0; 160]);
        }),
        damage(C::InodeMissing, |i| {
            let key = inode(i, "tiny");
            i.remove(FS, key);
        }),
        damage(C::InodeLinks, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[40] += 1);
        }),
        damage(C::InodeLinksMax, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[42] += 1);
        }),
        damage(C::InodeBytes, |i| {
            let key = inode(i, "changed");
            i.bump(FS, key, 24, 4096);
        }),
        damage(C::InodeSize, |i| {
            let key = inode(i, "d");
            i.bump(FS, key, 16, 1);
        }),
        damage(C::InodeKind, |i| {
            let key = inode(i, "changed");
            i.update(FS, key, |data| data[53] = 0x10);
        }),
        damage(C::InodeOrphanMissing, |i| {
            let key = inode(i, "tiny");
            i.update(FS, key, |data| data[40] = 0);
        }),
        damage(C::InodeRootMissing, |i| {
            i.remove(FS, Key::new(256, ItemType::INODE_ITEM, 0));
        }),
    ]
}

fn names() -> Vec<Damage> {
    vec![
        damage(C::NameInvalid, |i| {
            let (key, _) = entry(i, "tiny", ItemType::DIR_ITEM);
            i.update(FS, key, |data| data[30] = b'T');
        }),
        damage(C::NameInvalid, |i| {
            let number = inode(i, "tiny").objectid;
            let key = Key::new(number, ItemType::INODE_REF, number);
            i.insert(FS, key, &[0, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'.', b'.']);
        }),
        damage(C::NameDuplicate, |i| {
            let (key, data) = entry(i, "tiny", ItemType::DIR_ITEM);
            i.remove(FS, key);
            i.insert(FS, key, &[data.clone(), data].concat());
        }),
        damage(C::NameIndexMissing, |i| {
            let (key, _) = entry(i, "tiny", ItemType::DIR_INDEX);
            i.remove(FS, key);
        }),
        damage(C::NameItemMissing, |i| {
            let (key, _) = entry(i, "tiny", ItemType::DIR_ITEM);
            i.remove(FS, key);
        }),
        damage(C::NameReferenceMissing, |i| {
            let key = of(i, "tiny", ItemType::INODE_REF);
            i.remove(FS, key);
        }),
        damage(C::NameKind, |i| {
            let (key, _) = entry(i, "tiny", ItemType::DIR_INDEX);
            i.update(FS, key, |data| data[29] = 3);
            let (key, _) = entry(i, "tiny", ItemType::DIR_ITEM);
            i.update(FS, key, |data| data[29] = 3);
        }),
    ]
}

fn file_extents() -> Vec<Damage> {
    vec![
        damage(C::FileExtentInvalid, |i| {
            let key = of(i, "changed", ItemType::EXTENT_DATA);
            i.bump(FS, key, 29, 1);
        }),
        damage(C::FileExtentInvalid, |i| {
            let key = of(i, "changed", ItemType::EXTENT_DATA);
            i.bump(FS, key, 8, 1);
        }),
        // A file extent that reaches beyond the end of its hole.
        damage(C::FileExtentInvalid, |i| {
            let key = of(i, "changed", ItemType::EXTENT_DATA);
            let mut hole = [0; 53];
            hole[0] = 1;
            hole[9] = 16;
            hole[20] = 1;
            hole[38] = 16;
            hole[46] = 16;
            i.insert(FS, Key::new(key.objectid, key.item_type, 1 << 30), &hole);
        }),
        damage(C::FileExtentOverlap, |i| {
            let key = of(i, "prealloc", ItemType::EXTENT_DATA);
            i.bump(FS, key, 45, 4096);
        }),
        damage(C::FileExtentHole, |i| {
            i.superblock(|s| s.incompat = s.incompat.without(Incompat::NO_HOLES));
        }),
        damage(C::FileExtentInline, |i| {
            let key = of(i, "tiny", ItemType::EXTENT_DATA);
            i.update(FS, key, |data| {
                data[8..16].copy_from_slice(&8192_u64.to_le_bytes());
                data[16] = 1;
            });
        }),
    ]
}

fn subvolumes() -> Vec<Damage> {
    vec![
        damage(C::RootInvalid, |i| {
            let key = sub(i);
            i.update(ROOT, key, |data| data[216] = 7);
        }),
        damage(C::RootInvalid, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::DATA_RELOC.get()
            });
            i.update(ROOT, key, |data| data[172] = 1);
        }),
        // The root item has a deletion's progress but still has references.
        damage(C::RootInvalid, |i| {
            let key = sub(i);
            i.update(ROOT, key, |data| data[221] = 1);
        }),
        // Fields for which the kernel reads nothing of the leaf.
        damage(C::RootInvalid, |i| {
            let key = sub(i);
            i.update(ROOT, key, |data| data[210] = 0x10);
        }),
        damage(C::RootInvalid, |i| {
            let key = sub(i);
            i.bump(ROOT, key, 200, 1 << 40);
        }),
        damage(C::RootInvalid, |i| {
            let key = sub(i);
            i.bump(ROOT, key, 239, 1 << 40);
        }),
        damage(C::RootInvalid, |i| {
            let key = sub(i);
            i.update(ROOT, key, |data| data[237] = 0x80);
        }),
        damage(C::RootInvalid, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::DEVICE.get()
            });
            i.rekey(ROOT, key, Key::new(key.objectid, key.item_type, 1));
        }),
        // The progress of a deletion cannot be at a leaf.
        damage(C::RootInvalid, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::DEVICE.get()
            });
            i.update(ROOT, key, |data| {
                data[216..220].fill(0);
                data[221] = 1;
            });
        }),
        damage(C::InodeInvalid, |i| {
            let (key, _) = i.first(ROOT, ItemType::INODE_ITEM);
            i.update(ROOT, key, |data| data[52..56].fill(0));
        }),
        // The entry that names the default subvolume.
        damage(C::RootMissing, |i| {
            let (key, _) = i.first(ROOT, ItemType::DIR_ITEM);
            i.update(ROOT, key, |data| {
                data[..8].copy_from_slice(&4000_u64.to_le_bytes());
            });
        }),
        damage(C::NameInvalid, |i| {
            let (key, _) = i.first(ROOT, ItemType::DIR_ITEM);
            i.update(ROOT, key, |data| data[30] ^= 1);
        }),
        damage(C::NameInvalid, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::INODE_REF && key.objectid == 6
            });
            i.update(ROOT, key, |data| data[8] = 255);
        }),
        damage(C::RootMissing, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::CSUM.get()
            });
            i.remove(ROOT, key);
        }),
        damage(C::RootReferenceMissing, |i| {
            let (key, _) = i.first(ROOT, ItemType::ROOT_REF);
            i.remove(ROOT, key);
        }),
        damage(C::RootBackrefMissing, |i| {
            let (key, _) = i.first(ROOT, ItemType::ROOT_BACKREF);
            i.remove(ROOT, key);
        }),
        damage(C::RootEntryMissing, |i| {
            let (key, _) = entry(i, "sub", ItemType::DIR_INDEX);
            i.remove(FS, key);
        }),
        damage(C::RootOrphanMissing, |i| {
            let key = sub(i);
            i.update(ROOT, key, |data| data[216] = 0);
        }),
        damage(C::RootBytes, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == TreeId::EXTENT.get()
            });
            i.update(ROOT, key, |data| data[193] ^= 0x40);
        }),
        damage(C::RootFlags, |i| {
            let key = sub(i);
            i.update(ROOT, key, |data| {
                data[67] &= 0x7f;
                data[208] |= 1;
            });
        }),
        damage(C::RootUnreachable, |i| {
            let (key, _) = i.first(ROOT, ItemType::ROOT_BACKREF);
            i.remove(ROOT, key);
            let back = Key::new(key.offset, ItemType::ROOT_REF, key.objectid);
            i.remove(ROOT, back);
        }),
        damage(C::UuidTopLevel, |i| {
            let (key, _) = i.find(ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == FS.get()
            });
            i.update(ROOT, key, |data| data[247] ^= 1);
        }),
        damage(C::UuidMissing, |i| {
            let (key, _) = i.find(TreeId::UUID, |key, data| {
                key.item_type == ItemType::UUID_SUBVOL && data[0..2] == [0, 1]
            });
            i.remove(TreeId::UUID, key);
        }),
        damage(C::UuidWrong, |i| {
            let (key, _) = i.first(TreeId::UUID, ItemType::UUID_SUBVOL);
            i.bump(TreeId::UUID, key, 0, 100);
        }),
        damage(C::QgroupMissing, |i| {
            let (key, _) = i.first(TreeId::QUOTA, ItemType::QGROUP_INFO);
            i.remove(TreeId::QUOTA, key);
        }),
        damage(C::QgroupNumbers, |i| {
            let (key, _) = i.first(TreeId::QUOTA, ItemType::QGROUP_INFO);
            i.bump(TreeId::QUOTA, key, 8, 4096);
        }),
        damage(C::QgroupVersion, |i| {
            let (key, _) = i.first(TreeId::QUOTA, ItemType::QGROUP_STATUS);
            i.bump(TreeId::QUOTA, key, 0, 6);
        }),
    ]
}

pub fn all() -> Vec<Damage> {
    let mut all = inodes();
    all.extend(names());
    all.extend(file_extents());
    all.extend(subvolumes());
    all
}
