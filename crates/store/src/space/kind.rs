//! What block groups are for.

use butterfs_format::item::chunk::BlockGroupFlags;

/// What a block group may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceKind {
    /// File data.
    Data,
    /// Nodes of all trees but the chunk tree.
    Metadata,
    /// Nodes of the chunk tree.
    System,
}

impl SpaceKind {
    /// The flag that block groups of this kind carry.
    #[must_use]
    pub const fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }
}
