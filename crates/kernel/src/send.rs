//! Sending a snapshot by the kernel.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, put};
use butterfs_format::TreeId;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of the request.
const SEND: usize = 72;
/// Leave out data.
pub const SEND_NO_DATA: u64 = 1;
/// Leave out the stream's header.
pub const SEND_NO_HEADER: u64 = 1 << 1;
/// Leave out the command that ends the stream.
pub const SEND_NO_END: u64 = 1 << 2;
/// The version is given.
const SEND_VERSION: u64 = 1 << 3;
/// Send compressed extents as they lie.
pub const SEND_COMPRESSED: u64 = 1 << 4;

/// How the kernel sends a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SendCommand<'f> {
    /// Where the stream goes.
    pub output: BorrowedFd<'f>,
    /// Snapshot that the receiver has.
    pub parent: Option<TreeId>,
    /// Snapshots to clone from.
    pub clone_sources: &'f [TreeId],
    /// [`SEND_NO_DATA`] and the others.
    pub flags: u64,
    /// Version of the stream.
    pub version: u32,
}

/// Has the kernel send a read-only snapshot.
///
/// # Errors
/// What the file system says; EPERM for all but root.
pub fn send(snapshot: BorrowedFd<'_>, command: &SendCommand<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; SEND]>(BTRFS, 38);
    let sources: Vec<u64> = command.clone_sources.iter().map(|id| id.get()).collect();
    let output = i64::from(command.output.as_raw_fd());
    let parent = command.parent.map_or(0, TreeId::get);
    let mut argument = [0; SEND];
    put(&mut argument, 0, &output.to_le_bytes());
    let count = u64::try_from(sources.len()).unwrap_or(0);
    put(&mut argument, 8, &count.to_le_bytes());
    let address = sources.as_ptr().expose_provenance();
    put(&mut argument, 16, &address.to_le_bytes());
    put(&mut argument, 24, &parent.to_le_bytes());
    let flags = command.flags | SEND_VERSION;
    put(&mut argument, 32, &flags.to_le_bytes());
    put(&mut argument, 40, &command.version.to_le_bytes());
    // SAFETY: the request reads exactly 72 bytes and, through them, as many
    // ids as they say; these and the descriptor outlive the call.
    unsafe { ioctl(snapshot, Setter::<NUMBER, _>::new(argument)) }
}
