//! Requests about quotas to a mounted Btrfs: the kernel's, or a mount of
//! ButterFS.
//!
//! Owns their numbers and layouts, the reading of trees by request, and the
//! unsafe code that pairs them. Where a file system is none of these, they
//! answer ENOTTY or EOPNOTSUPP; where quotas are off, ENOTCONN.
//!
//! Source: the documentation's page on ioctls; the interface header
//! linux/btrfs.h.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{InodeNumber, ItemType, Key, TreeId};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

const BTRFS: u8 = 0x94;
/// Bytes of a search: what is wanted, then what was found.
const SEARCH: usize = 4096;
/// Where the items begin in it.
const FOUND: usize = 104;
/// Bytes before each item.
const ITEM_HEADER: usize = 32;
/// Bytes of a path that is looked up, with what it belongs to.
const LOOKUP: usize = 4096;
/// A limit that is taken away.
const NO_LIMIT: u64 = u64::MAX;

/// What is done with quotas as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSwitch {
    /// On; what is there is counted in the background.
    On,
    /// Off, with all groups and limits.
    Off,
    /// On, as simple quotas.
    OnSimple,
}

/// Whether something comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It comes.
    Add,
    /// It goes.
    Remove,
}

impl Way {
    const fn number(self) -> u64 {
        match self {
            Self::Add => 1,
            Self::Remove => 0,
        }
    }
}

/// A limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The group.
    pub group: GroupId,
    /// The flag of the limit (QGROUP_LIMIT): of all bytes, or of exclusive ones.
    pub flag: u64,
    /// Bytes; `None` takes the limit away.
    pub bytes: Option<u64>,
}

fn words<const N: usize, const BYTES: usize>(values: [u64; N]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, value) in bytes.chunks_exact_mut(8).zip(values) {
        to.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(found.copied().unwrap_or_default())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(found.copied().unwrap_or_default())
}

/// A mount of ButterFS reads arguments that its kernel does not pass from the
/// memory of the program that asks; some systems allow that only where the
/// program agrees.
pub fn allow_reading() {
    // Where the system knows no such rule it is allowed anyway.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}

/// Switches quotas on or off.
///
/// # Errors
/// What the file system says.
pub fn switch_quotas(file: BorrowedFd<'_>, switch: QuotaSwitch) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; 16]>(BTRFS, 40);
    let command = match switch {
        QuotaSwitch::On => 1,
        QuotaSwitch::Off => 2,
        QuotaSwitch::OnSimple => 4,
    };
    let mut argument: [u8; 16] = words([command, 0]);
    // SAFETY: the request reads and writes exactly 16 bytes.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) }
}

/// Begins to count all groups anew.
///
/// # Errors
/// What the file system says; EINPROGRESS when it is being done.
pub fn start_rescan(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 64]>(BTRFS, 44);
    // SAFETY: the request reads exactly 64 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, [u8; 64]>::new([0; 64])) }
}

/// How far a count is; `None` when there is none.
///
/// # Errors
/// What the file system says.
pub fn rescan_progress(file: BorrowedFd<'_>) -> Result<Option<u64>, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; 64]>(BTRFS, 45);
    // SAFETY: the request writes exactly 64 bytes.
    let answer: [u8; 64] = unsafe { ioctl(file, Getter::<NUMBER, _>::new())? };
    Ok((word(&answer, 0) != 0).then(|| word(&answer, 8)))
}

/// Waits for the end of a count.
///
/// # Errors
/// What the file system says.
pub fn wait_for_rescan(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BTRFS, 46);
    // SAFETY: the request has no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
}

/// Makes or removes a group.
///
/// # Errors
/// What the file system says.
pub fn change_group(file: BorrowedFd<'_>, group: GroupId, way: Way) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 16]>(BTRFS, 42);
    let argument: [u8; 16] = words([way.number(), group.0]);
    // SAFETY: the request reads exactly 16 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// Puts `child` into `parent`, or takes it out.
///
/// # Errors
/// What the file system says.
pub fn change_relation(
    file: BorrowedFd<'_>,
    (child, parent): (GroupId, GroupId),
    way: Way,
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 24]>(BTRFS, 41);
    let argument: [u8; 24] = words([way.number(), child.0, parent.0]);
    // SAFETY: the request reads exactly 24 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// Limits a group.
///
/// # Errors
/// What the file system says.
pub fn limit_group(file: BorrowedFd<'_>, limit: GroupLimit) -> Result<(), Errno> {
    // Its number says that it is read, but it is written.
    const NUMBER: Opcode = opcode::read::<[u8; 48]>(BTRFS, 43);
    let bytes = limit.bytes.unwrap_or(NO_LIMIT);
    let argument: [u8; 48] = words([limit.group.0, limit.flag, bytes, bytes, 0, 0]);
    // SAFETY: the request reads exactly 48 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// An item that a search found.
pub type FoundItem = (Key, Vec<u8>);

/// All items of a tree from `first` to `last`. For root alone.
///
/// # Errors
/// What the file system says; ENOENT when there is no such tree.
pub fn search_tree(
    file: BorrowedFd<'_>,
    tree: TreeId,
    (first, last): (Key, Key),
) -> Result<Vec<FoundItem>, Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; SEARCH]>(BTRFS, 17);
    let mut all = Vec::new();
    let mut from = first;
    loop {
        let mut argument: [u8; SEARCH] = words([
            tree.get(),
            from.objectid,
            last.objectid,
            from.offset,
            last.offset,
            0,
            u64::MAX,
            u64::from(from.item_type.0) | u64::from(last.item_type.0) << 32,
            u64::from(u32::MAX),
        ]);
        // SAFETY: the request reads and writes exactly 4096 bytes.
        unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
        let count = half(&argument, 64);
        let mut rest = argument.get(FOUND..).unwrap_or_default();
        for _ in 0..count {
            let length = usize::try_from(half(rest, 28)).map_err(|_| Errno::IO)?;
            let kind = u8::try_from(half(rest, 24)).map_err(|_| Errno::IO)?;
            let key = Key::new(word(rest, 8), ItemType(kind), word(rest, 16));
            let end = ITEM_HEADER.checked_add(length).ok_or(Errno::IO)?;
            let data = rest.get(ITEM_HEADER..end).ok_or(Errno::IO)?;
            all.push((key, data.to_vec()));
            rest = rest.get(end..).ok_or(Errno::IO)?;
        }
        let next = all.last().and_then(|(key, _)| key.successor());
        match next {
            Some(next) if count > 0 && next <= last => from = next,
            _ => return Ok(all),
        }
    }
}

/// Path of a directory within its subvolume, with a slash at its end; empty
/// for the root. For root alone.
///
/// # Errors
/// What the file system says.
pub fn directory_path(
    file: BorrowedFd<'_>,
    tree: TreeId,
    directory: InodeNumber,
) -> Result<Vec<u8>, Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; LOOKUP]>(BTRFS, 18);
    let mut argument: [u8; LOOKUP] = words([tree.get(), directory.get()]);
    // SAFETY: the request reads and writes exactly 4096 bytes.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
    let name = argument.get(16..).unwrap_or_default();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(name.get(..end).unwrap_or_default().to_vec())
}
