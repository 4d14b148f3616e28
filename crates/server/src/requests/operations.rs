//! Long operations on the volume: scrub, balance and resize; which requests
//! change the devices.
//!
//! The thread that serves a request carries it out, so the request ends when the
//! operation ends. As in the kernel, only a privileged caller may ask, and an
//! operation ends when its caller is killed. [`butterfs::Volume`] has the
//! progress, which other requests and `butterfs` commands see.
//!
//! Source of the numbers and layouts: the kernel's interface header
//! linux/btrfs.h.

use super::answered::Answered;
use super::argument::{Bytes, Fields};
use super::caller::Watched;
use super::server::Server;
use super::volume_facts::answer;
use butterfs::balance::{self, BalanceError, End, Filters, Redundancy, Wish};
use butterfs::resize::{self, Size};
use butterfs::scrub::{self, DeviceProgress, Pace, Repair};
use butterfs::{BlockDevice, DeviceChange, MemberState, StoreError};
use butterfs_format::bytes::Reader;
use butterfs_format::item::balance::{BalanceArgs, BalanceFilters};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno};
use std::ops::ControlFlow;

const SCRUB: u32 = 0xc400_941b;
const SCRUB_CANCEL: u32 = 0x0000_941c;
const SCRUB_PROGRESS: u32 = 0xc400_941d;
const BALANCE: u32 = 0xc400_9420;
const BALANCE_PROGRESS: u32 = 0x8400_9422;
const RESIZE: u32 = 0x5000_9403;
const ADD_DEVICE: u32 = 0x5000_940a;
const REMOVE_DEVICE: u32 = 0x5000_940b;
const REMOVE_DEVICE_V2: u32 = 0x5000_943a;
const REPLACE_DEVICE: u32 = 0xca28_9435;
/// The kernel reads BTRFS_IOC_BALANCE_CTL's argument as an address, which it is
/// not. So [`butterfs_kernel::butterfs_mount`] has two requests without one.
const BALANCE_PAUSE: u32 = butterfs_kernel::butterfs_mount::BALANCE_PAUSE;
const BALANCE_CANCEL: u32 = butterfs_kernel::butterfs_mount::BALANCE_CANCEL;

/// Bytes of `btrfs_ioctl_scrub_args`, and where its counters begin.
const SCRUB_SIZE: usize = 1024;
const SCRUB_COUNTERS: usize = 32;
/// Its flag: nothing is written.
const READ_ONLY: u64 = 1;
/// Bytes of `btrfs_ioctl_balance_args`, and what lies where in it.
const BALANCE_SIZE: usize = 1024;
const BALANCE_STATE: usize = 8;
const BALANCE_FILTERS: [usize; 3] = [16, 152, 288];
const BALANCE_COUNTERS: usize = 424;
/// Its flags: less redundancy is allowed; the paused balance resumes.
const FORCE: u64 = 1 << 3;
const RESUME: u64 = 1 << 4;
/// The kinds of block groups.
const KINDS: u64 = 0b111;
/// States: it runs, and somebody wants it to pause or to end.
const RUNNING: u64 = 1;
/// Where the text of a request to resize lies.
const TEXT: usize = 8;

/// The result of what another operation keeps from beginning.
pub(super) const ANOTHER_RUNS: IoctlResult = IoctlResult {
    value: 8,
    filled: 0,
};

/// The answer to an error of an operation.
pub(super) fn errno_of(error: &StoreError) -> Errno {
    match error {
        StoreError::Exclusive(_) => Errno(libc::EINPROGRESS),
        StoreError::Membership(_) => Errno::EINVAL,
        StoreError::NoSpace => Errno(libc::ENOSPC),
        StoreError::ReadOnly => Errno(libc::EROFS),
        StoreError::BadSize { .. } => Errno::EINVAL,
        StoreError::Unsupported { .. } => Errno(libc::EOPNOTSUPP),
        other => {
            tracing::error!(error = %other, "answered EIO");
            Errno::EIO
        }
    }
}

pub(super) fn put(bytes: &mut [u8], at: usize, values: &[u64]) {
    let mut fields = Fields { bytes, at };
    for value in values {
        fields.u64(*value);
    }
}

