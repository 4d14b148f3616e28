//! `butterfs filesystem trim`: free space of a volume that is not mounted goes
//! back to what holds it.

use crate::fail::{Context, Done};
use crate::sizes::human;
use butterfs::{AtReplay, Cleaner, OpenOptions, Trim as What, Volume};
use clap::Args;
use std::path::PathBuf;

/// Give the free space of an image, or of devices, back to what holds it.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs filesystem trim disk.img

The volume must not be mounted; fstrim(8) does this for a mount. An image that filled the file system under it can be mounted again afterwards: free space in the image no longer takes space there. Nothing that the last commit or a waiting fsync log holds is touched.")]
pub struct Trim {
    /// The volume.
    volume: PathBuf,
}

impl Trim {
    /// Runs it.
    pub fn run(&self) -> Done {
        let options = OpenOptions {
            commit_when_quiet: None,
            cleaner: Cleaner::OnDemand,
            at_replay: AtReplay::TrimFirst,
            ..OpenOptions::default()
        };
        let volume = Volume::open(&self.volume, options).context(self.volume.display())?;
        let bytes = volume.trim(&What::EVERYTHING)?;
        volume.close()?;
        say!(
            "{}: {} of free space were given back",
            self.volume.display(),
            human(bytes)
        );
        Ok(())
    }
}
