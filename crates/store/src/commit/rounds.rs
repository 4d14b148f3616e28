//! What a commit knows of its rounds while it runs, and what is counted of
//! them.

use crate::space::gap::AllocationPlace;
use butterfs_tree::Packing;

/// How many rounds commits took, since the volume was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitRounds {
    /// Rounds of the last commit.
    pub last: usize,
    /// Rounds of the commit that took the most.
    pub most: usize,
}

impl CommitRounds {
    pub(crate) fn note(&mut self, rounds: usize) {
        self.last = rounds;
        self.most = self.most.max(rounds);
    }
}

/// State of a commit's rounds.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) counts: CommitRounds,
    /// How nodes are filled now.
    pub(crate) packing: Packing,
    /// Where nodes were allocated before the commit took to a gap.
    pub(crate) place_before: Option<AllocationPlace>,
}
