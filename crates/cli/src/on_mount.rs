//! Commands on files of a mount of ours, which its server carries out.
//!
//! A request through FUSE costs two changes of context. So a command on many
//! files goes to the server of the mount as a whole, and the server does it with
//! the rights of the process that asks. This module owns how a command finds out
//! that its paths are on a mount, and how it shows the server where they begin:
//! by descriptors, which prove that the process can reach what they stand for.

use crate::changes::Start;
use crate::fail::{Done, Failure, fail};
use crate::ground::{Begun, Given, Ground, Shown};
use crate::output::{self, Notes};
use crate::patience;
use crate::place::Place;
use crate::service::Effect;
use butterfs::{Calls, InodeId, Volume};
use butterfs_server::{Connection, Mount, ServerError, server_of};
use indicatif::ProgressBar;
use rustix::fs::{FsWord, Mode, OFlags, fstat, fstatfs, major, minor};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

/// What statfs(2) says of every FUSE file system.
const FUSE: FsWord = 0x6573_5546;
/// Where a volume has its magic number.
const MAGIC: (&[u8; 8], u64) = (b"_BHRfS_M", 0x1_0040);

/// What a path of a command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// What is there. A link at its end is not followed.
    Entry,
    /// What is there. A link at its end is followed.
    Followed,
    /// The name itself, which is to be removed or moved.
    Name,
    /// A directory into which something goes, or a name that is to be made.
    Destination,
}

/// A command on files, in a volume that it opens or on a mount.
pub trait OnFiles: Serialize + Sized {
    /// Its name, in requests.
    const TAG: &'static str;

    /// Where paths in a volume begin.
    fn start(&self) -> &Start;

    /// Its paths.
    fn places(&mut self) -> Vec<(&mut Place, Ending)>;

    /// What it does to the volume.
    fn effect(&self) -> Effect;

    /// Makes it mean the same in a process that has another view of the host.
    fn prepare(&mut self) -> Done {
        Ok(())
    }

    /// Does it with a volume that it opens.
    fn here(self) -> Done;

    /// Does it.
    fn on(&self, ground: &Ground<'_>) -> Done;

    /// Does it, here or by the server of the mount where its paths are.
    fn run(mut self) -> Done {
        // Options for a volume mean one that the command opens.
        let found = match self.start().is_plain() {
            true => find(self.places())?,
            false => None,
        };
        match found {
            None => self.here(),
            Some(found) => {
                self.prepare()?;
                found.ask(Self::TAG, &self)
            }
        }
    }
}

/// A command and its paths, as a request has them.
#[derive(Debug, Deserialize, Serialize)]
pub struct OnMount<C> {
    command: C,
    given: Vec<Given>,
}

impl<C> OnMount<C> {
    /// The command, and where it works, for the process that showed `starts`.
    pub fn parts(self, starts: Vec<InodeId>) -> (C, Shown) {
        (self.command, Shown::new(self.given, starts))
    }
}

impl<C: OnFiles> OnMount<C> {
    /// What it does to the volume.
    pub fn effect(&self) -> Effect {
        self.command.effect()
    }

    /// Does it by `calls`, for the process that showed `starts`.
    pub fn run(self, volume: &Volume, calls: &dyn Calls, starts: Vec<InodeId>) -> Done {
        let (command, shown) = self.parts(starts);
        command.on(&Ground::mounted(volume, calls, &shown))
    }
}

/// Paths of a command that are on a mount of ours.
#[derive(Debug)]
pub struct Found {
    /// Where its server can be asked for.
    mount: PathBuf,
    descriptors: Vec<OwnedFd>,
    given: Vec<Given>,
}

impl Found {
    /// Has the server of the mount do a command, and prints what that prints.
    pub fn ask<C: Serialize>(self, tag: &str, command: &C) -> Done {
        let (server, request) = self.begin(tag, command)?;
        match server.run(&request, &mut output::own(), &mut Notes)? {
            0 => Ok(()),
            code => output::end_with(code),
        }
    }

