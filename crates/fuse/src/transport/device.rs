//! /dev/fuse: one read per request, one write per reply.
//!
//! Owns the device's error conventions and the cloning of its descriptor, so
//! that each thread has its own processing queue in the kernel. Replies go to
//! the descriptor the request came from.
#![allow(unsafe_code, reason = "the clone ioctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Os;

use super::buffer::AlignedBuffer;
use super::follow::Follower;
use super::{Queue, Served, Transport};
use crate::Errno;
use crate::cpu_wakeup::CpuWakeup;
use crate::dispatch::{Outcome, Serve};
use crate::mount::{Unmounter, above};
use crate::protocol::init::BUFFER_MIN;
use crate::protocol::layout::{InHeader, OutHeader, WriteIn};
use crate::protocol::wire::{Reader, Wire, encode};
use crate::protocol::{Features, Malformed, Message, Negotiated, Opcode};
use crate::request_slot::RequestSlot;

/// The path of the device.
pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

/// `_IOR(229, 0, u32)`
const FUSE_DEV_IOC_CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

/// Headers in front of a write's data.
const REQUEST_LEAD: usize = InHeader::SIZE + WriteIn::SIZE;

/// Room for what is not write data: names, targets, values, extensions.
const REQUEST_SPARE: usize = 128 << 10;

/// Forgets that come within this time are read together, if nothing else comes
/// here.
const GATHERING: Duration = Duration::from_millis(5);

/// The connection through /dev/fuse.
#[derive(Debug)]
pub(crate) struct DeviceTransport {
    device: Arc<OwnedFd>,
    capacity: Capacity,
    wakeup: Arc<CpuWakeup>,
    /// Learns when the kernel says that the file system is unmounted; `None` if
    /// the kernel says the same of a connection that was aborted.
    unmounter: Option<Unmounter>,
    /// Requests come through io_uring. What has no reply comes here.
    is_beside: bool,
}

/// Bytes of the buffers' data parts.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    request: usize,
    reply: usize,
}

impl DeviceTransport {
    pub(crate) fn new(
        device: Arc<OwnedFd>,
        agreed: &Negotiated,
        wakeup: Arc<CpuWakeup>,
        unmounter: Unmounter,
    ) -> Self {
        let request = (agreed.max_write as usize).max(REQUEST_SPARE);
        // Listings and values may exceed the page an ioctl's result takes.
        let reply = (agreed.max_reply as usize).max(BUFFER_MIN) + BUFFER_MIN;
        Self {
            device,
            capacity: Capacity { request, reply },
            wakeup,
            unmounter: (agreed.features.contains(Features::ABORT_ERROR)).then_some(unmounter),
            is_beside: agreed.features.contains(Features::OVER_IO_URING),
        }
    }
}

impl Transport for DeviceTransport {
    type Queue = DeviceQueue;

    fn queue(&self) -> io::Result<DeviceQueue> {
        Ok(DeviceQueue {
            device: clone_device(self.device.as_fd())?,
            request: AlignedBuffer::new(REQUEST_LEAD, self.capacity.request),
            reply: AlignedBuffer::new(OutHeader::SIZE, self.capacity.reply),
            follower: Follower::new(Arc::clone(&self.wakeup)),
            unmounter: self.unmounter.clone(),
            is_beside: self.is_beside,
        })
    }

    fn has_several_callers(&self) -> bool {
        // Beside io_uring there is nothing to serve but forgets.
        !self.is_beside && self.wakeup.has_several_callers()
    }
}

/// A descriptor with its own processing queue. If the device may not be opened
/// again (an ordinary user and a private /dev/fuse), a shared one. Its number is
/// greater than that of `device`, see `mount/namespace`.
fn clone_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let cloned = rustix::fs::open(DEVICE_PATH, flags, Mode::empty()).and_then(|clone| {
        // A descriptor is never negative.
        let source = device.as_raw_fd() as u32;
        // SAFETY: the opcode reads one u32 through the pointer that `Setter`
        // passes, and the kernel only looks up the descriptor in it.
        unsafe {
            let setter = rustix::ioctl::Setter::<FUSE_DEV_IOC_CLONE, u32>::new(source);
            rustix::ioctl::ioctl(&clone, setter)?;
        }
        Ok(clone)
    });
    match cloned {
        Ok(clone) => above(clone, device.as_raw_fd()),
        Err(error) => {
            tracing::debug!(%error, "threads share one queue of {DEVICE_PATH}");
            Ok(rustix::io::fcntl_dupfd_cloexec(
                device,
                device.as_raw_fd() + 1,
            )?)
        }
    }
}

/// One thread's descriptor and buffers.
pub(crate) struct DeviceQueue {
    device: OwnedFd,
    request: AlignedBuffer,
    reply: AlignedBuffer,
    follower: Follower,
    unmounter: Option<Unmounter>,
    is_beside: bool,
}

