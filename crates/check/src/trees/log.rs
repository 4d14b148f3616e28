//! The fsync log: trees whose nodes and data the extent tree does not know
//! yet.

use crate::code::FaultCode;
use crate::context::Context;
use crate::extents::parents::Parents;
use crate::extents::tally::By;
use crate::inodes::refs::place_of;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::trees::Items;
use crate::visited::Visited;
use crate::walk::{Leaf, Tree, Visitor, Walker};
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, ItemType, NodeRef, TreeId};

/// Data and nodes of a log.
#[derive(Debug, Default)]
pub(crate) struct LogRun {
    nodes: Vec<u64>,
    data: Vec<(u64, u64)>,
    items: Items,
}

struct LogScan<'s, 'a> {
    context: &'s Context<'a>,
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
                ItemType::EXTENT_DATA => match FileExtent::parse(data) {
                    Ok(extent) => run.data.extend(place_of(&extent).and_then(|place| {
                        let end = place.disk.checked_add(place.disk_length)?;
                        Some((place.disk.get(), end.get()))
                    })),
                    Err(error) => {
                        let place = leaf.item(key);
                        self.context
                            .fault(FaultCode::LogInvalid, place, error.to_string());
                    }
                },
                _ => {}
            }
        }
        run
    }

    fn join(&self, mut left: LogRun, right: LogRun) -> LogRun {
        left.nodes.extend(right.nodes);
        left.data.extend(right.data);
        left.items.extend(right.items);
        left
    }

    fn gap(&self) -> LogRun {
        LogRun::default()
    }
}

/// Checks the log, if there is one. Its nodes lie in space that the extent
/// tree calls free; its data in such space or exactly on an extent.
pub(crate) fn check(context: &Context<'_>, visited: &Visited, data: &Ranges, nodes: &Ranges) {
    let superblock = &context.superblock;
    if superblock.log_root.get() == 0 {
        return;
    }
    let none = Parents::default();
    let walker = Walker {
        context,
        visited,
        tally: None,
        parents: &none,
    };
    let scan = LogScan { context };
    let root = NodeRef {
        logical: superblock.log_root,
        generation: superblock.generation.saturating_add(1),
        level: superblock.log_root_level,
    };
    let log = |root: NodeRef| Tree {
        id: TreeId(LOG),
        root,
        by: By::Tree(LOG),
        owner: Some(TreeId(LOG)),
        dropped: None,
    };
    let mut all = walker.walk(&log(root), &scan).summary;
    for (key, item) in std::mem::take(&mut all.items) {
        match RootItem::parse(&item) {
            Ok(item) => {
                let root = NodeRef {
                    logical: item.logical,
                    generation: Generation(item.generation.get()),
                    level: item.level,
                };
                let run = walker.walk(&log(root), &scan).summary;
                all = scan.join(all, run);
            }
            Err(error) => {
                let place = Place::item(TreeId(LOG), key);
                context.fault(FaultCode::LogInvalid, place, error.to_string());
            }
        }
    }
    overlaps(context, all, data, nodes);
}

/// Tree of logs.
const LOG: u64 = u64::MAX.wrapping_sub(5);

fn overlaps(context: &Context<'_>, log: LogRun, data: &Ranges, nodes: &Ranges) {
    let fault = |at: u64, text: &str| {
        let place = Place::at(crate::context::logical(at));
        context.fault(FaultCode::LogOverlapsExtent, place, text);
    };
    for node in &log.nodes {
        let range = *node..node.saturating_add(context.node_bytes());
        let used = data
            .bytes_within(range.clone())
            .saturating_add(nodes.bytes_within(range));
        if used > 0 {
            fault(*node, "a node of the fsync log lies on an extent");
        }
    }
    for (start, end) in log.data {
        let range = start..end;
        let length = end.saturating_sub(start);
        let on_data = data.bytes_within(range.clone());
        if nodes.bytes_within(range) > 0 || (on_data > 0 && on_data < length) {
            fault(start, "data of the fsync log lie across an extent");
        }
    }
}
