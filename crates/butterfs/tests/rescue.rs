//! What is left of damaged volumes is read with the options of `rescue=`, and
//! only with them.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, TreeId, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::superblock::{COPIES, SIZE, SuperFlags, Superblock};
use butterfs_format::{DeviceOffset, ItemType, Key, Logical};
use butterfs_testkit::content::content;
use butterfs_tree::{Cursor, NodeSource};
use std::sync::Arc;

const FILES: u64 = 20;

fn length_of(file: u64) -> usize {
    [100, 5000, 70_000, 300_000][file as usize % 4]
}

/// A volume with files.
fn made() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(200 << 20));
    let mkfs = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    make(&*device, &mkfs).unwrap();
    let options = MountOptions::parse("rw").unwrap().open_options();
    let volume = Volume::open_device(device.clone(), options).unwrap();
    for file in 0..FILES {
        let path = format!("/{file}");
        let data = content(file, length_of(file));
        volume.write_file(path.as_bytes(), &data).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    device.snapshot()
}

fn open(device: &MemoryDevice, options: &str) -> Result<Volume, butterfs::Error> {
    let options = MountOptions::parse(options).unwrap().open_options();
    Volume::open_device(Arc::new(device.snapshot()), options)
}

/// Where the copies of a byte lie.
fn copies(device: &MemoryDevice, logical: Logical) -> Vec<DeviceOffset> {
    let volume = open(device, "ro").unwrap();
    let space = volume.files().store().space();
    let all = 0..space.copies(logical);
    all.map(|copy| space.place(logical, copy).unwrap().offset)
        .collect()
}

fn root_of(device: &MemoryDevice, tree: TreeId) -> Logical {
    let volume = open(device, "ro").unwrap();
    let engine = volume.files().store().read();
    engine.root(tree).unwrap().logical
}

/// A copy of `device` with `bytes` written `at` bytes into each copy of
/// `logical`.
fn damaged(device: &MemoryDevice, logical: Logical, at: u64, bytes: &[u8]) -> MemoryDevice {
    let bad = device.snapshot();
    for copy in copies(device, logical) {
        bad.write_at(copy.saturating_add(at), bytes).unwrap();
    }
    bad
}

fn assert_whole(volume: &Volume, context: &str) {
    for file in 0..FILES {
        let found = volume.read_file(format!("/{file}").as_bytes());
        let found = found.unwrap_or_else(|error| panic!("{context}: {file}: {error}"));
        assert!(found == content(file, length_of(file)), "{context}: {file}");
    }
}

fn reads_whole(volume: &Volume) -> bool {
    (0..FILES).all(|file| {
        let found = volume.read_file(format!("/{file}").as_bytes());
        found.is_ok_and(|found| found == content(file, length_of(file)))
    })
}

#[test]
fn trees_that_reading_does_not_need_may_be_gone() {
    let device = made();
    let trees = [
        TreeId::EXTENT,
        TreeId::DEVICE,
        TreeId::CSUM,
        TreeId::FREE_SPACE,
        TreeId::BLOCK_GROUP,
        TreeId::UUID,
    ];
    let mut refused = 0;
    let mut all = device.snapshot();
    for tree in trees {
        let root = root_of(&device, tree);
        let bad = damaged(&device, root, 0, &[0x5a; 4096]);
        for copy in copies(&device, root) {
            all.write_at(copy, &[0x5a; 4096]).unwrap();
        }
        let without = open(&bad, "ro");
        refused += usize::from(!without.is_ok_and(|volume| reads_whole(&volume)));
        for options in ["ro,rescue=ignorebadroots:nologreplay", "ro,rescue=all"] {
            let context = format!("{tree}, {options}");
            let volume = open(&bad, options).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_whole(&volume, &context);
        }
    }
    // Device tree, checksum tree and block groups are needed otherwise.
    assert!(refused >= 3, "{refused}");
    assert_whole(&open(&all, "ro,rescue=all").unwrap(), "all of them");
    all = damaged(&device, root_of(&device, TreeId::FS), 0, &[0x5a; 4096]);
    let gone = open(&all, "ro,rescue=all").map(|volume| reads_whole(&volume));
    assert!(
        !gone.is_ok_and(|whole| whole),
        "without the files' own tree"
    );
}

/// A copy of `device` in which an item says something else, under good
/// checksums.
fn sealed(
    device: &MemoryDevice,
    (tree, key): (TreeId, Key),
    change: impl FnOnce(&mut [u8]),
) -> MemoryDevice {
    let (logical, mut bytes, slot, checksum) = {
        let volume = open(device, "ro").unwrap();
        let engine = volume.files().store().read();
        let (leaf, slot) = butterfs_tree::find(&*engine, tree, &key).unwrap().unwrap();
        let checksum = engine.superblock().checksum_type;
        (leaf.logical(), leaf.bytes().to_vec(), slot, checksum)
    };
    let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
    let item = HEADER_SIZE + slot * ITEM_SIZE + Key::SIZE;
    let start = HEADER_SIZE + word(item);
    let range = start..start + word(item + 4);
    change(&mut bytes[range]);
    checksum.seal_block(&mut bytes);
    damaged(device, logical, 0, &bytes)
}

