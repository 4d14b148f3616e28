//! Data that were promised to be kept and wait in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Data that were acknowledged and wait in memory. Metadata space is kept for
/// them. The file layer counts these data, and the engine keeps the space.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// Bytes that wait.
    pub bytes: Arc<AtomicU64>,
    /// Files that they belong to.
    pub files: Arc<AtomicU64>,
    /// Number of commits of the volume since it was opened. What was known of
    /// its space before a commit is old after it.
    pub commits: Arc<AtomicU64>,
}

impl Acknowledged {
    /// Each byte of metadata describes at least this many bytes of data. For
    /// one sector, the file extent, the extent item, the checksum and their
    /// share of half-filled nodes take less than 256 bytes.
    pub(crate) const DATA_PER_METADATA: u64 = 16;
    /// Metadata of one file, however small: its first extent and its inode.
    pub(crate) const PER_FILE: u64 = 1024;

    /// Bytes of metadata that this many bytes of data need.
    #[must_use]
    pub const fn metadata_of(bytes: u64, files: u64) -> u64 {
        (bytes / Self::DATA_PER_METADATA).saturating_add(files.saturating_mul(Self::PER_FILE))
    }

    pub(crate) fn metadata(&self) -> u64 {
        let bytes = self.bytes.load(Ordering::SeqCst);
        Self::metadata_of(bytes, self.files.load(Ordering::SeqCst))
    }
}
