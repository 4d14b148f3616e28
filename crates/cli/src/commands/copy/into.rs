//! From the host into a volume.

use super::tally::Tally;
use crate::fail::{Context, Done, Failure, fail};
use crate::place::Place;
use crate::whole_file::name_beside;
use butterfs::{
    FsError, Inode, InodeId, NewInode, OldName, Owner, RenameMode, SetAttributes, SetMode, SetTime,
    Timespec, Volume,
};
use rustix::fs::SeekFrom;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

const STEP: usize = 1 << 20;

struct Work<'a> {
    volume: &'a Volume,
    /// Whose the copies are; those of the originals without one.
    owner: Option<Owner>,
    /// Inodes made for files of the host that have several names.
    linked: HashMap<(u64, u64), InodeId>,
    tally: &'a mut Tally,
}

/// Copies all `sources` to `place`.
pub fn copy(
    volume: &Volume,
    sources: &[OsString],
    place: &Place,
    owner: Option<Owner>,
    tally: &mut Tally,
) -> Done {
    let mut work = Work {
        volume,
        owner,
        linked: HashMap::new(),
        tally,
    };
    let path = place.path.as_bytes();
    // A slash follows a link to a directory.
    let existing = match volume.resolve(&[path, b"/"].concat()) {
        Ok(id) => volume
            .files()
            .attributes(id)
            .context(place)?
            .is_directory()
            .then_some(id),
        Err(_) => None,
    };
    for source in sources {
        let host = Path::new(source);
        if let Some(directory) = existing {
            let absolute = std::path::absolute(host).context(host.display())?;
            match absolute.file_name() {
                Some(name) => work.copy(host, directory, name.as_bytes())?,
                None => return fail(format!("{} has no name", host.display())),
            }
        } else if sources.len() == 1 {
            let (parent, name) = volume.resolve_parent(path)?;
            work.copy(host, parent, name)?;
        } else {
            return fail(format!("{place} is no directory"));
        }
    }
    Ok(())
}

