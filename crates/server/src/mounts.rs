//! The kernel's table of mounts, `/proc/PID/mountinfo`.
//!
//! Owns its parsing. It asks no file system, so it works even if a server is
//! gone.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount.
    pub id: u64,
    /// Number of the mount over which it lies.
    pub parent: u64,
    /// `major:minor` of what is mounted.
    pub device: String,
    /// The directory of the file system that it shows.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Type.
    pub kind: String,
    /// What the mounter called the source.
    pub source: PathBuf,
    /// Nobody can write through this mount: it is read-only, whatever others of
    /// the file system are, or the file system is.
    pub is_read_only: bool,
    /// Options of the file system, as the kernel tells them.
    options: String,
}

impl Mount {
    /// Mounts that a process sees. The process is `self` or a number; if it
    /// does not exist, there are none.
    #[must_use]
    pub fn seen_by(process: &str) -> Vec<Self> {
        let table = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        let lines = table.split(|byte| *byte == b'\n');
        lines.filter_map(Self::parse).collect()
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let has_ro = |field: Option<&&[u8]>| -> Option<bool> {
            Some(text(field?).split(',').any(|word| word == "ro"))
        };
        Some(Self {
            id: text(fields.first()?).parse().ok()?,
            parent: text(fields.get(1)?).parse().ok()?,
            device: text(fields.get(2)?),
            root: unescape(fields.get(3)?),
            point: unescape(fields.get(4)?),
            is_read_only: has_ro(fields.get(5))? || has_ro(fields.get(dash + 3))?,
            kind: text(fields.get(dash + 1)?),
            source: unescape(fields.get(dash + 2)?),
            options: text(fields.get(dash + 3)?),
        })
    }

    /// The mount that an absolute path without symbolic links leads into, among
    /// those that this process sees.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        let over = |mount: &Self| path.starts_with(&mount.point);
        // Of several at one place, the last covers the others.
        let length = |mount: &Self| mount.point.as_os_str().len();
        Self::seen_by("self")
            .into_iter()
            .filter(over)
            .max_by_key(length)
    }

    /// True for a mount that a server of ButterFS made, or that claims so.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind.ends_with(".butterfs")
    }

    /// True for a volume that the kernel's Btrfs may change, by this mount or
    /// another.
    #[must_use]
    pub fn is_written_by_kernel(&self) -> bool {
        self.kind == "btrfs" && self.options.split(',').any(|word| word == "rw")
    }

    /// The user who mounted it by FUSE. The kernel says so, whatever the server
    /// does.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        self.number("user_id=")
    }

    /// The group of that user.
    #[must_use]
    pub fn group(&self) -> Option<u32> {
        self.number("group_id=")
    }

    fn number(&self, name: &str) -> Option<u32> {
        let mut words = self.options.split(',');
        words.find_map(|word| word.strip_prefix(name)?.parse().ok())
    }

    /// True for what root has mounted by FUSE. The kernel says so, whatever the
    /// server does.
    #[must_use]
    pub fn is_roots(&self) -> bool {
        self.options.split(',').any(|word| word == "user_id=0")
    }
}

/// Octal escapes (`\040`) undone.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed() {
        let line = b"36 35 0:52 /sub /mnt/a\\040b rw,noatime shared:1 - fuse.butterfs /v\\134x rw,user_id=0";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!(
            (mount.id, mount.parent, &mount.device[..]),
            (36, 35, "0:52")
        );
        assert_eq!(mount.point, PathBuf::from("/mnt/a b"));
        assert_eq!(mount.source, PathBuf::from("/v\\x"));
        assert!(mount.is_ours() && mount.is_roots());
        assert!(!mount.is_written_by_kernel());
        assert!(!mount.is_read_only);
        let line = b"36 35 0:52 / /mnt ro - btrfs /dev/loop0 rw,space_cache=v2,subvolid=5";
        assert!(Mount::parse(line).expect("a mount").is_written_by_kernel());
        let line = b"36 35 0:52 / /mnt rw - btrfs /dev/loop0 ro,space_cache=v2,subvolid=5";
        let of_ro = Mount::parse(line).expect("a mount");
        assert!(!of_ro.is_written_by_kernel() && of_ro.is_read_only);
        assert_eq!(Mount::parse(b""), None);
        assert_eq!(Mount::parse(b"1 2 0:3 / /mnt rw - "), None);
    }
}
