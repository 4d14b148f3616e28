//! Rules of attributes and names that random operations seldom meet.

mod common;

use butterfs_format::TreeId;
use butterfs_fs::attr::{Privileges, SetAttributes};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFIFO, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use butterfs_testkit::Random;
use butterfs_testkit::op::names::colliding;
use common::{check, mkfs, open_subvolume};

/// Names with one hash share an item, which must not outgrow a node. Whoever
/// sets a value that would do so gets an error, and nothing else happens.
#[test]
fn attributes_with_one_hash_share_a_node() {
    let (_dir, image) = mkfs(300 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), b"file", &new).unwrap();
    let names: Vec<_> = colliding(&mut Random::new(1), 3)
        .iter()
        .map(|name| [b"user.", &name[..]].concat())
        .collect();
    let set = |name: &[u8], length| fs.set_xattr(&inode, name, &vec![1; length], SetMode::Any);
    set(&names[0], 7000).unwrap();
    set(&names[1], 7000).unwrap();
    // The first replaces an old value, the second is a new attribute.
    assert_eq!(set(&names[0], 10_000).unwrap_err().errno(), 28);
    assert_eq!(set(&names[2], 3000).unwrap_err().errno(), 28);
    assert_eq!(set(b"user.alone", 16_384).unwrap_err().errno(), 28);
    assert_eq!(fs.get_xattr(inode.id, &names[0]).unwrap().len(), 7000);
    set(&names[0], 9000).unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

#[test]
fn a_whiteout_belongs_to_who_renames() {
    let (_dir, image) = mkfs(300 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let owner = |id| Owner { uid: id, gid: id };
    let new = NewInode::new(S_IFDIR | 0o777, owner(2000));
    let dir = fs.create(fs.root(), b"dir", &new).unwrap().id;
    let new = NewInode::new(S_IFREG | 0o644, owner(1000));
    fs.create(dir, b"old", &new).unwrap();
    let place = |name| Place { dir, name };
    let whiteout = OldName::Whiteout(owner(1000));
    fs.rename(place(b"old"), place(b"new"), RenameMode::Replace, whiteout)
        .unwrap();
    let left = fs.lookup(dir, b"old").unwrap().inode;
    let attributes = fs.attributes(left).unwrap();
    assert_eq!((attributes.uid, attributes.gid), (1000, 1000));
    assert_eq!((attributes.mode, attributes.rdev), (0o020_000, 0));
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

#[test]
fn pipes_lose_privileges_as_files_do() {
    let (_dir, image) = mkfs(300 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let set = SetAttributes {
        uid: Some(5),
        privileges: Privileges::Drop,
        ..SetAttributes::default()
    };
    for (kind, left) in [(S_IFREG, 0o755), (S_IFIFO, 0o755), (S_IFDIR, 0o6755)] {
        let new = NewInode::new(kind | 0o6755, Owner::default());
        let name = format!("{kind:o}");
        let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
        fs.set_attributes(&inode, &set).unwrap();
        assert_eq!(fs.attributes_of(&inode).unwrap().mode, kind | left);
    }
}
