//! Commits that follow when a device falls out of a volume.
//!
//! Whoever opens the volume later may find two kinds of devices that are
//! behind: some fell out, and some were left behind by a crash. Their
//! generations tell them apart, because a device that fell out is more than one
//! commit behind (`open/members`). So a commit without a device is followed by
//! further commits at once. No fsync log is written before these. A log carries
//! the generation of the last commit, and the device that fell out has that
//! generation too.

use butterfs_volume::LogicalSpace;
use parking_lot::Mutex;

/// Commits without a device that put it further behind than a crash can.
const FURTHER: u8 = 2;

/// Commits that are still to be made since devices fell out.
#[derive(Debug)]
pub(crate) struct DeviceLoss(Mutex<Owed>);

#[derive(Debug)]
struct Owed {
    /// Losses of the space that were seen.
    seen: usize,
    commits: u8,
}

impl DeviceLoss {
    /// For a space that was just opened. If devices are missing, the first
    /// commit goes far enough ahead, and no fsync log comes before it.
    pub(crate) fn new(space: &LogicalSpace) -> Self {
        let commits = if space.is_whole() { 0 } else { 1 };
        Self(Mutex::new(Owed {
            seen: space.losses(),
            commits,
        }))
    }

    /// Whether a device fell out that is not far enough behind.
    pub(crate) fn is_recent(&self, space: &LogicalSpace) -> bool {
        let mut owed = self.0.lock();
        owed.look(space);
        owed.commits > 0
    }

    /// Notes a commit; true when another one must follow.
    pub(crate) fn owes_another(&self, space: &LogicalSpace) -> bool {
        let mut owed = self.0.lock();
        // A device that fell out during this commit may have any part of it.
        if !owed.look(space) {
            owed.commits = owed.commits.saturating_sub(1);
        }
        owed.commits > 0
    }
}

impl Owed {
    /// Whether something fell out since the last look.
    fn look(&mut self, space: &LogicalSpace) -> bool {
        let now = space.losses();
        let is_new = now != self.seen;
        if is_new {
            self.seen = now;
            self.commits = FURTHER;
        }
        is_new
    }
}
