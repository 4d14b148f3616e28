//! What a command sends to the server of a mount that makes files for it.
//!
//! Owns the form of a frame, its kind, its length and that many bytes, and of the
//! fields in it. Frames are bounded, and a field says how long it is before it
//! comes, so whoever reads holds no more than one frame. What cannot be
//! understood is an error: the sender may be any program.

use crate::fail::{Failure, fail};
use crate::left_out::Undone;
use butterfs::Timespec;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;

/// Bytes of a frame, at most.
pub const FRAME_MAX: usize = 2 << 20;
/// Bytes that gather before they are sent.
const GATHERED: usize = 256 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something with a name.
    Entry,
    /// Data of the file that came last.
    Data,
    /// There is no more of it.
    End,
    /// It could not be read to its end.
    Failed,
    /// Something is left out.
    LeftOut,
    /// The source ends here, or the archive.
    Ended,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Entry,
        Self::Data,
        Self::End,
        Self::Failed,
        Self::LeftOut,
        Self::Ended,
    ];

    const fn number(self) -> u8 {
        self as u8
    }
}

/// The fields of a frame that is to be sent.
#[derive(Debug, Default)]
pub struct Fields(Vec<u8>);

impl Fields {
    /// Adds a number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// Adds a time.
    pub fn time(&mut self, time: Timespec) -> &mut Self {
        self.number(time.seconds.cast_unsigned());
        self.number(time.nanoseconds.into())
    }

    /// Adds why something is not done.
    pub fn undone(&mut self, undone: &Undone) -> &mut Self {
        let (scope, failure) = match undone {
            Undone::Entry(failure) => (0, failure),
            Undone::All(failure) => (1, failure),
            Undone::Full(failure) => (2, failure),
        };
        self.number(scope).bytes(failure.0.as_bytes())
    }

    /// Whether a frame has room for them.
    pub fn fit(&self) -> bool {
        self.0.len() <= FRAME_MAX
    }
}

/// Sends frames.
#[derive(Debug)]
pub struct Sending(BufWriter<UnixStream>);

impl Sending {
    /// Over this socket.
    pub fn new(socket: UnixStream) -> Self {
        Self(BufWriter::with_capacity(GATHERED, socket))
    }

    /// Sends a frame.
    pub fn send(&mut self, kind: Kind, fields: &Fields) -> io::Result<()> {
        self.send_with(kind, fields, &[])
    }

    /// Sends a frame that ends with these bytes.
    pub fn send_with(&mut self, kind: Kind, fields: &Fields, rest: &[u8]) -> io::Result<()> {
        let length = u32::try_from(fields.0.len() + rest.len()).unwrap_or(u32::MAX);
        self.0.write_all(&[kind.number()])?;
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(&fields.0)?;
        self.0.write_all(rest)
    }

    /// Sends what gathered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Receives frames.
#[derive(Debug)]
pub struct Receiving(BufReader<UnixStream>);

/// A frame that came.
#[derive(Debug)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    bytes: Vec<u8>,
    at: usize,
}

fn no_frame<T>() -> Result<T, Failure> {
    fail("what was sent is no part of a copy; is the program of another version?")
}

impl Receiving {
    /// From this socket.
    pub fn new(socket: UnixStream) -> Self {
        Self(BufReader::with_capacity(GATHERED, socket))
    }

    /// The next frame.
    ///
    /// # Errors
    /// Its sender is gone, or sent something else.
    pub fn next(&mut self) -> Result<Frame, Failure> {
        let mut head = [0; 5];
        let gone = |_| Failure("interrupted".to_owned());
        self.0.read_exact(&mut head).map_err(gone)?;
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        let kind = Kind::ALL.get(usize::from(kind)).copied();
        let (Some(kind), true) = (kind, length <= FRAME_MAX) else {
            return no_frame();
        };
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).map_err(gone)?;
        Ok(Frame { kind, bytes, at: 0 })
    }
}

