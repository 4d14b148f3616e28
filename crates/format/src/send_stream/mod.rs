//! Send streams: a subvolume, or what changed since another, as a sequence of
//! commands.
//!
//! Owns the stream's header, the framing of commands (length, kind, CRC-32C),
//! their attributes and both directions between bytes and [`Command`]. Does no
//! I/O: a receiver reads a [`CommandHeader`], then as many bytes as it says.
//!
//! Invariants: whatever the bytes are, parsing ends with a command or a fault,
//! allocates nothing and looks at no byte twice; a command is parsed only after
//! its checksum matched. Sources: the documentation's page on the send stream
//! format, and streams of Linux 6.18 (in `golden/`).

mod command;
mod encode;
mod fault;
mod kinds;
mod parse;
#[cfg(test)]
mod tests;

pub use command::{CloneRange, Command, EncodedWrite, Encoding, PathTimes, SourceStamp, Special};
pub use encode::Encoder;
pub use fault::StreamFault;
pub use kinds::{AttributeKind, CommandKind};
pub use parse::CommandHeader;

use crate::ParseError;
use crate::bytes::Reader;

/// First bytes of a stream.
pub const MAGIC: &[u8; 13] = b"btrfs-stream\0";
/// Bytes of a stream's header.
pub const HEADER_SIZE: usize = 17;
/// Greatest command of version 1, its header included.
pub const COMMAND_MAX_V1: usize = 64 << 10;
/// Greatest command that is accepted from later versions. The kernel's are at
/// most 144 KiB; the format names no bound.
pub const COMMAND_MAX: usize = 4 << 20;
/// Greatest path in a stream, as the kernel's PATH_MAX.
pub const PATH_MAX: usize = 4096;
/// Greatest extent of an encoded write, encoded or decoded.
pub const ENCODED_MAX: u64 = 128 << 10;

/// Version of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// Every kernel's.
    One,
    /// Since Linux 6.0: encoded writes, allocation, flags, time of birth.
    Two,
    /// Not final: fs-verity.
    Three,
}

impl Version {
    /// Versions with their stored number.
    pub const TABLE: [(Self, u32); 3] = [(Self::One, 1), (Self::Two, 2), (Self::Three, 3)];

    /// Its stored number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// The version stored as `number`, if it is known.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::TABLE
            .iter()
            .find(|(_, stored)| *stored == number)
            .map(|(version, _)| *version)
    }

    /// Greatest command, its header included.
    #[must_use]
    pub const fn command_max(self) -> usize {
        match self {
            Self::One => COMMAND_MAX_V1,
            Self::Two | Self::Three => COMMAND_MAX,
        }
    }

    /// The header that a stream of this version begins with.
    #[must_use]
    pub fn header(self) -> [u8; HEADER_SIZE] {
        let mut header = [0; HEADER_SIZE];
        let (magic, number) = header.split_at_mut(MAGIC.len());
        magic.copy_from_slice(MAGIC);
        number.copy_from_slice(&self.number().to_le_bytes());
        header
    }

    /// Reads a stream's header.
    ///
    /// # Errors
    /// [`StreamFault::NoStream`], [`StreamFault::UnknownVersion`]
    pub fn parse_header(bytes: &[u8; HEADER_SIZE]) -> Result<Self, StreamFault> {
        let mut r = Reader::new("stream header", bytes);
        let mut read = || -> Result<Option<u32>, ParseError> {
            let magic: [u8; 13] = r.array()?;
            let number = r.u32()?;
            Ok((magic == *MAGIC).then_some(number))
        };
        let number = read()?.ok_or(StreamFault::NoStream)?;
        Self::from_number(number).ok_or(StreamFault::UnknownVersion(number))
    }
}