/// Where an item of the tree of roots that describes `tree` is.
fn root_item(device: &MemoryDevice, tree: TreeId) -> (TreeId, Key) {
    let volume = open(device, "ro").unwrap();
    let engine = volume.files().store().read();
    let first = Key::new(tree.get(), ItemType::ROOT_ITEM, 0);
    let cursor = Cursor::seek_in(&*engine, TreeId::ROOT, &first).unwrap();
    (TreeId::ROOT, cursor.key().unwrap())
}

/// A volume with quotas, and ways to damage one of its optional trees.
fn with_damaged_options() -> Vec<(&'static str, TreeId, MemoryDevice)> {
    let device = Arc::new(made());
    let options = MountOptions::parse("rw").unwrap().open_options();
    let volume = Volume::open_device(device.clone(), options).unwrap();
    let mut go = |_: &butterfs::du::Progress| std::ops::ControlFlow::Continue(());
    let limits = butterfs::du::Limits::default();
    let files = volume.files();
    files
        .enable_quotas(butterfs::quota::QuotaMode::Full, &limits, &mut go)
        .unwrap();
    volume.close().unwrap();
    drop(volume);
    let device = device.snapshot();
    let status = (TreeId::QUOTA, butterfs::quota::QgroupStatus::KEY);
    let mut all = vec![
        (
            "an unknown version",
            TreeId::QUOTA,
            sealed(&device, status, |data| data[0] = 7),
        ),
        (
            "a short item",
            TreeId::QUOTA,
            with_short_item(&device, TreeId::QUOTA),
        ),
    ];
    for tree in [TreeId::QUOTA, TreeId::FREE_SPACE, TreeId::UUID] {
        let root = root_of(&device, tree);
        let rotten = damaged(&device, root, 0, &[0x5a; 4096]);
        all.push(("a rotten root", tree, rotten));
        // The root item names a node that is another tree's.
        let other = root_of(&device, TreeId::CSUM).get().to_le_bytes();
        let item = root_item(&device, tree);
        let lie = |data: &mut [u8]| data[176..184].copy_from_slice(&other);
        all.push(("a foreign root", tree, sealed(&device, item, lie)));
    }
    all
}

/// The last item of a tree's root, which is a leaf, is eight bytes shorter.
fn with_short_item(device: &MemoryDevice, tree: TreeId) -> MemoryDevice {
    let (logical, mut bytes, count, checksum) = {
        let volume = open(device, "ro").unwrap();
        let engine = volume.files().store().read();
        let leaf = engine.node(engine.root(tree).unwrap()).unwrap();
        let checksum = engine.superblock().checksum_type;
        (leaf.logical(), leaf.bytes().to_vec(), leaf.len(), checksum)
    };
    let at = HEADER_SIZE + (count - 1) * ITEM_SIZE + Key::SIZE;
    let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let (offset, size) = (word(at) + 8, word(at + 4) - 8);
    bytes[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&size.to_le_bytes());
    checksum.seal_block(&mut bytes);
    damaged(device, logical, 0, &bytes)
}

/// Quotas, UUIDs and the free-space tree: reading needs none of them. Whoever
/// opens for writing is told what becomes of them, or how it can be done.
#[test]
fn optional_trees_never_keep_a_volume_from_being_read() {
    for (how, tree, bad) in with_damaged_options() {
        let context = format!("{how}, tree {tree}");
        let volume = open(&bad, "ro").unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_whole(&volume, &context);
        drop(volume);
        match (tree, open(&bad, "rw")) {
            (TreeId::QUOTA, Ok(volume)) => {
                assert!(volume.quota_state().is_none(), "{context}: quotas are off");
                volume.write_file("/new", &content(1, 50_000)).unwrap();
                volume.sync().unwrap();
                assert_whole(&volume, &context);
                volume.close().unwrap();
            }
            (TreeId::FREE_SPACE, Err(error)) => {
                assert!(error.to_string().contains("clear_cache"), "{error}");
                let volume = open(&bad, "rw,clear_cache").unwrap();
                assert_whole(&volume, &context);
            }
            (TreeId::UUID, Err(error)) => {
                assert!(error.to_string().contains("-o ro"), "{error}");
            }
            (_, opened) => panic!("{context}: {opened:?}"),
        }
        assert_named(&bad, &context);
    }
}

/// The check has a code for it.
fn assert_named(bad: &MemoryDevice, context: &str) {
    let options = butterfs::check::Options::default();
    let device: Arc<dyn BlockDevice> = Arc::new(bad.snapshot());
    let report = butterfs::check::check(vec![device], &options, &butterfs::check::NoProgress);
    let report = report.unwrap();
    assert!(!report.faults.is_empty(), "{context}: nothing is found");
}

