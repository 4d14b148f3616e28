//! A device that is a regular file or a block device.

mod ahead;
mod opening;

use crate::block_device::{check_length, check_range, check_writable, parts_length};
use crate::direct::{Direct, FileKind, forget_cached};
use crate::holder::{self, DeviceNumber};
use crate::parts::{self, PARTS_MAX, after};
use crate::{
    Access, BlockDevice, Caching, DeviceError, DeviceRange, NotDirect, Operation, WriteRequest,
    sys, waiting,
};
use ahead::Ahead;
use butterfs_format::DeviceOffset;
use opening::{busy, kind_of, lock, lock_backing, open, open_error, set_length};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Whether an opening takes the lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Taken,
    Left,
}

/// Whether a write waits until the device has the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    UntilDone,
    NotAtAll,
}

/// A regular file or a block device, by direct I/O or through the page cache.
///
/// Read-write use is exclusive. An exclusive open of block devices, and a
/// search for loop devices over a file, keep out the kernel and its mounts. A
/// lock on the file keeps out other processes; a read-only open takes this lock
/// shared, unless it only looks ([`FileDevice::open_unlocked`]). A loop device
/// that is not in use does not count as use of its file.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The same file by direct I/O.
    direct: Result<Direct, NotDirect>,
    /// Which blocks of an image are allocated ahead, where that helps.
    ahead: Option<Ahead>,
    path: PathBuf,
    kind: FileKind,
    access: Access,
    size: AtomicU64,
    /// The exclusive open of a block device, until it is handed over.
    claim: Mutex<Option<File>>,
    /// The locked file behind a loop device, so that nobody opens the same
    /// bytes by the other name.
    backing: Option<File>,
    /// Whether it was released. Writes hold it for reading while they last.
    released: RwLock<bool>,
}

impl FileDevice {
    /// Opens what exists at `path`. Its size is that of this moment.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when something else uses it,
    /// [`DeviceError::NotADevice`], [`DeviceError::Io`].
    pub fn open(path: &Path, access: Access) -> Result<Self, DeviceError> {
        // Exclusive for block devices; without meaning for files.
        let claim = match access {
            Access::ReadWrite => Some(open(path, access, libc::O_EXCL)?),
            Access::ReadOnly => None,
        };
        let device = Self::adopt(open(path, access, 0)?, path, (access, Lock::Taken))?;
        if device.is_block_device() {
            *lock_claim(&device.claim) = claim;
        }
        Ok(device)
    }

