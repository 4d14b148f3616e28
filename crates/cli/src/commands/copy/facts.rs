//! What a copy keeps of a file of the host.

use butterfs::Timespec;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub links: u64,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// What all its names have in common: device and inode.
    pub identity: (u64, u64),
    /// Device number as it is on disk, for devices.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Birth, where it is known.
    pub birth: Option<Timespec>,
}

fn time(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    }
}

impl From<&Metadata> for Facts {
    fn from(of: &Metadata) -> Self {
        let birth = of.created().ok();
        let birth = birth.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let (major, minor) = (rustix::fs::major(of.rdev()), rustix::fs::minor(of.rdev()));
        Self {
            mode: of.mode(),
            links: of.nlink(),
            uid: of.uid(),
            gid: of.gid(),
            identity: (of.dev(), of.ino()),
            rdev: u64::from(major) << 20 | u64::from(minor),
            size: of.len(),
            atime: time(of.atime(), of.atime_nsec()),
            mtime: time(of.mtime(), of.mtime_nsec()),
            birth: birth.map(|since| Timespec {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            }),
        }
    }
}

impl Facts {
    const fn is(&self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }

    /// Whether it is a regular file.
    pub const fn is_file(&self) -> bool {
        self.is(libc::S_IFREG)
    }

    /// Whether it is a directory.
    pub const fn is_directory(&self) -> bool {
        self.is(libc::S_IFDIR)
    }

    /// Whether it is a symbolic link.
    pub const fn is_link(&self) -> bool {
        self.is(libc::S_IFLNK)
    }

    /// Whether it is a device.
    pub const fn is_device(&self) -> bool {
        self.is(libc::S_IFCHR) || self.is(libc::S_IFBLK)
    }
}
