//! What is wrong with an item.

use butterfs_format::{ParseError, TreeId};
use thiserror::Error;

/// Why the content of an item cannot be right, alone or together with other
/// items.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ItemFault {
    /// It does not parse.
    #[error("is damaged: {0}")]
    Parse(Box<ParseError>),
    /// Its size is none that it can have.
    #[error("has a wrong size")]
    Size,
    /// It is not there.
    #[error("is missing")]
    Missing,
    /// An extent item is not there.
    #[error("is missing although something refers to the extent")]
    MissingExtent,
    /// A free range is outside of its block group or over another one.
    #[error("is not within its block group or overlaps another")]
    FreeOutsideGroup,
    /// A bitmap has too few bits.
    #[error("is cut short")]
    CutShort,
    /// An item of another kind lies among those of the tree.
    #[error("does not belong here")]
    Misplaced,
    /// The count of free extents is too small.
    #[error("counts too few extents")]
    TooFewFreeExtents,
    /// The space that was allocated is not free in the tree.
    #[error("was allocated but is not free")]
    AllocatedNotFree,
    /// What was freed is free already.
    #[error("was freed but is free already")]
    FreedTwice,
    /// A bitmap is not there.
    #[error("is missing for a block group that uses bitmaps")]
    MissingBitmap,
    /// The free-space tree and the extent tree disagree.
    #[error("does not agree with the extents")]
    FreeDisagrees,
    /// Free space that a tree or a file uses.
    #[error("calls space free that is used; run butterfs check")]
    FreeButUsed,
    /// An extent in a block group that counts no used bytes.
    #[error("lies in a block group that is about to be removed as empty; run butterfs check")]
    InEmptyGroup,
    /// A node that others share, in a tree that was snapshotted too long ago for
    /// that by its root item.
    #[error("is shared, but its subvolume's item says that no snapshot can share it")]
    SharedAfterSnapshot,
    /// An extent that does not consist of sectors.
    #[error("is no whole sectors")]
    PartOfSector,
    /// An extent that begins within the one before it.
    #[error("overlaps the extent before it")]
    OverlapsExtent,
    /// An extent whose item says something impossible of what it holds.
    #[error("is neither of data nor of a node, or of a node with an impossible level or size")]
    ExtentKind,
    /// An extent outside of all block groups.
    #[error("lies in no block group")]
    InNoGroup,
    /// An extent whose end is no address.
    #[error("ends beyond all addresses")]
    BeyondAddresses,
    /// A block group item against the extents of the group.
    #[error(
        "says that {says} bytes are used, and its extents have {found}; run `butterfs check` \
         before clear_cache"
    )]
    UsedDisagrees {
        /// Bytes by the item.
        says: u64,
        /// Bytes of its extents.
        found: u64,
    },
    /// The extent tree says that a node belongs to another tree.
    #[error(
        "gives a node of tree {owner} to the free-space tree; run `butterfs check` before \
         clear_cache"
    )]
    ForeignNode {
        /// Whose it is.
        owner: TreeId,
    },
    /// Colliding references fill all offsets.
    #[error("has no offset behind it")]
    NoOffsetBehind,
    /// An extent counts fewer references than there are.
    #[error("has fewer references than were found")]
    FewerRefsThanFound,
    /// An extent of the running generation has no reference to drop.
    #[error("is new and lacks a reference that is to be dropped")]
    NewLacksRef,
    /// An extent has no reference to drop.
    #[error("lacks a reference that is to be dropped")]
    LacksRef,
    /// An extent counts fewer references than it lists.
    #[error("has more references than it counts")]
    MoreRefsThanCounted,
    /// An extent would go while somebody still refers to it.
    #[error("has references left although its count is zero")]
    RefsLeft,
    /// A reference has a count that no reference can have.
    #[error("has a reference with an impossible count")]
    RefCount,
    /// The sum of references is too small.
    #[error("counts too few references")]
    TooFewRefs,
    /// A data extent has a reference that only nodes have.
    #[error("has a reference that is for nodes")]
    RefForNodes,
    /// References of a data extent, with no file extent behind them.
    #[error("has references that lead to no file extent")]
    RefsLeadNowhere,
    /// A node has a reference from a tree that does not contain it.
    #[error("has a reference of a tree that lacks the node")]
    RefOfTreeWithoutNode,
    /// A node has a reference that only data extents have.
    #[error("has a reference that is for data")]
    RefForData,
    /// A reference leads to another node.
    #[error("has a reference that does not lead to the node")]
    RefLeadsElsewhere,
    /// A branch points to a node, and no reference of the node says so.
    #[error("is of a node that a branch points to without a reference, or not as the node is")]
    PointerWithoutRef,
    /// A node to which nobody refers.
    #[error("has no reference")]
    NoRefs,
    /// A reference by tree where one by parent must be, or the other way round.
    #[error("has a reference of the wrong form")]
    RefForm,
    /// A node that no root leads to.
    #[error("is reached by nobody")]
    Unreached,
    /// A block group counts more than its extents have.
    #[error("calls space used that no extent has")]
    UsedByNobody,
    /// An extent ends behind its chunk.
    #[error("reaches beyond its chunk")]
    BeyondChunk,
    /// The position of a deletion under way is not a valid one.
    #[error("has an impossible place for its deletion to go on")]
    DropPosition,
    /// A fsync log lies over what is committed.
    #[error("of the fsync log overlaps what the last commit has")]
    LogOverlaps,
    /// Items of a fsync log are not sorted.
    #[error("and others of the fsync log are not in order")]
    LogOrder,
    /// A fsync log reaches a node twice.
    #[error("of the fsync log is in a node that the log has twice")]
    LogNodeTwice,
    /// A fsync log of a tree that is no subvolume.
    #[error("of the fsync log is of a tree that has none")]
    LogOfNoSubvolume,
    /// Checksums in a fsync log that are not those of sectors.
    #[error("of the fsync log has checksums of no whole sectors")]
    LogChecksums,
}
