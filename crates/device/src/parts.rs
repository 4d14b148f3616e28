//! Requests of many parts to an open file.
//!
//! Owns the repetition: a system call may take fewer parts or bytes than it is
//! given, or be interrupted.

use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

/// Parts that one system call takes (`UIO_MAXIOV`).
pub(crate) const PARTS_MAX: usize = 1024;

/// `at` and `bytes` more.
pub(crate) fn after(at: u64, bytes: usize) -> u64 {
    at.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Fills the parts that are `left`, from `at` on, and takes them out. It ends
/// when nothing is left, or after a request that ended within a unit of `unit`
/// bytes. Gives the number of bytes.
///
/// # Errors
/// Those of the system; the end of the file.
pub(crate) fn read(
    file: &File,
    at: u64,
    left: &mut &mut [IoSliceMut<'_>],
    unit: usize,
) -> io::Result<usize> {
    let mut done = 0_usize;
    // Empty parts at the front would look like the end of the file.
    IoSliceMut::advance_slices(left, 0);
    while !left.is_empty() {
        let first = left.len().min(PARTS_MAX);
        let batch = left.get_mut(..first).unwrap_or_default();
        match rustix::io::preadv(file, batch, after(at, done)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                done = done.saturating_add(read);
                IoSliceMut::advance_slices(left, read);
                if !read.is_multiple_of(unit) {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// Writes `parts` from `at` on, except for the first `done` bytes, which are
/// written. Each request begins at a multiple of `unit` bytes of the parts.
///
/// # Errors
/// Those of the system; any part may have been written.
pub(crate) fn write(
    file: &File,
    at: u64,
    parts: &[IoSlice<'_>],
    (done, unit): (usize, usize),
) -> io::Result<()> {
    let whole_units = |bytes: usize| {
        let rest = bytes.checked_rem(unit).unwrap_or(0);
        bytes.saturating_sub(rest)
    };
    let mut owned = parts.to_vec();
    let mut left = owned.as_mut_slice();
    let mut at = after(at, whole_units(done));
    // Empty parts at the front would look like a write of nothing.
    IoSlice::advance_slices(&mut left, whole_units(done));
    while !left.is_empty() {
        let batch = left.get(..PARTS_MAX.min(left.len())).unwrap_or_default();
        match rustix::io::pwritev(file, batch, at).map(whole_units) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at = after(at, written);
                IoSlice::advance_slices(&mut left, written);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