impl Work<'_> {
    fn copy(&mut self, host: &Path, parent: InodeId, name: &[u8]) -> Done {
        let mut waiting = vec![(host.to_path_buf(), parent, name.to_vec())];
        // Directories get their metadata when their content is there: their
        // default ACLs would be inherited and their times changed.
        let mut directories: Vec<(PathBuf, Arc<Inode>, Metadata)> = Vec::new();
        while let Some((host, parent, name)) = waiting.pop() {
            self.tally.check_interrupt()?;
            let metadata = std::fs::symlink_metadata(&host).context(host.display())?;
            if !metadata.is_dir() {
                let copied = self.file(&host, &metadata, parent, &name);
                copied.map_err(|failure| failure.at(host.display()))?;
                self.tally.file();
                continue;
            }
            let made = self.directory(&metadata, parent, &name);
            let inode = made.context(host.display())?;
            self.tally.file();
            for entry in std::fs::read_dir(&host).context(host.display())? {
                let entry = entry.context(host.display())?;
                let name = entry.file_name().as_bytes().to_vec();
                waiting.push((entry.path(), inode.id, name));
            }
            directories.push((host, inode, metadata));
        }
        for (host, inode, metadata) in directories.iter().rev() {
            self.metadata(host, metadata, inode)?;
        }
        Ok(())
    }

    fn owner(&self, metadata: &Metadata) -> Owner {
        self.owner.unwrap_or(Owner {
            uid: metadata.uid(),
            gid: metadata.gid(),
        })
    }

    /// Makes a directory, or finds it.
    fn directory(
        &self,
        metadata: &Metadata,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Arc<Inode>, FsError> {
        let files = self.volume.files();
        match files.lookup(parent, name) {
            Ok(found) if files.attributes(found.inode)?.is_directory() => {
                return files.inode(found.inode);
            }
            Ok(_) => files.unlink(parent, name)?,
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        files.create(
            parent,
            name,
            &NewInode::new(metadata.mode(), self.owner(metadata)),
        )
    }

    /// Copies what is no directory. It gets its name when it is whole, and
    /// takes the place of what had the name.
    fn file(&mut self, host: &Path, metadata: &Metadata, parent: InodeId, name: &[u8]) -> Done {
        let files = self.volume.files();
        let old = match files.lookup(parent, name) {
            Ok(found) if files.attributes(found.inode)?.is_directory() => {
                return Err(FsError::IsADirectory.into());
            }
            Ok(found) => Some(found.inode),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let several_names = metadata.nlink() > 1;
        let identity = (metadata.dev(), metadata.ino());
        if several_names && let Some(id) = self.linked.get(&identity) {
            return Ok(self.give_name(*id, parent, name, old)?);
        }
        let target;
        let mut new = NewInode::new(metadata.mode(), self.owner(metadata));
        if metadata.is_symlink() {
            target = std::fs::read_link(host)?;
            new = NewInode::symlink(target.as_os_str().as_bytes(), self.owner(metadata));
        }
        if matches!(
            metadata.mode() & libc::S_IFMT,
            libc::S_IFCHR | libc::S_IFBLK
        ) {
            let (major, minor) = (
                rustix::fs::major(metadata.rdev()),
                rustix::fs::minor(metadata.rdev()),
            );
            new.rdev = (u64::from(major) << 20) | u64::from(minor);
        }
        let inode = files.create_unnamed(parent, &new)?;
        files.pin(&inode);
        let made = self.fill(host, metadata, &inode);
        let made = made.and_then(|()| Ok(self.give_name(inode.id, parent, name, old)?));
        // Without a name it goes away.
        let unpinned = self.volume.files().unpin(&inode, 1);
        made?;
        unpinned?;
        if several_names {
            self.linked.insert(identity, inode.id);
        }
        Ok(())
    }

    fn fill(&mut self, host: &Path, metadata: &Metadata, inode: &Arc<Inode>) -> Done {
        if metadata.is_file() {
            self.content(host, metadata, inode)?;
        }
        self.metadata(host, metadata, inode)
    }

    /// Names an inode, instead of what has the name.
    fn give_name(
        &self,
        id: InodeId,
        parent: InodeId,
        name: &[u8],
        old: Option<InodeId>,
    ) -> Result<(), FsError> {
        let files = self.volume.files();
        match old {
            None => return files.link(id, parent, name),
            Some(old) if old == id => return Ok(()),
            Some(_) => {}
        }
        let beside = name_beside(Path::new(OsStr::from_bytes(name)));
        let beside = beside.as_os_str().as_bytes();
        files.link(id, parent, beside)?;
        let place = |name| butterfs::Place { dir: parent, name };
        let mode = RenameMode::Replace;
        let moved = files.rename(place(beside), place(name), mode, OldName::Free);
        if moved.is_err() {
            // Its own error comes first.
            let _ = files.unlink(parent, beside);
        }
        moved
    }

    /// Copies data, not holes.
    fn content(&mut self, host: &Path, metadata: &Metadata, inode: &Arc<Inode>) -> Done {
        let size = metadata.len();
        if size == 0 {
            return Ok(());
        }
        let file = File::open(host)?;
        let mut buffer = vec![0; STEP.min(usize::try_from(size).unwrap_or(STEP))];
        let mut at = 0;
        while at < size {
            let (start, end) = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(start) => (start, rustix::fs::seek(&file, SeekFrom::Hole(start))?),
                Err(rustix::io::Errno::NXIO) => break,
                // A file system that knows no holes.
                Err(_) => (at, size),
            };
            at = start;
            while at < end.min(size) {
                self.tally.check_interrupt()?;
                let left = usize::try_from(end.min(size) - at).unwrap_or(STEP);
                let room = left.min(buffer.len());
                let count = file.read_at(&mut buffer[..room], at)?;
                if count == 0 {
                    return Ok(());
                }
                self.volume.write_at(inode, at, &buffer[..count])?;
                at += count as u64;
                self.tally.data(count);
            }
        }
        if self.volume.files().attributes_of(inode)?.size < size {
            self.volume.files().truncate(inode, size)?;
        }
        Ok(())
    }

    fn metadata(&mut self, host: &Path, metadata: &Metadata, inode: &Arc<Inode>) -> Done {
        let files = self.volume.files();
        let owner = self.owner(metadata);
        let mut set = SetAttributes {
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            ..SetAttributes::default()
        };
        if !metadata.is_symlink() {
            set.mode = Some(metadata.mode());
        }
        files.set_attributes(inode, &set).context(host.display())?;
        for (name, value) in attributes_of(host)? {
            match files.set_xattr(inode, &name, &value, SetMode::Any) {
                Ok(()) => {}
                Err(FsError::NotSupported(_)) => self.tally.leave_out(),
                Err(error) => return Err(error).context(host.display()),
            }
        }
        let birth = metadata.created().ok();
        let birth = birth.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let times = SetAttributes {
            atime: Some(time(metadata.atime(), metadata.atime_nsec())),
            mtime: Some(time(metadata.mtime(), metadata.mtime_nsec())),
            btime: birth.map(|since| Timespec {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            }),
            ..SetAttributes::default()
        };
        files.set_attributes(inode, &times).context(host.display())
    }
}

fn time(seconds: i64, nanoseconds: i64) -> SetTime {
    SetTime::At(Timespec {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    })
}

type Attribute = (Vec<u8>, Vec<u8>);

/// Extended attributes of a file of the host.
fn attributes_of(host: &Path) -> Result<Vec<Attribute>, Failure> {
    let mut names = vec![0u8; 64 << 10];
    let count = match rustix::fs::llistxattr(host, &mut names) {
        Ok(count) => count,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error).context(host.display()),
    };
    let mut all = Vec::new();
    for name in names[..count].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        match rustix::fs::lgetxattr(host, name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                all.push((name.to_vec(), value));
            }
            Err(rustix::io::Errno::NODATA) => {}
            Err(error) => return Err(error).context(host.display()),
        }
    }
    Ok(all)
}
