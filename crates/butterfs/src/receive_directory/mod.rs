//! Receiving into a directory of a mounted file system.
//!
//! Owns the [`Target`] over system calls. On Btrfs (the kernel's, or a mount of
//! ButterFS that takes the requests) received subvolumes are subvolumes. On any
//! other file system they are directories: a clone is a copy if ranges cannot
//! be shared, and receiving the changes to a parent begins with a copy of the
//! parent's directory. [`notes`] beside such directories say which snapshot
//! each one is, and how far an interrupted receive came.
//!
//! Paths of a stream are followed only below its subvolume, and through no
//! symbolic link, because streams may be hostile.

pub(crate) mod copy_tree;
mod files;
mod notes;
mod search;

use butterfs_format::TreeId;
use butterfs_format::send_stream::{Command, SourceStamp};
use butterfs_fs::receive::{
    Begun, Left, NewSubvolume, Note, OnFailure, Position, Start, Target, TargetError,
};
use butterfs_kernel::{self as btrfs, Changes};
use files::Files;
use notes::Notes;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What received subvolumes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryKind {
    /// Subvolumes.
    Subvolumes,
    /// Directories.
    Directories,
}

/// A directory that streams are received into.
#[derive(Debug)]
pub struct DirectoryTarget {
    path: PathBuf,
    directory: OwnedFd,
    kind: DirectoryKind,
    /// The subvolume that contains the directory, if there are subvolumes.
    within: TreeId,
    notes: Notes,
    current: Option<Current>,
    left_out: u64,
}

#[derive(Debug)]
struct Current {
    new: NewSubvolume,
    files: Files,
}

