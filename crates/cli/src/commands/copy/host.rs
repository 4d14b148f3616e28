//! The host, read ahead of the thread that copies from it.
//!
//! Owns the walk over what is copied. A thread reads names, metadata and
//! content, in the order in which the volume gets them. What was read and not
//! yet taken is bounded to some MiB. The thread that takes it learns of each
//! error at its place, and of a walk that did not reach its end.

use crate::fail::{Context, Done, Failure, fail};
use rustix::fs::SeekFrom;
use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes that are read at once.
const STEP: usize = 1 << 20;
/// A batch is passed on when it has this many events, or bytes.
const BATCH_EVENTS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
/// Batches that wait at most.
const BATCHES: usize = 4;
/// Bytes of all names of attributes, and of a value, at most (Linux).
const ATTRIBUTES_MAX: usize = 64 << 10;

/// Name and value of an extended attribute.
pub(super) type Attribute = (Vec<u8>, Vec<u8>);

/// Something with a name.
#[derive(Debug)]
pub(super) struct Entry {
    /// Where it is on the host.
    pub(super) path: PathBuf,
    /// The directory in which it lies. Directories are numbered from 1 as they
    /// come; 0 is the destination of everything.
    pub(super) directory: usize,
    /// Its name there.
    pub(super) name: Vec<u8>,
    pub(super) metadata: Metadata,
    pub(super) attributes: Vec<Attribute>,
    /// Target of a symbolic link.
    pub(super) target: PathBuf,
}

/// What a walk came by.
#[derive(Debug)]
pub(super) enum Event {
    /// A directory, before its content, or anything else. After a regular file
    /// come its data, and then an end.
    Entry(Box<Entry>),
    /// Data of the file, and their offset.
    Data(u64, Vec<u8>),
    /// There is no more of the file.
    End,
}

/// What the walk gives on.
enum Message {
    Event(Event),
    /// The walk ends here.
    Ended(Done),
}

/// Why a walk stops.
enum Stop {
    Failed(Failure),
    /// Nobody takes what it gives.
    Unwanted,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A walk over the host, by a thread of its own.
pub(super) struct Ahead {
    batches: Receiver<Vec<Message>>,
    batch: std::vec::IntoIter<Message>,
}

impl Ahead {
    /// Walks over `host` and everything below it. Its root gets the name
    /// `name`.
    pub(super) fn new(host: PathBuf, name: Vec<u8>) -> Result<Self, Failure> {
        let (sender, batches) = sync_channel(BATCHES);
        std::thread::Builder::new()
            .name("read host".into())
            .spawn(move || walk(host, name, sender))
            .context("a thread")?;
        Ok(Self {
            batches,
            batch: Vec::new().into_iter(),
        })
    }

    /// The next event; `None` at the end of the walk.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            match self.batch.next() {
                Some(Message::Event(event)) => return Ok(Some(event)),
                Some(Message::Ended(ended)) => return ended.map(|()| None),
                None => match self.batches.recv() {
                    Ok(batch) => self.batch = batch.into_iter(),
                    Err(_) => {
                        return fail(
                            "the thread that reads the host ended early; please report it",
                        );
                    }
                },
            }
        }
    }
}

fn walk(host: PathBuf, name: Vec<u8>, batches: SyncSender<Vec<Message>>) {
    let mut walk = Walk {
        batches,
        batch: Vec::new(),
        bytes: 0,
        directories: 0,
        seen: HashSet::new(),
        names: vec![0; ATTRIBUTES_MAX],
        value: vec![0; ATTRIBUTES_MAX],
    };
    let ended = match walk.run(host, name) {
        Ok(()) => Ok(()),
        Err(Stop::Failed(failure)) => Err(failure),
        Err(Stop::Unwanted) => return,
    };
    walk.batch.push(Message::Ended(ended));
    // Who does not take it wants no more.
    let _ = walk.send();
}

