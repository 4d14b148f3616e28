//! A stream, command by command.

use super::error::ReceiveError;
use butterfs_format::checksum::crc32c_raw;
use butterfs_format::send_stream::{
    Command, CommandHeader, CommandKind, HEADER_SIZE, StreamFault, Version,
};
use std::io::{self, Read};

/// How far a stream was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes.
    pub offset: u64,
    /// CRC-32C over the headers of all commands so far. Each header has the
    /// checksum of its command, so equal values mean that the streams are equal
    /// up to here.
    pub digest: u32,
}

/// Where commands come from.
pub trait CommandSource {
    /// The next command, with the position before it; `None` if the input ends
    /// between two commands. The caller decides whether the stream may end
    /// there.
    ///
    /// # Errors
    /// [`ReceiveError`]. Nothing can be read after an error.
    fn read_command(&mut self) -> Result<Option<(Position, Command<'_>)>, ReceiveError>;

    /// How far it was read.
    fn position(&self) -> Position;
}

/// A command that is known to be as it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framed {
    before: Position,
    pub after: Position,
    header: CommandHeader,
    /// Where its body begins.
    start: usize,
}

impl Framed {
    /// The command, whose body is in `bodies`.
    pub fn parse<'b>(
        &self,
        bodies: &'b [u8],
    ) -> Result<Option<(Position, Command<'b>)>, ReceiveError> {
        let body = &bodies[self.start..self.start + self.header.length];
        match self.header.verified_command(body) {
            Ok(command) => Ok(Some((self.before, command))),
            Err(fault) => Err(ReceiveError::Damaged {
                offset: self.before.offset,
                fault,
            }),
        }
    }
}

/// Reads commands from a stream, or from several that follow one another.
#[derive(Debug)]
pub struct StreamReader<R: Read> {
    input: R,
    position: Position,
    /// Of the stream that is being read; `None` before its header.
    version: Option<Version>,
    body: Vec<u8>,
}

impl<R: Read> StreamReader<R> {
    /// Reads from `input`.
    pub const fn new(input: R) -> Self {
        Self {
            input,
            position: Position {
                offset: 0,
                digest: 0,
            },
            version: None,
            body: Vec::new(),
        }
    }

    /// Reads the next command and appends its body to `bodies`. The body has
    /// the length and the checksum that its header says. `None` if the input
    /// ends between two commands.
    pub(super) fn read_framed(
        &mut self,
        bodies: &mut Vec<u8>,
    ) -> Result<Option<Framed>, ReceiveError> {
        let version = match self.version {
            Some(version) => version,
            None => match self.header()? {
                Some(version) => version,
                None => return Ok(None),
            },
        };
        let before = self.position;
        let damaged = |fault| ReceiveError::Damaged {
            offset: before.offset,
            fault,
        };
        let mut header = [0; CommandHeader::SIZE];
        let count = self.fill(&mut header)?;
        if count == 0 {
            return Ok(None);
        }
        let cut = |offset: u64, missing| ReceiveError::Cut { offset, missing };
        if count < header.len() {
            return Err(cut(self.position.offset, "the rest of a command"));
        }
        let parsed = CommandHeader::parse(&header, version).map_err(damaged)?;
        let start = bodies.len();
        let length = parsed.length as u64;
        // Grows with the data that arrive, not with what the header promises.
        let read = (&mut self.input).take(length).read_to_end(bodies);
        let got = (bodies.len() - start) as u64;
        self.position.offset += got;
        read.map_err(|error| ReceiveError::Read {
            offset: self.position.offset,
            error,
        })?;
        if got < length {
            return Err(cut(self.position.offset, "the rest of a command"));
        }
        self.position.digest = crc32c_raw(self.position.digest, &header);
        parsed.verify(&bodies[start..]).map_err(damaged)?;
        if parsed.kind == CommandKind::End {
            self.version = None;
        }
        Ok(Some(Framed {
            before,
            after: self.position,
            header: parsed,
            start,
        }))
    }

    /// Reads the header of a stream; `None` where there is none.
    fn header(&mut self) -> Result<Option<Version>, ReceiveError> {
        let offset = self.position.offset;
        let damaged = |fault| ReceiveError::Damaged { offset, fault };
        let mut header = [0; HEADER_SIZE];
        let count = self.fill(&mut header)?;
        if count == 0 {
            return Ok(None);
        }
        if count < header.len() {
            let known = butterfs_format::send_stream::MAGIC;
            if header[..count.min(known.len())] == known[..count.min(known.len())] {
                return Err(ReceiveError::Cut {
                    offset: self.position.offset,
                    missing: "the rest of its header",
                });
            }
            return Err(damaged(StreamFault::NoStream));
        }
        let version = Version::parse_header(&header).map_err(damaged)?;
        self.position.digest = crc32c_raw(self.position.digest, &header);
        self.version = Some(version);
        Ok(Some(version))
    }

    /// Reads until `buffer` is full or the input ends; gives how much it read.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, ReceiveError> {
        let mut count = 0;
        while count < buffer.len() {
            match self.input.read(&mut buffer[count..]) {
                Ok(0) => break,
                Ok(more) => {
                    count += more;
                    self.position.offset += more as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(ReceiveError::Read {
                        offset: self.position.offset,
                        error,
                    });
                }
            }
        }
        Ok(count)
    }
}

impl<R: Read> CommandSource for StreamReader<R> {
    fn read_command(&mut self) -> Result<Option<(Position, Command<'_>)>, ReceiveError> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let framed = self.read_framed(&mut body);
        self.body = body;
        match framed? {
            Some(framed) => framed.parse(&self.body),
            None => Ok(None),
        }
    }

    fn position(&self) -> Position {
        self.position
    }
}
