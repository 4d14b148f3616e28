//! What is known of the bytes at an address: their checksums, and which extent
//! they belong to.

use crate::forest::Forest;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::plan::{Origin, Plan, PlanRequest, Seen, plan};
use butterfs_format::bytes::Reader;
use butterfs_format::item::csum::{self, CsumItem};
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader};
use butterfs_format::{Generation, ItemType, Key, Logical, TreeId};

/// Items that an extent item can be away from the next one: references that
/// have items of their own.
const REFERENCES_MAX: usize = 4096;
/// Greatest length of an extent, with room to spare.
const EXTENT_MAX: u64 = 1 << 30;

/// What is known of a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its checksum.
    Sum(Vec<u8>),
    /// A checksum that may be that of earlier bytes.
    Older(Vec<u8>),
    /// It has none.
    Absent,
    /// The item that may have it is lost.
    Lost,
}

/// What the extent tree says of an extent that a file had once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is there, of the same generation.
    Same,
    /// Something newer lies there.
    Newer,
    /// Nothing lies there.
    Free,
    /// That part of the extent tree is lost.
    Unknown,
}

/// Checksums and extents of one generation.
#[derive(Debug)]
pub(crate) struct DataFacts<'n> {
    nodes: &'n Nodes,
    checksums: Sums,
    pub(crate) live: Live<'n>,
}

/// Where checksums come from.
#[derive(Debug)]
enum Sums {
    /// They are lost.
    Nowhere,
    /// A tree.
    Tree(Plan),
    /// What is left of the tree of an earlier generation.
    Former(Generation),
}

/// Bytes that a checksum item can cover.
const ITEM_MAX: u64 = 64 << 20;

impl<'n> DataFacts<'n> {
    pub(crate) fn new(nodes: &'n Nodes, forest: &Forest) -> Self {
        let live = Live::new(nodes, forest);
        let has_sums = forest.trees.contains_key(&TreeId::CSUM);
        let sums = has_sums.then(|| forest.plan(nodes, TreeId::CSUM, &live));
        Self {
            nodes,
            checksums: sums.map_or(Sums::Nowhere, Sums::Tree),
            live,
        }
    }

    /// The extents of now with the checksums of an earlier generation.
    pub(crate) fn former(&self, generation: Generation) -> Self {
        Self {
            nodes: self.nodes,
            checksums: Sums::Former(generation),
            live: self.live.clone(),
        }
    }

    /// What is known of `count` sectors from `logical` on.
    pub(crate) fn sums(&self, logical: Logical, count: usize) -> Vec<Known> {
        match &self.checksums {
            Sums::Nowhere => vec![Known::Lost; count],
            Sums::Tree(plan) => sums_of(plan, self.nodes, logical, count),
            Sums::Former(generation) => {
                let bytes = crate::bytes_of(count).saturating_mul(self.nodes.identity.sector_size);
                let request = PlanRequest {
                    root: None,
                    owners: vec![(TreeId::CSUM, *generation)],
                    from: csum::key(Logical(logical.get().saturating_sub(ITEM_MAX))),
                    to: csum::key(logical.saturating_add(bytes)),
                };
                let plan = plan(self.nodes, &request, &Live::nothing(self.nodes));
                sums_of(&plan, self.nodes, logical, count)
            }
        }
    }

