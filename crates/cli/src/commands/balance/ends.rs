//! How commands about balances end.

use crate::fail::{Done, fail};
use crate::host;
use std::path::Path;

/// Exit code of `status` where a balance waits or runs, as btrfs-balance(8) has
/// it.
pub const WAITS: i32 = 1;
/// Exit code of `cancel`, `pause` and `resume` where there is none.
const NONE: i32 = 2;
/// What a paused one says.
pub const PAUSED: &str = "paused; `butterfs balance resume` goes on with it";

/// Ends with an exit code where there is none; a server only says so.
pub fn none(volume: &Path, text: &str) -> Done {
    if host::is_serving() {
        return fail(text);
    }
    note!("{}: {text}", volume.display());
    std::process::exit(NONE);
}
