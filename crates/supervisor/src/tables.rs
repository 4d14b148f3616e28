//! The kernel's tables of mounts, in which those of ButterFS become Btrfs.

use crate::mounts::{Mounts, Shown};
use std::fs;

/// A table of mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `/proc/PID/mountinfo`
    Info,
    /// `/proc/PID/mounts`
    Plain,
}

/// Whose table, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    form: Form,
    /// A process by its number; `None` for the caller itself.
    process: Option<u32>,
}

impl Table {
    /// The table at a path; `None` if it names none.
    pub(crate) fn named(path: &[u8]) -> Option<Self> {
        let path = std::str::from_utf8(path).ok()?;
        let (process, file) = match path {
            "/proc/mounts" | "/etc/mtab" => (None, "mounts"),
            path => {
                let (process, file) = path.strip_prefix("/proc/")?.split_once('/')?;
                match process {
                    "self" | "thread-self" => (None, file),
                    number => (Some(number.parse().ok()?), file),
                }
            }
        };
        let form = match file {
            "mountinfo" => Form::Info,
            "mounts" => Form::Plain,
            _ => return None,
        };
        Some(Self { form, process })
    }
}

/// What a thread reads in a table; `None` if no mount of ButterFS is there.
pub(crate) fn content(table: &Table, thread: u32, mounts: &Mounts) -> Option<Vec<u8>> {
    let process = table.process.unwrap_or(thread);
    let own = fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()?;
    let shown = |line: &str| -> Option<Shown> {
        let fields: Vec<&str> = line.split(' ').collect();
        let dash = fields.iter().position(|field| *field == "-")?;
        if !fields.get(dash + 1)?.ends_with(".butterfs") {
            return None;
        }
        let (major, minor) = fields.get(2)?.split_once(':')?;
        let volume = mounts.find((major.parse().ok()?, minor.parse().ok()?))?;
        volume.shown().cloned()
    };
    let all: Vec<Option<Shown>> = own.lines().map(shown).collect();
    if all.iter().all(Option::is_none) {
        return None;
    }
    let lines = match table.form {
        Form::Info => own,
        // Both tables have the same mounts in the same order.
        Form::Plain => fs::read_to_string(format!("/proc/{process}/mounts")).ok()?,
    };
    if lines.lines().count() != all.len() {
        return None;
    }
    let mut text = String::with_capacity(lines.len());
    for (line, shown) in lines.lines().zip(&all) {
        let changed = shown.as_ref().and_then(|shown| match table.form {
            Form::Info => info(line, shown),
            Form::Plain => plain(line, shown),
        });
        text.push_str(changed.as_deref().unwrap_or(line));
        text.push('\n');
    }
    Some(text.into_bytes())
}

/// Options of the file system, of which only the first word is FUSE's and
/// Btrfs' alike.
fn options(of_fuse: &str, shown: &Shown) -> String {
    let first = of_fuse.split(',').next().unwrap_or("rw");
    let mut options = format!("{first},space_cache=v2,subvolid={}", shown.tree);
    if let Some(path) = &shown.path {
        options.push_str(&format!(",subvol={}", escaped(path)));
    }
    options
}

/// Octal, as the kernel does it.
fn escaped(path: &str) -> String {
    let mut text = String::new();
    for letter in path.chars() {
        match letter {
            ' ' | '\t' | '\n' | '\\' => text.push_str(&format!("\\{:03o}", u32::from(letter))),
            letter => text.push(letter),
        }
    }
    text
}

fn info(line: &str, shown: &Shown) -> Option<String> {
    let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let dash = fields.iter().position(|field| field == "-")?;
    if let Some(path) = &shown.path {
        let root = fields.get_mut(3)?;
        let below = root.trim_start_matches('/').to_owned();
        let path = escaped(path);
        *root = match below.is_empty() {
            true => path,
            false => format!("{}/{below}", path.trim_end_matches('/')),
        };
    }
    *fields.get_mut(dash + 1)? = "btrfs".to_owned();
    let last = fields.get_mut(dash + 3)?;
    *last = options(last, shown);
    Some(fields.join(" "))
}

fn plain(line: &str, shown: &Shown) -> Option<String> {
    const OF_FUSE: [&str; 6] = [
        "user_id=",
        "group_id=",
        "default_permissions",
        "allow_other",
        "max_read=",
        "blksize=",
    ];
    let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
    *fields.get_mut(2)? = "btrfs".to_owned();
    let of_mount = fields.get_mut(3)?;
    let kept = of_mount.split(',').filter(|word| {
        let is_of_fuse = OF_FUSE.iter().any(|one| word.starts_with(one));
        !is_of_fuse
    });
    let kept: Vec<&str> = kept.collect();
    let own = options("", shown);
    *of_mount = format!("{}{own}", kept.join(","));
    Some(fields.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::TreeId;

    #[test]
    fn tables_are_known_by_their_paths() {
        let table = |path: &str| Table::named(path.as_bytes());
        let own = |form| {
            Some(Table {
                form,
                process: None,
            })
        };
        assert_eq!(table("/proc/self/mountinfo"), own(Form::Info));
        assert_eq!(table("/proc/thread-self/mounts"), own(Form::Plain));
        assert_eq!(table("/etc/mtab"), own(Form::Plain));
        let other = Some(Table {
            form: Form::Info,
            process: Some(17),
        });
        assert_eq!(table("/proc/17/mountinfo"), other);
        for path in [
            "/proc/x/mounts",
            "/proc/self/maps",
            "mounts",
            "/proc/self/task/1/mounts",
        ] {
            assert_eq!(table(path), None, "{path}");
        }
    }

    #[test]
    fn lines_become_those_of_btrfs() {
        let shown = Shown {
            fsid: [1; 16],
            tree: TreeId(256),
            path: Some("/my home".to_owned()),
        };
        let line =
            "36 35 0:52 / /mnt rw,noatime shared:1 - fuse.butterfs /v.img rw,user_id=0,group_id=0";
        assert_eq!(
            info(line, &shown).expect("a line"),
            "36 35 0:52 /my\\040home /mnt rw,noatime shared:1 - btrfs /v.img \
             rw,space_cache=v2,subvolid=256,subvol=/my\\040home"
        );
        let line = "/v.img /mnt fuse.butterfs rw,noatime,user_id=0,group_id=0,allow_other 0 0";
        assert_eq!(
            plain(line, &shown).expect("a line"),
            "/v.img /mnt btrfs rw,noatime,space_cache=v2,subvolid=256,subvol=/my\\040home 0 0"
        );
    }
}
