//! From a volume to the host.
//!
//! One thread walks the volume and makes directories, and several make files. A
//! file with several names is made by the first thread, so that its first name
//! exists before the others.

use super::tally::{TOLD_MAX, Tally};
use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::{self, Holes};
use crate::place::Place;
use crate::whole_file::{check_is_no_volume, check_is_unused, name_beside_by};
use butterfs::{Attributes, FsError, Inode, InodeId, SeekTarget, Timespec, Volume, Walk};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timestamps, XattrFlags};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

const STEP: u64 = 1 << 20;
/// Neighbours that one thread makes, mostly of one directory, because threads
/// in one directory wait for each other.
const TOGETHER: usize = 64;
/// Groups of neighbours that may wait for a thread.
const WAITING_MAX: usize = 8;

/// What is copied, and how.
pub struct Source<'a> {
    pub volume: &'a Volume,
    pub place: &'a Place,
    /// Whether the copies get the owners of the originals.
    pub keeps_owner: bool,
}

/// Work of one thread.
struct Work<'a> {
    volume: &'a Volume,
    keeps_owner: bool,
    /// A number that no other thread has.
    number: usize,
    linked: HashMap<InodeId, PathBuf>,
    done: &'a Counts,
    told: files_bar::Done,
    /// Somebody wants the copying to end.
    asked: Arc<AtomicBool>,
    buffer: Vec<u8>,
}

/// What all threads have done.
#[derive(Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    left_out: AtomicU64,
    /// Files and directories that could not be read: the first of them.
    unreadable: Mutex<Vec<Failure>>,
    unreadable_count: AtomicU64,
}

impl Counts {
    fn unreadable(&self, failure: Failure) {
        self.unreadable_count.fetch_add(1, Ordering::Relaxed);
        let told = self.unreadable.lock();
        let mut told = told.unwrap_or_else(PoisonError::into_inner);
        if (told.len() as u64) <= TOLD_MAX {
            told.push(failure);
        }
    }
}

/// Why a copy was not made.
enum Unmade {
    /// The volume is damaged there. Other files may be whole.
    Unreadable(FsError),
    /// The host does not take it, or copying ends.
    Failed(Failure),
}

impl From<FsError> for Unmade {
    fn from(error: FsError) -> Self {
        Self::Unreadable(error)
    }
}

