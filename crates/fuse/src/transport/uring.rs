//! FUSE over io_uring: one call to the kernel sends a reply and waits for the
//! next request.
//!
//! Owns the memory that the kernel and a queue share, and the commands that
//! pass it to and fro. The kernel puts a request into a queue of the CPU that
//! asks. It holds requests back until each possible CPU has a queue. What has
//! no reply (forgets, interrupts) comes through /dev/fuse.
//!
//! Source of the facts: `include/uapi/linux/fuse.h` (`fuse_uring_req_header`,
//! `fuse_uring_cmd_req`) and `Documentation/filesystems/fuse/fuse-io-uring.rst`.
#![allow(unsafe_code, reason = "memory that is shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use super::buffer::AlignedBuffer;
use super::{Queue, Served};
use crate::Errno;
use crate::cpu_wakeup::{BULK, CpuWakeup};
use crate::dispatch::{Outcome, Serve};
use crate::protocol::init::BUFFER_MIN;
use crate::protocol::layout::{InHeader, NotifyRetrieve, OutHeader};
use crate::protocol::notify::Notification;
use crate::protocol::wire::{Reader, Wire, encode, wire};
use crate::protocol::{Malformed, Message, Negotiated, Opcode};
use crate::request_slot::RequestSlot;

const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// Bytes of each part of the shared header.
const HEADER_PART: usize = 128;

wire! {
    /// Beside request and reply: which request it is, and the payload's length.
    struct EntryInOut { flags: u64, commit_id: u64, payload_size: u32, padding: u32, reserved: u64 }
    /// What a command carries in its submission.
    struct CommandIn { flags: u64, commit_id: u64, queue: u16, padding0: u16, padding1: u32 }
}

/// What request and reply have in front of their payload.
#[repr(C, align(8))]
struct Headers {
    in_out: [u8; HEADER_PART],
    operation: [u8; HEADER_PART],
    entry: [u8; EntryInOut::SIZE],
}

/// Where a request and its reply lie, and to which of the kernel's queues they
/// belong.
struct Slot {
    queue: u16,
    headers: Box<Headers>,
    payload: AlignedBuffer,
    /// Where headers and payload lie, as the kernel reads it at registration.
    places: Box<[libc::iovec; 2]>,
}

/// The connection through io_uring, beside /dev/fuse.
#[derive(Debug)]
pub(crate) struct UringTransport {
    device: Arc<OwnedFd>,
    /// Bytes of a slot's payload, request or reply.
    payload: usize,
    /// Bytes of a reply to a request that has a payload itself.
    scratch: usize,
    wakeup: Arc<CpuWakeup>,
    /// The regular file of the last request that was about one.
    file: Arc<AtomicU64>,
    nudges: AtomicU64,
}

impl UringTransport {
    pub(crate) fn new(device: Arc<OwnedFd>, agreed: &Negotiated, wakeup: Arc<CpuWakeup>) -> Self {
        let payload = BUFFER_MIN
            .max(agreed.max_write as usize)
            .max(agreed.max_reply as usize);
        Self {
            device,
            payload,
            scratch: payload + BUFFER_MIN,
            wakeup,
            file: Arc::default(),
            nudges: AtomicU64::new(0),
        }
    }

    /// Makes the kernel look at the requests that wait for a slot of this CPU's
    /// queue, to which a free slot was just added. The kernel looks when a slot
    /// is given back. So it is asked for a request that takes the free slot at
    /// once and has no effect: zero bytes of the cached data of a file. This
    /// must be a regular file that the kernel knows. Without one, requests wait
    /// until another one is done.
    pub(crate) fn nudge(&self) {
        // The kernel finds requests by their number, which must not be zero or
        // that of another request. The kernel counts its own by twos from 2.
        // The lowest bit marks interrupts, and the highest marks what is sent
        // again.
        let number = self.nudges.fetch_add(1, Ordering::Relaxed) + 1;
        let nothing = Notification::Retrieve(NotifyRetrieve {
            notify_unique: 1 << 61 | number << 1,
            nodeid: self.file.load(Ordering::Relaxed),
            offset: 0,
            size: 0,
            padding: 0,
        });
        if let Err(error) = rustix::io::write(&*self.device, &nothing.encode()) {
            tracing::debug!(%error, "requests may wait for each other");
        }
    }

