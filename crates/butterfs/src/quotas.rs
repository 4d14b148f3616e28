//! Quota groups of a volume: their state, and changes to them.

use crate::Volume;
use crate::quota::{Assigned, GroupId, LimitChange, QgroupStatus, QuotaGroup};
use butterfs_fs::FsError;
use std::collections::BTreeMap;

/// The quota groups of a volume on which quotas are on.
#[derive(Clone, Debug)]
pub struct QuotaState {
    /// As it is in the quota tree.
    pub status: QgroupStatus,
    /// They are simple quotas.
    pub is_simple: bool,
    /// The numbers are known to be wrong.
    pub is_inconsistent: bool,
    /// Why, where that is known.
    pub reason: Option<String>,
    /// All groups.
    pub groups: BTreeMap<GroupId, QuotaGroup>,
}

impl Volume {
    /// The quota groups; `None` if quotas are off.
    #[must_use]
    pub fn quota_state(&self) -> Option<QuotaState> {
        let engine = self.store().read();
        let quotas = engine.quotas()?;
        Some(QuotaState {
            status: *quotas.status(),
            is_simple: quotas.is_simple(),
            is_inconsistent: quotas.is_inconsistent(),
            reason: quotas.reason().map(str::to_owned),
            groups: quotas
                .groups()
                .map(|(id, group)| (id, group.clone()))
                .collect(),
        })
    }

    /// If the numbers were found to be wrong, notes that on the volume, so that
    /// readers of the quota tree learn it.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn say_quota_state(&self) -> Result<(), FsError> {
        let is_known = |quotas: &butterfs_store::Quotas| quotas.reason().is_some();
        if !self.store().read().quotas().is_some_and(is_known) {
            return Ok(());
        }
        self.files().change_quotas(|_| Ok(()))
    }

    /// Makes a group.
    ///
    /// # Errors
    /// Quotas are off; the group exists, or is of level 0; errors of a commit.
    pub fn create_quota_group(&self, group: GroupId) -> Result<(), FsError> {
        self.files()
            .change_quotas(|engine| Ok(engine.quota_state_mut().create_group(group)?))
    }

    /// Removes a group.
    ///
    /// # Errors
    /// Quotas are off; the group does not exist, has members, or belongs to a
    /// subvolume; errors of a commit.
    pub fn destroy_quota_group(&self, group: GroupId) -> Result<(), FsError> {
        self.files()
            .change_quotas(|engine| Ok(engine.destroy_quota_group(group)?))
    }

    /// Puts a group into another one. Says what became of the numbers.
    ///
    /// # Errors
    /// Quotas are off; the levels do not ascend; they are related already; one
    /// does not exist; errors of a commit.
    pub fn assign_quota_group(&self, child: GroupId, parent: GroupId) -> Result<Assigned, FsError> {
        self.files()
            .change_quotas(|engine| Ok(engine.assign_quota_group(child, parent)?))
    }

    /// Takes a group out of another one. Says what became of the numbers.
    ///
    /// # Errors
    /// Quotas are off; they are not related; errors of a commit.
    pub fn remove_quota_relation(
        &self,
        child: GroupId,
        parent: GroupId,
    ) -> Result<Assigned, FsError> {
        self.files()
            .change_quotas(|engine| Ok(engine.remove_quota_relation(child, parent)?))
    }

    /// Limits a group.
    ///
    /// # Errors
    /// Quotas are off; the group does not exist; errors of a commit.
    pub fn limit_quota_group(&self, group: GroupId, change: LimitChange) -> Result<(), FsError> {
        self.files()
            .change_quotas(|engine| Ok(engine.quota_state_mut().limit_group(group, change)?))
    }
}
