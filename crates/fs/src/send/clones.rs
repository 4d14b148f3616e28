//! Where the receiver already has the data of an extent.
//!
//! Owns two things. It asks the extent tree who else refers to an extent, and
//! it proves each answer in the trees of the clone sources. The proof is needed
//! because a reference names the subvolume that wrote it, while that
//! subvolume's snapshots share it without being named.

use super::error::SendError;
use super::snapshot::{Flow, Nodes, Snapshot};
use crate::file::extents::{Body, Found};
use butterfs_format::{InodeNumber, Logical};
use butterfs_store::{DataExtent, DataHolder};
use std::ops::Range;
use std::rc::Rc;

/// How many references of one extent are looked at. More would take too much
/// time.
const HOLDERS_MAX: usize = 64;

/// Snapshots that the receiver has.
#[derive(Debug)]
pub(super) struct CloneSources<'s> {
    /// All but the one that is sent.
    pub others: Vec<&'s Snapshot<'s>>,
    /// References of the extent that was asked for last.
    last: Option<(Logical, Rc<[DataHolder]>)>,
}

/// A place with the same data.
#[derive(Debug)]
pub(super) struct CloneSource<'s> {
    /// Snapshot; `None` for the one that is sent.
    pub snapshot: Option<&'s Snapshot<'s>>,
    pub number: InodeNumber,
    pub offset: u64,
    pub length: u64,
}

/// Part of a file whose data are looked for elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'e> {
    pub extent: &'e Found,
    /// First byte of the file.
    pub start: u64,
    pub end: u64,
    /// Size of the file.
    pub size: u64,
}

impl<'s> CloneSources<'s> {
    pub const fn new(others: Vec<&'s Snapshot<'s>>) -> Self {
        Self { others, last: None }
    }

    fn holders(
        &mut self,
        nodes: &Nodes<'_>,
        extent: DataExtent,
    ) -> Result<Rc<[DataHolder]>, SendError> {
        if let Some((logical, holders)) = &self.last
            && *logical == extent.logical
        {
            return Ok(Rc::clone(holders));
        }
        let holders: Rc<[DataHolder]> = nodes.0.read().data_holders(extent, HOLDERS_MAX)?.into();
        self.last = Some((extent.logical, Rc::clone(&holders)));
        Ok(holders)
    }

    /// A place where the receiver has the beginning of the wanted data. Inodes
    /// of `sent` count if they come before `current`.
    pub fn find(
        &mut self,
        nodes: &Nodes<'_>,
        (sent, current): (&'s Snapshot<'s>, InodeNumber),
        wanted: Wanted<'_>,
    ) -> Result<Option<CloneSource<'s>>, SendError> {
        let Body::Regular(place) = &wanted.extent.body else {
            return Ok(None);
        };
        let extent = DataExtent {
            logical: place.disk,
            length: place.disk_length,
        };
        let inside = place.offset + (wanted.start - wanted.extent.start);
        for holder in self.holders(nodes, extent)?.iter() {
            let from = holder.offset.wrapping_add(inside);
            let all = self.others.iter().map(|other| (Some(*other), *other));
            for (snapshot, tree) in all.chain([(None, sent)]) {
                if snapshot.is_none() && holder.inode >= current {
                    continue;
                }
                let Some(end) = from.checked_add(wanted.end - wanted.start) else {
                    continue;
                };
                let same = Same {
                    disk: place.disk,
                    inside,
                    range: from..end,
                };
                let Some(length) = same.length_in(tree, holder.inode, wanted)? else {
                    continue;
                };
                return Ok(Some(CloneSource {
                    snapshot,
                    number: holder.inode,
                    offset: from,
                    length,
                }));
            }
        }
        Ok(None)
    }
}

/// Data that should be found in a range of another file.
struct Same {
    disk: Logical,
    /// Where they begin in the extent.
    inside: u64,
    range: Range<u64>,
}

impl Same {
    /// How many bytes from the start of the range can be cloned; `None` if none
    /// can.
    fn length_in(
        &self,
        tree: &Snapshot<'_>,
        number: InodeNumber,
        wanted: Wanted<'_>,
    ) -> Result<Option<u64>, SendError> {
        let Some(item) = tree.inode(number)? else {
            return Ok(None);
        };
        let mut end = None;
        let first = self.range.start..self.range.start.saturating_add(1);
        tree.extents(number, &first, &mut |found| {
            if let Body::Regular(place) = &found.body
                && place.disk == self.disk
                && place.offset + (self.range.start.saturating_sub(found.start)) == self.inside
            {
                end = Some(found.end());
            }
            Ok(Flow::Stop)
        })?;
        let Some(end) = end else {
            return Ok(None);
        };
        let end = end.min(item.size).min(self.range.end);
        let mut length = end.saturating_sub(self.range.start);
        // A partial sector can be cloned only if both files end in it.
        let sector = tree.sector();
        let at_ends = end == item.size && wanted.start + length == wanted.size;
        if !length.is_multiple_of(sector) && !at_ends {
            length -= length % sector;
        }
        Ok((length > 0).then_some(length))
    }
}
