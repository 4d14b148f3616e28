//! Faults that a test asks for: the engine's n-th call on this thread fails, or
//! panics. Only with the feature `inject`, which tests alone switch on.

#[cfg(feature = "inject")]
mod armed {
    use crate::error::StoreError;
    use butterfs_tree::TreeError;
    use std::cell::Cell;

    /// What happens at the call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Injected {
        /// It answers with an error.
        Error,
        /// It panics.
        Panic,
    }

    thread_local! {
        static NEXT: Cell<Option<(u64, Injected)>> = const { Cell::new(None) };
    }

    /// Makes the engine's call after the next `calls` calls on this thread go
    /// wrong.
    pub fn arm(calls: u64, what: Injected) {
        NEXT.set(Some((calls, what)));
    }

    /// Ends [`arm`]; true when the call came.
    #[must_use]
    pub fn disarm() -> bool {
        NEXT.take().is_none()
    }

    pub(crate) fn point() -> Result<(), TreeError> {
        match NEXT.take() {
            None => Ok(()),
            Some((0, Injected::Error)) => Err(TreeError::store(StoreError::Internal(
                "a test asked for it",
            ))),
            Some((0, Injected::Panic)) => panic!("a test asked for it"),
            Some((calls, what)) => {
                NEXT.set(Some((calls - 1, what)));
                Ok(())
            }
        }
    }
}

#[cfg(feature = "inject")]
pub(crate) use armed::point;
#[cfg(feature = "inject")]
pub use armed::{Injected, arm, disarm};

/// A call of the engine that may go wrong.
#[cfg(not(feature = "inject"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(crate) const fn point() -> Result<(), butterfs_tree::TreeError> {
    Ok(())
}
