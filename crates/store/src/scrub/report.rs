//! What a scrub finds.

use butterfs_format::{Logical, Physical};
use std::ops::AddAssign;

/// What was found, counted as the kernel counts it: errors in sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Extents of data.
    pub data_extents: u64,
    /// Nodes.
    pub tree_extents: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of nodes.
    pub tree_bytes: u64,
    /// Sectors that could not be read.
    pub read_errors: u64,
    /// Sectors of data that differ from their checksum.
    pub csum_errors: u64,
    /// Sectors of nodes, and of parities, that are not what they should be.
    pub verify_errors: u64,
    /// Sectors of data without a checksum.
    pub no_csum: u64,
    /// Bad copies of the superblock.
    pub super_errors: u64,
    /// Bad sectors of which no copy is good.
    pub uncorrectable_errors: u64,
    /// Bad sectors that were rewritten.
    pub corrected_errors: u64,
    /// Bad sectors that could have been rewritten, and were not.
    pub repairable_errors: u64,
}

impl AddAssign for ScrubCounts {
    fn add_assign(&mut self, other: Self) {
        self.data_extents += other.data_extents;
        self.tree_extents += other.tree_extents;
        self.data_bytes += other.data_bytes;
        self.tree_bytes += other.tree_bytes;
        self.read_errors += other.read_errors;
        self.csum_errors += other.csum_errors;
        self.verify_errors += other.verify_errors;
        self.no_csum += other.no_csum;
        self.super_errors += other.super_errors;
        self.uncorrectable_errors += other.uncorrectable_errors;
        self.corrected_errors += other.corrected_errors;
        self.repairable_errors += other.repairable_errors;
    }
}

/// What became of a bad copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubOutcome {
    /// It was rewritten from a good one.
    Corrected,
    /// Another copy is good; this one was left alone.
    Repairable,
    /// No copy is good.
    Uncorrectable,
}

/// What a bad copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubbedKind {
    /// A sector of file data.
    Data,
    /// A node of this level.
    Node(u8),
    /// Parity of a row: 0 for P, 1 for Q. The logical address is the row's.
    Parity(usize),
}

/// A bad copy, or a bad parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubFault {
    /// Where it is in logical space.
    pub logical: Logical,
    /// Where it lies.
    pub place: Physical,
    /// What it holds.
    pub kind: ScrubbedKind,
    /// Length in bytes: of the bad parity, or of the sector or node.
    pub length: u64,
    /// The device could not read it.
    pub unreadable: bool,
    /// What became of it.
    pub outcome: ScrubOutcome,
}

/// What a step did.
#[derive(Clone, Debug, Default)]
pub struct ScrubStep {
    /// What was found.
    pub counts: ScrubCounts,
    /// Bad copies.
    pub faults: Vec<ScrubFault>,
    /// Bytes that are done, from the beginning of the stretch.
    pub done: u64,
}

impl ScrubStep {
    /// Notes a fault of this many sectors.
    pub(super) fn note(&mut self, fault: ScrubFault, sectors: u64) {
        let counts = &mut self.counts;
        match (fault.unreadable, fault.kind) {
            (true, _) => counts.read_errors += sectors,
            (false, ScrubbedKind::Data) => counts.csum_errors += sectors,
            (false, ScrubbedKind::Node(_) | ScrubbedKind::Parity(_)) => {
                counts.verify_errors += sectors;
            }
        }
        match fault.outcome {
            ScrubOutcome::Corrected => counts.corrected_errors += sectors,
            ScrubOutcome::Repairable => counts.repairable_errors += sectors,
            ScrubOutcome::Uncorrectable => counts.uncorrectable_errors += sectors,
        }
        self.faults.push(fault);
    }
}