    /// Shows the server the descriptors, and gives the request that it is to get
    /// then.
    pub fn begin<C: Serialize>(
        self,
        tag: &str,
        command: &C,
    ) -> Result<(Connection, Vec<u8>), Failure> {
        let given = self.given;
        let request = BTreeMap::from([(tag, OnMount { command, given })]);
        let request = serde_json::to_vec(&request)?;
        let server = Connection::to(&self.mount)?;
        let descriptors: Vec<BorrowedFd<'_>> = self.descriptors.iter().map(AsFd::as_fd).collect();
        // A server that refuses says so in its answer.
        if let Err(error) = server.begin_files(&descriptors)
            && descriptors.len() > 1
        {
            return Err(error.into());
        }
        Ok((server, request))
    }
}

/// Notes of a server, beside a line that shows progress.
struct Beside(ProgressBar);

impl Write for Beside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| Notes.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has a server do a command that has input, which `send` sends meanwhile, and
/// prints what the command prints. If sending fails, the server ends the command
/// and says what is done.
pub fn converse<C: Serialize>(
    found: Found,
    (tag, command): (&str, &C),
    line: &ProgressBar,
    send: impl FnOnce(UnixStream) -> Done,
) -> Done {
    let (mut server, request) = found.begin(tag, command)?;
    let input = server.input()?;
    let asked = server.ask(&request);
    let mut notes = Beside(line.clone());
    let (sent, answered) = thread::scope(|scope| {
        let answer = move || server.answer(asked, &mut output::own(), &mut notes);
        let answer = thread::Builder::new().spawn_scoped(scope, answer)?;
        let sent = input.try_clone().map_err(Failure::from).and_then(send);
        if sent.is_err() {
            let _ = input.shutdown(Shutdown::Write);
        }
        Ok::<_, Failure>((sent, answer.join()))
    })?;
    match (answered, sent) {
        (Ok(Ok(0)), sent) => sent,
        (Ok(Ok(code)), _) => output::end_with(code),
        // Where the server says nothing, this end may know why.
        (Ok(Err(ServerError::NotFinished { .. })), Err(failure)) => Err(failure),
        (Ok(Err(error)), _) => Err(error.into()),
        (Err(_), _) => fail("the thread that reads the answer ended early; please report it"),
    }
}

/// The paths of a command, if they are on a mount of ours. Their places then have
/// what somebody wrote.
///
/// # Errors
/// Some of them are there, and others elsewhere.
pub fn find(places: Vec<(&mut Place, Ending)>) -> Result<Option<Found>, Failure> {
    let paths: Option<Vec<PathBuf>> = places.iter().map(|(place, _)| on_host(place)).collect();
    let Some(first) = paths.as_ref().and_then(|paths| paths.first()).cloned() else {
        return Ok(None);
    };
    let paths = paths.unwrap_or_default();
    patience::asking(&first, || {
        let mut search = Search::default();
        for (path, (_, ending)) in paths.iter().zip(&places) {
            let begun = search.begin(path, *ending);
            search.given.push(Given {
                word: path.clone().into_os_string(),
                begun,
            });
        }
        let Some((mount, search)) = search.end()? else {
            return Ok(None);
        };
        for ((place, _), given) in places.into_iter().zip(&search.given) {
            *place = Place {
                volume: PathBuf::new(),
                path: given.word.clone(),
            };
        }
        Ok(Some(Found {
            mount,
            descriptors: search.descriptors,
            given: search.given,
        }))
    })
}

/// The path of a place on the host; `None` for one in a volume.
fn on_host(place: &Place) -> Option<PathBuf> {
    let inner = place.path.as_bytes();
    let start = inner.iter().position(|byte| *byte != b'/');
    match start {
        None => Some(place.volume.clone()),
        Some(start) if place.volume.is_dir() => {
            Some(place.volume.join(OsStr::from_bytes(&inner[start..])))
        }
        Some(_) => None,
    }
}

/// Paths of a command, and what was found of them.
#[derive(Default)]
struct Search {
    descriptors: Vec<OwnedFd>,
    /// Descriptors of directories, by what was written.
    directories: HashMap<PathBuf, usize>,
    given: Vec<Given>,
    /// `major:minor` of the FUSE file systems that were met.
    devices: Vec<String>,
    /// One of the paths is elsewhere.
    is_elsewhere: bool,
}

impl Search {
    fn begin(&mut self, path: &Path, ending: Ending) -> Begun {
        let begun = match ending {
            Ending::Entry => self.open(path, OFlags::NOFOLLOW),
            Ending::Followed => self.open(path, OFlags::empty()),
            Ending::Name => self.name(path),
            Ending::Destination => match self.open(path, OFlags::DIRECTORY) {
                Err(Errno::NOENT | Errno::NOTDIR) => self.name(path),
                opened => opened,
            },
        };
        begun.unwrap_or_else(|error| {
            // The directory in which it would be says where that is.
            if self.devices.is_empty()
                && let Ok(parent) = open(&above(path), OFlags::DIRECTORY)
            {
                self.note_device(parent.as_fd());
            }
            Begun::Failed(error.raw_os_error())
        })
    }

