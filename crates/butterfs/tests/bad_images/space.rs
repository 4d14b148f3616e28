//! Chunks, devices, device extents and block groups that contradict each other,
//! and nodes of wrong trees. They are refused as by the kernel, each with a
//! kind of its own. What the kernel accepts is accepted.

use crate::common::*;
use butterfs::{Access, Error, MemoryDevice, StoreError, TreeId, Volume};
use butterfs_admin::mkfs::ProfileChoice::Single;
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{ItemType, Key};
use butterfs_store::Roots;
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{self, KernelMount, scratch_dir};
use butterfs_tree::{NodeFault, TreeError};
use std::path::Path;
use std::sync::Arc;

/// What is done with a volume.
#[derive(Clone, Copy)]
enum Verdict {
    /// Refused, with a fault of this name.
    Refused(&'static str),
    /// Opened, read and written.
    Taken,
    /// Opened and read. The kernel refuses it, and so does whoever wants to
    /// write, with a fault of this name.
    OnlyRead(&'static str),
}
use Verdict::{OnlyRead, Refused, Taken};

/// Changes one item: bytes of the leaf, where the key is, where the data are.
type Change = fn(&mut [u8], usize, usize);

struct Case {
    what: &'static str,
    tree: TreeId,
    item: ItemType,
    change: Change,
    verdict: Verdict,
}

const fn case(
    what: &'static str,
    (tree, item): (TreeId, ItemType),
    change: Change,
    verdict: Verdict,
) -> Case {
    Case {
        what,
        tree,
        item,
        change,
        verdict,
    }
}

const CHUNK: (TreeId, ItemType) = (TreeId::CHUNK, ItemType::CHUNK_ITEM);
const DEVICE: (TreeId, ItemType) = (TreeId::CHUNK, ItemType::DEV_ITEM);
const EXTENT: (TreeId, ItemType) = (TreeId::DEVICE, ItemType::DEV_EXTENT);
const GROUP: (TreeId, ItemType) = (TreeId::BLOCK_GROUP, ItemType::BLOCK_GROUP_ITEM);

fn add(bytes: &mut [u8], at: usize, by: u64) {
    let old = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    put_u64(bytes, at, old.wrapping_add(by));
}

/// Hides an item from whoever looks for its type.
fn hide(bytes: &mut [u8], key: usize, _: usize) {
    bytes[key + 8] += 1;
}

const CASES: &[Case] = &[
    case(
        "a device extent of no chunk",
        EXTENT,
        |b, _, data| add(b, data + 16, 1 << 40),
        Refused("ExtentWithoutChunk"),
    ),
    case(
        "a longer device extent",
        EXTENT,
        |b, _, data| add(b, data + 24, 4096),
        Refused("ExtentLength"),
    ),
    case(
        "a device extent elsewhere",
        EXTENT,
        |b, key, _| add(b, key + 9, 65536),
        Refused("ExtentWithoutStripe"),
    ),
    case(
        "no device extent",
        EXTENT,
        hide,
        Refused("StripeWithoutExtent"),
    ),
    case(
        "a device extent of another tree",
        EXTENT,
        |b, _, data| put_u64(b, data, 4),
        Refused("ExtentKind"),
    ),
    case(
        "a device extent that names the middle of its chunk",
        EXTENT,
        |b, _, data| add(b, data + 16, 65536),
        Taken,
    ),
    case(
        "a device extent of another chunk tree's UUID",
        EXTENT,
        |b, _, data| add(b, data + 32, 1),
        Taken,
    ),
    case(
        "a stripe's UUID",
        CHUNK,
        |b, _, data| add(b, data + 64, 1),
        Refused("StripeUuid"),
    ),
    case(
        "a stripe's device",
        CHUNK,
        |b, _, data| put_u64(b, data + 48, 2),
        Refused("MissingDevice"),
    ),
    case(
        "a chunk's sector size",
        CHUNK,
        |b, _, data| b[data + 40..data + 44].copy_from_slice(&8192_u32.to_le_bytes()),
        Refused("SectorSize"),
    ),
    case(
        "a chunk's owner",
        CHUNK,
        |b, _, data| put_u64(b, data + 8, 5),
        Taken,
    ),
    case(
        "a device item's volume",
        DEVICE,
        |b, _, data| add(b, data + 82, 1),
        Refused("DeviceOfOtherVolume"),
    ),
    case(
        "a device item's UUID",
        DEVICE,
        |b, _, data| add(b, data + 66, 1),
        Refused("DeviceUuid"),
    ),
    case(
        "a device item's number",
        DEVICE,
        |b, _, data| put_u64(b, data, 2),
        Refused("DeviceNumber"),
    ),
    case(
        "a device item beyond the device",
        DEVICE,
        |b, _, data| add(b, data + 8, 1 << 20),
        OnlyRead("DeviceSize"),
    ),
    case(
        "a device item with more used than there is",
        DEVICE,
        |b, _, data| put_u64(b, data + 16, 1 << 40),
        Refused("DeviceUsed"),
    ),
    case("no device item", DEVICE, hide, Refused("NoDeviceItem")),
    case(
        "a device item with other use",
        DEVICE,
        |b, _, data| add(b, data + 16, 65536),
        Taken,
    ),
    case(
        "a longer block group",
        GROUP,
        |b, key, _| add(b, key + 9, 65536),
        Refused("GroupWithoutChunk"),
    ),
    case(
        "a block group behind all chunks",
        GROUP,
        |b, key, _| add(b, key, 1 << 40),
        Refused("GroupWithoutChunk"),
    ),
    case(
        "a block group within its chunk",
        GROUP,
        |b, key, _| add(b, key, 65536),
        Refused("GroupWithoutChunk"),
    ),
    case(
        "a block group of another type",
        GROUP,
        |b, _, data| {
            let other = if b[data + 16] & 7 == 4 { 1 } else { 4 };
            put_u64(b, data + 16, other);
        },
        Refused("GroupType"),
    ),
    case(
        "a block group of another object",
        GROUP,
        |b, _, data| put_u64(b, data + 8, 257),
        Refused("GroupNumbers"),
    ),
    case(
        "a block group with more used than there is",
        GROUP,
        |b, _, data| put_u64(b, data, 1 << 40),
        Refused("GroupNumbers"),
    ),
    case(
        "a block group of another profile",
        GROUP,
        |b, _, data| add(b, data + 16, 1 << 5),
        Taken,
    ),
];

/// Changes the last item of a type, so that keys stay in order.
fn edit_last(image: &Image, device: &MemoryDevice, case: &Case) {
    let mut last = None;
    for place in image.nodes_of(case.tree) {
        let bytes = read(device, place.copies[0], NODE);
        item(&bytes, |key, _| {
            if key.item_type == case.item && place.node.level == 0 {
                last = last.max(Some(*key));
            }
            false
        });
    }
    let wanted = last.unwrap_or_else(|| panic!("no item for {}", case.what));
    let is_it = |key: &Key, _: &[u8]| *key == wanted;
    edit_item(image, device, case.tree, is_it, case.change);
}

/// Asserts that the kernel and ButterFS both treat a volume as `verdict` says.
#[track_caller]
fn judge(what: &str, device: &Arc<MemoryDevice>, verdict: Verdict, kernel: Option<&Path>) {
    if let Some(path) = kernel {
        device.save(path).unwrap();
        let access = match verdict {
            Refused(_) | OnlyRead(_) => judge::Access::ReadOnly,
            Taken => judge::Access::ReadWrite,
        };
        let mounted = KernelMount::mount(path, access, "");
        assert_eq!(
            mounted.is_ok(),
            matches!(verdict, Taken),
            "{what}: the kernel does otherwise: {:?}",
            mounted.err()
        );
    }
    let before = device.snapshot();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let verdict = match (verdict, access) {
            (OnlyRead(_), Access::ReadOnly) => Taken,
            (OnlyRead(kind), Access::ReadWrite) => Refused(kind),
            _ => verdict,
        };
        match (open(device, access), verdict) {
            (Err(error), Refused(kind)) => {
                let text = one_sentence(&error);
                assert!(format!("{error:?}").contains(kind), "{what}: {text}");
            }
            (Ok(volume), Taken) => {
                assert!(read_all(&volume).unwrap() > 0, "{what}");
                if access == Access::ReadWrite {
                    volume.write_file(b"new", b"content").unwrap();
                    volume.close().unwrap();
                }
            }
            (Ok(_), Refused(kind) | OnlyRead(kind)) => {
                panic!("{what} is opened for {access:?}: {kind}")
            }
            (Err(error), Taken | OnlyRead(_)) => {
                panic!("{what} is not opened for {access:?}: {error}")
            }
        }
    }
    if matches!(verdict, Refused(_) | OnlyRead(_)) {
        assert_eq!(device.first_difference(&before), None, "{what}: a write");
    }
}

#[test]
fn contradictions_about_space_are_refused_as_by_the_kernel() {
    let image = image(Single);
    let dir = scratch_dir();
    let path = dir.path().join("contradiction.img");
    let with_kernel = Capability::all_here(&Capability::KERNEL_MOUNT);
    let kernel = with_kernel.then_some(&*path);
    for case in CASES {
        let device = image.copy();
        edit_last(&image, &device, case);
        judge(case.what, &device, case.verdict, kernel);
    }
    let device = image.copy();
    let chunk = case("no chunk", CHUNK, hide, Refused(""));
    edit_last(&image, &device, &chunk);
    judge(chunk.what, &device, Refused("ExtentWithoutChunk"), kernel);
    // Without its block group a chunk is read all the same.
    let device = image.copy();
    edit_last(&image, &device, &case("no group", GROUP, hide, Taken));
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), image.files.len());
}