    /// [`FileDevice::open`] for direct I/O, if the system has that here. If not,
    /// requests go through the page cache, and [`FileDevice::caching`] says why.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_direct(path: &Path, access: Access) -> Result<Self, DeviceError> {
        let mut device = Self::open(path, access)?;
        device.direct = Direct::open(&device.file, device.kind, access, device.size());
        if device.direct.is_ok() && device.kind == FileKind::RegularFile {
            device.ahead = Ahead::of(&device.file);
        }
        if let Some(caching) = device.caching() {
            tracing::info!(device = %path.display(), "requests to the device: {caching}");
        }
        Ok(device)
    }

    /// [`FileDevice::open`] for somebody who often makes durable what he
    /// writes: a block device for direct I/O, if the system has that. A file is
    /// used through the page cache, because large writes to blocks that it does
    /// not have yet are faster there; around small ones blocks are allocated
    /// ahead.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_durable(path: &Path, access: Access) -> Result<Self, DeviceError> {
        if !std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
            return Self::open_direct(path, access);
        }
        let mut device = Self::open(path, access)?;
        device.direct = Err(NotDirect::Image);
        if device.kind == FileKind::RegularFile {
            device.ahead = Ahead::of(&device.file);
        }
        Ok(device)
    }

    /// Opens what exists at `path` to look at it: for reading, and without a
    /// lock. Others, this process among them, may have it open and change it.
    ///
    /// # Errors
    /// [`DeviceError::NotADevice`], [`DeviceError::Io`].
    pub fn open_unlocked(path: &Path) -> Result<Self, DeviceError> {
        let access = Access::ReadOnly;
        Self::adopt(open(path, access, 0)?, path, (access, Lock::Left))
    }

    /// Gives up the exclusive open of a block device, so that a mount of it
    /// takes it over. Reading and writing go on. Until the mount is there,
    /// others can open the device.
    pub fn hand_over(&self) {
        lock_claim(&self.claim).take();
    }

    /// Takes the exclusive open back after [`FileDevice::hand_over`].
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when somebody else took it.
    pub fn take_back(&self) -> Result<(), DeviceError> {
        if self.kind == FileKind::BlockDevice && self.access == Access::ReadWrite {
            *lock_claim(&self.claim) = Some(open(&self.path, self.access, libc::O_EXCL)?);
        }
        Ok(())
    }

    /// Creates a regular file of `size` bytes, all of them a hole.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also when something exists at `path`.
    pub fn create(path: &Path, size: u64) -> Result<Self, DeviceError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|error| open_error(path, error))?;
        set_length(&file, size).map_err(|error| open_error(path, error))?;
        Self::adopt(file, path, (Access::ReadWrite, Lock::Taken))
    }

    /// Makes a regular file `size` bytes long, if it is shorter. It stays locked
    /// meanwhile, so nobody else uses it between its opening and its new size.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also for a block device that is shorter.
    pub fn enlarge(&self, size: u64) -> Result<(), DeviceError> {
        if self.look_at_size() >= size {
            return Ok(());
        }
        let enlarged = match self.kind {
            FileKind::RegularFile => set_length(&self.file, size),
            FileKind::BlockDevice => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        };
        enlarged.map_err(|error| open_error(&self.path, error))?;
        self.look_at_size();
        Ok(())
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for a block device, false for a regular file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.kind == FileKind::BlockDevice
    }

    fn adopt(
        file: File,
        path: &Path,
        (access, wanted): (Access, Lock),
    ) -> Result<Self, DeviceError> {
        let meta = file.metadata().map_err(|error| open_error(path, error))?;
        let kind = kind_of(path, &meta)?;
        // Some drivers let a protected device be opened, and refuse each write.
        if kind == FileKind::BlockDevice
            && access == Access::ReadWrite
            && sys::is_write_protected(file.as_fd()) == Ok(true)
        {
            return Err(DeviceError::WriteProtected {
                device: path.display().to_string(),
            });
        }
        let mut backing = None;
        let size = match kind {
            FileKind::RegularFile => {
                if wanted == Lock::Taken {
                    lock(&file, path, access)?;
                }
                if access == Access::ReadWrite
                    && let Some(holder) = holder::holder_of_file(&meta)
                {
                    return Err(busy(path, holder));
                }
                // Read the size after taking the lock: nobody who held the lock
                // before can change it now.
                let meta = file.metadata().map_err(|error| open_error(path, error))?;
                let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
                if access == Access::ReadWrite && meta.len() > limit {
                    // Fail now, not in the middle of a change.
                    return Err(open_error(path, Errno::FBIG.into()));
                }
                meta.len()
            }
            FileKind::BlockDevice => {
                let number = DeviceNumber::new(meta.rdev());
                if wanted == Lock::Taken {
                    backing = lock_backing(path, number, access)?;
                }
                if access == Access::ReadWrite
                    && let Some(holder) = holder::holder_beside_loop(number)
                {
                    return Err(busy(path, holder));
                }
                sys::block_device_size(file.as_fd())
                    .map_err(|errno| open_error(path, errno.into()))?
            }
        };
        Ok(Self {
            file,
            direct: Err(NotDirect::NotAsked),
            ahead: None,
            path: path.to_owned(),
            kind,
            access,
            size: AtomicU64::new(size),
            claim: Mutex::new(None),
            backing,
            released: RwLock::new(false),
        })
    }

    fn error(&self, operation: Operation, range: Option<DeviceRange>, e: io::Error) -> DeviceError {
        DeviceError::Io {
            device: self.identity(),
            operation,
            range,
            source: Arc::new(e),
        }
    }
}

fn lock_claim(claim: &Mutex<Option<File>>) -> MutexGuard<'_, Option<File>> {
    claim.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for FileDevice {
    /// Unlocks at once. Closing alone would leave the lock to a child process
    /// that another thread is just starting, until the child closes its copy.
    fn drop(&mut self) {
        self.unlock();
    }
}

