//! From an archive into a mount, by its server.
//!
//! The process that asks reads the archive, and sends its members and their
//! content. The server makes the files, with the rights of the process.

use super::fill::{Work, shown};
use crate::changes::own;
use crate::fail::{Context, Done, Failure, fail};
use crate::frames::{Fields, Frame, Kind, Receiving, Sending};
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::left_out::Undone;
use crate::on_mount::{Found, converse};
use crate::place::Place;
use butterfs::Owner;
use butterfs_admin::archive::{self, ArchiveError, Member, MemberKind};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// Bytes of content that are sent at a time.
const STEP: usize = 256 << 10;

/// What the server of a mount is asked for.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    pub(super) place: Place,
    /// User and group of the files, if not those of the archive.
    pub(super) owner: Option<(u32, u32)>,
}

/// What went wrong while an archive was read and sent.
enum Stopped {
    Archive(ArchiveError),
    Other(Failure),
}

impl From<ArchiveError> for Stopped {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

impl Order {
    /// Its name, in requests.
    pub const TAG: &'static str = "Extract";

    /// To extract to a place, for whoever asks or for the owners of the archive.
    pub(super) fn new(place: Place, is_own: bool) -> Self {
        let owner = own();
        Self {
            place,
            owner: is_own.then_some((owner.uid, owner.gid)),
        }
    }

    /// Extracts what `frames` brings.
    pub fn run(&self, ground: &Ground<'_>, mut frames: Receiving) -> Done {
        let Some(root) = ground.directory(&self.place)? else {
            return fail(format!("{} is no directory", self.place));
        };
        let own = self.owner.map(|(uid, gid)| Owner { uid, gid });
        let mut work = Work::new(*ground, (root, b""), own);
        let extracted = members(&mut work, &mut frames);
        work.ended(extracted)
    }
}

fn members(work: &mut Work<'_>, frames: &mut Receiving) -> Done {
    loop {
        let mut frame = frames.next()?;
        match frame.kind {
            Kind::Ended => return Ok(()),
            Kind::LeftOut => work.left_out.undone(frame.undone()?)?,
            Kind::Failed => return Err(frame.undone()?.into_failure()),
            Kind::Entry => {
                let member = member_of(&mut frame)?;
                let mut content = Content {
                    frames: &mut *frames,
                    data: Vec::new(),
                    at: 0,
                    is_over: member.kind != MemberKind::File,
                };
                work.take(member, &mut content)?;
                content.skip()?;
            }
            Kind::Data | Kind::End => return fail("data were sent that belong to no member"),
        }
    }
}

/// Sends an archive.
pub(super) fn send(
    (name, input): (&str, impl Read),
    (order, found): (&Order, Found),
    (line, done): (&ProgressBar, &dyn Fn()),
) -> Done {
    let interrupt = Interrupt::watch()?;
    converse(found, (Order::TAG, order), line, |socket| {
        let mut to = Sending::new(socket);
        let read = archive::read(input, &mut |found, content| {
            done();
            interrupt.check().map_err(Stopped::Other)?;
            let sent = match found {
                Ok(member) => send_member(&mut to, &member, content),
                Err(error) => {
                    let undone = Undone::Entry(error.into());
                    let mut fields = Fields::default();
                    to.send(Kind::LeftOut, fields.undone(&undone))
                        .context("its server")
                }
            };
            sent.map_err(Stopped::Other)
        });
        match read {
            Ok(()) => to.send(Kind::Ended, &Fields::default())?,
            Err(Stopped::Other(failure)) => return Err(failure),
            // The server says it, and how many files there are.
            Err(Stopped::Archive(error)) => {
                let undone = Undone::All(Failure(format!("{name}: {error}")));
                to.send(Kind::Failed, Fields::default().undone(&undone))?;
            }
        }
        Ok(to.flush()?)
    })
}

fn send_member(to: &mut Sending, member: &Member, content: &mut dyn Read) -> Done {
    let mut fields = Fields::default();
    put_member(&mut fields, member);
    if !fields.fit() {
        return fail(format!(
            "{}: its attributes are too large",
            shown(&member.path)
        ));
    }
    to.send(Kind::Entry, &fields)?;
    if member.kind != MemberKind::File {
        return Ok(());
    }
    let mut buffer = vec![0; STEP.min(usize::try_from(member.size).unwrap_or(STEP).max(1))];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => to.send_with(Kind::Data, &Fields::default(), &buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let failure = Failure(format!("the archive cannot be read: {error}"));
                to.send(
                    Kind::Failed,
                    Fields::default().undone(&Undone::All(failure)),
                )?;
                return Ok(());
            }
        }
    }
    Ok(to.send(Kind::End, &Fields::default())?)
}

