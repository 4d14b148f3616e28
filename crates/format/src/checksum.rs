//! Checksums of superblocks, nodes and data sectors, and the name hash.
//!
//! Owns the four algorithms and how their results lie in the 32-byte field.

use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest as _};
use sha2::Sha256;

/// Bytes of the checksum field at the start of superblocks and nodes.
pub const CHECKSUM_FIELD: usize = 32;

/// Algorithm of a volume, as stored in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumType {
    /// CRC-32C, the default.
    Crc32c,
    /// XXH64 with seed 0.
    Xxhash,
    /// SHA-256.
    Sha256,
    /// BLAKE2b with 256 bits.
    Blake2,
}

/// A checksum: the first [`ChecksumType::size`] bytes count, the rest is zero.
pub type Checksum = [u8; CHECKSUM_FIELD];

impl ChecksumType {
    /// All of them with their stored number and their name in options.
    pub const TABLE: [(Self, u16, &'static str); 4] = [
        (Self::Crc32c, 0, "crc32c"),
        (Self::Xxhash, 1, "xxhash64"),
        (Self::Sha256, 2, "sha256"),
        (Self::Blake2, 3, "blake2b"),
    ];

    /// The algorithm stored as `number`, if it is known.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::TABLE
            .iter()
            .find(|(_, stored, _)| *stored == number)
            .map(|(algorithm, _, _)| *algorithm)
    }

    /// The algorithm of this name; `xxhash` and `blake2` are accepted too.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "crc32c" => Some(Self::Crc32c),
            "xxhash" | "xxhash64" => Some(Self::Xxhash),
            "sha256" => Some(Self::Sha256),
            "blake2" | "blake2b" => Some(Self::Blake2),
            _ => None,
        }
    }

    /// Its stored number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash => 1,
            Self::Sha256 => 2,
            Self::Blake2 => 3,
        }
    }

    /// Its name as the Btrfs tools print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2 => "blake2b",
        }
    }

    /// Bytes of one checksum.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash => 8,
            Self::Sha256 | Self::Blake2 => 32,
        }
    }

    /// Checksum of `data`.
    #[must_use]
    pub fn compute(self, data: &[u8]) -> Checksum {
        fn field<const N: usize>(bytes: [u8; N]) -> Checksum {
            let mut out = [0; CHECKSUM_FIELD];
            for (to, from) in out.iter_mut().zip(bytes) {
                *to = from;
            }
            out
        }
        match self {
            Self::Crc32c => field(crc32c(data).to_le_bytes()),
            Self::Xxhash => field(xxhash_rust::xxh64::xxh64(data, 0).to_le_bytes()),
            Self::Sha256 => field::<32>(Sha256::digest(data).into()),
            Self::Blake2 => field::<32>(Blake2b::<U32>::digest(data).into()),
        }
    }

    /// True when `block`'s checksum field matches the rest of it.
    #[must_use]
    pub fn verify_block(self, block: &[u8]) -> bool {
        match block.split_at_checked(CHECKSUM_FIELD) {
            Some((field, body)) => {
                let computed = self.compute(body);
                field.get(..self.size()) == computed.get(..self.size())
            }
            None => false,
        }
    }

    /// Writes the checksum of the rest of `block` into its checksum field.
    pub fn seal_block(self, block: &mut [u8]) {
        if let Some((field, body)) = block.split_at_mut_checked(CHECKSUM_FIELD) {
            field.copy_from_slice(&self.compute(body));
        }
    }
}

/// CRC-32C (Castagnoli) of `data`, initial value and final inversion as in iSCSI.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c_raw(u32::MAX, data) ^ u32::MAX
}

/// CRC-32C step without inversions: `seed` is the state before `data`.
/// Send streams and name hashes start from their own seeds.
#[must_use]
pub fn crc32c_raw(seed: u32, data: &[u8]) -> u32 {
    if data.len() < SHORT {
        return data.iter().fold(seed, |state, byte| {
            let [low, ..] = state.to_le_bytes();
            let step = CRC_TABLE.get(usize::from(low ^ byte)).copied();
            (state >> 8) ^ step.unwrap_or_default()
        });
    }
    let mut digest =
        crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(data);
    let [a, b, c, d, ..] = digest.finalize().to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) ^ u32::MAX
}

/// Below this length the table beats the set-up cost of the wide method.
const SHORT: usize = 32;

const CRC_TABLE: [u32; 256] = crc_table();

#[allow(
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "evaluated at compile time, where a fault stops the build"
)]
const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut state = index as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 {
                (state >> 1) ^ 0x82f6_3b78
            } else {
                state >> 1
            };
            bit += 1;
        }
        table[index] = state;
        index += 1;
    }
    table
}

/// Hash of a name in DIR_ITEM and XATTR_ITEM keys.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    // The seed is ~1; the result is not inverted.
    u64::from(crc32c_raw(0xffff_fffe, name))
}

/// Hash in INODE_EXTREF keys: of the name, seeded with the parent directory.
#[must_use]
pub fn extref_hash(parent: crate::InodeNumber, name: &[u8]) -> u64 {
    let [a, b, c, d, ..] = parent.get().to_le_bytes();
    u64::from(crc32c_raw(u32::from_le_bytes([a, b, c, d]), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let long: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let table = long.iter().fold(u32::MAX, |s, b| {
            (s >> 8) ^ CRC_TABLE[usize::from((s as u8) ^ b)]
        });
        assert_eq!(crc32c(&long), table ^ u32::MAX);
        assert_eq!(crc32c_raw(12345, &long), {
            long.iter().fold(12345_u32, |s, b| {
                (s >> 8) ^ CRC_TABLE[usize::from((s as u8) ^ b)]
            })
        });
    }

    /// "default" in the tree of roots of every volume: dump-tree shows
    /// `(ROOT_TREE_DIR DIR_ITEM 2378154706)`.
    #[test]
    fn name_hash_of_default() {
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
