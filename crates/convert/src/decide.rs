//! The order of the writes that decide.
//!
//! Before: everything of the side that is to come is durable, in blocks that
//! the other side calls free. Then one write of 4 KiB decides, at the place of
//! the first superblock of Btrfs. The superblock of ext4 is never the one that
//! decides: it is wiped after that write, and put back before it on the way
//! back. In between both are there, and the volume is the whole one.
//!
//! What lies at that place may belong to ext4 (group descriptors, space for
//! more of them, inodes). If a device tears the write, neither side is whole.
//! So a note with both contents of the place is made durable first, in a block
//! that both call free; the command that finds it ends what was begun.

use crate::error::ConvertError;
use crate::ground::{CELL, Ground, free_runs};
use crate::source::{DeviceSource, Old};
use butterfs_device::BlockDevice;
use butterfs_format::checksum::crc32c;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{DeviceOffset, bytes::Reader};
use std::sync::Arc;

/// Where the first superblock of Btrfs lies.
pub(crate) const PLACE: DeviceOffset = DeviceOffset(64 << 10);
/// Where the superblock of ext4 lies, and its bytes.
pub(crate) const OLD_PLACE: u64 = 1024;
pub(crate) const OLD_SIZE: u64 = 1024;
const OLD_MAGIC_AT: usize = 0x38;
const OLD_MAGIC: [u8; 2] = [0x53, 0xef];
const NOTE_MAGIC: &[u8; 16] = b"butterfs-convert";
/// Bytes of a note: a head, and both contents.
const NOTE: usize = 3 * SIZE;
/// Bytes that a device writes whole.
const ATOM: usize = 512;

/// Which file system a device holds.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Not a Btrfs.
    Old,
    /// Btrfs, with this superblock.
    New(Box<Superblock>),
}

/// Looks which one it is.
///
/// # Errors
/// The device.
pub(crate) fn state(device: &Arc<dyn BlockDevice>) -> Result<State, ConvertError> {
    Ok(match Superblock::parse(&place(device)?, PLACE) {
        Ok(superblock) => State::New(Box::new(superblock)),
        Err(_) => State::Old,
    })
}

/// The bytes at the place that decides; zeros on a device that ends before it.
fn place(device: &Arc<dyn BlockDevice>) -> Result<Vec<u8>, ConvertError> {
    let mut bytes = vec![0; SIZE];
    if device.size() >= PLACE.get().saturating_add(size_of(&bytes)) {
        device.read_at(PLACE, &mut bytes)?;
    }
    Ok(bytes)
}

fn size_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Both contents of the place that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) old: Vec<u8>,
    pub(crate) new: Vec<u8>,
}

impl Note {
    fn encode(&self) -> Vec<u8> {
        let mut body = self.old.clone();
        body.extend_from_slice(&self.new);
        let mut bytes = NOTE_MAGIC.to_vec();
        bytes.extend(crc32c(&body).to_le_bytes());
        bytes.resize(SIZE, 0);
        bytes.extend(body);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, body) = bytes.split_at_checked(SIZE)?;
        let mut reader = Reader::new("note", head);
        let magic = reader.bytes(NOTE_MAGIC.len()).ok()?;
        let sum = reader.u32().ok()?;
        if magic != NOTE_MAGIC || sum != crc32c(body) {
            return None;
        }
        let (old, new) = body.split_at_checked(SIZE)?;
        Some(Self {
            old: old.to_vec(),
            new: new.to_vec(),
        })
    }

    /// Whether the place has parts of both, and nothing else.
    fn is_torn(&self, now: &[u8]) -> bool {
        let mut atoms = now
            .chunks(ATOM)
            .zip(self.old.chunks(ATOM))
            .zip(self.new.chunks(ATOM));
        now != self.old
            && now != self.new
            && atoms.all(|((now, old), new)| now == old || now == new)
    }
}

/// Which side an interrupted decision ends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Old,
    New,
}

/// How thoroughly a note is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// Where a conversion would put it, unless something says that there must
    /// be one.
    Usual,
    /// Everywhere.
    All,
}

/// If a device tore the deciding write, writes it anew for `side`. Returns
/// whether it did.
///
/// # Errors
/// The device.
pub(crate) fn mend(
    device: &Arc<dyn BlockDevice>,
    side: Side,
    search: Search,
) -> Result<bool, ConvertError> {
    let now = place(device)?;
    if Superblock::parse(&now, PLACE).is_ok() {
        return Ok(false);
    }
    let has_magic = now.get(0x40..0x48) == Some(&butterfs_format::superblock::MAGIC[..]);
    let usual = match (search, has_magic) {
        (Search::Usual, false) => usual_place(device),
        _ => None,
    };
    let note = match usual {
        Some(at) => read_note(device, at)?.filter(|note| note.is_torn(&now)),
        None => find_note(device, &now)?,
    };
    let Some(note) = note else {
        return Ok(false);
    };
    let bytes = match side {
        Side::Old => &note.old,
        Side::New => &note.new,
    };
    device.write_at(PLACE, bytes)?;
    device.flush()?;
    Ok(true)
}

