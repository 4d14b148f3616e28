//! Devices that come to a mounted volume, leave it, or take another's place.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, NAMED, put};
use crate::coded::{coded, uncoded};
use crate::words::{word, words};
use butterfs_format::DeviceId;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use std::os::fd::{AsFd, BorrowedFd};

/// Where the path of a device lies in a request that names one.
const PATH: usize = 8;
/// Where the name or number lies in the longer form of such a request.
const LONG_NAME: usize = 56;
/// Where its flags lie.
const LONG_FLAGS: usize = 16;
/// The request names a device by its number.
const BY_NUMBER: u64 = 1 << 3;
/// Bytes of a request about a replacement.
const REPLACE: usize = 2600;
/// Bytes of a path in it, its NUL included.
const REPLACE_PATH: usize = 1025;

/// A device of a mounted volume, as somebody names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedDevice<'n> {
    /// By its number.
    Number(DeviceId),
    /// By its absolute path. The path `missing` stands for the first missing
    /// device; `cancel` ends the running removal.
    Path(&'n [u8]),
}

/// Puts a path and the NUL behind it where a request has room for `room` bytes.
fn put_path<const N: usize>(
    bytes: &mut [u8; N],
    at: usize,
    path: &[u8],
    room: usize,
) -> Result<(), Errno> {
    if path.is_empty() || path.contains(&0) {
        return Err(Errno::INVAL);
    }
    if path.len() >= room {
        return Err(Errno::NAMETOOLONG);
    }
    put(bytes, at, path);
    Ok(())
}

/// Adds the block device at an absolute path to the volume that holds `file`.
/// What was on it is lost. For root.
///
/// # Errors
/// What the file system says: ENOTBLK where the path names no block device,
/// EBUSY where it is in use, EEXIST where it belongs to the volume, EINPROGRESS
/// while another such change runs.
pub fn add_device(file: BorrowedFd<'_>, path: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 10);
    let mut argument = [0; NAMED];
    put_path(&mut argument, PATH, path, NAMED - PATH)?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a path that ends with a NUL.
    unsafe { uncoded::<NUMBER, _>(file, &mut argument) }
}

/// Tells the kernel that the block device at an absolute path belongs to a Btrfs
/// volume, so that it finds all devices of a volume when one of them is mounted.
/// For root.
///
/// # Errors
/// What the kernel says: EINVAL where it finds no Btrfs there. Also an error if
/// the kernel has no Btrfs.
pub fn register_device(path: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 4);
    let control = std::fs::File::open("/dev/btrfs-control");
    let control = control.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    let mut argument = [0; NAMED];
    put_path(&mut argument, PATH, path, NAMED - PATH)?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a path that ends with a NUL.
    unsafe { uncoded::<NUMBER, _>(control.as_fd(), &mut argument) }
}

/// Has the kernel forget all devices of volumes that it has not mounted. For
/// root.
///
/// # Errors
/// What the kernel says. Also an error if the kernel has no Btrfs.
pub fn forget_devices() -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 5);
    let control = std::fs::File::open("/dev/btrfs-control");
    let control = control.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    let mut argument = [0; NAMED];
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and an empty path.
    unsafe { uncoded::<NUMBER, _>(control.as_fd(), &mut argument) }
}

/// Has the kernel forget what it read from the superblock of the block device at
/// an absolute path. For root.
///
/// # Errors
/// What the kernel says: ENOENT where it knows nothing of the device, EBUSY
/// where its volume is mounted. Also an error if the kernel has no Btrfs.
pub fn forget_device(path: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 5);
    let control = std::fs::File::open("/dev/btrfs-control");
    let control = control.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    let mut argument = [0; NAMED];
    put_path(&mut argument, PATH, path, NAMED - PATH)?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a path that ends with a NUL.
    unsafe { uncoded::<NUMBER, _>(control.as_fd(), &mut argument) }
}

/// The answer to a request to remove a device, apart from errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveAnswer {
    /// It is removed.
    Removed,
    /// A profile of the volume needs at least this many devices.
    Needs(&'static str, u64),
    /// It is the target of a replacement.
    IsTarget,
    /// No device is missing.
    NoneMissing,
    /// It is the only one that can be written.
    OnlyWritable,
    /// One that this program does not know.
    Other(i32),
}

impl RemoveAnswer {
    const fn of(number: i32) -> Self {
        match number {
            0 => Self::Removed,
            1 => Self::Needs("raid1", 2),
            2 => Self::Needs("raid10", 2),
            3 => Self::Needs("raid5", 2),
            4 => Self::Needs("raid6", 3),
            5 => Self::IsTarget,
            6 => Self::NoneMissing,
            7 => Self::OnlyWritable,
            9 => Self::Needs("raid1c3", 3),
            10 => Self::Needs("raid1c4", 4),
            other => Self::Other(other),
        }
    }
}

