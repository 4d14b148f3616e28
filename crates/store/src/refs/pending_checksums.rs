//! Checksums of data that wait for the checksum tree.

use std::collections::BTreeMap;

/// Checksums of data written in the running generation, by logical address.
#[derive(Debug, Default)]
pub(super) struct PendingChecksums {
    /// Address of the first sector -> checksums of the sectors from there.
    pub(super) runs: BTreeMap<u64, Vec<u8>>,
    pub(super) bytes: usize,
    /// Checksums that the checksum tree has already, and that the last commit
    /// does not have.
    pub(super) applied: BTreeMap<u64, Vec<u8>>,
    pub(super) applied_bytes: usize,
}

impl PendingChecksums {
    /// Bytes of checksums that wait for the checksum tree.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of checksums held.
    pub(super) const fn held_bytes(&self) -> usize {
        self.bytes + self.applied_bytes
    }

    /// Forgets what was applied: the generation ended, and its commit has that.
    pub(super) fn forget_applied(&mut self) {
        self.applied.clear();
        self.applied_bytes = 0;
    }

    pub(super) fn insert(&mut self, logical: u64, sums: Vec<u8>) {
        self.bytes += sums.len();
        if let Some(old) = self.runs.insert(logical, sums) {
            self.bytes -= old.len();
        }
    }

    pub(super) fn remove(&mut self, logical: u64) {
        if let Some(old) = self.runs.remove(&logical) {
            self.bytes -= old.len();
        }
        if let Some(old) = self.applied.remove(&logical) {
            self.applied_bytes -= old.len();
        }
    }

    pub(super) fn take(&mut self) -> BTreeMap<u64, Vec<u8>> {
        self.bytes = 0;
        std::mem::take(&mut self.runs)
    }
}
