//! Removes from nodes what an image must not tell. The content of files in leaves
//! and the unused parts of nodes are always removed. Names, and the values of
//! extended attributes, are removed only if the user wants that.
//!
//! In one image, the same name becomes the same garbage everywhere. So directory
//! entries, the references of inodes and those of subvolumes still fit each
//! other.

use butterfs_format::checksum::crc32c_raw;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, POINTER_SIZE};
use butterfs_format::{ItemType, TreeId};
use butterfs_tree::Node;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens to names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// They stay.
    #[default]
    Kept,
    /// They become garbage of the same length. The hashes of names are wrong
    /// then.
    Garbage,
    /// They become garbage of the same length and with the same hash. Names of
    /// less than five bytes get another hash, because no other name has theirs.
    Colliding,
}

/// No two names of fewer bytes and the same length have the same hash.
const COLLIDING_MIN: usize = 5;
/// The most tries to find a printable name with the same hash. If there is none,
/// one that is not printable is taken.
const TRIES: u32 = 4000;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Offset of the content in an inline file extent.
const INLINE: usize = 21;

/// Removes secrets from nodes.
#[derive(Debug)]
pub struct Sanitizer {
    names: Names,
    secret: [u8; 16],
    /// What each byte of a short name becomes. No two become the same.
    short: [u8; 256],
    /// The table of CRC-32C.
    table: [u32; 256],
    /// The index of the entry of `table` with this highest byte.
    by_high_byte: [u8; 256],
    without_collision: AtomicU64,
}

impl Sanitizer {
    pub fn new(names: Names) -> Self {
        let secret = uuid::Uuid::new_v4().into_bytes();
        let mut table = [0; 256];
        let mut by_high_byte = [0; 256];
        for (byte, entry) in (0..=u8::MAX).zip(&mut table) {
            *entry = crc32c_raw(byte.into(), &[0]);
            by_high_byte[(*entry >> 24) as usize] = byte;
        }
        Self {
            names,
            secret,
            short: permutation(&secret),
            table,
            by_high_byte,
            without_collision: AtomicU64::new(0),
        }
    }

    /// The number of names that should collide and do not.
    pub fn without_collision(&self) -> u64 {
        self.without_collision.load(Ordering::Relaxed)
    }

    /// Cleans a node. Returns true if that changed it; its checksum is wrong then.
    pub fn clean(&self, node: &mut Node) -> bool {
        let mut changed = zero_gap(node);
        if !node.is_leaf() {
            return changed;
        }
        let in_root_tree = node.owner() == TreeId::ROOT;
        for slot in 0..node.len() {
            let key = node.key(slot);
            let data = node.data_mut(slot);
            if key.item_type == ItemType::EXTENT_DATA {
                if data.get(20) == Some(&0) && data.len() > INLINE {
                    data[INLINE..].fill(0);
                    changed = true;
                }
                continue;
            }
            if self.names == Names::Kept {
                continue;
            }
            changed = true;
            match key.item_type {
                // The entry `default`, for which the kernel looks.
                ItemType::DIR_ITEM if in_root_tree => {}
                ItemType::DIR_ITEM | ItemType::DIR_INDEX => self.entries(data),
                ItemType::XATTR_ITEM => zero_values(data),
                ItemType::INODE_REF => self.named(data, 8),
                ItemType::INODE_EXTREF | ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
                    self.named(data, 16);
                }
                _ => {}
            }
        }
        changed
    }

    /// Replaces the names in directory entries. An entry is a header of 30 bytes,
    /// a name, and data.
    fn entries(&self, mut data: &mut [u8]) {
        while let Some((name, rest)) = entry(data) {
            let (this, behind) = std::mem::take(&mut data).split_at_mut(rest);
            self.replace(&mut this[name]);
            data = behind;
        }
    }

    /// Replaces the names in other entries. An entry is `before` bytes, the length
    /// of a name (two bytes), and the name.
    fn named(&self, mut data: &mut [u8], before: usize) {
        while data.len() >= before + 2 {
            let length = u16::from_le_bytes([data[before], data[before + 1]]);
            let end = before + 2 + usize::from(length);
            if end > data.len() {
                return;
            }
            let (this, behind) = std::mem::take(&mut data).split_at_mut(end);
            self.replace(&mut this[before + 2..]);
            data = behind;
        }
    }

    fn replace(&self, name: &mut [u8]) {
        if name.is_empty() || name == b".." {
            return;
        }
        if name.len() < COLLIDING_MIN {
            if self.names == Names::Colliding {
                self.without_collision.fetch_add(1, Ordering::Relaxed);
            }
            for byte in name {
                *byte = self.short[usize::from(*byte)];
            }
            return;
        }
        match self.names {
            Names::Colliding => self.collide(name),
            _ => {
                let garbage = self.garbage(name, 0);
                name.copy_from_slice(&garbage);
            }
        }
    }

    /// Derives letters of the alphabet from the name, the secret and a number.
    fn garbage(&self, name: &[u8], number: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(name.len() + 32);
        let mut block = 0_u32;
        while out.len() < name.len() {
            let mut hash = Sha256::new();
            hash.update(self.secret);
            hash.update(number.to_le_bytes());
            hash.update(block.to_le_bytes());
            hash.update(name);
            let letters = hash.finalize();
            out.extend(letters.iter().map(|byte| ALPHABET[usize::from(byte % 64)]));
            block += 1;
        }
        out.truncate(name.len());
        out
    }

    /// Replaces a name by another one with the same checksum. Its last four bytes
    /// are computed from the bytes before them.
    fn collide(&self, name: &mut [u8]) {
        let target = crc32c_raw(u32::MAX, name);
        let mut possible = None;
        for number in 0..TRIES {
            let mut other = self.garbage(name, number);
            let (head, tail) = other.split_at_mut(name.len() - 4);
            tail.copy_from_slice(&self.last_four(crc32c_raw(u32::MAX, head), target));
            let is_name = !tail.iter().any(|byte| matches!(byte, 0 | b'/'));
            let is_printable = tail.iter().all(u8::is_ascii_graphic);
            if is_name && other != name {
                if is_printable {
                    name.copy_from_slice(&other);
                    return;
                }
                possible.get_or_insert(other);
            }
        }
        match possible {
            Some(other) => name.copy_from_slice(&other),
            None => {
                self.without_collision.fetch_add(1, Ordering::Relaxed);
                let garbage = self.garbage(name, 0);
                name.copy_from_slice(&garbage);
            }
        }
    }

    /// Returns the four bytes that change the checksum from `state` to `target`.
    fn last_four(&self, state: u32, target: u32) -> [u8; 4] {
        let mut entries = [0_u8; 4];
        let mut left = target;
        for entry in entries.iter_mut().rev() {
            *entry = self.by_high_byte[(left >> 24) as usize];
            left = (left ^ self.table[usize::from(*entry)]) << 8;
        }
        let mut state = state;
        entries.map(|entry| {
            let [low, ..] = state.to_le_bytes();
            state = (state >> 8) ^ self.table[usize::from(entry)];
            low ^ entry
        })
    }
}