/// An error that `rescue=all` passes over says so.
#[test]
fn errors_name_the_option_that_reads_what_is_left() {
    let device = made();
    let trees = [
        (TreeId::EXTENT, "rw"),
        (TreeId::DEVICE, "rw"),
        (TreeId::DEVICE, "ro"),
        (TreeId::BLOCK_GROUP, "rw"),
        (TreeId::BLOCK_GROUP, "ro"),
    ];
    for (tree, options) in trees {
        let bad = damaged(&device, root_of(&device, tree), 0, &[0x5a; 4096]);
        let error = open(&bad, options).map(drop).unwrap_err().to_string();
        assert!(
            error.contains("-o ro,rescue=all"),
            "{tree}, {options}: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
        assert_whole(&open(&bad, "ro,rescue=all").unwrap(), "as it says");
    }
    let bad = damaged(&device, root_of(&device, TreeId::CSUM), 0, &[0x5a; 4096]);
    let error = open(&bad, "ro").unwrap().read_file("/3").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("-o ro,rescue=all"), "{text}");
}

#[test]
fn data_with_wrong_checksums_are_read_when_asked_for() {
    let device = made();
    let logical = {
        let volume = open(&device, "ro").unwrap();
        let engine = volume.files().store().read();
        let data = engine.chunks().find(|(_, chunk)| chunk.flags.0 & 1 != 0);
        data.unwrap().0
    };
    let bad = damaged(&device, logical, 5, b"rot");
    assert!(!reads_whole(&open(&bad, "ro").unwrap()));
    for options in ["ro,rescue=ignorebadroots", "ro,rescue=ignoremetacsums"] {
        assert!(!reads_whole(&open(&bad, options).unwrap()), "{options}");
    }
    for options in [
        "ro,rescue=ignoredatacsums",
        "ro,rescue=idatacsums",
        "ro,rescue=all",
    ] {
        let volume = open(&bad, options).unwrap();
        let mut differ = 0;
        for file in 0..FILES {
            let found = volume.read_file(format!("/{file}").as_bytes()).unwrap();
            let expected = content(file, length_of(file));
            if found != expected {
                assert_eq!(found[5..8], *b"rot", "{options}: {file}");
                assert_eq!((&found[..5], &found[8..]), (&expected[..5], &expected[8..]));
                differ += 1;
            }
        }
        assert_eq!(differ, 1, "{options}");
    }
}

#[test]
fn nodes_with_wrong_checksums_are_read_when_asked_for() {
    let device = made();
    // The checksum itself.
    let bad = damaged(&device, root_of(&device, TreeId::FS), 0, &[0x5a; 4]);
    for options in ["ro", "ro,rescue=ignoredatacsums:ignorebadroots"] {
        let without = open(&bad, options);
        assert!(
            !without.is_ok_and(|volume| reads_whole(&volume)),
            "{options}"
        );
    }
    for options in ["ro,rescue=ignoremetacsums", "ro,rescue=all"] {
        assert_whole(&open(&bad, options).unwrap(), options);
    }
}

#[test]
fn flags_of_the_superblock_are_passed_over_when_asked_for() {
    for flags in [SuperFlags::CHANGING_FSID_V2, SuperFlags(1 << 50)] {
        let bad = made();
        for copy in COPIES.into_iter().filter(|copy| copy.get() < bad.size()) {
            let mut bytes = vec![0; SIZE];
            bad.read_at(copy, &mut bytes).unwrap();
            let mut superblock = Superblock::parse(&bytes, copy).unwrap();
            superblock.flags |= flags;
            bad.write_at(copy, &superblock.encode(copy)).unwrap();
        }
        assert!(open(&bad, "ro").is_err());
        for options in ["ro,rescue=ignoresuperflags", "ro,rescue=all"] {
            assert_whole(&open(&bad, options).unwrap(), options);
        }
    }
}

#[test]
fn nothing_of_it_is_for_writing() {
    let device = made();
    for word in [
        "ignorebadroots",
        "idatacsums",
        "imetacsums",
        "isuperflags",
        "all",
    ] {
        let refused = open(&device, &format!("rw,rescue={word}"));
        let text = refused.map(drop).unwrap_err().to_string();
        assert!(text.contains("only for reading (-o ro)"), "{text}");
    }
    assert!(MountOptions::parse("ro,rescue=everything").is_err());
}

#[test]
fn an_older_generation_is_read_by_its_number() {
    let device = Arc::new(made());
    let options = MountOptions::parse("rw").unwrap().open_options();
    let volume = Volume::open_device(device.clone(), options).unwrap();
    let mut generations = Vec::new();
    for text in ["one", "two", "three"] {
        volume.write_file("/note", text.as_bytes()).unwrap();
        volume.sync().unwrap();
        let generation = volume.files().store().read().superblock().generation;
        generations.push((generation.get(), text));
    }
    volume.close().unwrap();
    drop(volume);
    for (generation, text) in generations {
        let options = format!("ro,rescue=generation={generation}");
        let volume = open(&device, &options).unwrap();
        assert_eq!(volume.read_file("/note").unwrap(), text.as_bytes());
        let writable = open(&device, &format!("rescue=generation={generation}"));
        assert!(writable.is_err(), "an older generation is not written");
    }
    let unknown = open(&device, "ro,rescue=generation=999").map(drop);
    let said = unknown.unwrap_err().to_string();
    assert!(said.contains("butterfs restore --generation 999"), "{said}");
}
