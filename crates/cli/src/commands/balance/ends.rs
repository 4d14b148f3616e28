//! How commands about balances end.

use crate::fail::Done;
use crate::output;
use std::path::Path;

/// Exit code of `status` where a balance waits or runs, as btrfs-balance(8) has
/// it.
pub const WAITS: u8 = 1;
/// Exit code of `cancel`, `pause` and `resume` where there is none.
const NONE: u8 = 2;
/// What a paused one says.
pub const PAUSED: &str = "paused; `butterfs balance resume` goes on with it";

/// Ends with an exit code where there is none.
pub fn none(volume: &Path, text: &str) -> Done {
    note!("{}: {text}", volume.display());
    output::end_with(NONE)
}
