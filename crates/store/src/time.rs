//! The time.

use butterfs_format::item::inode::Timespec;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time, for items.
#[must_use]
pub fn now() -> Timespec {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timespec {
        seconds: since.as_secs().try_into().unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}
