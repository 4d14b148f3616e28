//! Balances of a mounted volume.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, put};
use crate::coded::uncoded;
use crate::words::{word, words};
use butterfs_format::item::balance::{BalanceArgs, BalanceFilters, halves};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of a request for a balance, which is also its answer.
const BALANCE: usize = 1024;
/// Where the filters of data, metadata and system chunks begin.
const FILTERS: [usize; 3] = [16, 152, 288];
/// Where its counters are.
const COUNTERS: usize = 424;
/// In the state of a balance: it runs.
const RUNNING: u64 = 1;
/// Flags of the kinds of chunks, in the order of [`FILTERS`].
const KINDS: [u64; 3] = [1 << 0, 1 << 2, 1 << 1];
/// Flag: redundancy may shrink.
const FORCE: u64 = 1 << 3;
/// Flag: resume the paused balance.
const RESUME: u64 = 1 << 4;

/// How far a balance of a mounted volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceProgress {
    /// It runs; otherwise it is paused.
    pub is_running: bool,
    /// Chunks that it will move, about.
    pub expected: u64,
    /// Chunks that it has looked at.
    pub considered: u64,
    /// Chunks that it has moved.
    pub completed: u64,
}

impl BalanceProgress {
    fn of(answer: &[u8; BALANCE]) -> Self {
        Self {
            is_running: word(answer, 8) & RUNNING != 0,
            expected: word(answer, COUNTERS),
            considered: word(answer, COUNTERS + 8),
            completed: word(answer, COUNTERS + 16),
        }
    }
}

/// The balance of the volume that holds `file`, if there is one. For root.
///
/// # Errors
/// What the file system says.
pub fn balance_progress(file: BorrowedFd<'_>) -> Result<Option<BalanceProgress>, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; BALANCE]>(BTRFS, 34);
    // SAFETY: the request writes at most the 1024 bytes that its number has.
    let found = unsafe { ioctl(file, Getter::<NUMBER, [u8; BALANCE]>::new()) };
    match found {
        Err(Errno::NOTCONN) => Ok(None),
        found => Ok(Some(BalanceProgress::of(&found?))),
    }
}

/// Begins a balance of the volume that holds `file`, and returns at its end.
/// `filters` are those of data, metadata and system chunks; `force` lets
/// redundancy shrink. For root.
///
/// # Errors
/// What the file system says: EINPROGRESS while one runs or is paused,
/// ECANCELED when somebody paused or cancelled it, EINVAL for filters that it
/// does not take, ENOSPC when chunks could not move for lack of space.
pub fn start_balance(
    file: BorrowedFd<'_>,
    filters: [Option<&BalanceArgs>; 3],
    force: bool,
) -> Result<BalanceProgress, Errno> {
    let mut flags = if force { FORCE } else { 0 };
    let mut argument = [0; BALANCE];
    for ((filter, at), kind) in filters.into_iter().zip(FILTERS).zip(KINDS) {
        if let Some(filter) = filter {
            flags |= kind;
            put(&mut argument, at, &filter_bytes(filter));
        }
    }
    put(&mut argument, 0, &flags.to_ne_bytes());
    ask(file, argument)
}

/// Resumes the paused balance of the volume that holds `file`, and returns at
/// its end. For root.
///
/// # Errors
/// What the file system says: ENOTCONN where none is paused, and as
/// [`start_balance`].
pub fn resume_balance(file: BorrowedFd<'_>) -> Result<BalanceProgress, Errno> {
    ask(file, words([RESUME]))
}

fn ask(file: BorrowedFd<'_>, mut argument: [u8; BALANCE]) -> Result<BalanceProgress, Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; BALANCE]>(BTRFS, 32);
    // SAFETY: the request reads and writes exactly 1024 bytes.
    unsafe { uncoded::<NUMBER, _>(file, &mut argument)? };
    Ok(BalanceProgress::of(&argument))
}

/// Pauses the running balance, and returns when it has paused. For root.
///
/// # Errors
/// What the file system says: ENOTCONN where none runs.
pub fn pause_balance(file: BorrowedFd<'_>) -> Result<(), Errno> {
    control(file, 1)
}

/// Ends the running or paused balance, and returns when there is none. For
/// root.
///
/// # Errors
/// What the file system says: ENOTCONN where there is none.
pub fn cancel_balance(file: BorrowedFd<'_>) -> Result<(), Errno> {
    control(file, 2)
}

fn control(file: BorrowedFd<'_>, what: usize) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<i32>(BTRFS, 33);
    // SAFETY: the request takes a number in place of an address.
    unsafe { ioctl(file, IntegerSetter::<NUMBER>::new_usize(what)) }
}

/// A filter as a request has it: the layout of the item on disk, in the byte
/// order of the machine.
fn filter_bytes(filter: &BalanceArgs) -> [u8; BalanceArgs::SIZE] {
    let pair = |both: u64, range: BalanceFilters| -> [u8; 8] {
        if !filter.filters.contains(range) {
            return both.to_ne_bytes();
        }
        let (least, most) = halves(both);
        pair_bytes(least, most)
    };
    let fields = [
        filter.profiles.to_ne_bytes(),
        pair(filter.usage, BalanceFilters::USAGE_RANGE),
        filter.device.to_ne_bytes(),
        filter.physical.0.to_ne_bytes(),
        filter.physical.1.to_ne_bytes(),
        filter.logical.0.to_ne_bytes(),
        filter.logical.1.to_ne_bytes(),
        filter.target.to_ne_bytes(),
        filter.filters.0.to_ne_bytes(),
        pair(filter.limit, BalanceFilters::LIMIT_RANGE),
        pair_bytes(filter.stripes.0, filter.stripes.1),
    ];
    let mut bytes = [0; BalanceArgs::SIZE];
    for (to, from) in bytes.chunks_exact_mut(8).zip(fields) {
        to.copy_from_slice(&from);
    }
    bytes
}

fn pair_bytes(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    put(&mut bytes, 0, &first.to_ne_bytes());
    put(&mut bytes, 4, &second.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::bytes::Writer;

    #[test]
    fn a_filter_has_the_layout_of_the_item_on_disk() {
        let filter = BalanceArgs {
            profiles: 1 << 48,
            usage: 5 | 80 << 32,
            device: 2,
            physical: (3, 4),
            logical: (5, 6),
            target: 1 << 4,
            filters: BalanceFilters::USAGE_RANGE,
            limit: 7,
            stripes: (1, 9),
        };
        let mut on_disk = Writer::with_capacity(BalanceArgs::SIZE);
        filter.write(&mut on_disk);
        if cfg!(target_endian = "little") {
            assert_eq!(filter_bytes(&filter).as_slice(), on_disk.finish());
        }
    }
}
