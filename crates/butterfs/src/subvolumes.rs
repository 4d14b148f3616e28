//! Reading subvolumes of an open volume: which ones there are, what they hold,
//! and how they differ.
//!
//! All of it is read from the trees. File data are never read.

use crate::{Error, Volume, VolumePath};
use butterfs_format::{Generation, InodeId, InodeNumber, Logical, TreeId};
use butterfs_fs::FsError;
use butterfs_fs::subvolume::diff::{Compared, Difference, diff};
use butterfs_fs::subvolume::du::{Limits, Progress, SpaceSharing};
use butterfs_fs::subvolume::files_at::{ExtentPart, FileAt, files_at};
use butterfs_fs::subvolume::find_new::{FindNewEnd, NewExtent, find_new};
use butterfs_fs::subvolume::history::{HistoryEntry, Subject, history};
use butterfs_fs::subvolume::list::Subvolumes;
use butterfs_fs::subvolume::paths::Paths;
use butterfs_store::Engine;
use butterfs_tree::{CompareCost, NodeSource};
use std::ops::ControlFlow;

impl Volume {
    /// All subvolumes, the top level and those that are being deleted
    /// included.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn subvolumes(&self) -> Result<Subvolumes, Error> {
        self.check_open()?;
        Ok(Subvolumes::load(&self.store().read())?)
    }

    /// The subvolume whose root is at `path`.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; another kind of file or directory is there.
    pub fn subvolume_at(&self, path: impl VolumePath) -> Result<TreeId, Error> {
        let path = path.path_bytes();
        let id = self.resolve_followed(path)?;
        if id.number != InodeNumber::ROOT {
            let reason = FsError::Invalid("this is no subvolume but a directory in one");
            return Err(Error::at(path, reason));
        }
        Ok(id.tree)
    }

    /// Runs `look` on one state of the volume, for as long as it takes, while
    /// others change the volume.
    fn steadily<R, E: From<FsError>>(
        &self,
        look: impl FnOnce(&Engine) -> Result<R, E>,
    ) -> Result<R, E> {
        let steady = self.store().steady().map_err(FsError::from)?;
        let result = look(&steady);
        if result.is_err() && !steady.is_whole() {
            let reason =
                "others changed more of the volume meanwhile than it has room for; try again";
            return Err(FsError::Busy(reason).into());
        }
        result
    }

    /// Who uses the space of the volume, as of one commit. If the volume can be
    /// changed, this commits first.
    ///
    /// # Errors
    /// Damage, reading, committing; `progress` stopped it; [`FsError::Busy`]
    /// when others changed too much meanwhile.
    pub fn space_sharing(
        &self,
        limits: &Limits,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<SpaceSharing, Error> {
        self.sync()?;
        let compute = |engine: &Engine| SpaceSharing::compute(engine, limits, progress);
        Ok(self.steadily(compute)?)
    }

    /// Gives every file extent of `tree` that was written in `since` or later
    /// to `visit`.
    ///
    /// # Errors
    /// Damage, reading; errors of `visit`; [`FsError::Busy`] when others
    /// changed too much meanwhile.
    pub fn find_new<E: From<FsError>>(
        &self,
        tree: TreeId,
        since: Generation,
        visit: &mut dyn FnMut(&NewExtent) -> Result<(), E>,
    ) -> Result<FindNewEnd, E> {
        self.steadily(|engine| find_new(engine, tree, since, visit))
    }

    /// Gives every difference between two subvolumes to `visit`, by ascending
    /// inode. The cost grows with what differs.
    ///
    /// # Errors
    /// Damage, reading; errors of `visit`; [`FsError::Busy`] when others
    /// changed too much meanwhile.
    pub fn diff<E: From<FsError>>(
        &self,
        compared: Compared,
        visit: &mut dyn FnMut(Difference) -> Result<(), E>,
    ) -> Result<CompareCost, E> {
        self.steadily(|engine| diff(engine, compared, visit))
    }

    /// The history of the file at `path` in all subvolumes that descend from
    /// one another, earliest state first.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; damage, reading.
    pub fn history(&self, path: impl VolumePath) -> Result<Vec<HistoryEntry>, Error> {
        let path = path.path_bytes();
        let inode = self.resolve(path)?;
        self.steadily(|engine| {
            let root = engine.root(inode.tree).map_err(FsError::from)?;
            let mut paths = Paths::new(engine, inode.tree, root).of(inode.number)?;
            // If it has several names, the one that was asked for.
            let asked: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            let name = asked.iter().rfind(|name| !name.is_empty());
            paths.sort_by_key(|path| path.rsplit(|byte| *byte == b'/').next() != name.copied());
            let Some(within) = paths.first() else {
                return Err(Error::at(path, FsError::NotFound));
            };
            let subject = Subject {
                inode,
                path: within,
            };
            Ok(history(engine, subject)?)
        })
    }

    /// All paths of an inode in its subvolume, sorted, without a leading slash.
    /// The subvolume's root has the empty path.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such subvolume or inode; damage,
    /// reading.
    pub fn paths_of(&self, inode: InodeId) -> Result<Vec<Vec<u8>>, Error> {
        self.check_open()?;
        self.steadily(|engine| {
            let root = engine.root(inode.tree).map_err(|_| FsError::NotFound)?;
            let paths = Paths::new(engine, inode.tree, root).of(inode.number)?;
            if paths.is_empty() {
                return Err(FsError::NotFound.into());
            }
            Ok(paths)
        })
    }

    /// All files, in all subvolumes, that use the data at `logical`; `None` if
    /// there are no data there. A volume that can be changed commits first.
    ///
    /// # Errors
    /// Damage, reading, committing; [`FsError::Busy`] when others changed too
    /// much meanwhile.
    pub fn files_at(
        &self,
        logical: Logical,
        part: ExtentPart,
    ) -> Result<Option<Vec<FileAt>>, Error> {
        self.sync()?;
        Ok(self.steadily(|engine| files_at(engine, logical, part))?)
    }
}
