//! Commits that follow when a device falls out of a volume.
//!
//! Whoever opens the volume later finds two kinds of devices that are behind: one
//! that fell out, and one that a crash left behind. Their generations tell them
//! apart: a device that fell out is more than one commit behind (`open/members`).
//! So a commit without a device is followed by others at once. No fsync log is
//! written before these, because a log has the generation of the last commit,
//! which the device that fell out has, too.

use butterfs_volume::LogicalSpace;
use parking_lot::Mutex;

/// Commits without a device that make it further behind than a crash does.
const FURTHER: u8 = 2;

/// What is owed since devices fell out.
#[derive(Debug)]
pub(crate) struct FallingOut(Mutex<Owed>);

#[derive(Debug)]
struct Owed {
    /// Losses of the space that were seen.
    seen: usize,
    commits: u8,
}

impl FallingOut {
    /// Of a space that was just opened. Without all its devices, the first
    /// commit goes ahead far enough; no fsync log comes before it.
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
        // Of the commit itself the device may have anything.
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
