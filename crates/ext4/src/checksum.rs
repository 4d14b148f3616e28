//! CRC-32C as ext4 seeds it (the result is not inverted), and the CRC-16 of
//! older group descriptors.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C that goes on from `seed`.
pub(crate) fn crc32c(seed: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(data);
    let inverted = u32::try_from(digest.finalize()).unwrap_or_default();
    inverted ^ u32::MAX
}

/// CRC-16 (ANSI, reflected) that goes on from `seed`.
pub(crate) fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| match crc & 1 {
            1 => (crc >> 1) ^ 0xa001,
            _ => crc >> 1,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32c(u32::MAX, b"123456789") ^ u32::MAX, 0xe306_9283);
        let whole = crc32c(7, b"123456789");
        assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), whole);
        // CRC-16/ARC.
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }
}
