//! Commands of a stream that change files, done by system calls below one
//! directory.
//!
//! Owns finding files without following links, and what is done instead if a
//! file system or an ordinary user cannot do what a command says.

use super::DirectoryKind;
use butterfs_format::compression::Scratch;
use butterfs_format::send_stream::{
    CloneRange, Command, EncodedWrite, Encoding, PathTimes, SourceStamp, Special,
};
use butterfs_fs::receive::{NewSubvolume, TargetError};
use butterfs_kernel::{self as btrfs, CloneRequest, EncodedRequest};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec,
    Timestamps, Uid, XattrFlags, chownat, fallocate, ftruncate, linkat, mkdirat, mknodat, openat2,
    renameat_with, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Bytes copied at a time where ranges cannot be shared.
const COPY: usize = 1 << 20;
/// Other subvolumes that are kept open as sources of clones.
const SOURCES_MAX: usize = 16;

/// Files of the subvolume that is being received.
#[derive(Debug)]
pub(super) struct Files {
    root: OwnedFd,
    kind: DirectoryKind,
    /// The directory that was used last.
    directory: Option<(Vec<u8>, OwnedFd)>,
    /// The file that was written last.
    file: Option<(Vec<u8>, OwnedFd)>,
    /// The file that was cloned from last.
    cloned: Option<(SourceStamp, Vec<u8>, OwnedFd)>,
    sources: Vec<(SourceStamp, OwnedFd)>,
    /// Encoded data can be written in their encoded form.
    takes_encoded: bool,
    is_root: bool,
    left_out: u64,
}

/// A name in a directory that is open.
struct Place<'p> {
    directory: OwnedFd,
    name: &'p OsStr,
}

const INSIDE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

fn split(path: &[u8]) -> (&[u8], &OsStr) {
    let cut = path.iter().rposition(|byte| *byte == b'/');
    let (directory, name) = match cut {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&path[..0], path),
    };
    // The subvolume itself.
    let name = if name.is_empty() { b"." } else { name };
    (directory, OsStr::from_bytes(name))
}

impl Files {
    pub fn new(root: OwnedFd, kind: DirectoryKind) -> Self {
        Self {
            root,
            kind,
            directory: None,
            file: None,
            cloned: None,
            sources: Vec::new(),
            takes_encoded: kind == DirectoryKind::Subvolumes,
            is_root: rustix::process::geteuid().is_root(),
            left_out: 0,
        }
    }

    /// Ends the subvolume. Returns its root, and how much was left out.
    pub fn finish(self) -> Result<(OwnedFd, u64), TargetError> {
        Ok((self.root, self.left_out))
    }

    pub fn source(&self, stamp: SourceStamp) -> Option<&OwnedFd> {
        let found = self.sources.iter().find(|(known, _)| *known == stamp);
        found.map(|(_, source)| source)
    }

    pub fn add_source(&mut self, stamp: SourceStamp, source: OwnedFd) {
        if self.sources.len() >= SOURCES_MAX {
            self.sources.remove(0);
        }
        self.sources.push((stamp, source));
    }

