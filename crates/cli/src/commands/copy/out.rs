//! From a volume to the host.
//!
//! One thread walks the volume and makes directories, and several make files. A
//! file with several names is made by the first thread, so that its first name
//! exists before the others.

use super::tally::Tally;
use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::{self, Holes};
use crate::left_out::{LeftOut, Undone};
use crate::place::Place;
use crate::whole_file::{check_is_no_volume, check_is_unused, name_beside_by};
use butterfs::{Attributes, Doubts, FsError, Inode, InodeId, SeekTarget, Timespec, Volume, Walk};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timestamps, XattrFlags};
use rustix::io::Errno;
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
    left_out: &'a LeftOut,
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
    refused: AtomicU64,
}

/// A copy that is being made.
#[derive(Clone, Copy)]
struct Copy<'p> {
    /// Where it is now.
    path: &'p Path,
    /// What it is called when it is whole.
    name: &'p Path,
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
    let found = volume.resolve(place.path.as_bytes()).map_err(Undone::from);
    let Some(start) = tally.left_out.entry(place, found)? else {
        return Ok(());
    };
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
    let shared = &*tally;
    let mut work = Work::new(source, &done, shared, 0);
    let mut directories = Vec::new();
    let walked = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        for number in 1..=threads {
            let mut work = Work::new(source, &done, shared, number);
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
                let is_there = is_given && path.as_os_str() == destination;
                match is_there {
                    true => work.made(),
                    // What is below has no place then.
                    false if !work.make_whole(&path, &of)? => return Ok(Walk::Skip),
                    false => {}
                }
                if of.is_directory() {
                    directories.push((path, of));
                }
                Ok(Walk::Enter)
            },
            &mut |error| shared.left_out.undone(Undone::from(error).at(place)),
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
        let mut set = directories.iter().rev();
        result = set.try_for_each(|(path, of)| work.metadata(Copy { path, name: path }, of));
    }
    drop(work);
    tally.files += done.files.load(Ordering::Relaxed);
    tally.bytes += done.bytes.load(Ordering::Relaxed);
    tally.refused += done.refused.load(Ordering::Relaxed);
    let passed_over = volume.files().store().read().nodes_passed_over();
    tally.left_out.nodes_passed_over(passed_over);
    result
}

impl<'a> Work<'a> {
    fn new(source: &Source<'a>, done: &'a Counts, tally: &'a Tally, number: usize) -> Self {
        Self {
            volume: source.volume,
            keeps_owner: source.keeps_owner,
            number,
            linked: HashMap::new(),
            done,
            left_out: &tally.left_out,
            told: tally.bar.done(),
            asked: tally.asked(),
            buffer: Vec::new(),
        }
    }

