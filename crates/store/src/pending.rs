//! Changes that are netted in memory and enter their trees at a commit.

use crate::extent::pending::PendingRefs;
use crate::lost_refs::LostRefs;
use crate::pending_checksums::PendingChecksums;

/// Changes of references and checksums that wait for their trees.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// References to extents that are not in the extent tree yet.
    pub(crate) refs: PendingRefs,
    /// Checksums of data that are not in their tree yet.
    pub(crate) checksums: PendingChecksums,
    /// File extents that lost their references to data in the running
    /// generation. A crash may give them back.
    pub(crate) lost: LostRefs,
    /// The same, of the generation that is being published.
    pub(crate) lost_writing: LostRefs,
}
