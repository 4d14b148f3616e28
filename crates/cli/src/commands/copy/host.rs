//! The host, read ahead of the thread that copies from it.
//!
//! Owns the walk over what is copied. A thread reads names, metadata and
//! content, in the order in which the volume gets them. What was read and not
//! yet taken is bounded to some MiB. The thread that takes it learns of each
//! error at its place, and decides what becomes of it. The walk goes on behind
//! it.

use super::facts::Facts;
use crate::fail::{Context, Failure, fail};
use crate::left_out::Undone;
use butterfs::Volume;
use rustix::fs::SeekFrom;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    pub(super) facts: Facts,
    pub(super) attributes: Vec<Attribute>,
    /// Target of a symbolic link.
    pub(super) target: PathBuf,
}

impl Entry {
    /// Bytes that it takes in memory, about.
    pub(super) fn size(&self) -> usize {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| name.len() + value.len() + 64);
        let names = self.path.as_os_str().len() + self.name.len() + self.target.as_os_str().len();
        size_of::<Self>() + names + attributes.sum::<usize>()
    }
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
    /// The file could not be read to its end, of which this is in place.
    Failed(Undone),
    /// Something cannot be read, has gone meanwhile, or is a file that holds the
    /// volume.
    LeftOut(Undone),
}

/// Files of the host by device and inode.
pub(super) type Files = HashSet<(u64, u64)>;

/// The regular files that hold a volume. The name of a device need not be its
/// path where that is not UTF-8, so `first` is the path that somebody gave.
pub(super) fn files_of(volume: &Volume, first: Option<&Path>) -> Files {
    let mut files = Files::new();
    let devices = volume.devices().into_iter();
    let names = devices.filter_map(|device| device.name.map(PathBuf::from));
    for path in names.chain(first.map(Path::to_owned)) {
        if let Ok(found) = fs::metadata(path)
            && found.is_file()
        {
            files.insert((found.dev(), found.ino()));
        }
    }
    files
}

/// What the walk passes on.
enum Message {
    Event(Event),
    /// The walk ends here.
    Ended,
}

/// Nobody takes what a walk gives.
struct Unwanted;

/// Something to copy, one event after the other.
pub(super) trait Source {
    /// The next event; `None` at the end of the walk.
    fn next(&mut self) -> Result<Option<Event>, Failure>;

    /// Passes over what is left of the file that is being read.
    fn skip_file(&mut self) -> Result<(), Failure>;

    /// A walk over a file that came before, if it can be read once more.
    fn again(&self, entry: &Entry) -> Result<Option<Ahead>, Failure>;
}

/// A walk over the host, by a thread of its own.
pub(super) struct Ahead {
    batches: Receiver<Vec<Message>>,
    batch: std::vec::IntoIter<Message>,
    /// The last entry was a file whose end did not come yet.
    is_in_file: bool,
    own: Arc<Files>,
}

impl Ahead {
    /// Walks over `host` and everything below it. Its root gets its name from
    /// whoever copies it. The files in `own` hold the volume, and are not copied
    /// into it.
    pub(super) fn new(host: PathBuf, own: Arc<Files>) -> Result<Self, Failure> {
        let (sender, batches) = sync_channel(BATCHES);
        let walked = Arc::clone(&own);
        std::thread::Builder::new()
            .name("read host".into())
            .spawn(move || walk(host, walked, sender))
            .context("a thread")?;
        Ok(Self {
            batches,
            batch: Vec::new().into_iter(),
            is_in_file: false,
            own,
        })
    }
}