impl FileDevice {
    fn unlock(&self) {
        // Whoever flushed knows of failures.
        let _ = self.settle_all();
        if self.direct.is_ok() && self.access == Access::ReadWrite {
            // Another program may have read a block while it was being written.
            forget_cached(&self.file, 0, 0);
        }
        let backing = self.backing.as_ref();
        let locked = (self.kind == FileKind::RegularFile).then_some(&self.file);
        for file in locked.into_iter().chain(backing) {
            // Nothing is lost on failure: closing follows.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }

    /// Checks that a change stays within the file, and that the device was not
    /// released. It is not released while the returned guard lives.
    fn held(
        &self,
        operation: Operation,
        ranges: &[DeviceRange],
    ) -> Result<RwLockReadGuard<'_, bool>, DeviceError> {
        for range in ranges {
            check_writable(self, operation, *range)?;
        }
        let released = self.released.read();
        let released = released.unwrap_or_else(PoisonError::into_inner);
        self.verify_there(operation, *released, ranges)?;
        Ok(released)
    }

    /// Checks that the device was not released, and has the bytes to be
    /// changed. A write behind the end of a file that was cut short would make
    /// it longer, with zeros where other data were.
    fn verify_there(
        &self,
        operation: Operation,
        released: bool,
        ranges: &[DeviceRange],
    ) -> Result<(), DeviceError> {
        if released {
            return Err(DeviceError::Released {
                device: self.identity(),
                operation,
            });
        }
        if self.kind == FileKind::RegularFile {
            let end = ranges.iter().map(|range| range.end().get()).max();
            let is_cut = |now: &u64| end.is_some_and(|end| *now < end);
            let cut = self.size_now().filter(is_cut);
            cut.map_or(Ok(()), |now| check_length(self, now, self.size()))?;
        }
        Ok(())
    }

    /// Bytes at this moment, if the system tells.
    fn size_now(&self) -> Option<u64> {
        match self.kind {
            FileKind::RegularFile => {
                let facts = rustix::fs::fstat(&self.file).ok()?;
                u64::try_from(facts.st_size).ok()
            }
            FileKind::BlockDevice => sys::block_device_size(self.file.as_fd()).ok(),
        }
    }

    /// Fills the beginning of `parts` with what is in the page cache, and
    /// returns the number of bytes filled. If that is not all, it tells that
    /// this thread is about to wait.
    fn read_known(&self, offset: DeviceOffset, parts: &mut [IoSliceMut<'_>]) -> usize {
        if !waiting::is_heard() {
            return 0;
        }
        let length = parts_length(parts);
        match rustix::io::preadv2(&self.file, parts, offset.get(), ReadWriteFlags::NOWAIT) {
            Ok(read) if read == length => length,
            // A file system that cannot tell: its reads are taken to be short.
            Err(Errno::OPNOTSUPP) => 0,
            read => {
                waiting::about_to_wait();
                read.unwrap_or(0)
            }
        }
    }
}

impl FileDevice {
    fn read_cached(&self, offset: DeviceOffset, parts: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut left = parts;
        // Empty parts at the front would look like the end of the file.
        IoSliceMut::advance_slices(&mut left, 0);
        let first = left.len().min(PARTS_MAX);
        let known = self.read_known(offset, left.get_mut(..first).unwrap_or_default());
        IoSliceMut::advance_slices(&mut left, known);
        parts::read(&self.file, after(offset.get(), known), &mut left, 1)?;
        Ok(())
    }

    fn write_cached(&self, requests: &[WriteRequest<'_>]) -> io::Result<()> {
        let mut requests = requests.iter();
        requests.try_for_each(|request| {
            parts::write(&self.file, request.offset.get(), request.parts, (0, 1))
        })
    }

    fn write_requests(&self, requests: &[WriteRequest<'_>], wait: Wait) -> Result<(), DeviceError> {
        let ranges: Vec<DeviceRange> = requests.iter().map(WriteRequest::range).collect();
        self.allocate_ahead(&ranges);
        let held = self.held(Operation::Write, &ranges)?;
        let range = ranges.first().copied().filter(|_| ranges.len() == 1);
        let done = match &self.direct {
            Ok(direct) if ranges.iter().all(|range| direct.takes(*range)) => {
                // A file system that is full tells so here, and not at a flush.
                let has = |ahead: &Ahead| ranges.iter().all(|range| ahead.has(*range));
                let has_space =
                    self.kind == FileKind::BlockDevice || self.ahead.as_ref().is_some_and(has);
                if wait == Wait::NotAtAll && has_space {
                    direct.write_behind(requests);
                    return Ok(());
                }
                waiting::about_to_wait();
                direct.write(requests)
            }
            Ok(_) => {
                drop(held);
                return self.write_parts_of_blocks(requests);
            }
            Err(_) => self.write_cached(requests),
        };
        done.map_err(|error| self.error(Operation::Write, range, error))
    }

    /// Makes an image ready for small writes that are soon to be durable.
    fn allocate_ahead(&self, ranges: &[DeviceRange]) {
        let regions = self.ahead.as_ref().map(|ahead| ahead.wanted(ranges));
        let (Some(ahead), Some(regions)) = (&self.ahead, regions) else {
            return;
        };
        if regions.is_empty() || self.access == Access::ReadOnly {
            return;
        }
        waiting::about_to_wait();
        let released = self.released.write();
        let released = released.unwrap_or_else(PoisonError::into_inner);
        // Nobody writes now, except for writes that were left behind.
        if self.settle_all().is_err() || *released || self.still_has(self.size()).is_err() {
            return;
        }
        for region in regions {
            ahead.fill(&self.file, region, self.size());
        }
        if self.direct.is_ok() {
            // What fails here is a hole that stays.
            let _ = rustix::fs::fdatasync(&self.file);
            forget_cached(&self.file, 0, 0);
        }
    }

    /// Takes old content of a range (of length 0: of everything behind it) out
    /// of a block device's page cache. Another program may have read it while
    /// it was being written. Files' systems do this themselves.
    fn forget_stale(&self, range: DeviceRange) {
        if self.direct.is_ok() && self.kind == FileKind::BlockDevice {
            forget_cached(&self.file, range.start.get(), range.length);
        }
    }

    /// Waits for the writes that began before this call.
    fn settle_all(&self) -> Result<(), DeviceError> {
        let Ok(direct) = &self.direct else {
            return Ok(());
        };
        direct.settle_all().map_err(|source| DeviceError::Io {
            device: self.identity(),
            operation: Operation::Write,
            range: None,
            source,
        })
    }

    /// Writes what direct I/O does not take. The page cache completes the
    /// blocks, while nobody writes anything else.
    fn write_parts_of_blocks(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        let ranges: Vec<DeviceRange> = requests.iter().map(WriteRequest::range).collect();
        waiting::about_to_wait();
        let released = self.released.write();
        let released = released.unwrap_or_else(PoisonError::into_inner);
        self.verify_there(Operation::Write, *released, &ranges)?;
        // A failure is one of the next flush.
        let _ = self.settle_all();
        let written = self.write_cached(requests);
        let written = written.and_then(|()| Ok(rustix::fs::fdatasync(&self.file)?));
        forget_cached(&self.file, 0, 0);
        written.map_err(|error| self.error(Operation::Write, ranges.first().copied(), error))
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn look_at_size(&self) -> u64 {
        let now = self.size_now().unwrap_or(0);
        now.max(self.size.fetch_max(now, Ordering::AcqRel))
    }

    fn still_has(&self, size: u64) -> Result<(), DeviceError> {
        // If the system does not tell the size, the next request will find out.
        self.size_now()
            .map_or(Ok(()), |now| check_length(self, now, size))
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.read_vectored_at(offset, &mut [IoSliceMut::new(buf)])
    }

    fn read_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        check_range(self, Operation::Read, range)?;
        let done = match &self.direct {
            Ok(direct) => {
                waiting::about_to_wait();
                direct.read(offset.get(), parts)
            }
            Err(_) => self.read_cached(offset, parts),
        };
        done.map_err(|error| self.error(Operation::Read, Some(range), error))
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.write_vectored_at(offset, &[IoSlice::new(data)])
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        self.write_all_at(&[WriteRequest { offset, parts }])
    }

    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        self.write_requests(requests, Wait::UntilDone)
    }

    fn write_behind_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        self.write_requests(requests, Wait::NotAtAll)
    }

    fn finish_at(&self, ranges: &[DeviceRange]) -> Result<(), DeviceError> {
        let Ok(direct) = &self.direct else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for range in ranges {
            let done = direct.finish(*range).map_err(|source| DeviceError::Io {
                device: self.identity(),
                operation: Operation::Write,
                range: Some(*range),
                source,
            });
            outcome = outcome.and(done);
        }
        outcome
    }

    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        match &self.direct {
            Ok(direct) if direct.takes(range) => {
                let _held = self.held(Operation::Write, &[range])?;
                waiting::about_to_wait();
                let done = direct.write_durably(offset.get(), data);
                self.forget_stale(range);
                done.map_err(|error| self.error(Operation::Write, Some(range), error))
            }
            _ => {
                self.write_at(offset, data)?;
                self.flush()
            }
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        waiting::about_to_wait();
        self.settle_all()?;
        self.forget_stale(DeviceRange::new(DeviceOffset(0), 0));
        if let Some(ahead) = &self.ahead {
            ahead.flushed();
        }
        rustix::fs::fdatasync(&self.file)
            .map_err(|errno| self.error(Operation::Flush, None, errno.into()))
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        let _held = self.held(Operation::Discard, &[range])?;
        if range.length == 0 {
            return Ok(());
        }
        if let Ok(direct) = &self.direct {
            direct.settle(range);
        }
        if let Some(ahead) = &self.ahead {
            ahead.forget(range);
        }
        let done = match self.kind {
            FileKind::RegularFile => rustix::fs::fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                range.start.get(),
                range.length,
            ),
            FileKind::BlockDevice => sys::block_device_discard(self.file.as_fd(), range),
        };
        match done {
            // A discard is advice: it may be unsupported, or not at this
            // alignment.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.error(Operation::Discard, Some(range), errno.into())),
        }
    }

    fn identity(&self) -> String {
        self.path.display().to_string()
    }

    fn caching(&self) -> Option<Caching> {
        Some(match &self.direct {
            Ok(_) => Caching::Direct,
            Err(why) => Caching::PageCache(*why),
        })
    }

    fn access(&self) -> Access {
        self.access
    }

    fn let_go(&self) {
        let released = self.released.write();
        let mut released = released.unwrap_or_else(PoisonError::into_inner);
        *released = true;
        lock_claim(&self.claim).take();
        self.unlock();
    }
}
