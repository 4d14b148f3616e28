//! A device that is a regular file or a block device.

use crate::block_device::{check_length, check_range, check_writable, parts_length};
use crate::holder::{self, DeviceNumber};
use crate::waiting;
use crate::{Access, BlockDevice, DeviceError, DeviceRange, Holder, Operation, sys};
use butterfs_format::DeviceOffset;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Parts that one system call takes (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    RegularFile,
    BlockDevice,
}

/// Whether an opening takes the lock of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Taken,
    Left,
}

/// A regular file or a block device through the page cache.
///
/// Read-write use is exclusive. An exclusive open of block devices, and a
/// search for loop devices over a file, keep out the kernel and its mounts. A
/// lock on the file keeps out other processes; a read-only open takes this lock
/// shared, unless it only looks ([`FileDevice::open_unlocked`]). A loop device
/// that is not in use does not count as use of its file.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    kind: Kind,
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
        if self.kind == Kind::BlockDevice && self.access == Access::ReadWrite {
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
            Kind::RegularFile => set_length(&self.file, size),
            Kind::BlockDevice => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
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
        self.kind == Kind::BlockDevice
    }

    fn adopt(
        file: File,
        path: &Path,
        (access, wanted): (Access, Lock),
    ) -> Result<Self, DeviceError> {
        let meta = file.metadata().map_err(|error| open_error(path, error))?;
        let kind = kind_of(path, &meta)?;
        // Some drivers let a protected device be opened, and refuse each write.
        if kind == Kind::BlockDevice
            && access == Access::ReadWrite
            && sys::is_write_protected(file.as_fd()) == Ok(true)
        {
            return Err(DeviceError::WriteProtected {
                device: path.display().to_string(),
            });
        }
        let mut backing = None;
        let size = match kind {
            Kind::RegularFile => {
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
            Kind::BlockDevice => {
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

/// Makes a file this long.
fn set_length(file: &File, size: u64) -> io::Result<()> {
    match i64::try_from(size) {
        Ok(_) => file.set_len(size),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EFBIG)),
    }
}

fn open(path: &Path, access: Access, flags: i32) -> Result<File, DeviceError> {
    OpenOptions::new()
        .read(true)
        .write(access == Access::ReadWrite)
        // A FIFO must not block the open.
        .custom_flags(flags | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match access {
            Access::ReadWrite if is_write_protected(path, &error) => DeviceError::WriteProtected {
                device: path.display().to_string(),
            },
            _ => open_error(path, error),
        })
}

/// Whether a block device could not be opened for writing because the system
/// protects it, not because this user may not write to it.
fn is_write_protected(path: &Path, error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EPERM | libc::EROFS)
    ) && File::open(path).is_ok_and(|file| sys::is_write_protected(file.as_fd()) == Ok(true))
}

fn lock_claim(claim: &Mutex<Option<File>>) -> MutexGuard<'_, Option<File>> {
    claim.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kind_of(path: &Path, meta: &Metadata) -> Result<Kind, DeviceError> {
    let file_type = meta.file_type();
    if file_type.is_file() {
        return Ok(Kind::RegularFile);
    }
    if file_type.is_block_device() {
        return Ok(Kind::BlockDevice);
    }
    Err(not_a_device(
        path,
        if file_type.is_dir() {
            "a directory"
        } else if file_type.is_char_device() {
            "a character device"
        } else if file_type.is_fifo() {
            "a FIFO"
        } else {
            "a special file"
        },
    ))
}

fn not_a_device(path: &Path, found: &'static str) -> DeviceError {
    DeviceError::NotADevice {
        device: path.display().to_string(),
        found,
    }
}

fn busy(path: &Path, holder: Holder) -> DeviceError {
    DeviceError::Busy {
        device: path.display().to_string(),
        holder,
    }
}

fn open_error(path: &Path, error: io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let known = std::fs::metadata(path)
                .ok()
                .and_then(|meta| holder::holder_of_block_device(DeviceNumber::new(meta.rdev())));
            busy(path, known.unwrap_or(Holder::Unknown))
        }
        io::ErrorKind::IsADirectory => not_a_device(path, "a directory"),
        _ => DeviceError::Io {
            device: path.display().to_string(),
            operation: Operation::Open,
            range: None,
            source: Arc::new(error),
        },
    }
}

/// Locks a regular file: exclusively for writing, shared for reading.
fn lock(file: &File, path: &Path, access: Access) -> Result<(), DeviceError> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let known = file
                .metadata()
                .ok()
                .and_then(|meta| holder::lock_holder(&meta));
            Err(busy(path, known.unwrap_or(Holder::Unknown)))
        }
        // Some network file systems have no locks; a read must still work.
        Err(Errno::OPNOTSUPP | Errno::NOLCK) if access == Access::ReadOnly => Ok(()),
        Err(errno) => Err(open_error(path, errno.into())),
    }
}

