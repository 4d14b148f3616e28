//! A ground for tests of what touches no file system.

use super::Ground;
use std::path::Path;

/// No place at all.
pub(super) struct Nowhere;

impl Ground for Nowhere {
    fn directory(&self) -> &Path {
        Path::new("/nonexistent")
    }
    fn scratch(&self) -> &Path {
        Path::new("/nonexistent")
    }
    fn seed(&self) -> u64 {
        3
    }
    fn next_phase(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn is_cancelled(&self) -> bool {
        false
    }
}
