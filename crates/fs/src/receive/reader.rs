//! A stream, command by command.

use super::error::ReceiveError;
use butterfs_format::checksum::crc32c_raw;
use butterfs_format::send_stream::{Command, CommandHeader, HEADER_SIZE, StreamFault, Version};
use std::io::{self, Read};

/// How far a stream was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes.
    pub offset: u64,
    /// CRC-32C of the headers of all commands so far, each of which has the
    /// checksum of its own: equal ones mean equal streams up to here.
    pub digest: u32,
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

    /// How far it was read.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.position
    }

    /// Version of the stream that is being read.
    #[must_use]
    pub const fn version(&self) -> Option<Version> {
        self.version
    }

    /// The next command, with the position before it; `None` where the input
    /// ends between two commands. Whether the stream may end there is the
    /// caller's to judge.
    ///
    /// # Errors
    /// [`ReceiveError`]; nothing can be read after one.
    pub fn read_command(&mut self) -> Result<Option<(Position, Command<'_>)>, ReceiveError> {
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
        self.body.clear();
        let length = parsed.length as u64;
        // Grows with what comes, not with what the header promises.
        let read = (&mut self.input).take(length).read_to_end(&mut self.body);
        self.position.offset += self.body.len() as u64;
        read.map_err(|error| ReceiveError::Read {
            offset: self.position.offset,
            error,
        })?;
        if (self.body.len() as u64) < length {
            return Err(cut(self.position.offset, "the rest of a command"));
        }
        self.position.digest = crc32c_raw(self.position.digest, &header);
        let command = parsed.command(&self.body).map_err(damaged)?;
        if command == Command::End {
            self.version = None;
        }
        Ok(Some((before, command)))
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
