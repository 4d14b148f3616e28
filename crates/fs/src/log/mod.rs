//! The fsync log: what fsync records, and how a crash's log is replayed.
//!
//! Owns the meaning of the log's items. They are items as in the subvolume, and
//! mean: this inode looked so when it was made durable. The format is the
//! kernel's, and the kernel replays what is recorded here.

mod extent;
mod items;
mod names;
mod record;
mod replay;
mod verify;

pub use replay::{Change, Replayed, replay};
