//! The fsync log: trees whose nodes and data need not be in the extent tree yet.

use crate::DataChecksums;
use crate::budget::{Taken, bytes_of};
use crate::code::FaultCode;
use crate::context::Context;
use crate::data::LoggedSums;
use crate::extents::checksums::range_of;
use crate::extents::parents::Parents;
use crate::extents::tally::By;
use crate::inodes::file_extent::summed_space;
use crate::inodes::names::{self, NameFault};
use crate::inodes::refs::place_of;
use crate::inodes::scan::impossible_fields;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::trees::{Items, roots};
use crate::visited::Visited;
use crate::walk::{Leaf, Tree, Visitor, Walker};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, InodeId, InodeNumber, ItemType, Key, NodeRef, TreeId};
use std::collections::BTreeSet;
use std::ops::Range;

/// What a log is compared with.
pub(crate) struct Used<'u> {
    /// Space of data extents.
    pub(crate) data: &'u Ranges,
    /// Space of nodes.
    pub(crate) nodes: &'u Ranges,
    /// Space with checksums.
    pub(crate) covered: &'u Ranges,
    /// The whole checksum tree could be read.
    pub(crate) checksums_complete: bool,
}

/// Data of a log that must have checksums.
#[derive(Debug)]
struct Summed {
    key: Key,
    space: Range<u64>,
}

/// Data and nodes of a log.
#[derive(Debug, Default)]
pub(crate) struct LogRun {
    nodes: Vec<u64>,
    data: Vec<(u64, u64)>,
    items: Items,
    summed: Vec<Summed>,
    /// Space whose checksums the log itself holds.
    covered: Vec<(u64, u64)>,
    /// The checksum items, if data are compared with them.
    sums: Items,
    /// Files whose data have no checksums.
    bare: Vec<u64>,
}

/// Bytes of memory for a node, and for an entry of another list.
const NODE_BYTES: u64 = 16;
const DATA_BYTES: u64 = 64;

impl LogRun {
    /// Bytes of memory that it takes.
    fn memory(&self) -> u64 {
        let kept = self.items.iter().chain(&self.sums);
        let items = kept.fold(0_u64, |sum, (_, data)| {
            sum.saturating_add(bytes_of(data.len().saturating_add(64), 1))
        });
        let lists = [
            self.data.len(),
            self.summed.len(),
            self.covered.len(),
            self.bare.len(),
        ];
        let listed = lists.into_iter().fold(0, usize::saturating_add);
        items
            .saturating_add(bytes_of(self.nodes.len(), NODE_BYTES))
            .saturating_add(bytes_of(listed, DATA_BYTES))
    }

    fn extent(&mut self, key: Key, extent: &FileExtent<'_>) {
        let Some(place) = place_of(extent) else {
            return;
        };
        if let Some(end) = place.disk.checked_add(place.disk_length) {
            self.data.push((place.disk.get(), end.get()));
        }
        if matches!(extent.body, FileExtentBody::Regular(_)) {
            let space = summed_space(extent, place);
            self.summed.push(Summed { key, space });
        }
    }
}

struct LogScan<'s, 'a> {
    context: &'s Context<'a>,
    taken: &'s Taken,
}

impl LogScan<'_, '_> {
    fn invalid(&self, leaf: &Leaf<'_>, key: Key, text: String) {
        let place = leaf.item(key);
        self.context.fault(FaultCode::LogInvalid, place, text);
    }

    fn valid_names(&self, leaf: &Leaf<'_>, key: Key, read: Result<(), NameFault>) {
        if let Err(fault) = read {
            self.invalid(leaf, key, fault.to_string());
        }
    }
}

impl Visitor for LogScan<'_, '_> {
    type Summary = LogRun;

