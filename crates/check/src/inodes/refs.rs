//! References of leaves to data, for leaves of all trees.

use crate::code::FaultCode;
use crate::context::Context;
use crate::extents::tally::{By, Record, Shape, Tally};
use crate::walk::{Leaf, Visitor};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::{ItemType, Key};

/// Notes a reference of `leaf` to data.
pub(crate) fn add(tally: &Tally, leaf: &Leaf<'_>, key: Key, place: &ExtentPlace) {
    let by = if leaf.is_parent {
        By::Leaf(leaf.node.logical().get())
    } else {
        By::File {
            root: leaf.node.owner().get(),
            inode: key.objectid,
            // This may wrap, since the place in the extent may be greater than
            // the offset in the file.
            offset: key.offset.wrapping_sub(place.offset),
        }
    };
    let shape = Shape::Data(place.disk_length);
    tally.add(place.disk.get(), Record::Found { by, shape });
}

/// Returns the part of an extent that a file extent uses, if it uses one.
pub(crate) const fn place_of<'p>(extent: &'p FileExtent<'_>) -> Option<&'p ExtentPlace> {
    match &extent.body {
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)
            if place.disk.get() != 0 =>
        {
            Some(place)
        }
        _ => None,
    }
}

/// Notes only references. It serves for trees whose content need not be
/// complete because they are being deleted or relocated, and for trees that
/// were already checked otherwise.
pub(crate) struct ReferenceScan<'s, 'a> {
    pub(crate) context: &'s Context<'a>,
    pub(crate) tally: &'s Tally,
}

impl Visitor for ReferenceScan<'_, '_> {
    type Summary = ();

    fn leaf(&self, leaf: &Leaf<'_>) {
        let extents = leaf
            .items()
            .filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA);
        for (key, data) in extents {
            match FileExtent::parse(data) {
                Ok(extent) => {
                    if let Some(place) = place_of(&extent) {
                        add(self.tally, leaf, key, place);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    self.context
                        .fault(FaultCode::FileExtentInvalid, leaf.item(key), text);
                }
            }
        }
    }

    fn join(&self, (): (), (): ()) {}

    fn gap(&self) {}

    /// The references of a node were noted when a walk first reached it.
    /// The trees that this walks and whose nodes are counted share none.
    fn kept(&self, _: butterfs_format::NodeRef) -> Option<((), u64)> {
        Some(((), 0))
    }
}
