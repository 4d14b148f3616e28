//! Signatures of file systems, containers and swap.

use super::{Ends, Found};

/// Bytes at a place that name what is there.
struct Signature {
    found: Found,
    offset: u64,
    bytes: &'static [u8],
}

const fn fs(name: &'static str, offset: u64, bytes: &'static [u8]) -> Signature {
    Signature {
        found: Found::FileSystem(name),
        offset,
        bytes,
    }
}

const fn container(name: &'static str, offset: u64, bytes: &'static [u8]) -> Signature {
    Signature {
        found: Found::Container(name),
        offset,
        bytes,
    }
}

const fn swap(offset: u64, bytes: &'static [u8]) -> Signature {
    Signature {
        found: Found::Swap,
        offset,
        bytes,
    }
}

const fn image(name: &'static str, offset: u64, bytes: &'static [u8]) -> Signature {
    Signature {
        found: Found::DiskImage(name),
        offset,
        bytes,
    }
}

const fn compressed(name: &'static str, bytes: &'static [u8]) -> Signature {
    Signature {
        found: Found::Compressed(name),
        offset: 0,
        bytes,
    }
}

const KIB: u64 = 1024;

/// Those that bytes at one place decide.
const TABLE: &[Signature] = &[
    fs("btrfs", 64 * KIB + 64, b"_BHRfS_M"),
    fs("xfs", 0, b"XFSB"),
    fs("ntfs", 3, b"NTFS    "),
    fs("exfat", 3, b"EXFAT   "),
    fs("vfat", 0x52, b"FAT32   "),
    fs("vfat", 0x36, b"FAT16   "),
    fs("vfat", 0x36, b"FAT12   "),
    fs("vfat", 0x36, b"FAT     "),
    fs("iso9660", 32 * KIB + 1, b"CD001"),
    fs("squashfs", 0, b"hsqs"),
    fs("squashfs", 0, b"sqsh"),
    fs("erofs", KIB, &[0xe2, 0xe1, 0xf5, 0xe0]),
    fs("f2fs", KIB, &[0x10, 0x20, 0xf5, 0xf2]),
    fs("reiserfs", 64 * KIB + 52, b"ReIsErFs"),
    fs("reiserfs", 64 * KIB + 52, b"ReIsEr2Fs"),
    fs("reiserfs", 64 * KIB + 52, b"ReIsEr3Fs"),
    fs("reiserfs", 8 * KIB + 52, b"ReIsErFs"),
    fs("reiser4", 64 * KIB, b"ReIsEr4"),
    fs("jfs", 32 * KIB, b"JFS1"),
    fs("apfs", 32, b"NXSB"),
    fs("cramfs", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    fs(
        "bcachefs",
        4 * KIB + 24,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d,
            0xf7, 0xef,
        ],
    ),
    // Before bcachefs had its own magic number it used that of bcache.
    container(
        "bcache or bcachefs",
        4 * KIB + 24,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
    ),
    container("LUKS", 0, b"LUKS\xba\xbe"),
    container("BitLocker", 3, b"-FVE-FS-"),
    // MD metadata 1.1 and 1.2.
    container("MD RAID", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    container("MD RAID", 4 * KIB, &[0xfc, 0x4e, 0x2b, 0xa9]),
    // At the end of a page, whose size is the machine's.
    swap(4 * KIB - 10, b"SWAPSPACE2"),
    swap(8 * KIB - 10, b"SWAPSPACE2"),
    swap(16 * KIB - 10, b"SWAPSPACE2"),
    swap(64 * KIB - 10, b"SWAPSPACE2"),
    swap(4 * KIB - 10, b"SWAP-SPACE"),
    swap(4 * KIB - 10, b"S1SUSPEND"),
    image("qcow2", 0, &[b'Q', b'F', b'I', 0xfb]),
    image("vmdk", 0, b"KDMV"),
    image("vmdk", 0, b"COWD"),
    image("vmdk", 0, b"# Disk DescriptorFile"),
    // A VHD of fixed size has this only at its end, and can be read as a raw
    // image.
    image("vpc", 0, b"conectix"),
    image("vhdx", 0, b"vhdxfile"),
    image("vdi", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    compressed("gzip", &[0x1f, 0x8b, 8]),
    compressed("zstd", &[0x28, 0xb5, 0x2f, 0xfd]),
    compressed("xz", &[0xfd, b'7', b'z', b'X', b'Z', 0]),
    compressed("bzip2", b"BZh"),
];

pub(super) fn find(ends: &Ends) -> Vec<Found> {
    let mut found: Vec<Found> = TABLE
        .iter()
        .filter(|signature| ends.has(signature.offset, signature.bytes))
        .map(|signature| signature.found)
        .collect();
    found.extend(ext(ends));
    found.extend(lvm(ends));
    found.extend(zfs(ends));
    found.extend(md_at_end(ends));
    // Some are known by more than one signature.
    let mut unique: Vec<Found> = Vec::new();
    for one in found {
        if !unique.contains(&one) {
            unique.push(one);
        }
    }
    unique
}

/// The ext family differs in features alone.
fn ext(ends: &Ends) -> Option<Found> {
    const SUPERBLOCK: u64 = KIB;
    const HAS_JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    /// Incompatible features that ext3 knows: file types, recovery, meta_bg.
    const INCOMPAT_EXT3: u32 = 0x2 | 0x4 | 0x10;
    /// Read-only features that ext3 knows: sparse superblocks, large files.
    const RO_COMPAT_EXT3: u32 = 0x1 | 0x2 | 0x4;
    if !ends.has(SUPERBLOCK.saturating_add(0x38), &[0x53, 0xef]) {
        return None;
    }
    let field = |offset: u64| ends.u32(SUPERBLOCK.saturating_add(offset));
    let (compat, incompat, ro_compat) = (field(0x5c), field(0x60), field(0x64));
    let name = if incompat & JOURNAL_DEVICE != 0 {
        "ext journal"
    } else if incompat & !INCOMPAT_EXT3 != 0 || ro_compat & !RO_COMPAT_EXT3 != 0 {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    Some(Found::FileSystem(name))
}

/// The label is in one of the first four sectors.
fn lvm(ends: &Ends) -> Option<Found> {
    (0..4_u64)
        .map(|sector| sector.saturating_mul(512))
        .any(|at| ends.has(at, b"LABELONE") && ends.has(at.saturating_add(24), b"LVM2 001"))
        .then_some(Found::Container("LVM"))
}

/// The first label has its uberblocks in its second half, in the byte order
/// of the machine that wrote them.
fn zfs(ends: &Ends) -> Option<Found> {
    const MAGIC: u64 = 0x00ba_b10c;
    (128..256_u64)
        .filter_map(|n| ends.at::<8>(n.saturating_mul(KIB)))
        .any(|bytes| u64::from_le_bytes(bytes) == MAGIC || u64::from_be_bytes(bytes) == MAGIC)
        .then_some(Found::Container("ZFS"))
}

/// MD metadata 0.90 and 1.0 lie near the end.
fn md_at_end(ends: &Ends) -> Option<Found> {
    const MAGIC: u32 = 0xa92b_4efc;
    const OLD: u64 = 64 * KIB;
    let aligned = |at: u64, to: u64| at.saturating_sub(at.checked_rem(to).unwrap_or(0));
    let places = [
        aligned(ends.size, OLD).checked_sub(OLD),
        ends.size
            .checked_sub(8 * KIB)
            .map(|at| aligned(at, 4 * KIB)),
    ];
    places
        .into_iter()
        .flatten()
        .filter_map(|at| ends.at_end::<4>(at))
        .any(|bytes| u32::from_le_bytes(bytes) == MAGIC || u32::from_be_bytes(bytes) == MAGIC)
        .then_some(Found::Container("MD RAID"))
}
