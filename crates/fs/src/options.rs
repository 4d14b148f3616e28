//! Mount options that change how files are kept.

use butterfs_format::compression::{Algorithm, Level};
use butterfs_store::MemoryShares;

/// Compression of new data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compress {
    /// None, unless a property or attribute asks for it.
    #[default]
    Off,
    /// Where it saves space. Files that did not compress are left alone.
    Try(Algorithm, Level),
    /// Tried for every unit of every file.
    Force(Algorithm, Level),
}

/// Copy-on-write of file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataCow {
    /// Data are copied on write and checksummed.
    #[default]
    On,
    /// Data are copied on write, without checksums (nodatasum).
    NoSum,
    /// New files are overwritten in place, without checksums or compression.
    Off,
}

/// When access times change. A FUSE server does not learn of reads that the
/// kernel answers from its own cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// If it is not later than the last change, or is a day old (relatime).
    #[default]
    Relative,
    /// Never (noatime).
    Never,
    /// At every access (strictatime).
    Always,
}

/// Whether access control lists count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclPolicy {
    /// They do.
    #[default]
    On,
    /// They are not looked at, set, or inherited (`noacl`). ACLs that are there
    /// stay.
    Off,
}

/// How files are kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// Compression.
    pub compress: Compress,
    /// Copy-on-write.
    pub data_cow: DataCow,
    /// Greatest inline file, in bytes.
    pub max_inline: u32,
    /// Bytes of file data that may wait in memory.
    pub buffer_bytes: usize,
    /// Inodes that are kept in memory while nobody uses them.
    pub idle_inodes: usize,
    /// fsync uses the fsync log where it can; otherwise it is always a commit
    /// (`notreelog`).
    pub log_fsync: bool,
    /// Whether access control lists count.
    pub acl: AclPolicy,
    /// Threads that compress, compute checksums, and read for one caller.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        let shares = MemoryShares::of_process();
        Self {
            compress: Compress::Off,
            data_cow: DataCow::On,
            max_inline: 2048,
            buffer_bytes: shares.write_buffer_bytes,
            idle_inodes: shares.idle_inodes,
            log_fsync: true,
            acl: AclPolicy::On,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
        }
    }
}