    fn leaf(&self, leaf: &Leaf<'_>) -> LogRun {
        let mut run = LogRun {
            nodes: vec![leaf.node.logical().get()],
            ..LogRun::default()
        };
        for (key, data) in leaf.items() {
            match key.item_type {
                ItemType::ROOT_ITEM => run.items.push((key, data.into())),
                ItemType::EXTENT_CSUM => {
                    let range = range_of(self.context, key, data);
                    run.covered.extend(range);
                    if range.is_some() && self.context.options.data == DataChecksums::Verify {
                        run.sums.push((key, data.into()));
                    }
                }
                ItemType::INODE_ITEM => match InodeItem::parse(data) {
                    Ok(item) => {
                        let newest = self.context.superblock.generation.saturating_add(1);
                        impossible_fields(&item, key, newest, |text| self.invalid(leaf, key, text));
                        if item.flags.contains(InodeFlags::NODATASUM) {
                            run.bare.push(key.objectid);
                        }
                    }
                    Err(error) => self.invalid(leaf, key, error.to_string()),
                },
                ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                    self.valid_names(leaf, key, names::own_names(key, data, |_| ()));
                }
                ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                    self.valid_names(leaf, key, names::entries(key, data, |_| ()));
                }
                ItemType::XATTR_ITEM => {
                    self.valid_names(leaf, key, names::attributes(key, data));
                }
                ItemType::EXTENT_DATA => match FileExtent::parse(data) {
                    Ok(extent) => run.extent(key, &extent),
                    Err(error) => self.invalid(leaf, key, error.to_string()),
                },
                _ => {}
            }
        }
        self.taken.add(run.memory());
        run
    }

    fn join(&self, mut left: LogRun, right: LogRun) -> LogRun {
        left.nodes.extend(right.nodes);
        left.data.extend(right.data);
        left.items.extend(right.items);
        left.summed.extend(right.summed);
        left.covered.extend(right.covered);
        left.sums.extend(right.sums);
        left.bare.extend(right.bare);
        left
    }

    fn gap(&self) -> LogRun {
        LogRun::default()
    }
}

/// The part of a checksum item that covers some of `space`: its first address
/// and its checksums.
fn part_of<'d>(
    context: &Context<'_>,
    (key, data): (Key, &'d [u8]),
    space: &Range<u64>,
) -> Option<(u64, &'d [u8])> {
    let (start, end) = range_of(context, key, data)?;
    let each = context.superblock.checksum_type.size();
    let (first, last) = (start.max(space.start), end.min(space.end));
    if first >= last {
        return None;
    }
    let index = |at: u64| {
        let sectors = at.checked_sub(start)?.checked_div(context.sector())?;
        usize::try_from(sectors).ok()?.checked_mul(each)
    };
    Some((first, data.get(index(first)?..index(last)?)?))
}

/// What the data of a log are.
#[derive(Default)]
pub(crate) struct Logged {
    /// Their space.
    pub(crate) space: Ranges,
    /// Their checksums in the log, if data are compared with them.
    pub(crate) sums: Vec<LoggedSums>,
    taken: Option<Taken>,
}

impl Logged {
    /// Takes the checksums that the log of `tree` has for its data. A log may
    /// keep checksums of data that it no longer names; these prove nothing.
    fn add(&mut self, context: &Context<'_>, tree: TreeId, log: &LogRun) {
        if log.sums.is_empty() {
            return;
        }
        let mut seen: BTreeSet<(u64, u64)> = BTreeSet::new();
        for Summed { key, space } in &log.summed {
            let is_new = seen.insert((space.start, space.end));
            if !is_new || log.bare.binary_search(&key.objectid).is_ok() {
                continue;
            }
            // Items of the kernel may overlap. Each covers at most a leaf's worth
            // of sectors.
            let reach = context.node_bytes().saturating_mul(context.sector());
            let from = log
                .sums
                .partition_point(|(sums, _)| sums.offset.saturating_add(reach) <= space.start);
            for (sums, data) in log.sums.iter().skip(from) {
                if sums.offset >= space.end {
                    break;
                }
                let Some((start, part)) = part_of(context, (*sums, data), space) else {
                    continue;
                };
                if let Some(taken) = &self.taken {
                    taken.add(bytes_of(part.len().saturating_add(64), 1));
                }
                self.sums.push(LoggedSums {
                    file: InodeId {
                        tree,
                        number: InodeNumber(key.objectid),
                    },
                    start,
                    sums: part.to_vec(),
                });
            }
        }
    }

    /// Bytes of data that have checksums in the log.
    pub(crate) fn summed_bytes(&self, context: &Context<'_>) -> u64 {
        let each = context.superblock.checksum_type.size();
        let sectors = self.sums.iter().fold(0_usize, |sum, part| {
            sum.saturating_add(part.sums.len().checked_div(each).unwrap_or(0))
        });
        bytes_of(sectors, context.sector())
    }
}

