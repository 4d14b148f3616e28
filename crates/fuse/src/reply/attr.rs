//! Attributes, entries and file system statistics, and their encoding.
//!
//! Owns the conversion to the kernel's structures. Judges no value.

use std::time::Duration;

use crate::NodeId;
use crate::protocol::layout;

/// A timeout that never ends: cached until invalidated.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// A point in time since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after them, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes of a node, as in stat(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The inode number programs see; need not be the node id.
    pub ino: u64,
    /// Bytes of content.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Type and permissions.
    pub mode: u32,
    /// Names of the node.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// Preferred bytes of an I/O request.
    pub blksize: u32,
    /// Bits of the protocol's own: 1 marks the root of an automatic submount.
    pub flags: u32,
}

impl Attr {
    pub(crate) fn wire(&self) -> layout::Attr {
        layout::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.seconds,
            mtime: self.mtime.seconds,
            ctime: self.ctime.seconds,
            atimensec: self.atime.nanoseconds,
            mtimensec: self.mtime.nanoseconds,
            ctimensec: self.ctime.nanoseconds,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: self.flags,
        }
    }
}

/// Attributes and how long the kernel may keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// How long they stay valid.
    pub timeout: Duration,
}

impl AttrReply {
    pub(crate) fn wire(&self) -> layout::AttrOut {
        layout::AttrOut {
            attr_valid: self.timeout.as_secs(),
            attr_valid_nsec: self.timeout.subsec_nanos(),
            dummy: 0,
            attr: self.attr.wire(),
        }
    }
}

/// A name found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node; zero says that the name does not exist and that the kernel
    /// may remember this for `entry_timeout`.
    pub node: NodeId,
    /// Tells apart nodes that use one id one after the other.
    pub generation: u64,
    /// The node's attributes.
    pub attr: Attr,
    /// How long the name stays valid.
    pub entry_timeout: Duration,
    /// How long the attributes stay valid.
    pub attr_timeout: Duration,
}

impl Entry {
    /// The answer that a name does not exist, valid for `timeout`.
    #[must_use]
    pub fn absent(timeout: Duration) -> Self {
        Self {
            node: NodeId(0),
            generation: 0,
            attr: Attr::default(),
            entry_timeout: timeout,
            attr_timeout: Duration::ZERO,
        }
    }

    pub(crate) fn wire(&self) -> layout::EntryOut {
        layout::EntryOut {
            nodeid: self.node.0,
            generation: self.generation,
            entry_valid: self.entry_timeout.as_secs(),
            attr_valid: self.attr_timeout.as_secs(),
            entry_valid_nsec: self.entry_timeout.subsec_nanos(),
            attr_valid_nsec: self.attr_timeout.subsec_nanos(),
            attr: self.attr.wire(),
        }
    }
}

/// Attributes as in statx(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// What stat(2) tells too.
    pub attr: Attr,
    /// The time the node was made, where it is known.
    pub birth: Option<Timestamp>,
    /// The STATX_ATTR bits that are set.
    pub attributes: u64,
    /// The STATX_ATTR bits this file system knows.
    pub attributes_mask: u64,
    /// How long the attributes stay valid.
    pub timeout: Duration,
}

impl StatxReply {
    pub(crate) fn wire(&self) -> layout::StatxOut {
        let time = |stamp: Timestamp| layout::SxTime {
            seconds: stamp.seconds,
            nanoseconds: stamp.nanoseconds,
            reserved: 0,
        };
        let attr = &self.attr;
        let mut mask = libc::STATX_BASIC_STATS;
        if self.birth.is_some() {
            mask |= libc::STATX_BTIME;
        }
        layout::StatxOut {
            attr_valid: self.timeout.as_secs(),
            attr_valid_nsec: self.timeout.subsec_nanos(),
            flags: 0,
            spare: [0; 4],
            stat: layout::Statx {
                mask,
                blksize: attr.blksize,
                attributes: self.attributes,
                nlink: attr.nlink,
                uid: attr.uid,
                gid: attr.gid,
                // The type and permission bits are the low 16.
                mode: (attr.mode & 0xffff) as u16,
                spare0: 0,
                ino: attr.ino,
                size: attr.size,
                blocks: attr.blocks,
                attributes_mask: self.attributes_mask,
                atime: time(attr.atime),
                btime: time(self.birth.unwrap_or_default()),
                ctime: time(attr.ctime),
                mtime: time(attr.mtime),
                // The kernel's 32-bit encoding: minor 0..8, major 8..20, minor 8..20.
                rdev_major: (attr.rdev >> 8) & 0xfff,
                rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
                dev_major: 0,
                dev_minor: 0,
                spare2: [0; 28],
            },
        }
    }
}

/// Statistics of the file system, as in statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Blocks in all, of `fragment_size` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that an ordinary user may fill.
    pub blocks_available: u64,
    /// Inodes in all; zero where there is no such limit.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred bytes of an I/O request.
    pub block_size: u32,
    /// Bytes of the longest name.
    pub name_length_max: u32,
    /// Bytes of a block.
    pub fragment_size: u32,
}

impl StatFs {
    pub(crate) fn wire(&self) -> layout::Kstatfs {
        layout::Kstatfs {
            blocks: self.blocks,
            bfree: self.blocks_free,
            bavail: self.blocks_available,
            files: self.files,
            ffree: self.files_free,
            bsize: self.block_size,
            namelen: self.name_length_max,
            frsize: self.fragment_size,
            padding: 0,
            spare: [0; 6],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_decoded_for_statx() {
        let rdev = (0x123 << 8) | 0x45 | (0xabc << 20);
        let reply = StatxReply {
            attr: Attr {
                rdev,
                ..Attr::default()
            },
            birth: None,
            attributes: 0,
            attributes_mask: 0,
            timeout: FOREVER,
        };
        let stat = reply.wire().stat;
        assert_eq!(stat.rdev_major, 0x123);
        assert_eq!(stat.rdev_minor, 0xabc45);
        assert_eq!(stat.mask & libc::STATX_BTIME, 0);
    }
}
