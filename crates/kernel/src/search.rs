//! Items of a tree, by request.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::BTRFS;
use crate::words::{half, word, words};
use butterfs_format::{ItemType, Key, TreeId};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of a search: what is wanted, then what was found.
const SEARCH: usize = 4096;
/// Where the items begin in it.
const FOUND: usize = 104;
/// Bytes before each item.
const ITEM_HEADER: usize = 32;

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