/// Checks the log, if there is one. The nodes of the log must lie in space that
/// the extent tree calls free. Its data must lie in such space or on data extents
/// as a whole. Their checksums must be in the log or in the checksum tree.
pub(crate) fn check(context: &Context<'_>, visited: &Visited, used: &Used<'_>) -> Logged {
    let superblock = &context.superblock;
    if superblock.log_root.get() == 0 {
        return Logged::default();
    }
    let mut logged = Logged {
        taken: Some(context.taken()),
        ..Logged::default()
    };
    let none = Parents::default();
    let walker = Walker {
        context,
        visited,
        tally: None,
        parents: &none,
    };
    let taken = context.taken();
    let scan = LogScan {
        context,
        taken: &taken,
    };
    let root = NodeRef {
        logical: superblock.log_root,
        generation: superblock.generation.saturating_add(1),
        level: superblock.log_root_level,
    };
    let log = |root: NodeRef| Tree {
        id: TreeId::LOG,
        root,
        by: By::Tree(TreeId::LOG.get()),
        owner: Some(TreeId::LOG),
        dropped: None,
        counted: None,
    };
    let mut all = walker.walk(&log(root), &scan).summary;
    for (key, item) in std::mem::take(&mut all.items) {
        let place = Place::item(TreeId::LOG, key);
        if !TreeId(key.offset).is_subvolume() {
            let text = format!("tree {} is no subvolume and cannot have a log", key.offset);
            context.fault(FaultCode::LogInvalid, place, text);
        }
        match RootItem::parse(&item) {
            Ok(item) => {
                roots::impossible_fields(&item, superblock.generation, |text| {
                    context.fault(FaultCode::LogInvalid, place, text);
                });
                let root = NodeRef {
                    logical: item.logical,
                    generation: Generation(item.generation.get()),
                    level: item.level,
                };
                let mut outcome = walker.walk(&log(root), &scan);
                outcome.summary.bare.sort_unstable();
                logged.add(context, TreeId(key.offset), &outcome.summary);
                if outcome.complete && used.checksums_complete {
                    checksums(context, &mut outcome.summary, used.covered);
                }
                all = scan.join(all, outcome.summary);
            }
            Err(error) => context.fault(FaultCode::LogInvalid, place, error.to_string()),
        }
    }
    overlaps(context, &all, used);
    logged.space = Ranges::of(all.data);
    logged
}

/// Checks that the data in the log of one subvolume have checksums, except for
/// files without checksums.
fn checksums(context: &Context<'_>, log: &mut LogRun, covered: &Ranges) {
    let own = Ranges::of(std::mem::take(&mut log.covered));
    let bare = std::mem::take(&mut log.bare);
    for Summed { key, space } in std::mem::take(&mut log.summed) {
        let gaps = covered.gaps_within(space.clone());
        let missing = gaps.without(&own.part(space));
        if let Some(gap) = missing.iter().next()
            && bare.binary_search(&key.objectid).is_err()
        {
            let text = format!("its data at logical {} have no checksums", gap.start);
            let place = Place::item(TreeId::LOG, key);
            context.fault(FaultCode::LogChecksumMissing, place, text);
        }
    }
}

fn overlaps(context: &Context<'_>, log: &LogRun, used: &Used<'_>) {
    let fault = |at: u64, text: &str| {
        let place = Place::at(crate::context::logical(at));
        context.fault(FaultCode::LogOverlapsExtent, place, text);
    };
    for node in &log.nodes {
        let range = *node..node.saturating_add(context.node_bytes());
        let on_extents = used
            .data
            .bytes_within(range.clone())
            .saturating_add(used.nodes.bytes_within(range));
        if on_extents > 0 {
            fault(*node, "a node of the fsync log lies on an extent");
        }
    }
    for (start, end) in &log.data {
        let range = *start..*end;
        let length = end.saturating_sub(*start);
        let on_data = used.data.bytes_within(range.clone());
        if used.nodes.bytes_within(range) > 0 || (on_data > 0 && on_data < length) {
            fault(*start, "data of the fsync log lie across an extent");
        }
    }
}
