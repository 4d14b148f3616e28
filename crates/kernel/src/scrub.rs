//! Scrubs of a mounted volume's devices.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::BTRFS;
use crate::words::{word, words};
use butterfs_format::{DeviceId, DeviceOffset};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of a request.
const SCRUB: usize = 1024;
/// Where the counters begin in it.
const COUNTERS: usize = 32;
/// Flag: nothing is written.
const READ_ONLY: u64 = 1;

/// What a scrub of a device has found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Extents of data that were read.
    pub data_extents: u64,
    /// Tree nodes that were read.
    pub tree_extents: u64,
    /// Bytes of data that were read.
    pub data_bytes: u64,
    /// Bytes of tree nodes that were read.
    pub tree_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Sectors and nodes whose checksum was wrong.
    pub csum_errors: u64,
    /// Nodes with a wrong header.
    pub verify_errors: u64,
    /// Sectors without a checksum.
    pub no_csum: u64,
    /// Checksums without data.
    pub csum_discards: u64,
    /// Bad superblocks.
    pub super_errors: u64,
    /// Times that memory was short.
    pub malloc_errors: u64,
    /// Errors that no copy corrects.
    pub uncorrectable_errors: u64,
    /// Errors that were corrected.
    pub corrected_errors: u64,
    /// Where on the device it is.
    pub last_physical: DeviceOffset,
}

impl ScrubProgress {
    fn of(answer: &[u8; SCRUB]) -> Self {
        let at = |index: usize| word(answer, COUNTERS + index * 8);
        Self {
            data_extents: at(0),
            tree_extents: at(1),
            data_bytes: at(2),
            tree_bytes: at(3),
            read_errors: at(4),
            csum_errors: at(5),
            verify_errors: at(6),
            no_csum: at(7),
            csum_discards: at(8),
            super_errors: at(9),
            malloc_errors: at(10),
            uncorrectable_errors: at(11),
            corrected_errors: at(12),
            last_physical: DeviceOffset(at(13)),
        }
    }
}

/// Whether a scrub corrects what it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubWrites {
    /// It does.
    Corrections,
    /// It writes nothing.
    Nothing,
}

/// Scrubs a device of the volume that holds `file` from a place on, and returns
/// at the end: what it found, and how it ended. For root.
pub fn scrub_device(
    file: BorrowedFd<'_>,
    id: DeviceId,
    from: DeviceOffset,
    writes: ScrubWrites,
) -> (ScrubProgress, Result<(), Errno>) {
    const NUMBER: Opcode = opcode::read_write::<[u8; SCRUB]>(BTRFS, 27);
    let flags = match writes {
        ScrubWrites::Corrections => 0,
        ScrubWrites::Nothing => READ_ONLY,
    };
    let mut argument = words([id.get(), from.get(), u64::MAX, flags]);
    // SAFETY: the request reads and writes exactly 1024 bytes.
    let ended = unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) };
    (ScrubProgress::of(&argument), ended)
}

/// How far the scrub of a device of the volume that holds `file` is; `None`
/// where none runs. For root.
///
/// # Errors
/// What the file system says; ENODEV for no such device.
pub fn scrub_progress(file: BorrowedFd<'_>, id: DeviceId) -> Result<Option<ScrubProgress>, Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; SCRUB]>(BTRFS, 29);
    let mut argument = words([id.get()]);
    // SAFETY: the request reads and writes exactly 1024 bytes.
    let asked = unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) };
    match asked {
        Err(Errno::NOTCONN) => Ok(None),
        asked => asked.map(|()| Some(ScrubProgress::of(&argument))),
    }
}

/// Ends the scrubs of all devices of the volume that holds `file`. For root.
///
/// # Errors
/// What the file system says; ENOTCONN where none runs.
pub fn cancel_scrub(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BTRFS, 28);
    // SAFETY: the request has no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
}