/// Locks the file behind a loop device, unless this process cannot open it by
/// the name that the loop device has for it.
fn lock_backing(
    path: &Path,
    device: DeviceNumber,
    access: Access,
) -> Result<Option<File>, DeviceError> {
    let Some(file) = holder::backing_file(device).and_then(|path| File::open(path).ok()) else {
        return Ok(None);
    };
    lock(&file, path, access)?;
    Ok(Some(file))
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
        let backing = self.backing.as_ref();
        let locked = (self.kind == Kind::RegularFile).then_some(&self.file);
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
        range: DeviceRange,
    ) -> Result<RwLockReadGuard<'_, bool>, DeviceError> {
        check_writable(self, operation, range)?;
        let released = self.released.read();
        let released = released.unwrap_or_else(PoisonError::into_inner);
        if *released {
            return Err(DeviceError::Released {
                device: self.identity(),
                operation,
            });
        }
        // A write behind the end of a file that was cut short would make it
        // longer, with zeros where other data were.
        if self.kind == Kind::RegularFile {
            let is_cut = |now: &u64| *now < range.end().get();
            let cut = self.size_now().filter(is_cut);
            cut.map_or(Ok(()), |now| check_length(self, now, self.size()))?;
        }
        Ok(released)
    }

    /// Bytes at this moment, if the system tells.
    fn size_now(&self) -> Option<u64> {
        match self.kind {
            Kind::RegularFile => {
                let facts = rustix::fs::fstat(&self.file).ok()?;
                u64::try_from(facts.st_size).ok()
            }
            Kind::BlockDevice => sys::block_device_size(self.file.as_fd()).ok(),
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
        let range = DeviceRange::of_buffer(offset, buf.len());
        check_range(self, Operation::Read, range)?;
        let known = self.read_known(offset, &mut [IoSliceMut::new(buf)]);
        let at = offset
            .get()
            .saturating_add(u64::try_from(known).unwrap_or(u64::MAX));
        self.file
            .read_exact_at(buf.get_mut(known..).unwrap_or_default(), at)
            .map_err(|error| self.error(Operation::Read, Some(range), error))
    }

    fn read_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        check_range(self, Operation::Read, range)?;
        let fail = |error: io::Error| self.error(Operation::Read, Some(range), error);
        let mut at = offset.get();
        let mut left = parts;
        // Empty parts at the front would look like the end of the file.
        IoSliceMut::advance_slices(&mut left, 0);
        let first = left.len().min(PARTS_MAX);
        let mut read = self.read_known(offset, left.get_mut(..first).unwrap_or_default());
        loop {
            at = at.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
            IoSliceMut::advance_slices(&mut left, read);
            if left.is_empty() {
                return Ok(());
            }
            let first = left.len().min(PARTS_MAX);
            let batch = left.get_mut(..first).unwrap_or_default();
            read = match rustix::io::preadv(&self.file, batch, at) {
                Ok(0) => return Err(fail(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => read,
                Err(Errno::INTR) => 0,
                Err(errno) => return Err(fail(errno.into())),
            };
        }
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        let _held = self.held(Operation::Write, range)?;
        self.file
            .write_all_at(data, offset.get())
            .map_err(|error| self.error(Operation::Write, Some(range), error))
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        let _held = self.held(Operation::Write, range)?;
        let fail = |error: io::Error| self.error(Operation::Write, Some(range), error);
        let mut at = offset.get();
        let mut owned = parts.to_vec();
        let mut left = owned.as_mut_slice();
        // Empty parts at the front would look like a write of nothing.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let batch = left.get(..PARTS_MAX.min(left.len())).unwrap_or_default();
            match rustix::io::pwritev(&self.file, batch, at) {
                Ok(0) => return Err(fail(io::ErrorKind::WriteZero.into())),
                Ok(written) => {
                    at = at.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(fail(errno.into())),
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        waiting::about_to_wait();
        rustix::fs::fdatasync(&self.file)
            .map_err(|errno| self.error(Operation::Flush, None, errno.into()))
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        let _held = self.held(Operation::Discard, range)?;
        if range.length == 0 {
            return Ok(());
        }
        let done = match self.kind {
            Kind::RegularFile => rustix::fs::fallocate(
                &self.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                range.start.get(),
                range.length,
            ),
            Kind::BlockDevice => sys::block_device_discard(self.file.as_fd(), range),
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
