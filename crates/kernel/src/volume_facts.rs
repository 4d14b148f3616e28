//! What a mounted volume says of itself, its space and its devices.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, field, put};
use crate::words::{word, words};
use butterfs_format::{DeviceId, UuidBytes};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of what a volume says of itself.
const VOLUME: usize = 1024;
/// Bytes of what it says of a device.
const DEVICE: usize = 4096;
/// Where a device's path begins in them.
const DEVICE_PATH: usize = 3072;
/// Bytes of a device's error counters.
const STATS: usize = 1032;
/// Bytes of a label, its NUL included.
const LABEL: usize = 256;
/// Kinds of space that fit into a request; a volume has fewer.
const KINDS: usize = 64;
/// Bytes of a request for the kinds of space.
const SPACE: usize = 16 + KINDS * 24;

/// A mounted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// Its id.
    pub fsid: UuidBytes,
    /// Number of its devices.
    pub devices: u64,
    /// The largest number that a device has.
    pub last_device: DeviceId,
}

/// A device of a mounted volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedDevice {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: UuidBytes,
    /// Bytes of it in chunks.
    pub allocated: u64,
    /// Bytes of it that belong to the volume.
    pub size: u64,
    /// Where it is; empty when it is missing.
    pub path: Vec<u8>,
}

/// Space of one kind and profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountedSpace {
    /// Kind and profile, as in block groups.
    pub flags: u64,
    /// Bytes of its block groups.
    pub total: u64,
    /// Of these, in use.
    pub used: u64,
}

/// What is done with a device's error counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// They stay.
    Keep,
    /// They are zero afterwards.
    Reset,
}

/// The volume that holds `file`.
///
/// # Errors
/// What the file system says.
pub fn mounted_volume(file: BorrowedFd<'_>) -> Result<MountedVolume, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; VOLUME]>(BTRFS, 31);
    // SAFETY: the request writes at most the 1024 bytes that its number has.
    let found: [u8; VOLUME] = unsafe { ioctl(file, Getter::<NUMBER, _>::new())? };
    Ok(MountedVolume {
        fsid: field(&found, 16),
        devices: word(&found, 8),
        last_device: DeviceId(word(&found, 0)),
    })
}

/// A device of the volume that holds `file`.
///
/// # Errors
/// What the file system says; ENODEV when it has no such device.
pub fn mounted_device(file: BorrowedFd<'_>, id: DeviceId) -> Result<MountedDevice, Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; DEVICE]>(BTRFS, 30);
    let mut argument: [u8; DEVICE] = words([id.get()]);
    // SAFETY: the request reads and writes exactly 4096 bytes.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
    let path = argument.get(DEVICE_PATH..).unwrap_or_default();
    Ok(MountedDevice {
        id: DeviceId(word(&argument, 0)),
        uuid: field(&argument, 8),
        allocated: word(&argument, 24),
        size: word(&argument, 32),
        path: up_to_nul(path),
    })
}

/// Error counters of a device: writes, reads, flushes, corruption, generation.
///
/// # Errors
/// What the file system says; ENODEV when it has no such device.
pub fn device_counters(
    file: BorrowedFd<'_>,
    id: DeviceId,
    counters: Counters,
) -> Result<[u64; 5], Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; STATS]>(BTRFS, 52);
    let reset = u64::from(counters == Counters::Reset);
    let mut argument: [u8; STATS] = words([id.get(), 5, reset]);
    // SAFETY: the request reads and writes exactly 1032 bytes.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
    Ok([24, 32, 40, 48, 56].map(|at| word(&argument, at)))
}

/// Space of the volume that holds `file`, by kind and profile.
///
/// # Errors
/// What the file system says.
pub fn mounted_space(file: BorrowedFd<'_>) -> Result<Vec<MountedSpace>, Errno> {
    // The number has the size of an argument without kinds.
    const NUMBER: Opcode = opcode::read_write::<[u8; 16]>(BTRFS, 20);
    let mut argument: [u8; SPACE] = words([u64::try_from(KINDS).unwrap_or(0)]);
    // SAFETY: the request writes as many kinds as its first word says, for which
    // there is room.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
    let count = usize::try_from(word(&argument, 8)).map_err(|_| Errno::IO)?;
    let kinds = argument.get(16..).unwrap_or_default().chunks_exact(24);
    let space = kinds.take(count).map(|kind| MountedSpace {
        flags: word(kind, 0),
        total: word(kind, 8),
        used: word(kind, 16),
    });
    Ok(space.collect())
}

/// Label of the volume that holds `file`.
///
/// # Errors
/// What the file system says.
pub fn label(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; LABEL]>(BTRFS, 49);
    // The request writes the label and nothing behind it.
    let mut found = [0; LABEL];
    // SAFETY: the request writes at most the 256 bytes that its number has.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut found))? };
    Ok(up_to_nul(&found))
}

/// Gives the volume that holds `file` another label.
///
/// # Errors
/// What the file system says; EINVAL when it is too long.
pub fn set_label(file: BorrowedFd<'_>, label: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; LABEL]>(BTRFS, 50);
    if label.len() >= LABEL || label.contains(&0) {
        return Err(Errno::INVAL);
    }
    let mut argument = [0; LABEL];
    put(&mut argument, 0, label);
    // SAFETY: the request reads exactly 256 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

fn up_to_nul(bytes: &[u8]) -> Vec<u8> {
    let text = bytes.iter().take_while(|byte| **byte != 0);
    text.copied().collect()
}
