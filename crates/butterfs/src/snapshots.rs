//! Subvolumes and snapshots, by path.

use crate::{Error, Volume, VolumePath};
use butterfs_device::Access;
use butterfs_format::TreeId;
use butterfs_fs::names::{NewInode, S_IFDIR};

/// What may be done with a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotAccess {
    /// It can be read and sent, and never changes.
    #[default]
    ReadOnly,
    /// It can be changed like any subvolume.
    ReadWrite,
}

impl SnapshotAccess {
    const fn access(self) -> Access {
        match self {
            Self::ReadOnly => Access::ReadOnly,
            Self::ReadWrite => Access::ReadWrite,
        }
    }
}

impl Volume {
    /// Makes an empty subvolume at `path`, and commits: it is durable when this
    /// returns.
    ///
    /// # Errors
    /// As [`Volume::create_dir`].
    pub fn create_subvolume(&self, path: impl VolumePath) -> Result<TreeId, Error> {
        let path = path.path_bytes();
        let (parent, name) = self.resolve_parent(path)?;
        let new = NewInode::new(S_IFDIR | 0o755, self.owner);
        let made = self.files().create_subvolume(parent, name, &new);
        made.map_err(|error| Error::at(path, error))
    }

    /// Makes `to` a snapshot of the subvolume whose root is at `from`, and
    /// commits: it is durable when this returns. Everything that was written to
    /// `from` before is in it.
    ///
    /// # Errors
    /// As [`Volume::create_subvolume`]; there is no subvolume at `from`.
    pub fn snapshot(
        &self,
        from: impl VolumePath,
        to: impl VolumePath,
        access: SnapshotAccess,
    ) -> Result<TreeId, Error> {
        let to = to.path_bytes();
        let source = self.subvolume_at(from)?;
        let (parent, name) = self.resolve_parent(to)?;
        let made = self.files().snapshot(source, parent, name, access.access());
        made.map_err(|error| Error::at(to, error))
    }

    /// Deletes the subvolume or snapshot whose root is at `path`, with
    /// everything in it. Its space is given back in the background, or by
    /// [`Volume::free_deleted`].
    ///
    /// # Errors
    /// It is not a subvolume; others are in it; it is the default subvolume of
    /// mounts, the one that is open, or one that is being sent.
    pub fn delete_subvolume(&self, path: impl VolumePath) -> Result<TreeId, Error> {
        let path = path.path_bytes();
        let (parent, name) = self.resolve_parent(path)?;
        let deleted = self.files().delete_subvolume(parent, name);
        deleted.map_err(|error| Error::at(path, error))
    }

    /// Gives back the space of all deleted subvolumes, and returns when that is
    /// done.
    ///
    /// # Errors
    /// Damage, reading; one of them cannot be freed.
    pub fn free_deleted(&self) -> Result<(), Error> {
        self.check_open()?;
        Ok(self.files().clean_all()?)
    }

    /// Makes the subvolume whose root is at `path` read-only or writable. A
    /// received subvolume that becomes writable forgets what it was received
    /// from.
    ///
    /// # Errors
    /// It is not a subvolume, or is being sent; no space.
    pub fn set_subvolume_access(
        &self,
        path: impl VolumePath,
        access: SnapshotAccess,
    ) -> Result<(), Error> {
        let path = path.path_bytes();
        let tree = self.subvolume_at(path)?;
        let set = self.files().set_subvolume_access(tree, access.access());
        set.map_err(|error| Error::at(path, error))
    }

    /// Makes the subvolume whose root is at `path` the one that a mount without
    /// options shows.
    ///
    /// # Errors
    /// It is no subvolume; no space.
    pub fn set_default_subvolume(&self, path: impl VolumePath) -> Result<(), Error> {
        let path = path.path_bytes();
        let tree = self.subvolume_at(path)?;
        let set = self.files().set_default_subvolume(tree);
        set.map_err(|error| Error::at(path, error))
    }
}
