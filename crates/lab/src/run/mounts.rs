//! What is mounted where, as /proc/self/mountinfo tells.

use super::process::{Process, others};
use std::fs;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) directory: PathBuf,
    /// Type ("btrfs", "fuse.bindfs").
    pub(crate) kind: String,
    /// Options of the mount and of its file system.
    pub(crate) options: Vec<String>,
}

/// All mounts, in the order in which they were made.
pub(crate) fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let right: Vec<&str> = right.split(' ').collect();
    let options = [*left.get(5)?, *right.get(2)?];
    let mut seen = std::collections::BTreeSet::new();
    Some(Mount {
        directory: unescape(left.get(4)?).into(),
        kind: (*right.first()?).to_owned(),
        options: options
            .iter()
            .flat_map(|list| list.split(','))
            .map(unescape)
            .filter(|option| seen.insert(option.clone()))
            .collect(),
    })
}

/// "\040" is a space.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut found = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                found.push(char::from(code));
                found.push_str(&part[3..]);
            }
            None => {
                found.push('\\');
                found.push_str(part);
            }
        }
    }
    found
}

/// The mount at a directory, the topmost where there are several.
pub(crate) fn at(directory: &Path) -> Option<Mount> {
    mounts()
        .into_iter()
        .rfind(|mount| mount.directory == directory)
}

/// Something is mounted at a directory.
pub(crate) fn is_mounted(directory: &Path) -> bool {
    at(directory).is_some()
}

/// Something that is mounted at or below a directory.
pub(crate) fn below(directory: &Path) -> Option<PathBuf> {
    let mut all = mounts().into_iter().map(|mount| mount.directory);
    all.find(|mount| mount.starts_with(directory))
}

/// Processes that have a file or their working directory below a directory.
pub(crate) fn processes_in(directory: &Path) -> Vec<Process> {
    let inside = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(directory));
    let uses = |pid: &i32| {
        let base = PathBuf::from(format!("/proc/{pid}"));
        let files = fs::read_dir(base.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        inside(base.join("cwd"))
            || inside(base.join("root"))
            || files.into_iter().any(|entry| inside(entry.path()))
    };
    others()
        .into_iter()
        .filter(uses)
        .filter_map(Process::of)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line = r"36 35 7:1 / /mnt/a\040b rw,noatime shared:1 - btrfs /dev/loop1 rw,compress=zstd:3,ssd";
        let mount = parse(line).unwrap();
        assert_eq!(mount.directory, Path::new("/mnt/a b"));
        assert_eq!(mount.kind, "btrfs");
        assert_eq!(mount.options, ["rw", "noatime", "compress=zstd:3", "ssd"]);
    }
}
