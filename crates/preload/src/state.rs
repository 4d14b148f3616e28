//! What this process knows of the mounts, made when it is needed first.

#![allow(unsafe_code, reason = "a child of fork(2) begins anew")]

use butterfs_supervisor::InProcess;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

static STATE: AtomicPtr<InProcess> = AtomicPtr::new(null_mut());

/// Another thread of the parent may have held a lock of the state at the time of
/// the fork. So the child leaves it alone, and makes its own.
extern "C" fn forget() {
    STATE.store(null_mut(), Ordering::Release);
}

/// `None` if there is no /proc.
pub(crate) fn state() -> Option<&'static InProcess> {
    let known = STATE.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: what was published is never freed or changed.
        return Some(unsafe { &*known });
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the function stays, since this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    });
    let new = Box::into_raw(Box::new(InProcess::new().ok()?));
    // Two threads may both have made one. The other one's is left where it is.
    let published = STATE.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    let state = match published {
        Ok(_) => new,
        Err(other) => other,
    };
    // SAFETY: as above.
    Some(unsafe { &*state })
}
