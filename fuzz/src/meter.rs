//! The bound on memory: an allocator that counts, and stops the process when
//! one input takes more than its target may.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with a count of what is in use.
struct Meter;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

fn take(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    // A panic's message and backtrace are not limited.
    if now > LIMIT.load(Ordering::Relaxed) && !std::thread::panicking() {
        // Printing allocates.
        LIMIT.store(usize::MAX, Ordering::Relaxed);
        eprintln!("memory: {now} bytes are in use with this allocation of {bytes}");
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }
}

// SAFETY: every call goes to the system's allocator with the arguments that
// came in; counting touches no memory of theirs.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promises hold for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static METER: Meter = Meter;

/// Runs `work`, which may take `bytes` more than are in use now.
pub fn bounded<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    LIMIT.store(IN_USE.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    let result = work();
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    result
}
