//! Compares checksums and block groups with the space that extents use.

use super::scan::Group;
use crate::code::FaultCode;
use crate::context::Context;
use crate::ranges::Ranges;
use crate::report::Place;
use butterfs_format::{Logical, TreeId};
use std::collections::BTreeMap;

/// Checks that checksums cover only data extents.
pub(crate) fn checksums(context: &Context<'_>, covered: &Ranges, data: &Ranges) {
    for range in covered.without(data).iter() {
        let bytes = range.end.saturating_sub(range.start);
        let place = Place {
            tree: Some(TreeId::CSUM),
            key: None,
            logical: Some(Logical(range.start)),
        };
        let text = format!("{bytes} bytes have checksums but belong to no data extent");
        context.fault(FaultCode::ChecksumWithoutExtent, place, text);
    }
}

/// Checks that block groups (sorted) agree with chunks and with the extents in
/// them.
pub(crate) fn groups(
    context: &Context<'_>,
    groups: &[Group],
    data: &Ranges,
    nodes: &Ranges,
    tree: TreeId,
) {
    let mut by_start = BTreeMap::new();
    for (key, item) in groups {
        let place = Place::item(tree, *key);
        by_start.insert(key.objectid, ());
        let end = key.objectid.saturating_add(key.offset);
        let range = key.objectid..end;
        let used = data
            .bytes_within(range.clone())
            .saturating_add(nodes.bytes_within(range));
        if used != item.used {
            let text = format!(
                "it counts {} used bytes; its extents have {used}",
                item.used
            );
            context.fault(FaultCode::BlockGroupUsed, place, text);
        }
        let chunk = context.map.find(Logical(key.objectid));
        match chunk.filter(|(at, _)| at.get() == key.objectid) {
            None => {
                let text = "no chunk begins there";
                context.fault(FaultCode::BlockGroupWithoutChunk, place, text);
            }
            Some((_, chunk)) => {
                if chunk.length != key.offset || chunk.flags != item.flags {
                    let text = format!(
                        "it has {} bytes of {}, its chunk {} bytes of {}",
                        key.offset,
                        item.flags.describe(),
                        chunk.length,
                        chunk.flags.describe()
                    );
                    context.fault(FaultCode::BlockGroupFlags, place, text);
                }
            }
        }
    }
    for (at, _) in context.map.iter() {
        if !by_start.contains_key(&at.get()) {
            let text = "no block group item begins there";
            context.fault(FaultCode::ChunkWithoutBlockGroup, Place::at(at), text);
        }
    }
}