impl Queue for DeviceQueue {
    fn serve_one(&mut self, server: &dyn Serve, slot: &RequestSlot) -> Served {
        let len = match receive(self.device.as_fd(), self.request.all_mut()) {
            Ok(Received::Bytes(len)) => len,
            Ok(Received::Nothing) => return Served::Again,
            Ok(Received::Unmounted) => {
                if let Some(unmounter) = &self.unmounter {
                    unmounter.set_gone();
                }
                return Served::Ended;
            }
            Ok(Received::Aborted) => return Served::Ended,
            Err(error) => return Served::Failed(error),
        };
        let bytes = self.request.first(len);
        let message = match Message::whole(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.refuse(len, error);
                return Served::Again;
            }
        };
        let (unique, caller) = (message.header.unique, message.header.pid);
        if self.is_beside {
            let opcode = Opcode::from_number(message.header.opcode);
            let is_forget = matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget));
            // Anything else that comes here shows that the kernel does without
            // io_uring.
            self.is_beside = is_forget || opcode == Some(Opcode::Interrupt);
            if is_forget {
                let (_, data) = self.reply.parts_mut();
                server.serve(&message, slot, data);
                // Nobody waits for a forget, and each one that found this
                // thread waiting would wake a CPU.
                std::thread::sleep(GATHERING);
                return Served::Again;
            }
        }
        let reads = message.reads();
        let pause = self.follower.arrived(caller, reads);
        let (_, data) = self.reply.parts_mut();
        let outcome = server.serve(&message, slot, data);
        self.answer(unique, outcome);
        // The thread that left the request slot waited for something other than
        // a request.
        if slot.index().is_some() {
            self.follower
                .answered(caller, reads, pause, slot.placement());
        }
        Served::Again
    }
}

impl DeviceQueue {
    /// Answers a request that is not one, if it has a number at all.
    fn refuse(&mut self, len: usize, error: Malformed) {
        tracing::error!(%error, len, "answered EIO");
        if let Ok(header) = Reader::new(self.request.first(len)).load::<InHeader>() {
            self.answer(header.unique, Outcome::Error(Errno::EIO));
        }
    }

    fn answer(&mut self, unique: u64, outcome: Outcome) {
        let sent = match outcome {
            Outcome::Silent => return,
            Outcome::Data(len) => self.send(unique, 0, len),
            Outcome::Error(error) => self.send(unique, -error.0, 0),
        };
        match sent {
            Ok(()) => {}
            // The caller was interrupted and is gone, or the whole connection
            // ended.
            Err(Os::NOENT | Os::NODEV) => {}
            Err(error) => {
                tracing::error!(%error, ?outcome, "the kernel refused a reply");
                if matches!(outcome, Outcome::Data(_)) {
                    let _ = self.send(unique, -Errno::EIO.0, 0);
                }
            }
        }
    }

    fn send(&mut self, unique: u64, error: i32, data: usize) -> Result<(), Os> {
        let len = OutHeader::SIZE + data;
        let (head, _) = self.reply.parts_mut();
        // Replies are bounded by buffers far below 4 GiB.
        encode(
            &OutHeader {
                len: len as u32,
                error,
                unique,
            },
            head,
        );
        rustix::io::retry_on_intr(|| rustix::io::write(&self.device, self.reply.first(len)))
            .map(|_| ())
    }
}

/// What a read of the device brought.
enum Received {
    Bytes(usize),
    Nothing,
    /// No mount of the file system is left. Without `ABORT_ERROR` also
    /// [`Received::Aborted`].
    Unmounted,
    Aborted,
}

fn receive(device: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    match rustix::io::read(device, buffer) {
        Ok(len) => Ok(Received::Bytes(len)),
        // ENOENT: the request was interrupted before it was read.
        Err(Os::INTR | Os::NOENT) => Ok(Received::Nothing),
        Err(Os::AGAIN) => {
            let mut wait = [PollFd::from_borrowed_fd(device, PollFlags::IN)];
            match poll(&mut wait, None) {
                Ok(_) | Err(Os::INTR) => Ok(Received::Nothing),
                Err(error) => Err(error.into()),
            }
        }
        Err(Os::NODEV) => Ok(Received::Unmounted),
        Err(Os::CONNABORTED) => Ok(Received::Aborted),
        Err(error) => Err(error.into()),
    }
}

/// What to do about a message received before any request is served.
pub(crate) enum Handshake<T> {
    /// Answer, and wait for another.
    Retry(Vec<u8>),
    /// Answer; agreed.
    Done(Vec<u8>, T),
    /// Answer with an error; not agreed.
    Refused(Errno, T),
}

/// Receives messages until `decide` settles, and answers them.
pub(crate) fn handshake<T>(
    device: BorrowedFd<'_>,
    mut decide: impl FnMut(&Message<'_>) -> Handshake<T>,
) -> io::Result<T> {
    let mut buffer = vec![0; REQUEST_SPARE];
    let reply = |unique: u64, error: i32, data: &[u8]| {
        let mut bytes = vec![0; OutHeader::SIZE + data.len()];
        let len = bytes.len() as u32;
        encode(&OutHeader { len, error, unique }, &mut bytes);
        bytes[OutHeader::SIZE..].copy_from_slice(data);
        rustix::io::write(device, &bytes)
    };
    loop {
        let len = match receive(device, &mut buffer)? {
            Received::Bytes(len) => len,
            Received::Nothing => continue,
            Received::Unmounted | Received::Aborted => return Err(Os::NODEV.into()),
        };
        let message = Message::whole(&buffer[..len])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let unique = message.header.unique;
        match decide(&message) {
            Handshake::Retry(data) => {
                reply(unique, 0, &data)?;
            }
            Handshake::Done(data, value) => {
                reply(unique, 0, &data)?;
                return Ok(value);
            }
            Handshake::Refused(error, value) => {
                reply(unique, -error.0, &[])?;
                return Ok(value);
            }
        }
    }
}
