//! The records of pax headers: what the plain header of a member has no room
//! for.
//!
//! Owns finding them in the bytes of an archive while these are read. The crate
//! `tar` parses records too, but divides them at line breaks, which values may
//! have. Here the lengths in front of the records count, as POSIX says.
//!
//! Invariant: when the crate gives an entry, the records are those of this
//! entry. It reads a header and what belongs to it, and nothing behind.

use super::BLOCK;
use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;
use tar::{EntryType, Header};

/// Where the header of a sparse file says that its map goes on in another block,
/// and where such a block says it.
const MORE_IN_HEADER: usize = 482;
const MORE_IN_BLOCK: usize = 504;
/// The most bytes of records of one member.
const RECORDS_MAX: u64 = 16 << 20;

/// A key and its value.
pub(super) type Record = (Vec<u8>, Vec<u8>);

/// Why records cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRecords {
    /// A length does not fit.
    Malformed,
    /// There are too many.
    TooLarge,
}

/// Looks for records in what is read through it.
pub(super) struct Seeing<R> {
    inner: R,
    seen: Rc<RefCell<Seen>>,
}

impl<R> Seeing<R> {
    /// Returns the reader, and what it sees.
    pub(super) fn new(inner: R) -> (Self, Rc<RefCell<Seen>>) {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let own = Rc::clone(&seen);
        (Self { inner, seen: own }, seen)
    }
}

impl<R: Read> Read for Seeing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.seen.borrow_mut().see(&buf[..count]);
        Ok(count)
    }
}

/// The way through an archive, block by block.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The block at hand, as far as it was read.
    block: Vec<u8>,
    /// Bytes of content that follow, up to the end of their last block.
    content: u64,
    /// How many of them are records.
    records: u64,
    /// Records of the member whose header comes next.
    coming: Vec<u8>,
    /// The next block goes on with the map of a sparse file.
    is_map: bool,
    is_too_large: bool,
    /// Records of the last member; `None` if they cannot be parsed.
    last: Option<Vec<Record>>,
}

impl Seen {
    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.content > 0 {
                let count = bytes
                    .len()
                    .min(usize::try_from(self.content).unwrap_or(BLOCK));
                let (now, later) = bytes.split_at(count);
                let records = count.min(usize::try_from(self.records).unwrap_or(count));
                self.coming.extend_from_slice(&now[..records]);
                self.records -= records as u64;
                self.content -= count as u64;
                bytes = later;
                continue;
            }
            let room = (BLOCK - self.block.len()).min(bytes.len());
            self.block.extend_from_slice(&bytes[..room]);
            bytes = &bytes[room..];
            if self.block.len() == BLOCK {
                let block = std::mem::take(&mut self.block);
                self.header(&block);
            }
        }
    }

    fn header(&mut self, block: &[u8]) {
        if self.is_map {
            self.is_map = block[MORE_IN_BLOCK] == 1;
            return;
        }
        let header = Header::from_byte_slice(block);
        let Ok(mut size) = header.entry_size() else {
            // The crate refuses it, or it is the end.
            return;
        };
        match header.entry_type() {
            EntryType::XHeader => {
                self.is_too_large = size > RECORDS_MAX;
                self.coming.clear();
                self.records = if self.is_too_large { 0 } else { size };
            }
            EntryType::XGlobalHeader | EntryType::GNULongName | EntryType::GNULongLink => {}
            kind => {
                self.last = parse(&std::mem::take(&mut self.coming));
                let of_records = self.last.as_deref().and_then(size_in);
                size = of_records.unwrap_or(size);
                self.is_map = kind == EntryType::GNUSparse && block[MORE_IN_HEADER] == 1;
            }
        }
        self.content = size.saturating_add(BLOCK as u64 - 1) & !(BLOCK as u64 - 1);
    }

    /// The records of the last member.
    pub(super) fn take_records(&mut self) -> Result<Vec<Record>, BadRecords> {
        if self.is_too_large {
            return Err(BadRecords::TooLarge);
        }
        self.last.take().ok_or(BadRecords::Malformed)
    }
}

/// The size of the content by the records, if they have one.
pub(super) fn size_in(records: &[Record]) -> Option<u64> {
    let (_, value) = records.iter().rev().find(|(key, _)| key == b"size")?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Parses records of the form `LENGTH KEY=VALUE\n`; `None` if a length is wrong.
fn parse(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let digits = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()?;
        let record = bytes.get(digits + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[length..];
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_records_count() {
        let one = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        assert_eq!(
            parse(b"9 a=b=\nc\n10 d=1234\n"),
            Some(vec![one(b"a", b"b=\nc"), one(b"d", b"1234")])
        );
        assert_eq!(parse(b""), Some(Vec::new()));
        for bad in [
            "x",
            "6 a=b",
            "7 a=b\n",
            "5 a=b\n",
            "1 \n",
            "0 a=b\n",
            "6 abb\n",
            "-6 a=b\n",
            "99999999999999999999 a=b\n",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
