//! Deleting subvolumes: the name at once, the tree in the background.

use super::place::{Place, holds_subvolumes, place_of, remove_refs};
use crate::change::NODES_PER_PATH;
use crate::dir::Target;
use crate::error::FsError;
use crate::inode_fault::InodeFault;
use crate::names::{Removal, check_directory, name_bytes, touch_directory};
use crate::{Filesystem, dir};
use butterfs_format::{InodeId, InodeNumber, ItemType, TreeId};
use butterfs_store::{DropProgress, Purpose, StoreError, Transaction};
use std::time::{Duration, Instant};

/// Nodes that one step of cleaning frees. The engine is locked meanwhile.
const STEP: usize = 48;
/// How long a thread that lacks space cleans before it checks whether there is
/// enough.
const ROUND: Duration = Duration::from_millis(100);

/// What a step of cleaning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaning {
    /// There is nothing to clean.
    Idle,
    /// A part of a tree was freed.
    Step(TreeId),
    /// The last part of a tree was freed.
    Freed(TreeId),
    /// The next part of a tree cannot be read, or the extent tree lacks
    /// references to it. The log says so, and the tree is left as it is until
    /// the volume is opened again.
    Stuck(TreeId),
}

impl Filesystem {
    /// Deletes the subvolume named `name` in `parent`, with everything in it.
    /// [`Filesystem::clean`] frees its space.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::Invalid`] if it is not a subvolume;
    /// [`FsError::NotEmpty`] if other subvolumes are in it;
    /// [`FsError::NotPermitted`] for the default subvolume, and while it is
    /// being sent; [`FsError::Busy`] for the root of this view.
    pub fn delete_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<TreeId, FsError> {
        let target = self.lookup(parent, name)?;
        self.delete_this_subvolume(parent, name, target)
    }

    /// [`Filesystem::delete_subvolume`], if the name still stands for `target`,
    /// whose rights the caller has checked.
    ///
    /// # Errors
    /// As [`Filesystem::delete_subvolume`]; [`FsError::NotFound`] if the name
    /// stands for something else now.
    pub fn delete_this_subvolume(
        &self,
        parent: InodeId,
        name: &[u8],
        target: Target,
    ) -> Result<TreeId, FsError> {
        self.remove_subvolume((parent, name), target, Removal::Subvolume)
    }

    /// Deletes the subvolume `tree`, wherever it hangs.
    ///
    /// # Errors
    /// As [`Filesystem::delete_subvolume`].
    pub fn delete_subvolume_by_id(&self, tree: TreeId) -> Result<(), FsError> {
        let place = place_of(&self.store.read(), tree)?.ok_or(FsError::NotFound)?;
        self.delete_subvolume(place.dir, &place.link.name).map(drop)
    }

    /// Deletes the subvolume `target`, if it still has this name. If `what` is
    /// [`Removal::Directory`], the subvolume must be empty.
    pub(crate) fn remove_subvolume(
        &self,
        (parent, name): (InodeId, &[u8]),
        target: Target,
        what: Removal,
    ) -> Result<TreeId, FsError> {
        if !target.subvolume || dir::is_absent_subvolume(target.inode) {
            return Err(FsError::Invalid("it is no subvolume"));
        }
        let tree = target.inode.tree;
        if tree == self.subvolume {
            return Err(FsError::Busy("it is mounted"));
        }
        let directory = self.inode(parent)?;
        let mut state = directory.state.write();
        check_directory(&state)?;
        let _leaving = Leaving::begin(self, tree)?;
        let room = (12 * NODES_PER_PATH, Purpose::Shrink);
        self.change(&mut *state, parent.tree, room, |engine, state| {
            if dir::lookup(engine, parent, name)? != Some(target) {
                return Err(FsError::NotFound);
            }
            if holds_subvolumes(engine, tree)? {
                return Err(FsError::NotEmpty);
            }
            // As in the kernel, an empty one is deleted although it is
            // read-only.
            if what == Removal::Directory && dir::has_entries(engine, target.inode)? {
                return Err(FsError::NotEmpty);
            }
            if engine.is_tree_kept(tree) {
                return Err(FsError::NotPermitted("it is being sent"));
            }
            if super::properties::default_subvolume(engine)? == tree {
                return Err(FsError::NotPermitted("it is the default subvolume"));
            }
            let is_here = |place: &Place| place.dir == parent && place.link.name == name;
            let place = place_of(engine, tree)?.filter(is_here);
            let place = place.ok_or_else(|| FsError::Damaged {
                inode: parent,
                at: None,
                fault: Box::new(InodeFault::NoSubvolumeRef),
            })?;
            dir::remove_entry(engine, parent, &place.link)?;
            remove_refs(engine, tree, parent.tree)?;
            let item = engine.tree_state(tree)?.item;
            engine.remove_uuid(&item.uuid, ItemType::UUID_SUBVOL, tree)?;
            engine.remove_uuid(&item.received_uuid, ItemType::UUID_RECEIVED_SUBVOL, tree)?;
            engine.kill_tree(tree)?;
            // A log cannot express that a subvolume is gone.
            engine.log_mut().give_up();
            touch_directory(engine, parent, state, -name_bytes(name))
        })?;
        drop(state);
        self.write_rules.note_change();
        // Programs that have its files open find them deleted. This waits until
        // operations that read, overwrite or clone their data now have ended.
        for inode in self.inodes.remove_tree(tree) {
            let mut state = inode.state.write();
            state.deleted = true;
            state.buffer.clear();
            self.buffers.forget(inode.id, &mut state);
        }
        self.next_inodes.forget(tree);
        Ok(tree)
    }

