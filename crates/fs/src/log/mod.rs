//! The fsync log: what fsync records, and how a crash's log is replayed.
//!
//! Owns the meaning of the log's items. They have the form of a subvolume's
//! items, and mean: the inode looked like this when it was made durable. The
//! format is the kernel's, and the kernel can replay what is recorded here.

mod copy;
mod directory;
mod extent;
mod fsync;
mod items;
mod names;
mod record;
mod replay;
mod verify;

pub use replay::{Change, Replayed, replay, replay_after};
