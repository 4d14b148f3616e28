//! What goes over the socket of a mount's server.
//!
//! Owns the form of requests and answers. A request is its length and that many
//! bytes. An answer consists of parts; each is a kind, a length, and that many
//! bytes. The last part is the end, which says how the command ended. Nothing
//! else counts as success: an answer without an end, cut anywhere, is an error.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// For standard output.
const OUTPUT: u8 = 1;
/// For standard error.
const NOTE: u8 = 2;
/// How it ended: a status, and an exit code or why it failed.
const END: u8 = 4;
/// Status of an end: all was done, and an exit code says what was found.
const DONE: u8 = 0;
/// Status of an end: it failed.
const FAILED: u8 = 1;
/// Greatest part.
pub(super) const PART: usize = 64 << 10;
/// What a connection begins with that sends descriptors: no length of a request.
const FILES: u32 = u32::from_le_bytes(*b"FIL1");
/// Descriptors that a request may have, at most. The kernel has a limit of 253.
pub(super) const DESCRIPTORS_MAX: usize = 250;
/// Greatest request.
const REQUEST_MAX: u32 = 1 << 20;

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// For standard output.
    Output(Vec<u8>),
    /// For standard error.
    Note(Vec<u8>),
    /// Nothing follows: everything was done, with this exit code, or the reason
    /// why not.
    End(Result<u8, String>),
}

/// Writes a request.
pub(super) fn write_request(to: &mut impl Write, request: &[u8]) -> io::Result<()> {
    let length = u32::try_from(request.len()).ok();
    let length = length.filter(|length| *length <= REQUEST_MAX);
    let length = length.ok_or_else(|| invalid("the command is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(request)
}

/// What a connection begins with.
#[derive(Debug)]
pub(super) enum Begin {
    /// A request of this length.
    Request(u32),
    /// These descriptors, and then a request for work on what they stand for.
    Files(Vec<OwnedFd>),
}

/// Writes the beginning of a request for work on files.
pub(super) fn write_files(to: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(invalid("too many directories at a time; name fewer"));
    }
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(descriptors));
    let bytes = FILES.to_le_bytes();
    let sent = sendmsg(
        to,
        &[IoSlice::new(&bytes)],
        &mut rights,
        SendFlags::NOSIGNAL,
    )?;
    (&*to).write_all(&bytes[sent..])
}

/// Reads the beginning of a request.
pub(super) fn read_begin(mut from: &UnixStream) -> io::Result<Begin> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4];
    let room = &mut [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(from, room, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    from.read_exact(&mut bytes[received.bytes..])?;
    Ok(match u32::from_le_bytes(bytes) {
        FILES => Begin::Files(descriptors),
        length => Begin::Request(length),
    })
}

/// Reads a request's length.
pub(super) fn read_length(from: &mut impl Read) -> io::Result<u32> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    Ok(u32::from_le_bytes(length))
}

/// Reads a request of this length.
pub(super) fn read_request(from: &mut impl Read, length: u32) -> io::Result<Vec<u8>> {
    if length > REQUEST_MAX {
        return Err(invalid("a request that is none"));
    }
    let mut request = vec![0; length as usize];
    from.read_exact(&mut request)?;
    Ok(request)
}

/// Writes bytes for standard output, at most [`PART`] of them.
pub(super) fn write_output(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write(to, OUTPUT, bytes)
}

/// Writes bytes for standard error, at most [`PART`] of them.
pub(super) fn write_note(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write(to, NOTE, bytes)
}

/// Writes the end: everything was done, with this exit code, or the reason why
/// not.
pub(super) fn write_end(to: &mut impl Write, end: Result<u8, &str>) -> io::Result<()> {
    let mut bytes = match end {
        Ok(code) => vec![DONE, code],
        Err(text) => [&[FAILED], text.as_bytes()].concat(),
    };
    bytes.truncate(PART);
    write(to, END, &bytes)?;
    to.flush()
}

fn write(to: &mut impl Write, kind: u8, part: &[u8]) -> io::Result<()> {
    assert!(part.len() <= PART, "parts are cut before");
    let length = part.len() as u32;
    to.write_all(&[kind])?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(part)
}

/// Reads the next part of an answer.
///
/// # Errors
/// The answer is cut, or is none.
pub(super) fn read(from: &mut impl Read) -> io::Result<Part> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    if length > PART {
        return Err(unknown());
    }
    let mut part = vec![0; length];
    from.read_exact(&mut part)?;
    match kind {
        OUTPUT => Ok(Part::Output(part)),
        NOTE => Ok(Part::Note(part)),
        END => match part.split_first() {
            Some((&DONE, [code])) => Ok(Part::End(Ok(*code))),
            Some((&FAILED, text)) => {
                let text = String::from_utf8_lossy(text).into_owned();
                Ok(Part::End(Err(text)))
            }
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn unknown() -> io::Error {
    invalid("the server is of another version of butterfs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn all(mut bytes: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        while let Ok(part) = read(&mut bytes) {
            parts.push(part);
        }
        parts
    }

    #[test]
    fn only_a_whole_answer_ends_in_success() {
        let mut bytes = Vec::new();
        write_output(&mut bytes, b"first\n").unwrap();
        write_note(&mut bytes, b"careful\n").unwrap();
        write_output(&mut bytes, &[7; PART]).unwrap();
        write_end(&mut bytes, Ok(3)).unwrap();
        let parts = all(&bytes);
        assert_eq!(parts.len(), 4);
        assert_eq!(parts[0], Part::Output(b"first\n".to_vec()));
        assert_eq!(parts[1], Part::Note(b"careful\n".to_vec()));
        assert_eq!(parts[3], Part::End(Ok(3)));
        for cut in (0..100).chain(bytes.len() - 100..bytes.len()) {
            let parts = all(&bytes[..cut]);
            assert!(!parts.iter().any(|part| matches!(part, Part::End(_))));
        }
    }

    #[test]
    fn an_end_without_a_status_is_an_error() {
        let mut failed = Vec::new();
        write_end(&mut failed, Err("no such thing")).unwrap();
        assert_eq!(all(&failed), [Part::End(Err("no such thing".to_owned()))]);
        for part in [
            &[END, 0, 0, 0, 0][..],
            &[END, 1, 0, 0, 0, 9],
            &[3, 0, 0, 0, 0],
        ] {
            assert!(read(&mut &part[..]).is_err(), "{part:?}");
        }
    }

    #[test]
    fn descriptors_come_before_a_request() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        write_files(&one, &[file.as_fd(), file.as_fd()]).unwrap();
        match read_begin(&other).unwrap() {
            Begin::Files(descriptors) => assert_eq!(descriptors.len(), 2),
            begin => panic!("{begin:?}"),
        }
        (&one).write_all(&7_u32.to_le_bytes()).unwrap();
        assert!(matches!(read_begin(&other).unwrap(), Begin::Request(7)));
        (&one).write_all(&[1]).unwrap();
        drop(one);
        assert!(read_begin(&other).is_err());
        const { assert!(FILES > REQUEST_MAX) }
    }

    #[test]
    fn requests_are_whole_or_refused() {
        let mut bytes = Vec::new();
        write_request(&mut bytes, b"{}").unwrap();
        let read = |mut bytes: &[u8]| {
            let length = read_length(&mut bytes)?;
            read_request(&mut bytes, length)
        };
        assert_eq!(read(&bytes).unwrap(), b"{}");
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err());
        }
        assert!(read(&[0xff; 4]).is_err());
        assert!(write_request(&mut Vec::new(), &vec![0; 2 << 20]).is_err());
    }
}