fn put_names(fields: &mut Fields, names: &[Vec<u8>]) {
    fields.number(names.len() as u64);
    for name in names {
        fields.bytes(name);
    }
}

fn put_member(fields: &mut Fields, member: &Member) {
    put_names(fields, &member.path);
    match &member.kind {
        MemberKind::File => _ = fields.number(0),
        MemberKind::Directory => _ = fields.number(1),
        MemberKind::Symlink(target) => _ = fields.number(2).bytes(target),
        MemberKind::HardLink(path) => put_names(fields.number(3), path),
        MemberKind::CharDevice(number) => _ = fields.number(4).number(*number),
        MemberKind::BlockDevice(number) => _ = fields.number(5).number(*number),
        MemberKind::Fifo => _ = fields.number(6),
    }
    for number in [member.permissions, member.uid, member.gid] {
        fields.number(number.into());
    }
    fields.time(member.mtime).number(member.size);
    match &member.pieces {
        None => _ = fields.number(0),
        Some(pieces) => {
            fields.number(1).number(pieces.len() as u64);
            for piece in pieces {
                fields.number(piece.start).number(piece.end);
            }
        }
    }
    fields.number(member.attributes.len() as u64);
    for (name, value) in &member.attributes {
        fields.bytes(name).bytes(value);
    }
}

fn member_of(frame: &mut Frame) -> Result<Member, Failure> {
    Ok(Member {
        path: frame.several(Frame::bytes)?,
        kind: match frame.number()? {
            0 => MemberKind::File,
            1 => MemberKind::Directory,
            2 => MemberKind::Symlink(frame.bytes()?),
            3 => MemberKind::HardLink(frame.several(Frame::bytes)?),
            4 => MemberKind::CharDevice(frame.number()?),
            5 => MemberKind::BlockDevice(frame.number()?),
            6 => MemberKind::Fifo,
            _ => return fail("a member of an unknown type was sent"),
        },
        permissions: frame.small()? & 0o7777,
        uid: frame.small()?,
        gid: frame.small()?,
        mtime: frame.time()?,
        size: frame.number()?,
        pieces: match frame.number()? {
            0 => None,
            _ => {
                let pieces = frame.several(|frame| Ok(frame.number()?..frame.number()?))?;
                if pieces.iter().any(|piece| piece.start > piece.end) {
                    return fail("a member was sent whose pieces end before they begin");
                }
                Some(pieces)
            }
        },
        attributes: frame.several(|frame| Ok((frame.bytes()?, frame.bytes()?)))?,
    })
}

/// The content of a member that another process sends.
struct Content<'a> {
    frames: &'a mut Receiving,
    data: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl Content<'_> {
    /// Passes over what nobody read.
    fn skip(&mut self) -> Done {
        while !self.is_over {
            self.fill()?;
        }
        Ok(())
    }

    fn fill(&mut self) -> Done {
        let mut frame = self.frames.next()?;
        match frame.kind {
            Kind::Data => {
                self.data = frame.rest();
                self.at = 0;
                Ok(())
            }
            Kind::End => {
                self.is_over = true;
                Ok(())
            }
            Kind::Failed => {
                self.is_over = true;
                Err(frame.undone()?.into_failure())
            }
            _ => fail("a member was sent that does not end"),
        }
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.data.len() && !self.is_over {
            self.fill().map_err(|failure| io::Error::other(failure.0))?;
        }
        let rest = self.data.get(self.at..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}
