//! Sparse files of pax archives: the forms 0.0, 0.1 and 1.0 of GNU tar, which
//! bsdtar writes, too.
//!
//! Owns where the content of such a member lies in its file. The member's bytes
//! are the pieces one behind the other; in form 1.0 their list comes before
//! them. (The old GNU form has a type of its own, and the crate `tar` expands
//! it.) Invariant: pieces are sorted, do not overlap, end within the file, and
//! together are all bytes of the member.

use super::BLOCK;
use super::pax::Record;
use std::io::{self, Read};
use std::ops::Range;

/// The most bytes of a list in front of the content.
const LIST_MAX: u64 = 16 << 20;
/// The largest file.
const SIZE_MAX: u64 = i64::MAX as u64;

/// What the records of a sparse member say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sparse {
    /// Its path, if the header has another one.
    pub(super) name: Option<Vec<u8>>,
    /// Bytes of the file.
    pub(super) size: u64,
    list: List,
}

#[derive(Debug, PartialEq, Eq)]
enum List {
    /// In the records.
    Here(Vec<Range<u64>>),
    /// Before the content.
    InContent,
}

/// What is wrong with a sparse member.
pub(super) type BadSparse = &'static str;

const BAD_LIST: BadSparse = "list of pieces (a sparse file of pax)";
const BAD_SIZE: BadSparse = "size (a sparse file of pax)";
const BAD_FORM: BadSparse = "form (a sparse file of pax; forms 0.0, 0.1 and 1.0 are known)";

/// Returns what records say of a sparse member; `None` if the member is none.
pub(super) fn of_records(records: &[Record]) -> Result<Option<Sparse>, BadSparse> {
    let keys = records.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(b"GNU.sparse.")?;
        Some((key, &value[..]))
    });
    let keys: Vec<(&[u8], &[u8])> = keys.collect();
    if keys.is_empty() {
        return Ok(None);
    }
    let last = |wanted: &[u8]| {
        let found = keys.iter().rev().find(|(key, _)| *key == wanted);
        found.map(|(_, value)| *value)
    };
    let size = last(b"realsize").or(last(b"size")).ok_or(BAD_SIZE)?;
    let size = number(size).filter(|size| *size <= SIZE_MAX);
    let size = size.ok_or(BAD_SIZE)?;
    let form = (last(b"major"), last(b"minor"));
    let list = match (form, last(b"map")) {
        ((Some(b"1"), Some(b"0")), _) => List::InContent,
        ((None | Some(b"0"), _), Some(map)) => {
            let numbers = map
                .split(|byte| *byte == b',')
                .filter(|text| !text.is_empty());
            List::Here(pieces(numbers, size)?)
        }
        ((None | Some(b"0"), _), None) => {
            let numbers = keys
                .iter()
                .filter(|(key, _)| [&b"offset"[..], b"numbytes"].contains(key));
            let is_paired = |(at, (key, _)): (usize, &(&[u8], &[u8]))| {
                *key == [&b"offset"[..], b"numbytes"][at % 2]
            };
            if !numbers.clone().enumerate().all(is_paired) {
                return Err(BAD_LIST);
            }
            List::Here(pieces(numbers.map(|(_, value)| *value), size)?)
        }
        _ => return Err(BAD_FORM),
    };
    Ok(Some(Sparse {
        name: last(b"name").map(<[u8]>::to_vec),
        size,
        list,
    }))
}

impl Sparse {
    /// Returns the pieces of a member of `bytes`, and reads their list from
    /// `content` where it is there.
    pub(super) fn pieces(
        self,
        content: &mut dyn Read,
        bytes: u64,
    ) -> io::Result<Result<Vec<Range<u64>>, BadSparse>> {
        let (pieces, taken) = match self.list {
            List::Here(pieces) => (pieces, 0),
            List::InContent => match read_list(content, bytes, self.size)? {
                Ok(list) => list,
                Err(bad) => return Ok(Err(bad)),
            },
        };
        let all: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
        match all.checked_add(taken) == Some(bytes) {
            true => Ok(Ok(pieces)),
            false => Ok(Err(BAD_LIST)),
        }
    }
}

/// Pieces, and the bytes of the list that they come from.
type ReadList = (Vec<Range<u64>>, u64);

