//! How a volume divides the memory that the process may use.
//!
//! Owns the defaults. What can be bounded is bounded by these shares: clean
//! nodes, changed nodes with what waits for their commit, and data of files that
//! wait for their flush. Together they stay well below the memory of a small
//! control group, which would kill the process otherwise.

/// With this much memory, or more, everything has its full size; with less, the
/// same part of it.
const FULL_FROM: u64 = 1 << 30;
/// As little memory as shares are made for.
const LEAST: u64 = 48 << 20;
/// Changed nodes of a generation.
const GENERATION: u64 = 64 << 20;
/// Data of files.
const WRITE_BUFFER: u64 = 96 << 20;
/// Clean nodes: a part of the memory, and the most.
const CACHE_PART: u64 = 16;
const CACHE_MAX: u64 = 128 << 20;
/// Inodes that nobody uses.
const IDLE_INODES: u64 = 32_768;

/// What each use of memory may take by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShares {
    /// Bytes of nodes as the device has them.
    pub cache_bytes: usize,
    /// Bytes of changed nodes at which a generation is committed.
    pub generation_bytes: usize,
    /// Bytes of file data that wait for their flush.
    pub write_buffer_bytes: usize,
    /// Inodes that are kept while nobody uses them.
    pub idle_inodes: usize,
}

impl MemoryShares {
    /// The shares of a process that may use `memory` bytes; `None` if that is not
    /// known.
    #[must_use]
    pub fn of(memory: Option<u64>) -> Self {
        let memory = memory.unwrap_or(FULL_FROM).max(LEAST);
        let part = |full: u64| {
            let share =
                u128::from(full) * u128::from(memory.min(FULL_FROM)) / u128::from(FULL_FROM);
            usize::try_from(share).unwrap_or(usize::MAX)
        };
        let cache = (memory / CACHE_PART).min(CACHE_MAX);
        Self {
            cache_bytes: usize::try_from(cache).unwrap_or(usize::MAX),
            generation_bytes: part(GENERATION),
            write_buffer_bytes: part(WRITE_BUFFER),
            idle_inodes: part(IDLE_INODES),
        }
    }

    /// The shares of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(butterfs_device::memory_of_process())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_into_the_memory() {
        for mib in [0, 48, 64, 128, 256, 512, 1024] {
            let memory: u64 = mib << 20;
            let shares = MemoryShares::of(Some(memory));
            // While a commit is written the next generation grows to twice its size.
            let bytes =
                shares.cache_bytes + 3 * shares.generation_bytes + shares.write_buffer_bytes;
            assert!(
                bytes as u64 <= memory.max(LEAST) / 2,
                "{mib} MiB: {shares:?}"
            );
            assert!(shares.generation_bytes >= 3 << 20, "{shares:?}");
        }
        let full = MemoryShares::of(Some(24 << 30));
        assert_eq!(full, MemoryShares::of(Some(u64::MAX)));
        assert_eq!(full.write_buffer_bytes, 96 << 20);
        assert_eq!(MemoryShares::of(None), MemoryShares::of(Some(1 << 30)));
    }
}