impl From<Failure> for Unmade {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<io::Error> for Unmade {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<rustix::io::Errno> for Unmade {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Failed(error.into())
    }
}

/// A file to make.
type Wanted = (PathBuf, Attributes);

/// Files that wait, and the result of earlier ones.
struct Queue {
    files: Mutex<Receiver<Vec<Wanted>>>,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Queue {
    /// The next files; `None` if no more will come.
    fn next(&self) -> Option<Vec<Wanted>> {
        self.files
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv()
            .ok()
    }

    /// Keeps the first failure. Files that wait are no longer made.
    fn fail(&self, failure: Failure) {
        self.failed.store(true, Ordering::Release);
        let mut first = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

impl Source<'_> {
    /// Copies it to `destination`. It is one of `sources`.
    pub fn copy(&self, destination: &OsString, sources: usize, tally: &mut Tally) -> Done {
        copy(self, destination, sources, tally)
    }
}

fn copy(source: &Source<'_>, destination: &OsString, sources: usize, tally: &mut Tally) -> Done {
    let (volume, place) = (source.volume, source.place);
    let start = volume.resolve(place.path.as_bytes())?;
    let mut target = PathBuf::from(destination);
    let name = place
        .path
        .as_bytes()
        .rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty());
    // The user's own destination may be a symbolic link. What is below it must
    // not be: an earlier copy from an image may have made it.
    let is_given = target.is_dir();
    if is_given {
        if let Some(name) = name {
            if name == b".." {
                return fail(format!(
                    "{place}: `..` is no name for the copy; name the directory itself"
                ));
            }
            target.push(OsStr::from_bytes(name));
        }
    } else if sources > 1 {
        return Err(Failure(format!("{} is no directory", target.display())));
    } else {
        check_is_no_volume(&target)?;
    }
    tally.bar.count_volume(volume, start, Holes::LeftOut);
    let (sender, receiver) = sync_channel::<Vec<Wanted>>(WAITING_MAX);
    let queue = Queue {
        files: Mutex::new(receiver),
        failed: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let done = Counts::default();
    let mut work = Work::new(source, &done, tally, 0);
    let mut directories = Vec::new();
    let walked = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        for number in 1..=threads {
            let mut work = Work::new(source, &done, tally, number);
            let queue = &queue;
            let started =
                std::thread::Builder::new().spawn_scoped(scope, move || work.make_all(queue));
            match started {
                Ok(_) => {}
                // One is enough.
                Err(_) if number > 1 => break,
                Err(error) => return Err(error).context("a thread that writes files"),
            }
        }
        let mut together: Vec<Wanted> = Vec::new();
        let walked = volume.walk_readable::<Failure>(
            start,
            &mut |entry| {
                if queue.has_failed() {
                    return Ok(Walk::Stop);
                }
                let path = if entry.path.is_empty() {
                    target.clone()
                } else {
                    target.join(OsStr::from_bytes(&entry.path))
                };
                let of = entry.attributes.clone();
                if !of.is_directory() && of.nlink == 1 {
                    let neighbour = |(other, _): &Wanted| other.parent() == path.parent();
                    if together.len() == TOGETHER || !together.last().is_none_or(neighbour) {
                        // This cannot fail: the threads take files until no more
                        // can come.
                        let _ = sender.send(std::mem::take(&mut together));
                    }
                    together.push((path, of));
                    return Ok(Walk::Enter);
                }
                match is_given && path.as_os_str() == destination {
                    true => work.made(),
                    false => work.make_whole(&path, &of)?,
                }
                if of.is_directory() {
                    directories.push((path, of));
                }
                Ok(Walk::Enter)
            },
            &mut |error| {
                done.unreadable(Failure::from(error).at(place));
                Ok(())
            },
        );
        let _ = sender.send(together);
        drop(sender);
        walked
    });
    let failure = queue.failure.into_inner();
    let first = failure.unwrap_or_else(PoisonError::into_inner);
    let mut result = first.map_or(walked, Err);
    if result.is_ok() {
        // Last, because making their content changed their times.
        result = directories.iter().rev().try_for_each(|(path, of)| {
            let set = work.metadata(path, of);
            set.map_err(|failure| failure.at(path.display()))
        });
    }
    tally.files += done.files.load(Ordering::Relaxed);
    tally.bytes += done.bytes.load(Ordering::Relaxed);
    tally.left_out += done.left_out.load(Ordering::Relaxed);
    let told = done.unreadable.into_inner();
    for failure in told.unwrap_or_else(PoisonError::into_inner) {
        tally.unreadable(&failure);
    }
    tally.unreadable += done
        .unreadable_count
        .load(Ordering::Relaxed)
        .saturating_sub(TOLD_MAX + 1);
    result
}

impl<'a> Work<'a> {
    fn new(source: &Source<'a>, done: &'a Counts, tally: &Tally, number: usize) -> Self {
        Self {
            volume: source.volume,
            keeps_owner: source.keeps_owner,
            number,
            linked: HashMap::new(),
            done,
            told: tally.bar.done(),
            asked: tally.interrupt.asked(),
            buffer: Vec::new(),
        }
    }

    fn leave_out(&self) {
        self.done.left_out.fetch_add(1, Ordering::Relaxed);
    }

    fn check_interrupt(&self) -> Done {
        if self.asked.load(Ordering::Acquire) {
            return fail("interrupted");
        }
        Ok(())
    }

    /// Makes files until no more come. After a failure it only takes them.
    fn make_all(&mut self, queue: &Queue) {
        while let Some(files) = queue.next() {
            self.make_each(queue, files);
        }
    }

    fn make_each(&mut self, queue: &Queue, files: Vec<Wanted>) {
        for (path, of) in files {
            if queue.has_failed() {
                return;
            }
            // Somebody must take what comes after a panic, too.
            let made = catch_unwind(AssertUnwindSafe(|| self.make_whole(&path, &of)));
            match made {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => queue.fail(failure),
                Err(_) => queue.fail(Failure(format!("{}: a panic", path.display()))),
            }
        }
    }

    fn make_whole(&mut self, path: &Path, of: &Attributes) -> Done {
        match self.make(path, of) {
            Ok(()) => self.made(),
            Err(Unmade::Unreadable(error)) => {
                self.done
                    .unreadable(Failure::from(error).at(path.display()));
            }
            Err(Unmade::Failed(failure)) => return Err(failure.at(path.display())),
        }
        Ok(())
    }

    fn made(&self) {
        self.done.files.fetch_add(1, Ordering::Relaxed);
        self.told.file();
    }

