//! `butterfs quota`: counting what subvolumes use, on and off.

use super::subvolume::site::{Site, open_volume};
use crate::fail::{Context, Done, Failure, fail};
use crate::place::{Place, json};
use butterfs::du::{Limits, Progress};
use butterfs::quota::QgroupStatusFlags;
use butterfs::{FsError, Volume};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::ffi::OsString;
use std::ops::ControlFlow;

/// Switches quotas on and off, and counts anew.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs quota enable disk.img
  butterfs quota status disk.img
  butterfs quota rescan --progress disk.img")]
pub struct Quota {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Count what each subvolume uses from now on.
    Enable(Scanned),
    /// Stop counting; all groups and limits are gone.
    Disable(OfVolume),
    /// Count everything anew.
    Rescan(Scanned),
    /// Say whether quotas are on and whether their numbers are right.
    Status(Status),
}

/// A volume.
#[derive(Args, Debug)]
struct OfVolume {
    /// The file or device that holds the volume, which is not mounted.
    volume: OsString,
}

/// A volume that is counted.
#[derive(Args, Debug)]
struct Scanned {
    /// Show how far it is.
    #[arg(long)]
    progress: bool,
    /// The file or device that holds the volume, which is not mounted.
    volume: OsString,
}

#[derive(Args, Debug)]
struct Status {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The file or device that holds the volume, which is not mounted.
    volume: OsString,
}

#[derive(Serialize)]
struct StatusFacts {
    enabled: bool,
    inconsistent: bool,
    mode: Option<&'static str>,
    groups: usize,
}

/// The place of a volume that is not mounted.
pub fn unmounted(word: &OsString) -> Result<Place, Failure> {
    match Site::parse_volume(word) {
        Site::Unmounted(place) => Ok(place),
        Site::Mounted(path) => fail(format!(
            "{}: is a directory; this works on a volume that is not mounted: name the file or device that holds it",
            path.display()
        )),
    }
}

/// Opens a volume to change its quotas.
pub fn open(word: &OsString) -> Result<Volume, Failure> {
    open_volume(&unmounted(word)?.volume)
}

/// Counts a volume's groups, with a bar where `bar` shows one.
pub fn rescan(volume: &Volume, bar: &ProgressBar) -> Result<(), FsError> {
    let result = volume
        .files()
        .rescan_quotas(&Limits::default(), &mut |progress| show(bar, progress));
    bar.finish_and_clear();
    result
}

fn show(bar: &ProgressBar, progress: &Progress) -> ControlFlow<()> {
    bar.set_length(progress.nodes_max.max(progress.nodes));
    bar.set_position(progress.nodes);
    ControlFlow::Continue(())
}

impl Scanned {
    fn bar(&self) -> ProgressBar {
        let target = if self.progress {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} nodes, {eta} left") {
            bar.set_style(style);
        }
        bar
    }

    fn enable(&self) -> Done {
        let volume = open(&self.volume)?;
        let bar = self.bar();
        let limits = Limits::default();
        let enabled = volume
            .files()
            .enable_quotas(&limits, &mut |progress| show(&bar, progress));
        bar.finish_and_clear();
        enabled.context(self.volume.display())?;
        Ok(volume.close()?)
    }

    fn rescan(&self) -> Done {
        let volume = open(&self.volume)?;
        rescan(&volume, &self.bar()).context(self.volume.display())?;
        Ok(volume.close()?)
    }
}

impl Status {
    fn run(&self) -> Done {
        let volume = unmounted(&self.volume)?.open_read_only(None)?;
        let engine = volume.store().read();
        let facts = match engine.quotas() {
            None => StatusFacts {
                enabled: false,
                inconsistent: false,
                mode: None,
                groups: 0,
            },
            Some(quotas) => StatusFacts {
                enabled: true,
                inconsistent: quotas.is_inconsistent(),
                mode: Some(
                    if quotas
                        .status()
                        .flags
                        .contains(QgroupStatusFlags::SIMPLE_MODE)
                    {
                        "squota"
                    } else {
                        "qgroup"
                    },
                ),
                groups: quotas.groups().count(),
            },
        };
        if self.json {
            return json(&facts);
        }
        let yes_no = |value| if value { "yes" } else { "no" };
        say!("Enabled:       {}", yes_no(facts.enabled));
        if let Some(mode) = facts.mode {
            say!("Mode:          {mode}");
            say!("Inconsistent:  {}", yes_no(facts.inconsistent));
            say!("Groups:        {}", facts.groups);
        }
        Ok(())
    }
}

impl Quota {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Enable(enable) => enable.enable(),
            What::Disable(disable) => {
                let volume = open(&disable.volume)?;
                volume
                    .files()
                    .disable_quotas()
                    .context(disable.volume.display())?;
                Ok(volume.close()?)
            }
            What::Rescan(rescan) => rescan.rescan(),
            What::Status(status) => status.run(),
        }
    }
}
