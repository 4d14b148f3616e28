//! A request before its operation is understood: header and body.
//!
//! Owns the two forms that a body can have. From /dev/fuse it is one piece. An
//! io_uring queue delivers the operation's own structure and the rest
//! separately.

use super::layout::{InHeader, ReadIn};
use super::opcode::Opcode;
use super::wire::{Malformed, Reader, Wire};

/// The bytes after the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    head: &'a [u8],
    /// The rest, if it does not follow the operation's structure in `head`.
    tail: Option<&'a [u8]>,
}

impl<'a> Body<'a> {
    /// A body in one piece.
    pub(crate) fn whole(bytes: &'a [u8]) -> Self {
        Self {
            head: bytes,
            tail: None,
        }
    }

    /// The operation's structure, and what follows it.
    pub(crate) fn split<T: Wire>(self) -> Result<(T, Reader<'a>), Malformed> {
        let mut reader = Reader::new(self.head);
        let fixed = reader.load()?;
        Ok((fixed, self.tail.map_or(reader, Reader::new)))
    }

    /// What there is, for operations without a structure of their own.
    pub(crate) fn payload(self) -> Reader<'a> {
        Reader::new(self.tail.unwrap_or(self.head))
    }

    /// Cuts the extensions, `length` bytes, off the end.
    fn cut(self, length: usize) -> Result<(Self, &'a [u8]), Malformed> {
        let last = self.tail.unwrap_or(self.head);
        let middle = last
            .len()
            .checked_sub(length)
            .ok_or(Malformed("its extensions are longer than itself"))?;
        let (rest, extensions) = last.split_at(middle);
        let body = match self.tail {
            Some(_) => Self {
                head: self.head,
                tail: Some(rest),
            },
            None => Self::whole(rest),
        };
        Ok((body, extensions))
    }
}

/// A request: header, body, extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: InHeader,
    body: Body<'a>,
}

impl<'a> Message<'a> {
    /// A request that was read in one piece.
    pub(crate) fn whole(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let header: InHeader = reader.load()?;
        if header.len as usize != bytes.len() {
            return Err(Malformed("its length is not the length it claims"));
        }
        Ok(Self {
            header,
            body: Body::whole(reader.rest()),
        })
    }

    /// A request whose operation's structure and rest came separately.
    pub(crate) fn apart(header: InHeader, operation: &'a [u8], rest: &'a [u8]) -> Self {
        Self {
            header,
            body: Body {
                head: operation,
                tail: Some(rest),
            },
        }
    }

    /// Bytes of a file that it asks for; 0 if it is not a read.
    pub(crate) fn reads(&self) -> usize {
        match Opcode::from_number(self.header.opcode) {
            Some(Opcode::Read) => self
                .body
                .split::<ReadIn>()
                .map_or(0, |(read, _)| read.size as usize),
            _ => 0,
        }
    }

    /// Body and extensions.
    pub(crate) fn parts(&self) -> Result<(Body<'a>, &'a [u8]), Malformed> {
        self.body.cut(usize::from(self.header.total_extlen) * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_bodies_read_like_whole_ones() {
        let bytes = [1, 0, 0, 0, b'n', 0];
        let whole = Body::whole(&bytes);
        let apart = Body {
            head: &bytes[..4],
            tail: Some(&bytes[4..]),
        };
        for body in [whole, apart] {
            let (number, mut rest) = body.split::<u32>().unwrap();
            assert_eq!(number, u32::from_ne_bytes([1, 0, 0, 0]));
            assert_eq!(rest.name().unwrap(), b"n");
        }
        assert_eq!(apart.payload().rest(), b"n\0");
        let (cut, extensions) = apart.cut(1).unwrap();
        assert_eq!((cut.payload().rest(), extensions), (&b"n"[..], &b"\0"[..]));
        assert!(apart.cut(3).is_err());
    }
}