    fn make(&mut self, path: &Path, of: &Attributes) -> Result<(), Unmade> {
        self.check_interrupt()?;
        if of.is_directory() {
            // Nobody else may look in before it has its own permissions.
            return match std::fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
                Err(_) if !std::fs::symlink_metadata(path)?.is_dir() => {
                    Ok(fail("it is there already and is no directory")?)
                }
                _ => Ok(()),
            };
        }
        if of.mode & libc::S_IFMT == libc::S_IFREG {
            check_replaceable(path)?;
        }
        check_is_unused(path)?;
        let temporary = name_beside_by(self.number, path);
        // Left by a killed process that had the same number.
        let _ = std::fs::remove_file(&temporary);
        let made = self
            .make_at(&temporary, of)
            .and_then(|()| Ok(std::fs::rename(&temporary, path)?));
        if made.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        made?;
        if of.nlink > 1 {
            self.linked.entry(of.id).or_insert_with(|| path.to_owned());
        }
        Ok(())
    }

    /// Makes what is no directory, whole.
    fn make_at(&mut self, path: &Path, of: &Attributes) -> Result<(), Unmade> {
        if let Some(first) = self.linked.get(&of.id) {
            return Ok(std::fs::hard_link(first, path)?);
        }
        let kind = match of.mode & libc::S_IFMT {
            libc::S_IFREG => {
                let inode = self.volume.files().inode(of.id)?;
                self.content(path, &inode, of.size)?;
                return Ok(self.metadata(path, of)?);
            }
            libc::S_IFLNK => {
                let target = self.volume.files().read_link(of.id)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), path)?;
                return Ok(self.metadata(path, of)?);
            }
            libc::S_IFCHR => FileType::CharacterDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            libc::S_IFIFO => FileType::Fifo,
            _ => FileType::Socket,
        };
        let (major, minor) = ((of.rdev >> 20) as u32, (of.rdev & 0xf_ffff) as u32);
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device)?;
        Ok(self.metadata(path, of)?)
    }

    fn content(&mut self, path: &Path, inode: &Inode, size: u64) -> Result<(), Unmade> {
        let files = self.volume.files();
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let room = STEP.min(size) as usize;
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let mut at = 0;
        while at < size {
            at = match files.seek(inode, SeekTarget::Data, at) {
                Ok(start) => start,
                Err(FsError::NoMoreData) => break,
                Err(error) => return Err(error.into()),
            };
            let end = files.seek(inode, SeekTarget::Hole, at)?.min(size);
            while at < end {
                self.check_interrupt()?;
                let room = (end - at).min(STEP) as usize;
                let count = files.read(inode, at, &mut self.buffer[..room])?;
                if count == 0 {
                    break;
                }
                file.write_all_at(&self.buffer[..count], at)?;
                at += count as u64;
                self.done.bytes.fetch_add(count as u64, Ordering::Relaxed);
                self.told.data(count as u64);
            }
        }
        Ok(file.set_len(size)?)
    }

    fn metadata(&mut self, path: &Path, of: &Attributes) -> Done {
        // An ordinary user cannot give files away; cp -a continues in this
        // case, too.
        let owner = (of.uid, of.gid);
        let kept = match self.keeps_owner {
            true => std::os::unix::fs::lchown(path, Some(of.uid), Some(of.gid)).is_ok(),
            false => {
                let there = std::fs::symlink_metadata(path)?;
                (there.uid(), there.gid()) == owner
            }
        };
        if self.keeps_owner && !kept {
            self.leave_out();
        }
        if of.mode & libc::S_IFMT != libc::S_IFLNK {
            // A program that runs as its owner must not run as somebody else.
            let bits = if kept { 0o7777 } else { 0o1777 };
            let mode = std::fs::Permissions::from_mode(of.mode & bits);
            std::fs::set_permissions(path, mode)?;
        }
        if let Err(error) = self.attributes(path, of) {
            let failure = Failure::from(error).at("its extended attributes");
            self.done.unreadable(failure.at(path.display()));
        }
        let times = Timestamps {
            last_access: timespec(of.atime),
            last_modification: timespec(of.mtime),
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

impl Work<'_> {
    /// Gives a copy the extended attributes.
    fn attributes(&self, path: &Path, of: &Attributes) -> Result<(), FsError> {
        let files = self.volume.files();
        for name in files.list_xattrs(of.id)? {
            let value = files.get_xattr(of.id, &name)?;
            if rustix::fs::lsetxattr(path, &name[..], &value, XattrFlags::empty()).is_err() {
                self.leave_out();
            }
        }
        Ok(())
    }
}

/// Errors if a copy would take the place of a device, FIFO or socket, also one
/// behind a symbolic link.
fn check_replaceable(path: &Path) -> Done {
    match std::fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => {
            fail("it is there already and is no file; `butterfs cat` writes to it with >")
        }
        _ => Ok(()),
    }
}

fn timespec(time: Timespec) -> rustix::fs::Timespec {
    rustix::fs::Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    }
}
