//! Quotas over ioctls, with the kernel's numbers and structures.
//!
//! Owns who may use them: root, and the user who runs the server. Owns reading
//! the arguments that the kernel does not pass on. The number of the request
//! for limits says that it only reads, and the groups of a new subvolume are
//! behind a pointer. So both are read from the caller's memory. That needs the
//! right to trace the caller. Without it the answer is EPERM.
//!
//! The thread that serves the request counts all groups, so the request ends
//! when the count ends.
//!
//! Source: the kernel's interface header linux/btrfs.h.

use super::answered::Answered;
use super::argument::{Bytes, Fields};
use super::callers_memory::read_caller;
use super::ioctl::{
    INHERIT, INHERIT_ADDRESS, INHERIT_HEADER, INHERIT_SIZE, LIMIT_SIZE, QuotaCommand, RESCAN_SIZE,
};
use super::server::Server;
use butterfs::du::Limits;
use butterfs::quota::{GroupId, LimitChange, QgroupLimitFlags, QuotaMode};
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

/// Greatest argument that is read from a caller's memory.
const ARGUMENT_MAX: u64 = 4096;
/// The value that removes a limit.
const NO_LIMIT: u64 = u64::MAX;
const ENABLE: u64 = 1;
const DISABLE: u64 = 2;
const ENABLE_SIMPLE: u64 = 4;

