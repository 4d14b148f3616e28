//! The on-disk format of Btrfs as values: bytes in, values out, and back.
//!
//! Owns every layout, constant and codec of the format. Does no I/O and keeps
//! no state. Bytes from disk are hostile: every parser returns an error on bad
//! input and never panics, loops or allocates without bound.
//!
//! Source of the facts: the Btrfs documentation's on-disk format page and
//! volumes made by mkfs.btrfs and the kernel, read with
//! `btrfs inspect-internal`.

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

pub mod acl;
pub mod bits;
pub mod bytes;
pub mod checksum;
pub mod compression;
pub mod error;
pub mod features;
pub mod item;
pub mod key;
pub mod node;
pub mod object;
pub mod packed;
pub mod send_stream;
pub mod superblock;
pub mod units;

pub use checksum::ChecksumType;
pub use error::ParseError;
pub use key::{ItemType, Key};
pub use units::{
    DeviceId, DeviceOffset, FileOffset, Generation, InodeId, InodeNumber, Logical, NodeRef,
    Physical, TreeId,
};

/// A UUID as it lies on disk.
pub type UuidBytes = [u8; 16];