    /// A queue with a slot for each of `queues`, which are numbers of CPUs.
    /// Call it on the thread that uses the queue.
    pub(crate) fn queue(&self, queues: &[u16]) -> io::Result<UringQueue> {
        let mut queue = UringQueue {
            ring: ring(queues.len())?,
            device: Arc::clone(&self.device),
            slots: Vec::with_capacity(queues.len()),
            scratch: AlignedBuffer::new(0, self.scratch),
            wakeup: Arc::clone(&self.wakeup),
            file: Arc::clone(&self.file),
            reads_much: false,
        };
        for number in queues {
            queue.slots.push(Slot::new(*number, self.payload));
            queue.register(queue.slots.len() - 1)?;
        }
        queue.ring.submit()?;
        Ok(queue)
    }
}

/// Whether this process can have this many rings at one time, and open more
/// files besides. Without its rings, a mount of which the kernel was told that
/// there will be rings hangs.
pub(crate) fn rings_are_possible(count: usize) -> io::Result<()> {
    /// The session and its threads open a few before their rings.
    const OTHER_FILES: usize = 32;
    let rings: io::Result<Vec<_>> = (0..count).map(|_| ring(1)).collect();
    let files = descriptors_are_possible(OTHER_FILES);
    rings.map(drop)?;
    files
}

/// Whether this process can open this many more files.
pub(crate) fn descriptors_are_possible(count: usize) -> io::Result<()> {
    let files: Result<Vec<_>, _> = (0..count)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC))
        .collect();
    Ok(files.map(drop)?)
}

