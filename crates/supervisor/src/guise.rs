//! Facts of a file as Btrfs tells them.
//!
//! Owns the numbers: a subvolume has a device number of its own, and its root
//! directory inode number 256. Inode numbers of a mount hold both
//! ([`butterfs_server::inode_shown_as`]).
//!
//! Source: the kernel's documentation of Btrfs; the interface headers
//! linux/stat.h, asm/stat.h and asm/statfs.h.

use crate::bytes::{half, put, word};
use crate::listener::{STATFS, STATX};
use crate::mounts::{Device, Mounts, Shown};
use butterfs_format::TreeId;
use butterfs_server::inode_shown_as;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// BTRFS_SUPER_MAGIC.
const MAGIC: u64 = 0x9123_683e;
/// Fields of `struct statx`.
mod at {
    pub(super) const MASK: usize = 0;
    pub(super) const BLOCK_SIZE: usize = 4;
    pub(super) const LINKS: usize = 16;
    pub(super) const USER: usize = 20;
    pub(super) const GROUP: usize = 24;
    pub(super) const MODE: usize = 28;
    pub(super) const INODE: usize = 32;
    pub(super) const SIZE: usize = 40;
    pub(super) const BLOCKS: usize = 48;
    pub(super) const ACCESSED: usize = 64;
    pub(super) const CHANGED: usize = 96;
    pub(super) const MODIFIED: usize = 112;
    pub(super) const OF_DEVICE: usize = 128;
    pub(super) const DEVICE: usize = 136;
    pub(super) const SUBVOLUME: usize = 160;
}
/// STATX_SUBVOL.
const SUBVOLUME_MASK: u32 = 0x8000;
/// Minor numbers of the kernel's own nameless devices begin at the other end.
const MINORS: u32 = 1 << 19;

/// Device numbers of subvolumes.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    known: Mutex<HashMap<(Device, TreeId), u32>>,
}

impl Numbers {
    /// The minor number of a subvolume's device; the major number is 0. Two
    /// supervisors nearly always give the same.
    fn minor(&self, device: Device, tree: TreeId) -> u32 {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(minor) = known.get(&(device, tree)) {
            return *minor;
        }
        let spread = tree.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let first = u32::try_from(spread).unwrap_or(0) ^ (device.1 << 7);
        let free = (0..MINORS).find_map(|step| {
            let minor = MINORS | (first.wrapping_add(step) % MINORS);
            (!known.values().any(|one| *one == minor)).then_some(minor)
        });
        let minor = free.unwrap_or(MINORS);
        known.insert((device, tree), minor);
        minor
    }
}

/// The device that statx(2) told.
pub(crate) fn device_of(facts: &[u8; STATX]) -> Device {
    (half(facts, at::DEVICE), half(facts, at::DEVICE + 4))
}

/// Makes the answer of statx(2) that of Btrfs. False for a file of another file
/// system.
pub(crate) fn show(facts: &mut [u8; STATX], mounts: &Mounts, numbers: &Numbers) -> bool {
    let device = device_of(facts);
    let Some(volume) = mounts.find(device) else {
        return false;
    };
    let Some(shown) = volume.shown() else {
        return false;
    };
    let inode = inode_shown_as(word(facts, at::INODE), shown.tree);
    // A number that only its mount understands stays.
    if inode.tree != TreeId(0) {
        put(facts, at::INODE, &inode.number.get().to_ne_bytes());
    }
    let minor = numbers.minor(device, inode.tree);
    put(facts, at::DEVICE, &0_u32.to_ne_bytes());
    put(facts, at::DEVICE + 4, &minor.to_ne_bytes());
    let mask = half(facts, at::MASK) | SUBVOLUME_MASK;
    put(facts, at::MASK, &mask.to_ne_bytes());
    put(facts, at::SUBVOLUME, &inode.tree.get().to_ne_bytes());
    true
}

/// The answer of stat(2) with the facts of statx(2).
pub(crate) fn as_stat(facts: &[u8; STATX]) -> Vec<u8> {
    let number = |at: usize| {
        let (major, minor) = (half(facts, at), half(facts, at + 4));
        libc::makedev(major, minor)
    };
    let mode = half(facts, at::MODE) & 0xffff;
    let links = half(facts, at::LINKS);
    let mut stat = Vec::with_capacity(144);
    let mut add = |bytes: &[u8]| stat.extend_from_slice(bytes);
    add(&number(at::DEVICE).to_ne_bytes());
    add(&word(facts, at::INODE).to_ne_bytes());
    if cfg!(target_arch = "x86_64") {
        add(&u64::from(links).to_ne_bytes());
        add(&mode.to_ne_bytes());
    } else {
        add(&mode.to_ne_bytes());
        add(&links.to_ne_bytes());
    }
    add(&half(facts, at::USER).to_ne_bytes());
    add(&half(facts, at::GROUP).to_ne_bytes());
    if cfg!(target_arch = "x86_64") {
        add(&[0; 4]);
    }
    add(&number(at::OF_DEVICE).to_ne_bytes());
    if !cfg!(target_arch = "x86_64") {
        add(&[0; 8]);
    }
    add(&word(facts, at::SIZE).to_ne_bytes());
    // 8 bytes, or 4 and padding.
    add(&u64::from(half(facts, at::BLOCK_SIZE)).to_ne_bytes());
    add(&word(facts, at::BLOCKS).to_ne_bytes());
    for time in [at::ACCESSED, at::MODIFIED, at::CHANGED] {
        add(&word(facts, time).to_ne_bytes());
        add(&u64::from(half(facts, time + 8)).to_ne_bytes());
    }
    let size = match cfg!(target_arch = "x86_64") {
        true => 144,
        false => 128,
    };
    stat.resize(size, 0);
    stat
}

/// Makes the answer of statfs(2) that of Btrfs. `tree` is the subvolume of what
/// was asked about.
pub(crate) fn show_volume(facts: &mut [u8; STATFS], shown: &Shown, tree: TreeId) {
    let of_fsid = |at: usize| {
        let bytes = shown.fsid.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    };
    let upper = u32::try_from(tree.get() >> 32).unwrap_or(0);
    let lower = u32::try_from(tree.get() & u64::from(u32::MAX)).unwrap_or(0);
    put(facts, 0, &MAGIC.to_ne_bytes());
    put(facts, 56, &(of_fsid(0) ^ of_fsid(8) ^ upper).to_ne_bytes());
    put(facts, 60, &(of_fsid(4) ^ of_fsid(12) ^ lower).to_ne_bytes());
}

/// The subvolume of a file, as [`show`] told it.
pub(crate) fn tree_of(facts: &[u8; STATX]) -> TreeId {
    TreeId(word(facts, at::SUBVOLUME))
}
