//! Little-endian fields at offsets of a slice; what lies beyond its end is
//! zero, as fields are that an older format does not have.

/// `N` bytes from `at` on, or zeros.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().unwrap_or([0; N])
}

pub(crate) fn u8(bytes: &[u8], at: usize) -> u8 {
    let [byte] = array(bytes, at);
    byte
}

pub(crate) fn u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// A number whose halves lie apart.
pub(crate) fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

/// A size in memory of a number that a bound keeps small.
pub(crate) fn memory(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// A length as a number of the disk.
pub(crate) fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