    fn refuse(&self) {
        self.done.refused.fetch_add(1, Ordering::Relaxed);
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
                Ok(Ok(_)) => {}
                Ok(Err(failure)) => queue.fail(failure),
                Err(_) => queue.fail(Failure(format!("{}: a panic", path.display()))),
            }
        }
    }

    /// Whether it was made, and not left out.
    fn make_whole(&mut self, path: &Path, of: &Attributes) -> Result<bool, Failure> {
        let tried = self.make(path, of);
        let made = self.left_out.entry(path.display(), tried)?.is_some();
        if made {
            self.made();
        }
        Ok(made)
    }

    fn made(&self) {
        self.done.files.fetch_add(1, Ordering::Relaxed);
        self.told.file();
    }

    fn make(&mut self, path: &Path, of: &Attributes) -> Result<(), Undone> {
        self.check_interrupt()?;
        if of.is_directory() {
            // Nobody else may look in before it has its own permissions.
            return match std::fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
                Err(_) if !std::fs::symlink_metadata(path)?.is_dir() => Err(Undone::Entry(
                    Failure("it is there already and is no directory".to_owned()),
                )),
                _ => Ok(()),
            };
        }
        if of.mode & libc::S_IFMT == libc::S_IFREG {
            check_replaceable(path).map_err(Undone::Entry)?;
        }
        check_is_unused(path).map_err(Undone::Entry)?;
        let temporary = name_beside_by(self.number, path);
        // Left by a killed process that had the same number.
        let _ = std::fs::remove_file(&temporary);
        let at = Copy {
            path: &temporary,
            name: path,
        };
        let made = self.make_at(at, of).and_then(|doubts| {
            std::fs::rename(&temporary, path)?;
            Ok(doubts)
        });
        if made.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        let doubts = made?;
        self.left_out.doubtful(path.display(), &doubts);
        if of.nlink > 1 {
            self.linked.entry(of.id).or_insert_with(|| path.to_owned());
        }
        Ok(())
    }

    /// Makes what is no directory, whole. Gives which bytes of it may be wrong.
    fn make_at(&mut self, at: Copy<'_>, of: &Attributes) -> Result<Doubts, Undone> {
        let (path, mut doubts) = (at.path, Doubts::default());
        if let Some(first) = self.linked.get(&of.id) {
            std::fs::hard_link(first, path)?;
            return Ok(doubts);
        }
        let node = |kind| {
            let (major, minor) = ((of.rdev >> 20) as u32, (of.rdev & 0xf_ffff) as u32);
            let device = rustix::fs::makedev(major, minor);
            rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device)
        };
        match of.mode & libc::S_IFMT {
            libc::S_IFREG => {
                let inode = self.volume.files().inode(of.id)?;
                doubts = self.content(path, &inode, of.size)?;
            }
            libc::S_IFLNK => {
                let target = self.volume.files().read_link(of.id)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), path)?;
            }
            libc::S_IFCHR => node(FileType::CharacterDevice)?,
            libc::S_IFBLK => node(FileType::BlockDevice)?,
            libc::S_IFIFO => node(FileType::Fifo)?,
            _ => node(FileType::Socket)?,
        }
        self.metadata(at, of)?;
        Ok(doubts)
    }

    fn content(&mut self, path: &Path, inode: &Inode, size: u64) -> Result<Doubts, Undone> {
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
        let doubts = Doubts::default();
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
                let buffer = &mut self.buffer[..room];
                let count = files.read_doubtful(inode, at, buffer, &doubts)?;
                if count == 0 {
                    break;
                }
                file.write_all_at(&self.buffer[..count], at)?;
                at += count as u64;
                self.done.bytes.fetch_add(count as u64, Ordering::Relaxed);
                self.told.data(count as u64);
            }
        }
        file.set_len(size)?;
        Ok(doubts)
    }

    /// Gives a copy its metadata. What the host does not take of them is named;
    /// the copy stays.
    ///
    /// # Errors
    /// What ends the copying.
    fn metadata(&self, at: Copy<'_>, of: &Attributes) -> Done {
        let Copy { path, name } = at;
        self.named(name, "its owner and permissions", self.rights(path, of))?;
        self.attributes(at, of)?;
        let times = Timestamps {
            last_access: timespec(of.atime),
            last_modification: timespec(of.mtime),
        };
        let set = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
        self.named(name, "its times", set.map_err(io::Error::from))
    }

    /// Names what of an entry is lost, if an error says so.
    fn named<E: Into<Undone>>(&self, name: &Path, what: &str, set: Result<(), E>) -> Done {
        match set {
            Ok(()) => Ok(()),
            Err(error) => {
                let undone = error.into().at(what).at(name.display());
                self.left_out.attribute(undone)
            }
        }
    }

    fn rights(&self, path: &Path, of: &Attributes) -> io::Result<()> {
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
            self.refuse();
        }
        if of.mode & libc::S_IFMT != libc::S_IFLNK {
            // A program that runs as its owner must not run as somebody else.
            let bits = if kept { 0o7777 } else { 0o1777 };
            let mode = std::fs::Permissions::from_mode(of.mode & bits);
            std::fs::set_permissions(path, mode)?;
        }
        Ok(())
    }

    /// Gives a copy the extended attributes.
    fn attributes(&self, at: Copy<'_>, of: &Attributes) -> Done {
        let files = self.volume.files();
        let names = files.list_xattrs(of.id);
        let names = match names {
            Ok(names) => names,
            Err(error) => return self.named(at.name, "its attributes", Err(error)),
        };
        for name in names {
            let what = format!("its attribute {}", String::from_utf8_lossy(&name));
            let value = match files.get_xattr(of.id, &name) {
                Ok(value) => value,
                Err(error) => {
                    self.named(at.name, &what, Err(error))?;
                    continue;
                }
            };
            let set = rustix::fs::lsetxattr(at.path, &name[..], &value, XattrFlags::empty());
            match set {
                Ok(()) => {}
                Err(error) if is_refusal(&name, error) => self.refuse(),
                // No space for an attribute may mean that no attribute has as
                // much. A file system that is full says so for the next file.
                Err(error) => {
                    let failure = Failure::from(io::Error::from(error)).at(&what);
                    let undone = Undone::Entry(failure.at(at.name.display()));
                    self.left_out.attribute(undone)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether the host may refuse an attribute of this name without a loss that
/// must be named: attributes of the system need rights, and some belong to one
/// file system alone. What users have written, and access control lists, are not
/// among them.
fn is_refusal(name: &[u8], error: Errno) -> bool {
    let is_right = matches!(error, Errno::PERM | Errno::ACCESS);
    let of_system: [&[u8]; 3] = [b"trusted.", b"security.", b"btrfs."];
    let is_of_system = of_system.iter().any(|prefix| name.starts_with(prefix));
    is_of_system && (is_right || error == Errno::OPNOTSUPP)
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
