//! `butterfs filesystem`: facts about a volume, mounted or not.

mod commit_stats;
mod df;
mod mkswapfile;
mod show;
mod target;
mod trim;
mod usage;

pub use show::Shown;
use usage::Usage;

use super::explain::Explain;
use super::space;
use super::subvolume::site::said;
use crate::facts;
use crate::fail::{Context, Done, Failure};
use crate::service::OnVolume;
use clap::{Args, Subcommand};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Shows and changes facts about a volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs filesystem df disk.img
  butterfs filesystem usage --json disk.img
  butterfs filesystem usage /mnt                 with the mount options in effect
  butterfs filesystem usage --explain disk.img   why a write fails, and what helps
  butterfs filesystem label disk.img photos
  butterfs filesystem resize -10g disk.img
  butterfs filesystem defragment -r -c zstd disk.img:/logs")]
pub struct Filesystem {
    #[command(subcommand)]
    what: What,
}

/// Make everything durable that was written to a mounted volume.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs filesystem sync /mnt")]
struct Sync {
    /// A path on a mount of ButterFS or of the kernel's Btrfs.
    path: PathBuf,
}

impl Sync {
    fn run(&self) -> Done {
        let file = crate::host_file::open(&self.path).context(self.path.display())?;
        let synced = butterfs_kernel::sync(file.as_fd());
        synced.map_err(|error| {
            // A server of ButterFS knows the reason, not only the number of an
            // error.
            let facts = facts::at(&self.path).ok();
            match facts.and_then(|facts| facts.read_only_because) {
                Some(reason) => Failure(format!("{}: {reason}", self.path.display())),
                None => said(&self.path.display(), error),
            }
        })
    }
}

#[derive(Debug, Subcommand)]
enum What {
    /// Space by kind and profile.
    #[command(disable_help_flag = true)]
    Df(df::Df),
    /// Space of the device and of each kind.
    #[command(disable_help_flag = true)]
    Usage(Usage),
    #[command(
        disable_help_flag = true,
        mut_arg("mbytes", |units| units.short(None)),
    )]
    Show(show::Show),
    /// Print the label, or set it.
    Label {
        /// File or block device that holds the volume, or its mountpoint.
        volume: PathBuf,
        /// The new label; an empty one removes it.
        label: Option<String>,
    },
    #[command(disable_help_flag = true)]
    Du(space::Du),
    Sync(Sync),
    #[command(name = "mkswapfile")]
    MkSwapFile(mkswapfile::MkSwapFile),
    CommitStats(commit_stats::CommitStats),
    Resize(super::resize::Resize),
    Trim(trim::Trim),
    #[command(visible_alias = "defrag")]
    Defragment(super::defragment::Defragment),
}

impl Filesystem {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Df(df) => df.run(),
            What::Usage(of) if of.explain => {
                OnVolume::run(Explain::new(of.target.volume, of.target.json))
            }
            What::Usage(of) => usage::print(&of),
            What::Show(show) => show.run(),
            What::Du(du) => space::Order::from(du).run(),
            What::Sync(sync) => sync.run(),
            What::MkSwapFile(make) => make.run(),
            What::CommitStats(stats) => stats.run(),
            What::Resize(resize) => resize.run(),
            What::Trim(trim) => trim.run(),
            What::Defragment(defragment) => defragment.run(),
            What::Label { volume, label } => match label {
                None => {
                    say!("{}", facts::at(&volume)?.label);
                    Ok(())
                }
                Some(label) => facts::set_label(&volume, label.as_bytes()),
            },
        }
    }
}
