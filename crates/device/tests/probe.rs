//! What mkfs tools leave, and golden signatures for those not installed.

use butterfs_device::probe::{Found, PartitionTable, contents, partitions, user};
use butterfs_device::{Access, BlockDevice, FileDevice, Holder, MemoryDevice};
use butterfs_format::DeviceOffset;
use std::path::Path;
use std::process::Command;

const SIZE: u64 = 512 << 20;

fn made_by(command: &str, arguments: &[&str]) -> Option<Vec<Found>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, SIZE).unwrap());
    let output = Command::new(command)
        .args(arguments)
        .arg(&path)
        .output()
        .ok()?;
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    Some(contents(&device).unwrap())
}

#[test]
fn what_real_tools_make() {
    let cases: [(&str, &[&str], Found); 8] = [
        ("mkfs.ext2", &["-q", "-F"], Found::FileSystem("ext2")),
        ("mkfs.ext3", &["-q", "-F"], Found::FileSystem("ext3")),
        ("mkfs.ext4", &["-q", "-F"], Found::FileSystem("ext4")),
        ("mkfs.xfs", &["-q", "-f"], Found::FileSystem("xfs")),
        ("mkfs.btrfs", &["-q", "-f"], Found::FileSystem("btrfs")),
        ("mkfs.vfat", &[], Found::FileSystem("vfat")),
        ("mkfs.f2fs", &["-q"], Found::FileSystem("f2fs")),
        ("mkswap", &["-q"], Found::Swap),
    ];
    for (command, arguments, expected) in cases {
        match made_by(command, arguments) {
            Some(found) => assert_eq!(found, [expected], "{command}"),
            None => eprintln!("skipped: {command} is not installed"),
        }
    }
}

/// Bytes at an offset.
type Place<'a> = (u64, &'a [u8]);

