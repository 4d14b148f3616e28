//! Whether the thread is inside this library already: then its functions only
//! make the system call.

use std::cell::Cell;

thread_local! {
    // It needs neither memory nor a destructor, so that it can be used in a
    // signal handler and while a thread ends.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The thread is inside until this is dropped.
pub(crate) struct Inside(());

impl Inside {
    /// `None` if the thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        let was = IS_INSIDE.replace(true);
        // Made only then, because its end is the end of being inside.
        (!was).then(|| Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}
