//! Whether requests to a file or block device pass the system's page cache.

use rustix::io::Errno;
use thiserror::Error;

/// How requests reach a file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// By direct I/O: nothing of the device is in the page cache.
    Direct,
    /// Through the system's page cache.
    PageCache(NotDirect),
}

impl std::fmt::Display for Caching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Direct => f.write_str("direct I/O"),
            Self::PageCache(why) => write!(f, "through the page cache: {why}"),
        }
    }
}

/// Why a file or block device is used through the page cache.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotDirect {
    /// Whoever opened it did not ask for direct I/O.
    #[error("direct I/O was not asked for")]
    NotAsked,
    /// It is an image, and used through the page cache on purpose.
    #[error("that is faster for images")]
    Image,
    /// The file system does not say what direct I/O it takes. So it has none,
    /// or none that saves a copy.
    #[error("the file system offers no direct I/O")]
    NotOffered,
    /// Direct I/O would have to come in larger pieces than a sector of a volume.
    #[error("direct I/O would need pieces of {0} bytes")]
    TooCoarse(u32),
    /// The size is no multiple of what direct I/O takes.
    #[error("the size is no multiple of {0} bytes")]
    OddSize(u32),
    /// The system refused.
    #[error("the system refused direct I/O: {0}")]
    Refused(Errno),
    /// The system refused rings for requests at the same time.
    #[error("the system refused io_uring: {0}")]
    NoRing(Errno),
}
