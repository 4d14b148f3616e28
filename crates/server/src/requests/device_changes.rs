//! Adding, removing and replacing devices of the volume over ioctls.
//!
//! The thread that serves a request carries it out. Owns what a device is called
//! by a caller: its path is looked up as the caller would, and the server must
//! see the same file by it.
//!
//! Source of the numbers, layouts and answers: the kernel's interface header
//! linux/btrfs.h.

use super::argument::Bytes;
use super::caller::Watched;
use super::operations::{ANOTHER_RUNS, errno_of, put};
use super::server::Server;
use super::volume_facts::answer;
use butterfs::devices::{self, Discard, Removal, ReplaceReads, Replaced};
use butterfs::{
    Access, BlockDevice, DeviceChange, DeviceChangeProgress, DeviceError, FileDevice,
    MembershipFault, Profile, StoreError,
};
use butterfs_format::DeviceId;
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::{Context, Errno};
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, stat};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the path lies in `btrfs_ioctl_vol_args`.
const PATH: usize = 8;
/// Flags and path or number in `btrfs_ioctl_vol_args_v2`.
const FLAGS: usize = 16;
const LONG_PATH: usize = 56;
/// Flag: a number says which device, not a path.
const BY_NUMBER: u64 = 1 << 3;
/// Bytes of `btrfs_ioctl_dev_replace_args`, and what lies where in it.
const REPLACE_SIZE: usize = 2600;
const RESULT: usize = 8;
const SOURCE_NUMBER: usize = 16;
const OTHERS_FIRST: usize = 24;
const SOURCE_PATH: usize = 32;
const TARGET_PATH: usize = SOURCE_PATH + 1025;
const STATUS: usize = 16;
/// What is asked of a replacement.
const START: u64 = 0;
const STATUS_OF: u64 = 1;
const CANCEL: u64 = 2;
/// Results of these requests.
const NOT_STARTED: u64 = 1;
const ALREADY_STARTED: u64 = 2;
const SCRUB_RUNS: u64 = 3;
/// The state of a replacement that runs.
const STARTED: u64 = 1;

/// What is equal for all paths of one file or block device.
fn identity(facts: &Stat) -> (u64, u64) {
    match FileType::from_raw_mode(facts.st_mode) {
        FileType::BlockDevice => (0, facts.st_rdev),
        _ => (facts.st_dev.saturating_add(1), facts.st_ino),
    }
}

/// The path by which the server sees what a caller names. Callers may have
/// another root directory or other mounts. Then their devices are not found
/// here.
fn path_here(context: &Context<'_>, path: &[u8]) -> Result<PathBuf, Errno> {
    match path.first() {
        Some(b'/') => {}
        Some(_) => return Err(Errno::ENOENT),
        None => return Err(Errno::EINVAL),
    }
    let of_caller = [format!("/proc/{}/root", context.pid).as_bytes(), path].concat();
    let looked = OFlags::PATH | OFlags::CLOEXEC;
    let file = open(OsStr::from_bytes(&of_caller), looked, Mode::empty())
        .map_err(|error| Errno(error.raw_os_error()))?;
    let name = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let here = std::fs::read_link(name).map_err(|_| Errno::EPERM)?;
    let (theirs, ours) = (fstat(&file), stat(&here));
    match (theirs, ours) {
        (Ok(theirs), Ok(ours)) if identity(&theirs) == identity(&ours) => Ok(here),
        _ => Err(Errno::EPERM),
    }
}

fn verify_block_device(path: &Path) -> Result<(), Errno> {
    let facts = stat(path).map_err(|error| Errno(error.raw_os_error()))?;
    match FileType::from_raw_mode(facts.st_mode) {
        FileType::BlockDevice => Ok(()),
        _ => Err(Errno(libc::ENOTBLK)),
    }
}

/// The number above zero that says why a device stays.
fn code(fault: &MembershipFault) -> Result<i32, Errno> {
    Ok(match fault {
        MembershipFault::TooFewDevices { profile, .. } => match profile {
            Profile::Raid1 => 1,
            Profile::Raid10 => 2,
            Profile::Raid5 => 3,
            Profile::Raid6 => 4,
            Profile::Raid1c3 => 9,
            Profile::Raid1c4 => 10,
            _ => 7,
        },
        MembershipFault::NoneMissing => 6,
        MembershipFault::OnlyWritable => 7,
        MembershipFault::NoRoom { .. } => return Err(Errno(libc::ENOSPC)),
        MembershipFault::NoSuchDevice(_) => return Err(Errno(libc::ENODEV)),
        MembershipFault::InUse(_) => return Err(Errno::EBUSY),
        MembershipFault::Unreadable { .. } => return Err(Errno::EIO),
        _ => return Err(Errno::EINVAL),
    })
}

