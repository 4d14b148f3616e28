//! A directory of the host.
//!
//! Names come from a damaged volume, perhaps a hostile one. Directories are
//! opened one below the other and symbolic links are never followed, so that
//! nothing is made outside.
//!
//! A file gets its name only when it is complete. A restore that was cut short
//! and is repeated therefore knows what it need not do again.

use super::{
    Attributes, Begun, Extras, LeftOut, RefusedAttribute, Special, SpecialKind, Target, TargetPath,
};
use rustix::fs::{
    self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Name of the file that is being written.
const PART: &[u8] = b".butterfs-restore.part";

/// What is done about files that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnExisting {
    Keep,
    Replace,
}

/// Puts files into a directory.
#[derive(Debug)]
pub struct DirectoryTarget {
    root: OwnedFd,
    on_existing: OnExisting,
    /// The directory that was used last.
    last: Option<(Vec<Vec<u8>>, OwnedFd)>,
    open: Option<(Vec<Vec<u8>>, File, u64)>,
    refused: Vec<RefusedAttribute>,
}

fn name(bytes: &[u8]) -> io::Result<CString> {
    let is_bad = bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/');
    match CString::new(bytes) {
        Ok(name) if !is_bad => Ok(name),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

impl DirectoryTarget {
    /// Puts files below `path`. It is made if it is not there.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            root: fs::open(path, flags, Mode::empty())?,
            on_existing: OnExisting::Keep,
            last: None,
            open: None,
            refused: Vec::new(),
        })
    }

    /// As it is, but files that are there already are replaced.
    #[must_use]
    pub fn replacing(mut self) -> Self {
        self.on_existing = OnExisting::Replace;
        self
    }

    /// The directory at `path`, which is made if it is not there.
    fn open_directory(&mut self, path: &TargetPath) -> io::Result<OwnedFd> {
        if let Some((known, directory)) = &self.last
            && known == path
        {
            return directory.try_clone();
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = self.root.try_clone()?;
        for part in path {
            let part = name(part)?;
            match fs::mkdirat(&at, &part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            at = fs::openat(&at, &part, flags, Mode::empty())?;
        }
        self.last = Some((path.to_vec(), at.try_clone()?));
        Ok(at)
    }

    /// The directory of a path, and the name in it.
    fn place(&mut self, path: &TargetPath) -> io::Result<(OwnedFd, CString)> {
        let (last, parents) = path
            .split_last()
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok((self.open_directory(parents)?, name(last)?))
    }

    /// Whether the path is taken by something that stays.
    fn is_taken(&self, directory: &OwnedFd, name: &CString) -> io::Result<bool> {
        match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(found) => {
                let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
                Ok(is_directory || self.on_existing == OnExisting::Keep)
            }
        }
    }
}

/// Whether the host may refuse an attribute without a loss that must be named:
/// attributes of the system need rights, and some belong to one file system
/// alone. What users have written, and access control lists, are not among them.
fn is_no_loss(name: &[u8], error: Errno) -> bool {
    let of_system: [&[u8]; 3] = [b"trusted.", b"security.", b"btrfs."];
    let is_of_system = of_system.iter().any(|prefix| name.starts_with(prefix));
    is_of_system && matches!(error, Errno::PERM | Errno::ACCESS | Errno::NOTSUP)
}

/// Sets extended attributes, and returns those that the host refuses.
///
/// # Errors
/// The host has no more space, which it says of an attribute too that is only
/// too large, or cannot be written.
fn set_xattrs(
    extras: &Extras,
    set: impl Fn(&CString, &[u8]) -> Result<(), Errno>,
) -> io::Result<Vec<RefusedAttribute>> {
    let mut refused = Vec::new();
    for (name, value) in &extras.xattrs {
        let done = match CString::new(name.as_slice()) {
            Ok(key) => set(&key, value),
            Err(_) => Err(Errno::INVAL),
        };
        match done {
            Ok(()) => {}
            Err(error @ (Errno::IO | Errno::ROFS | Errno::DQUOT)) => return Err(error.into()),
            Err(error) if is_no_loss(name, error) => {}
            // A file system that is full says so for the next file.
            Err(error) => refused.push(RefusedAttribute {
                name: name.clone(),
                error: error.into(),
            }),
        }
    }
    Ok(refused)
}

fn set_attributes(file: impl AsFd, extras: &Extras) -> io::Result<Vec<RefusedAttribute>> {
    let refused = set_xattrs(extras, |key, value| {
        fs::fsetxattr(&file, key, value, XattrFlags::empty())
    })?;
    let Some(attributes) = extras.attributes else {
        return Ok(refused);
    };
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    let has_owner = match fs::fchown(&file, Some(uid), Some(gid)) {
        Ok(()) => true,
        Err(Errno::PERM) => false,
        Err(error) => return Err(error.into()),
    };
    fs::fchmod(&file, mode(attributes, has_owner))?;
    fs::futimens(&file, &times(attributes))?;
    Ok(refused)
}

/// Permissions. A program that ran as its owner must not run as somebody else,
/// who got the file in place of its owner.
fn mode(attributes: Attributes, has_owner: bool) -> Mode {
    let bits = if has_owner { 0o7777 } else { 0o1777 };
    Mode::from_raw_mode(attributes.permissions & bits)
}

