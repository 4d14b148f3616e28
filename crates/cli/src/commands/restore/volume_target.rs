//! A directory of another volume as the place where files go that come back.
//!
//! Names come from a damaged volume, perhaps a hostile one: directories are
//! looked up one below the other, and symbolic links are never followed. As in a
//! directory of the host, a file gets its name when it is complete.

use crate::changes::own;
use crate::fail::{Context, Failure};
use crate::place::Place;
use butterfs::{
    FileType, FsError, Inode, InodeId, NewInode, OpenOptions, Owner, SetAttributes, SetMode,
    SetTime, Volume,
};
use butterfs_rescue::{
    Begun, Extras, LeftOut, RefusedAttribute, Special, SpecialKind, Target, TargetPath,
};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Puts files into a directory of a volume.
#[derive(Debug)]
pub struct VolumeTarget {
    volume: Volume,
    root: InodeId,
    /// Files that are there already are replaced.
    replaces: bool,
    /// The directory that was used last.
    last: Option<(Vec<Vec<u8>>, InodeId)>,
    /// The file that is being written, and its size.
    open: Option<(Arc<Inode>, u64)>,
    refused: Vec<RefusedAttribute>,
}

/// As an error of a target. The kind says whether the target as a whole failed.
fn failed(error: FsError) -> io::Error {
    let error = butterfs::Error::from(error);
    io::Error::new(error.kind(), error.to_string())
}

impl VolumeTarget {
    /// Puts files below a place. Its directory is made if it is not there.
    pub fn open(place: &Place, replaces: bool) -> Result<Self, Failure> {
        let options = OpenOptions {
            owner: own(),
            ..OpenOptions::default()
        };
        let volume = Volume::open(&place.volume, options).context(place.volume.display())?;
        let root = volume.create_dir_all(place.path.as_bytes()).context(place);
        let root = match root {
            Ok(root) => root,
            Err(failure) => {
                volume.close().context(place.volume.display())?;
                return Err(failure);
            }
        };
        Ok(Self {
            volume,
            root,
            replaces,
            last: None,
            open: None,
            refused: Vec::new(),
        })
    }

    /// Makes everything durable and ends the use of the volume.
    pub fn close(mut self, place: &Place) -> Result<(), Failure> {
        self.drop_file();
        self.volume.close().context(place.volume.display())
    }

    /// The directory at a path, which is made if it is not there.
    fn directory_at(&mut self, path: &TargetPath) -> io::Result<InodeId> {
        if let Some((known, directory)) = &self.last
            && known == path
        {
            return Ok(*directory);
        }
        let files = self.volume.files();
        let mut at = self.root;
        for name in path {
            at = match files.lookup(at, name) {
                Ok(there) if there.kind == FileType::Directory => there.inode,
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(FsError::NotFound) => {
                    let new = NewInode::new(libc::S_IFDIR | 0o755, own());
                    files.create(at, name, &new).map_err(failed)?.id
                }
                Err(error) => return Err(failed(error)),
            };
        }
        self.last = Some((path.to_vec(), at));
        Ok(at)
    }

    /// The directory of a path, and the name in it.
    fn place<'n>(&mut self, path: &'n TargetPath) -> io::Result<(InodeId, &'n [u8])> {
        let (last, parents) = path.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.directory_at(parents)?, last))
    }

    /// Whether the name is taken by something that stays.
    fn is_taken(&self, parent: InodeId, name: &[u8]) -> io::Result<bool> {
        match self.volume.files().lookup(parent, name) {
            Ok(there) => Ok(there.kind == FileType::Directory || !self.replaces),
            Err(FsError::NotFound) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Gives an inode its name. What has it goes.
    fn name(&self, inode: &Inode, parent: InodeId, name: &[u8]) -> io::Result<()> {
        let files = self.volume.files();
        match files.unlink(parent, name) {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(failed(error)),
        }
        files.link(inode.id, parent, name).map_err(failed)
    }

    /// Makes what has no content, under its name.
    fn make(
        &mut self,
        path: &TargetPath,
        new: &NewInode<'_>,
        extras: &Extras,
    ) -> io::Result<Begun> {
        let (parent, name) = self.place(path)?;
        if self.is_taken(parent, name)? {
            return Ok(Begun::Exists);
        }
        let files = self.volume.files();
        let inode = files.create_unnamed(parent, new).map_err(failed)?;
        files.pin(&inode);
        let named = self.metadata(&inode, extras).and_then(|refused| {
            self.name(&inode, parent, name)?;
            self.refused.extend(refused);
            Ok(())
        });
        // Without a name, this removes it.
        let unpinned = self.volume.files().unpin(&inode, 1);
        named?;
        unpinned.map_err(failed)?;
        Ok(Begun::Writes)
    }

    /// Sets what belongs to an inode. Gives the attributes that the volume does
    /// not take: of a namespace that nobody knows, or too large for its nodes.
    fn metadata(&self, inode: &Inode, extras: &Extras) -> io::Result<Vec<RefusedAttribute>> {
        let files = self.volume.files();
        let is_link = files.attributes(inode.id).map_err(failed)?.mode & libc::S_IFMT;
        let is_link = is_link == libc::S_IFLNK;
        if let Some(wanted) = extras.attributes {
            let set = SetAttributes {
                mode: (!is_link).then_some(wanted.permissions),
                uid: Some(wanted.uid),
                gid: Some(wanted.gid),
                ..SetAttributes::default()
            };
            files.set_attributes(inode, &set).map_err(failed)?;
        }
        let mut refused = Vec::new();
        for (name, value) in &extras.xattrs {
            let set = files.set_xattr(inode, name, value, SetMode::Any);
            // Its number is that of a full volume.
            let is_too_large = matches!(set, Err(FsError::AttributeTooLarge { .. }));
            match set.map_err(failed) {
                Ok(()) => {}
                Err(error) if !is_too_large && is_of_volume(&error) => return Err(error),
                Err(error) => refused.push(RefusedAttribute {
                    name: name.clone(),
                    error,
                }),
            }
        }
        if let Some(wanted) = extras.attributes {
            let times = SetAttributes {
                atime: Some(SetTime::At(wanted.atime)),
                mtime: Some(SetTime::At(wanted.mtime)),
                ..SetAttributes::default()
            };
            files.set_attributes(inode, &times).map_err(failed)?;
        }
        Ok(refused)
    }
}

/// Whether the volume as a whole cannot take anything more.
fn is_of_volume(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
    ) || error.raw_os_error() == Some(libc::EIO)
}

