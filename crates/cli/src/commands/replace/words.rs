//! What is asked of a replacement, and how its end is told.

use crate::dates::date;
use crate::fail::Done;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Exit code of `cancel` where nothing runs, as btrfs-replace(8) has it.
pub const NOT_STARTED: u8 = 2;

/// What a replacement is to be.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Wanted {
    /// Number or path of the device that goes.
    pub source: String,
    /// File or block device that comes.
    #[serde(with = "crate::place::any_bytes")]
    pub target: PathBuf,
    /// The source is read only where no other copy is good.
    pub others_first: bool,
    /// A file system on the target is overwritten.
    pub force: bool,
    /// The target is not discarded first.
    pub nodiscard: bool,
}

/// Says how the last one ended: its state as in the item on disk, how far it
/// came in thousandths, when it began and ended, and the errors of writes and
/// of reads.
pub fn ended_as(
    state: u64,
    thousandths: u64,
    (begun, ended): (u64, u64),
    (of_writes, of_reads): (u64, u64),
) -> Done {
    let errors = format!("{of_writes} write errs, {of_reads} uncorr. read errs");
    let moment = |seconds: u64| date(i64::try_from(seconds).unwrap_or(i64::MAX));
    let (begun, ended) = (moment(begun), moment(ended));
    let far = format!("{}.{}%", thousandths / 10, thousandths % 10);
    match state {
        0 => say!("Never started"),
        2 => say!("Started on {begun}, finished on {ended}, {errors}"),
        3 => say!("Started on {begun}, canceled on {ended} at {far}, {errors}"),
        4 => say!("Started on {begun}, suspended on {ended} at {far}, {errors}"),
        _ => say!("Started on {begun}, interrupted, {errors}"),
    }
    Ok(())
}
