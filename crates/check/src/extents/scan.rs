//! One pass over the extent tree. It checks every item on its own and against
//! its neighbours, adds all references to the tally, and gathers which space is
//! used.

use super::item::{ExtentItem, parse_keyed, verify_place};
use super::tally::{Record, Shape, Tally};
use crate::budget::{Taken, bytes_of};
use crate::code::FaultCode;
use crate::context::Context;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::walk::{Leaf, Visitor};
use butterfs_format::features::Incompat;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{ItemType, Key, Logical, TreeId};

/// A block group and its item.
pub(crate) type Group = (Key, BlockGroupItem);

/// What a part of the extent tree holds.
#[derive(Debug, Default)]
pub(crate) struct ExtentRun {
    /// Start of the first extent.
    first: Option<Key>,
    /// End of the last extent.
    end: u64,
    /// Space of data.
    pub(crate) data: Ranges,
    /// Space of nodes.
    pub(crate) nodes: Ranges,
    /// Nodes whose references to children are by parent.
    pub(crate) parents: Vec<u64>,
    /// Nodes with several references.
    pub(crate) shared: Vec<u64>,
    pub(crate) groups: Vec<Group>,
    pub(crate) extents: u64,
}

/// Bytes of memory for a node that is a parent or shared. It is in a list and
/// in a set.
const NODE_BYTES: u64 = 48;
/// Bytes of memory for a block group. It is in lists and in a map.
pub(crate) const GROUP_BYTES: u64 = 160;

impl ExtentRun {
    /// Bytes of memory that it takes.
    fn memory(&self) -> u64 {
        let nodes = self.parents.len().saturating_add(self.shared.len());
        let rest = [
            bytes_of(nodes, NODE_BYTES),
            bytes_of(self.groups.len(), GROUP_BYTES),
        ];
        let ranges = self.data.memory().saturating_add(self.nodes.memory());
        rest.into_iter().fold(ranges, u64::saturating_add)
    }
}

/// Reads the extent tree.
pub(crate) struct ExtentScan<'s, 'a> {
    pub(crate) context: &'s Context<'a>,
    pub(crate) tally: &'s Tally,
    pub(crate) taken: &'s Taken,
}

impl ExtentScan<'_, '_> {
    fn extent(&self, run: &mut ExtentRun, leaf: &Leaf<'_>, key: Key, data: &[u8]) {
        let context = self.context;
        let invalid =
            |text: String| context.fault(FaultCode::ExtentItemInvalid, leaf.item(key), text);
        let item = match ExtentItem::parse(key, data, context.node_bytes()) {
            Ok(item) => item,
            Err(fault) => return invalid(fault.to_string()),
        };
        if item.owner.is_some() && !context.superblock.incompat.contains(Incompat::SIMPLE_QUOTA) {
            invalid("it has an owner, but the volume never had simple quotas".to_owned());
        }
        let start = key.objectid;
        let length = match item.shape {
            Shape::Node(_) => context.node_bytes(),
            Shape::Data(length) => length,
        };
        if item.generation > context.superblock.generation.get() {
            invalid(format!(
                "its generation {} is not yet committed",
                item.generation
            ));
        }
        if !context.superblock.has_skinny_metadata() && key.item_type == ItemType::METADATA_ITEM {
            invalid("the volume does not have skinny metadata".to_owned());
        }
        let aligned = [start, length]
            .iter()
            .all(|n| n.is_multiple_of(context.sector()));
        let Some(end) = start.checked_add(length).filter(|_| aligned && length > 0) else {
            return invalid(format!("{length} bytes at {start} are not whole sectors"));
        };
        self.place(leaf, key, item.shape, start, end);
        if run.first.is_none() {
            run.first = Some(key);
        } else if start < run.end {
            self.overlap(key, run.end);
        }
        run.end = run.end.max(end);
        run.extents = run.extents.saturating_add(1);
        match item.shape {
            Shape::Data(_) => run.data.push(start, end),
            Shape::Node(_) => {
                run.nodes.push(start, end);
                if item.is_parent {
                    run.parents.push(start);
                }
                if item.refs > 1 {
                    run.shared.push(start);
                }
            }
        }
        if let (Some(charges), Some(owner)) = (&context.charges, item.owner) {
            charges.add(owner, item.generation, length);
        }
        let record = Record::Extent {
            shape: item.shape,
            refs: item.refs,
            generation: item.generation,
            is_parent: item.is_parent,
        };
        self.tally.add(start, record);
        for (by, count) in item.inline {
            self.tally.add(start, Record::Recorded { by, count });
        }
    }

