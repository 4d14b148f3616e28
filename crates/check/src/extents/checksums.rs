//! The checksum tree: which data have checksums.

use crate::budget::Taken;
use crate::code::FaultCode;
use crate::context::Context;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::walk::{Leaf, Visitor};
use butterfs_format::{ItemType, Key, TreeId, object};

/// What a part of the checksum tree covers.
#[derive(Debug, Default)]
pub(crate) struct ChecksumRun {
    first: Option<Key>,
    end: u64,
    pub(crate) covered: Ranges,
}

/// Reads the checksum tree.
pub(crate) struct ChecksumScan<'s, 'a> {
    pub(crate) context: &'s Context<'a>,
    pub(crate) taken: &'s Taken,
}

/// Returns the range that a checksum item covers; `None` if it is impossible.
pub(crate) fn range_of(context: &Context<'_>, key: Key, data: &[u8]) -> Option<(u64, u64)> {
    let each = context.superblock.checksum_type.size();
    let sector = context.sector();
    let sectors = u64::try_from(data.len().checked_div(each)?).ok()?;
    let whole = data.len().is_multiple_of(each) && sectors > 0;
    let known = key.objectid == object::EXTENT_CSUM && key.item_type == ItemType::EXTENT_CSUM;
    if !whole || !known || !key.offset.is_multiple_of(sector) {
        return None;
    }
    let end = key.offset.checked_add(sectors.checked_mul(sector)?)?;
    Some((key.offset, end))
}

impl ChecksumScan<'_, '_> {
    fn overlap(&self, key: Key, end: u64) {
        let text = format!("the checksums before it reach up to {end}");
        let place = Place::item(TreeId::CSUM, key);
        self.context.fault(FaultCode::ChecksumOverlap, place, text);
    }
}

impl Visitor for ChecksumScan<'_, '_> {
    type Summary = ChecksumRun;

    fn leaf(&self, leaf: &Leaf<'_>) -> ChecksumRun {
        let mut run = ChecksumRun::default();
        for (key, data) in leaf.items() {
            let Some((start, end)) = range_of(self.context, key, data) else {
                let text = format!(
                    "{} bytes are no checksums of sectors at this key",
                    data.len()
                );
                self.context
                    .fault(FaultCode::ChecksumItemInvalid, leaf.item(key), text);
                continue;
            };
            if run.first.is_none() {
                run.first = Some(key);
            } else if start < run.end {
                self.overlap(key, run.end);
            }
            run.end = run.end.max(end);
            run.covered.push(start, end);
        }
        self.taken.add(run.covered.memory());
        run
    }

    fn join(&self, mut left: ChecksumRun, right: ChecksumRun) -> ChecksumRun {
        if let (Some(_), Some(key)) = (left.first, right.first)
            && key.offset < left.end
        {
            self.overlap(key, left.end);
        }
        left.first = left.first.or(right.first);
        left.end = left.end.max(right.end);
        let before = left.covered.memory().saturating_add(right.covered.memory());
        left.covered.append(right.covered);
        self.taken
            .give(before.saturating_sub(left.covered.memory()));
        left
    }

    fn gap(&self) -> ChecksumRun {
        ChecksumRun::default()
    }
}
