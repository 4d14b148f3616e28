//! What is left of damaged volumes is read with the options of `rescue=`, and
//! only with them.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, TreeId, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_format::superblock::{COPIES, SIZE, SuperFlags, Superblock};
use butterfs_format::{DeviceOffset, Logical};
use butterfs_testkit::content::content;
use butterfs_tree::NodeSource;
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
