//! From the host into a mount, by its server.
//!
//! The process that asks reads the host with its own rights, and sends what it
//! reads. The server makes the files, with the rights of the process. The socket
//! holds back who is faster. When the process ends early, the server keeps the
//! files that are whole.

use super::facts::Facts;
use super::host::{Ahead, Entry, Event, Files, Source};
use super::into::{Named, Work};
use super::tally::Tally;
use crate::changes::own;
use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::frames::{Fields, Frame, Kind, Receiving, Sending};
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::on_mount::{Found, converse};
use crate::place::Place;
use butterfs::Owner;
use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the server of a mount is asked for.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    sources: Vec<Named>,
    place: Place,
    /// User and group of the copies, if not those of the originals.
    owner: Option<(u32, u32)>,
    is_quiet: bool,
}

impl Order {
    /// Its name, in requests.
    pub const TAG: &'static str = "Copy";

    /// Copies what `frames` brings.
    pub fn run(&self, ground: &Ground<'_>, frames: Receiving) -> Done {
        let mut tally = Tally::of_server();
        let owner = self.owner.map(|(uid, gid)| Owner { uid, gid });
        let frames = Arc::new(Mutex::new(frames));
        let open = |_| {
            Ok(Sent {
                frames: Arc::clone(&frames),
                is_in_file: false,
            })
        };
        let mut work = Work::new(*ground, owner, &mut tally);
        let copied = work.all(&self.sources, &self.place, open);
        drop(work);
        tally.ended(copied)?;
        tally.say(self.is_quiet)
    }
}

/// Errors if a directory would be copied into itself. The walk over it would meet
/// its own copy.
fn check_outside(sources: &[OsString], place: &Place) -> Done {
    let given = Path::new(&place.path);
    let above = || given.parent().filter(|above| !above.as_os_str().is_empty());
    let found = given
        .canonicalize()
        .or_else(|_| above().unwrap_or(Path::new(".")).canonicalize());
    let Ok(destination) = found else {
        return Ok(());
    };
    for source in sources.iter().map(Path::new) {
        let is_directory = source.symlink_metadata().is_ok_and(|found| found.is_dir());
        if is_directory
            && source
                .canonicalize()
                .is_ok_and(|source| destination.starts_with(source))
        {
            return fail(format!(
                "{}: a directory cannot be copied into itself",
                source.display()
            ));
        }
    }
    Ok(())
}

/// Copies `sources` to a place on a mount.
pub(super) fn copy(
    sources: &[OsString],
    place: Place,
    found: Found,
    (is_own, is_quiet): (bool, bool),
) -> Done {
    check_outside(sources, &place)?;
    let named: Result<Vec<Named>, Failure> = sources.iter().map(|word| Named::of(word)).collect();
    let owner = own();
    let order = Order {
        sources: named?,
        place,
        owner: is_own.then_some((owner.uid, owner.gid)),
        is_quiet,
    };
    let interrupt = Interrupt::watch()?;
    let mut bar = FilesBar::new(is_quiet);
    bar.count_host(sources);
    let line = bar.line();
    let answered = converse(found, (Order::TAG, &order), &line, |socket| {
        let mut sending = Sending::new(socket);
        for source in sources {
            send(source, (&mut sending, &bar), &interrupt)?;
        }
        sending.flush()?;
        Ok(())
    });
    bar.end();
    answered
}

/// Sends a source, and all below it.
fn send(
    source: &OsStr,
    (to, bar): (&mut Sending, &FilesBar),
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let done = bar.done();
    let mut ahead = Ahead::new(PathBuf::from(source), Arc::new(Files::new()))?;
    while let Some(event) = ahead.next()? {
        interrupt.check()?;
        let mut fields = Fields::default();
        let sent = match &event {
            Event::Entry(entry) => {
                done.file();
                put_entry(&mut fields, entry);
                if fields.fit() {
                    to.send(Kind::Entry, &fields)
                } else {
                    return fail(format!(
                        "{}: its attributes are too large",
                        entry.path.display()
                    ));
                }
            }
            Event::Data(at, data) => {
                done.data(data.len() as u64);
                fields.number(*at);
                to.send_with(Kind::Data, &fields, data)
            }
            Event::End => to.send(Kind::End, &fields),
            Event::Failed(undone) => to.send(Kind::Failed, fields.undone(undone)),
            Event::LeftOut(undone) => to.send(Kind::LeftOut, fields.undone(undone)),
        };
        sent.context("the server of the mount")?;
    }
    to.send(Kind::Ended, &Fields::default())
        .context("the server of the mount")
}

