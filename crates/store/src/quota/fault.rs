//! Why quotas cannot be changed.

use butterfs_format::item::qgroup::GroupId;
use thiserror::Error;

/// Why quota groups did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QuotaError {
    /// Quotas are off.
    #[error("quotas are not enabled on this volume")]
    Off,
    /// The group is there already.
    #[error("group {0} exists already")]
    Exists(GroupId),
    /// There is no such group.
    #[error("there is no group {0}")]
    NoGroup(GroupId),
    /// Groups of level 0 come and go with their subvolumes.
    #[error("group {0} belongs to a subvolume and comes and goes with it")]
    OfSubvolume(GroupId),
    /// Others are in it.
    #[error("group {0} has members; remove them from it first")]
    HasMembers(GroupId),
    /// A member has a lower level than its group.
    #[error("{child} cannot be in {parent}: its level must be lower")]
    WrongLevels {
        /// The member.
        child: GroupId,
        /// The group.
        parent: GroupId,
    },
    /// The group's subvolume is gone, but other subvolumes reach what it
    /// allocated.
    #[error("others still reach what group {0} allocated")]
    InUse(GroupId),
    /// Quotas of the other mode are on.
    #[error("quotas are on in the other mode; switch them off first")]
    OtherMode,
    /// All groups are being counted.
    #[error("a count is under way")]
    Counting,
    /// Simple quotas are never scanned.
    #[error("simple quotas are always right: there is nothing to scan")]
    NeverScanned,
    /// It is in the group already.
    #[error("{child} is in {parent} already")]
    Related {
        /// The member.
        child: GroupId,
        /// The group.
        parent: GroupId,
    },
    /// It is not in the group.
    #[error("{child} is not in {parent}")]
    NotRelated {
        /// The member.
        child: GroupId,
        /// The group.
        parent: GroupId,
    },
}
