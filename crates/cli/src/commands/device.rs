//! `butterfs device`: facts about the devices of a volume.

use crate::facts;
use crate::fail::Done;
use crate::place::json;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Shows facts about the devices of a volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs device stats disk.img
  butterfs device stats -z /mnt")]
pub struct Device {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the error counters, which are kept across mounts.
    Stats {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Set the counters to zero after showing them.
        #[arg(short = 'z', long)]
        reset: bool,
        /// Answer with exit code 64 when a counter is not zero.
        #[arg(short, long)]
        check: bool,
        /// File or block device that holds the volume, or its mountpoint.
        volume: PathBuf,
    },
}

/// Exit code of `stats --check` where something was counted, as `btrfs device
/// stats` has it.
const COUNTED: i32 = 64;

impl Device {
    /// Runs it.
    pub fn run(self) -> Done {
        let What::Stats {
            json: as_json,
            reset,
            check,
            volume,
        } = self.what;
        let stats = facts::at(&volume)?.device_stats;
        if as_json {
            json(&stats)?;
        } else {
            for (name, value) in stats.named() {
                say!("[{}].{name:<16} {value}", volume.display());
            }
        }
        if reset {
            facts::reset_stats(&volume)?;
        }
        if check && stats.named().iter().any(|(_, value)| *value > 0) {
            std::process::exit(COUNTED);
        }
        Ok(())
    }
}
