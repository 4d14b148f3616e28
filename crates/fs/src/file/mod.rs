//! File data: reading, writing, and the space that files take.
//!
//! Owns file extents and the write buffer. Written data wait in memory per
//! inode until they are flushed: compressed, checksummed, allocated, written,
//! and only then named by file extents.

pub mod budget;
pub mod buffer;
mod clone;
mod clone_inode;
mod dedupe;
mod defragment;
mod doubts;
pub(crate) mod encoded;
mod extent_map;
pub(crate) mod extents;
mod fallocate;
pub(crate) mod flush;
mod flush_many;
mod flusher;
pub(crate) mod limits;
mod outgoing;
mod output;
pub(crate) mod read;
pub(crate) mod reading;
mod seek;
mod truncate;
mod unpacked;
mod write;

pub use clone::CloneSpan;
pub use dedupe::Deduped;
pub use defragment::{Defragment, Defragmented, Recompress, Sharing};
pub use doubts::{Doubt, Doubts};
pub use extent_map::{FileSpace, MappedExtent, MappedKind};
pub use fallocate::FallocateMode;
pub use flusher::Flusher;
pub use limits::SIZE_MAX;
pub use seek::SeekTarget;
pub(crate) use unpacked::Unpacked;
