//! Subvolumes come, go, and become the default.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, NAMED, named, put};
use crate::inherit::Inherit;
use crate::subvolume_info::{Changes, READ_ONLY};
use butterfs_format::TreeId;
use butterfs_format::item::qgroup::GroupId;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Where the name lies in the first layout, and in the second.
const NAME_V1: usize = 8;
const NAME_V2: usize = 56;
/// Flag: the request names the subvolume by its id.
const BY_ID: u64 = 1 << 4;

/// Makes an empty subvolume in a directory, within quota groups.
///
/// # Errors
/// What the file system says.
pub fn create_subvolume(
    directory: BorrowedFd<'_>,
    name: &[u8],
    groups: &[GroupId],
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 24);
    let inherit = Inherit::new(groups);
    let mut argument = named(NAME_V2, name)?;
    inherit.enter(&mut argument, 0);
    // SAFETY: the request reads exactly 4096 bytes: flags, a name that ends
    // with a NUL, which `named` leaves room for, and, where the flags say so,
    // size and address of `inherit`, which outlives the call and is only read.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Makes a snapshot in a directory, within quota groups.
///
/// # Errors
/// What the file system says.
pub fn snapshot(
    directory: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    name: &[u8],
    (changes, groups): (Changes, &[GroupId]),
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 23);
    let inherit = Inherit::new(groups);
    let mut argument = named(NAME_V2, name)?;
    let descriptor = i64::from(source.as_raw_fd());
    put(&mut argument, 0, &descriptor.to_le_bytes());
    let flags = match changes {
        Changes::Refused => READ_ONLY,
        Changes::Allowed => 0,
    };
    inherit.enter(&mut argument, flags);
    // SAFETY: the request reads exactly 4096 bytes: a descriptor, flags, a name
    // that ends with a NUL and, where the flags say so, size and address of
    // `inherit`; descriptor and `inherit` outlive the call.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Deletes a subvolume by its name in a directory.
///
/// # Errors
/// What the file system says.
pub fn delete_subvolume(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 15);
    let argument = named(NAME_V1, name)?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a name that ends with a NUL.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Deletes a subvolume by its id, anywhere in the mount of `file`.
///
/// # Errors
/// What the file system says.
pub fn delete_subvolume_by_id(file: BorrowedFd<'_>, id: TreeId) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 63);
    let mut argument = [0; NAMED];
    put(&mut argument, 16, &BY_ID.to_le_bytes());
    put(&mut argument, NAME_V2, &id.get().to_le_bytes());
    // SAFETY: the request reads exactly 4096 bytes: flags that announce no
    // pointer, and a number.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// Makes a subvolume the default, which is mounted when none is named.
///
/// # Errors
/// What the file system says.
pub fn set_default_subvolume(file: BorrowedFd<'_>, id: TreeId) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<u64>(BTRFS, 19);
    // SAFETY: the request reads one u64.
    unsafe { ioctl(file, Setter::<NUMBER, u64>::new(id.get())) }
}
