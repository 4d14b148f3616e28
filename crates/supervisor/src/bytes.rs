//! Fields of structures that the kernel and programs exchange, in the byte order
//! of the machine.

/// Eight bytes at `at`; 0 if they are not all there.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u64::from_ne_bytes(*field))
}

/// Four bytes at `at`; 0 if they are not all there.
pub(crate) fn half(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u32::from_ne_bytes(*field))
}

/// Puts a value at `at`, if it fits.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at.saturating_add(value.len())) {
        room.copy_from_slice(value);
    }
}