/// Removes a device from the volume that holds `file`. First it moves the
/// content to the other devices, which may take long. For root.
///
/// # Errors
/// What the file system says: ENOENT and ENODEV for no such device, ENOSPC where
/// the others have no room, EINPROGRESS while another such change runs,
/// ECANCELED when somebody ended it.
pub fn remove_device(file: BorrowedFd<'_>, device: NamedDevice<'_>) -> Result<RemoveAnswer, Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 58);
    let mut argument = [0; NAMED];
    match device {
        NamedDevice::Number(id) => {
            put(&mut argument, LONG_FLAGS, &BY_NUMBER.to_ne_bytes());
            put(&mut argument, LONG_NAME, &id.get().to_ne_bytes());
        }
        NamedDevice::Path(path) => put_path(&mut argument, LONG_NAME, path, NAMED - LONG_NAME)?,
    }
    // SAFETY: the request reads exactly 4096 bytes: flags, and what they say, a
    // number or a path that ends with a NUL.
    let number = unsafe { coded::<NUMBER, _>(file, &mut argument)? };
    Ok(RemoveAnswer::of(number))
}

/// The answer to a request about a replacement, apart from errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceAnswer {
    /// It was done.
    Done,
    /// No replacement runs.
    NotStarted,
    /// A replacement runs already.
    AlreadyStarted,
    /// A scrub runs.
    ScrubRuns,
    /// One that this program does not know.
    Other(u64),
}

impl ReplaceAnswer {
    const fn of(word: u64) -> Self {
        match word {
            0 => Self::Done,
            1 => Self::NotStarted,
            2 => Self::AlreadyStarted,
            3 => Self::ScrubRuns,
            other => Self::Other(other),
        }
    }
}

/// How far the replacement of a device of a mounted volume is, or how the last
/// one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceState {
    /// As in the item on disk: 0 never started, 1 runs, 2 finished, 3 cancelled,
    /// 4 suspended.
    pub state: u64,
    /// How much is done, in thousandths.
    pub thousandths: u64,
    /// Seconds since 1970.
    pub started_seconds: u64,
    /// Seconds since 1970.
    pub stopped_seconds: u64,
    /// Writes to the target that failed.
    pub write_errors: u64,
    /// Reads for which no copy was good.
    pub read_errors: u64,
}

/// Replaces a device of the volume that holds `file` by the block device at the
/// absolute path `target`, and returns when it is done. `others_first` reads the
/// source only where no other copy is good. For root.
///
/// # Errors
/// What the file system says; ECANCELED when somebody ended it.
pub fn replace_device(
    file: BorrowedFd<'_>,
    source: NamedDevice<'_>,
    target: &[u8],
    others_first: bool,
) -> Result<ReplaceAnswer, Errno> {
    const SOURCE: usize = 32;
    let mut argument: [u8; REPLACE] = words([0]);
    put(&mut argument, 24, &u64::from(others_first).to_ne_bytes());
    match source {
        // With the number 0 the request would name the source by its path.
        NamedDevice::Number(id) if id.get() == 0 => return Err(Errno::NODEV),
        NamedDevice::Number(id) => put(&mut argument, 16, &id.get().to_ne_bytes()),
        NamedDevice::Path(path) => put_path(&mut argument, SOURCE, path, REPLACE_PATH)?,
    }
    put_path(&mut argument, SOURCE + REPLACE_PATH, target, REPLACE_PATH)?;
    ask_replace(file, &mut argument)?;
    Ok(ReplaceAnswer::of(word(&argument, 8)))
}

/// Ends the replacement that runs on the volume that holds `file`. For root.
///
/// # Errors
/// What the file system says.
pub fn cancel_replace(file: BorrowedFd<'_>) -> Result<ReplaceAnswer, Errno> {
    let mut argument: [u8; REPLACE] = words([2]);
    ask_replace(file, &mut argument)?;
    Ok(ReplaceAnswer::of(word(&argument, 8)))
}

/// The state of the replacement of a device of the volume that holds `file`.
/// For root.
///
/// # Errors
/// What the file system says.
pub fn replace_state(file: BorrowedFd<'_>) -> Result<ReplaceState, Errno> {
    let mut argument: [u8; REPLACE] = words([1]);
    ask_replace(file, &mut argument)?;
    let at = |index: usize| word(&argument, 16 + index * 8);
    Ok(ReplaceState {
        state: at(0),
        thousandths: at(1),
        started_seconds: at(2),
        stopped_seconds: at(3),
        write_errors: at(4),
        read_errors: at(5),
    })
}

fn ask_replace(file: BorrowedFd<'_>, argument: &mut [u8; REPLACE]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; REPLACE]>(BTRFS, 53);
    // SAFETY: the request reads and writes exactly 2600 bytes.
    unsafe { uncoded::<NUMBER, _>(file, argument) }
}
