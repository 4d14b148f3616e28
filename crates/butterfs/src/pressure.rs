//! What a volume does when memory is short.
//!
//! Owns the decision. The kernel measures how long tasks wait for memory
//! ([`butterfs_device::memory_pressure`]): of the process's control group, where that
//! has a record of its own, or of the machine.

use butterfs_fs::Filesystem;
use std::time::{Duration, Instant};

/// Per cent of the time lost for lack of memory above which memory is given up.
const HIGH: f32 = 10.0;
/// Below this, what was given up may come back.
const LOW: f32 = 1.0;
/// Time between two looks: an average over ten seconds changes no faster.
const LOOK: Duration = Duration::from_secs(2);

/// Whether memory was short at the last look.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    looked: Option<Instant>,
    /// Memory was given up, and not all of it came back.
    is_shrunk: bool,
}

/// What to do about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Shrink,
    Grow,
    Nothing,
}

impl Pressure {
    /// Looks, if the last look is some time ago, and gives up memory or takes it
    /// again.
    pub(crate) fn follow(&mut self, files: &Filesystem) {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        match self.step(butterfs_device::memory_pressure()) {
            Step::Shrink => {
                if !self.is_shrunk {
                    tracing::info!("memory is short: caches are made smaller");
                }
                self.is_shrunk = true;
                files.shrink_memory();
                butterfs_device::return_free_memory();
            }
            Step::Grow => self.is_shrunk = !files.grow_memory(),
            Step::Nothing => {}
        }
    }

    fn step(&self, lost: Option<f32>) -> Step {
        match lost {
            Some(lost) if lost > HIGH => Step::Shrink,
            Some(lost) if lost < LOW && self.is_shrunk => Step::Grow,
            _ => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_up_and_taken_again() {
        let mut pressure = Pressure::default();
        assert_eq!(pressure.step(None), Step::Nothing);
        assert_eq!(pressure.step(Some(0.0)), Step::Nothing);
        assert_eq!(pressure.step(Some(40.0)), Step::Shrink);
        pressure.is_shrunk = true;
        assert_eq!(pressure.step(Some(5.0)), Step::Nothing);
        assert_eq!(pressure.step(Some(0.5)), Step::Grow);
    }
}
