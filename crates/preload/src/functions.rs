//! Functions with the names and the interface of the C library's.
//!
//! Each makes the system call first. If that is about a mount of ButterFS, the
//! answer is replaced by that of Btrfs.
//!
//! Source: the manual pages of the functions; the symbols that glibc exports for
//! programs of different ages.

#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "functions of the C library, with its pointers"
)]

use crate::inside::Inside;
use crate::state::state;
use butterfs_supervisor::Reply;
use libc::{FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t};
use libc::{stat as Stat, statfs as Statfs, statx as Statx};
use std::ffi::CStr;
use std::os::fd::IntoRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Requests of ioctl(2) that the kernel never passes to a FUSE server.
const REQUESTS: [c_uint; 5] = [
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0xc020_660b, // FS_IOC_FIEMAP
    0x4004_9421, // BTRFS_IOC_BALANCE_CTL
];

fn set_errno(error: c_int) {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() = error };
}

fn errno() -> c_int {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() }
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.addr() as u64
}

fn number(value: c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

/// What Btrfs answers to a call; `None` where the kernel's answer is right.
/// Leaves errno as it is.
fn answer_of_btrfs(call: c_long, arguments: [u64; 6]) -> Option<c_long> {
    let before = errno();
    let asked = catch_unwind(AssertUnwindSafe(|| {
        let reply = state()?.answer(call, arguments)?;
        Some(match reply {
            Reply::Value(value) => Ok(value),
            Reply::Error(error) => Err(error),
            Reply::Descriptor(file) => Ok(i64::from(file.into_raw_fd())),
            Reply::DescriptorToKeep(file) => {
                let file = file.into_raw_fd();
                // SAFETY: numbers alone.
                unsafe { libc::fcntl(file, libc::F_SETFD, 0) };
                Ok(i64::from(file))
            }
        })
    }));
    match asked.ok().flatten() {
        Some(Ok(value)) => {
            set_errno(before);
            Some(value)
        }
        Some(Err(error)) => {
            set_errno(error);
            Some(-1)
        }
        None => {
            set_errno(before);
            None
        }
    }
}

fn is_ours(major: u32, minor: u32) -> bool {
    // FUSE has no device: its numbers are those without a driver.
    if major != 0 {
        return false;
    }
    let before = errno();
    let found = catch_unwind(|| state().is_some_and(|state| state.is_ours(major, minor)));
    set_errno(before);
    found.unwrap_or(false)
}

/// Finishes a call of the stat family that the kernel has answered.
///
/// # Safety
/// If `done` is 0, the kernel filled `facts`.
unsafe fn finish_stat(
    done: c_long,
    facts: *const Stat,
    call: c_long,
    arguments: [u64; 6],
) -> c_int {
    if done != 0 {
        return -1;
    }
    let Some(_inside) = Inside::enter() else {
        return 0;
    };
    // SAFETY: the kernel filled it.
    let device = unsafe { (*facts).st_dev };
    if is_ours(libc::major(device), libc::minor(device)) {
        // If nothing is answered, the kernel's answer stays.
        answer_of_btrfs(call, arguments);
    }
    0
}

unsafe fn stat_at(directory: c_int, path: *const c_char, facts: *mut Stat, flags: c_int) -> c_int {
    let call = libc::SYS_newfstatat;
    // SAFETY: the kernel verifies the pointers.
    let done = unsafe { libc::syscall(call, directory, path, facts, flags) };
    let arguments = [
        number(directory),
        address(path),
        address(facts),
        number(flags),
        0,
        0,
    ];
    // SAFETY: the kernel filled it if it said so.
    unsafe { finish_stat(done, facts, call, arguments) }
}

unsafe fn stat_open(descriptor: c_int, facts: *mut Stat) -> c_int {
    let call = libc::SYS_fstat;
    // SAFETY: the kernel verifies the pointer.
    let done = unsafe { libc::syscall(call, descriptor, facts) };
    let arguments = [number(descriptor), address(facts), 0, 0, 0, 0];
    // SAFETY: the kernel filled it if it said so.
    unsafe { finish_stat(done, facts, call, arguments) }
}

/// Functions that have the same interface under several names.
macro_rules! functions {
    ($($name:ident: ($($argument:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller keeps to the interface of the C library.
            unsafe { $body }
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

functions! {
    stat: (path: *const c_char, facts: *mut Stat) -> c_int = stat_at(HERE, path, facts, 0);
    stat64: (path: *const c_char, facts: *mut Stat) -> c_int = stat_at(HERE, path, facts, 0);
    lstat: (path: *const c_char, facts: *mut Stat) -> c_int = stat_at(HERE, path, facts, LINK);
    lstat64: (path: *const c_char, facts: *mut Stat) -> c_int = stat_at(HERE, path, facts, LINK);
    fstat: (descriptor: c_int, facts: *mut Stat) -> c_int = stat_open(descriptor, facts);
    fstat64: (descriptor: c_int, facts: *mut Stat) -> c_int = stat_open(descriptor, facts);
    fstatat: (directory: c_int, path: *const c_char, facts: *mut Stat, flags: c_int) -> c_int
        = stat_at(directory, path, facts, flags);
    fstatat64: (directory: c_int, path: *const c_char, facts: *mut Stat, flags: c_int) -> c_int
        = stat_at(directory, path, facts, flags);
    // Programs that were linked with glibc before 2.33 call these.
    __xstat: (_version: c_int, path: *const c_char, facts: *mut Stat) -> c_int
        = stat_at(HERE, path, facts, 0);
    __xstat64: (_version: c_int, path: *const c_char, facts: *mut Stat) -> c_int
        = stat_at(HERE, path, facts, 0);
    __lxstat: (_version: c_int, path: *const c_char, facts: *mut Stat) -> c_int
        = stat_at(HERE, path, facts, LINK);
    __lxstat64: (_version: c_int, path: *const c_char, facts: *mut Stat) -> c_int
        = stat_at(HERE, path, facts, LINK);
    __fxstat: (_version: c_int, descriptor: c_int, facts: *mut Stat) -> c_int
        = stat_open(descriptor, facts);
    __fxstat64: (_version: c_int, descriptor: c_int, facts: *mut Stat) -> c_int
        = stat_open(descriptor, facts);
    __fxstatat: (
        _version: c_int, directory: c_int, path: *const c_char, facts: *mut Stat, flags: c_int
    ) -> c_int = stat_at(directory, path, facts, flags);
    __fxstatat64: (
        _version: c_int, directory: c_int, path: *const c_char, facts: *mut Stat, flags: c_int
    ) -> c_int = stat_at(directory, path, facts, flags);

    statx: (
        directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, facts: *mut Statx
    ) -> c_int = stat_extended(directory, path, flags, mask, facts);

    statfs: (path: *const c_char, facts: *mut Statfs) -> c_int = volume_of(path, facts);
    statfs64: (path: *const c_char, facts: *mut Statfs) -> c_int = volume_of(path, facts);
    fstatfs: (descriptor: c_int, facts: *mut Statfs) -> c_int
        = volume_of_open(descriptor, facts);
    fstatfs64: (descriptor: c_int, facts: *mut Statfs) -> c_int
        = volume_of_open(descriptor, facts);

    // Who calls these with more than two or three arguments passes them in the
    // same registers as a function without variable arguments expects them.
    open: (path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = open_at(HERE, path, flags, mode);
    open64: (path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = open_at(HERE, path, flags, mode);
    openat: (directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = open_at(directory, path, flags, mode);
    openat64: (directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = open_at(directory, path, flags, mode);
    __open_2: (path: *const c_char, flags: c_int) -> c_int = open_at(HERE, path, flags, 0);
    __open64_2: (path: *const c_char, flags: c_int) -> c_int = open_at(HERE, path, flags, 0);
    __openat_2: (directory: c_int, path: *const c_char, flags: c_int) -> c_int
        = open_at(directory, path, flags, 0);
    __openat64_2: (directory: c_int, path: *const c_char, flags: c_int) -> c_int
        = open_at(directory, path, flags, 0);
    fopen: (path: *const c_char, mode: *const c_char) -> *mut FILE
        = open_stream(c"fopen", path, mode);
    fopen64: (path: *const c_char, mode: *const c_char) -> *mut FILE
        = open_stream(c"fopen64", path, mode);
    setmntent: (path: *const c_char, mode: *const c_char) -> *mut FILE
        = open_stream(c"setmntent", path, mode);

    ioctl: (descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int
        = control(descriptor, request, argument);
}

#[unsafe(no_mangle)]
extern "C" fn sync() {
    if let Some(_inside) = Inside::enter() {
        answer_of_btrfs(libc::SYS_sync, [0; 6]);
    }
    // SAFETY: the call has no arguments.
    unsafe { libc::syscall(libc::SYS_sync) };
}

unsafe fn stat_extended(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    facts: *mut Statx,
) -> c_int {
    let call = libc::SYS_statx;
    // SAFETY: the kernel verifies the pointers.
    let done = unsafe { libc::syscall(call, directory, path, flags, mask, facts) };
    if done != 0 {
        return -1;
    }
    let Some(_inside) = Inside::enter() else {
        return 0;
    };
    // SAFETY: the kernel filled it.
    let (major, minor) = unsafe { ((*facts).stx_dev_major, (*facts).stx_dev_minor) };
    if is_ours(major, minor) {
        let arguments = [
            number(directory),
            address(path),
            number(flags),
            u64::from(mask),
            address(facts),
            0,
        ];
        answer_of_btrfs(call, arguments);
    }
    0
}

/// The type of FUSE.
const FUSE: i64 = 0x6573_5546;

/// Finishes statfs(2) or fstatfs(2).
///
/// # Safety
/// If `done` is 0, the kernel filled `facts`.
unsafe fn finish_volume(done: c_long, facts: *const Statfs, call: c_long, of: u64) -> c_int {
    if done != 0 {
        return -1;
    }
    // SAFETY: the kernel filled it.
    if unsafe { (*facts).f_type } == FUSE
        && let Some(_inside) = Inside::enter()
    {
        answer_of_btrfs(call, [of, address(facts), 0, 0, 0, 0]);
    }
    0
}

unsafe fn volume_of(path: *const c_char, facts: *mut Statfs) -> c_int {
    let call = libc::SYS_statfs;
    // SAFETY: the kernel verifies the pointers, and fills `facts` if it says so.
    unsafe {
        let done = libc::syscall(call, path, facts);
        finish_volume(done, facts, call, address(path))
    }
}

unsafe fn volume_of_open(descriptor: c_int, facts: *mut Statfs) -> c_int {
    let call = libc::SYS_fstatfs;
    // SAFETY: the kernel verifies the pointer, and fills `facts` if it says so.
    unsafe {
        let done = libc::syscall(call, descriptor, facts);
        finish_volume(done, facts, call, number(descriptor))
    }
}

/// Whether a path may name a table of mounts, or a file that the kernel has for
/// its own mounts alone.
fn may_be_answered(path: &CStr) -> bool {
    let path = path.to_bytes();
    path == b"/etc/mtab" || path.starts_with(b"/sys/fs/btrfs/") || is_table(path)
}

fn is_table(path: &[u8]) -> bool {
    let ends = path.ends_with(b"/mountinfo") || path.ends_with(b"/mounts");
    ends && path.starts_with(b"/proc/")
}

/// A descriptor of the table that a path names; `None` where the kernel's file
/// is right.
///
/// # Safety
/// `path` is a string or null.
unsafe fn table(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: said above.
    if path.is_null() || !may_be_answered(unsafe { CStr::from_ptr(path) }) {
        return None;
    }
    let _inside = Inside::enter()?;
    let arguments = [number(HERE), address(path), number(flags), 0, 0, 0];
    let opened = answer_of_btrfs(libc::SYS_openat, arguments)?;
    c_int::try_from(opened).ok()
}

unsafe fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the C library demands a string, too.
    if let Some(opened) = unsafe { table(path, flags) } {
        return opened;
    }
    // Without these flags the caller gave no mode, and the register has anything.
    let takes_mode = flags & (libc::O_CREAT | libc::O_TMPFILE) != 0;
    let mode = if takes_mode { mode } else { 0 };
    // SAFETY: the kernel verifies the pointer.
    let opened = unsafe { libc::syscall(libc::SYS_openat, directory, path, flags, mode) };
    c_int::try_from(opened).unwrap_or(-1)
}

/// fopen(3) and the like: a table, or what the C library opens.
///
/// # Safety
/// As for the function with this name.
unsafe fn open_stream(name: &CStr, path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: strings, as the C library demands them, and its own function of
    // this name and interface.
    unsafe {
        if !mode.is_null() && CStr::from_ptr(mode).to_bytes().first() == Some(&b'r') {
            let closes = CStr::from_ptr(mode).to_bytes().contains(&b'e');
            let flags = if closes { libc::O_CLOEXEC } else { 0 };
            if let Some(opened) = table(path, libc::O_RDONLY | flags) {
                return libc::fdopen(opened, c"r".as_ptr());
            }
        }
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if next.is_null() {
            set_errno(libc::ENOSYS);
            return std::ptr::null_mut();
        }
        type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
        let next: Function = std::mem::transmute::<*mut c_void, Function>(next);
        next(path, mode)
    }
}

unsafe fn control(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // The kernel looks at 32 bits of the request.
    let low = request & c_ulong::from(c_uint::MAX);
    if REQUESTS.iter().any(|one| c_ulong::from(*one) == low)
        && let Some(_inside) = Inside::enter()
    {
        let arguments = [number(descriptor), low, address(argument), 0, 0, 0];
        if let Some(done) = answer_of_btrfs(libc::SYS_ioctl, arguments) {
            return c_int::try_from(done).unwrap_or(-1);
        }
    }
    // SAFETY: the kernel and its drivers verify the argument.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) };
    c_int::try_from(done).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn syncfs(descriptor: c_int) -> c_int {
    if let Some(_inside) = Inside::enter()
        && let Some(done) = answer_of_btrfs(libc::SYS_syncfs, [number(descriptor), 0, 0, 0, 0, 0])
    {
        return c_int::try_from(done).unwrap_or(-1);
    }
    // SAFETY: a number alone.
    let done = unsafe { libc::syscall(libc::SYS_syncfs, descriptor) };
    c_int::try_from(done).unwrap_or(-1)
}
