//! Where a directory's listing is, and where it ends.
//!
//! A renamed entry gets a new, higher index. So a listing that went on to the
//! last index at each moment could meet the same files for ever. Instead it
//! ends at the index that was the last one when it began. Opens are stateless,
//! so that index is a part of each position, and of what telldir(3) gives.
//!
//! Invariant: a position is below 2^63, and never 0 but at the start.

use crate::error::FsError;
use crate::inode_fault::InodeFault;
use butterfs_format::InodeId;

/// Set in positions that know where their listing ends.
const BOUNDED: u64 = 1 << 62;
/// Bits of an index in such a position.
const INDEX_BITS: u32 = 31;
/// Greatest index in such a position.
const INDEX_MAX: u64 = (1 << INDEX_BITS) - 1;

/// A position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Least index that comes next.
    pub index: u64,
    /// Last index of the listing; `None` where it is not known yet, or too
    /// great to be remembered.
    pub last: Option<u64>,
}

impl Position {
    /// A position as callers know it.
    pub const fn decode(position: u64) -> Self {
        if position & BOUNDED == 0 {
            return Self {
                index: position,
                last: None,
            };
        }
        Self {
            index: position & INDEX_MAX,
            last: Some(position >> INDEX_BITS & INDEX_MAX),
        }
    }

    /// The position after `index`, for callers.
    ///
    /// # Errors
    /// Damage: no directory has ever had this many entries.
    pub fn after(self, dir: InodeId, index: u64) -> Result<u64, FsError> {
        let next = index.saturating_add(1);
        if next >= BOUNDED {
            return Err(FsError::Damaged {
                inode: dir,
                at: None,
                fault: Box::new(InodeFault::IndexPosition),
            });
        }
        Ok(match self.last {
            Some(last) if last <= INDEX_MAX && next <= INDEX_MAX => {
                BOUNDED | last << INDEX_BITS | next
            }
            _ => next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::{InodeNumber, TreeId};

    const DIR: InodeId = InodeId {
        tree: TreeId::FS,
        number: InodeNumber::ROOT,
    };

    #[test]
    fn a_position_remembers_the_end_where_it_fits() {
        let at = |index, last| Position { index, last };
        for (index, last) in [(0, 1), (1, 1), (2, 900), (900, 900), (7, INDEX_MAX)] {
            let next = at(index, Some(last)).after(DIR, index).unwrap();
            assert_eq!(Position::decode(next), at(index + 1, Some(last)));
            assert!(i64::try_from(next).is_ok());
        }
        let far = at(2, Some(INDEX_MAX + 1)).after(DIR, 2).unwrap();
        assert_eq!(Position::decode(far), at(3, None));
        let beyond = at(2, Some(INDEX_MAX)).after(DIR, INDEX_MAX).unwrap();
        assert_eq!(Position::decode(beyond), at(INDEX_MAX + 1, None));
        for impossible in [BOUNDED - 1, u64::MAX] {
            assert!(at(2, None).after(DIR, impossible).is_err());
        }
    }
}
