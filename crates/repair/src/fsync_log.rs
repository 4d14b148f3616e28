//! The fsync log of a patient, which a repair can leave for its replay.
//!
//! Nothing but the superblock refers to the log, and the extent tree does not
//! record its space. So a repair that leaves it keeps its new nodes out of that
//! space, and keeps the generation: a log belongs to the one after it.

use crate::patient::Patient;
use crate::ranges::Ranges;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::root::RootItem;
use butterfs_format::{ItemType, NodeRef};
use std::collections::BTreeSet;

/// Nodes of a log that are read. More are no log.
const NODES_MAX: usize = 1 << 20;

/// Space of the log's nodes and of the data in it; `None` if there is no log, or
/// one that cannot be read.
pub(crate) fn space(patient: &Patient) -> Option<Ranges> {
    let superblock = &patient.superblock;
    if superblock.log_root.get() == 0 {
        return None;
    }
    let mut waiting = vec![NodeRef {
        logical: superblock.log_root,
        generation: superblock.generation.saturating_add(1),
        level: superblock.log_root_level,
    }];
    let (mut space, mut known) = (Ranges::default(), BTreeSet::new());
    while let Some(reference) = waiting.pop() {
        if !known.insert(reference.logical) {
            continue;
        }
        if known.len() > NODES_MAX {
            return None;
        }
        let node = patient.load(reference.into()).ok()?;
        let start = reference.logical.get();
        space.add(start..start.saturating_add(patient.node_bytes()));
        for slot in 0..node.len() {
            if node.level() > 0 {
                waiting.push(node.child(slot));
                continue;
            }
            match node.key(slot).item_type {
                ItemType::ROOT_ITEM => {
                    waiting.push(RootItem::parse(node.data(slot)).ok()?.root());
                }
                ItemType::EXTENT_DATA => {
                    let extent = FileExtent::parse(node.data(slot)).ok()?;
                    if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) =
                        extent.body
                    {
                        let start = place.disk.get();
                        space.add(start..start.saturating_add(place.disk_length));
                    }
                }
                _ => {}
            }
        }
    }
    Some(space)
}
