//! Arguments of requests: bytes with fields at known places.
//!
//! Owns the number that all requests of Btrfs share, and how a field and a name
//! enter an argument.

use rustix::io::Errno;

/// The type in the numbers of all these requests.
pub(crate) const BTRFS: u8 = 0x94;

/// Bytes of the argument of requests that name a subvolume.
pub(crate) const NAMED: usize = 4096;

/// Puts a field into an argument, which has room for it.
pub(crate) fn put<const N: usize>(bytes: &mut [u8; N], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

/// A field of an answer that is long enough to hold it.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

/// An argument with a name at a place, and a NUL after it.
pub(crate) fn named(at: usize, name: &[u8]) -> Result<[u8; NAMED], Errno> {
    if name.is_empty() || name.len() > 255 || name.contains(&0) || name.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    let mut argument = [0; NAMED];
    put(&mut argument, at, name);
    Ok(argument)
}
