//! An independent verifier of Btrfs volumes.
//!
//! It reads a volume as it lies on its devices and reports everything that is
//! wrong with it. It shares with the writers only the layout of items, the tree
//! node and the chunk map. It uses neither the store nor the file system, so a
//! fault in a writer cannot hide itself from the check. It never writes.
//!
//! To be fast, the check walks each node once, no matter how many trees share
//! it. To need little memory, it compares what must be equal on two sides
//! (references and extents, names and inodes) by sums of keyed hashes. Only if
//! a sum differs, a second walk collects the records of that part and finds
//! what is wrong.

#![cfg_attr(
    not(test),
    deny(
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::panic
    )
)]

mod budget;
mod check;
mod code;
mod context;
mod data;
mod devices;
mod error;
mod extents;
mod hash;
mod inodes;
mod paths;
mod progress;
mod ranges;
mod report;
mod superblocks;
mod trees;
mod visited;
mod walk;

pub use check::check;
pub use code::{FaultCode, Severity};
pub use error::{CheckError, DevicesFault, Unreadable};
pub use progress::{NoProgress, Phase, Progress, Status};
pub use report::{Fault, Figures, Place, QuotaGroup, Report};

/// Options of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of threads; 0 means one for each core. At most 256 are used.
    pub threads: usize,
    /// Whether file data are read and compared with their checksums.
    pub data: DataChecksums,
    /// The most bytes of memory that the check may take.
    pub memory_max: u64,
    /// The most faults of each kind that are described. All are counted.
    pub faults_max: usize,
    /// Copy of the superblock to begin with, counted from 0. If `None`, the
    /// primary copy is used if it is good, otherwise the newest good one.
    pub superblock: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 0,
            data: DataChecksums::Ignore,
            memory_max: 1 << 30,
            faults_max: 100,
            superblock: None,
        }
    }
}

/// Whether file data are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataChecksums {
    /// Every copy of all data, and of all nodes, is read.
    Verify,
    /// Only one copy of each node is read.
    Ignore,
}