impl Server {
    /// Serves an ioctl on quotas or trees; `None` when it is none.
    pub(super) fn control_quota(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Option<Result<IoctlResult, Errno>> {
        let command = QuotaCommand::of(request.command)?;
        if command == QuotaCommand::SearchTreeInto {
            let privileged = self.check_privileged(context);
            return Some(privileged.and_then(|()| self.search_tree_into(context, request, output)));
        }
        let done = self.run_quota_command(command, context, request, output);
        Some(done.map(|filled| IoctlResult { value: 0, filled }))
    }

    fn run_quota_command(
        &self,
        command: QuotaCommand,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let at = self.id(request.node);
        let data = Bytes(request.data);
        if command == QuotaCommand::DirectoryPath {
            return self.directory_path(context, at, request.data, output);
        }
        self.check_privileged(context)?;
        if command.changes() {
            Self::check_mount(context)?;
        }
        match command {
            QuotaCommand::SearchTree => return self.search_tree(at, request.data, output),
            QuotaCommand::Switch => {
                self.switch_quotas(data.u64(0)?)?;
                let room = output.get_mut(..16).ok_or(Errno::EINVAL)?;
                room.copy_from_slice(request.data.get(..16).ok_or(Errno::EINVAL)?);
                return Ok(16);
            }
            QuotaCommand::Relate => {
                let (child, parent) = (GroupId(data.u64(8)?), GroupId(data.u64(16)?));
                let comes = data.u64(0)? != 0;
                let changed = if comes {
                    self.volume.assign_quota_group(child, parent)
                } else {
                    self.volume.remove_quota_relation(child, parent)
                };
                // The status of quotas says whether the numbers are still
                // right.
                changed.answered()?;
            }
            QuotaCommand::Group => {
                let group = GroupId(data.u64(8)?);
                let comes = data.u64(0)? != 0;
                let changed = if comes {
                    self.volume.create_quota_group(group)
                } else {
                    self.volume.destroy_quota_group(group)
                };
                changed.answered()?;
            }
            QuotaCommand::Limit => {
                let bytes = read_caller(context, request.argument, LIMIT_SIZE)?;
                self.limit_group(&Bytes(&bytes), GroupId::of_tree(at.tree))?;
            }
            QuotaCommand::Rescan => self.rescan()?,
            QuotaCommand::RescanStatus => {
                let room = output.get_mut(..RESCAN_SIZE).ok_or(Errno::EINVAL)?;
                room.fill(0);
                let is_running = self.rescan.is_running();
                let mut fields = Fields { bytes: room, at: 0 };
                fields.u64(u64::from(is_running));
                fields.u64(self.rescan.nodes.load(Ordering::Relaxed));
                return Ok(RESCAN_SIZE);
            }
            QuotaCommand::RescanWait => self.rescan.wait(),
            QuotaCommand::DirectoryPath | QuotaCommand::SearchTreeInto => {}
        }
        Ok(0)
    }

    /// Notes that the numbers were found to be wrong, so that readers of the
    /// quota tree learn it.
    pub(super) fn say_quota_state(&self) {
        if let Err(error) = self.volume.say_quota_state() {
            tracing::info!(%error, "the state of quotas was not written");
        }
    }

    fn switch_quotas(&self, command: u64) -> Result<(), Errno> {
        let mode = match command {
            ENABLE => QuotaMode::Full,
            ENABLE_SIMPLE => QuotaMode::Simple,
            DISABLE => return self.files().disable_quotas().answered(),
            _ => return Err(Errno::EINVAL),
        };
        let one = self.rescan.running.lock();
        let one = one.unwrap_or_else(PoisonError::into_inner);
        let enabled = self
            .files()
            .enable_quotas(mode, &Limits::default(), &mut |progress| {
                self.rescan.nodes.store(progress.nodes, Ordering::Relaxed);
                ControlFlow::Continue(())
            });
        drop(one);
        enabled.answered()
    }

    fn rescan(&self) -> Result<(), Errno> {
        let one = match self.rescan.running.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Errno(libc::EINPROGRESS)),
        };
        let done = self
            .files()
            .rescan_quotas(&Limits::default(), &mut |progress| {
                self.rescan.nodes.store(progress.nodes, Ordering::Relaxed);
                ControlFlow::Continue(())
            });
        drop(one);
        done.answered()
    }

    /// Limits a group, or `own` if none is named.
    fn limit_group(&self, data: &Bytes<'_>, own: GroupId) -> Result<(), Errno> {
        let group = match data.u64(0)? {
            0 => own,
            id => GroupId(id),
        };
        let flags = QgroupLimitFlags(data.u64(8)?);
        let limit = |flag, at| -> Result<Option<Option<u64>>, Errno> {
            let bytes = data.u64(at)?;
            let limit = (bytes != NO_LIMIT).then_some(bytes);
            Ok(flags.contains(flag).then_some(limit))
        };
        let change = LimitChange {
            referenced: limit(QgroupLimitFlags::MAX_REFERENCED, 16)?,
            exclusive: limit(QgroupLimitFlags::MAX_EXCLUSIVE, 24)?,
        };
        self.volume.limit_quota_group(group, change).answered()
    }

    /// Groups that a request puts a new subvolume into.
    pub(super) fn inherited_groups(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
    ) -> Result<BTreeSet<GroupId>, Errno> {
        if data.u64(16)? & INHERIT == 0 {
            return Ok(BTreeSet::new());
        }
        // Reading a caller's memory takes as long as the caller likes.
        self.check_privileged(context)?;
        let size = data.u64(INHERIT_SIZE)?;
        let length = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
        if length < INHERIT_HEADER || size > ARGUMENT_MAX {
            return Err(Errno::EINVAL);
        }
        let bytes = read_caller(context, data.u64(INHERIT_ADDRESS)?, length)?;
        let inherit = Bytes(&bytes);
        // Limits and copies of numbers are refused, as by newer kernels.
        let others = [0, 16, 24].map(|at| inherit.u64(at));
        if others.into_iter().any(|word| word != Ok(0)) {
            return Err(Errno::EINVAL);
        }
        let count = usize::try_from(inherit.u64(8)?).map_err(|_| Errno::EINVAL)?;
        let end = count
            .checked_mul(8)
            .and_then(|n| n.checked_add(INHERIT_HEADER));
        if end != Some(length) {
            return Err(Errno::EINVAL);
        }
        let group = |index: usize| inherit.u64(INHERIT_HEADER + index * 8).map(GroupId);
        (0..count).map(group).collect()
    }
}
