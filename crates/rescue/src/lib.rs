//! Files out of volumes that do not open.
//!
//! Reads devices as they are, with or without superblocks, chunk tree and tree
//! of roots. A scan finds the nodes of all generations that are left. Trees are
//! put together from the pointers that can be followed and, where these end,
//! from the newest nodes of each range of keys. It never writes to a device,
//! and uses neither the store nor the file system.
//!
//! Steps, one module each: [`Index`] (nodes that a scan found), [`Patient`]
//! (identity, devices and chunk map), [`Plan`] (the leaves of a tree in key
//! order, with gaps), [`Forest`] (the trees of one generation), then
//! [`survey`], [`restore`] and [`undelete`].
//!
//! Invariants: bytes from disk lead to an error or to less content, never to a
//! panic, an endless loop or memory beyond the bounds in `docs/limits.md`.
//! Content that does not match a checksum of its own generation is never given
//! out as good.

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

mod checksums;
mod chunks;
mod content;
mod error;
mod forest;
mod index;
mod index_file;
mod inodes;
mod live;
mod names;
mod nodes;
mod patient;
mod plan;
mod ranges;
mod recovery;
mod restore;
mod roots;
mod scan;
mod stripes;
mod survey;
mod target;
mod undelete;
mod watch;

pub use chunks::{ChunkSource, MapFacts};
pub use content::Wholeness;
pub use error::RescueError;
pub use forest::{Forest, Subvolume};
pub use index::{Index, NodeRecord, Shape};
pub use patient::{Patient, PatientOptions, ScanScope};
pub use plan::{LeafPiece, Origin, Plan};
pub use recovery::{
    ChunkDoubt, ChunkEvidence, ChunkRecovery, FoundChunk, Held, LostChunk, recover_chunks,
};
pub use restore::{Outcome, RestoreOptions, Restored, Tell, Wanted, restore};
pub use roots::{Candidate, RootSource};
pub use survey::{CandidateFacts, Survey, SurveyOptions, TreeFacts, survey};
pub use target::{
    Attributes, Begun, DirectoryTarget, Extras, LeftOut, RefusedAttribute, Special, SpecialKind,
    TarTarget, Target, TargetPath,
};
pub use undelete::{
    BroughtBack, Confidence, Deleted, DeletedKind, UndeleteOptions, Version, bring_back, undelete,
};
pub use watch::{Silent, Step, Watch};

/// Bytes of memory as bytes of an address space.
pub(crate) fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Bytes of an address space as bytes of memory, `usize::MAX` at most.
pub(crate) fn memory_of(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
