//! Giving a subvolume another name.

use super::make::hang;
use super::{place_of, remove_refs};
use crate::Filesystem;
use crate::dir::{self, Target};
use crate::error::FsError;
use crate::names::{
    NODES_PER_PATH, check_directory, check_writable, lock_all, name_bytes, state_of,
    touch_directory,
};
use crate::rename::Place;
use butterfs_store::Purpose;

impl Filesystem {
    /// Moves a subvolume to a free name, in whatever subvolume; false when a
    /// name changed meanwhile.
    pub(crate) fn rename_subvolume(
        &self,
        source: Target,
        from: Place<'_>,
        to: Place<'_>,
    ) -> Result<bool, FsError> {
        let mut at = to.dir;
        loop {
            if at == source.inode {
                return Err(FsError::Invalid("a subvolume cannot move into itself"));
            }
            let parent = self.parent(at)?;
            if parent == at {
                break;
            }
            at = parent;
        }
        dir::check_kept(to.dir)?;
        let (old_dir, new_dir) = (self.inode(from.dir)?, self.inode(to.dir)?);
        let mut locked = lock_all(&[&old_dir, &new_dir]);
        check_directory(state_of(&mut locked, from.dir))?;
        check_directory(state_of(&mut locked, to.dir))?;
        let tree = source.inode.tree;
        let nodes = 16 * NODES_PER_PATH;
        self.change(from.dir.tree, nodes, Purpose::Grow, |engine| {
            check_writable(engine, to.dir.tree)?;
            if dir::lookup(engine, from.dir, from.name)? != Some(source) {
                return Ok(false);
            }
            dir::check_free(engine, to.dir, to.name)?;
            let place = place_of(engine, tree)?.ok_or(FsError::NotFound)?;
            // A log cannot say where a subvolume hangs.
            engine.give_up_log();
            dir::remove_entry(engine, from.dir, &place.link)?;
            remove_refs(engine, tree, from.dir.tree)?;
            let state = state_of(&mut locked, from.dir);
            touch_directory(engine, from.dir, state, -name_bytes(from.name))?;
            let state = state_of(&mut locked, to.dir);
            hang(engine, (to.dir, state), to.name, (tree, u64::MAX))?;
            Ok(true)
        })
    }
}
