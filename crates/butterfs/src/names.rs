//! Changes of names and attributes, by path, named as in `std::fs`.
//!
//! None of these waits for the device. What they did is durable after
//! [`Volume::sync`], [`Volume::close`], or the automatic commit.

use crate::{Error, File, FileOptions, Volume, VolumePath};
use butterfs_format::InodeId;
use butterfs_fs::FsError;
use butterfs_fs::attr::SetAttributes;
use butterfs_fs::names::NewInode;
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

impl Volume {
    /// Opens the file at `path` for reading. [`FileOptions`] opens for more.
    ///
    /// # Errors
    /// As [`FileOptions::open`].
    pub fn open_file(&self, path: impl VolumePath) -> Result<File, Error> {
        FileOptions::new().read(true).open(self, path)
    }

    /// Opens the file at `path` for reading and writing: makes it, or empties
    /// what is there.
    ///
    /// # Errors
    /// As [`FileOptions::open`].
    pub fn create_file(&self, path: impl VolumePath) -> Result<File, Error> {
        let options = FileOptions::new().read(true).write(true);
        options.create(true).truncate(true).open(self, path)
    }

    /// Whether there is something at `path`. A symbolic link at its end is not
    /// followed.
    ///
    /// # Errors
    /// Damage, reading. Whether something is there is then unknown.
    pub fn exists(&self, path: impl VolumePath) -> Result<bool, Error> {
        match self.resolve(path) {
            Ok(_) => Ok(true),
            Err(Error::At {
                error: FsError::NotFound | FsError::NotADirectory,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory at `path`, and the missing ones above it. If it exists
    /// already, that is no error.
    ///
    /// # Errors
    /// As [`Volume::create_dir`]; something on the way is not a directory.
    pub fn create_dir_all(&self, path: impl VolumePath) -> Result<InodeId, Error> {
        let path = path.path_bytes();
        let mut at = self.resolve("/")?;
        for (index, byte) in path.iter().chain(b"/").enumerate() {
            if *byte != b'/' || index == 0 {
                continue;
            }
            let above = path.get(..index).unwrap_or(path);
            at = match self.resolve_followed(above) {
                Ok(id) => id,
                Err(Error::At {
                    error: FsError::NotFound,
                    ..
                }) => match self.create_dir(above) {
                    // Somebody else made it meanwhile.
                    Err(Error::At {
                        error: FsError::Exists,
                        ..
                    }) => self.resolve_followed(above)?,
                    made => made?,
                },
                Err(error) => return Err(error),
            };
        }
        let attributes = self.files().attributes(at);
        if !attributes.map_err(|e| Error::at(path, e))?.is_directory() {
            return Err(Error::at(path, FsError::NotADirectory));
        }
        Ok(at)
    }

    /// Removes the name at `path`, which must not be a directory. An open
    /// [`File`] stays usable.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn remove_file(&self, path: impl VolumePath) -> Result<(), Error> {
        let path = path.path_bytes();
        let (parent, name) = self.resolve_parent(path)?;
        let removed = self.files().unlink(parent, name);
        removed.map_err(|error| Error::at(path, error))
    }

    /// Removes the empty directory at `path`.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn remove_dir(&self, path: impl VolumePath) -> Result<(), Error> {
        let path = path.path_bytes();
        let (parent, name) = self.resolve_parent(path)?;
        let removed = self.files().rmdir(parent, name);
        removed.map_err(|error| Error::at(path, error))
    }

    /// Removes what is at `path`, with everything below it.
    ///
    /// # Errors
    /// There is nothing; it is or holds a subvolume
    /// ([`Volume::delete_subvolume`] removes those), and nothing was removed;
    /// damage. What was removed before such an error is gone.
    pub fn remove_dir_all(&self, path: impl VolumePath) -> Result<(), Error> {
        let path = path.path_bytes();
        self.resolve(path)?;
        let (parent, name) = self.resolve_parent(path)?;
        self.remove_tree(parent, name)
    }

    /// Moves what is at `from` to the path `to`. What is at `to` is replaced in
    /// one step: at every moment, also after a crash, `to` is the old or the
    /// new.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: impl VolumePath, to: impl VolumePath) -> Result<(), Error> {
        let (from, to) = (from.path_bytes(), to.path_bytes());
        let place = |path| {
            let (dir, name) = self.resolve_parent(path)?;
            Ok::<_, Error>(Place { dir, name })
        };
        let (old, new) = (place(from)?, place(to)?);
        let renamed = self
            .files()
            .rename(old, new, RenameMode::Replace, OldName::Free);
        renamed.map_err(|error| Error::at(from, error))
    }

    /// Gives the file at `path` another name, `link`.
    ///
    /// # Errors
    /// As link(2).
    pub fn hard_link(&self, path: impl VolumePath, link: impl VolumePath) -> Result<(), Error> {
        let link = link.path_bytes();
        let inode = self.resolve(path)?;
        let (parent, name) = self.resolve_parent(link)?;
        let linked = self.files().link(inode, parent, name);
        linked.map_err(|error| Error::at(link, error))
    }

    /// Makes a symbolic link at `link` that leads to `target`, whether or not
    /// that exists.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn symlink(&self, target: impl VolumePath, link: impl VolumePath) -> Result<(), Error> {
        let link = link.path_bytes();
        let (parent, name) = self.resolve_parent(link)?;
        let new = NewInode::symlink(target.path_bytes(), self.owner);
        let made = self.files().create(parent, name, &new);
        made.map(drop).map_err(|error| Error::at(link, error))
    }

