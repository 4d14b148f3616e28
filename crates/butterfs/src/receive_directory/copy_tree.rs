//! A copy of a directory and everything below it. Where the file system has no
//! snapshots, receiving the changes to a parent begins with such a copy of the
//! parent.
//!
//! Kept: type, permissions, owner, times, extended attributes, ACLs, hard
//! links, holes, device numbers. Data are shared if the file system can do
//! that.

use butterfs_fs::receive::TargetError;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
    chownat, fstat, lgetxattr, linkat, llistxattr, lsetxattr, mkdirat, mknodat, openat, readlinkat,
    statat, symlinkat, utimensat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Greatest list of names and value of extended attributes.
const XATTR_MAX: usize = 64 << 10;

/// Copies the content of a file to a new one. The third argument is the size.
pub type CopyContent<'c> = &'c mut dyn FnMut(&Path, &Path, u64) -> io::Result<()>;

/// What was copied on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiedTree {
    /// Files, directories and all else with a name.
    pub files: u64,
    /// Owners and attributes that the target did not take.
    pub left_out: u64,
}

/// Copies a file or directory of the host to the new name `target`, with
/// everything below it. `content` copies the data of files.
///
/// # Errors
/// Errors of system calls, with the path. What was copied before stays.
pub fn copy_host_tree(
    source: &Path,
    target: &Path,
    content: CopyContent<'_>,
) -> io::Result<CopiedTree> {
    let mut copying = Copying {
        linked: HashMap::new(),
        content,
        done: CopiedTree::default(),
    };
    let attributes = statat(CWD, source, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(attributes.st_mode) == FileType::Directory {
        mkdirat(CWD, target, Mode::from_raw_mode(0o700))?;
        copying.below(source, target)?;
    } else {
        copying.file(source, target, &attributes)?;
    }
    copying.done.files += 1;
    Ok(copying.done)
}

/// Copies the directory `source` to the new directory `target`.
pub(super) fn copy(source: &OwnedFd, target: &Path, left_out: &mut u64) -> Result<(), TargetError> {
    let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    let mut copying = Copying {
        linked: HashMap::new(),
        content: &mut copy_content,
        done: CopiedTree::default(),
    };
    mkdirat(CWD, target, Mode::from_raw_mode(0o700)).map_err(io::Error::from)?;
    // This follows the link `/proc/self/fd/N` itself, and no link below it.
    copying.below(&source.join("."), target)?;
    *left_out += copying.done.left_out;
    Ok(())
}

struct Copying<'c> {
    /// First copies of inodes with several names, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
    content: CopyContent<'c>,
    done: CopiedTree,
}

impl Copying<'_> {
    /// Copies what is in a directory, then its attributes. Iterative, because
    /// directories may be deep.
    fn below(&mut self, source: &Path, target: &Path) -> io::Result<()> {
        let mut waiting = vec![(source.to_owned(), target.to_owned())];
        let mut directories = Vec::new();
        while let Some((source, target)) = waiting.pop() {
            for entry in std::fs::read_dir(&source)? {
                self.done.files += 1;
                let name: OsString = entry?.file_name();
                let (from, to) = (source.join(&name), target.join(&name));
                let attributes = statat(CWD, &from, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(attributes.st_mode) == FileType::Directory {
                    mkdirat(CWD, &to, Mode::from_raw_mode(0o700))?;
                    waiting.push((from, to));
                } else {
                    self.file(&from, &to, &attributes)?;
                }
            }
            directories.push((source, target));
        }
        for (source, target) in directories.into_iter().rev() {
            let attributes = statat(CWD, &source, AtFlags::SYMLINK_NOFOLLOW)?;
            self.metadata(&source, &target, &attributes)?;
        }
        Ok(())
    }

    fn file(&mut self, from: &Path, to: &Path, of: &rustix::fs::Stat) -> io::Result<()> {
        if of.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(of.st_dev, of.st_ino)) {
                return Ok(linkat(CWD, first, CWD, to, AtFlags::empty())?);
            }
            self.linked.insert((of.st_dev, of.st_ino), to.to_owned());
        }
        match FileType::from_raw_mode(of.st_mode) {
            FileType::RegularFile => {
                (self.content)(from, to, of.st_size as u64).map_err(|error| at(from, &error))?;
            }
            FileType::Symlink => {
                let target = readlinkat(CWD, from, Vec::new())?;
                symlinkat(target, CWD, to)?;
            }
            kind => {
                mknodat(CWD, to, kind, Mode::from_raw_mode(0o600), of.st_rdev)?;
            }
        }
        self.metadata(from, to, of)
    }

    fn metadata(&mut self, from: &Path, to: &Path, of: &rustix::fs::Stat) -> io::Result<()> {
        let owner = (Uid::from_raw(of.st_uid), Gid::from_raw(of.st_gid));
        match chownat(
            CWD,
            to,
            Some(owner.0),
            Some(owner.1),
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Err(Errno::PERM) => self.done.left_out += 1,
            other => other?,
        }
        let is_link = FileType::from_raw_mode(of.st_mode) == FileType::Symlink;
        let mut names = vec![0; XATTR_MAX];
        let count = llistxattr(from, &mut names[..]).unwrap_or(0);
        for name in names[..count].split(|byte| *byte == 0) {
            if name.is_empty() {
                continue;
            }
            let name = OsStr::from_bytes(name);
            let mut value = vec![0; XATTR_MAX];
            let length = lgetxattr(from, name, &mut value[..])?;
            if lsetxattr(to, name, &value[..length], XattrFlags::empty()).is_err() {
                self.done.left_out += 1;
            }
        }
        if !is_link {
            let mode = Mode::from_raw_mode(of.st_mode & 0o7777);
            rustix::fs::chmodat(CWD, to, mode, AtFlags::empty())?;
        }
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: of.st_atime,
                tv_nsec: of.st_atime_nsec as _,
            },
            last_modification: Timespec {
                tv_sec: of.st_mtime,
                tv_nsec: of.st_mtime_nsec as _,
            },
        };
        Ok(utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// An error with its path. Its kind stays.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Copies data, shared if possible, and holes as holes.
fn copy_content(from: &Path, to: &Path, size: u64) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut source = std::fs::File::from(openat(CWD, from, flags, Mode::empty())?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut target = std::fs::File::from(openat(CWD, to, flags, Mode::from_raw_mode(0o600))?);
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(());
    }
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&source, SeekFrom::Hole(at))?;
        rustix::fs::seek(&source, SeekFrom::Start(at))?;
        rustix::fs::seek(&target, SeekFrom::Start(at))?;
        io::copy(&mut (&mut source).take(end - at), &mut target)?;
        at = end;
    }
    target.flush()?;
    target.set_len(fstat(&source)?.st_size as u64)
}
