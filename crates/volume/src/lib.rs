//! A volume's logical space over its devices.
//!
//! Owns the devices of a volume and their states, the map from logical to
//! physical addresses, reading with the choice among copies and their healing,
//! writing to all copies, parity, and the placement of new chunks. Knows
//! nothing of trees: the store gives it chunks.

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

mod chunk_check;
mod error;
mod full_stripes;
mod geometry;
mod healing;
mod layout;
mod locked_row;
mod map;
mod member;
mod parity;
pub mod placement;
mod profile;
mod renew;
mod replace_target;
mod runs;
mod space;
mod stats;
mod stripe_extents;
mod workers;

pub use chunk_check::ChunkFault;
pub use error::{BadCopy, CopyFault, VolumeError};
pub use geometry::{Mapping, row_length, stripe_length, superblock_ranges};
pub use healing::{Healed, ReadAs};
pub use layout::{StripeLayout, StripePart, StripeRole};
pub use locked_row::{LockedRow, RowHold};
pub use map::{ChunkMap, ChunkStripe};
pub use member::{MemberFacts, MemberState, Role, Trust, VolumeDevice};
pub use profile::Profile;
pub use replace_target::{Copied, CopyUnit, ReplaceReads};
pub use space::{LogicalSpace, OnDamage, OnLoss, WritesBehind};
pub use stats::DeviceStats;
pub use stripe_extents::StripeExtents;

/// Bytes of memory as bytes of an address space.
pub(crate) fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Bytes of an address space as bytes of memory, `usize::MAX` at most.
pub(crate) fn memory_of(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
