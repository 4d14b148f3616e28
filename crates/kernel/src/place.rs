//! The places of subvolumes in one another, and of directories in a subvolume.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, field, put};
use crate::words::words;
use butterfs_format::{InodeNumber, TreeId};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// The subvolumes directly below the one that holds `file`, each with the inode
/// of the directory that contains it.
///
/// # Errors
/// What the file system says.
pub fn subvolumes_in(file: BorrowedFd<'_>) -> Result<Vec<(TreeId, u64)>, Errno> {
    const SIZE: usize = 4096;
    const NUMBER: Opcode = opcode::read_write::<[u8; SIZE]>(BTRFS, 61);
    const COUNT: usize = SIZE - 8;
    let mut found = Vec::new();
    let mut from = 0_u64;
    loop {
        let mut argument = [0; SIZE];
        put(&mut argument, 0, &from.to_le_bytes());
        // SAFETY: the request reads and writes exactly 4096 bytes.
        let done = unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) };
        let more = match done {
            Ok(()) => false,
            Err(Errno::OVERFLOW) => true,
            Err(error) => return Err(error),
        };
        let [count] = field(&argument, COUNT);
        for at in 0..usize::from(count) {
            let number = |skip: usize| u64::from_le_bytes(field(&argument, 8 + 16 * at + skip));
            found.push((TreeId(number(0)), number(8)));
        }
        let next = u64::from_le_bytes(field(&argument, 0));
        if !more {
            return Ok(found);
        }
        if count == 0 || next <= from {
            return Err(Errno::OVERFLOW);
        }
        from = next;
    }
}

/// The place of a subvolume in its parent, whose root directory is `root`: the
/// path of the directory that contains it, and its name there.
///
/// # Errors
/// What the file system says.
pub fn subvolume_place(
    root: BorrowedFd<'_>,
    directory: u64,
    id: TreeId,
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    const SIZE: usize = 4096;
    const NUMBER: Opcode = opcode::read_write::<[u8; SIZE]>(BTRFS, 62);
    const NAME: usize = 16;
    const PATH: usize = NAME + 256;
    let mut argument = [0; SIZE];
    put(&mut argument, 0, &directory.to_le_bytes());
    put(&mut argument, 8, &id.get().to_le_bytes());
    // SAFETY: the request reads and writes exactly 4096 bytes.
    unsafe { ioctl(root, Updater::<NUMBER, _>::new(&mut argument))? };
    let text = |from: usize, to: usize| {
        let bytes = argument.get(from..to).unwrap_or_default();
        bytes
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default()
            .to_vec()
    };
    Ok((text(PATH, SIZE), text(NAME, PATH)))
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
    const SIZE: usize = 4096;
    const NUMBER: Opcode = opcode::read_write::<[u8; SIZE]>(BTRFS, 18);
    let mut argument: [u8; SIZE] = words([tree.get(), directory.get()]);
    // SAFETY: the request reads and writes exactly 4096 bytes.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
    let name = argument.get(16..).unwrap_or_default();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(name.get(..end).unwrap_or_default().to_vec())
}
