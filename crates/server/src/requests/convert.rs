//! Between the library's values and the kernel protocol's.

use butterfs::{Attributes, FileType, InodeFlags, SetTime, Timespec};
use butterfs_fuse::reply::{Attr, FileType as Kind, StatFs, Timestamp};
use butterfs_fuse::request::TimeChange;
use butterfs_fuse::{Errno, NodeId};

/// Owners that all files seem to have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owners {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

pub const fn timestamp(time: Timespec) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

pub const fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

pub const fn set_time(change: TimeChange) -> SetTime {
    match change {
        TimeChange::Now => SetTime::Now,
        TimeChange::At(time) => SetTime::At(timespec(time)),
    }
}

/// Device number on disk (major above 20 bits of minor) to the protocol's 32
/// bits.
pub const fn rdev_to_kernel(disk: u64) -> u32 {
    let (major, minor) = ((disk >> 20) as u32, (disk & 0xf_ffff) as u32);
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// The other way round.
pub const fn rdev_to_disk(kernel: u32) -> u64 {
    let major = (kernel >> 8) & 0xfff;
    let minor = (kernel & 0xff) | ((kernel >> 12) & 0xf_ff00);
    ((major as u64) << 20) | minor as u64
}

pub fn attr(of: &Attributes, node: NodeId, owners: Owners) -> Attr {
    Attr {
        // 256 for the root, as Btrfs shows it.
        ino: if node == NodeId::ROOT {
            of.id.number.get()
        } else {
            node.0
        },
        size: of.size,
        blocks: of.allocated.div_ceil(512),
        atime: timestamp(of.atime),
        mtime: timestamp(of.mtime),
        ctime: timestamp(of.ctime),
        mode: of.mode,
        nlink: of.nlink,
        uid: owners.uid.unwrap_or(of.uid),
        gid: owners.gid.unwrap_or(of.gid),
        rdev: rdev_to_kernel(of.rdev),
        blksize: 4096,
        flags: 0,
    }
}

pub const fn kind(of: FileType) -> Kind {
    match of {
        FileType::Regular => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::CharDevice => Kind::CharacterDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Unknown,
    }
}

/// What statfs says: the size of the devices; what nothing uses (chunks of
/// metadata count as used as far as they are full); and how much data can still
/// be written. As in the kernel, the first two are divided by the number of
/// copies of the data.
pub fn statfs(usage: &butterfs::Usage, sector: u32) -> StatFs {
    let blocks = |bytes: u64| bytes / u64::from(sector);
    let copies = usage.data_copies();
    let (all, used) = (usage.device_size / copies, usage.device_used() / copies);
    let free = all.saturating_sub(used);
    StatFs {
        blocks: blocks(all),
        blocks_free: blocks(free),
        blocks_available: blocks(usage.data_free.min(free)),
        files: 0,
        files_free: 0,
        block_size: sector,
        name_length_max: 255,
        fragment_size: sector,
    }
}

/// Flags that chattr knows: on disk, FS_*_FL, FS_XFLAG_* (0 where none).
const FLAGS: &[(InodeFlags, u32, u32)] = &[
    (InodeFlags::SYNC, 0x8, 0x20),
    (InodeFlags::IMMUTABLE, 0x10, 0x8),
    (InodeFlags::APPEND, 0x20, 0x10),
    (InodeFlags::NODUMP, 0x40, 0x80),
    (InodeFlags::NOATIME, 0x80, 0x40),
    (InodeFlags::DIRSYNC, 0x1_0000, 0),
    (InodeFlags::COMPRESS, 0x4, 0),
    (InodeFlags::NOCOMPRESS, 0x400, 0),
    (InodeFlags::NODATACOW, 0x80_0000, 0),
];

/// FS_*_FL of an inode. As in the kernel, NOCOMPRESS hides COMPRESS: an inode
/// can have both on disk, and SETFLAGS refuses both.
pub fn fs_flags(flags: InodeFlags) -> u32 {
    let hidden = match flags.contains(InodeFlags::NOCOMPRESS) {
        true => InodeFlags::COMPRESS,
        false => InodeFlags::default(),
    };
    let shown = |disk: InodeFlags| flags.contains(disk) && disk != hidden;
    let set = FLAGS.iter().filter(|(disk, ..)| shown(*disk));
    set.fold(0, |all, (_, fs, _)| all | fs)
}

/// FS_XFLAG_* of an inode.
pub fn xflags(flags: InodeFlags) -> u32 {
    let set = FLAGS.iter().filter(|(disk, ..)| flags.contains(*disk));
    set.fold(0, |all, (_, _, x)| all | x)
}

/// The inode's flags for FS_*_FL.
pub fn from_fs_flags(wanted: u32) -> Result<InodeFlags, Errno> {
    let known = FLAGS.iter().fold(0, |all, (_, fs, _)| all | fs);
    if wanted & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let set = FLAGS.iter().filter(|(_, fs, _)| wanted & fs != 0);
    Ok(set.fold(InodeFlags::default(), |all, (disk, ..)| all | *disk))
}

/// The inode's flags after FS_IOC_FSSETXATTR.
pub fn from_xflags(old: InodeFlags, wanted: u32) -> Result<InodeFlags, Errno> {
    let known = FLAGS.iter().fold(0, |all, (_, _, x)| all | x);
    if wanted & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut flags = old;
    for (disk, _, x) in FLAGS.iter().filter(|(_, _, x)| *x != 0) {
        flags = flags.without(*disk);
        if wanted & x != 0 {
            flags = flags.union(*disk);
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_both_ways() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (259, 0xabcde), (0xfff, 0xf_ffff)] {
            let disk = (major << 20) | minor;
            assert_eq!(rdev_to_disk(rdev_to_kernel(disk)), disk);
        }
        assert_eq!(rdev_to_kernel((1 << 20) | 3), 0x103);
    }

    #[test]
    fn flags_survive_both_ways() {
        for (disk, fs, x) in FLAGS {
            assert_eq!(from_fs_flags(*fs).ok(), Some(*disk));
            assert_eq!(fs_flags(*disk), *fs);
            if *x != 0 {
                assert_eq!(from_xflags(InodeFlags::default(), *x).ok(), Some(*disk));
            }
        }
        assert!(from_fs_flags(0x4000).is_err());
        let both = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
        assert_eq!(fs_flags(both | InodeFlags::SYNC), 0x408);
    }

    #[test]
    fn space_in_chunks_of_metadata_is_free_but_not_for_data() {
        use butterfs::{KindUsage, Usage};
        use butterfs_format::item::chunk::BlockGroupFlags;
        let usage = Usage {
            device_size: 1 << 30,
            device_allocated: 300 << 20,
            kinds: vec![KindUsage {
                flags: BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
                total: 100 << 20,
                used: 1 << 20,
                device: 200 << 20,
            }],
            data_free: 800 << 20,
            metadata_free: 99 << 20,
        };
        let found = statfs(&usage, 4096);
        assert_eq!(found.blocks - found.blocks_free, (2 << 20) / 4096);
        assert_eq!(found.blocks_available, (800 << 20) / 4096);
    }
}