    /// Frees a part of a deleted subvolume, in a time that does not depend on
    /// its size. If a subvolume cannot be read to its end, the rest of its
    /// space stays used, and nothing else is affected.
    ///
    /// # Errors
    /// Not writable; no space; damage of the tree of roots; reading it.
    pub fn clean(&self) -> Result<Cleaning, FsError> {
        // Writers that lack space clean too.
        let _one_at_a_time = self.cleaning.lock();
        let Some(tree) = self.next_to_clean()? else {
            return Ok(Cleaning::Idle);
        };
        let mut transaction = self.store.begin(4 * NODES_PER_PATH, Purpose::Shrink)?;
        let result = transaction.drop_step(tree, STEP);
        let error = match transaction.end(result) {
            Ok(DropProgress::More) => return Ok(Cleaning::Step(tree)),
            Ok(DropProgress::Done) => return Ok(Cleaning::Freed(tree)),
            Err(error) if self.store.check_writable().is_err() => return Err(error.into()),
            Ok(DropProgress::Stopped(error)) | Err(error) => error,
        };
        tracing::error!(%tree, %error, "a deleted subvolume cannot be freed; run a check of the volume");
        self.stuck.lock().insert(tree, error.clone());
        Ok(Cleaning::Stuck(tree))
    }

    fn next_to_clean(&self) -> Result<Option<TreeId>, FsError> {
        let dead = self.store.read().dead_trees()?;
        let (leaving, stuck) = (self.leaving.lock(), self.stuck.lock());
        let is_free = |tree: &TreeId| !leaving.contains(tree) && !stuck.contains_key(tree);
        Ok(dead.into_iter().find(is_free))
    }

    /// True when a deleted subvolume waits for [`Filesystem::clean`].
    ///
    /// # Errors
    /// Reading.
    pub fn has_dead_subvolumes(&self) -> Result<bool, FsError> {
        Ok(!self.store.read().dead_trees()?.is_empty())
    }

    /// For a thread that lacks space: frees a part of the deleted subvolumes,
    /// durably, so that their space can be given out. False if there are none,
    /// or if they cannot be freed. Locks of inodes may be held.
    pub(crate) fn clean_for_space(&self) -> Result<bool, FsError> {
        let begun = Instant::now();
        let mut freed = false;
        while begun.elapsed() < ROUND {
            match self.clean() {
                Ok(Cleaning::Idle) | Err(FsError::Store(StoreError::NoSpace)) => break,
                Ok(_) => freed = true,
                Err(error) => return Err(error),
            }
        }
        if freed {
            self.store.commit()?;
        }
        Ok(freed)
    }

    /// The engine, to change, with room for `nodes` changed nodes. A change
    /// that adds something waits for the space of deleted subvolumes.
    pub(crate) fn begin(&self, nodes: usize, purpose: Purpose) -> Result<Transaction<'_>, FsError> {
        loop {
            match self.store.begin(nodes, purpose) {
                Err(StoreError::NoSpace)
                    if purpose == Purpose::Grow && self.clean_for_space()? => {}
                other => return Ok(other?),
            }
        }
    }

    /// Frees all deleted subvolumes.
    ///
    /// # Errors
    /// As [`Filesystem::clean`]; [`FsError::Damaged`] after all others are free,
    /// when one of them cannot be freed.
    pub fn clean_all(&self) -> Result<(), FsError> {
        while self.clean()? != Cleaning::Idle {}
        let stuck = self.stuck.lock();
        let first = stuck.iter().min_by_key(|(tree, _)| **tree);
        first.map_or(Ok(()), |(tree, cause)| {
            Err(FsError::Damaged {
                inode: Self::root_of(*tree),
                at: None,
                fault: Box::new(InodeFault::CannotBeFreed(cause.clone())),
            })
        })
    }

    /// The root directory of a subvolume.
    #[must_use]
    pub const fn root_of(tree: TreeId) -> InodeId {
        InodeId {
            tree,
            number: InodeNumber::ROOT,
        }
    }
}

/// A subvolume that is being deleted: [`Filesystem::clean`] leaves it alone
/// until this is dropped.
struct Leaving<'f> {
    files: &'f Filesystem,
    tree: TreeId,
}

impl<'f> Leaving<'f> {
    /// Errors while another thread deletes the subvolume.
    fn begin(files: &'f Filesystem, tree: TreeId) -> Result<Self, FsError> {
        if !files.leaving.lock().insert(tree) {
            return Err(FsError::NotFound);
        }
        Ok(Self { files, tree })
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.files.leaving.lock().remove(&self.tree);
    }
}