fn put_entry(fields: &mut Fields, entry: &Entry) {
    let Facts {
        mode,
        links,
        uid,
        gid,
        identity,
        rdev,
        size,
        atime,
        mtime,
        birth,
    } = entry.facts;
    fields.bytes(entry.path.as_os_str().as_bytes());
    fields.number(entry.directory as u64).bytes(&entry.name);
    for number in [
        mode.into(),
        links,
        uid.into(),
        gid.into(),
        identity.0,
        identity.1,
        rdev,
        size,
    ] {
        fields.number(number);
    }
    fields.time(atime).time(mtime);
    fields.number(birth.is_some().into());
    fields.time(birth.unwrap_or_default());
    fields.bytes(entry.target.as_os_str().as_bytes());
    fields.number(entry.attributes.len() as u64);
    for (name, value) in &entry.attributes {
        fields.bytes(name).bytes(value);
    }
}

fn path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

fn entry_of(frame: &mut Frame) -> Result<Entry, Failure> {
    let shown = path(frame.bytes()?);
    let directory = usize::try_from(frame.number()?)?;
    let name = frame.bytes()?;
    let mut facts = Facts {
        mode: frame.small()?,
        links: frame.number()?,
        uid: frame.small()?,
        gid: frame.small()?,
        identity: (frame.number()?, frame.number()?),
        rdev: frame.number()?,
        size: frame.number()?,
        atime: frame.time()?,
        mtime: frame.time()?,
        birth: None,
    };
    let has_birth = frame.number()? != 0;
    let birth = frame.time()?;
    facts.birth = has_birth.then_some(birth);
    Ok(Entry {
        path: shown,
        directory,
        name,
        facts,
        target: path(frame.bytes()?),
        attributes: frame.several(|frame| Ok((frame.bytes()?, frame.bytes()?)))?,
    })
}

/// A source that another process sends.
struct Sent {
    frames: Arc<Mutex<Receiving>>,
    /// The last entry was a file whose end did not come yet.
    is_in_file: bool,
}

impl Sent {
    fn frames(&self) -> MutexGuard<'_, Receiving> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Sent {
    fn next(&mut self) -> Result<Option<Event>, Failure> {
        let mut frame = self.frames().next()?;
        let event = match frame.kind {
            Kind::Entry => Event::Entry(Box::new(entry_of(&mut frame)?)),
            Kind::Data => Event::Data(frame.number()?, frame.rest()),
            Kind::End => Event::End,
            Kind::Failed => Event::Failed(frame.undone()?),
            Kind::LeftOut => Event::LeftOut(frame.undone()?),
            Kind::Ended => return Ok(None),
        };
        let belongs = matches!(event, Event::Data(..) | Event::End | Event::Failed(_));
        if belongs != self.is_in_file {
            return fail("a file was sent that does not end, or data that belong to none");
        }
        self.is_in_file = match &event {
            Event::Entry(entry) => entry.facts.is_file(),
            Event::Data(..) => true,
            Event::End | Event::Failed(_) | Event::LeftOut(_) => false,
        };
        Ok(Some(event))
    }

    fn skip_file(&mut self) -> Result<(), Failure> {
        while self.is_in_file {
            self.next()?;
        }
        Ok(())
    }

    fn again(&self, _: &Entry) -> Result<Option<Ahead>, Failure> {
        Ok(None)
    }
}

impl Tally {
    /// Says what was copied, and what was left out.
    pub(super) fn say(&self, is_quiet: bool) -> Done {
        if !is_quiet {
            say!("{} files, {}", self.files, HumanBytes(self.bytes));
        }
        if self.refused > 0 {
            note!(
                "butterfs: {} owners or attributes could not be kept; run as root to keep them, or \
                 say --no-owner",
                self.refused
            );
        }
        self.left_out.ended("copied")
    }
}
