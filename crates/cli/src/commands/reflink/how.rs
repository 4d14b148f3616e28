//! How a copy that shares its data is made.

use crate::commands::dedupe::Span;
use clap::Args;

/// What of a copy can be asked for.
#[derive(Args, Debug)]
pub(super) struct How {
    /// Directories with all that is below them; subvolumes become directories.
    #[arg(short, long)]
    pub(super) recursive: bool,
    /// Replace a file that has the name already.
    #[arg(short, long)]
    pub(super) force: bool,
    /// Share only a range, into an existing file: its offset in the
    /// source, its length (0: up to the end) and its offset in the destination.
    #[arg(
        long,
        value_name = "SOURCE_OFFSET:LENGTH:DEST_OFFSET",
        value_parser = Span::parse,
        conflicts_with_all = ["recursive", "force"]
    )]
    pub(super) range: Vec<Span>,
}

/// The name of a copy until it is complete.
pub(super) fn working_name(name: &[u8]) -> Vec<u8> {
    let end = format!(".reflink-{}", std::process::id());
    // A name has at most 255 bytes.
    let kept = name.len().min(255 - 1 - end.len());
    [b".", &name[..kept], end.as_bytes()].concat()
}