#[test]
fn superblocks_are_refused_as_by_the_kernel() {
    let image = image(Single);
    let dir = scratch_dir();
    let path = dir.path().join("superblock.img");
    let with_kernel = Capability::all_here(&Capability::KERNEL_MOUNT);
    let kernel = with_kernel.then_some(&*path);
    type Edit = fn(&mut Superblock);
    let cases: [(&str, Edit, Verdict); 7] = [
        (
            "no stripe size",
            |s| s.stripe_size = 0,
            Refused("stripe size"),
        ),
        (
            "an odd stripe size",
            |s| s.stripe_size = 4095,
            Refused("stripe size"),
        ),
        (
            "a stripe size of two sectors",
            |s| s.stripe_size = 8192,
            Taken,
        ),
        (
            "fewer bytes used than trees need",
            |s| s.bytes_used = 0,
            Refused("bytes used"),
        ),
        (
            "an unknown flag",
            |s| s.flags |= SuperFlags(1 << 50),
            Refused("unknown flag"),
        ),
        (
            "a UUID that changes",
            |s| s.flags |= SuperFlags::CHANGING_FSID,
            Refused("UUID"),
        ),
        (
            "a device that says to be larger",
            |s| s.device.total_bytes = 1 << 40,
            Taken,
        ),
    ];
    for (what, edit, verdict) in cases {
        let device = image.copy();
        edit_superblock(&device, edit);
        judge(what, &device, verdict, kernel);
    }
    // As in the kernel, it does not matter on a device that cannot be written.
    let device = image.copy();
    edit_superblock(&device, |superblock| superblock.total_bytes -= 65536);
    if with_kernel {
        device.save(&path).unwrap();
        KernelMount::mount(&path, judge::Access::ReadOnly, "").unwrap();
        KernelMount::mount(&path, judge::Access::ReadWrite, "").unwrap_err();
    }
    let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
    assert!(text.contains("-o ro"), "{text}");
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), image.files.len());
}

