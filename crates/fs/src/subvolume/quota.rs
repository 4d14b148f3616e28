//! Quotas of an open volume: switching them on and off, scanning, changing
//! groups.
//!
//! Owns the scan: the sweep that finds who uses what gives the numbers of all
//! groups. The store owns the groups themselves.

use super::du::{Limits, Progress, SpaceSharing};
use super::list::Subvolumes;
use crate::Filesystem;
use crate::error::FsError;
use butterfs_format::TreeId;
use butterfs_format::item::qgroup::GroupId;
use butterfs_store::{Engine, Fits, GroupNumbers, QuotaError, QuotaMode, Quotas};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How many counts may fail because of other changes before the scan is given
/// up.
const SCANS_MAX: usize = 8;
/// Nodes that a change of groups changes at most.
const NODES: usize = 32;

/// Numbers of all groups, as the trees of the last commit have them.
///
/// # Errors
/// Quotas are off; damage, reading; `progress` stopped it.
pub fn scan(
    engine: &Engine,
    limits: &Limits,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<BTreeMap<GroupId, GroupNumbers>, FsError> {
    let quotas = engine.quotas().ok_or(QuotaError::Off)?;
    let sharing = SpaceSharing::compute(engine, limits, progress)?;
    let numbers = quotas.groups().map(|(id, _)| {
        let (referenced, exclusive) = sharing.held_by(&quotas.subvolumes_in(id));
        let numbers = GroupNumbers {
            referenced: referenced.sum(),
            exclusive: exclusive.sum(),
        };
        (id, numbers)
    });
    Ok(numbers.collect())
}

impl Filesystem {
    /// Switches quotas on and, in full mode, scans the volume.
    ///
    /// # Errors
    /// As [`Filesystem::rescan_quotas`]; quotas of the other mode are on; no
    /// space.
    pub fn enable_quotas(
        &self,
        mode: QuotaMode,
        limits: &Limits,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        self.change_quotas(|engine| {
            let subvolumes = Subvolumes::load(engine)?;
            let trees = subvolumes.iter().map(|info| info.id).collect();
            Ok(engine.enable_quotas(&trees, mode)?)
        })?;
        match mode {
            QuotaMode::Full => self.rescan_quotas(limits, progress),
            QuotaMode::Simple => Ok(()),
        }
    }

    /// Switches quotas off: groups and limits are gone.
    ///
    /// # Errors
    /// Not writable; reading, writing.
    pub fn disable_quotas(&self) -> Result<(), FsError> {
        self.change_quotas(|engine| Ok(engine.disable_quotas()?))
    }

    /// Changes quota groups, and commits.
    ///
    /// # Errors
    /// Errors of `change`; not writable; writing.
    pub fn change_quotas<R>(
        &self,
        change: impl FnOnce(&mut Engine) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        let changed = self.store.commit_with(NODES, change);
        self.write_rules.note_change();
        changed
    }

    /// Counts all groups anew, as of one commit, while others change the
    /// volume. Subvolumes that are being deleted are freed first.
    ///
    /// # Errors
    /// Quotas are off or simple; damage, reading, writing; `progress` stopped
    /// it; [`FsError::Busy`] if other changes left no time for it.
    pub fn rescan_quotas(
        &self,
        limits: &Limits,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        if self.has_simple_quotas() {
            return Err(QuotaError::NeverScanned.into());
        }
        for _ in 0..SCANS_MAX {
            self.clean_all()?;
            self.write_out()?;
            let Some(started) = self.store.start_quota_scan()? else {
                continue;
            };
            let numbers = match scan(&started.view, limits, progress) {
                Ok(numbers) => numbers,
                Err(error) if started.view.is_whole() => {
                    self.store.give_up_quota_scan("a count failed");
                    return Err(error);
                }
                // What it read was overwritten.
                Err(_) => {
                    self.store.give_up_quota_scan("a count came too late");
                    continue;
                }
            };
            if self.store.finish_quota_scan(&started, &numbers)? {
                return Ok(());
            }
        }
        Err(FsError::Busy(
            "the volume changed too much during every count",
        ))
    }

    /// True if extents are charged to the subvolume that allocated them.
    pub(crate) fn has_simple_quotas(&self) -> bool {
        let engine = self.store.read();
        engine.quotas().is_some_and(Quotas::is_simple)
    }

    /// Errors unless `bytes` more in `tree` fit into the limits of its groups.
    /// No inode may be locked.
    pub(crate) fn ensure_quota(&self, tree: TreeId, bytes: u64) -> Result<(), FsError> {
        for attempt in 0..2 {
            let fits = {
                let engine = self.store.read();
                engine
                    .quota_state()
                    .fits(tree, bytes, |tree| self.buffers.waiting_of(tree))
            };
            if fits == Fits::Yes {
                return Ok(());
            }
            if attempt == 0 {
                // The commit shows what compression and overwriting save.
                self.write_out()?;
            }
        }
        Err(FsError::QuotaExceeded)
    }

    /// As [`Filesystem::ensure_quota`], for callers that have an inode locked.
    /// Waiting data are counted with their full size.
    pub(crate) fn ensure_quota_locked(&self, tree: TreeId, bytes: u64) -> Result<(), FsError> {
        for attempt in 0..2 {
            let fits = {
                let engine = self.store.read();
                engine
                    .quota_state()
                    .fits(tree, bytes, |tree| self.buffers.waiting_of(tree))
            };
            if fits == Fits::Yes {
                return Ok(());
            }
            if attempt == 0 {
                self.store.commit()?;
            }
        }
        Err(FsError::QuotaExceeded)
    }

    /// As [`Filesystem::ensure_quota`], for a change that may add a node.
    pub(crate) fn ensure_quota_of_names(&self, tree: TreeId) -> Result<(), FsError> {
        let node = self.store.read().node_size();
        self.ensure_quota(tree, u64::try_from(node).unwrap_or(u64::MAX))
    }
}