    /// Reads a reference that has its own item.
    fn keyed(&self, leaf: &Leaf<'_>, key: Key, data: &[u8]) {
        let fault = |code, text| self.context.fault(code, leaf.item(key), text);
        match parse_keyed(key, data) {
            Ok(Some((by, count))) => {
                self.tally.add(key.objectid, Record::Recorded { by, count });
                if let Err(error) = verify_place(key, by) {
                    fault(FaultCode::ExtentItemInvalid, error.to_string());
                }
            }
            Ok(None) => {
                let text = "the extent tree holds no such items".to_owned();
                fault(FaultCode::ItemUnexpected, text);
            }
            Err(error) => fault(FaultCode::ExtentItemInvalid, error.to_string()),
        }
    }

    fn overlap(&self, key: Key, end: u64) {
        let text = format!("it begins before the extent before it ends (at {end})");
        let place = Place::item(TreeId::EXTENT, key);
        self.context.fault(FaultCode::ExtentOverlap, place, text);
    }

    fn place(&self, leaf: &Leaf<'_>, key: Key, shape: Shape, start: u64, end: u64) {
        let context = self.context;
        let chunk = context.map.find(Logical(start));
        let inside = chunk.filter(|(at, chunk)| at.saturating_add(chunk.length).get() >= end);
        let Some((at, chunk)) = inside else {
            let text = "it does not lie within one block group";
            return context.fault(FaultCode::ExtentOutsideBlockGroup, leaf.item(key), text);
        };
        let wanted = match shape {
            Shape::Data(_) => BlockGroupFlags::DATA,
            Shape::Node(_) => BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM,
        };
        if !chunk.flags.intersects(wanted) {
            let text = format!(
                "{shape} lie in the block group at {at}, which holds {}",
                chunk.flags.describe()
            );
            context.fault(FaultCode::ExtentWrongBlockGroup, leaf.item(key), text);
        }
    }
}

/// Parses a block group item and reports it if it is impossible.
pub(crate) fn parse_group(
    context: &Context<'_>,
    leaf: &Leaf<'_>,
    key: Key,
    data: &[u8],
) -> Option<Group> {
    match BlockGroupItem::parse(data) {
        Ok(item) if item.chunk_objectid != CHUNK_OBJECTID => {
            let text = format!("it names the chunk object {}", item.chunk_objectid);
            context.fault(FaultCode::BlockGroupInvalid, leaf.item(key), text);
            Some((key, item))
        }
        Ok(item) if key.offset > 0 && item.used <= key.offset => Some((key, item)),
        Ok(item) => {
            let text = format!("{} of {} bytes are used", item.used, key.offset);
            context.fault(FaultCode::BlockGroupInvalid, leaf.item(key), text);
            Some((key, item))
        }
        Err(error) => {
            context.fault(
                FaultCode::BlockGroupInvalid,
                leaf.item(key),
                error.to_string(),
            );
            None
        }
    }
}

impl Visitor for ExtentScan<'_, '_> {
    type Summary = ExtentRun;

    fn leaf(&self, leaf: &Leaf<'_>) -> ExtentRun {
        let mut run = ExtentRun::default();
        let separate = self.context.superblock.has_block_group_tree();
        for (key, data) in leaf.items() {
            match key.item_type {
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                    self.extent(&mut run, leaf, key, data);
                }
                ItemType::BLOCK_GROUP_ITEM if !separate => {
                    run.groups
                        .extend(parse_group(self.context, leaf, key, data));
                }
                _ => self.keyed(leaf, key, data),
            }
        }
        self.taken.add(run.memory());
        run
    }

    fn join(&self, mut left: ExtentRun, right: ExtentRun) -> ExtentRun {
        let before = left.memory().saturating_add(right.memory());
        if let Some(key) = right.first {
            if left.first.is_some() && key.objectid < left.end {
                self.overlap(key, left.end);
            }
            left.first = left.first.or(right.first);
        }
        left.end = left.end.max(right.end);
        left.data.append(right.data);
        left.nodes.append(right.nodes);
        left.parents.extend(right.parents);
        left.shared.extend(right.shared);
        left.groups.extend(right.groups);
        left.extents = left.extents.saturating_add(right.extents);
        self.taken.give(before.saturating_sub(left.memory()));
        left
    }

    fn gap(&self) -> ExtentRun {
        ExtentRun::default()
    }
}