/// Zeros the space between items and their data, or after pointers. It may hold
/// remains of removed items. Returns true if that changed the node.
fn zero_gap(node: &mut Node) -> bool {
    let each = if node.is_leaf() {
        ITEM_SIZE
    } else {
        POINTER_SIZE
    };
    let start = HEADER_SIZE + node.len() * each;
    let end = start + node.free_bytes();
    let gap = &mut node.bytes_mut()[start..end];
    let changed = gap.iter().any(|byte| *byte != 0);
    gap.fill(0);
    changed
}

/// Returns where the name of the first directory entry lies, and where the next
/// entry begins.
fn entry(data: &[u8]) -> Option<(std::ops::Range<usize>, usize)> {
    const HEADER: usize = 30;
    let length = |at: usize| {
        let bytes = data.get(at..at + 2)?;
        Some(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    };
    let (values, name) = (length(25)?, length(27)?);
    let end = HEADER + name + values;
    (end <= data.len()).then_some((HEADER..HEADER + name, end))
}

fn zero_values(mut data: &mut [u8]) {
    while let Some((name, rest)) = entry(data) {
        let (this, behind) = std::mem::take(&mut data).split_at_mut(rest);
        this[name.end..].fill(0);
        data = behind;
    }
}

/// Maps each byte that names have to such a byte, no two to the same. `.` stays.
fn permutation(secret: &[u8; 16]) -> [u8; 256] {
    let bytes: Vec<u8> = (1..=u8::MAX).filter(|byte| !b"/.".contains(byte)).collect();
    let mut shuffled = bytes.clone();
    for at in (1..shuffled.len()).rev() {
        let mut hash = Sha256::new();
        hash.update(secret);
        hash.update(at.to_le_bytes());
        let hash = hash.finalize();
        let other = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]) as usize;
        shuffled.swap(at, other % (at + 1));
    }
    let mut map = [0; 256];
    for (byte, entry) in (0..=u8::MAX).zip(&mut map) {
        *entry = byte;
    }
    for (from, to) in bytes.into_iter().zip(shuffled) {
        map[usize::from(from)] = to;
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_collide_and_differ() {
        let sanitizer = Sanitizer::new(Names::Colliding);
        for name in [
            "passwords",
            "hello",
            "a name with spaces.txt",
            "12345678901234567890",
        ] {
            let mut other = name.as_bytes().to_vec();
            sanitizer.replace(&mut other);
            assert_ne!(other, name.as_bytes());
            for seed in [u32::MAX - 1, 0, 256] {
                let hash = crc32c_raw(seed, &other);
                assert_eq!(hash, crc32c_raw(seed, name.as_bytes()), "{name}");
            }
            assert!(!other.contains(&0) && !other.contains(&b'/'));
            let mut again = name.as_bytes().to_vec();
            sanitizer.replace(&mut again);
            assert_eq!(again, other);
        }
        assert_eq!(sanitizer.without_collision(), 0);
    }

    #[test]
    fn short_names_stay_apart() {
        let sanitizer = Sanitizer::new(Names::Garbage);
        let mut seen = std::collections::BTreeSet::new();
        for byte in (1..=u8::MAX).filter(|byte| *byte != b'/') {
            let mut name = [byte];
            sanitizer.replace(&mut name);
            assert!(name != [0] && name != [b'/'], "{byte}");
            assert!(seen.insert(name), "{byte}");
        }
    }
}
