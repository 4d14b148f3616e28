//! The entries of partition tables.
//!
//! Owns reading GPT and MBR. What a table says is a claim: each entry that is
//! not on the device is left out, and chains and tables are bounded.

use super::Found;
use crate::{BlockDevice, DeviceError, DeviceRange};
use butterfs_format::DeviceOffset;

/// Sector sizes of disks.
const SECTORS: [u64; 2] = [512, 4096];
/// Entries of a GPT that are looked at; usual are 128.
const ENTRIES_MAX: u64 = 1024;
/// Logical partitions of an MBR that are looked at.
const LOGICAL_MAX: u32 = 128;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as the kernel counts it.
    pub number: u32,
    /// Where it lies.
    pub range: DeviceRange,
    /// Its name, in a GPT; may be empty.
    pub name: String,
}

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// GPT or MBR.
    pub kind: &'static str,
    /// Entries in use, by number.
    pub partitions: Vec<Partition>,
}

/// The partition table of a device, if it has one.
///
/// # Errors
/// Those of reading.
pub fn partitions(device: &dyn BlockDevice) -> Result<Option<PartitionTable>, DeviceError> {
    if let Some(partitions) = gpt(device)? {
        return Ok(Some(PartitionTable {
            kind: "GPT",
            partitions,
        }));
    }
    let is_mbr = super::contents(device)?.contains(&Found::PartitionTable("MBR"));
    if !is_mbr {
        return Ok(None);
    }
    Ok(Some(PartitionTable {
        kind: "MBR",
        partitions: mbr(device)?,
    }))
}

/// Bytes at an offset; `None` beyond the end.
fn bytes(device: &dyn BlockDevice, at: u64, length: usize) -> Result<Option<Vec<u8>>, DeviceError> {
    let range = DeviceRange::of_buffer(DeviceOffset(at), length);
    if !range.fits(device.size()) {
        return Ok(None);
    }
    let mut buf = vec![0; length];
    device.read_at(range.start, &mut buf)?;
    Ok(Some(buf))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |found| u32::from_le_bytes(*found))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |found| u64::from_le_bytes(*found))
}

/// CRC-32 as GPT uses it.
fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry != 0 {
                crc ^= 0xedb8_8320;
            }
        }
    }
    !crc
}

/// The first GPT whose checksums are right: the one in front, or its copy in
/// the last sector.
fn gpt(device: &dyn BlockDevice) -> Result<Option<Vec<Partition>>, DeviceError> {
    for sector in SECTORS {
        let last = device.size().checked_sub(sector);
        for at in [Some(sector), last].into_iter().flatten() {
            if let Some(found) = gpt_at(device, sector, at)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

fn gpt_at(
    device: &dyn BlockDevice,
    sector: u64,
    at: u64,
) -> Result<Option<Vec<Partition>>, DeviceError> {
    const HEADER: usize = 92;
    const ENTRY_MIN: u32 = 128;
    const ENTRY_MAX: u32 = 4096;
    let Some(header) = bytes(device, at, HEADER)? else {
        return Ok(None);
    };
    let (Some(front), Some(behind)) = (header.get(..16), header.get(20..)) else {
        return Ok(None);
    };
    let is_right = front.starts_with(b"EFI PART")
        && u32_at(&header, 12) == 92
        && crc32(&[front, &[0; 4], behind]) == u32_at(&header, 16);
    let (count, size) = (u32_at(&header, 80), u32_at(&header, 84));
    if !is_right || u64::from(count) > ENTRIES_MAX || !(ENTRY_MIN..=ENTRY_MAX).contains(&size) {
        return Ok(None);
    }
    let start = u64_at(&header, 72).saturating_mul(sector);
    let length = u64::from(count).saturating_mul(size.into());
    let length = usize::try_from(length).unwrap_or(0);
    let entries = bytes(device, start, length)?;
    let Some(entries) = entries.filter(|all| crc32(&[all]) == u32_at(&header, 88)) else {
        return Ok(None);
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    for (number, entry) in (1..).zip(entries.chunks_exact(size)) {
        if entry.get(..16).is_none_or(|kind| kind == [0; 16]) {
            continue;
        }
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let sectors = last.saturating_sub(first).saturating_add(1);
        let partition = Partition {
            number,
            range: DeviceRange::new(
                DeviceOffset(first.saturating_mul(sector)),
                sectors.saturating_mul(sector),
            ),
            name: name(entry.get(56..128).unwrap_or_default()),
        };
        if first <= last && partition.range.fits(device.size()) {
            all.push(partition);
        }
    }
    Ok(Some(all))
}

/// A name in UTF-16, up to its first zero; what could confuse a terminal is
/// left out.
fn name(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|unit| {
        let pair = unit.first_chunk().copied();
        pair.map_or(0, u16::from_le_bytes)
    });
    let units = units.take_while(|unit| *unit != 0);
    char::decode_utf16(units)
        .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
        .filter(|letter| !letter.is_control())
        .collect()
}

/// An entry of an MBR or of one in the chain: type, first sector, sectors.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

impl Entry {
    const fn is_chain(self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }

    const fn is_used(self) -> bool {
        self.kind != 0 && self.sectors != 0
    }
}

fn entries(sector: &[u8]) -> Vec<Entry> {
    let table = sector.get(446..510).unwrap_or_default();
    table
        .chunks_exact(16)
        .map(|entry| Entry {
            kind: entry.get(4).copied().unwrap_or(0),
            first: u32_at(entry, 8).into(),
            sectors: u32_at(entry, 12).into(),
        })
        .collect()
}

/// Sectors of an MBR are taken for 512 bytes, as images have them.
fn mbr(device: &dyn BlockDevice) -> Result<Vec<Partition>, DeviceError> {
    const SECTOR: u64 = 512;
    let size = device.size();
    let mut all = Vec::new();
    let mut push = |number: u32, first: u64, sectors: u64| {
        let range = DeviceRange::new(
            DeviceOffset(first.saturating_mul(SECTOR)),
            sectors.saturating_mul(SECTOR),
        );
        if range.fits(size) {
            all.push(Partition {
                number,
                range,
                name: String::new(),
            });
        }
    };
    let first = bytes(device, 0, 512)?.unwrap_or_default();
    let mut chain = None;
    for (number, entry) in (1..).zip(entries(&first)) {
        if entry.is_used() && entry.is_chain() {
            chain = Some(entry.first);
        } else if entry.is_used() {
            push(number, entry.first, entry.sectors);
        }
    }
    let Some(extended) = chain else {
        return Ok(all);
    };
    // Each link has a partition, counted from the link, and the next link,
    // counted from the first one.
    let mut at = extended;
    for step in 0..LOGICAL_MAX {
        let link = bytes(device, at.saturating_mul(SECTOR), 512)?;
        let Some(link) = link.filter(|link| link.ends_with(&[0x55, 0xaa])) else {
            break;
        };
        let mut next = None;
        for entry in entries(&link).into_iter().take(2).filter(|e| e.is_used()) {
            if entry.is_chain() {
                next = Some(extended.saturating_add(entry.first));
            } else {
                push(
                    step.saturating_add(5),
                    at.saturating_add(entry.first),
                    entry.sectors,
                );
            }
        }
        match next {
            Some(next) if next > at => at = next,
            _ => break,
        }
    }
    Ok(all)
}