/// Sets what belongs to a link, a device, a pipe or a socket. It is not opened:
/// that would follow the link, or wait for somebody.
fn set_beside(
    directory: &OwnedFd,
    name: &CString,
    extras: &Extras,
) -> io::Result<Vec<RefusedAttribute>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if let Some(attributes) = &extras.attributes {
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        let _ = fs::chownat(directory, name, Some(uid), Some(gid), flags);
    }
    let below = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    let path = CString::new([&below, name.as_bytes()].concat())?;
    // Without /proc there is no way to set them: ENOENT.
    let refused = set_xattrs(extras, |key, value| {
        fs::lsetxattr(&path, key, value, XattrFlags::empty())
    })?;
    if let Some(attributes) = extras.attributes {
        fs::utimensat(directory, name, &times(attributes), flags)?;
    }
    Ok(refused)
}

fn times(attributes: Attributes) -> Timestamps {
    let time = |of: butterfs_format::item::inode::Timespec| Timespec {
        tv_sec: of.seconds,
        tv_nsec: i64::from(of.nanoseconds.min(999_999_999)),
    };
    Timestamps {
        last_access: time(attributes.atime),
        last_modification: time(attributes.mtime),
    }
}

impl Target for DirectoryTarget {
    fn directory(&mut self, path: &TargetPath) -> io::Result<()> {
        self.open_directory(path).map(|_| ())
    }

    fn finish_directory(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()> {
        let directory = self.open_directory(path)?;
        let refused = set_attributes(directory, extras)?;
        self.refused.extend(refused);
        Ok(())
    }

    fn needs_name_first(&self) -> bool {
        false
    }

    fn begin_file(&mut self, path: &TargetPath, size: u64, _: &Extras) -> io::Result<Begun> {
        let (directory, name) = self.place(path)?;
        if self.is_taken(&directory, &name)? {
            return Ok(Begun::Exists);
        }
        let part = CString::new(PART)?;
        // Another restore may have been cut short here.
        let _ = fs::unlinkat(&directory, &part, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = fs::openat(&directory, &part, flags, Mode::from_raw_mode(0o600))?;
        self.open = Some((path.to_vec(), File::from(file), size));
        Ok(Begun::Writes)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &self.open {
            Some((_, file, _)) => file.write_all_at(data, offset),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn end_file(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()> {
        let Some((_, file, size)) = self.open.take() else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        file.set_len(size)?;
        if extras.attributes.is_none() {
            fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        }
        let refused = set_attributes(&file, extras)?;
        self.refused.extend(refused);
        let (directory, name) = self.place(path)?;
        fs::renameat(&directory, &CString::new(PART)?, &directory, &name)?;
        Ok(())
    }

    fn drop_file(&mut self) {
        if let Some((path, _, _)) = self.open.take()
            && let Ok((directory, _)) = self.place(&path)
            && let Ok(part) = CString::new(PART)
        {
            let _ = fs::unlinkat(&directory, &part, AtFlags::empty());
        }
    }

    fn symlink(&mut self, path: &TargetPath, text: &[u8], extras: &Extras) -> io::Result<Begun> {
        let (directory, name) = self.place(path)?;
        if self.is_taken(&directory, &name)? {
            return Ok(Begun::Exists);
        }
        let _ = fs::unlinkat(&directory, &name, AtFlags::empty());
        fs::symlinkat(&CString::new(text)?, &directory, &name)?;
        self.refused.extend(set_beside(&directory, &name, extras)?);
        Ok(Begun::Writes)
    }

    fn special(
        &mut self,
        path: &TargetPath,
        of: Special,
        extras: &Extras,
    ) -> io::Result<Result<Begun, LeftOut>> {
        let (directory, name) = self.place(path)?;
        if self.is_taken(&directory, &name)? {
            return Ok(Ok(Begun::Exists));
        }
        let _ = fs::unlinkat(&directory, &name, AtFlags::empty());
        let kind = match of.kind {
            SpecialKind::CharacterDevice => FileType::CharacterDevice,
            SpecialKind::BlockDevice => FileType::BlockDevice,
            SpecialKind::Fifo => FileType::Fifo,
            SpecialKind::Socket => FileType::Socket,
        };
        let (major, minor) = of.numbers();
        let number = match of.is_device() {
            true => fs::makedev(major, minor),
            false => 0,
        };
        match fs::mknodat(&directory, &name, kind, Mode::from_raw_mode(0o600), number) {
            Ok(()) => {}
            Err(Errno::PERM) if of.is_device() => {
                return Ok(Err(LeftOut("only root can make devices")));
            }
            Err(error) => return Err(error.into()),
        }
        self.refused.extend(set_beside(&directory, &name, extras)?);
        // Owners take set-id bits away. The name was made just now: it is no
        // link.
        if let Some(attributes) = extras.attributes {
            let mode = mode(attributes, true);
            fs::chmodat(&directory, &name, mode, AtFlags::empty())?;
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            fs::utimensat(&directory, &name, &times(attributes), flags)?;
        }
        Ok(Ok(Begun::Writes))
    }

    fn link(&mut self, path: &TargetPath, old: &TargetPath) -> io::Result<Begun> {
        let (directory, name) = self.place(path)?;
        if self.is_taken(&directory, &name)? {
            return Ok(Begun::Exists);
        }
        let _ = fs::unlinkat(&directory, &name, AtFlags::empty());
        let (old_directory, old_name) = self.place(old)?;
        fs::linkat(
            &old_directory,
            &old_name,
            &directory,
            &name,
            AtFlags::empty(),
        )?;
        Ok(Begun::Writes)
    }

    fn take_refused(&mut self) -> Vec<RefusedAttribute> {
        std::mem::take(&mut self.refused)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
