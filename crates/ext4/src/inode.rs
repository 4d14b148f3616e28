//! Inodes.

use crate::bytes::{array, joined, u16, u32};
use crate::checksum::crc32c;
use crate::error::{Error, Fault, Place};
use crate::{Block, Incompatible, ReadOnlyCompatible, Superblock};
use std::fmt;

/// The number of an inode, from 1 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u32);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// Space that is reserved for group descriptors.
    pub const RESIZE: Self = Self(7);
    /// The journal, usually.
    pub const JOURNAL: Self = Self(8);
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    /// Of the type bits of a mode.
    #[must_use]
    pub const fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::File,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Link,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
}

/// A moment: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, from 1901 to 2446.
    pub seconds: i64,
    /// Below 10^9.
    pub nanoseconds: u32,
}

impl Time {
    /// Of a time's two fields. The low bits of `extra` continue the seconds,
    /// the others are nanoseconds.
    fn new(seconds: u32, extra: u32) -> Self {
        const NANOSECONDS: u32 = 999_999_999;
        let epoch = i64::from(extra & 3) << 32;
        Self {
            seconds: i64::from(seconds.cast_signed()).saturating_add(epoch),
            nanoseconds: (extra >> 2).min(NANOSECONDS),
        }
    }
}

/// Flags of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// Writes are synchronous (`chattr +S`).
    pub const SYNC: Self = Self(0x8);
    /// The file cannot be changed (`chattr +i`).
    pub const IMMUTABLE: Self = Self(0x10);
    /// Only appends (`chattr +a`).
    pub const APPEND: Self = Self(0x20);
    /// dump(8) leaves it out (`chattr +d`).
    pub const NO_DUMP: Self = Self(0x40);
    /// Reading does not change the access time (`chattr +A`).
    pub const NO_ATIME: Self = Self(0x80);
    /// The file is encrypted.
    pub const ENCRYPT: Self = Self(0x800);
    /// The directory has a hash tree.
    pub const INDEX: Self = Self(0x1000);
    /// Changes of the directory are synchronous (`chattr +D`).
    pub const DIR_SYNC: Self = Self(0x1_0000);
    /// The size in blocks counts blocks of the file system.
    pub const HUGE_FILE: Self = Self(0x4_0000);
    /// The mapping is a tree of extents.
    pub const EXTENTS: Self = Self(0x8_0000);
    /// The file has fs-verity.
    pub const VERITY: Self = Self(0x10_0000);
    /// The inode holds an attribute's value.
    pub const EA_INODE: Self = Self(0x20_0000);
    /// The data lie in the inode.
    pub const INLINE_DATA: Self = Self(0x1000_0000);
    /// New files get the directory's project.
    pub const PROJECT_INHERIT: Self = Self(0x2000_0000);
    /// Names in the directory ignore case.
    pub const CASEFOLD: Self = Self(0x4000_0000);

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Bytes of the block map, of the root of an extent tree, or of a short link.
pub(crate) const MAP: usize = 60;
/// Bytes of an inode of the oldest kind.
pub(crate) const OLD_SIZE: usize = 128;

/// An inode, with the bytes that only its owner can interpret.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Its number.
    pub number: InodeNumber,
    /// Type and permissions.
    pub mode: u16,
    /// What it is; verified by [`Inode::kind`].
    kind: Option<Kind>,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Bytes.
    pub size: u64,
    /// Names.
    pub links: u16,
    /// Space in units of 512 bytes.
    pub sectors: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// Last access.
    pub accessed: Time,
    /// Last change of the data.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// When it was made, if the inode has room for it.
    pub created: Option<Time>,
    /// When it was deleted, in seconds; for orphans the number of the next one.
    pub deleted: u32,
    /// Version, for NFS.
    pub generation: u32,
    /// Project, 0 where there are none.
    pub project: u32,
    /// The block with attributes, or 0.
    pub(crate) attribute_block: Block,
    pub(crate) map: [u8; MAP],
    /// What lies behind the fields, with attributes.
    pub(crate) tail: Vec<u8>,
    /// Where checksums of what belongs to the inode begin.
    pub(crate) seed: u32,
}

