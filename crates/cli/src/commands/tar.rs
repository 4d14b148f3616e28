//! `butterfs tar`: archives out of and into volumes, mounted or not.
//!
//! Kept in both directions: type, mode, owner, time of the last change to the
//! nanosecond, extended attributes and ACLs, hard links, device numbers.

pub mod archive;
mod create;
mod extract;
mod fill;
mod sent;

use crate::changes::Start;
use crate::fail::Done;
use crate::place::Place;
use clap::{Args, Subcommand};
use std::path::PathBuf;

pub use sent::Order;

/// Reads and writes tar archives of files of a volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs tar create -f etc.tar disk.img:/etc
  butterfs tar create disk.img:/ | zstd > all.tar.zst
  butterfs tar extract -f rootfs.tar.gz disk.img:/
  butterfs tar extract -f rootfs.tar.gz /mnt/root     on a mount, by its server")]
pub struct Tar {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write an archive of what is at the paths.
    #[command(visible_alias = "c")]
    Create(Create),
    /// Put what an archive has into a directory.
    #[command(visible_alias = "x")]
    Extract(Extract),
}

#[derive(Args, Debug)]
struct Create {
    /// The archive; standard output without it.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    start: Start,
    /// VOLUME:/path, one or more; each is stored by its last name, a root as
    /// what it holds.
    #[arg(required = true)]
    places: Vec<Place>,
}

#[derive(Args, Debug)]
struct Extract {
    /// The archive, plain or compressed with gzip or zstd; standard input
    /// without it.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Files belong to whoever extracts them.
    #[arg(long)]
    no_owner: bool,
    #[command(flatten)]
    start: Start,
    /// VOLUME:/path of the directory, or a directory on a mount; the root without
    /// a path.
    place: Place,
}

impl Tar {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Create(create) => create.run(),
            What::Extract(extract) => extract.run(),
        }
    }
}
