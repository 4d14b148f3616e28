//! How requests get from the kernel to a thread and replies back.
//!
//! Owns the contract for transports: one queue per thread, each request served
//! inline on the thread that took it. `device` is /dev/fuse, `uring` io_uring.

mod buffer;
mod device;
mod follow;
mod uring;

use std::io;

pub(crate) use device::{DEVICE_PATH, DeviceTransport, Handshake, handshake};
pub(crate) use uring::{
    UringQueue, UringTransport, cpus_of, descriptors_are_possible, rings_are_possible,
};

use crate::dispatch::Serve;
use crate::request_slot::RequestSlot;

/// A connection from which every thread takes its own queue.
pub(crate) trait Transport: Send + Sync + Sized + 'static {
    /// One thread's part of the connection.
    type Queue: Queue;

    /// Opens a queue; called on the thread that will use it.
    fn queue(&self) -> io::Result<Self::Queue>;

    /// Whether requests of several callers are mixed.
    fn has_several_callers(&self) -> bool;
}

/// What became of one turn.
#[derive(Debug)]
pub(crate) enum Served {
    /// There may be more.
    Again,
    /// The file system was unmounted or the connection aborted.
    Ended,
    /// This queue cannot go on.
    Failed(io::Error),
}

/// One thread's queue.
pub(crate) trait Queue {
    /// Waits for a request, has it served and sends the reply.
    fn serve_one(&mut self, server: &dyn Serve, slot: &RequestSlot) -> Served;
}
