//! `butterfs filesystem commit-stats`: the commits of a volume that the kernel has
//! mounted, as it counts them.

use crate::facts;
use crate::fail::{Context, Done, fail};
use crate::place::json;
use butterfs_kernel::is_kernel_btrfs;
use clap::Args;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Show how many commits there were since the mount, and how long they took.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs filesystem commit-stats /mnt")]
pub struct CommitStats {
    /// Set the longest time to zero after showing it; for root.
    #[arg(short = 'z', long)]
    reset: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// A path on a mount of the kernel's Btrfs.
    path: PathBuf,
}

/// The kernel's names, with those of btrfs-filesystem(8).
const NAMES: [(&str, &str); 4] = [
    ("commits", "Total commits"),
    ("last_commit_ms", "Last commit duration"),
    ("max_commit_ms", "Max commit duration"),
    ("total_commit_ms", "Total time spent in commit"),
];

impl CommitStats {
    /// Runs it.
    pub fn run(&self) -> Done {
        let path = self.path.display();
        if !is_kernel_btrfs(&self.path) {
            return fail(format!(
                "{path}: is on no mount of the kernel's Btrfs, which alone counts its commits"
            ));
        }
        let uuid = facts::at(&self.path)?.uuid;
        let file = format!("/sys/fs/btrfs/{uuid}/commit_stats");
        let text = std::fs::read_to_string(&file).context(&file)?;
        let counted: Vec<(&str, u64)> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
            .collect();
        if self.json {
            json(&counted.into_iter().collect::<BTreeMap<_, _>>())?;
        } else {
            say!("UUID: {uuid}");
            say!("Commit stats since mount:");
            for (name, value) in counted {
                let unit = if name.ends_with("_ms") { "ms" } else { "" };
                match NAMES.iter().find(|(kernels, _)| *kernels == name) {
                    Some((_, name)) => {
                        say!("  {:<28}{:>8}{unit}", format!("{name}:"), value);
                    }
                    None => say!("  {name:<28}{value:>8}"),
                }
            }
        }
        match self.reset {
            true => std::fs::write(&file, "0").context(&file),
            false => Ok(()),
        }
    }
}
