//! Which snapshots are relatives.

use butterfs::TreeId;
use butterfs_format::{Generation, UuidBytes};

/// A snapshot to send, or to send from.
pub(super) struct Named {
    pub(super) tree: TreeId,
    pub(super) relations: Relations,
    pub(super) name: Vec<u8>,
}

/// The facts that tell which snapshots are relatives.
#[derive(Clone, Copy)]
pub(super) struct Relations {
    pub(super) uuid: UuidBytes,
    pub(super) parent_uuid: UuidBytes,
    /// The generation in which it was made.
    pub(super) made: Generation,
}

/// The relative of `sent` that is nearest in time: a snapshot of the same
/// subvolume, the subvolume of which it is a snapshot, or a snapshot of it.
pub(super) fn nearest<'s>(sent: &Named, sources: &'s [Named]) -> Option<&'s Named> {
    let known = |uuid: &[u8; 16]| *uuid != [0; 16];
    let related = |other: &&Named| {
        let (a, b) = (&sent.relations, &other.relations);
        (known(&a.parent_uuid) && (a.parent_uuid == b.parent_uuid || a.parent_uuid == b.uuid))
            || (known(&b.parent_uuid) && b.parent_uuid == a.uuid)
    };
    let distance = |other: &&Named| {
        let (a, b) = (sent.relations.made, other.relations.made);
        a.get().abs_diff(b.get())
    };
    sources
        .iter()
        .filter(|other| other.tree != sent.tree)
        .filter(related)
        .min_by_key(distance)
}
