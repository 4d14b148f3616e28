//! Operations on subvolumes of a mounted directory, by the program `btrfs`.
//!
//! Its output is all that is known of a system call that failed.

use super::{Op, OpPath, SnapshotAccess};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Does an operation on subvolumes.
///
/// # Errors
/// The error of a system call; EIO for errors without a name here.
pub(super) fn apply(op: &Op, at: impl Fn(&OpPath) -> PathBuf) -> Result<(), Errno> {
    match op {
        Op::Subvolume { path, mode } => {
            let path = at(path);
            must_be_free(&path)?;
            btrfs(&["subvolume", "create"], &[&path])?;
            let mode = std::fs::Permissions::from_mode(*mode);
            std::fs::set_permissions(&path, mode).map_err(|error| errno_of(&error))
        }
        Op::Snapshot { from, to, access } => {
            let to = at(to);
            must_be_free(&to)?;
            match access {
                SnapshotAccess::Writable => btrfs(&["subvolume", "snapshot"], &[&at(from), &to]),
                SnapshotAccess::ReadOnly => {
                    btrfs(&["subvolume", "snapshot", "-r"], &[&at(from), &to])
                }
            }
        }
        Op::DeleteSubvolume { path } => btrfs(&["subvolume", "delete"], &[&at(path)]),
        Op::SendReceive { from, parent, into } => {
            let into = at(into);
            std::fs::create_dir(&into).map_err(|error| errno_of(&error))?;
            let parent = parent.as_ref().map(&at);
            transfer(&at(from), parent.as_deref(), &into)
        }
        _ => Err(Errno::INVAL),
    }
}

fn must_be_free(path: &Path) -> Result<(), Errno> {
    match path.symlink_metadata() {
        Ok(_) => Err(Errno::EXIST),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(errno_of(&error)),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn btrfs(words: &[&str], paths: &[&Path]) -> Result<(), Errno> {
    let out = Command::new("btrfs")
        .args(words)
        .arg("--")
        .args(paths)
        .output();
    let out = out.map_err(|error| errno_of(&error))?;
    if out.status.success() {
        return Ok(());
    }
    Err(named(&String::from_utf8_lossy(&out.stderr)))
}

/// The error that a message tells of.
fn named(text: &str) -> Errno {
    let names = [
        ("File exists", Errno::EXIST),
        ("Directory not empty", Errno::NOTEMPTY),
        ("No such file or directory", Errno::NOENT),
        ("Read-only file system", Errno::ROFS),
        ("File name too long", Errno::NAMETOOLONG),
        ("Invalid argument", Errno::INVAL),
    ];
    let found = names.iter().find(|(words, _)| text.contains(words));
    found.map_or_else(
        || {
            eprintln!("btrfs: {text}");
            Errno::IO
        },
        |(_, errno)| *errno,
    )
}

fn transfer(from: &Path, parent: Option<&Path>, into: &Path) -> Result<(), Errno> {
    let mut send = Command::new("btrfs");
    send.args(["send", "--quiet"]);
    if let Some(parent) = parent {
        send.args([OsStr::new("-p"), parent.as_os_str()]);
    }
    send.arg(from).stdout(Stdio::piped());
    let mut send = send.spawn().map_err(|error| errno_of(&error))?;
    let stream = send.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let received = Command::new("btrfs")
        .args(["receive", "--quiet"])
        .arg(into)
        .stdin(stream)
        .output();
    let sent = send.wait().map_err(|error| errno_of(&error))?;
    let received = received.map_err(|error| errno_of(&error))?;
    if sent.success() && received.status.success() {
        return Ok(());
    }
    Err(named(&String::from_utf8_lossy(&received.stderr)))
}
