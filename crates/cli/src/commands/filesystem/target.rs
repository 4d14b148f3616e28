//! The volume that a command shows, and how.

use crate::units::Units;
use clap::Args;
use std::path::PathBuf;

/// A volume, and how sizes are printed.
#[derive(Args, Debug)]
pub struct Target {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub units: Units,
    /// File or block device that holds the volume, or its mountpoint.
    pub volume: PathBuf,
}

impl Target {
    /// A size in the units that are asked for.
    pub fn size(&self, bytes: u64) -> String {
        self.units.size(bytes)
    }
}