    /// Where the symbolic link at `path` leads.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn read_link(&self, path: impl VolumePath) -> Result<PathBuf, Error> {
        let path = path.path_bytes();
        let target = self.files().read_link(self.resolve(path)?);
        let target = target.map_err(|error| Error::at(path, error))?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// Makes `to` a copy of `from`, with everything below it. The copy shares
    /// its data until either changes (a reflink), so the time that it takes
    /// does not grow with the size of files.
    ///
    /// # Errors
    /// The name exists; no space; damage. What was copied before an error stays.
    pub fn reflink(&self, from: impl VolumePath, to: impl VolumePath) -> Result<(), Error> {
        let source = self.resolve(from)?;
        let (parent, name) = self.resolve_parent(to.path_bytes())?;
        self.clone_tree(source, parent, name, &mut |_| {}).map(drop)
    }

    /// Sets permissions, owner, times or size of what is at `path`. A symbolic
    /// link at its end is not followed.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; no space.
    pub fn set_attributes(
        &self,
        path: impl VolumePath,
        attributes: &SetAttributes,
    ) -> Result<(), Error> {
        let path = path.path_bytes();
        let at = |error| Error::at(path, error);
        let inode = self.files().inode(self.resolve(path)?).map_err(at)?;
        self.files().set_attributes(&inode, attributes).map_err(at)
    }

    /// The extended attribute `name` of what is at `path`; `None` if there is
    /// no such attribute.
    ///
    /// # Errors
    /// As [`Volume::resolve`].
    pub fn xattr(
        &self,
        path: impl VolumePath,
        name: impl VolumePath,
    ) -> Result<Option<Vec<u8>>, Error> {
        let path = path.path_bytes();
        match self
            .files()
            .get_xattr(self.resolve(path)?, name.path_bytes())
        {
            Ok(value) => Ok(Some(value)),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(Error::at(path, error)),
        }
    }

    /// Sets an extended attribute, new or not. Names begin with `user.`,
    /// `trusted.`, `security.`, `system.` or `btrfs.`.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_xattr(
        &self,
        path: impl VolumePath,
        name: impl VolumePath,
        value: &[u8],
    ) -> Result<(), Error> {
        let path = path.path_bytes();
        let at = |error| Error::at(path, error);
        let inode = self.files().inode(self.resolve(path)?).map_err(at)?;
        let set = self
            .files()
            .set_xattr(&inode, name.path_bytes(), value, SetMode::Any);
        set.map_err(at)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_xattr(&self, path: impl VolumePath, name: impl VolumePath) -> Result<(), Error> {
        let path = path.path_bytes();
        let at = |error| Error::at(path, error);
        let inode = self.files().inode(self.resolve(path)?).map_err(at)?;
        let removed = self.files().remove_xattr(&inode, name.path_bytes());
        removed.map_err(at)
    }

    /// Names of all extended attributes of what is at `path`.
    ///
    /// # Errors
    /// As [`Volume::resolve`].
    pub fn xattrs(&self, path: impl VolumePath) -> Result<Vec<OsString>, Error> {
        let path = path.path_bytes();
        let names = self.files().list_xattrs(self.resolve(path)?);
        let names = names.map_err(|error| Error::at(path, error))?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// The inode at `path`. A symbolic link at its end is followed.
    ///
    /// # Errors
    /// As [`Volume::resolve`].
    pub fn resolve_followed(&self, path: impl VolumePath) -> Result<InodeId, Error> {
        let path = path.path_bytes();
        // With a slash at the end, a link is followed.
        let followed = self.resolve([path, b"/"].concat());
        followed.map_err(|error| error.moved_to(path))
    }
}