/// Reads a list of form 1.0 of a member of `most` bytes: a count, and then an
/// offset and a length for each piece, each a line, up to the end of a block.
/// Gives its bytes, too.
fn read_list(
    content: &mut dyn Read,
    most: u64,
    size: u64,
) -> io::Result<Result<ReadList, BadSparse>> {
    let mut text = Vec::new();
    // Where the lines begin that are not counted yet.
    let (mut lines, mut seen) = (0_u64, 0);
    let mut wanted = None;
    while wanted.is_none_or(|wanted| lines < wanted) {
        if (text.len() + BLOCK) as u64 > most.min(LIST_MAX) {
            return Ok(Err(BAD_LIST));
        }
        let mut block = [0; BLOCK];
        content.read_exact(&mut block)?;
        text.extend_from_slice(&block);
        lines += text[seen..].iter().filter(|byte| **byte == b'\n').count() as u64;
        seen = text.len();
        if wanted.is_none() && lines > 0 {
            let first = text.split(|byte| *byte == b'\n').next();
            let count = first
                .and_then(number)
                .and_then(|count| count.checked_mul(2));
            let Some(all) = count.and_then(|numbers| numbers.checked_add(1)) else {
                return Ok(Err(BAD_LIST));
            };
            wanted = Some(all);
        }
    }
    let count = usize::try_from(wanted.unwrap_or(0)).unwrap_or(usize::MAX);
    let numbers = text.split(|byte| *byte == b'\n').take(count).skip(1);
    let bytes = text.len() as u64;
    Ok(pieces(numbers, size).map(|pieces| (pieces, bytes)))
}

/// Makes pieces of offsets and lengths in turn.
fn pieces<'t>(
    mut numbers: impl Iterator<Item = &'t [u8]>,
    size: u64,
) -> Result<Vec<Range<u64>>, BadSparse> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(start) = numbers.next() {
        let start = number(start).ok_or(BAD_LIST)?;
        let length = numbers.next().and_then(number).ok_or(BAD_LIST)?;
        let end = start.checked_add(length).ok_or(BAD_LIST)?;
        if start < at || end > size {
            return Err(BAD_LIST);
        }
        at = end;
        if length > 0 {
            pieces.push(start..end);
        }
    }
    Ok(pieces)
}

/// A number in decimal digits alone.
fn number(text: &[u8]) -> Option<u64> {
    let is_digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_digits)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(all: &[(&str, &str)]) -> Vec<Record> {
        let one = |(key, value): &(&str, &str)| {
            (
                format!("GNU.sparse.{key}").into_bytes(),
                value.as_bytes().to_vec(),
            )
        };
        all.iter().map(one).collect()
    }

    fn pieces_of(all: &[(&str, &str)], content: &[u8]) -> Option<Vec<Range<u64>>> {
        let sparse = of_records(&records(all)).ok()??;
        let bytes = content.len() as u64;
        sparse.pieces(&mut &content[..], bytes).ok()?.ok()
    }

    #[test]
    fn the_three_forms_are_read() {
        let expected = Some(vec![0..4, 100..103]);
        let form = [
            ("size", "200"),
            ("numblocks", "2"),
            ("offset", "0"),
            ("numbytes", "4"),
            ("offset", "100"),
            ("numbytes", "3"),
        ];
        assert_eq!(pieces_of(&form, &[1; 7]), expected);
        let form = [
            ("size", "200"),
            ("numblocks", "3"),
            ("map", "0,4,100,3,200,0"),
        ];
        assert_eq!(pieces_of(&form, &[1; 7]), expected);
        let form = [("major", "1"), ("minor", "0"), ("realsize", "200")];
        let mut content = b"3\n0\n4\n100\n3\n200\n0\n".to_vec();
        content.resize(512, 0);
        content.extend([1; 7]);
        assert_eq!(pieces_of(&form, &content), expected);
        assert_eq!(of_records(&[(b"mtime".to_vec(), b"1".to_vec())]), Ok(None));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (map, bytes) in [
            ("0,4,3,4", 8),
            ("100,4,0,4", 8),
            ("0,4,198,4", 8),
            ("0,4,18446744073709551615,4", 8),
            ("0,4", 5),
            ("0,4,5", 4),
            ("0,-4", 4),
            ("0,+4", 4),
            ("a,4", 4),
        ] {
            let form = [("size", "200"), ("map", map)];
            assert_eq!(pieces_of(&form, &vec![1; bytes]), None, "{map}");
        }
        let bad = |all: &[(&str, &str)]| of_records(&records(all)).is_err();
        assert!(bad(&[("map", "0,4")]), "no size");
        assert!(bad(&[("size", "9223372036854775808"), ("map", "0,4")]));
        assert!(bad(&[("size", "9"), ("numbytes", "0"), ("offset", "4")]));
        assert!(bad(&[("major", "2"), ("minor", "0"), ("realsize", "9")]));
        let form = [("major", "1"), ("minor", "0"), ("realsize", "200")];
        for list in [
            "99999999999999999999\n",
            "9223372036854775807\n",
            "x\n0\n4\n",
            "\n",
        ] {
            let mut content = list.as_bytes().to_vec();
            content.resize(1024, 0);
            assert_eq!(pieces_of(&form, &content), None, "{list:?}");
        }
        // A list that is longer than its member says nothing of the archive,
        // and what follows is not read.
        let mut member = b"200\n0\n4\n".to_vec();
        member.resize(512, 0);
        let mut archive = std::io::Cursor::new([member, vec![1; 2048]].concat());
        let sparse = of_records(&records(&form)).unwrap().unwrap();
        assert_eq!(sparse.pieces(&mut archive, 512).unwrap(), Err(BAD_LIST));
        assert_eq!(archive.position(), 512);
    }
}