#[test]
fn nodes_of_wrong_trees_are_refused() {
    const OWNER: usize = 88;
    let image = image(Single);
    let dir = scratch_dir();
    let path = dir.path().join("owner.img");
    let with_kernel = Capability::all_here(&Capability::KERNEL_MOUNT);
    let kernel = with_kernel.then_some(&*path);
    for (tree, owner) in [
        (TreeId::FS, TreeId(257)),
        (TreeId::FS, TreeId::CHUNK),
        (TreeId::CHUNK, TreeId::FS),
        (TreeId::ROOT, TreeId::FS),
        (TreeId::DEVICE, TreeId::FS),
        (TreeId::BLOCK_GROUP, TreeId::EXTENT),
    ] {
        let device = image.copy();
        let root = &image.nodes_of(tree)[0];
        edit(&device, root, |bytes| put_u64(bytes, OWNER, owner.get()));
        let what = format!("a root of tree {tree} that says {owner}");
        judge(&what, &device, Refused("Owner"), kernel);
    }
    // Below the root, only what the node itself says can tell.
    let nodes = image.nodes_of(TreeId::FS);
    let leaf = nodes.iter().find(|place| place.node.level == 0).unwrap();
    for owner in [3, 13, 1 << 49, u64::MAX - 299] {
        let device = image.copy();
        edit(&device, leaf, |bytes| put_u64(bytes, OWNER, owner));
        let volume = open(&device, Access::ReadOnly).unwrap();
        let error = read_all(&volume).unwrap_err();
        let (Error::At { error, .. } | Error::Fs(error)) = &error else {
            panic!("{error}");
        };
        let butterfs::FsError::Store(StoreError::Tree(TreeError::Corrupt { logical, fault })) =
            error
        else {
            panic!("{error}");
        };
        assert_eq!(
            (*logical, *fault),
            (leaf.node.logical, NodeFault::Owner),
            "{owner}"
        );
    }
    // Another subvolume's node may be shared.
    let device = image.copy();
    edit(&device, leaf, |bytes| put_u64(bytes, OWNER, 300));
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), image.files.len());
}

