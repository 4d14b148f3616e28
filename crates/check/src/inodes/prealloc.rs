//! Checksums of preallocated space.
//!
//! A reader takes preallocated space as zeros and compares no checksums. If
//! files share the space, one file may have written its part in place, while
//! another still has that part as preallocated. The checksums then belong to the
//! data of the first file. So the scan of subvolumes only notes preallocated
//! space with checksums. If it noted any, a second walk looks for data there.

use super::file_extent::summed_space;
use crate::budget::{Taken, bytes_of};
use crate::code::FaultCode;
use crate::context::Context;
use crate::extents::parents::Parents;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::walk::{Leaf, Tree, Visitor, Walker};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{ItemType, Key, TreeId};
use parking_lot::Mutex;
use std::ops::Range;

/// Bytes of memory for noted space. It is in a list and in ranges.
const SUSPECT_BYTES: u64 = 160;

#[derive(Clone, Debug)]
struct Suspect {
    tree: TreeId,
    key: Key,
    space: Range<u64>,
}

/// Preallocated space that has checksums.
pub(crate) struct Suspects {
    all: Mutex<Vec<Suspect>>,
    taken: Taken,
}

impl Suspects {
    pub(crate) fn new(taken: Taken) -> Self {
        Self {
            all: Mutex::default(),
            taken,
        }
    }

    /// Notes the space of a preallocated file extent.
    pub(crate) fn add(&self, tree: TreeId, key: Key, space: Range<u64>) {
        self.taken.add(SUSPECT_BYTES);
        self.all.lock().push(Suspect { tree, key, space });
    }

    /// Reports the noted space that has checksums (is in `covered`) but no data
    /// in any of `trees`.
    pub(crate) fn report(
        self,
        context: &Context<'_>,
        covered: &Ranges,
        trees: impl Iterator<Item = Tree>,
    ) {
        let all = self.all.into_inner();
        if all.is_empty() {
            return;
        }
        let space = all.iter().map(|s| (s.space.start, s.space.end)).collect();
        let space = Ranges::of(space);
        let quiet = context.quiet();
        let (visited, parents) = (quiet.visited(), Parents::default());
        let walker = Walker {
            context: &quiet,
            visited: &visited,
            tally: None,
            parents: &parents,
        };
        let scan = DataScan {
            space: &space,
            taken: &self.taken,
        };
        let mut written = Vec::new();
        for tree in trees {
            written.extend(walker.walk(&tree, &scan).summary);
        }
        let written = Ranges::of(written);
        for suspect in all {
            let summed = covered.part(suspect.space);
            if let Some(rest) = summed.without(&written).iter().next() {
                let at = rest.start;
                let text = format!("preallocated space at logical {at} has checksums but no data");
                let place = Place::item(suspect.tree, suspect.key);
                context.fault(FaultCode::ChecksumUnexpected, place, text);
            }
        }
    }
}

/// Looks for data in noted space.
struct DataScan<'s> {
    space: &'s Ranges,
    taken: &'s Taken,
}

type Written = Vec<(u64, u64)>;

impl Visitor for DataScan<'_> {
    type Summary = Written;

    fn leaf(&self, leaf: &Leaf<'_>) -> Written {
        let mut found = Written::new();
        for (_, data) in leaf
            .items()
            .filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA)
        {
            if let Ok(extent) = FileExtent::parse(data)
                && let FileExtentBody::Regular(place) = &extent.body
                && place.disk.get() != 0
            {
                let within = self.space.within(summed_space(&extent, place));
                found.extend(within.map(|range| (range.start, range.end)));
            }
        }
        self.taken.add(bytes_of(found.len(), SUSPECT_BYTES));
        found
    }

    fn join(&self, mut left: Written, right: Written) -> Written {
        left.extend(right);
        left
    }

    fn gap(&self) -> Written {
        Written::new()
    }
}
