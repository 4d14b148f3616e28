//! Where the kernel says that a file lies.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::put;
use crate::words::{half, word};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Extents that one request asks for.
const EXTENTS: usize = 72;
/// Bytes of a request without them, and of each.
const HEAD: usize = 32;
const EXTENT: usize = 56;
const SIZE: usize = HEAD + EXTENTS * EXTENT;
/// Flag: what is only in memory is written first.
const SYNC: u32 = 1;
/// Flags: its address is unknown, or not allocated yet.
const UNSURE: u32 = 1 << 1 | 1 << 2;
const LAST: u32 = 1;
const SHARED: u32 = 1 << 13;

/// An extent of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Where in the file.
    pub offset: u64,
    /// Its logical address in the volume.
    pub logical: u64,
    /// Bytes.
    pub length: u64,
    /// The kernel's flags of it, as FIEMAP has them.
    pub flags: u32,
}

impl FileExtent {
    /// Others have it too.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// All of its bytes lie at its address, in the form in which they are read.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        const INLINE: u32 = 1 << 9;
        const ENCODED: u32 = 1 << 3;
        self.flags & (UNSURE | INLINE | ENCODED) == 0
    }
}

/// The extents of a file; holes are left out. Writes back first what is only in
/// memory.
///
/// # Errors
/// What the file system says; EOPNOTSUPP where it cannot say.
pub fn file_extents(file: BorrowedFd<'_>) -> Result<Vec<FileExtent>, Errno> {
    // The number has the size of a request without extents.
    const NUMBER: Opcode = opcode::read_write::<[u8; HEAD]>(b'f', 11);
    let mut all: Vec<FileExtent> = Vec::new();
    let mut from = 0_u64;
    loop {
        let mut argument = [0; SIZE];
        put(&mut argument, 0, &from.to_ne_bytes());
        put(
            &mut argument,
            8,
            &u64::MAX.saturating_sub(from).to_ne_bytes(),
        );
        put(&mut argument, 16, &SYNC.to_ne_bytes());
        let count = u32::try_from(EXTENTS).unwrap_or(0);
        put(&mut argument, 24, &count.to_ne_bytes());
        // SAFETY: the request writes as many extents as its count says, for
        // which there is room.
        unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument))? };
        let found = usize::try_from(half(&argument, 20)).map_err(|_| Errno::IO)?;
        let extents = argument.get(HEAD..).unwrap_or_default();
        let mut end = from;
        for extent in extents.chunks_exact(EXTENT).take(found) {
            let extent = FileExtent {
                offset: word(extent, 0),
                logical: word(extent, 8),
                length: word(extent, 16),
                flags: half(extent, 40),
            };
            all.push(extent);
            end = extent.offset.saturating_add(extent.length);
            if extent.flags & LAST != 0 {
                return Ok(all);
            }
        }
        if end <= from {
            return Ok(all);
        }
        from = end;
    }
}

/// True when a file shares data with others.
///
/// # Errors
/// As [`file_extents`].
pub fn shares_data(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(file_extents(file)?.iter().any(FileExtent::is_shared))
}