/// Who makes an inode until its owner is set.
fn owner(extras: &Extras) -> Owner {
    extras.attributes.map_or_else(own, |wanted| Owner {
        uid: wanted.uid,
        gid: wanted.gid,
    })
}

impl Target for VolumeTarget {
    fn directory(&mut self, path: &TargetPath) -> io::Result<()> {
        self.directory_at(path).map(drop)
    }

    fn finish_directory(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()> {
        let directory = self.directory_at(path)?;
        let inode = self.volume.files().inode(directory).map_err(failed)?;
        let refused = self.metadata(&inode, extras)?;
        self.refused.extend(refused);
        Ok(())
    }

    fn needs_name_first(&self) -> bool {
        false
    }

    fn begin_file(&mut self, path: &TargetPath, size: u64, extras: &Extras) -> io::Result<Begun> {
        self.drop_file();
        let (parent, name) = self.place(path)?;
        if self.is_taken(parent, name)? {
            return Ok(Begun::Exists);
        }
        let files = self.volume.files();
        let new = NewInode::new(libc::S_IFREG | 0o644, owner(extras));
        let inode = files.create_unnamed(parent, &new).map_err(failed)?;
        files.pin(&inode);
        self.open = Some((inode, size));
        Ok(Begun::Writes)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (inode, _) = self.open.as_ref().ok_or(io::ErrorKind::NotFound)?;
        self.volume.write_at(inode, offset, data).map_err(failed)
    }

    fn end_file(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        let (inode, size) = self.open.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let files = self.volume.files();
        files.truncate(inode, *size).map_err(failed)?;
        let refused = self.metadata(inode, extras)?;
        self.refused.extend(refused);
        self.name(inode, parent, name)?;
        self.drop_file();
        Ok(())
    }

    /// A file that got no name goes.
    fn drop_file(&mut self) {
        if let Some((inode, _)) = self.open.take()
            && let Err(error) = self.volume.files().unpin(&inode, 1)
        {
            tracing::warn!(%error, "a file that was not completed stays without a name");
        }
    }

    fn symlink(&mut self, path: &TargetPath, text: &[u8], extras: &Extras) -> io::Result<Begun> {
        self.make(path, &NewInode::symlink(text, owner(extras)), extras)
    }

    fn special(
        &mut self,
        path: &TargetPath,
        of: Special,
        extras: &Extras,
    ) -> io::Result<Result<Begun, LeftOut>> {
        let kind = match of.kind {
            SpecialKind::CharacterDevice => libc::S_IFCHR,
            SpecialKind::BlockDevice => libc::S_IFBLK,
            SpecialKind::Fifo => libc::S_IFIFO,
            SpecialKind::Socket => libc::S_IFSOCK,
        };
        let mut new = NewInode::new(kind | 0o600, owner(extras));
        new.rdev = of.device_number();
        self.make(path, &new, extras).map(Ok)
    }

    fn link(&mut self, path: &TargetPath, old: &TargetPath) -> io::Result<Begun> {
        let (parent, name) = self.place(path)?;
        if self.is_taken(parent, name)? {
            return Ok(Begun::Exists);
        }
        let (old_parent, old_name) = self.place(old)?;
        let files = self.volume.files();
        let there = files.lookup(old_parent, old_name).map_err(failed)?;
        let inode = files.inode(there.inode).map_err(failed)?;
        self.name(&inode, parent, name)?;
        Ok(Begun::Writes)
    }

    fn take_refused(&mut self) -> Vec<RefusedAttribute> {
        std::mem::take(&mut self.refused)
    }

    fn finish(&mut self) -> io::Result<()> {
        let synced = self.volume.sync();
        synced.map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }
}
