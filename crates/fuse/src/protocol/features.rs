//! What server and kernel can agree on at INIT, as a set.
//!
//! Owns the bits and their set operations; the choice is in `Config`, the
//! agreement in `init`.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};

/// A set of protocol features.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            const NAMES: &'static [(&'static str, Self)] =
                &[$((stringify!($name), Self::$name)),*];
        }
    };
}

features! {
    /// Several reads of one file at once.
    ASYNC_READ = 0;
    /// O_TRUNC reaches open and create instead of a separate setattr. This
    /// crate drops the feature if opens are stateless, because the truncation
    /// would be lost.
    ATOMIC_O_TRUNC = 3;
    /// Nodes can be found again after a server's restart or eviction: for NFS
    /// export and open_by_handle_at. Lookups of "." and ".." must work.
    EXPORT_SUPPORT = 4;
    /// Writes larger than a page.
    BIG_WRITES = 5;
    /// The file system applies the umask; needed for default ACLs.
    DONT_MASK = 6;
    /// ioctl on directories.
    HAS_IOCTL_DIR = 11;
    /// The kernel drops cached data when size or mtime changed behind it.
    AUTO_INVAL_DATA = 12;
    /// Directory listings that bring attributes along.
    DO_READDIRPLUS = 13;
    /// The kernel picks plain listings where attributes were not used.
    READDIRPLUS_AUTO = 14;
    /// Several direct I/O requests at once, without waiting for them. The
    /// kernel then does not ask for the fsync that O_SYNC, O_DSYNC and
    /// RWF_DSYNC promise, and does not drop cached pages when such a write is
    /// done.
    ASYNC_DIO = 15;
    /// The kernel keeps dirty pages. Small writes get much faster. But sync(2)
    /// no longer waits for them on a plain FUSE mount, and the kernel then owns
    /// size and times.
    WRITEBACK_CACHE = 16;
    /// An open answered ENOSYS is not asked again: opens are stateless.
    NO_OPEN_SUPPORT = 17;
    /// Lookups and listings of one directory in parallel.
    PARALLEL_DIROPS = 18;
    /// The kernel keeps POSIX ACLs; implies that it checks permissions.
    POSIX_ACL = 20;
    /// Reads of an aborted connection fail with ECONNABORTED.
    ABORT_ERROR = 21;
    /// Requests of more than 128 KiB.
    MAX_PAGES = 22;
    /// Targets of symbolic links stay in the page cache.
    CACHE_SYMLINKS = 23;
    /// As NO_OPEN_SUPPORT, for directories.
    NO_OPENDIR_SUPPORT = 24;
    /// Cached data is dropped only when the server says so.
    EXPLICIT_INVAL_DATA = 25;
    /// The file system clears set-id bits when told to, and the kernel stops
    /// asking for security.capability before every first write.
    HANDLE_KILLPRIV_V2 = 28;
    /// setxattr says whether the set-group-id bit must go.
    SETXATTR_EXT = 29;
    /// Features above bit 31 are exchanged.
    INIT_EXT = 30;
    /// Requests that create carry the parent's group if the caller is in it.
    CREATE_SUPP_GROUP = 34;
    /// Entries can be marked expired instead of dropped.
    HAS_EXPIRE_ONLY = 35;
    /// mmap of files opened for direct I/O.
    DIRECT_IO_ALLOW_MMAP = 36;
    /// Idmapped mounts. Needs `default_permissions`. Requests that make nothing
    /// no longer say who asks, so that is read from /proc.
    ALLOW_IDMAP = 40;
    /// Requests through rings of io_uring, one queue for each CPU. Decided by
    /// `Config::transports`.
    OVER_IO_URING = 41;
}

impl Features {
    /// No feature.
    pub const NONE: Self = Self(0);

    /// The bits as the protocol numbers them.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The set of these bits; unknown ones are kept.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether every feature of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// This set and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for Features {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

impl BitAnd for Features {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES
            .iter()
            .filter(|(_, feature)| self.contains(*feature))
            .map(|(name, _)| name);
        f.debug_set().entries(names).finish()
    }
}
