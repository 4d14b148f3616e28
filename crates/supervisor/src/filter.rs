//! Which system calls are stopped.
//!
//! The kernel decides by the number of a call, and for ioctl(2) by the number of
//! the request. Reads and writes are never stopped.
//!
//! Source: the kernel's documentation, userspace-api/seccomp_filter; the
//! interface headers linux/seccomp.h, linux/filter.h and linux/audit.h.

use libc::{c_long, sock_filter};

/// A system call that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Stat,
    Lstat,
    Fstat,
    StatAt,
    Statx,
    Statfs,
    Fstatfs,
    Open,
    OpenAt,
    OpenAt2,
    Sync,
    Syncfs,
    Ioctl,
}

/// The calls by their numbers; ioctl(2) is stopped for [`REQUESTS`] alone.
const CALLS: &[(c_long, Call)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, Call::Stat),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, Call::Lstat),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Call::Open),
    (libc::SYS_fstat, Call::Fstat),
    (libc::SYS_newfstatat, Call::StatAt),
    (libc::SYS_statx, Call::Statx),
    (libc::SYS_statfs, Call::Statfs),
    (libc::SYS_fstatfs, Call::Fstatfs),
    (libc::SYS_openat, Call::OpenAt),
    (libc::SYS_openat2, Call::OpenAt2),
    (libc::SYS_sync, Call::Sync),
    (libc::SYS_syncfs, Call::Syncfs),
];

/// A request of ioctl(2) that the kernel never passes to a FUSE server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Clone,
    CloneRange,
    Dedupe,
    Fiemap,
    BalanceControl,
}

/// The requests by their numbers.
const REQUESTS: &[(u32, Request)] = &[
    (0x4004_9409, Request::Clone),
    (0x4020_940d, Request::CloneRange),
    (0xc018_9436, Request::Dedupe),
    (0xc020_660b, Request::Fiemap),
    (0x4004_9421, Request::BalanceControl),
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in `seccomp_data`; both architectures are little-endian.
const NUMBER: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const SECOND_ARGUMENT: u32 = 24;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;

/// The call with a number.
pub(crate) fn call(number: i32) -> Option<Call> {
    let number = c_long::from(number);
    if number == libc::SYS_ioctl {
        return Some(Call::Ioctl);
    }
    let found = CALLS.iter().find(|(one, _)| *one == number);
    found.map(|(_, call)| *call)
}

/// The request with a number; the kernel looks at 32 bits of it.
pub(crate) fn request(number: u64) -> Option<Request> {
    let low = u32::try_from(number & u64::from(u32::MAX)).ok()?;
    let found = REQUESTS.iter().find(|(one, _)| *one == low);
    found.map(|(_, request)| *request)
}

const fn load(at: u32) -> sock_filter {
    sock_filter {
        code: 0x20,
        jt: 0,
        jf: 0,
        k: at,
    }
}

/// Leaves out `yes` instructions if what was loaded is `value`.
const fn skip_if(value: u32, yes: u8) -> sock_filter {
    sock_filter {
        code: 0x15,
        jt: yes,
        jf: 0,
        k: value,
    }
}

const fn end(answer: u32) -> sock_filter {
    sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: answer,
    }
}

/// The filter. Calls of other architectures than the machine's own pass.
pub(crate) fn program() -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCHITECTURE_AT),
        skip_if(ARCHITECTURE, 1),
        end(ALLOW),
        load(NUMBER),
    ];
    // Behind the calls: ioctl(2) or not, its requests, two ends.
    let behind = REQUESTS.len() + 4;
    let left = |number: usize, of: usize, more: usize| {
        u8::try_from(of - 1 - number + more).unwrap_or(u8::MAX)
    };
    for (number, (call, _)) in CALLS.iter().enumerate() {
        let value = u32::try_from(*call).unwrap_or(u32::MAX);
        program.push(skip_if(value, left(number, CALLS.len(), behind)));
    }
    let ioctl = u32::try_from(libc::SYS_ioctl).unwrap_or(u32::MAX);
    program.push(skip_if(ioctl, 1));
    program.push(end(ALLOW));
    program.push(load(SECOND_ARGUMENT));
    for (number, (request, _)) in REQUESTS.iter().enumerate() {
        program.push(skip_if(*request, left(number, REQUESTS.len(), 1)));
    }
    program.push(end(ALLOW));
    program.push(end(NOTIFY));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program answers to a call.
    fn run(architecture: u32, number: u32, second: u32) -> u32 {
        let program = program();
        let (mut at, mut loaded) = (0, 0);
        loop {
            let one = program[at];
            at += 1;
            match one.code {
                0x20 => {
                    loaded = match one.k {
                        ARCHITECTURE_AT => architecture,
                        NUMBER => number,
                        _ => second,
                    }
                }
                0x15 if loaded == one.k => at += usize::from(one.jt),
                0x15 => at += usize::from(one.jf),
                _ => return one.k,
            }
        }
    }

    #[test]
    fn only_what_is_listed_is_stopped() {
        for number in 0..1000_u32 {
            let is_listed = CALLS.iter().any(|(one, _)| *one == c_long::from(number));
            let answer = run(ARCHITECTURE, number, 0);
            assert_eq!(answer == NOTIFY, is_listed, "call {number}");
            assert_eq!(run(1, number, 0), ALLOW, "another architecture");
        }
        let ioctl = libc::SYS_ioctl as u32;
        for (request, _) in REQUESTS {
            assert_eq!(run(ARCHITECTURE, ioctl, *request), NOTIFY);
            assert_eq!(run(ARCHITECTURE, ioctl, request + 1), ALLOW);
        }
    }
}