impl DirectoryTarget {
    /// Receives into the directory at `path`.
    ///
    /// # Errors
    /// It is not a directory that can be opened.
    pub fn open(path: &Path) -> Result<Self, TargetError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty()).map_err(std::io::Error::from)?;
        let (kind, within) = match btrfs::subvolume_info(directory.as_fd()) {
            Ok(info) => (DirectoryKind::Subvolumes, info.id),
            Err(_) => (DirectoryKind::Directories, TreeId(0)),
        };
        Ok(Self {
            path: path.to_owned(),
            notes: Notes::new(path),
            directory,
            kind,
            within,
            current: None,
            left_out: 0,
        })
    }

    /// What received subvolumes are here.
    #[must_use]
    pub const fn kind(&self) -> DirectoryKind {
        self.kind
    }

    /// Owners and attributes that an ordinary user cannot set and that were
    /// left out.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Opens a directory in the target, without following a link.
    fn child(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        openat2(
            &self.directory,
            OsStr::from_bytes(name),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )
    }

    /// The subvolume `name` in the target, if it was received with `stamp` or
    /// `stamp` is its own.
    fn is_stamped(&self, name: &[u8], stamp: SourceStamp) -> Result<Option<OwnedFd>, TargetError> {
        let Ok(child) = self.child(name) else {
            return Ok(None);
        };
        let stamped = match self.kind {
            DirectoryKind::Subvolumes => {
                let info = btrfs::subvolume_info(child.as_fd()).map_err(std::io::Error::from)?;
                // A directory of the same subvolume as the target is not a
                // subvolume.
                info.id != self.within && (info.received == stamp || info.own == stamp)
            }
            DirectoryKind::Directories => {
                matches!(self.notes.read(name)?, Some(Note::Whole(noted)) if noted == stamp)
            }
        };
        Ok(stamped.then_some(child))
    }

    /// The subvolume that was received with a stamp: in the target, or else
    /// anywhere in its volume.
    fn find(&self, stamp: SourceStamp) -> Result<Option<OwnedFd>, TargetError> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir()
                && let Some(found) = self.is_stamped(entry.file_name().as_bytes(), stamp)?
            {
                return Ok(Some(found));
            }
        }
        Ok(match self.kind {
            DirectoryKind::Subvolumes => search::find(self.directory.as_fd(), stamp),
            DirectoryKind::Directories => None,
        })
    }

    fn get(&self, stamp: SourceStamp) -> Result<OwnedFd, TargetError> {
        self.find(stamp)?.ok_or_else(|| {
            let path = self.path.display();
            let place = match self.kind {
                DirectoryKind::Subvolumes => {
                    format!("the volume of {path}, as far as this mount shows it")
                }
                DirectoryKind::Directories => path.to_string(),
            };
            TargetError::Other(format!(
                "the snapshot {} (generation {}) that this is based on is not in {place}; receive that one first",
                uuid_text(&stamp.uuid),
                stamp.ctransid,
            ))
        })
    }

    /// What exists already under the name.
    fn existing(&mut self, new: &NewSubvolume, start: Start) -> Result<Option<Begun>, TargetError> {
        let child = match self.child(&new.name) {
            Ok(child) => child,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(std::io::Error::from(error).into()),
        };
        let name = String::from_utf8_lossy(&new.name).into_owned();
        let place = self.path.join(&name);
        if start == Start::New {
            return Err(TargetError::Other(format!(
                "{} is there already; go on with it (--resume) or remove it",
                place.display()
            )));
        }
        if self.is_whole(&child, new)? {
            return Ok(Some(Begun::Whole));
        }
        let Some(Note::Partly { of, at }) = self.notes.read(&new.name)? else {
            return Err(TargetError::Other(format!(
                "{} is there already, and nothing says how much of it was received; remove it and \
                 receive again",
                place.display()
            )));
        };
        if of != *new {
            return Err(TargetError::Other(format!(
                "{} is the beginning of another stream; remove it and receive again",
                place.display()
            )));
        }
        // From here on the note would no longer be true.
        self.notes.remove(&new.name)?;
        self.start(new.clone(), child);
        Ok(Some(Begun::Partly(at)))
    }

    fn is_whole(&self, child: &OwnedFd, new: &NewSubvolume) -> Result<bool, TargetError> {
        match self.kind {
            DirectoryKind::Subvolumes => {
                let info = btrfs::subvolume_info(child.as_fd()).map_err(std::io::Error::from)?;
                Ok(info.id != self.within && info.received == new.stamp)
            }
            DirectoryKind::Directories => {
                Ok(self.notes.read(&new.name)? == Some(Note::Whole(new.stamp)))
            }
        }
    }

    fn start(&mut self, new: NewSubvolume, root: OwnedFd) {
        self.current = Some(Current {
            new,
            files: Files::new(root, self.kind),
        });
    }

    fn make(&mut self, new: &NewSubvolume) -> Result<(), TargetError> {
        let name = OsStr::from_bytes(&new.name);
        let place = self.path.join(name);
        let parent = new.parent.map(|stamp| self.get(stamp)).transpose()?;
        let made = match (self.kind, parent) {
            (DirectoryKind::Subvolumes, None) => {
                btrfs::create_subvolume(self.directory.as_fd(), &new.name, &[])
            }
            (DirectoryKind::Subvolumes, Some(parent)) => btrfs::snapshot(
                self.directory.as_fd(),
                parent.as_fd(),
                &new.name,
                (Changes::Allowed, &[]),
            ),
            (DirectoryKind::Directories, None) => {
                rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(0o700))
            }
            (DirectoryKind::Directories, Some(parent)) => {
                return copy_tree::copy(&parent, &place, &mut self.left_out);
            }
        };
        Ok(made.map_err(|error| {
            std::io::Error::new(
                std::io::Error::from(error).kind(),
                format!("{}: {error}", place.display()),
            )
        })?)
    }
}

impl Target for DirectoryTarget {
    fn begin(&mut self, new: &NewSubvolume, start: Start) -> Result<Begun, TargetError> {
        if new.name == b"." || new.name == b".." || new.name == notes::FOLDER.as_bytes() {
            return Err(TargetError::Other("no subvolume can have this name".into()));
        }
        if let Some(begun) = self.existing(new, start)? {
            return Ok(begun);
        }
        self.notes.remove(&new.name)?;
        self.make(new)?;
        let root = self.child(&new.name).map_err(std::io::Error::from)?;
        if new.parent.is_none() {
            disinherit(&root);
        }
        self.start(new.clone(), root);
        Ok(Begun::New)
    }

    fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        let Some(mut current) = self.current.take() else {
            return Err(TargetError::Other("no subvolume was begun".into()));
        };
        let result = match command {
            Command::Clone(clone) if clone.from != current.new.stamp => {
                match current.files.source(clone.from) {
                    Some(_) => Ok(()),
                    None => self
                        .get(clone.from)
                        .map(|found| current.files.add_source(clone.from, found)),
                }
            }
            _ => Ok(()),
        };
        let result = result.and_then(|()| current.files.apply(command, &current.new));
        self.current = Some(current);
        result
    }

    /// A directory of a host may be unable to hold what a volume holds, and this
    /// user may not make device nodes.
    fn on_failure(&self, command: &Command<'_>, error: &TargetError) -> OnFailure {
        let TargetError::Io(error) = error else {
            return OnFailure::Fails;
        };
        let Some(errno) = Errno::from_io_error(error) else {
            return OnFailure::Fails;
        };
        let is_right = matches!(errno, Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP);
        match command {
            Command::MakeFile { .. }
            | Command::MakeDirectory { .. }
            | Command::MakeSpecial { .. }
            | Command::Symlink { .. }
            | Command::Link { .. }
                if is_right || matches!(errno, Errno::NAMETOOLONG | Errno::MLINK) =>
            {
                OnFailure::LeavesOutEntry
            }
            // A host says so of an attribute that is too large, too.
            Command::SetXattr { .. }
                if is_right || matches!(errno, Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) =>
            {
                OnFailure::LeavesOutAttribute
            }
            // Whatever else a host says is not about what it can hold: that a
            // symbolic link has no mode is a fault of the stream.
            Command::Chmod { .. } | Command::Chown { .. } | Command::Times { .. }
                if matches!(errno, Errno::PERM | Errno::ACCESS | Errno::INVAL) =>
            {
                OnFailure::LeavesOutAttribute
            }
            _ => OnFailure::Fails,
        }
    }

    fn finish(&mut self) -> Result<(), TargetError> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let (root, left_out) = current.files.finish()?;
        self.left_out += left_out;
        // Everything is on the device before anything says that it is whole.
        butterfs_kernel::sync_any(root.as_fd()).map_err(std::io::Error::from)?;
        match self.kind {
            DirectoryKind::Subvolumes => {
                btrfs::set_received(root.as_fd(), current.new.stamp)
                    .map_err(std::io::Error::from)?;
                btrfs::set_changes(root.as_fd(), Changes::Refused).map_err(std::io::Error::from)?;
                butterfs_kernel::sync_any(root.as_fd()).map_err(std::io::Error::from)?;
            }
            DirectoryKind::Directories => {
                let note = Note::Whole(current.new.stamp);
                self.notes.write(&current.new.name, &note)?;
            }
        }
        Ok(())
    }

    fn interrupt(&mut self, applied: Option<Position>) -> Result<Left, TargetError> {
        let Some(current) = self.current.take() else {
            return Ok(Left {
                place: self.path.display().to_string(),
                resumable: false,
            });
        };
        let place = self.path.join(OsStr::from_bytes(&current.new.name));
        if let Some(at) = applied {
            let (root, _) = current.files.finish()?;
            butterfs_kernel::sync_any(root.as_fd()).map_err(std::io::Error::from)?;
            let of = current.new.clone();
            let note = Note::Partly { of, at };
            self.notes.write(&current.new.name, &note)?;
        }
        Ok(Left {
            place: place.display().to_string(),
            resumable: applied.is_some(),
        })
    }
}

/// Removes the attributes that a new directory inherits from its parent. Those
/// that cannot be removed belong to the file system.
fn disinherit(root: &OwnedFd) {
    let mut names = vec![0; 64 << 10];
    let count = rustix::fs::flistxattr(root, &mut names[..]).unwrap_or(0);
    for name in names[..count].split(|byte| *byte == 0) {
        if !name.is_empty() {
            let _ = rustix::fs::fremovexattr(root, OsStr::from_bytes(name));
        }
    }
}

/// A UUID as people write it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}
