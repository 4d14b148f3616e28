//! Arguments that are words of 64 bits, in the byte order of the machine.

pub(crate) fn words<const N: usize, const BYTES: usize>(values: [u64; N]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, value) in bytes.chunks_exact_mut(8).zip(values) {
        to.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_ne_bytes(found.copied().unwrap_or_default())
}

pub(crate) fn half(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_ne_bytes(found.copied().unwrap_or_default())
}
