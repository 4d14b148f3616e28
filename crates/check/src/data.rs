//! File data against their checksums.

use crate::code::FaultCode;
use crate::context::Context;
use crate::extents::checksums::range_of;
use crate::extents::parents::Parents;
use crate::report::Place;
use crate::walk::{Leaf, Tree, Visitor, Walker};
use butterfs_format::{Key, Logical, NodeRef, TreeId};

/// Bytes read at once.
const READ: usize = 1 << 20;

struct DataScan<'s, 'a> {
    context: &'s Context<'a>,
}

/// Reads all data that have checksums, every copy, and gives the bytes read.
/// Damage of the checksum tree was reported before.
pub(crate) fn verify(context: &Context<'_>, root: NodeRef) -> u64 {
    let quiet = context.quiet();
    let visited = context.visited();
    let none = Parents::default();
    let walker = Walker {
        context: &quiet,
        visited: &visited,
        tally: None,
        parents: &none,
    };
    walker
        .walk(&Tree::whole(TreeId::CSUM, root), &DataScan { context })
        .summary
}

impl DataScan<'_, '_> {
    fn item(&self, key: Key, data: &[u8], buffer: &mut Vec<u8>) -> u64 {
        let context = self.context;
        let Some((start, end)) = range_of(context, key, data) else {
            return 0;
        };
        let each = context.superblock.checksum_type.size();
        let sector = usize::try_from(context.sector()).unwrap_or(READ);
        let mut sums = data.chunks_exact(each);
        let mut at = start;
        let mut read = 0_u64;
        while at < end {
            let length = end.saturating_sub(at);
            let length = usize::try_from(length).unwrap_or(READ).min(READ);
            let sectors = length.checked_div(sector).unwrap_or(0);
            let wanted: Vec<&[u8]> = sums.by_ref().take(sectors).collect();
            buffer.resize(length, 0);
            for copy in 0..context.map.copies(Logical(at)).max(1) {
                self.copy(at, copy, buffer, &wanted, sector);
                read = read.saturating_add(u64::try_from(length).unwrap_or(0));
            }
            at = at.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        }
        context.advance(end.saturating_sub(start));
        read
    }

    fn copy(&self, at: u64, copy: usize, buffer: &mut [u8], wanted: &[&[u8]], sector: usize) {
        let context = self.context;
        if let Err(error) = context.space.read_copy(Logical(at), copy, buffer) {
            let text = format!("copy {copy}: {error}");
            context.fault(FaultCode::DataUnreadable, Place::at(Logical(at)), text);
            return;
        }
        let mut logical = at;
        for (part, sum) in buffer.chunks_exact(sector).zip(wanted) {
            let computed = context.superblock.checksum_type.compute(part);
            if computed.get(..sum.len()) != Some(*sum) {
                let text = format!("copy {copy} does not match its checksum");
                context.fault(FaultCode::DataChecksum, Place::at(Logical(logical)), text);
            }
            logical = logical.saturating_add(context.sector());
        }
    }
}

impl Visitor for DataScan<'_, '_> {
    type Summary = u64;

    fn leaf(&self, leaf: &Leaf<'_>) -> u64 {
        let mut buffer = Vec::new();
        let items = leaf.items();
        items.fold(0, |sum: u64, (key, data)| {
            sum.saturating_add(self.item(key, data, &mut buffer))
        })
    }

    fn join(&self, left: u64, right: u64) -> u64 {
        left.saturating_add(right)
    }

    fn gap(&self) -> u64 {
        0
    }
}
