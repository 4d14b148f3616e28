//! Superblocks of real volumes, and each fault that one can have.

use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{ChecksumType, DeviceId, DeviceOffset, Generation, Logical, ParseError};
use std::path::Path;

const PRIMARY: DeviceOffset = COPIES[0];

fn load(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/superblocks");
    std::fs::read(folder.join(name)).unwrap()
}

const ALL: [&str; 5] = [
    "crc32c.bin",
    "xxhash64-mixed.bin",
    "sha256.bin",
    "sha256-log.bin",
    "blake2b-squota.bin",
];

#[test]
fn real_ones_are_encoded_to_the_same_bytes() {
    for name in ALL {
        let bytes = load(name);
        let superblock = Superblock::parse(&bytes, PRIMARY).unwrap();
        assert!(superblock.encode(PRIMARY) == bytes, "{name}");
        for copy in COPIES {
            let moved = superblock.encode(copy);
            assert_eq!(Superblock::parse(&moved, copy).unwrap().own_offset, copy);
        }
    }
}

/// Values that `btrfs inspect-internal dump-super` printed.
#[test]
fn values_are_those_of_dump_super() {
    let found = Superblock::parse(&load("crc32c.bin"), PRIMARY).unwrap();
    assert_eq!(found.label, b"gold");
    assert_eq!(found.fsid[..4], [0x11; 4]);
    assert_eq!(found.node_fsid(), found.fsid);
    assert_eq!(found.generation, Generation(14));
    assert_eq!((found.root, found.root_level), (Logical(30_932_992), 1));
    assert_eq!(found.chunk_root, Logical(22_028_288));
    assert_eq!(found.chunk_root_generation, Generation(7));
    assert_eq!(found.log_root, Logical(0));
    assert_eq!(found.total_bytes, 268_435_456);
    assert_eq!(found.bytes_used, 1_064_960);
    assert_eq!((found.sector_size, found.node_size), (4096, 4096));
    assert_eq!(found.incompat, Incompat(0x341));
    assert_eq!(found.compat_ro, CompatRo(3));
    assert_eq!(found.cache_generation, 0);
    assert_eq!(found.uuid_tree_generation, Generation(14));
    assert_eq!(found.device.id, DeviceId(1));
    assert_eq!(found.device.bytes_used, 125_829_120);
    let (logical, chunk) = &found.sys_chunks[0];
    assert_eq!((*logical, chunk.length), (Logical(22_020_096), 8 << 20));
    assert_eq!(chunk.flags, BlockGroupFlags::SYSTEM | BlockGroupFlags::DUP);
    let offsets: Vec<u64> = chunk.stripes.iter().map(|s| s.offset.get()).collect();
    assert_eq!(offsets, [22_020_096, 30_408_704]);
    let backup = found.backup_roots[1];
    assert_eq!(backup.tree_root.logical, found.root);
    assert_eq!(backup.extent_root.logical, Logical(30_920_704));
    assert_eq!(backup.csum_root.generation, Generation(12));

    let log = Superblock::parse(&load("sha256-log.bin"), PRIMARY).unwrap();
    assert_eq!(log.checksum_type, ChecksumType::Sha256);
    assert_ne!(log.log_root, Logical(0));
    let squota = Superblock::parse(&load("blake2b-squota.bin"), PRIMARY).unwrap();
    assert!(squota.incompat.contains(Incompat::SIMPLE_QUOTA));
}

/// Changes the bytes at `at`, seals the block again and parses it.
fn changed(at: usize, bytes: &[u8]) -> Result<Superblock, ParseError> {
    let mut block = load("crc32c.bin");
    block[at..at + bytes.len()].copy_from_slice(bytes);
    ChecksumType::Crc32c.seal_block(&mut block);
    Superblock::parse(&block, PRIMARY)
}

