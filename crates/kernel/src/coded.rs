//! Requests that are answered by a number: when the volume refuses, the call
//! does not fail with an errno but returns a number above zero.
#![allow(unsafe_code, reason = "a request that hands on the answer's number")]

use core::ffi::c_void;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use std::os::fd::BorrowedFd;
use std::ptr::from_mut;

/// The number that says that another change of the devices, a balance, or a
/// resize runs.
const ANOTHER_RUNS: i32 = 8;

struct Coded<'a, const NUMBER: Opcode, const N: usize>(&'a mut [u8; N]);

// SAFETY: the pointer comes from an exclusive reference to `N` bytes. The
// caller of `coded` vouches that the request touches no more than these.
unsafe impl<const NUMBER: Opcode, const N: usize> Ioctl for Coded<'_, NUMBER, N> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        NUMBER
    }

    fn as_ptr(&mut self) -> *mut c_void {
        from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> Result<i32, Errno> {
        Ok(output)
    }
}

/// Makes a request; returns the number of the answer, 0 for success.
///
/// # Safety
/// The request reads and writes at most `N` bytes.
///
/// # Errors
/// What the file system says; EINPROGRESS while another change of the devices,
/// a balance, or a resize runs.
pub(crate) unsafe fn coded<const NUMBER: Opcode, const N: usize>(
    file: BorrowedFd<'_>,
    argument: &mut [u8; N],
) -> Result<i32, Errno> {
    // SAFETY: the caller vouches for the size.
    match unsafe { ioctl(file, Coded::<NUMBER, N>(argument))? } {
        ANOTHER_RUNS => Err(Errno::INPROGRESS),
        number => Ok(number),
    }
}

/// As [`coded`], where any other number than 0 is an error.
///
/// # Safety
/// As [`coded`].
///
/// # Errors
/// As [`coded`], and EINVAL for any other number.
pub(crate) unsafe fn uncoded<const NUMBER: Opcode, const N: usize>(
    file: BorrowedFd<'_>,
    argument: &mut [u8; N],
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the size.
    match unsafe { coded::<NUMBER, N>(file, argument)? } {
        0 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}