impl Frame {
    fn take(&mut self, length: u64) -> Result<&[u8], Failure> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match usize::try_from(length)
            .ok()
            .and_then(|length| rest.get(..length))
        {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => no_frame(),
        }
    }

    /// The next number.
    pub fn number(&mut self) -> Result<u64, Failure> {
        let bytes = self.take(8)?.try_into();
        Ok(bytes.map_or(0, u64::from_le_bytes))
    }

    /// The next number, if it has 32 bits.
    pub fn small(&mut self) -> Result<u32, Failure> {
        u32::try_from(self.number()?).or_else(|_| no_frame())
    }

    /// The next bytes.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Failure> {
        let length = self.number()?;
        Ok(self.take(length)?.to_vec())
    }

    /// The next time.
    pub fn time(&mut self) -> Result<Timespec, Failure> {
        Ok(Timespec {
            seconds: self.number()?.cast_signed(),
            nanoseconds: self.small()?,
        })
    }

    /// Why something is not done.
    pub fn undone(&mut self) -> Result<Undone, Failure> {
        let scope = self.number()?;
        let failure = Failure(String::from_utf8_lossy(&self.bytes()?).into_owned());
        Ok(match scope {
            0 => Undone::Entry(failure),
            1 => Undone::All(failure),
            2 => Undone::Full(failure),
            _ => return no_frame(),
        })
    }

    /// All that is left.
    pub fn rest(mut self) -> Vec<u8> {
        self.bytes.drain(..self.at);
        self.bytes
    }

    /// As often as the next number says, what `read` reads. Each takes at least
    /// some bytes of the frame, so they are bounded.
    pub fn several<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        let count = self.number()?;
        if count > FRAME_MAX as u64 {
            return no_frame();
        }
        (0..count).map(|_| read(self)).collect()
    }
}

/// What a server keeps in memory of what it is sent, until the end.
#[derive(Debug, Default)]
pub struct Kept(usize);

impl Kept {
    /// About 400,000 directories.
    const MAX: usize = 128 << 20;

    /// Keeps so many bytes more.
    ///
    /// # Errors
    /// It is too much.
    pub fn keep(&mut self, bytes: usize) -> Result<(), Failure> {
        self.0 = self.0.saturating_add(bytes);
        match self.0 <= Self::MAX {
            true => Ok(()),
            false => fail(
                "more directories and hard links than the server of a mount keeps in memory; copy \
                 the directories one after the other",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sending, Receiving) {
        let (one, other) = UnixStream::pair().unwrap();
        (Sending::new(one), Receiving::new(other))
    }

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let (mut sending, mut receiving) = pair();
        let mut fields = Fields::default();
        let time = Timespec {
            seconds: -7,
            nanoseconds: 5,
        };
        let undone = Undone::Full(Failure("no room".to_owned()));
        fields.number(9).bytes(b"name").time(time).undone(&undone);
        sending.send_with(Kind::Data, &fields, b"rest").unwrap();
        sending.flush().unwrap();
        let mut frame = receiving.next().unwrap();
        assert_eq!(frame.kind, Kind::Data);
        assert_eq!(frame.number().unwrap(), 9);
        assert_eq!(frame.bytes().unwrap(), b"name");
        assert_eq!(frame.time().unwrap(), time);
        assert!(matches!(frame.undone().unwrap(), Undone::Full(failure) if failure.0 == "no room"));
        assert_eq!(frame.rest(), b"rest");
        for kind in Kind::ALL {
            assert_eq!(Kind::ALL[usize::from(kind.number())], kind);
        }
    }

    #[test]
    fn hostile_frames_are_errors() {
        for bytes in [
            &[9, 0, 0, 0, 0][..],
            &[0, 0xff, 0xff, 0xff, 0xff],
            &[0, 9, 0, 0, 0, 1],
            &[0],
            &[],
        ] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(bytes).unwrap();
            drop(one);
            assert!(Receiving::new(other).next().is_err(), "{bytes:?}");
        }
        let frame = |bytes: &[u8]| Frame {
            kind: Kind::Entry,
            bytes: bytes.to_vec(),
            at: 0,
        };
        let long = u64::MAX.to_le_bytes();
        assert!(frame(&long).bytes().is_err());
        assert!(frame(&long).small().is_err());
        assert!(frame(&long).undone().is_err());
        assert!(frame(&long[..7]).number().is_err());
        assert!(frame(&long).several(Frame::number).is_err());
        assert!(frame(&3_u64.to_le_bytes()).several(Frame::number).is_err());
        let mut kept = Kept::default();
        kept.keep(100 << 20).unwrap();
        assert!(kept.keep(100 << 20).is_err());
    }
}
