//! The content of files until it is in the image.
//!
//! Owns where content is kept: small content in memory, content of host files in
//! these files, content of archives in a temporary file without a name (the
//! spool).

use super::BuildError;
use super::model::shown;
use crate::archive::Member;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Identifies the content of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(usize);

/// The most bytes of content that is kept in memory.
const KEPT_MAX: u64 = 2048;

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    Host {
        path: PathBuf,
        size: u64,
    },
    Spool {
        at: u64,
        size: u64,
    },
    /// Pieces of a sparse file, ascending.
    Sparse {
        size: u64,
        pieces: Vec<Piece>,
    },
}

/// A piece of a sparse file.
#[derive(Debug)]
pub(super) struct Piece {
    /// Where it is in the file.
    range: Range<u64>,
    /// Where it was spooled.
    at: u64,
}

/// The content of all files.
#[derive(Debug, Default)]
pub struct Contents {
    all: Vec<Place>,
    spool: Option<File>,
    spooled: u64,
    /// Spooled content by its SHA-256. `None` if equal content may be spooled
    /// twice.
    known: Option<HashMap<[u8; 32], ContentId>>,
}

impl Contents {
    /// Spools equal content only once from now on.
    pub(super) fn share(&mut self) {
        self.known.get_or_insert_default();
    }

    /// Adds the content of a host file. It stays in that file until it is
    /// written.
    pub(super) fn add_host(&mut self, path: PathBuf, size: u64) -> ContentId {
        self.push(Place::Host { path, size })
    }

    /// Adds the content of a member of an archive.
    pub(super) fn add(
        &mut self,
        input: &mut dyn Read,
        member: &Member,
    ) -> Result<ContentId, BuildError> {
        match &member.pieces {
            Some(pieces) => self.add_sparse(input, member, pieces),
            None => self.add_whole(input, member),
        }
    }

    fn add_sparse(
        &mut self,
        input: &mut dyn Read,
        member: &Member,
        pieces: &[Range<u64>],
    ) -> Result<ContentId, BuildError> {
        let bytes = pieces.iter().map(|piece| piece.end - piece.start).sum();
        let spool = match &mut self.spool {
            Some(spool) => spool,
            None => self.spool.insert(spool()?),
        };
        copy(input, spool, bytes).map_err(BuildError::io(shown(&member.path)))?;
        let mut at = self.spooled;
        self.spooled += bytes;
        let piece = |range: &Range<u64>| {
            let (range, start) = (range.clone(), at);
            at += range.end - range.start;
            Piece { range, at: start }
        };
        Ok(self.push(Place::Sparse {
            size: member.size,
            pieces: pieces.iter().map(piece).collect(),
        }))
    }

    fn add_whole(
        &mut self,
        input: &mut dyn Read,
        member: &Member,
    ) -> Result<ContentId, BuildError> {
        let (size, path) = (member.size, &member.path[..]);
        if size <= KEPT_MAX {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            input
                .read_exact(&mut bytes)
                .map_err(BuildError::io(shown(path)))?;
            return Ok(self.push(Place::Memory(bytes)));
        }
        let mut spool = match self.spool.take() {
            Some(spool) => spool,
            None => spool()?,
        };
        let at = self.spooled;
        let copied = match &self.known {
            None => copy(input, &mut spool, size).map(|()| None),
            Some(known) => copy_new(input, &mut spool, at, size, known),
        };
        self.spool = Some(spool);
        let sum = match copied.map_err(BuildError::io(shown(path)))? {
            Some(Copied::Known(id)) => return Ok(id),
            Some(Copied::New(sum)) => Some(sum),
            None => None,
        };
        self.spooled += size;
        let id = self.push(Place::Spool { at, size });
        if let (Some(known), Some(sum)) = (&mut self.known, sum) {
            known.insert(sum, id);
        }
        Ok(id)
    }

    fn push(&mut self, place: Place) -> ContentId {
        self.all.push(place);
        ContentId(self.all.len() - 1)
    }

    /// The number of contents.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The index of a content in tables of [`Self::len`] entries.
    pub(super) const fn index(id: ContentId) -> usize {
        id.0
    }

    /// The size of a content in bytes.
    #[must_use]
    pub fn size(&self, id: ContentId) -> u64 {
        match &self.all[id.0] {
            Place::Memory(bytes) => bytes.len() as u64,
            Place::Host { size, .. } | Place::Spool { size, .. } | Place::Sparse { size, .. } => {
                *size
            }
        }
    }

    /// The parts of `span` bytes of a content in which there may be data, by
    /// their numbers, and the first.
    pub(super) fn spans(&self, id: ContentId, span: u64) -> Vec<Range<u64>> {
        let Place::Sparse { pieces, .. } = &self.all[id.0] else {
            // An empty file has one part, which is empty.
            let all = 0..self.size(id).div_ceil(span).max(1);
            return vec![all];
        };
        let first: Range<u64> = 0..1;
        let mut spans = vec![first];
        for Piece { range, .. } in pieces {
            let next = spans.last().map_or(0, |last| last.end);
            let of_piece = (range.start / span).max(next)..range.end.div_ceil(span);
            if !of_piece.is_empty() {
                spans.push(of_piece);
            }
        }
        spans
    }

    /// Contents in files of the host that are gone, or may not be read.
    pub(super) fn unreadable(&self) -> Vec<(ContentId, BuildError)> {
        let hosts = self.all.iter().enumerate().filter_map(|(at, place)| {
            let Place::Host { path, .. } = place else {
                return None;
            };
            let error = File::open(path).err()?;
            Some((ContentId(at), BuildError::io(path.display())(error)))
        });
        hosts.collect()
    }

