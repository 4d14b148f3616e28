//! The memory of the caller.
//!
//! Owns reading and writing what the kernel does not pass on: arguments behind
//! pointers, and arguments of requests whose number states the wrong direction.
//! That needs the right to trace the caller. Without it the answer is EPERM.

use butterfs_fuse::{Context, Errno};
use std::fs::File;
use std::os::unix::fs::FileExt;

fn memory(context: &Context<'_>) -> Result<File, Errno> {
    let path = format!("/proc/{}/mem", context.pid);
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|_| Errno::EPERM)
}

/// Bytes of the caller's memory.
pub(super) fn read_caller(
    context: &Context<'_>,
    address: u64,
    length: usize,
) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length];
    memory(context)?
        .read_exact_at(&mut bytes, address)
        .map_err(|_| Errno(libc::EFAULT))?;
    Ok(bytes)
}

/// Puts bytes into the caller's memory.
pub(super) fn write_caller(context: &Context<'_>, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    memory(context)?
        .write_all_at(bytes, address)
        .map_err(|_| Errno(libc::EFAULT))
}