/// The answer to the error of a change.
fn refused(error: &StoreError) -> Result<IoctlResult, Errno> {
    match error {
        StoreError::Exclusive(_) => Ok(ANOTHER_RUNS),
        StoreError::Membership(fault) => code(fault).map(|value| IoctlResult { value, filled: 0 }),
        other => Err(errno_of(other)),
    }
}

fn flow(is_unwanted: bool) -> ControlFlow<()> {
    match is_unwanted {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

impl Server {
    /// The number of the device of the volume at a path of the server's.
    fn device_at(&self, path: &Path) -> Option<DeviceId> {
        let wanted = stat(path).ok().map(|facts| identity(&facts))?;
        let all = self.volume.devices();
        let mut named = all
            .iter()
            .filter_map(|own| Some((own.item.id, own.name.as_ref()?)));
        let found = named.find(|(_, name)| {
            let facts = stat(name.as_str());
            facts.is_ok_and(|facts| identity(&facts) == wanted)
        });
        found.map(|(id, _)| id)
    }

    /// Opens a block device that is to become a part of the volume. As in the
    /// kernel, a file is not taken, because what it holds would be lost.
    /// (`butterfs device add` takes files.)
    fn open_new(&self, context: &Context<'_>, path: &[u8]) -> Result<Arc<dyn BlockDevice>, Errno> {
        let path = path_here(context, path)?;
        verify_block_device(&path)?;
        if self.device_at(&path).is_some() {
            return Err(Errno::EEXIST);
        }
        match FileDevice::open(&path, Access::ReadWrite) {
            Ok(device) => Ok(Arc::new(device)),
            Err(error) => {
                tracing::info!(%error, "a device was not taken");
                Err(match error {
                    DeviceError::Busy { .. } => Errno::EBUSY,
                    DeviceError::WriteProtected { .. } => Errno(libc::EACCES),
                    DeviceError::Io { source, .. } => {
                        Errno(source.raw_os_error().unwrap_or(libc::EIO))
                    }
                    _ => Errno(libc::ENOTBLK),
                })
            }
        }
    }

    pub(super) fn add_device(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
    ) -> Result<IoctlResult, Errno> {
        Self::check_mount(context)?;
        let device = self.open_new(context, data.name(PATH)?)?;
        // Who asks has emptied it, if that was wanted.
        match devices::add(self.files().store(), device, Discard::Nothing) {
            Ok(_) => Ok(IoctlResult::default()),
            Err(error) => refused(&error),
        }
    }

    pub(super) fn remove_device(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
    ) -> Result<IoctlResult, Errno> {
        self.remove(context, data.name(PATH)?, None)
    }

    pub(super) fn remove_device_v2(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
    ) -> Result<IoctlResult, Errno> {
        match data.u64(FLAGS)? {
            0 => self.remove(context, data.name(LONG_PATH)?, None),
            BY_NUMBER => self.remove(context, b"", Some(DeviceId(data.u64(LONG_PATH)?))),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    fn remove(
        &self,
        context: &Context<'_>,
        path: &[u8],
        number: Option<DeviceId>,
    ) -> Result<IoctlResult, Errno> {
        Self::check_mount(context)?;
        if number.is_none() && path == b"cancel" {
            return match self.volume.cancel_device_change(DeviceChange::Removal) {
                true => Ok(IoctlResult::default()),
                false => Err(Errno(libc::ENOTCONN)),
            };
        }
        let store = self.files().store();
        let device = match (number, path) {
            (Some(number), _) => {
                let all = self.volume.devices();
                let mut found = all.iter().filter(|device| device.item.id == number);
                found.next().map(|_| number).ok_or(Errno::ENOENT)?
            }
            (None, b"missing") => match devices::first_missing(store) {
                Ok(device) => device,
                Err(error) => return refused(&error),
            },
            (None, path) => {
                let path = path_here(context, path)?;
                match self.device_at(&path) {
                    Some(device) => device,
                    None => return verify_block_device(&path).and(Err(Errno::ENOENT)),
                }
            }
        };
        let Some(running) = self.volume.begin_device_change(DeviceChange::Removal) else {
            return Ok(ANOTHER_RUNS);
        };
        self.clean()?;
        let mut caller = Watched::new(context.pid);
        let mut most = 0;
        let removed = devices::remove(store, device, &mut |progress| {
            most = most.max(progress.left_in_all);
            let noted = DeviceChangeProgress {
                done: most.saturating_sub(progress.left_in_all),
                all: most,
                errors: 0,
            };
            flow(running.note(noted) || caller.is_gone())
        });
        match removed {
            Ok(Removal::Removed(_)) => Ok(IoctlResult::default()),
            Ok(Removal::Stopped) => Err(Errno(libc::ECANCELED)),
            Err(error) => refused(&error),
        }
    }

    pub(super) fn replace_device(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        let asked = data.0.get(..REPLACE_SIZE).ok_or(Errno::EINVAL)?;
        let bytes = answer(output, REPLACE_SIZE)?.bytes;
        bytes.copy_from_slice(asked);
        let value = match data.u64(0)? {
            START => {
                Self::check_mount(context)?;
                let (result, value) = self.start_replacement(context, data)?;
                put(bytes, RESULT, &[result]);
                value
            }
            STATUS_OF => {
                put(bytes, RESULT, &[0]);
                put(bytes, STATUS, &self.replacement_status()?);
                0
            }
            CANCEL => {
                Self::check_mount(context)?;
                let change = DeviceChange::Replacement;
                let found = self.volume.cancel_device_change(change);
                put(bytes, RESULT, &[if found { 0 } else { NOT_STARTED }]);
                0
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(IoctlResult {
            value,
            filled: REPLACE_SIZE,
        })
    }

    /// Replaces a device. Gives the request's result and the call's.
    fn start_replacement(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
    ) -> Result<(u64, i32), Errno> {
        let source = match data.u64(SOURCE_NUMBER)? {
            0 => {
                let path = path_here(context, data.name(SOURCE_PATH)?)?;
                self.device_at(&path).ok_or(Errno::ENOENT)?
            }
            number => DeviceId(number),
        };
        let target = self.open_new(context, data.name(TARGET_PATH)?)?;
        let reads = match data.u64(OTHERS_FIRST)? {
            0 => ReplaceReads::Any,
            1 => ReplaceReads::OthersFirst,
            _ => return Err(Errno::EINVAL),
        };
        if self.volume.is_scrubbed() {
            return Ok((SCRUB_RUNS, 0));
        }
        let change = DeviceChange::Replacement;
        let Some(running) = self.volume.begin_device_change(change) else {
            return match self.volume.device_change_progress(change) {
                Some(_) => Ok((ALREADY_STARTED, 0)),
                None => Ok((0, ANOTHER_RUNS.value)),
            };
        };
        let mut caller = Watched::new(context.pid);
        let store = self.files().store();
        let how = (reads, Discard::Nothing);
        let replaced = devices::replace(store, source, target, how, &mut |progress| {
            let noted = DeviceChangeProgress {
                done: progress.bytes_done,
                all: progress.bytes_expected,
                errors: progress.uncorrectable,
            };
            flow(running.note(noted) || caller.is_gone())
        });
        match replaced {
            Ok(Replaced::Done { .. }) => Ok((0, 0)),
            Ok(Replaced::Stopped) => Ok((0, -libc::ECANCELED)),
            Err(StoreError::Membership(fault)) => match code(&fault) {
                Ok(_) => Err(Errno::EINVAL),
                Err(error) => Err(error),
            },
            Err(error) => refused(&error).map(|ended| (0, ended.value)),
        }
    }

    /// State, thousandths, begin, end, failed writes, sectors without a copy.
    fn replacement_status(&self) -> Result<[u64; 6], Errno> {
        let store = self.files().store();
        let item = store.look(|engine| engine.replace_item());
        let item = item.map_err(|error| errno_of(&error))?.unwrap_or_default();
        let running = self
            .volume
            .device_change_progress(DeviceChange::Replacement);
        let (state, thousandths, errors) = match running {
            None => (item.state, 1000, item.read_errors),
            Some(progress) => {
                let thousandths =
                    u128::from(progress.done) * 1000 / u128::from(progress.all.max(1));
                let thousandths = u64::try_from(thousandths).unwrap_or(1000);
                (STARTED, thousandths, progress.errors)
            }
        };
        let thousandths = if state == 0 { 0 } else { thousandths };
        Ok([
            state,
            thousandths,
            item.started_seconds,
            item.stopped_seconds,
            item.write_errors,
            errors,
        ])
    }
}
