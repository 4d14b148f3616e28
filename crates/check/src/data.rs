//! Compares file data with their checksums.

use crate::code::FaultCode;
use crate::context::{Context, is_missing};
use crate::extents::checksums::range_of;
use crate::extents::parents::Parents;
use crate::report::Place;
use crate::walk::{Leaf, Tree, Visitor, Walker};
use butterfs_format::{InodeId, ItemType, Key, Logical, NodeRef, TreeId, object};

/// Bytes read at once.
const READ: usize = 1 << 20;
/// Consecutive bytes that lie on one device in striped profiles.
const ELEMENT: u64 = 64 << 10;

/// Where checksums are.
#[derive(Clone, Copy)]
enum Sums {
    /// In the checksum tree.
    Tree,
    /// In the fsync log.
    Log(InodeId),
}

impl Sums {
    /// The fault of data that do not match them.
    fn mismatch(self, copy: usize) -> (FaultCode, String) {
        match self {
            Self::Tree => (
                FaultCode::DataChecksum,
                format!("copy {copy} does not match its checksum"),
            ),
            Self::Log(file) => (
                FaultCode::LogDataChecksum,
                format!(
                    "copy {copy} of data of inode {} in subvolume {} does not match its checksum \
                     in the fsync log",
                    file.number, file.tree
                ),
            ),
        }
    }
}

struct DataScan<'s, 'a> {
    context: &'s Context<'a>,
    sums: Sums,
}

/// Checksums in a fsync log, of data that the log gives to a file.
#[derive(Debug)]
pub(crate) struct LoggedSums {
    /// The file.
    pub(crate) file: InodeId,
    /// The address of the first sector.
    pub(crate) start: u64,
    /// A checksum for each sector.
    pub(crate) sums: Vec<u8>,
}

/// Reads every copy of the data of a fsync log, and returns the bytes read.
pub(crate) fn verify_log(context: &Context<'_>, logged: &[LoggedSums]) -> u64 {
    let mut buffer = Vec::new();
    let read = logged.iter().map(|part| {
        let scan = DataScan {
            context,
            sums: Sums::Log(part.file),
        };
        let key = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, part.start);
        scan.item(key, &part.sums, &mut buffer)
    });
    read.fold(0, u64::saturating_add)
}

/// Reads every copy of all data that have checksums, and returns the bytes
/// read. Does not report damage of the checksum tree, which was reported
/// before.
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
        .walk(
            &Tree::whole(TreeId::CSUM, root),
            &DataScan {
                context,
                sums: Sums::Tree,
            },
        )
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
            let length = length.min(self.alike(at));
            let sectors = length.checked_div(sector).unwrap_or(0);
            let wanted: Vec<&[u8]> = sums.by_ref().take(sectors).collect();
            buffer.resize(length, 0);
            let (copies, ways) = context.ways(Logical(at));
            let mut is_there = false;
            for copy in 0..copies {
                is_there |= self.copy(at, copy, buffer, &wanted, sector);
                read = read.saturating_add(u64::try_from(length).unwrap_or(0));
            }
            if !is_there && !(copies..ways).any(|way| self.is_made(at, way, buffer, &wanted)) {
                let text = "the devices that have it are missing, and it cannot be rebuilt";
                context.fault(FaultCode::DataUnreadable, Place::at(Logical(at)), text);
            }
            at = at.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        }
        context.advance(end.saturating_sub(start));
        read
    }

    /// Returns how many bytes can be read at once from `at`. If a device is
    /// missing, these are bytes that lie on the same devices.
    fn alike(&self, at: u64) -> usize {
        let context = self.context;
        if !context.is_degraded() {
            return READ;
        }
        let found = context.map.find(Logical(at));
        let within = found.map_or(0, |(start, _)| at.saturating_sub(start.get()));
        let inside = within.checked_rem(ELEMENT).unwrap_or(0);
        usize::try_from(ELEMENT.saturating_sub(inside)).unwrap_or(READ)
    }

    /// Whether the way `way` to rebuild the data from other devices yields data
    /// that match their checksums.
    fn is_made(&self, at: u64, way: usize, buffer: &mut [u8], wanted: &[&[u8]]) -> bool {
        let context = self.context;
        if context.space.read_copy(Logical(at), way, buffer).is_err() {
            return false;
        }
        let sector = usize::try_from(context.sector()).unwrap_or(READ);
        let mut sectors = buffer.chunks_exact(sector).zip(wanted);
        sectors.all(|(part, sum)| {
            let computed = context.superblock.checksum_type.compute(part);
            computed.get(..sum.len()) == Some(*sum)
        })
    }

    /// Compares a copy with its checksums; returns false if its device is
    /// missing.
    fn copy(
        &self,
        at: u64,
        copy: usize,
        buffer: &mut [u8],
        wanted: &[&[u8]],
        sector: usize,
    ) -> bool {
        let context = self.context;
        if let Err(error) = context.space.read_copy(Logical(at), copy, buffer) {
            if is_missing(&error) {
                return false;
            }
            let text = format!("copy {copy}: {error}");
            context.fault(FaultCode::DataUnreadable, Place::at(Logical(at)), text);
            return true;
        }
        let mut logical = at;
        for (part, sum) in buffer.chunks_exact(sector).zip(wanted) {
            let computed = context.superblock.checksum_type.compute(part);
            if computed.get(..sum.len()) != Some(*sum) {
                let (code, text) = self.sums.mismatch(copy);
                context.fault(code, Place::at(Logical(logical)), text);
            }
            logical = logical.saturating_add(context.sector());
        }
        true
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