/// The last free cell of the old file system, if it can be read.
fn usual_place(device: &Arc<dyn BlockDevice>) -> Option<u64> {
    let old = Old::open(DeviceSource::new(device)).ok()?;
    let ground = Ground::of(&old).ok()?;
    let runs = free_runs(&old, &ground).ok()?;
    runs.last().map(|run| run.end - CELL)
}

fn read_note(device: &Arc<dyn BlockDevice>, at: u64) -> Result<Option<Note>, ConvertError> {
    let mut head = vec![0; ATOM];
    if at.saturating_add(CELL) > device.size() {
        return Ok(None);
    }
    device.read_at(DeviceOffset(at), &mut head)?;
    if !head.starts_with(NOTE_MAGIC) {
        return Ok(None);
    }
    let mut bytes = vec![0; NOTE];
    device.read_at(DeviceOffset(at), &mut bytes)?;
    Ok(Note::parse(&bytes))
}

/// Looks for a note in all cells, from the last one on.
fn find_note(device: &Arc<dyn BlockDevice>, now: &[u8]) -> Result<Option<Note>, ConvertError> {
    for cell in (0..device.size() / CELL).rev() {
        let note = read_note(device, cell.saturating_mul(CELL))?;
        if let Some(note) = note.filter(|note| note.is_torn(now)) {
            return Ok(Some(note));
        }
    }
    Ok(None)
}

/// Decides for Btrfs, whose trees are durable.
///
/// # Errors
/// The device.
pub(crate) fn forward(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    note_at: u64,
) -> Result<(), ConvertError> {
    let note = Note {
        old: place(device)?,
        new: superblock.encode(PLACE),
    };
    device.write_at(DeviceOffset(note_at), &note.encode())?;
    device.flush()?;
    device.write_at(PLACE, &note.new)?;
    device.flush()?;
    after_forward(device, superblock)?;
    erase_note(device, note_at)
}

/// Wipes the superblock of ext4, and writes the other superblocks of Btrfs.
///
/// # Errors
/// The device.
pub(crate) fn after_forward(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
) -> Result<(), ConvertError> {
    let zeros = vec![0; usize::try_from(OLD_SIZE).unwrap_or(0)];
    device.write_at(DeviceOffset(OLD_PLACE), &zeros)?;
    device.flush()?;
    for copy in COPIES.into_iter().skip(1) {
        let end = copy.get().saturating_add(4096);
        if end <= superblock.total_bytes {
            device.write_at(copy, &superblock.encode(copy))?;
        }
    }
    device.flush()?;
    Ok(())
}

/// Decides for ext4, of which everything but its superblock and the place that
/// decides is durable. `superblock` is that of ext4, `old` what it had at the
/// place.
///
/// # Errors
/// The device.
pub(crate) fn back(
    device: &Arc<dyn BlockDevice>,
    superblock: &[u8],
    old: Vec<u8>,
    note_at: u64,
) -> Result<(), ConvertError> {
    let note = Note {
        old,
        new: place(device)?,
    };
    device.write_at(DeviceOffset(note_at), &note.encode())?;
    device.flush()?;
    device.write_at(DeviceOffset(OLD_PLACE), superblock)?;
    device.flush()?;
    device.write_at(PLACE, &note.old)?;
    device.flush()?;
    Ok(())
}

/// Removes a note that is not needed any more.
///
/// # Errors
/// The device.
pub(crate) fn erase_note(device: &Arc<dyn BlockDevice>, at: u64) -> Result<(), ConvertError> {
    device.write_at(DeviceOffset(at), &vec![0; NOTE])?;
    device.flush()?;
    Ok(())
}

/// The bytes where the superblock of ext4 lies, if they are one.
///
/// # Errors
/// The device.
pub(crate) fn old_superblock(
    device: &Arc<dyn BlockDevice>,
) -> Result<Option<Vec<u8>>, ConvertError> {
    let mut bytes = vec![0; usize::try_from(OLD_SIZE).unwrap_or(0)];
    device.read_at(DeviceOffset(OLD_PLACE), &mut bytes)?;
    let magic = bytes.get(OLD_MAGIC_AT..).unwrap_or_default();
    Ok(magic.starts_with(&OLD_MAGIC).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_is_only_what_has_parts_of_both() {
        let note = Note {
            old: vec![1; SIZE],
            new: vec![2; SIZE],
        };
        assert_eq!(Note::parse(&note.encode()), Some(note.clone()));
        assert!(!note.is_torn(&note.old) && !note.is_torn(&note.new));
        let mut now = note.old.clone();
        now[512..1024].fill(2);
        assert!(note.is_torn(&now));
        now[5] = 3;
        assert!(!note.is_torn(&now));
        let mut torn = note.encode();
        torn[SIZE + 7] ^= 1;
        assert_eq!(Note::parse(&torn), None);
    }
}
