//! Giving a subvolume another name.

use super::make::hang;
use super::place::{place_of, remove_refs};
use crate::dir;
use crate::error::FsError;
use crate::inode::InodeState;
use butterfs_format::{InodeId, TreeId};
use butterfs_store::Engine;

/// Takes the name of a subvolume away.
pub(crate) fn take_subvolume(
    engine: &mut Engine,
    dir: InodeId,
    name: &[u8],
    tree: TreeId,
) -> Result<(), FsError> {
    let place = place_of(engine, tree)?.ok_or(FsError::NotFound)?;
    if place.dir != dir || place.link.name != name {
        return Err(FsError::NotFound);
    }
    // A log cannot express where a subvolume hangs.
    engine.log_mut().give_up();
    dir::remove_entry(engine, dir, &place.link)?;
    remove_refs(engine, tree, dir.tree)
}

/// Gives a subvolume a name again, in any subvolume.
pub(crate) fn hang_again(
    engine: &mut Engine,
    parent: (InodeId, &mut InodeState),
    name: &[u8],
    tree: TreeId,
) -> Result<(), FsError> {
    hang(engine, parent, name, (tree, u64::MAX))
}