impl Source for Ahead {
    fn skip_file(&mut self) -> Result<(), Failure> {
        while self.is_in_file {
            self.next()?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            match self.batch.next() {
                Some(Message::Event(event)) => {
                    self.is_in_file = match &event {
                        Event::Entry(entry) => entry.facts.is_file(),
                        Event::Data(..) => true,
                        Event::End | Event::Failed(_) | Event::LeftOut(_) => false,
                    };
                    return Ok(Some(event));
                }
                Some(Message::Ended) => {
                    self.is_in_file = false;
                    return Ok(None);
                }
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

    fn again(&self, entry: &Entry) -> Result<Option<Ahead>, Failure> {
        Self::new(entry.path.clone(), Arc::clone(&self.own)).map(Some)
    }
}

fn walk(host: PathBuf, own: Arc<Files>, batches: SyncSender<Vec<Message>>) {
    let mut walk = Walk {
        batches,
        batch: Vec::new(),
        bytes: 0,
        own,
        directories: 0,
        seen: HashSet::new(),
        names: vec![0; ATTRIBUTES_MAX],
        value: vec![0; ATTRIBUTES_MAX],
    };
    if walk.run(host).is_err() {
        return;
    }
    walk.batch.push(Message::Ended);
    // A receiver that does not take it wants no more.
    let _ = walk.send();
}

/// Says that a file holds the volume.
pub(super) fn holds_volume(path: &Path) -> Failure {
    let path = path.display();
    Failure(format!(
        "{path}: it holds the volume into which it would be copied"
    ))
}

/// What is at a path, but for its data.
struct Opened {
    metadata: Metadata,
    /// Names in a directory.
    children: Vec<OsString>,
    /// Target of a symbolic link.
    target: PathBuf,
    attributes: Vec<Attribute>,
    /// A file whose data are to be read.
    content: Option<File>,
}

struct Walk {
    batches: SyncSender<Vec<Message>>,
    batch: Vec<Message>,
    /// Data in the batch.
    bytes: usize,
    own: Arc<Files>,
    /// Directories so far.
    directories: usize,
    /// Files with several names, whose data were given.
    seen: Files,
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Walk {
    fn send(&mut self) -> Result<(), Unwanted> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        self.batches.send(batch).map_err(|_| Unwanted)
    }

    fn give(&mut self, event: Event) -> Result<(), Unwanted> {
        if let Event::Data(_, data) = &event {
            self.bytes += data.len();
        }
        self.batch.push(Message::Event(event));
        if self.batch.len() >= BATCH_EVENTS || self.bytes >= BATCH_BYTES {
            self.send()?;
        }
        Ok(())
    }

    fn run(&mut self, host: PathBuf) -> Result<(), Unwanted> {
        let mut waiting = vec![(host, 0, Vec::new())];
        while let Some((path, directory, name)) = waiting.pop() {
            let Opened {
                metadata,
                children,
                target,
                attributes,
                content,
            } = match self.open(&path) {
                Ok(Some(opened)) => opened,
                Ok(None) => {
                    self.give(Event::LeftOut(Undone::Entry(holds_volume(&path))))?;
                    continue;
                }
                Err(error) => {
                    let undone = Undone::from(error).at(path.display());
                    self.give(Event::LeftOut(undone))?;
                    continue;
                }
            };
            if metadata.is_dir() {
                self.directories += 1;
            }
            for name in children {
                let child = path.join(&name);
                waiting.push((child, self.directories, name.as_bytes().to_vec()));
            }
            let is_file = metadata.is_file();
            let size = metadata.len();
            self.give(Event::Entry(Box::new(Entry {
                path: path.clone(),
                directory,
                name,
                facts: Facts::from(&metadata),
                attributes,
                target,
            })))?;
            let read = match content {
                Some(file) => self.data(&file, size)?,
                None => Ok(()),
            };
            match read {
                Ok(()) if is_file => self.give(Event::End)?,
                Ok(()) => {}
                Err(undone) => self.give(Event::Failed(undone))?,
            }
        }
        Ok(())
    }

    /// Reads all but the data of what is at a path; `None` for a file that holds
    /// the volume.
    fn open(&mut self, path: &Path) -> io::Result<Option<Opened>> {
        let metadata = fs::symlink_metadata(path)?;
        if self.own.contains(&(metadata.dev(), metadata.ino())) {
            return Ok(None);
        }
        let mut children = Vec::new();
        if metadata.is_dir() {
            for entry in fs::read_dir(path)? {
                children.push(entry?.file_name());
            }
        }
        let target = match metadata.is_symlink() {
            true => fs::read_link(path)?,
            false => PathBuf::new(),
        };
        Ok(Some(Opened {
            children,
            target,
            attributes: self.attributes(path)?,
            content: self.content_of(path, &metadata)?,
            metadata,
        }))
    }

    /// A file whose data are to be read.
    fn content_of(&mut self, path: &Path, metadata: &Metadata) -> io::Result<Option<File>> {
        let identity = (metadata.dev(), metadata.ino());
        let has_others = metadata.nlink() > 1 && metadata.is_file();
        let again = has_others && self.seen.contains(&identity);
        if again || !metadata.is_file() || metadata.len() == 0 {
            return Ok(None);
        }
        let file = File::open(path)?;
        if has_others {
            self.seen.insert(identity);
        }
        Ok(Some(file))
    }

    /// Gives data, not holes. The inner error is the file's.
    fn data(&mut self, file: &File, size: u64) -> Result<Result<(), Undone>, Unwanted> {
        let mut at = 0;
        while at < size {
            let (start, end) = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => match rustix::fs::seek(file, SeekFrom::Hole(start)) {
                    Ok(hole) => (start, hole),
                    Err(error) => return Ok(Err(error.into())),
                },
                Err(rustix::io::Errno::NXIO) => break,
                // A file system that knows no holes.
                Err(_) => (at, size),
            };
            at = start;
            while at < end.min(size) {
                let left = usize::try_from(end.min(size) - at).unwrap_or(STEP);
                let mut data = vec![0; left.min(STEP)];
                let count = match file.read_at(&mut data, at) {
                    Ok(0) => {
                        return Ok(Err(Undone::Entry(Failure(format!(
                            "it ended after {at} of {size} bytes; something changes it"
                        )))));
                    }
                    Ok(count) => count,
                    Err(error) => return Ok(Err(error.into())),
                };
                data.truncate(count);
                self.give(Event::Data(at, data))?;
                at += count as u64;
            }
        }
        Ok(Ok(()))
    }

    /// Extended attributes.
    fn attributes(&mut self, path: &Path) -> io::Result<Vec<Attribute>> {
        let count = match rustix::fs::llistxattr(path, &mut self.names[..]) {
            Ok(count) => count,
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut all = Vec::new();
        for name in self.names[..count].split(|byte| *byte == 0) {
            if name.is_empty() {
                continue;
            }
            match rustix::fs::lgetxattr(path, name, &mut self.value[..]) {
                Ok(length) => all.push((name.to_vec(), self.value[..length].to_vec())),
                Err(rustix::io::Errno::NODATA) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }
}