    /// The sum of the sizes of all contents in bytes.
    pub(super) fn total(&self) -> u64 {
        let ids = (0..self.len()).map(ContentId);
        ids.map(|id| self.size(id)).fold(0, u64::saturating_add)
    }

    /// Opens a content for reading.
    pub(super) fn open(&self, id: ContentId) -> Result<Opened<'_>, BuildError> {
        Ok(match &self.all[id.0] {
            Place::Memory(bytes) => Opened::Memory(bytes),
            Place::Host { path, .. } => {
                let shown = path.display().to_string();
                let file = File::open(path).map_err(BuildError::io(&shown))?;
                Opened::Host(file, shown)
            }
            Place::Spool { at, .. } => match &self.spool {
                Some(file) => Opened::Spool(file, *at),
                None => unreachable!("what was spooled has a file"),
            },
            Place::Sparse { pieces, .. } => match &self.spool {
                Some(file) => Opened::Sparse(file, pieces),
                None => unreachable!("what was spooled has a file"),
            },
        })
    }
}

/// A content that is open for reading.
#[derive(Debug)]
pub(super) enum Opened<'c> {
    Memory(&'c [u8]),
    Host(File, String),
    Spool(&'c File, u64),
    Sparse(&'c File, &'c [Piece]),
}

impl Opened<'_> {
    /// Fills `buf` with the bytes from offset `at` on.
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), BuildError> {
        match self {
            Self::Memory(bytes) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                buf.copy_from_slice(&bytes[start..start + buf.len()]);
                Ok(())
            }
            Self::Host(file, path) => match file.read_exact_at(buf, at) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    Err(BuildError::Changed { path: path.clone() })
                }
                read => read.map_err(BuildError::io(path)),
            },
            Self::Spool(file, start) => file
                .read_exact_at(buf, start + at)
                .map_err(BuildError::io("a temporary file")),
            Self::Sparse(file, pieces) => {
                buf.fill(0);
                let end = at + buf.len() as u64;
                let first = pieces.partition_point(|piece| piece.range.end <= at);
                let near = pieces[first..].iter();
                for Piece { range, at: spooled } in near.take_while(|one| one.range.start < end) {
                    let part = range.start.max(at)..range.end.min(end);
                    let within = (part.start - at) as usize..(part.end - at) as usize;
                    let from = spooled + (part.start - range.start);
                    file.read_exact_at(&mut buf[within], from)
                        .map_err(BuildError::io("a temporary file"))?;
                }
                Ok(())
            }
        }
    }
}

/// A temporary file without a name.
fn spool() -> Result<File, BuildError> {
    tempfile::tempfile().map_err(BuildError::io("a temporary file"))
}

/// Copies exactly `size` bytes.
fn copy(input: &mut dyn Read, to: &mut File, size: u64) -> std::io::Result<()> {
    let copied = std::io::copy(&mut input.take(size), to)?;
    if copied < size {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    to.flush()
}

/// Whether content was already spooled before.
enum Copied {
    New([u8; 32]),
    Known(ContentId),
}

/// Copies to `at`, the end of the spool, like [`copy`]. If the content is known,
/// it is removed from the spool again.
fn copy_new(
    input: &mut dyn Read,
    to: &mut File,
    at: u64,
    size: u64,
    known: &HashMap<[u8; 32], ContentId>,
) -> std::io::Result<Option<Copied>> {
    let mut summed = Summed(input, Sha256::new());
    copy(&mut summed, to, size)?;
    let sum = summed.1.finalize().into();
    let Some(id) = known.get(&sum) else {
        return Ok(Some(Copied::New(sum)));
    };
    to.set_len(at)?;
    to.seek(SeekFrom::Start(at))?;
    Ok(Some(Copied::Known(*id)))
}

/// Computes the SHA-256 of what is read through it.
struct Summed<'r>(&'r mut dyn Read, Sha256);

impl Read for Summed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buf)?;
        self.1.update(&buf[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::MemberKind;
    use butterfs_format::item::inode::Timespec;

    #[test]
    fn pieces_are_found_at_their_places() {
        let member = Member {
            path: Vec::new(),
            kind: MemberKind::File,
            permissions: 0,
            uid: 0,
            gid: 0,
            mtime: Timespec::default(),
            size: 1 << 40,
            pieces: Some((0..1000).map(|n| n * 100..n * 100 + 10).collect()),
            attributes: Vec::new(),
        };
        let data: Vec<u8> = (0..10_000).map(|n| (n / 10 % 251) as u8 + 1).collect();
        let mut contents = Contents::default();
        let id = contents.add(&mut &data[..], &member).unwrap();
        let opened = contents.open(id).unwrap();
        let mut buf = [0; 350];
        opened.read(49_905, &mut buf).unwrap();
        for (at, byte) in (49_905..).zip(buf) {
            let expected = match at % 100 < 10 {
                true => (at / 100 % 251) as u8 + 1,
                false => 0,
            };
            assert_eq!(byte, expected, "at {at}");
        }
        opened.read(1 << 39, &mut buf).unwrap();
        assert!(buf.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn sizes_that_nothing_can_hold_are_added() {
        let mut contents = Contents::default();
        for _ in 0..3 {
            contents.add_host("no such file".into(), u64::MAX >> 1);
        }
        assert_eq!(contents.total(), u64::MAX);
    }
}