#[test]
fn restored_metadata_images_are_read() {
    let image = image(Single);
    for flag in [SuperFlags::METADUMP, SuperFlags::METADUMP_V2] {
        let device = image.copy();
        edit_superblock(&device, |superblock| superblock.flags |= flag);
        let before = device.snapshot();
        let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
        assert!(text.contains("-o ro"), "{text}");
        let volume = open(&device, Access::ReadOnly).unwrap();
        assert_eq!(read_all(&volume).unwrap(), image.files.len());
        drop(volume);
        assert_eq!(device.first_difference(&before), None);
    }
}

#[test]
fn earlier_roots_open_a_volume_whose_last_ones_are_damaged() {
    let device = Arc::new(image(Single).device);
    let volume = open(&device, Access::ReadWrite).unwrap();
    let count = read_all(&volume).unwrap();
    volume.write_file(b"last", b"content").unwrap();
    volume.close().unwrap();
    let last = all_nodes(&volume);
    drop(volume);
    let with_backups = |device: &Arc<MemoryDevice>, access| {
        let mut options = options(access);
        options.store.roots = Roots::OrBackups;
        Volume::open_device(device.clone(), options)
    };
    // Where nothing is damaged, the option changes nothing.
    let volume = with_backups(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), count + 1);
    drop(volume);
    for tree in [TreeId::ROOT, TreeId::FS] {
        let damaged = Arc::new(device.snapshot());
        let root = last.iter().find(|place| place.tree == tree).unwrap();
        rot(&damaged, root.copies[0]);
        let refused = open(&damaged, Access::ReadOnly).and_then(|volume| read_all(&volume));
        one_sentence(&refused.unwrap_err());
        let volume = with_backups(&damaged, Access::ReadOnly).unwrap();
        assert_eq!(read_all(&volume).unwrap(), count, "as of the commit before");
        drop(volume);
        let volume = with_backups(&damaged, Access::ReadWrite).unwrap();
        volume.write_file(b"new", b"content").unwrap();
        volume.close().unwrap();
        drop(volume);
        let volume = open(&damaged, Access::ReadOnly).unwrap();
        assert_eq!(read_all(&volume).unwrap(), count + 1);
        drop(volume);
        let dir = scratch_dir();
        let path = dir.path().join("backup.img");
        damaged.save(&path).unwrap();
        judge::judge_image(&path, "opened by an earlier root");
    }
}

/// Whoever writes learns before the first change that a tree cannot be changed.
#[test]
fn a_root_that_cannot_be_read_is_refused_to_writers() {
    let image = image(Single);
    for tree in [TreeId::CSUM, TreeId::FREE_SPACE] {
        let device = image.copy();
        for copy in &image.nodes_of(tree)[0].copies {
            rot(&device, *copy);
        }
        let before = device.snapshot();
        let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
        assert!(
            text.contains("-o ro") && text.contains("root of tree"),
            "{text}"
        );
        open(&device, Access::ReadOnly).unwrap();
        assert_eq!(device.first_difference(&before), None);
    }
}
