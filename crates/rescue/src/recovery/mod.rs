//! The chunks of a volume whose chunk tree is lost, as far as they are certain.
//!
//! [`crate::chunks`] makes a map that is good enough to read files, and guesses
//! where it has to: what is read is verified afterwards. Here nothing is
//! guessed, because a chunk tree is made of the outcome. A chunk is certain if
//! the device tree and the block groups of the last commit agree on it, and if
//! the order of its stripes follows from an item of it that is left somewhere,
//! or from what lies on the stripes.
//!
//! Steps, one module each: [`facts`] (what the trees say), [`order`] (the order
//! of stripes by their content), [`decide`] (one chunk), [`held`] (what a chunk
//! that is lost held).

mod decide;
mod facts;
mod held;
mod order;

use crate::error::RescueError;
use crate::patient::Patient;
use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_volume::ChunkMap;
use std::fmt;

pub use held::Held;

/// Where a chunk comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkEvidence {
    /// An item of it that is left: in a superblock, or in an older node. The
    /// trees agree with it.
    Item,
    /// Device extents and a block group. The order of the stripes is of no
    /// account.
    Trees,
    /// The same, and the stripes are in the order in which nodes and checksums
    /// fit.
    Content,
    /// The same, and parity fits in this order alone.
    Parity,
    /// The same, and the stripes are in one of several orders in which every byte
    /// that is in use is right.
    Everything,
    /// A block group, and the nodes' own addresses.
    Addresses,
}

impl fmt::Display for ChunkEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Item => "from an item of it that is left",
            Self::Trees => "from device extents and its block group",
            Self::Content => {
                "from device extents and its block group; nodes and checksums show the order of \
                 its stripes"
            }
            Self::Parity => {
                "from device extents and its block group; parity shows the order of its stripes"
            }
            Self::Everything => {
                "from device extents and its block group; all that is in use is right in this \
                 order of its stripes"
            }
            Self::Addresses => "from its block group and the addresses in its nodes",
        })
    }
}

/// Why a chunk is not certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkDoubt {
    /// Neither device extents nor an item of it say where it lies.
    NoPlace,
    /// No block group says how long it is and of which profile.
    NoBlockGroup,
    /// Device extents and block group contradict each other.
    Disagreement,
    /// Nodes of it lie elsewhere.
    Elsewhere,
    /// Several orders of its stripes are possible.
    Order,
    /// It lies on others, or beyond its device.
    Overlap,
    /// A device of it was not given.
    NoDevice,
}

impl fmt::Display for ChunkDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPlace => "nothing that is left says where it lies",
            Self::NoBlockGroup => "its block group is lost, and so its length and profile",
            Self::Disagreement => "its device extents do not fit its block group",
            Self::Elsewhere => "its nodes lie elsewhere than its device extents say",
            Self::Order => "several orders of its stripes are possible",
            Self::Overlap => "it would lie on other chunks, or beyond its device",
            Self::NoDevice => "one of its devices was not given",
        })
    }
}

/// A chunk that is certain.
#[derive(Clone, Copy, Debug)]
pub struct FoundChunk {
    /// Where it begins.
    pub logical: Logical,
    /// Its bytes.
    pub length: u64,
    /// Its type and profile.
    pub flags: BlockGroupFlags,
    /// Where it comes from.
    pub evidence: ChunkEvidence,
}

/// A chunk that is not certain.
#[derive(Clone, Debug)]
pub struct LostChunk {
    /// Where it begins.
    pub logical: Logical,
    /// Its bytes, if they are known.
    pub length: Option<u64>,
    /// Its type and profile, if they are known.
    pub flags: Option<BlockGroupFlags>,
    /// Why it is not certain.
    pub doubt: ChunkDoubt,
    /// What it held.
    pub held: Held,
}

/// What is certain of a volume's chunks.
#[derive(Clone, Debug, Default)]
pub struct ChunkRecovery {
    /// The chunks that are certain.
    pub map: ChunkMap,
    /// The same, with their evidence, ascending.
    pub found: Vec<FoundChunk>,
    /// The others.
    pub lost: Vec<LostChunk>,
    /// Whether the device tree or the block groups of the last commit are whole,
    /// so that no chunk can be unknown.
    pub is_complete: bool,
}

impl ChunkRecovery {
    /// Whether a chunk tree can be made of it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_complete && self.lost.is_empty() && !self.found.is_empty()
    }
}

/// Finds the chunks of a patient that was scanned.
///
/// # Errors
/// [`RescueError::NoGoodSuperblock`]
pub fn recover_chunks(patient: &Patient) -> Result<ChunkRecovery, RescueError> {
    let facts = facts::Facts::load(patient).ok_or(RescueError::NoGoodSuperblock)?;
    let mut recovery = ChunkRecovery {
        is_complete: facts.has_all_extents || facts.has_all_groups,
        ..ChunkRecovery::default()
    };
    let mut doubts = Vec::new();
    for logical in facts.all() {
        let decided = decide::decide(&facts, logical).and_then(|(chunk, evidence)| {
            let map = recovery.map.with(logical, chunk.clone());
            let map = map.map_err(|_| ChunkDoubt::Overlap)?;
            let is_placed = map.check_devices(|id| facts.device_size(id)).is_ok();
            recovery.map = is_placed.then_some(map).ok_or(ChunkDoubt::Overlap)?;
            recovery.found.push(FoundChunk {
                logical,
                length: chunk.length,
                flags: chunk.flags,
                evidence,
            });
            Ok(())
        });
        if let Err(doubt) = decided {
            doubts.push((logical, doubt));
        }
    }
    recovery.lost = held::held(&facts, doubts);
    Ok(recovery)
}
