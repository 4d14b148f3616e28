//! Direct I/O: requests that pass the system's page cache by.
//!
//! Owns the descriptor for it, what it takes (whole blocks, memory at certain
//! addresses), and the buffers for requests that are not like that.
//!
//! Invariants: a call returns only when its requests are done. The page cache
//! has nothing of the device that was changed before the descriptor was opened.

mod gather;
mod lane;
mod ring;

use crate::block_device::parts_length;
use crate::parts::{self, PARTS_MAX, after};
use crate::{Access, DeviceRange, NotDirect, WriteRequest, sys};
use gather::{Gather, Rest};
use lane::{Gathered, LANE_BYTES, Lanes};
use ring::{Done, Ring, RingWrite};
use rustix::fs::{Advice, AtFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

/// Blocks may be as large as the smallest sector of a volume.
const BLOCK_MAX: u32 = 4096;

/// A regular file or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    RegularFile,
    BlockDevice,
}

/// What direct I/O takes.
#[derive(Clone, Copy, Debug)]
struct Alignment {
    /// Parts begin at multiples of this in memory.
    memory: usize,
    /// Parts are multiples of this, and begin at multiples of it on the device.
    block: usize,
}

/// An open file or block device, by direct I/O.
#[derive(Debug)]
pub(crate) struct Direct {
    kind: FileKind,
    alignment: Alignment,
    lanes: Lanes,
}

