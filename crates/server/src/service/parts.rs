//! What goes over the socket of a mount's server.
//!
//! Owns the form of requests and answers. A request is its length and that many
//! bytes. An answer consists of parts; each is a kind, a length, and that many
//! bytes. The last part is the end, which says how the command ended. Nothing
//! else counts as success: an answer without an end, cut anywhere, is an error.

use std::io::{self, Read, Write};

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

/// Reads a request.
pub(super) fn read_request(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
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
    fn requests_are_whole_or_refused() {
        let mut bytes = Vec::new();
        write_request(&mut bytes, b"{}").unwrap();
        assert_eq!(read_request(&mut &bytes[..]).unwrap(), b"{}");
        for cut in 0..bytes.len() {
            assert!(read_request(&mut &bytes[..cut]).is_err());
        }
        assert!(read_request(&mut &[0xff; 4][..]).is_err());
        assert!(write_request(&mut Vec::new(), &vec![0; 2 << 20]).is_err());
    }
}
