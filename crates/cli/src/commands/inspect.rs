//! `butterfs inspect`: what is on the device, as text or JSON, and from numbers
//! to paths.
//!
//! Owns the arguments of the two dumps. Their text is close enough to that of
//! `btrfs inspect-internal` to compare by eye.

mod extents;
mod items;
pub mod list_chunks;
mod map_swapfile;
pub mod min_dev_size;
mod names;
pub mod resolve;
mod superblock;
mod tree;
pub mod tree_stats;

use crate::fail::Done;
use crate::service::OnVolume;
use clap::{Args, Subcommand};
use resolve::Order;
use std::path::PathBuf;

/// Shows what is on the device of a volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs inspect dump-super -f disk.img
  butterfs inspect dump-tree -t fs disk.img
  butterfs inspect logical-resolve 13631488 /mnt")]
pub struct Inspect {
    #[command(subcommand)]
    what: What,
}

/// Which superblock copies to show.
#[derive(Args, Debug)]
pub struct DumpSuper {
    /// All copies, not the first alone.
    #[arg(short, long)]
    all: bool,
    /// This copy alone: 0, 1 or 2.
    #[arg(short, short_alias = 'i', long = "super", value_name = "N", conflicts_with = "all",
          value_parser = clap::value_parser!(u8).range(0..=2))]
    superblock: Option<u8>,
    /// Accepted: what is damaged is shown anyway.
    #[arg(short = 'F', long)]
    force: bool,
    /// The system chunks and backup roots too.
    #[arg(short, long)]
    full: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// File or block device.
    volume: PathBuf,
}

/// Which trees to show.
#[derive(Args, Debug)]
pub struct DumpTree {
    /// Number or name (root, extent, chunk, device, fs, csum, quota, uuid,
    /// free-space, block-group, data-reloc); all of them without it.
    #[arg(short, long)]
    tree: Option<String>,
    /// The extent tree and the device tree alone.
    #[arg(short, long, conflicts_with_all = ["tree", "device", "uuid"])]
    extents: bool,
    /// The tree of roots, the chunk tree and the device tree alone.
    #[arg(short, long, conflicts_with_all = ["tree", "uuid"])]
    device: bool,
    /// The UUID tree alone.
    #[arg(short, long, conflicts_with = "tree")]
    uuid: bool,
    /// Where the root of each tree is, and no more.
    #[arg(short, long, conflicts_with = "json")]
    roots: bool,
    /// The same, and the backups of the roots in the superblock.
    #[arg(short = 'R', long, conflicts_with = "json")]
    backups: bool,
    /// The node at this logical address alone; may be repeated.
    #[arg(short, long, value_name = "ADDRESS", conflicts_with = "json")]
    block: Vec<u64>,
    /// With -b: all nodes below it, too.
    #[arg(long, requires = "block")]
    follow: bool,
    /// Nodes level by level, from the root on: the default.
    #[arg(long, conflicts_with = "dfs")]
    bfs: bool,
    /// Each node before what lies below it.
    #[arg(long)]
    dfs: bool,
    /// Print HIDDEN for names, and for the values of extended attributes.
    #[arg(long, conflicts_with = "json")]
    hide_names: bool,
    /// The checksum of each node.
    #[arg(long)]
    csum_headers: bool,
    /// The checksums of data.
    #[arg(long)]
    csum_items: bool,
    /// Read the devices that are named, and look for no others.
    #[arg(long)]
    noscan: bool,
    /// Print JSON: keys and bytes of all items.
    #[arg(long)]
    json: bool,
    /// File or block device; of a volume of several devices one is enough.
    #[arg(required = true, value_name = "VOLUME")]
    volume: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show superblocks.
    DumpSuper(DumpSuper),
    /// Show trees.
    DumpTree(DumpTree),
    #[command(disable_help_flag = true)]
    ListChunks(list_chunks::ListChunks),
    #[command(name = "map-swapfile")]
    MapSwapFile(map_swapfile::MapSwapFile),
    MinDevSize(min_dev_size::MinDevSize),
    Rootid(resolve::Rootid),
    InodeResolve(resolve::InodeResolve),
    LogicalResolve(resolve::LogicalResolve),
    SubvolidResolve(resolve::SubvolidResolve),
    #[command(
        disable_help_flag = true,
        mut_arg("tbytes", |units| units.short(None)),
    )]
    TreeStats(tree_stats::TreeStats),
}

impl Inspect {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::DumpSuper(dump) => dump.run(),
            What::DumpTree(dump) => dump.run(),
            What::ListChunks(list) => list.run(),
            What::MapSwapFile(map) => map.run(),
            What::MinDevSize(size) => size.run(),
            What::Rootid(rootid) => rootid.run(),
            What::InodeResolve(resolve) => Order::from(resolve).run(),
            What::LogicalResolve(resolve) => Order::from(resolve).run(),
            What::SubvolidResolve(resolve) => Order::from(resolve).run(),
            What::TreeStats(stats) => stats.run(),
        }
    }
}
