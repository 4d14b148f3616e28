//! How much memory this process may use, and whether it is short.
//!
//! Owns the questions for it: the machine's memory (/proc/meminfo), the limits of
//! the control groups that the process is in (`memory.max` and `memory.high` of
//! cgroup v2, `memory.limit_in_bytes` of v1; of the group and of those above it),
//! and the kernel's record of time lost for lack of memory (PSI).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Files with limits of a group of cgroup v2. A group above `memory.high` is
/// slowed down, one above `memory.max` is killed.
const LIMITS_V2: &[&str] = &["memory.max", "memory.high"];
/// The same of v1.
const LIMITS_V1: &[&str] = &["memory.limit_in_bytes"];

/// A control group that the process is in, as files show it.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    /// Where its hierarchy is mounted.
    mount: PathBuf,
    /// The group's directory below that.
    below: PathBuf,
    /// Files with limits in it.
    limits: &'static [&'static str],
}

/// Bytes of memory that this process may use: the machine's, or less where a
/// control group limits it; `None` where the system does not tell. What was
/// found at the first call stays.
#[must_use]
pub fn memory_of_process() -> Option<u64> {
    static FOUND: OnceLock<Option<u64>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let total = total(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let limits = own_groups().into_iter().flat_map(|group| group.limits());
        Some(limits.fold(total, u64::min))
    })
}

/// The share of the last ten seconds in which tasks of the process's control
/// group waited for memory, in per cent; of the whole machine where the group
/// has no such record; `None` where the kernel keeps none.
#[must_use]
pub fn memory_pressure() -> Option<f32> {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let groups = own_groups().into_iter();
        let files = groups.map(|group| group.mount.join(&group.below).join("memory.pressure"));
        let mut readable = files.filter(|file| fs::read_to_string(file).is_ok());
        readable
            .next()
            .unwrap_or_else(|| "/proc/pressure/memory".into())
    });
    some_avg10(&fs::read_to_string(file).ok()?)
}

impl Group {
    /// Limits of the group and of those above it, in bytes.
    fn limits(&self) -> Vec<u64> {
        let ancestors = self.below.ancestors();
        let folders = ancestors.map(|part| self.mount.join(part));
        let files =
            folders.flat_map(|folder| self.limits.iter().map(move |name| folder.join(name)));
        files
            .filter_map(|file| limit(&fs::read_to_string(file).ok()?))
            .collect()
    }
}

/// The groups of the process that can limit its memory.
fn own_groups() -> Vec<Group> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    groups(&own, &mounts)
}

/// The groups that /proc/self/cgroup names, at the mounts of mountinfo.
fn groups(own: &str, mounts: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let Some((place, kind)) = mount.split_once(" - ") else {
            continue;
        };
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next(), kind.nth(1).unwrap_or_default());
        let (prefix, limits) = match name {
            Some("cgroup2") => ("", LIMITS_V2),
            Some("cgroup") if options.split(',').any(|one| one == "memory") => {
                ("memory", LIMITS_V1)
            }
            _ => continue,
        };
        let mut place = place.split(' ').skip(3);
        let (Some(root), Some(at)) = (place.next(), place.next()) else {
            continue;
        };
        let path = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers
                .split(',')
                .any(|one| one == prefix)
                .then_some(path)
        });
        // A group outside of what is mounted is that of the mount, as a container
        // sees it.
        let below = path.and_then(|path| Path::new(path).strip_prefix(root).ok());
        let below = below.filter(|path| !path.starts_with(".."));
        found.push(Group {
            mount: at.into(),
            below: below.unwrap_or(Path::new("")).into(),
            limits,
        });
    }
    found
}

/// `MemTotal` of /proc/meminfo.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// A limit, where there is one.
fn limit(file: &str) -> Option<u64> {
    file.trim().parse().ok()
}

/// The first average of the line `some` of a PSI file.
fn some_avg10(file: &str) -> Option<f32> {
    let line = file.lines().find_map(|line| line.strip_prefix("some "))?;
    let average = line.split(' ').find_map(|word| word.strip_prefix("avg10="));
    average?.parse().ok()
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
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("536870912\n"), Some(512 << 20));
        let psi = "some avg10=12.34 avg60=1.57 avg300=1.26 total=5610171\nfull avg10=0.00";
        assert_eq!(some_avg10(psi), Some(12.34));
        assert_eq!(some_avg10("full avg10=1.0"), None);
        let found = memory_of_process();
        assert!(found.is_none_or(|bytes| bytes > 1 << 20), "{found:?}");
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let unified = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let group = |mount: &str, below: &str, limits| Group {
            mount: mount.into(),
            below: below.into(),
            limits,
        };
        assert_eq!(
            groups("0::/system.slice/a.service\n", unified),
            [group("/sys/fs/cgroup", "system.slice/a.service", LIMITS_V2)]
        );
        // A container without a namespace of control groups, and one with it.
        let bound =
            "31 24 0:27 /docker/1f /sys/fs/cgroup/memory ro shared:9 - cgroup cgroup rw,memory\n";
        let own = "5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f/job\n0::/docker/1f\n";
        assert_eq!(
            groups(own, bound),
            [group("/sys/fs/cgroup/memory", "job", LIMITS_V1)]
        );
        assert_eq!(
            groups("0::/../../other\n", unified),
            [group("/sys/fs/cgroup", "", LIMITS_V2)]
        );
        assert_eq!(groups(own, "22 1 0:20 / /proc rw - proc proc rw\n"), []);
        let cpu = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(groups(own, cpu), []);
    }

    #[test]
    fn limits_of_groups_above_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("a/b");
        fs::create_dir_all(&inner).expect("folders");
        let write = |at: &str, text: &str| fs::write(folder.path().join(at), text).expect(at);
        write("a/memory.max", "268435456\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.high", "134217728\n");
        let group = Group {
            mount: folder.path().into(),
            below: "a/b".into(),
            limits: LIMITS_V2,
        };
        let mut limits = group.limits();
        limits.sort_unstable();
        assert_eq!(limits, [128 << 20, 256 << 20]);
    }
}
