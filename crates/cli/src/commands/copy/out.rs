//! From a volume to the host.

use super::tally::Tally;
use crate::fail::{Done, Failure};
use crate::place::Place;
use crate::whole_file::name_beside;
use butterfs::{Attributes, FsError, Inode, InodeId, SeekTarget, Timespec, Volume, Walk};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timestamps, XattrFlags};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

const STEP: u64 = 1 << 20;

/// What is copied, and how.
pub struct Source<'a> {
    pub volume: &'a Volume,
    pub place: &'a Place,
    /// Whether the copies belong to whom the originals do.
    pub keeps_owner: bool,
}

struct Work<'a> {
    volume: &'a Volume,
    keeps_owner: bool,
    linked: HashMap<InodeId, PathBuf>,
    tally: &'a mut Tally,
}

impl Source<'_> {
    /// Copies it to `destination`, one of `sources`.
    pub fn copy(&self, destination: &OsString, sources: usize, tally: &mut Tally) -> Done {
        copy(self, destination, sources, tally)
    }
}

fn copy(source: &Source<'_>, destination: &OsString, sources: usize, tally: &mut Tally) -> Done {
    let (volume, place) = (source.volume, source.place);
    let start = volume.resolve(place.path.as_bytes())?;
    let mut target = PathBuf::from(destination);
    let name = place
        .path
        .as_bytes()
        .rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty());
    if target.is_dir() {
        if let Some(name) = name {
            target.push(OsStr::from_bytes(name));
        }
    } else if sources > 1 {
        return Err(Failure(format!("{} is no directory", target.display())));
    }
    let mut work = Work {
        volume,
        keeps_owner: source.keeps_owner,
        linked: HashMap::new(),
        tally,
    };
    let mut directories = Vec::new();
    volume.walk::<Failure>(start, &mut |entry| {
        let path = if entry.path.is_empty() {
            target.clone()
        } else {
            target.join(OsStr::from_bytes(&entry.path))
        };
        let of = &entry.attributes;
        let made = work.make(&path, of);
        made.map_err(|failure| failure.at(path.display()))?;
        work.tally.file();
        if of.is_directory() {
            directories.push((path, of.clone()));
        }
        Ok(Walk::Enter)
    })?;
    // Last, because making their content changed their times.
    for (path, of) in directories.iter().rev() {
        work.metadata(path, of)
            .map_err(|failure| failure.at(path.display()))?;
    }
    Ok(())
}

impl Work<'_> {
    fn make(&mut self, path: &Path, of: &Attributes) -> Done {
        self.tally.check_interrupt()?;
        if of.is_directory() {
            return match std::fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
                _ => Ok(()),
            };
        }
        let temporary = name_beside(path);
        // What a process of this number left that was killed.
        let _ = std::fs::remove_file(&temporary);
        let made = self
            .make_at(&temporary, of)
            .and_then(|()| Ok(std::fs::rename(&temporary, path)?));
        if made.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        made?;
        if of.nlink > 1 {
            self.linked.entry(of.id).or_insert_with(|| path.to_owned());
        }
        Ok(())
    }

    /// Makes what is no directory, whole.
    fn make_at(&mut self, path: &Path, of: &Attributes) -> Done {
        if let Some(first) = self.linked.get(&of.id) {
            return Ok(std::fs::hard_link(first, path)?);
        }
        let kind = match of.mode & libc::S_IFMT {
            libc::S_IFREG => {
                let inode = self.volume.files().inode(of.id)?;
                self.content(path, &inode, of.size)?;
                return self.metadata(path, of);
            }
            libc::S_IFLNK => {
                let target = self.volume.files().read_link(of.id)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), path)?;
                return self.metadata(path, of);
            }
            libc::S_IFCHR => FileType::CharacterDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            libc::S_IFIFO => FileType::Fifo,
            _ => FileType::Socket,
        };
        let (major, minor) = ((of.rdev >> 20) as u32, (of.rdev & 0xf_ffff) as u32);
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device)?;
        self.metadata(path, of)
    }

    fn content(&mut self, path: &Path, inode: &Inode, size: u64) -> Done {
        let files = self.volume.files();
        let file = File::options().write(true).create_new(true).open(path)?;
        let mut buffer = vec![0; STEP.min(size) as usize];
        let mut at = 0;
        while at < size {
            at = match files.seek(inode, SeekTarget::Data, at) {
                Ok(start) => start,
                Err(FsError::NoMoreData) => break,
                Err(error) => return Err(error.into()),
            };
            let end = files.seek(inode, SeekTarget::Hole, at)?.min(size);
            while at < end {
                self.tally.check_interrupt()?;
                let room = (end - at).min(STEP) as usize;
                let count = files.read(inode, at, &mut buffer[..room])?;
                if count == 0 {
                    break;
                }
                file.write_all_at(&buffer[..count], at)?;
                at += count as u64;
                self.tally.data(count);
            }
        }
        Ok(file.set_len(size)?)
    }

    fn metadata(&mut self, path: &Path, of: &Attributes) -> Done {
        // An ordinary user cannot give files away; cp -a goes on, too.
        if self.keeps_owner && std::os::unix::fs::lchown(path, Some(of.uid), Some(of.gid)).is_err()
        {
            self.tally.leave_out();
        }
        if of.mode & libc::S_IFMT != libc::S_IFLNK {
            let mode = std::fs::Permissions::from_mode(of.mode & 0o7777);
            std::fs::set_permissions(path, mode)?;
        }
        let files = self.volume.files();
        for name in files.list_xattrs(of.id)? {
            let value = files.get_xattr(of.id, &name)?;
            if rustix::fs::lsetxattr(path, &name[..], &value, XattrFlags::empty()).is_err() {
                self.tally.leave_out();
            }
        }
        let times = Timestamps {
            last_access: timespec(of.atime),
            last_modification: timespec(of.mtime),
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

fn timespec(time: Timespec) -> rustix::fs::Timespec {
    rustix::fs::Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    }
}
