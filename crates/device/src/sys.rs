//! System calls on block devices and signals that have no safe wrapper
//! elsewhere.
//!
//! Owns all unsafe code of this crate but that of [`crate::helpers`] and of the
//! rings of [`crate::direct`].
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::DeviceRange;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of a block device (`BLKGETSIZE64`).
pub(crate) fn block_device_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    // The number is declared with size_t in the kernel's headers, although
    // the value is always 64 bits wide.
    const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
    // SAFETY: BLKGETSIZE64 writes one u64 to its argument and nothing else;
    // Getter passes a pointer to memory for exactly one u64. On a descriptor
    // that is no block device it fails without touching the argument.
    unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Bytes of a logical block of a block device (`BLKSSZGET`).
pub(crate) fn logical_block_size(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
    const BLKSSZGET: rustix::ioctl::Opcode = opcode::none(0x12, 104);
    // SAFETY: BLKSSZGET writes one int to its argument and nothing else; Getter
    // passes a pointer to memory for exactly one int. On a descriptor that is no
    // block device it fails without touching the argument.
    let found: libc::c_int = unsafe { ioctl(fd, Getter::<BLKSSZGET, libc::c_int>::new())? };
    u32::try_from(found).map_err(|_| Errno::INVAL)
}

/// Whether the system keeps a block device from being written (`BLKROGET`).
pub(crate) fn is_write_protected(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    const BLKROGET: rustix::ioctl::Opcode = opcode::none(0x12, 94);
    // SAFETY: BLKROGET writes one int to its argument and nothing else; Getter
    // passes a pointer to memory for exactly one int. On a descriptor that is no
    // block device it fails without touching the argument.
    let found: libc::c_int = unsafe { ioctl(fd, Getter::<BLKROGET, libc::c_int>::new())? };
    Ok(found != 0)
}

/// The device and the inode number of the file behind a loop device
/// (`LOOP_GET_STATUS64`), as in stat(2).
pub(crate) fn file_behind_loop(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    const LOOP_GET_STATUS64: rustix::ioctl::Opcode = 0x4c05;
    /// Words of `struct loop_info64`. The first two are what is wanted.
    const WORDS: usize = 29;
    // SAFETY: LOOP_GET_STATUS64 writes one struct loop_info64, 232 bytes of
    // plain numbers, to its argument; Getter passes a pointer to memory for
    // exactly that. Other devices refuse the number.
    let found: [u64; WORDS] =
        unsafe { ioctl(fd, Getter::<LOOP_GET_STATUS64, [u64; WORDS]>::new())? };
    Ok((found[0], found[1]))
}

/// Discards a range of a block device (`BLKDISCARD`).
pub(crate) fn block_device_discard(fd: BorrowedFd<'_>, range: DeviceRange) -> Result<(), Errno> {
    const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);
    let argument = [range.start.get(), range.length];
    // SAFETY: BLKDISCARD reads two u64 (start and length in bytes) from its
    // argument; Setter passes a pointer to exactly that and outlives the call.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new(argument)) }
}

/// Gives memory that the allocator keeps for later back to the system.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim touches nothing but the allocator's own free memory, under
    // its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Tells the allocator of a process that may use only `memory` bytes to keep little
/// for later. For the beginning of a program, before it has threads.
///
/// What a thread frees in one of the allocator's areas, threads of another area do
/// not use. So there is one for each processor, where glibc would make eight: a
/// server of 50 busy clients needs 90 MiB less.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn keep_little_free_memory(memory: u64) {
    /// With less memory than this the allocator's own share matters.
    const SMALL: u64 = 512 << 20;
    const AREAS_MIN: usize = 2;
    /// Free memory at the end of an area that is given back.
    const KEPT: libc::c_int = 1 << 20;
    let is_small = memory < SMALL;
    let processors = std::thread::available_parallelism().map_or(AREAS_MIN, usize::from);
    let areas = match is_small {
        true => AREAS_MIN,
        false => processors.max(AREAS_MIN),
    };
    let areas = libc::c_int::try_from(areas).unwrap_or(libc::c_int::MAX);
    // SAFETY: mallopt changes numbers of the allocator; there are no other
    // threads that could read them.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, areas);
        if is_small {
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_little_free_memory(_memory: u64) {}

/// Tells the allocator of a program that runs for long to return large
/// allocations (from 128 KiB on) to the system as soon as they are freed. By
/// default glibc learns from the first such one to keep them, in an area for
/// each thread: a server of 50 busy clients had 980 MiB so, and uses 250.
pub fn return_large_allocations() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    const LARGE: libc::c_int = 128 << 10;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt changes a number of the allocator, under its locks.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail with EFBIG,
/// in the whole process. Otherwise SIGXFSZ would end the process.
pub fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN installs no code; the call changes the disposition of one
    // signal and touches no memory of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
