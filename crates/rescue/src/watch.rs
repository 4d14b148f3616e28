//! Who is told how far a recovery is, and may stop it.

/// What a recovery is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The devices are read for nodes; counted in bytes.
    Scan,
    /// Trees are read; counted in nodes, without a total.
    Trees,
    /// Files are brought out; counted in bytes.
    Files,
}

/// Takes the progress of a recovery. Called from several threads.
pub trait Watch: Sync {
    /// `done` of `total` is done; `total` is 0 if it is not known.
    fn progress(&self, step: Step, done: u64, total: u64);

    /// True if the recovery is to stop. It then stops soon.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Nobody is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Watch for Silent {
    fn progress(&self, _: Step, _: u64, _: u64) {}
}