#[test]
fn each_fault_is_told() {
    const WHAT: &str = "superblock";
    let bad = |field, value| {
        Err(ParseError::BadValue {
            what: WHAT,
            field,
            value,
        })
    };
    let le = u64::to_le_bytes;
    let magic = Err(ParseError::BadMagic { what: WHAT });
    let address = Err(ParseError::WrongAddress {
        what: WHAT,
        expected: 65536,
        found: 4096,
    });
    assert_eq!(changed(0x40, b"x"), magic);
    assert_eq!(changed(0x30, &le(4096)), address);
    assert_eq!(changed(0xc4, &[9, 0]), bad("checksum type", 9));
    assert_eq!(changed(0x90, &[1, 16, 0, 0]), bad("sector size", 4097));
    assert_eq!(changed(0x94, &[0, 0, 2, 0]), bad("node size", 131_072));
    assert_eq!(changed(0x94, &[0, 8, 0, 0]), bad("node size", 2048));
    for at in [0xc6, 0xc7, 0xc8] {
        assert_eq!(changed(at, &[8]), bad("level", 8));
    }
    for at in [0x50, 0x58, 0x60] {
        assert_eq!(changed(at, &le(4097)), bad("root address", 4097));
    }
    for at in [0x50, 0x58] {
        assert_eq!(changed(at, &le(0)), bad("root address", 0));
    }
    assert_eq!(changed(0x48, &le(0)), bad("generation", 0));
    assert_eq!(changed(0xa4, &le(15)), bad("chunk root generation", 15));
    assert_eq!(changed(0x70, &le(4096)), bad("total bytes", 4096));
    let few = 6 * 4096 - 1;
    assert_eq!(changed(0x78, &le(few)), bad("bytes used", few));
    assert_eq!(changed(0x88, &le(0)), bad("number of devices", 0));
    let size = "system chunk array size";
    assert_eq!(changed(0xa0, &[0, 0, 0, 0]), bad(size, 0));
    assert_eq!(changed(0xa0, &[1, 8, 0, 0]), bad(size, 2049));
    let device = Err(ParseError::Differs {
        what: WHAT,
        field: "the volume's UUID in the device item",
    });
    assert_eq!(changed(0xc9 + 82, &[0; 16]), device);
    // The array's first key.
    for (at, field, value) in [(0x32b, "object", 259), (0x333, "item type", 3)] {
        let expected = Err(ParseError::BadValue {
            what: "system chunk array",
            field,
            value,
        });
        assert_eq!(changed(at, &[3]), expected);
    }

    let mut torn = load("crc32c.bin");
    torn[700] ^= 1;
    let checksum = Err(ParseError::BadChecksum { what: WHAT });
    assert_eq!(Superblock::parse(&torn, PRIMARY), checksum);
    assert!(Superblock::parse_unverified(&torn).is_ok());
    assert!(matches!(
        Superblock::parse(&torn[..SIZE - 1], PRIMARY),
        Err(ParseError::TooShort { .. } | ParseError::BadValue { field: "size", .. })
    ));
}

/// The kernel mounts such a volume, and the next commit counts anew.
#[test]
fn more_used_bytes_than_there_are_is_no_fault_of_the_superblock() {
    let beyond = 268_435_457;
    let found = changed(0x78, &u64::to_le_bytes(beyond)).unwrap();
    assert_eq!(found.bytes_used, beyond);
    assert!(found.bytes_used > found.total_bytes);
}

#[test]
fn damaged_ones_never_panic() {
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for name in ALL {
        let bytes = load(name);
        for length in 0..bytes.len() {
            assert!(Superblock::parse(&bytes[..length], PRIMARY).is_err());
        }
        let checksum = Superblock::parse(&bytes, PRIMARY).unwrap().checksum_type;
        for _ in 0..20_000 {
            let mut block = bytes.clone();
            for _ in 0..=random() % 4 {
                // The first 1100 bytes hold all fields that matter.
                let at = random() as usize % 1100;
                block[at] = random() as u8;
            }
            checksum.seal_block(&mut block);
            if let Ok(found) = Superblock::parse(&block, PRIMARY) {
                let twice = Superblock::parse(&found.encode(PRIMARY), PRIMARY);
                assert!(twice.is_ok(), "{name}");
            }
        }
    }
}