impl Inode {
    /// Parses and verifies inode `number`, which has the size of the
    /// superblock.
    pub(crate) fn parse(
        bytes: &[u8],
        number: InodeNumber,
        superblock: &Superblock,
    ) -> Result<Self, Error> {
        let generation = u32(bytes, 0x64);
        let seed = [number.0, generation]
            .into_iter()
            .fold(superblock.checksum_seed, |seed, one| {
                crc32c(seed, &one.to_le_bytes())
            });
        let extra = match bytes.len() > OLD_SIZE {
            true => usize::from(u16(bytes, 0x80)),
            false => 0,
        };
        let end = OLD_SIZE.saturating_add(extra);
        if end > bytes.len() || !extra.is_multiple_of(4) {
            return Err(Place::Inode(number).number("the size of further fields", u16(bytes, 0x80)));
        }
        // Fields that the inode does not have are zero.
        let fields = bytes.get(..end).unwrap_or_default();
        if superblock.has_checksums() {
            verify_checksum(bytes, fields, seed, number)?;
        }
        let mode = u16(fields, 0);
        let flags = InodeFlags(u32(fields, 0x20));
        let kind = Kind::of_mode(mode);
        let time = |seconds, extra| Time::new(u32(fields, seconds), u32(fields, extra));
        let counted = joined(u32(fields, 0x1c), u16(fields, 0x74).into());
        let in_blocks = flags.has(InodeFlags::HUGE_FILE)
            && superblock
                .read_only_compatible
                .has(ReadOnlyCompatible::HUGE_FILE);
        let halves = |low, high| u32::from(u16(fields, low)) | (u32::from(u16(fields, high)) << 16);
        // Small directories have had another field there.
        let high = match kind {
            Some(Kind::File) => u32(fields, 0x6c),
            _ if superblock.incompatible.has(Incompatible::LARGEDIR) => u32(fields, 0x6c),
            _ => 0,
        };
        Ok(Self {
            number,
            mode,
            kind,
            user: halves(0x2, 0x78),
            group: halves(0x18, 0x7a),
            size: joined(u32(fields, 0x4), high),
            links: u16(fields, 0x1a),
            sectors: match in_blocks {
                true => counted.saturating_mul(superblock.block_size() >> 9),
                false => counted,
            },
            flags,
            accessed: time(0x8, 0x8c),
            modified: time(0x10, 0x88),
            changed: time(0xc, 0x84),
            created: (extra >= 0x18).then(|| time(0x90, 0x94)),
            deleted: u32(fields, 0x14),
            generation,
            project: u32(fields, 0x9c),
            attribute_block: joined(u32(fields, 0x68), u16(fields, 0x76).into()),
            map: array(fields, 0x28),
            tail: bytes.get(end..).unwrap_or_default().to_vec(),
            seed,
        })
    }

    /// What it is.
    ///
    /// # Errors
    /// A type that does not exist.
    pub fn kind(&self) -> Result<Kind, Error> {
        let wrong = || Place::Inode(self.number).number("the mode", self.mode);
        self.kind.ok_or_else(wrong)
    }

    /// Major and minor number of a device file.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let (old, new) = (u32(&self.map, 0), u32(&self.map, 4));
        match old {
            0 => (
                (new & 0xf_ff00) >> 8,
                (new & 0xff) | ((new >> 12) & 0xf_ff00),
            ),
            _ => ((old >> 8) & 0xff, old & 0xff),
        }
    }

    /// Where a symbolic link of fewer than 60 bytes leads; such links lie in
    /// the inode.
    #[must_use]
    pub fn short_link(&self) -> Option<&[u8]> {
        let elsewhere =
            self.flags.has(InodeFlags::EXTENTS) || self.flags.has(InodeFlags::INLINE_DATA);
        if self.kind != Some(Kind::Link) || elsewhere {
            return None;
        }
        let size = usize::try_from(self.size).ok().filter(|size| *size < MAP)?;
        self.map.get(..size)
    }
}

fn verify_checksum(
    bytes: &[u8],
    fields: &[u8],
    seed: u32,
    number: InodeNumber,
) -> Result<(), Error> {
    const LOW: usize = 0x7c;
    const HIGH: usize = 0x82;
    let has_high = fields.len() >= HIGH.saturating_add(2);
    let mut copy = bytes.to_vec();
    let mut zero = |at: usize| {
        if let Some(field) = copy.get_mut(at..at.saturating_add(2)) {
            field.fill(0);
        }
    };
    zero(LOW);
    if has_high {
        zero(HIGH);
    }
    let sum = crc32c(seed, &copy);
    let high = if has_high { u16(bytes, HIGH) } else { 0 };
    let mask = if has_high { u32::MAX } else { 0xffff };
    let stored = u32::from(u16(bytes, LOW)) | (u32::from(high) << 16);
    match sum & mask == stored {
        true => Ok(()),
        // What was never used is zero, checksum included.
        false if bytes.iter().all(|byte| *byte == 0) => Ok(()),
        false => Err(Place::Inode(number).has(Fault::Checksum).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_from_1901_to_2446() {
        let seconds = |low: u32, extra| Time::new(low, extra).seconds;
        assert_eq!(seconds(0x8000_0000, 0), -(1 << 31));
        assert_eq!(seconds(0x7fff_ffff, 0), (1 << 31) - 1);
        assert_eq!(seconds(0x8000_0000, 1), 1 << 31);
        assert_eq!(seconds(0x7fff_ffff, 3), (1 << 31) - 1 + (3 << 32));
        assert_eq!(Time::new(0, 999_999_999 << 2).nanoseconds, 999_999_999);
        assert_eq!(Time::new(0, u32::MAX).nanoseconds, 999_999_999);
    }
}
