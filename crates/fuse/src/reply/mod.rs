//! What a file system answers.
//!
//! Owns the typed replies and the buffers that a file system fills. Their
//! encoding goes straight into the reply buffer.

mod attr;
mod buffer;
mod directory;

pub use attr::{Attr, AttrReply, Entry, FOREVER, StatFs, StatxReply, Timestamp};
pub use buffer::ValueBuffer;
pub use directory::{DirectoryBuffer, DirectoryEntry, DirectoryPlusBuffer, FileType, Push};

use crate::FileHandle;

/// How the kernel is to treat an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(u32);

impl OpenFlags {
    /// Nothing special: the page cache is dropped at open.
    pub const NONE: Self = Self(0);
    /// Reads and writes bypass the page cache.
    pub const DIRECT_IO: Self = Self(1);
    /// Cached data from before stays valid.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// The file has no position.
    pub const NONSEEKABLE: Self = Self(1 << 2);
    /// A directory's listing may be cached.
    pub const CACHE_DIR: Self = Self(1 << 3);
    /// close(2) sends no flush.
    pub const NO_FLUSH: Self = Self(1 << 5);
    /// Direct writes to one file in parallel.
    pub const PARALLEL_DIRECT_WRITES: Self = Self(1 << 6);

    /// The bits as the protocol numbers them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An opened file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The file system's number for it, handed back with every use.
    pub handle: FileHandle,
    /// How the kernel shall treat it.
    pub flags: OpenFlags,
}

/// A created and opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The new node; counts as one lookup.
    pub entry: Entry,
    /// The open file.
    pub opened: Opened,
}

/// What an ioctl returns to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlResult {
    /// The call's own result. Below zero it is the number of an error, which
    /// unlike another error goes with output.
    pub value: i32,
    /// Bytes of output that were filled.
    pub filled: usize,
}