/// A blank device with these bytes in these places.
fn with(places: &[Place<'_>]) -> Vec<Found> {
    let device = MemoryDevice::new(SIZE);
    for (offset, bytes) in places {
        device.write_at(DeviceOffset(*offset), bytes).unwrap();
    }
    contents(&device).unwrap()
}

#[test]
fn golden_signatures() {
    let fs = Found::FileSystem;
    let container = Found::Container;
    let cases: [(Found, &[Place<'_>]); 21] = [
        (
            fs("ntfs"),
            &[(0, b"\xeb\x52\x90NTFS    "), (510, b"\x55\xaa")],
        ),
        (
            fs("exfat"),
            &[(0, b"\xeb\x76\x90EXFAT   "), (510, b"\x55\xaa")],
        ),
        (fs("vfat"), &[(0x52, b"FAT32   "), (510, b"\x55\xaa")]),
        (fs("vfat"), &[(0x36, b"FAT16   "), (510, b"\x55\xaa")]),
        (fs("iso9660"), &[(32769, b"CD001")]),
        (fs("squashfs"), &[(0, b"hsqs")]),
        (fs("f2fs"), &[(1024, b"\x10\x20\xf5\xf2")]),
        (fs("erofs"), &[(1024, b"\xe2\xe1\xf5\xe0")]),
        (fs("reiserfs"), &[(65536 + 52, b"ReIsEr2Fs")]),
        (fs("jfs"), &[(32768, b"JFS1")]),
        (
            fs("bcachefs"),
            &[(
                4096 + 24,
                b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
            )],
        ),
        (
            container("bcache or bcachefs"),
            &[(
                4096 + 24,
                b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
            )],
        ),
        (container("LUKS"), &[(0, b"LUKS\xba\xbe\x00\x02")]),
        (container("LVM"), &[(512, b"LABELONE"), (536, b"LVM2 001")]),
        (container("ZFS"), &[(132 << 10, b"\x0c\xb1\xba\0\0\0\0\0")]),
        (container("ZFS"), &[(200 << 10, b"\0\0\0\0\0\xba\xb1\x0c")]),
        (container("MD RAID"), &[(4096, b"\xfc\x4e\x2b\xa9")]),
        (container("MD RAID"), &[(SIZE - 65536, b"\xfc\x4e\x2b\xa9")]),
        (container("MD RAID"), &[(SIZE - 8192, b"\xfc\x4e\x2b\xa9")]),
        (Found::Swap, &[(65536 - 10, b"SWAPSPACE2")]),
        (Found::PartitionTable("GPT"), &[(SIZE - 512, b"EFI PART")]),
    ];
    for (expected, places) in cases {
        assert_eq!(with(places), [expected], "{expected}");
    }
}

#[test]
fn partition_tables() {
    let entry = b"\x80\x20\x21\0\x83\xfe\xff\xff\0\x08\0\0\0\0\x10\0";
    let mbr: &[Place<'_>] = &[(446, entry), (510, b"\x55\xaa")];
    assert_eq!(with(mbr), [Found::PartitionTable("MBR")]);
    let gpt: &[Place<'_>] = &[(446, entry), (510, b"\x55\xaa"), (4096, b"EFI PART")];
    assert_eq!(with(gpt), [Found::PartitionTable("GPT")]);
    // The mark alone, and code where entries would be, are no table.
    assert_eq!(with(&[(510, b"\x55\xaa")]), []);
    assert_eq!(with(&[(446, &[0x33; 64]), (510, b"\x55\xaa")]), []);
}

#[test]
fn blank_and_tiny_devices() {
    for size in [0, 1, 511, 512, 4096, 65536, 300_000] {
        let device = MemoryDevice::new(size);
        assert_eq!(contents(&device).unwrap(), [], "{size}");
        let ones = vec![0xff; size as usize];
        device.write_at(DeviceOffset(0), &ones).unwrap();
        assert_eq!(contents(&device).unwrap(), [], "{size}");
    }
}

#[test]
fn what_was_left_behind_is_found_too() {
    let found = with(&[(0, b"XFSB"), (65600, b"_BHRfS_M")]);
    let names: Vec<&str> = found.iter().map(|one| one.name()).collect();
    assert_eq!(names, ["btrfs", "xfs"]);
    assert_eq!(found[0].to_string(), "a file system (btrfs)");
}

#[test]
fn users_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = FileDevice::create(&path, 1 << 20).unwrap();
    assert!(matches!(
        user(&path),
        Some(Holder::Process { pid, .. }) if pid == std::process::id()
    ));
    drop(device);
    assert_eq!(user(&path), None);
    assert_eq!(user(Path::new("/does/not/exist")), None);
}

fn table_of(places: &[Place<'_>], size: u64) -> Option<PartitionTable> {
    let device = MemoryDevice::new(size);
    for (offset, bytes) in places {
        device.write_at(DeviceOffset(*offset), bytes).unwrap();
    }
    partitions(&device).unwrap()
}

/// An entry of an MBR: type, first sector, sectors.
fn entry(kind: u8, first: u32, sectors: u32) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, kind, 0, 0, 0];
    bytes.extend(first.to_le_bytes());
    bytes.extend(sectors.to_le_bytes());
    bytes
}

#[test]
fn tables_that_lie_end() {
    const MARK: Place<'_> = (510, b"\x55\xaa");
    // A chain that leads back to itself, and one that leads out.
    let extended = [entry(0x83, 2048, 2048), entry(5, 8192, 8192)].concat();
    for next in [0, 8192, 1 << 30] {
        let link = [entry(0x83, 2048, 2048), entry(5, next, 2048)].concat();
        let places: &[Place<'_>] = &[
            (446, &extended),
            MARK,
            (8192 * 512 + 446, &link),
            (8192 * 512 + 510, b"\x55\xaa"),
        ];
        let table = table_of(places, SIZE).unwrap();
        let numbers: Vec<u32> = table.partitions.iter().map(|one| one.number).collect();
        assert_eq!((table.kind, &numbers[..]), ("MBR", &[1, 5][..]), "{next}");
    }
    // What is not on the device is left out.
    let beyond = entry(0x83, 2048, u32::MAX);
    let table = table_of(&[(446, &beyond), MARK], SIZE).unwrap();
    assert_eq!(table.partitions, []);
    // A GPT whose checksums are wrong is not believed.
    let mut header = b"EFI PART\0\0\x01\0\x5c\0\0\0".to_vec();
    header.resize(512, 0xff);
    assert_eq!(table_of(&[(512, &header)], SIZE), None);
    for size in [0, 1, 511, 512, 513, 4096, 70_000] {
        let ones = vec![0xff; size as usize];
        assert_eq!(table_of(&[(0, &ones)], size), None, "{size}");
    }
}