/// CPUs that are `possible` (this kernel could ever have them, and wants a queue
/// for each) or `online`.
pub(crate) fn cpus_of(state: &str) -> io::Result<Vec<u16>> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{state}"))?;
    listed(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The numbers of a list like "0-3,6".
fn listed(text: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

fn ring(slots: usize) -> io::Result<IoUring<Entry128, cqueue::Entry>> {
    // The thread that serves a request also copies it, when it asks for a
    // request.
    let slots = slots.next_power_of_two().max(2) as u32;
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .dontfork()
        .build(slots)
}

impl Slot {
    fn new(queue: u16, payload: usize) -> Self {
        let mut headers = Box::new(Headers {
            in_out: [0; HEADER_PART],
            operation: [0; HEADER_PART],
            entry: [0; EntryInOut::SIZE],
        });
        let mut payload = AlignedBuffer::new(0, payload);
        let places = Box::new([
            libc::iovec {
                iov_base: (&raw mut *headers).cast(),
                iov_len: size_of::<Headers>(),
            },
            libc::iovec {
                iov_base: payload.all_mut().as_mut_ptr().cast(),
                iov_len: payload.all_mut().len(),
            },
        ]);
        Self {
            queue,
            headers,
            payload,
            places,
        }
    }

    fn entry(&self) -> Result<EntryInOut, Malformed> {
        Reader::new(&self.headers.entry).load()
    }
}

/// One thread's ring and the slots in it.
pub(crate) struct UringQueue {
    /// Dropped before the memory that the kernel fills through it.
    ring: IoUring<Entry128, cqueue::Entry>,
    device: Arc<OwnedFd>,
    slots: Vec<Slot>,
    scratch: AlignedBuffer,
    wakeup: Arc<CpuWakeup>,
    file: Arc<AtomicU64>,
    reads_much: bool,
}

/// What there is to do.
enum Next {
    /// A request lies in this slot.
    Request(usize),
    Nothing,
    Ended,
    Failed(io::Error),
}

impl Queue for UringQueue {
    fn serve_one(&mut self, server: &dyn Serve, right: &RequestSlot) -> Served {
        let index = match self.next() {
            Next::Request(index) => index,
            Next::Nothing => return Served::Again,
            Next::Ended => return Served::Ended,
            Next::Failed(error) => return Served::Failed(error),
        };
        match self.serve(index, server, right) {
            Ok(()) => Served::Again,
            Err(error) => Served::Failed(error),
        }
    }
}

impl UringQueue {
    /// Whether the last request was a read large enough to be served best
    /// beside its caller.
    pub(crate) const fn reads_much(&self) -> bool {
        self.reads_much
    }

    /// Gives up a queue that failed. Its memory is lost: the kernel may still
    /// write into it.
    pub(crate) fn abandon(self) {
        let Self { ring, slots, .. } = self;
        drop(ring);
        std::mem::forget(slots);
    }

    /// Sends what waits to be sent and takes the next completion.
    fn next(&mut self) -> Next {
        // Send replies now: they must not wait for a request in another slot.
        if self.slots.len() > 1
            && let Err(error) = self.ring.submit()
        {
            return after(error);
        }
        if let Some(entry) = self.ring.completion().next() {
            return understood(&entry);
        }
        match self.ring.submit_and_wait(1) {
            Ok(_) => Next::Nothing,
            Err(error) => after(error),
        }
    }

    fn serve(&mut self, index: usize, server: &dyn Serve, right: &RequestSlot) -> io::Result<()> {
        let Self {
            slots,
            scratch,
            wakeup,
            file,
            reads_much,
            ..
        } = self;
        let slot = &mut slots[index];
        let (entry, header) = match slot.arrived() {
            Ok(arrived) => arrived,
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        if Opcode::from_number(header.opcode).is_some_and(Opcode::is_of_a_file) {
            file.store(header.nodeid, Ordering::Relaxed);
        }
        let Slot {
            headers, payload, ..
        } = slot;
        let reads = Message::apart(header, &headers.operation, &[]).reads();
        wakeup.serves(rustix::thread::sched_getcpu(), header.pid, reads);
        *reads_much = reads >= BULK;
        let (outcome, reply) = if entry.payload_size == 0 {
            // The payload has nothing of the request, so the reply may take
            // its place.
            let message = Message::apart(header, &headers.operation, &[]);
            (server.serve(&message, right, payload.all_mut()), None)
        } else {
            let rest = payload.first(entry.payload_size as usize);
            let message = Message::apart(header, &headers.operation, rest);
            (
                server.serve(&message, right, scratch.all_mut()),
                Some(scratch),
            )
        };
        let (error, len) = match outcome {
            Outcome::Silent => (0, 0),
            Outcome::Data(len) if len <= payload.all_mut().len() => (0, len),
            // No operation has a reply larger than both sides agreed on.
            Outcome::Data(_) => (-Errno::EIO.0, 0),
            Outcome::Error(error) => (-error.0, 0),
        };
        if let Some(reply) = reply {
            payload.all_mut()[..len].copy_from_slice(reply.first(len));
        }
        encode(
            &OutHeader {
                len: (OutHeader::SIZE + len) as u32,
                error,
                unique: header.unique,
            },
            &mut headers.in_out,
        );
        encode(
            &EntryInOut {
                payload_size: len as u32,
                ..entry
            },
            &mut headers.entry,
        );
        self.command(index, CMD_COMMIT_AND_FETCH, entry.commit_id)
    }

    /// Gives a slot to the kernel for the first time.
    fn register(&mut self, index: usize) -> io::Result<()> {
        self.command(index, CMD_REGISTER, 0)
    }

    /// Prepares a command; the next wait sends it.
    fn command(&mut self, index: usize, command: u32, commit_id: u64) -> io::Result<()> {
        /// Where the length is in a submission: the iovecs. The crate's command
        /// has no field for it.
        const LENGTH_AT: usize = 24;
        let slot = &self.slots[index];
        let mut carried = [0; 80];
        encode(
            &CommandIn {
                flags: 0,
                commit_id,
                queue: slot.queue,
                padding0: 0,
                padding1: 0,
            },
            &mut carried,
        );
        let mut entry: Entry128 =
            opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), command)
                .cmd(carried)
                .addr(Some(slot.places.as_ptr() as u64))
                .build()
                .user_data(index as u64);
        // SAFETY: an Entry128 is a submission of 128 bytes as the kernel has it
        // (`repr(C)`), whose 32-bit length is at that place.
        unsafe {
            (&raw mut entry)
                .cast::<u8>()
                .add(LENGTH_AT)
                .cast::<u32>()
                .write(slot.places.len() as u32);
        }
        // SAFETY: what the command points to (`places`, and what they point to)
        // lives as long as the ring and is not touched before the completion.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // One command at a time for each slot: there is room for all.
        pushed.map_err(io::Error::other)
    }
}

impl Slot {
    /// The request in this slot, without its payload.
    fn arrived(&self) -> Result<(EntryInOut, InHeader), Malformed> {
        let entry = self.entry()?;
        let header = Reader::new(&self.headers.in_out).load()?;
        match entry.payload_size as usize <= self.places[1].iov_len {
            true => Ok((entry, header)),
            false => Err(Malformed("its payload is longer than the room for it")),
        }
    }
}

fn understood(entry: &cqueue::Entry) -> Next {
    match -entry.result() {
        0 => Next::Request(entry.user_data() as usize),
        // The connection ended, or the ring with it.
        libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Next::Ended,
        error => Next::Failed(io::Error::from_raw_os_error(error)),
    }
}

/// What a failed call means.
fn after(error: io::Error) -> Next {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME) => Next::Nothing,
        _ => Next::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        assert_eq!(listed("0\n"), Some(vec![0]));
        assert_eq!(listed("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(listed(""), None);
        assert_eq!(listed("a-b"), None);
        assert!(!cpus_of("online").unwrap().is_empty());
    }
}
