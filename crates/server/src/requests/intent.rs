//! What a caller that waits for an answer is about to do.
//!
//! Owns the answers to three questions. Does the caller open a file for writing?
//! Does it copy to a descriptor that was opened for durable writes? Does it
//! change an owner? Opens are
//! stateless, so the kernel does not ask the server about them. But if the
//! attributes of a file expire at once, the kernel asks for them before it
//! permits what a system call wants. So the attributes of immutable and
//! append-only files expire at once, and if the kernel has a cache of writes,
//! those of files in read-only subvolumes. The attributes of other files never
//! expire, so nobody else pays.
//!
//! The caller waits within its system call. /proc shows this call with its
//! arguments to whoever may trace the caller: root, and the caller's own user
//! if the machine permits that. The caller's memory is never read, because a
//! page of it may be one that only this server can bring. What is not
//! understood (another user's thread, a 32-bit program, `openat2`, whose flags
//! lie in memory, `io_uring`) counts as harmless, because writes are refused
//! anyway when they arrive. For copies by such a caller, all of its descriptors
//! are looked at instead. A caller that cannot be seen at all gets what O_DSYNC
//! promises.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A thread that waits may not be asleep yet, so /proc is read up to this
/// often.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_micros(20);

/// How a system call would use a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It opens it for writing.
    Write,
    /// For writing at its end, and nowhere else.
    Append,
    /// Anything else.
    Other,
}

/// What a thread that waits for an answer wants.
pub fn of(thread: u32) -> Intent {
    Call::of(thread).map_or(Intent::Other, |call| call.intent())
}

/// Whether a thread changes the owner or group of a file.
pub fn changes_owner(thread: u32) -> bool {
    Call::of(thread).is_some_and(|call| call.changes_owner())
}

/// The descriptor on which a thread called ioctl; `None` if that cannot be seen.
pub fn descriptor_of_ioctl(thread: u32) -> Option<u64> {
    let call = Call::of(thread)?;
    (call.number == libc::SYS_ioctl).then_some(call.arguments[0])
}

/// Whether a thread that copies a range of files asked for it to be durable: it
/// opened the target with O_DSYNC or O_SYNC.
pub fn copies_durably(thread: u32) -> bool {
    let descriptors = PathBuf::from(format!("/proc/{thread}/fdinfo"));
    match Call::of(thread).and_then(|call| call.target_of_copy()) {
        Some(target) => is_durable(&descriptors.join(target.to_string())).unwrap_or(true),
        // It cannot be seen which descriptor is the target.
        None => std::fs::read_dir(descriptors).map_or(true, |all| {
            all.flatten()
                .any(|entry| is_durable(&entry.path()).unwrap_or(false))
        }),
    }
}

/// Whether writes through a descriptor are durable; `None` if it is gone.
fn is_durable(descriptor: &Path) -> Option<bool> {
    let facts = std::fs::read_to_string(descriptor).ok()?;
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = i32::from_str_radix(flags.trim(), 8).ok()?;
    // O_SYNC includes this bit.
    Some(flags & libc::O_DSYNC != 0)
}

/// A system call.
struct Call {
    number: libc::c_long,
    arguments: [u64; 6],
}

impl Call {
    /// The system call in which a thread waits.
    fn of(thread: u32) -> Option<Self> {
        let path = format!("/proc/{thread}/syscall");
        for _ in 0..TRIES {
            let text = std::fs::read_to_string(&path).ok()?;
            if text.trim() != "running" {
                return Self::parse(&text);
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// The descriptor that is written to.
    fn target_of_copy(&self) -> Option<u64> {
        (self.number == libc::SYS_copy_file_range).then_some(self.arguments[2])
    }

    const fn changes_owner(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.number, libc::SYS_chown | libc::SYS_lchown) {
            return true;
        }
        matches!(self.number, libc::SYS_fchown | libc::SYS_fchownat)
    }

    /// The number, six arguments, and then stack and program counter.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut hex = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = hex.next()??;
        }
        // A 32-bit program has other numbers.
        let stack = hex.next()??;
        let wide = size_of::<usize>() == 4 || stack > u64::from(u32::MAX);
        wide.then_some(Self { number, arguments })
    }