    /// What lies where an extent lay.
    pub(crate) fn use_of(&self, disk: Logical, length: u64, generation: Generation) -> Use {
        let Some(plan) = &self.live.extents else {
            return Use::Unknown;
        };
        let extent =
            |key: &Key| [ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM].contains(&key.item_type);
        let exact = Key::new(disk.get(), ItemType::EXTENT_ITEM, length);
        let first = Key::new(disk.get(), ItemType::MIN, 0);
        let behind = Key::new(disk.get().saturating_add(length), ItemType::MIN, 0);
        let mut found = Use::Free;
        let node_size = u64::try_from(self.nodes.identity.node_size).unwrap_or(u64::MAX);
        plan.each_in(self.nodes, (first, behind), |seen| match seen {
            Seen::Gap { .. } => found = found.with(Use::Unknown),
            Seen::Item { key, data, origin } if extent(&key) => {
                let header = ExtentHeader::read(key.item_type, &mut Reader::new("extent", data));
                let is_same = header.is_ok_and(|header| {
                    header.generation == generation && header.flags.contains(ExtentFlags::DATA)
                });
                let own = match (key == exact && is_same, origin) {
                    (true, Origin::Pointed) => Use::Same,
                    (true, Origin::Found) => Use::Unknown,
                    (false, _) => Use::Newer,
                };
                found = found.with(own);
            }
            Seen::Item { .. } => {}
        });
        let before = plan.last_before(self.nodes, &first, REFERENCES_MAX, extent);
        if let Some((key, _, _)) = before {
            let bytes = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset.min(EXTENT_MAX),
                _ => node_size,
            };
            if key.objectid.saturating_add(bytes) > disk.get() {
                found = Use::Newer;
            }
        }
        // An extent that begins in a gap may reach in, and what the scan found
        // may be older.
        if found == Use::Free && (plan.piece_before_is_lost(&first) || !plan.is_whole()) {
            found = Use::Unknown;
        }
        found
    }
}

impl Use {
    /// What two parts of a range say together.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Newer, _) | (_, Self::Newer) => Self::Newer,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Free, other) => other,
            (Self::Same, _) => Self::Same,
        }
    }
}

/// What a tree of checksums says of `count` sectors from `logical` on.
pub(crate) fn sums_of(plan: &Plan, nodes: &Nodes, logical: Logical, count: usize) -> Vec<Known> {
    let sector = nodes.identity.sector_size.max(1);
    let bytes = crate::bytes_of(count).saturating_mul(sector);
    let (from, to) = (csum::key(logical), csum::key(logical.saturating_add(bytes)));
    let mut known = vec![Known::Absent; count];
    let slot = |at: u64| {
        let distance = at.saturating_sub(logical.get());
        usize::try_from(distance.checked_div(sector).unwrap_or(0)).unwrap_or(count)
    };
    let mut take = |key: Key, data: &[u8], origin: Origin| {
        let size = u32::try_from(sector).unwrap_or(u32::MAX);
        let Ok(item) = CsumItem::parse(&key, data, nodes.identity.checksum, size) else {
            return;
        };
        let start = slot(item.start.max(logical).get());
        let end = slot(item.end.get()).min(count);
        for at in start..end {
            let within = crate::bytes_of(at).saturating_mul(sector);
            let found = item.find(logical.saturating_add(within));
            let (Some(place), Some(sum)) = (known.get_mut(at), found) else {
                continue;
            };
            *place = match origin {
                Origin::Pointed => Known::Sum(sum.to_vec()),
                Origin::Found => Known::Older(sum.to_vec()),
            };
        }
    };
    let before = plan.last_before(nodes, &from, 1, |_| true);
    if let Some((key, data, origin)) = before {
        take(key, &data, origin);
    }
    let mut gaps = Vec::new();
    plan.each_in(nodes, (from, to), |seen| match seen {
        Seen::Item { key, data, origin } => take(key, data, origin),
        Seen::Gap { from, to } => gaps.push((from.offset, to.offset)),
    });
    // An item begins at the end of a gap or before, and covers what follows.
    if plan.piece_before_is_lost(&from) {
        gaps.push((logical.get(), logical.get()));
    }
    for (start, end) in gaps {
        let end = if end < start { u64::MAX } else { end };
        let first = slot(start.max(logical.get()));
        for (at, place) in known.iter_mut().enumerate().skip(first) {
            let within = crate::bytes_of(at).saturating_mul(sector);
            let address = logical.get().saturating_add(within);
            // Behind the gap, the last item in it may go on until the next one.
            if *place != Known::Absent {
                if address >= end {
                    break;
                }
                continue;
            }
            *place = Known::Lost;
        }
    }
    known
}