struct Walk {
    batches: SyncSender<Vec<Message>>,
    batch: Vec<Message>,
    /// Data in the batch.
    bytes: usize,
    /// Directories so far.
    directories: usize,
    /// Files with several names, whose data were given.
    seen: HashSet<(u64, u64)>,
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Walk {
    fn send(&mut self) -> Result<(), Stop> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        self.batches.send(batch).map_err(|_| Stop::Unwanted)
    }

    fn give(&mut self, event: Event) -> Result<(), Stop> {
        if let Event::Data(_, data) = &event {
            self.bytes += data.len();
        }
        self.batch.push(Message::Event(event));
        if self.batch.len() >= BATCH_EVENTS || self.bytes >= BATCH_BYTES {
            self.send()?;
        }
        Ok(())
    }

    fn run(&mut self, host: PathBuf, name: Vec<u8>) -> Result<(), Stop> {
        let mut waiting = vec![(host, 0, name)];
        while let Some((path, directory, name)) = waiting.pop() {
            let metadata = std::fs::symlink_metadata(&path).context(path.display())?;
            if metadata.is_dir() {
                self.directories += 1;
                for entry in std::fs::read_dir(&path).context(path.display())? {
                    let entry = entry.context(path.display())?;
                    let name = entry.file_name().as_bytes().to_vec();
                    waiting.push((entry.path(), self.directories, name));
                }
            }
            let target = match metadata.is_symlink() {
                true => std::fs::read_link(&path).context(path.display())?,
                false => PathBuf::new(),
            };
            let attributes = self.attributes(&path)?;
            let content = self.content_of(&path, &metadata)?;
            let is_file = metadata.is_file();
            let size = metadata.len();
            self.give(Event::Entry(Box::new(Entry {
                path: path.clone(),
                directory,
                name,
                metadata,
                attributes,
                target,
            })))?;
            if let Some(file) = content {
                self.data(&path, &file, size)?;
            }
            if is_file {
                self.give(Event::End)?;
            }
        }
        Ok(())
    }

    /// A file whose data are to be read.
    fn content_of(&mut self, path: &Path, metadata: &Metadata) -> Result<Option<File>, Failure> {
        let again = metadata.nlink() > 1 && {
            let identity = (metadata.dev(), metadata.ino());
            metadata.is_file() && !self.seen.insert(identity)
        };
        if again || !metadata.is_file() || metadata.len() == 0 {
            return Ok(None);
        }
        File::open(path).map(Some).context(path.display())
    }

    /// Gives data, not holes.
    fn data(&mut self, path: &Path, file: &File, size: u64) -> Result<(), Stop> {
        let mut at = 0;
        while at < size {
            let (start, end) = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => {
                    let hole = rustix::fs::seek(file, SeekFrom::Hole(start));
                    (start, hole.context(path.display())?)
                }
                Err(rustix::io::Errno::NXIO) => break,
                // A file system that knows no holes.
                Err(_) => (at, size),
            };
            at = start;
            while at < end.min(size) {
                let left = usize::try_from(end.min(size) - at).unwrap_or(STEP);
                let mut data = vec![0; left.min(STEP)];
                let count = file.read_at(&mut data, at).context(path.display())?;
                if count == 0 {
                    return Ok(());
                }
                data.truncate(count);
                self.give(Event::Data(at, data))?;
                at += count as u64;
            }
        }
        Ok(())
    }

    /// Extended attributes.
    fn attributes(&mut self, path: &Path) -> Result<Vec<Attribute>, Failure> {
        let count = match rustix::fs::llistxattr(path, &mut self.names[..]) {
            Ok(count) => count,
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error).context(path.display()),
        };
        let mut all = Vec::new();
        for name in self.names[..count].split(|byte| *byte == 0) {
            if name.is_empty() {
                continue;
            }
            match rustix::fs::lgetxattr(path, name, &mut self.value[..]) {
                Ok(length) => all.push((name.to_vec(), self.value[..length].to_vec())),
                Err(rustix::io::Errno::NODATA) => {}
                Err(error) => return Err(error).context(path.display()),
            }
        }
        Ok(all)
    }
}
