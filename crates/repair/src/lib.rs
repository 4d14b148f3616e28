//! The writing side of recovery: a damaged volume is a patient.
//!
//! Nothing is written to a patient until its owner has seen what would come of
//! it. Changes go to an overlay ([`overlay`]): a file that lies over the
//! devices. [`transfer`] writes an overlay to its devices, after an undo file
//! with everything that it overwrites is durable, and brings the old content
//! back from such a file.
//!
//! Reads volumes through `volume`, `tree` and `format`. Sees neither the store
//! nor the file system.

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
mod devices;
mod error;
mod extents;
mod file_extents;
mod free_space;
mod fsync_log;
mod inodes;
mod items;
mod names;
pub mod overlay;
mod patient;
mod prune;
mod ranges;
mod regrow;
mod repair;
mod room;
mod roots;
mod settle;
mod step;
pub mod transfer;
mod walk;
mod writer;

pub use error::RepairError;
pub use patient::Begin;
pub use repair::{Anew, FsyncLog, Options, Outcome, repair};
pub use step::{Step, StepKind};
