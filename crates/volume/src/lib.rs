//! A volume's logical space over its devices.
//!
//! Owns the map from logical to physical addresses, reading with the choice
//! among copies and their healing, writing to all copies, and the placement of
//! new chunks. Knows nothing of trees: the store gives it chunks.

mod error;
mod map;
pub mod placement;
mod space;

pub use error::{BadCopy, CopyFault, VolumeError};
pub use map::{ChunkMap, Mapping};
pub use space::{DeviceStats, LogicalSpace, OnDamage};