    fn intent(&self) -> Intent {
        let at = |index: usize| self.arguments[index];
        #[cfg(target_arch = "x86_64")]
        match self.number {
            libc::SYS_open => return opened(at(1)),
            libc::SYS_creat => return Intent::Write,
            libc::SYS_access => return accessed(at(1)),
            _ => {}
        }
        match self.number {
            libc::SYS_openat | libc::SYS_open_by_handle_at => opened(at(2)),
            libc::SYS_faccessat | libc::SYS_faccessat2 => accessed(at(2)),
            _ => Intent::Other,
        }
    }
}

fn opened(flags: u64) -> Intent {
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    if has(libc::O_PATH) {
        return Intent::Other;
    }
    let writes = flags & u64::from(libc::O_ACCMODE.cast_unsigned()) != 0;
    match (writes, has(libc::O_APPEND), has(libc::O_TRUNC)) {
        (_, _, true) | (true, false, _) => Intent::Write,
        (true, true, false) => Intent::Append,
        (false, ..) => Intent::Other,
    }
}

fn accessed(mode: u64) -> Intent {
    match mode & u64::from(libc::W_OK.cast_unsigned()) {
        0 => Intent::Other,
        // Append-only files are writable for callers who ask in this way.
        _ => Intent::Append,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    fn intent(text: &str) -> Intent {
        Call::parse(text).expect("a call").intent()
    }

    #[test]
    fn calls_that_open_for_writing_are_known() {
        let call = |number: libc::c_long, flags: i32| {
            format!(
                "{number} 0xffffff9c 0x2000 {flags:#x} 0x1b6 0x0 0x0 0x7ffd00000000 0x7f0000000000\n"
            )
        };
        let open = |flags| intent(&call(libc::SYS_openat, flags));
        assert_eq!(open(libc::O_RDONLY | libc::O_CLOEXEC), Intent::Other);
        assert_eq!(open(libc::O_RDWR), Intent::Write);
        assert_eq!(open(libc::O_WRONLY | libc::O_APPEND), Intent::Append);
        assert_eq!(
            open(libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC),
            Intent::Write
        );
        assert_eq!(open(libc::O_RDONLY | libc::O_TRUNC), Intent::Write);
        assert_eq!(open(libc::O_PATH | libc::O_RDWR), Intent::Other);
        assert_eq!(intent(&call(libc::SYS_openat2, 0x1000)), Intent::Other);
        assert_eq!(
            intent(&call(libc::SYS_faccessat2, libc::W_OK)),
            Intent::Append
        );
        assert_eq!(
            intent(&call(libc::SYS_faccessat, libc::R_OK)),
            Intent::Other
        );
        assert_eq!(intent(&call(libc::SYS_execve, libc::O_RDWR)), Intent::Other);
    }

    #[test]
    fn the_target_of_a_copy_is_known() {
        let call = |number: libc::c_long| {
            let text =
                format!("{number} 0x5 0x0 0x7 0x0 0x1000 0x0 0x7ffd00000000 0x7f0000000000\n");
            Call::parse(&text).expect("a call").target_of_copy()
        };
        assert_eq!(call(libc::SYS_copy_file_range), Some(7));
        assert_eq!(call(libc::SYS_sendfile), None);
    }

    #[test]
    fn who_cannot_be_seen_gets_durable_copies() {
        assert!(copies_durably(0));
        // This thread copies nothing, so everything that it has open counts.
        let thread = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let before = copies_durably(thread);
        let durable = std::fs::File::options()
            .write(true)
            .custom_flags(libc::O_DSYNC)
            .open("/dev/null")
            .unwrap();
        assert!(copies_durably(thread));
        drop(durable);
        assert!(!before);
    }

    #[test]
    fn what_is_no_call_is_none() {
        assert!(Call::parse("running").is_none());
        assert!(Call::parse("-1 0x7ffd00000000 0x7f0000000000").is_none());
        // A 32-bit program: 295 is openat there.
        let narrow = "295 0xffffff9c 0x2000 0x1 0x1b6 0x0 0x0 0xffd00000 0xf7f00000";
        assert!(Call::parse(narrow).is_none());
    }
}