    fn place<'p>(&mut self, path: &'p [u8]) -> Result<Place<'p>, TargetError> {
        let (parent, name) = split(path);
        if let Some((known, directory)) = &self.directory
            && known == parent
        {
            let directory = directory.try_clone()?;
            return Ok(Place { directory, name });
        }
        let directory = if parent.is_empty() {
            self.root.try_clone()?
        } else {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let path = OsStr::from_bytes(parent);
            openat2(&self.root, path, flags, Mode::empty(), INSIDE).map_err(io::Error::from)?
        };
        self.directory = Some((parent.to_vec(), directory.try_clone()?));
        Ok(Place { directory, name })
    }

    /// Names changed, so what was known by its path is no longer valid.
    fn forget(&mut self) {
        self.directory = None;
        self.file = None;
        self.cloned = None;
    }

    fn open_in(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, TargetError> {
        // NONBLOCK: opening a pipe does not wait. NOCTTY: no terminal becomes
        // our controlling terminal.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = openat2(root, OsStr::from_bytes(path), flags, Mode::empty(), INSIDE)
            .map_err(io::Error::from)?;
        let attributes = rustix::fs::fstat(&opened).map_err(io::Error::from)?;
        if FileType::from_raw_mode(attributes.st_mode) != FileType::RegularFile {
            return Err(TargetError::Other("it is no regular file".into()));
        }
        Ok(opened)
    }

    /// The file at `path`, to be written.
    fn file(&mut self, path: &[u8]) -> Result<&OwnedFd, TargetError> {
        let known = self.file.as_ref().is_some_and(|(known, _)| known == path);
        if !known {
            let opened = Self::open_in(&self.root, path, OFlags::RDWR)?;
            self.file = Some((path.to_vec(), opened));
        }
        match &self.file {
            Some((_, file)) => Ok(file),
            None => Err(TargetError::Other("it is not open".into())),
        }
    }

    /// A path for system calls that take no descriptor. It leads to what is at
    /// `path`, even if that is a symbolic link.
    fn reach(&mut self, path: &[u8]) -> Result<(OwnedFd, String), TargetError> {
        let place = self.place(path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&place.directory, place.name, flags, Mode::empty())
            .map_err(io::Error::from)?;
        let by = format!("/proc/self/fd/{}", opened.as_raw_fd());
        Ok((opened, by))
    }

    /// Leaves out what an ordinary user cannot do, and counts it.
    fn unless_refused(&mut self, result: Result<(), Errno>) -> Result<(), TargetError> {
        match result {
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if !self.is_root => {
                self.left_out += 1;
                Ok(())
            }
            // The file system does not know attributes of this name.
            Err(Errno::OPNOTSUPP) if self.kind == DirectoryKind::Directories => {
                self.left_out += 1;
                Ok(())
            }
            other => Ok(other.map_err(io::Error::from)?),
        }
    }

    pub fn apply(&mut self, command: &Command<'_>, new: &NewSubvolume) -> Result<(), TargetError> {
        match *command {
            Command::MakeFile { .. }
            | Command::MakeDirectory { .. }
            | Command::MakeSpecial { .. }
            | Command::Symlink { .. }
            | Command::Rename { .. }
            | Command::Link { .. }
            | Command::Unlink { .. }
            | Command::RemoveDirectory { .. } => self.name(command),
            Command::SetXattr { path, name, value } => {
                let (_opened, by) = self.reach(path)?;
                let name = OsStr::from_bytes(name);
                let set = rustix::fs::setxattr(by, name, value, XattrFlags::empty());
                self.unless_refused(set)
            }
            Command::RemoveXattr { path, name } => {
                let (_opened, by) = self.reach(path)?;
                match rustix::fs::removexattr(by, OsStr::from_bytes(name)) {
                    // It is missing because setting it was refused.
                    Err(Errno::NODATA) if self.left_out > 0 => Ok(()),
                    removed => self.unless_refused(removed),
                }
            }
            Command::Write { path, offset, data } => {
                let file = self.file(path)?;
                write_all(file, data, offset.get())
            }
            Command::Clone(clone) => self.clone_range(&clone, new),
            Command::Truncate { path, size } => {
                Ok(ftruncate(self.file(path)?, size).map_err(io::Error::from)?)
            }
            Command::Chmod { path, mode } => {
                let (_opened, by) = self.reach(path)?;
                let mode = Mode::from_raw_mode((mode & 0o7777) as u32);
                Ok(rustix::fs::chmod(by, mode).map_err(io::Error::from)?)
            }
            Command::Chown { path, uid, gid } => {
                let place = self.place(path)?;
                let narrow = |id: u64| {
                    u32::try_from(id)
                        .map_err(|_| TargetError::Other("no user has this number".into()))
                };
                let owner = (Uid::from_raw(narrow(uid)?), Gid::from_raw(narrow(gid)?));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let done = chownat(
                    &place.directory,
                    place.name,
                    Some(owner.0),
                    Some(owner.1),
                    flags,
                );
                self.unless_refused(done)
            }
            Command::Times { path, times } => self.times(path, &times),
            Command::Allocate {
                path,
                mode,
                offset,
                length,
            } => self.allocate(
                path,
                FallocateFlags::from_bits_retain(mode),
                (offset.get(), length),
            ),
            // No receiver sets flags: they can forbid the commands that follow.
            Command::FileFlags { .. } => Ok(()),
            Command::EncodedWrite(write) => self.encoded_write(&write),
            Command::UpdateExtent { .. } => Err(TargetError::NO_DATA),
            Command::EnableVerity { .. } => Err(TargetError::VERITY),
            Command::Subvolume { .. } | Command::Snapshot { .. } | Command::End => {
                Err(TargetError::Other("it is not about a file".into()))
            }
        }
    }

    fn name(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        match *command {
            Command::MakeFile { path, .. } => {
                let place = self.place(path)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(0o600);
                let file = rustix::fs::openat(&place.directory, place.name, flags, mode)
                    .map_err(io::Error::from)?;
                self.file = Some((path.to_vec(), file));
                return Ok(());
            }
            Command::MakeDirectory { path, .. } => {
                let place = self.place(path)?;
                mkdirat(&place.directory, place.name, Mode::from_raw_mode(0o700))
            }
            Command::MakeSpecial {
                path,
                kind,
                mode,
                rdev,
                ..
            } => {
                let place = self.place(path)?;
                let kind = match kind {
                    Special::Fifo => FileType::Fifo,
                    Special::Socket => FileType::Socket,
                    Special::Node => FileType::from_raw_mode((mode & 0o170_000) as u32),
                };
                mknodat(
                    &place.directory,
                    place.name,
                    kind,
                    Mode::from_raw_mode(0o600),
                    rdev,
                )
            }
            Command::Symlink { path, target, .. } => {
                let place = self.place(path)?;
                symlinkat(OsStr::from_bytes(target), &place.directory, place.name)
            }
            Command::Rename { path, to } => {
                let (old, new) = (self.place(path)?, self.place(to)?);
                self.forget();
                let flags = RenameFlags::empty();
                renameat_with(&old.directory, old.name, &new.directory, new.name, flags)
            }
            Command::Link { path, existing } => {
                let (old, new) = (self.place(existing)?, self.place(path)?);
                let flags = AtFlags::empty();
                linkat(&old.directory, old.name, &new.directory, new.name, flags)
            }
            Command::Unlink { path } => {
                let place = self.place(path)?;
                self.file = None;
                self.cloned = None;
                unlinkat(&place.directory, place.name, AtFlags::empty())
            }
            Command::RemoveDirectory { path } => {
                let place = self.place(path)?;
                self.forget();
                unlinkat(&place.directory, place.name, AtFlags::REMOVEDIR)
            }
            _ => Ok(()),
        }
        .map_err(|error| io::Error::from(error).into())
    }

    fn times(&mut self, path: &[u8], times: &PathTimes) -> Result<(), TargetError> {
        let place = self.place(path)?;
        let time = |time: butterfs_format::item::inode::Timespec| Timespec {
            tv_sec: time.seconds,
            tv_nsec: time.nanoseconds.into(),
        };
        let times = Timestamps {
            last_access: time(times.atime),
            last_modification: time(times.mtime),
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(utimensat(&place.directory, place.name, &times, flags).map_err(io::Error::from)?)
    }

    fn allocate(
        &mut self,
        path: &[u8],
        flags: FallocateFlags,
        (offset, length): (u64, u64),
    ) -> Result<(), TargetError> {
        let file = self.file(path)?;
        match fallocate(file, flags, offset, length) {
            Err(Errno::OPNOTSUPP) if flags.contains(FallocateFlags::PUNCH_HOLE) => {
                zero(file, offset, length)
            }
            // This file system cannot reserve space. The content is right
            // without it.
            Err(Errno::OPNOTSUPP) => Ok(()),
            done => Ok(done.map_err(io::Error::from)?),
        }
    }

    fn clone_range(
        &mut self,
        clone: &CloneRange<'_>,
        new: &NewSubvolume,
    ) -> Result<(), TargetError> {
        let known = self
            .cloned
            .as_ref()
            .is_some_and(|(stamp, path, _)| *stamp == clone.from && path == clone.from_path);
        if !known {
            let root = if clone.from == new.stamp {
                &self.root
            } else {
                self.source(clone.from).ok_or_else(|| {
                    TargetError::Other("the snapshot to clone from is gone".into())
                })?
            };
            let opened = Self::open_in(root, clone.from_path, OFlags::RDONLY)?;
            self.cloned = Some((clone.from, clone.from_path.to_vec(), opened));
        }
        let Some((_, _, source)) = &self.cloned else {
            return Ok(());
        };
        let source = source.try_clone()?;
        let file = self.file(clone.path)?;
        let request = CloneRequest {
            source: source.as_fd(),
            source_offset: clone.from_offset.get(),
            length: clone.length,
            offset: clone.offset.get(),
        };
        if btrfs::clone_range(file.as_fd(), request).is_ok() {
            return Ok(());
        }
        let mut buffer = vec![0; COPY.min(usize::try_from(clone.length).unwrap_or(COPY))];
        let mut done = 0;
        while done < clone.length {
            let room = usize::try_from(clone.length - done).map_or(COPY, |left| left.min(COPY));
            let at = clone.from_offset.get() + done;
            let count = pread(&source, &mut buffer[..room], at).map_err(io::Error::from)?;
            if count == 0 {
                return Err(TargetError::Other(
                    "the file to clone from ends before the range does".into(),
                ));
            }
            write_all(file, &buffer[..count], clone.offset.get() + done)?;
            done += count as u64;
        }
        Ok(())
    }

    fn encoded_write(&mut self, write: &EncodedWrite<'_>) -> Result<(), TargetError> {
        if self.takes_encoded {
            let request = EncodedRequest {
                offset: write.offset.get(),
                file_length: write.file_length,
                length: write.length,
                skip: write.skip,
                compression: write.compression.map_or(0, Encoding::number),
                data: write.data,
            };
            match btrfs::encoded_write(self.file(write.path)?.as_fd(), request) {
                Ok(()) => return Ok(()),
                // This one cannot be written in its encoded form; others may.
                Err(Errno::INVAL) => {}
                Err(Errno::PERM | Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.takes_encoded = false;
                }
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        let decoded = decode(write)?;
        write_all(self.file(write.path)?, &decoded, write.offset.get())
    }
}

/// The bytes of the file that an encoded write covers.
fn decode(write: &EncodedWrite<'_>) -> Result<Vec<u8>, TargetError> {
    butterfs_fs::receive::decode(write, &mut Scratch::default())
}

fn write_all(file: &OwnedFd, mut data: &[u8], mut offset: u64) -> Result<(), TargetError> {
    while !data.is_empty() {
        let count = pwrite(file, data, offset).map_err(io::Error::from)?;
        data = &data[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes zeros over the part of a range that lies within the file.
fn zero(file: &OwnedFd, offset: u64, length: u64) -> Result<(), TargetError> {
    let size = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size as u64;
    let end = offset.saturating_add(length).min(size);
    let zeros = vec![0; COPY];
    let mut at = offset;
    while at < end {
        let step = usize::try_from(end - at).map_or(COPY, |left| left.min(COPY));
        write_all(file, &zeros[..step], at)?;
        at += step as u64;
    }
    Ok(())
}
