//! Conversion of ext2, ext3 and ext4 to Btrfs in place, and the way back.
//!
//! Data stay where they are: logical addresses are those of the device, and
//! file extents point to the blocks that ext4 had. An image of the old file
//! system (`ext2_saved/image`) shares them. Everything new goes into blocks
//! that ext4 calls free. One write decides: that of the first superblock.
//!
//! Owns the plan ([`convert`]), the order of writes (`decide`), and the way
//! back ([`rollback`]). Reads ext4 through `ext4`, and a converted volume
//! through `volume` and `tree`. Sees neither store nor fs.
//!
//! Invariants: before the deciding write, no block is written that ext4 uses;
//! memory does not grow with the number of files, but for 24 bytes for each
//! node, and what does not fit into it is sorted in a temporary file.
//!
//! Numbers of ext4 are hostile until they are read through `ext4`, which keeps
//! all blocks within the device; sums of such addresses stay below 2^63.

#![cfg_attr(
    not(test),
    deny(
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::panic
    )
)]

mod content;
mod convert;
mod copy;
mod decide;
mod error;
mod extents;
mod files;
mod ground;
mod inode;
mod layout;
mod loader;
mod names;
mod options;
mod refuse;
mod relocation;
mod rollback;
mod sorter;
mod source;
mod sums;
mod trees;
mod volume;

pub use convert::{Converted, convert, plan};
pub use copy::copy_used;
pub use error::{ConvertError, InTheWay};
pub use options::{Attributes, DataSums, Inline, Label, Options, Step, Unwatched, Watch};
pub use rollback::{RolledBack, rollback, verify_rollback};
