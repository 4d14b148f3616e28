//! Giving a subvolume another name.

use super::make::hang;
use super::{place_of, remove_refs};
use crate::dir;
use crate::error::FsError;
use crate::inode::InodeState;
use crate::rename::Place;
use butterfs_format::{InodeId, TreeId};
use butterfs_store::Engine;

/// Takes the name of a subvolume away.
pub(crate) fn take_subvolume(
    engine: &mut Engine,
    from: Place<'_>,
    tree: TreeId,
) -> Result<(), FsError> {
    let place = place_of(engine, tree)?.ok_or(FsError::NotFound)?;
    if place.dir != from.dir || place.link.name != from.name {
        return Err(FsError::NotFound);
    }
    // A log cannot express where a subvolume hangs.
    engine.give_up_log();
    dir::remove_entry(engine, from.dir, &place.link)?;
    remove_refs(engine, tree, from.dir.tree)
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