impl Direct {
    /// Opens `file`, of `size` bytes, a second time for direct I/O.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(crate) fn open(
        file: &File,
        kind: FileKind,
        access: Access,
        size: u64,
    ) -> Result<Self, NotDirect> {
        let alignment = alignment_of(file, kind)?;
        let block = alignment.block;
        if !size.is_multiple_of(u64::try_from(block).unwrap_or(u64::MAX)) {
            return Err(NotDirect::OddSize(u32::try_from(block).unwrap_or(u32::MAX)));
        }
        let refused = |error: io::Error| {
            NotDirect::Refused(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
        };
        // The name of the path may lead elsewhere by now.
        let same = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK)
            .open(same)
            .map_err(refused)?;
        if access == Access::ReadWrite {
            // Whoever wrote through the page cache before may have left
            // something there that would be written later.
            rustix::fs::fdatasync(file).map_err(NotDirect::Refused)?;
            forget_cached(file, 0, 0);
        }
        Ok(Self {
            kind,
            alignment,
            lanes: Lanes::new(direct, block).map_err(NotDirect::NoRing)?,
        })
    }

    /// Whether a write needs no bytes beside it.
    pub(crate) fn takes(&self, range: DeviceRange) -> bool {
        let block = u64::try_from(self.alignment.block).unwrap_or(u64::MAX);
        range.start.get().is_multiple_of(block) && range.length.is_multiple_of(block)
    }

    /// Whether the device may use this memory itself.
    fn takes_memory<P: Deref<Target = [u8]>>(&self, parts: &[P]) -> bool {
        let Alignment { memory, block } = self.alignment;
        parts.iter().all(|part| {
            part.as_ptr().addr().is_multiple_of(memory) && part.len().is_multiple_of(block)
        })
    }

    /// Fills `parts` from `offset` on.
    ///
    /// # Errors
    /// Those of the system; the end of the file.
    pub(crate) fn read(&self, offset: u64, parts: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut at = offset;
        let mut left = parts;
        IoSliceMut::advance_slices(&mut left, 0);
        let whole = DeviceRange::of_buffer(butterfs_format::DeviceOffset(at), parts_length(left));
        self.settle(whole);
        if self.takes(whole) && self.takes_memory(left) {
            let read = parts::read(self.lanes.file(), at, &mut left, self.alignment.block)?;
            at = after(at, read);
        }
        if left.is_empty() {
            return Ok(());
        }
        let mut lane = self.lanes.take();
        let (buffer, _) = lane.parts();
        while !left.is_empty() {
            let filled = self.read_piece(at, left, buffer)?;
            at = after(at, filled);
            IoSliceMut::advance_slices(&mut left, filled);
        }
        Ok(())
    }

    /// Fills the beginning of `parts` by way of the buffer. Gives the number of
    /// bytes.
    fn read_piece(
        &self,
        at: u64,
        parts: &mut [IoSliceMut<'_>],
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let block = self.alignment.block;
        let before = at
            .checked_rem(u64::try_from(block).unwrap_or(1))
            .and_then(|rest| usize::try_from(rest).ok())
            .unwrap_or(0);
        let wanted = before.saturating_add(parts_length(parts));
        let wanted = wanted.next_multiple_of(block).min(buffer.len());
        let start = at.saturating_sub(u64::try_from(before).unwrap_or(0));
        let whole = buffer.get_mut(..wanted).unwrap_or_default();
        // Behind the last block that was asked for the file may end.
        let read = loop {
            match rustix::io::pread(self.lanes.file(), &mut *whole, start) {
                Err(Errno::INTR) => {}
                read => break read?,
            }
        };
        let mut found = buffer.get(before..read).unwrap_or_default();
        if found.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut filled = 0_usize;
        for part in parts {
            let (now, later) = found.split_at(part.len().min(found.len()));
            if let Some(part) = part.get_mut(..now.len()) {
                part.copy_from_slice(now);
            }
            filled = filled.saturating_add(now.len());
            found = later;
        }
        Ok(filled)
    }

    /// Waits for earlier writes of a range for which nobody waited.
    pub(crate) fn settle(&self, range: DeviceRange) {
        self.lanes.settle(&(range.start.get()..range.end().get()));
    }

    /// Waits for earlier writes of a range, and tells what failed of them.
    ///
    /// # Errors
    /// That of the first write that failed; nobody else is told.
    pub(crate) fn finish(&self, range: DeviceRange) -> Result<(), Arc<io::Error>> {
        self.lanes.finish(&(range.start.get()..range.end().get()))
    }

    /// Waits for all writes that began before this call.
    ///
    /// # Errors
    /// A write failed of which nobody was told.
    pub(crate) fn settle_all(&self) -> Result<(), Arc<io::Error>> {
        self.lanes.settle_all()
    }

    fn gather(&self) -> Gather {
        Gather::new(self.alignment.block.max(self.alignment.memory))
    }

    /// Begins to write requests of whole blocks. [`Direct::finish`] waits for
    /// them.
    pub(crate) fn write_behind(&self, requests: &[WriteRequest<'_>]) {
        for request in requests {
            self.settle(request.range());
        }
        let mut lane = self.lanes.take();
        let mut gather = self.gather();
        for request in requests {
            let mut rest = Rest::of(request);
            while !gather.add(lane.parts().0, &mut rest) {
                lane.write_behind(std::mem::replace(&mut gather, self.gather()).writes);
                lane = self.lanes.take();
            }
        }
        lane.write_behind(gather.writes);
    }

    /// Writes requests of whole blocks, all of them at the same time if they
    /// are few.
    ///
    /// # Errors
    /// The first one; the other requests are done nevertheless.
    pub(crate) fn write(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        for request in requests {
            self.settle(request.range());
        }
        let mut lane = self.lanes.take();
        let (buffer, mut ring) = lane.parts();
        let mut in_place: Vec<RingWrite<'_>> = Vec::new();
        let mut gather = self.gather();
        let mut outcome = Ok(());
        for request in requests {
            if request.parts.len() <= PARTS_MAX && self.takes_memory(request.parts) {
                in_place.push(RingWrite {
                    offset: request.offset.get(),
                    parts: request.parts,
                });
                continue;
            }
            let mut rest = Rest::of(request);
            while !gather.add(buffer, &mut rest) {
                outcome = outcome.and(self.write_now(&[], (buffer, &gather.writes), &mut ring));
                gather.clear();
            }
        }
        outcome.and(self.write_now(&in_place, (buffer, &gather.writes), &mut ring))
    }

    /// Does writes from the caller's memory, and those that are in a buffer.
    fn write_now(
        &self,
        in_place: &[RingWrite<'_>],
        (buffer, gathered): (&[u8], &[Gathered]),
        ring: &mut Option<&mut Ring>,
    ) -> io::Result<()> {
        let slice = |write: &Gathered| {
            let bytes = buffer.get(write.bytes.clone()).unwrap_or_default();
            [IoSlice::new(bytes)]
        };
        let slices: Vec<[IoSlice<'_>; 1]> = gathered.iter().map(slice).collect();
        let gathered = gathered
            .iter()
            .zip(&slices)
            .map(|(write, parts)| RingWrite {
                offset: write.offset,
                parts,
            });
        let in_place = in_place.iter().copied();
        let writes: Vec<RingWrite<'_>> = in_place.chain(gathered).collect();
        let done = match ring {
            Some(ring) if writes.len() > 1 => ring.write(self.lanes.file(), &writes, Done::Taken),
            _ => writes.iter().map(|_| Ok(0)).collect(),
        };
        let mut outcome = Ok(());
        for (write, done) in writes.iter().zip(done) {
            let unit = self.alignment.block;
            let rest =
                |done| parts::write(self.lanes.file(), write.offset, write.parts, (done, unit));
            outcome = outcome.and(done.and_then(rest));
        }
        outcome
    }

    /// Writes whole blocks and makes them durable. Says nothing about other
    /// writes.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn write_durably(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.lanes.settle(&(offset..after(offset, data.len())));
        let mut lane = self.lanes.take();
        let (buffer, ring) = lane.parts();
        let parts = [IoSlice::new(data)];
        let data = match buffer.get_mut(..data.len()) {
            Some(copy) if !self.takes_memory(&parts) => {
                copy.copy_from_slice(data);
                &*copy
            }
            _ => data,
        };
        let parts = [IoSlice::new(data)];
        let parts = &parts[..];
        // A block device writes with FUA then. By pwritev2 it would be flushed
        // after that nevertheless.
        if self.kind == FileKind::BlockDevice
            && let Some(ring) = ring
        {
            let write = [RingWrite { offset, parts }];
            let done = ring.write(self.lanes.file(), &write, Done::Durable).pop();
            if done.transpose()? == Some(data.len()) {
                return Ok(());
            }
        }
        loop {
            return match rustix::io::pwritev2(
                self.lanes.file(),
                parts,
                offset,
                ReadWriteFlags::DSYNC,
            ) {
                Ok(written) if written == data.len() => Ok(()),
                Err(Errno::INTR) => continue,
                Ok(_) | Err(Errno::OPNOTSUPP) => {
                    let unit = self.alignment.block;
                    parts::write(self.lanes.file(), offset, parts, (0, unit))?;
                    Ok(rustix::fs::fdatasync(self.lanes.file())?)
                }
                Err(errno) => Err(errno.into()),
            };
        }
    }
}

/// Takes what the page cache has of `length` bytes from `offset` on out of it;
/// a length of 0 means all behind it. This is advice: what others are just
/// reading stays.
pub(crate) fn forget_cached(file: &File, offset: u64, length: u64) {
    let length = std::num::NonZeroU64::new(length);
    let _ = rustix::fs::fadvise(file, offset, length, Advice::DontNeed);
}

fn alignment_of(file: &File, kind: FileKind) -> Result<Alignment, NotDirect> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|facts| StatxFlags::from_bits_retain(facts.stx_mask).contains(StatxFlags::DIOALIGN))
        .map(|facts| (facts.stx_dio_mem_align, facts.stx_dio_offset_align));
    let (memory, block) = match (told, kind) {
        (Some(told), _) => told,
        (None, FileKind::RegularFile) => (0, 0),
        (None, FileKind::BlockDevice) => {
            let size = sys::logical_block_size(file.as_fd()).map_err(NotDirect::Refused)?;
            (size, size)
        }
    };
    if memory == 0 || block == 0 {
        return Err(NotDirect::NotOffered);
    }
    let coarsest = memory.max(block);
    if coarsest > BLOCK_MAX || !memory.is_power_of_two() || !block.is_power_of_two() {
        return Err(NotDirect::TooCoarse(coarsest));
    }
    let size = |bytes: u32| usize::try_from(bytes).unwrap_or(LANE_BYTES);
    Ok(Alignment {
        memory: size(memory),
        block: size(block),
    })
}