    fn open(&mut self, path: &Path, how: OFlags) -> Result<Begun, Errno> {
        let opened = open(path, how)?;
        if !how.contains(OFlags::DIRECTORY) && holds_volume(path, opened.as_fd()) {
            self.is_elsewhere = true;
        }
        self.note_device(opened.as_fd());
        self.descriptors.push(opened);
        Ok(Begun::At(self.descriptors.len() - 1))
    }

    fn name(&mut self, path: &Path) -> Result<Begun, Errno> {
        let directory = above(path);
        let name = last(path).ok_or(Errno::INVAL)?.to_vec();
        if let Some(number) = self.directories.get(&directory) {
            return Ok(Begun::Named(*number, name));
        }
        let opened = open(&directory, OFlags::DIRECTORY)?;
        self.note_device(opened.as_fd());
        self.descriptors.push(opened);
        let number = self.descriptors.len() - 1;
        self.directories.insert(directory, number);
        Ok(Begun::Named(number, name))
    }

    fn note_device(&mut self, opened: BorrowedFd<'_>) {
        let is_fuse = fstatfs(opened).is_ok_and(|found| found.f_type == FUSE);
        let device = fstat(opened).ok().filter(|_| is_fuse);
        let Some(device) = device.map(|found| found.st_dev) else {
            self.is_elsewhere = true;
            return;
        };
        let device = format!("{}:{}", major(device), minor(device));
        if !self.devices.contains(&device) {
            self.devices.push(device);
        }
    }

    /// The mount by which the server is found; `None` if nothing is on a mount
    /// of ours.
    fn end(self) -> Result<Option<(PathBuf, Self)>, Failure> {
        if self.devices.is_empty() {
            return Ok(None);
        }
        let mounts = Mount::seen_by("self").into_iter();
        let ours = mounts.filter(|mount| mount.is_ours() && self.devices.contains(&mount.device));
        let found = ours
            .map(|mount| mount.point)
            .find(|point| server_of(point).is_some());
        match found {
            None => Ok(None),
            Some(_) if self.is_elsewhere && self.given.len() == 1 => Ok(None),
            Some(_) if self.is_elsewhere || self.devices.len() > 1 => {
                fail("all paths must be in one volume")
            }
            Some(point) => Ok(Some((point, self))),
        }
    }
}

fn open(path: &Path, how: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | how, Mode::empty())
}

/// Whether a file holds a volume, which a command on it means then.
fn holds_volume(path: &Path, opened: BorrowedFd<'_>) -> bool {
    let is_file = fstat(opened).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFREG);
    let (magic, at) = MAGIC;
    let mut found = [0; 8];
    is_file
        && File::open(path).is_ok_and(|file| file.read_exact_at(&mut found, at).is_ok())
        && found == *magic
}

/// A path without the slashes at its end.
fn trimmed(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/');
    &bytes[..end.map_or(0, |end| end + 1)]
}

/// The directory in which a path's last name is.
fn above(path: &Path) -> PathBuf {
    let bytes = trimmed(path);
    match bytes.iter().rposition(|byte| *byte == b'/') {
        None => ".".into(),
        Some(0) => "/".into(),
        Some(cut) => OsStr::from_bytes(&bytes[..cut]).into(),
    }
}

/// A path's last name, if that is a name.
fn last(path: &Path) -> Option<&[u8]> {
    let name = trimmed(path).rsplit(|byte| *byte == b'/').next()?;
    (!name.is_empty() && !matches!(name, b"." | b"..")).then_some(name)
}

/// Names of the machine's users and groups, for a command that another process
/// carries out.
pub fn user_database(file: &[u8]) -> Vec<u8> {
    std::fs::read(Path::new(OsStr::from_bytes(file))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn a_path_ends_in_a_name_of_a_directory() {
        let parts = |path: &str| {
            let path = Path::new(path);
            let name = last(path).map(|name| String::from_utf8_lossy(name).into_owned());
            (above(path), name)
        };
        let is = |directory: &str, name: &str| (PathBuf::from(directory), Some(name.to_owned()));
        assert_eq!(parts("a"), is(".", "a"));
        assert_eq!(parts("/a"), is("/", "a"));
        assert_eq!(parts("b//a//"), is("b/", "a"));
        assert_eq!(parts("../a"), is("..", "a"));
        for none in ["/", ".", "a/..", "//", "a/."] {
            assert_eq!(parts(none).1, None, "{none}");
        }
    }

    #[test]
    fn paths_elsewhere_are_on_no_mount() {
        let mut place = Place::from(OsString::from("/proc/self"));
        let found = find(vec![(&mut place, Ending::Entry)]).unwrap();
        assert!(found.is_none());
        assert_eq!(place.volume, PathBuf::from("/proc/self"));
    }
}
