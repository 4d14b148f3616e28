//! Finds what exactly differs between the extent tree and the references that
//! were found.

use super::tally::{By, Collected, Record, Shape};
use crate::code::FaultCode;
use crate::context::Context;
use crate::report::Place;
use butterfs_format::{Logical, TreeId};
use std::collections::BTreeMap;

/// The sides of which a part is unknown because nodes could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Parts of the extent tree.
    pub(crate) recorded: bool,
    /// Parts of trees that refer to extents.
    pub(crate) found: bool,
}

/// All records of one address.
#[derive(Default)]
struct Address {
    extents: Vec<(Shape, u64, u64)>,
    /// Whether it is a parent: by the items, and by the nodes.
    is_parent: [Vec<bool>; 2],
    recorded: BTreeMap<By, u64>,
    found: BTreeMap<By, u64>,
    shapes: Vec<Shape>,
    nodes: Vec<(u8, u64)>,
}

/// Reports every difference in what was collected.
pub(crate) fn report(context: &Context<'_>, collected: Collected, lost: Lost) {
    let before = context.faults.total();
    let mut records = collected.records;
    records.sort_unstable_by_key(|(logical, _)| *logical);
    for group in records.chunk_by(|(a, _), (b, _)| a == b) {
        let Some((logical, _)) = group.first() else {
            continue;
        };
        let mut address = Address::default();
        for (_, record) in group {
            address.add(*record);
        }
        address.report(context, Logical(*logical), lost);
    }
    if collected.overflowed {
        context.faults.unchecked(
            "there are more differences between extents and references than fit in memory; only a part is described",
        );
    }
    if context.faults.total() == before && lost == Lost::default() {
        let text = "references and extents do not agree; the place could not be found";
        context.fault(
            FaultCode::ExtentReferenceCount,
            Place::tree(TreeId::EXTENT),
            text,
        );
    }
}

impl Address {
    fn add(&mut self, record: Record) {
        match record {
            Record::Extent {
                shape,
                refs,
                generation,
                is_parent,
            } => {
                self.extents.push((shape, refs, generation));
                self.is_parent[0].push(is_parent);
            }
            Record::Recorded { by, count } => {
                let sum = self.recorded.entry(by).or_insert(0);
                *sum = sum.saturating_add(count);
            }
            Record::Found { by, shape } => {
                let sum = self.found.entry(by).or_insert(0);
                *sum = sum.saturating_add(1);
                if !self.shapes.contains(&shape) {
                    self.shapes.push(shape);
                }
            }
            Record::Node {
                level,
                generation,
                is_parent,
            } => {
                self.nodes.push((level, generation));
                self.is_parent[1].push(is_parent);
            }
        }
    }

    fn report(&self, context: &Context<'_>, logical: Logical, lost: Lost) {
        let fault = |code, text: String| context.fault(code, Place::at(logical), text);
        let Some((shape, refs, generation)) = self.extents.first() else {
            if let Some((by, _)) = self.found.first_key_value()
                && !lost.recorded
            {
                let what = self
                    .shapes
                    .first()
                    .map_or_else(String::new, ToString::to_string);
                let text =
                    format!("{by} refers to {what} there, of which the extent tree knows nothing");
                fault(FaultCode::ExtentMissing, text);
            } else if let Some((by, _)) = self.recorded.first_key_value()
                && !lost.recorded
            {
                let text = format!("the extent tree records a reference by {by} but no extent");
                fault(FaultCode::ExtentReferenceExtra, text);
            }
            return;
        };
        if self.extents.len() > 1 {
            let text = "the extent tree has several items for it".to_owned();
            fault(FaultCode::ExtentItemInvalid, text);
        }
        let sum = self
            .recorded
            .values()
            .fold(0_u64, |sum, n| sum.saturating_add(*n));
        if sum != *refs && !lost.recorded {
            let text = format!("it counts {refs} references and has {sum}");
            fault(FaultCode::ExtentReferenceCount, text);
        }
        if self.found.is_empty() {
            if !lost.found {
                let text = format!("nothing refers to {shape}");
                fault(FaultCode::ExtentUnreferenced, text);
            }
            return;
        }
        for other in self.shapes.iter().filter(|other| *other != shape) {
            let text = format!("it is {shape} but is referred to as {other}");
            fault(FaultCode::ExtentLength, text);
        }
        for (_, other) in self.nodes.iter().filter(|(_, other)| other != generation) {
            let text = format!("its item names generation {generation}, the node {other}");
            fault(FaultCode::ExtentGeneration, text);
        }
        if let [item, node] = &self.is_parent
            && item.contains(&true)
            && node.contains(&false)
        {
            let text = "its references are by parent although nothing of its tree is shared";
            fault(FaultCode::ExtentByParent, text.to_owned());
        }
        let nothing = 0;
        for (by, found) in &self.found {
            let recorded = self.recorded.get(by).unwrap_or(&nothing);
            if recorded < found && !lost.recorded {
                let text = format!("{found} references by {by} are found, {recorded} recorded");
                fault(FaultCode::ExtentReferenceMissing, text);
            }
        }
        for (by, recorded) in &self.recorded {
            let found = self.found.get(by).unwrap_or(&nothing);
            if found < recorded && !lost.found {
                let text = format!("{recorded} references by {by} are recorded, {found} found");
                fault(FaultCode::ExtentReferenceExtra, text);
            }
        }
    }
}
