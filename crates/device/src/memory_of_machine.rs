//! How much memory this process may use.
//!
//! Owns the questions for it: the machine's memory (/proc/meminfo) and the
//! limits of the control groups that the process is in (`memory.max` of cgroup
//! v2, of the group and of those above it).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes of memory that this process may use: the machine's, or less where a
/// control group limits it; `None` where the system does not tell. What was
/// found at the first call stays.
#[must_use]
pub fn memory_of_machine() -> Option<u64> {
    static FOUND: OnceLock<Option<u64>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let total = total(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limits = group(&own).into_iter().flat_map(|group| {
            let below = group.strip_prefix("/").unwrap_or(&group).to_owned();
            let parts: Vec<PathBuf> = below.ancestors().map(Path::to_owned).collect();
            parts.into_iter().filter_map(|part| {
                let file = Path::new(GROUPS).join(part).join("memory.max");
                limit(&fs::read_to_string(file).ok()?)
            })
        });
        Some(limits.fold(total, u64::min))
    })
}

/// `MemTotal` of /proc/meminfo.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The group of cgroup v2 in /proc/self/cgroup.
fn group(own: &str) -> Option<PathBuf> {
    let line = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(PathBuf::from(line))
}

/// A limit, where there is one.
fn limit(file: &str) -> Option<u64> {
    file.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(
            total("MemFree: 1 kB\nMemTotal:       24621364 kB\n"),
            Some(24_621_364 * 1024)
        );
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(group("1:x:/y\n0::/a/b\n"), Some(PathBuf::from("/a/b")));
        assert_eq!(group("1:x:/y\n"), None);
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("536870912\n"), Some(512 << 20));
        let found = memory_of_machine();
        assert!(found.is_none_or(|bytes| bytes > 1 << 20), "{found:?}");
    }
}
