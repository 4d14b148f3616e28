//! Partition tables.

use super::{Ends, Found};

/// Sector sizes of disks.
const SECTORS: [u64; 2] = [512, 4096];

pub(super) fn find(ends: &Ends, others: &[Found]) -> Option<Found> {
    // A GPT has its copy in the last sector, and a protective MBR in front.
    let gpt = SECTORS.iter().any(|sector| {
        let last = ends.size.checked_sub(*sector);
        let at_end = last.and_then(|last| ends.at_end(last));
        ends.has(*sector, b"EFI PART") || at_end == Some(*b"EFI PART")
    });
    if gpt {
        return Some(Found::PartitionTable("GPT"));
    }
    // The boot sectors of these end like an MBR.
    let boot_sector = others
        .iter()
        .any(|found| matches!(found.name(), "vfat" | "ntfs" | "exfat" | "BitLocker"));
    (!boot_sector && is_mbr(ends)).then_some(Found::PartitionTable("MBR"))
}

/// Four entries of 16 bytes before the mark: a state that is 0 or 0x80, and
/// in at least one a type, a first sector and a number of sectors.
fn is_mbr(ends: &Ends) -> bool {
    if !ends.has(510, &[0x55, 0xaa]) {
        return false;
    }
    let entries: Vec<[u8; 16]> = (0..4_u64)
        .filter_map(|n| ends.at(446_u64.saturating_add(n.saturating_mul(16))))
        .collect();
    let possible = |entry: &[u8; 16]| matches!(entry.first(), Some(0 | 0x80));
    let in_use = |entry: &[u8; 16]| {
        let [_, _, _, _, kind, _, _, _, s0, s1, s2, s3, n0, n1, n2, n3] = *entry;
        let start = u32::from_le_bytes([s0, s1, s2, s3]);
        let count = u32::from_le_bytes([n0, n1, n2, n3]);
        kind != 0 && start != 0 && count != 0
    };
    entries.iter().all(possible) && entries.iter().any(in_use)
}