impl Server {
    /// Serves a request for an operation; `None` when it is none.
    pub(super) fn control_operation(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Option<Result<IoctlResult, Errno>> {
        let found = |found: bool| match found {
            true => Ok(IoctlResult::default()),
            false => Err(Errno(libc::ENOTCONN)),
        };
        let data = Bytes(request.data);
        let ask: &dyn Fn(&mut [u8]) -> Result<IoctlResult, Errno> = match request.command {
            SCRUB => &|output| self.scrub(context, &data, output),
            SCRUB_PROGRESS => &|output| self.tell_scrub(&data, output),
            SCRUB_CANCEL => &|_| found(self.volume.cancel_scrubs()),
            BALANCE => &|output| self.balance(context, &data, output),
            BALANCE_PROGRESS => &|output| self.tell_balance(output),
            BALANCE_PAUSE => &|_| found(self.volume.stop_balance(Wish::Pause)),
            BALANCE_CANCEL => &|_| self.cancel_balance(context),
            RESIZE => &|_| self.resize(context, &data),
            ADD_DEVICE => &|_| self.add_device(context, &data),
            REMOVE_DEVICE => &|_| self.remove_device(context, &data),
            REMOVE_DEVICE_V2 => &|_| self.remove_device_v2(context, &data),
            REPLACE_DEVICE => &|output| self.replace_device(context, &data, output),
            _ => return None,
        };
        Some(self.check_privileged(context).and_then(|()| ask(output)))
    }

    /// Frees what deleted subvolumes hold, before their space is moved.
    pub(super) fn clean(&self) -> Result<(), Errno> {
        self.files().clean_all().answered()
    }

    /// A device of the volume that is there.
    fn present_device(&self, id: DeviceId) -> Result<DeviceId, Errno> {
        let devices = self.volume.devices();
        let device = devices.iter().find(|device| device.item.id == id);
        match device {
            Some(device) if device.state == MemberState::Present => Ok(id),
            _ => Err(Errno(libc::ENODEV)),
        }
    }

    fn scrub(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        let (from, end, flags) = (data.u64(8)?, data.u64(16)?, data.u64(24)?);
        if flags & !READ_ONLY != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let repair = match flags & READ_ONLY != 0 {
            true => Repair::ReportOnly,
            false => {
                Self::check_mount(context)?;
                Repair::Rewrite
            }
        };
        let device = self.present_device(DeviceId(data.u64(0)?))?;
        let running = self.volume.begin_scrub(&[device]);
        let running = running.ok_or(Errno(libc::EINPROGRESS))?;
        let options = scrub::Options {
            repair,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        };
        let start = scrub::Start {
            from: DeviceOffset(from),
            ..scrub::Start::default()
        };
        let mut caller = Watched::new(context.pid);
        let mut has_reached_end = false;
        let scrubbed = scrub::scrub_one(
            self.files().store(),
            &options,
            (device, start),
            &mut |news| {
                has_reached_end = news.progress.last.get() >= end;
                let is_unwanted = running.note(news.progress) || caller.is_gone();
                match is_unwanted || has_reached_end {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(Pace::default()),
                }
            },
        );
        drop(running);
        let progress = scrubbed.map_err(|error| errno_of(&error))?;
        let bytes = answer(output, SCRUB_SIZE)?.bytes;
        put(bytes, 0, &[device.get(), from, end, flags]);
        put_scrubbed(bytes, &progress);
        Ok(IoctlResult {
            value: match progress.is_finished || has_reached_end {
                true => 0,
                false => -libc::ECANCELED,
            },
            filled: SCRUB_SIZE,
        })
    }

    fn tell_scrub(&self, data: &Bytes<'_>, output: &mut [u8]) -> Result<IoctlResult, Errno> {
        let device = DeviceId(data.u64(0)?);
        let Some(progress) = self.volume.scrub_progress(device) else {
            self.present_device(device)?;
            return Err(Errno(libc::ENOTCONN));
        };
        let bytes = answer(output, SCRUB_SIZE)?.bytes;
        put(bytes, 0, &[device.get()]);
        put_scrubbed(bytes, &progress);
        Ok(IoctlResult {
            value: 0,
            filled: SCRUB_SIZE,
        })
    }

    fn balance(
        &self,
        context: &Context<'_>,
        data: &Bytes<'_>,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        Self::check_mount(context)?;
        let flags = data.u64(0)?;
        let is_resumed = flags & RESUME != 0;
        // The filters of one that resumes are on the disk.
        let filters = match is_resumed {
            true => Filters::default(),
            false if flags & !(KINDS | FORCE) != 0 => return Err(Errno::EINVAL),
            false => filters(data, flags)?,
        };
        let redundancy = match flags & FORCE != 0 {
            true => Redundancy::MayShrink,
            false => Redundancy::default(),
        };
        let running = self.volume.begin_balance();
        let running = running.ok_or(Errno(libc::EINPROGRESS))?;
        self.clean()?;
        let mut caller = Watched::new(context.pid);
        let mut watch = |progress: &balance::Progress| {
            let wish = running.note(progress);
            wish.or_else(|| caller.is_gone().then_some(Wish::Cancel))
        };
        let store = self.files().store();
        let ended = match is_resumed {
            true => balance::resume(store, &mut watch),
            false => balance::start(store, &filters, redundancy, &mut watch),
        };
        drop(running);
        if let Err(BalanceError::Store(StoreError::Exclusive(_))) = &ended {
            return Ok(ANOTHER_RUNS);
        }
        let (progress, end) = ended.map_err(|error| match error {
            BalanceError::Waits => Errno(libc::EINPROGRESS),
            BalanceError::NoneWaits => Errno(libc::ENOTCONN),
            BalanceError::LessRedundancy { .. }
            | BalanceError::Profile(_)
            | BalanceError::Mixed => Errno::EINVAL,
            BalanceError::Item(_) => Errno::EIO,
            BalanceError::Store(error) => errno_of(&error),
        })?;
        let bytes = answer(output, BALANCE_SIZE)?.bytes;
        if let Some(asked) = data.0.get(..BALANCE_COUNTERS) {
            bytes[..BALANCE_COUNTERS].copy_from_slice(asked);
        }
        put(bytes, BALANCE_STATE, &[0]);
        put_balanced(bytes, &progress);
        Ok(IoctlResult {
            value: match end {
                End::Stopped(_) => -libc::ECANCELED,
                End::Done if progress.without_space > 0 => -libc::ENOSPC,
                End::Done => 0,
            },
            filled: BALANCE_SIZE,
        })
    }

    fn tell_balance(&self, output: &mut [u8]) -> Result<IoctlResult, Errno> {
        let running = self.volume.balance_progress();
        let waiting = balance::waiting(self.files().store());
        let waiting = waiting.map_err(|_| Errno::EIO)?;
        let filters = waiting.ok_or(Errno(libc::ENOTCONN))?;
        let bytes = answer(output, BALANCE_SIZE)?.bytes;
        let kinds = [
            (&filters.data, BlockGroupFlags::DATA),
            (&filters.metadata, BlockGroupFlags::METADATA),
            (&filters.system, BlockGroupFlags::SYSTEM),
        ];
        let mut flags = BlockGroupFlags(0);
        for ((filter, kind), at) in kinds.into_iter().zip(BALANCE_FILTERS) {
            if let Some(filter) = filter {
                flags |= kind;
                let mut args = butterfs_format::bytes::Writer::with_capacity(BalanceArgs::SIZE);
                filter.args().write(&mut args);
                let bytes = &mut *bytes;
                Fields { bytes, at }.put(&args.finish());
            }
        }
        let state = if running.is_some() { RUNNING } else { 0 };
        put(bytes, 0, &[flags.0, state]);
        if let Some(progress) = running {
            put_balanced(bytes, &progress);
        }
        Ok(IoctlResult {
            value: 0,
            filled: BALANCE_SIZE,
        })
    }

    /// Ends the balance that runs, or forgets the one that waits.
    fn cancel_balance(&self, context: &Context<'_>) -> Result<IoctlResult, Errno> {
        Self::check_mount(context)?;
        if !self.volume.stop_balance(Wish::Cancel) {
            balance::cancel(self.files().store()).map_err(|error| match error {
                BalanceError::NoneWaits => Errno(libc::ENOTCONN),
                BalanceError::Store(error) => errno_of(&error),
                _ => Errno::EIO,
            })?;
        }
        Ok(IoctlResult::default())
    }

    fn resize(&self, context: &Context<'_>, data: &Bytes<'_>) -> Result<IoctlResult, Errno> {
        Self::check_mount(context)?;
        let text = std::str::from_utf8(data.name(TEXT)?).map_err(|_| Errno::EINVAL)?;
        let done = Ok(IoctlResult::default());
        if text == "cancel" {
            return match self.volume.cancel_device_change(DeviceChange::Resize) {
                true => done,
                false => Err(Errno(libc::ENOTCONN)),
            };
        }
        let (device, size) = wanted_size(text).ok_or(Errno::EINVAL)?;
        let device = self.present_device(device)?;
        let Some(running) = self.volume.begin_device_change(DeviceChange::Resize) else {
            return Ok(ANOTHER_RUNS);
        };
        let store = self.files().store();
        // What the kernel says of a size that the device does not have.
        let room = store
            .space()
            .device(device)
            .map_or(0, |block| block.look_at_size());
        if resize::wanted(store, device, size).is_err()
            && size.bytes(store.device_bytes(device).unwrap_or(0), room) > room
        {
            return Err(Errno(libc::EFBIG));
        }
        self.clean()?;
        let mut caller = Watched::new(context.pid);
        let resized = resize::resize(store, device, size, &mut |_| match running.is_cancelled()
            || caller.is_gone()
        {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        match resized {
            Ok(resize::End::Resized { .. }) => done,
            Ok(resize::End::Stopped) => Err(Errno(libc::ECANCELED)),
            Err(StoreError::Exclusive(_)) => Ok(ANOTHER_RUNS),
            Err(error) => Err(errno_of(&error)),
        }
    }
}

fn put_scrubbed(bytes: &mut [u8], progress: &DeviceProgress) {
    let counts = &progress.counts;
    put(
        bytes,
        SCRUB_COUNTERS,
        &[
            counts.data_extents,
            counts.tree_extents,
            counts.data_bytes,
            counts.tree_bytes,
            counts.read_errors,
            counts.csum_errors,
            counts.verify_errors,
            counts.no_csum,
            // Checksums without data are not looked for, and memory is never
            // short.
            0,
            counts.super_errors,
            0,
            counts.uncorrectable_errors,
            counts.corrected_errors,
            progress.last.get(),
        ],
    );
}

fn put_balanced(bytes: &mut [u8], progress: &balance::Progress) {
    let counts = [progress.expected, progress.considered, progress.completed];
    put(bytes, BALANCE_COUNTERS, &counts.map(|count| count as u64));
}

/// The filters of a request, whose numbers are those of the item on disk.
fn filters(data: &Bytes<'_>, flags: u64) -> Result<Filters, Errno> {
    let mut all = [BalanceArgs::default(); 3];
    for (args, at) in all.iter_mut().zip(BALANCE_FILTERS) {
        let bytes = data
            .0
            .get(at..at + BalanceArgs::SIZE)
            .ok_or(Errno::EINVAL)?;
        *args = BalanceArgs::read(&mut Reader::new("filters", bytes)).map_err(|_| Errno::EINVAL)?;
    }
    let kinds = [
        BlockGroupFlags::DATA,
        BlockGroupFlags::METADATA,
        BlockGroupFlags::SYSTEM,
    ];
    for (args, kind) in all.iter().zip(kinds) {
        let known = BalanceFilters::known();
        if flags & kind.0 != 0 && args.filters.0 & !known.0 != 0 {
            return Err(Errno::EINVAL);
        }
    }
    Ok(Filters::of_item(BlockGroupFlags(flags & KINDS), &all))
}

/// `[DEVID:]SIZE`, `+SIZE`, `-SIZE` or `max`, as btrfs-filesystem(8) has it.
fn wanted_size(text: &str) -> Option<(DeviceId, Size)> {
    let (device, size) = text.split_once(':').unwrap_or(("1", text));
    let device = DeviceId(device.parse().ok()?);
    let size = match size.as_bytes() {
        b"max" => Size::Max,
        [b'+', ..] => Size::Plus(bytes_of(&size[1..])?),
        [b'-', ..] => Size::Minus(bytes_of(&size[1..])?),
        _ => Size::Exactly(bytes_of(size)?),
    };
    Some((device, size))
}

/// A number of bytes with one of the kernel's letters for powers of 1024.
fn bytes_of(text: &str) -> Option<u64> {
    let end = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let power = match text.get(end.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return None,
    };
    let number: u64 = end.parse().ok()?;
    number.checked_mul(1024_u64.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        let size = |text: &str| wanted_size(text);
        assert_eq!(size("max"), Some((DeviceId(1), Size::Max)));
        assert_eq!(size("3:max"), Some((DeviceId(3), Size::Max)));
        assert_eq!(size("2:+1g"), Some((DeviceId(2), Size::Plus(1 << 30))));
        assert_eq!(size("-10M"), Some((DeviceId(1), Size::Minus(10 << 20))));
        assert_eq!(size("4096"), Some((DeviceId(1), Size::Exactly(4096))));
        for wrong in ["", "+", "x:max", "1gb", "16e", "-", "1:", "max:1"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
