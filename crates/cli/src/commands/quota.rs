//! `butterfs quota`: switches counting what subvolumes use on and off.

pub mod mounted;

use super::subvolume::site::{Site, open_volume};
use crate::facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::place::{Place, json};
use butterfs::du::{Limits, Progress};
use butterfs::quota::{GroupId, QgroupStatus, QgroupStatusFlags, QuotaMode};
use butterfs::{FsError, Volume};
use butterfs_kernel::{self as kernel, QuotaSwitch};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mounted::Mounted;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::Path;

/// Exit code of `status --is-enabled` where quotas are off.
const OFF: i32 = 1;

/// Switches quotas on and off, and counts anew.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs quota enable disk.img
  butterfs quota enable --simple mnt
  butterfs quota status disk.img
  butterfs quota rescan --progress disk.img")]
pub struct Quota {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Count what each subvolume uses from now on.
    Enable(Enable),
    /// Stop counting; all groups and limits are gone.
    Disable(OfVolume),
    /// Count everything anew.
    Rescan(Rescan),
    /// Say whether quotas are on and whether their numbers are right.
    Status(Status),
}

/// A volume.
#[derive(Args, Debug)]
struct OfVolume {
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

/// How they are switched on.
#[derive(Args, Debug)]
struct Enable {
    /// Charge new extents to the subvolume that allocates them, instead of
    /// counting what each subvolume reaches. Cheaper, and never needs a rescan;
    /// needs Linux 6.7 or newer.
    #[arg(long, short)]
    simple: bool,
    #[command(flatten)]
    scanned: Scanned,
}

/// A volume that is counted.
#[derive(Args, Debug)]
struct Scanned {
    /// Show how far it is.
    #[arg(long)]
    progress: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

/// A count, or a question about one.
#[derive(Args, Debug)]
struct Rescan {
    /// Start nothing; say whether a count is under way.
    #[arg(long, short, conflicts_with_all = ["wait", "wait_norescan"])]
    status: bool,
    /// Wait for the end of the count, which the command does anyway.
    #[arg(long, short)]
    wait: bool,
    /// Start nothing; wait for the end of a count that is under way.
    #[arg(long, short = 'W', conflicts_with = "wait")]
    wait_norescan: bool,
    #[command(flatten)]
    scanned: Scanned,
}

#[derive(Args, Debug)]
struct Status {
    /// Print nothing; succeed if quotas are on, else answer with exit code 1.
    #[arg(long, conflicts_with = "json")]
    is_enabled: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

#[derive(Serialize)]
struct StatusFacts {
    enabled: bool,
    inconsistent: bool,
    reason: Option<String>,
    mode: Option<&'static str>,
    groups: usize,
    /// Groups of each level.
    levels: BTreeMap<u16, usize>,
}

/// Where the volume is whose quotas are meant.
pub enum QuotaSite {
    /// In a file or device.
    Unmounted(Place),
    /// Below a mountpoint.
    Mounted(Mounted),
}

impl QuotaSite {
    /// What a word means.
    pub fn parse(word: &OsString) -> Result<Self, Failure> {
        match Site::parse_volume(word) {
            Site::Unmounted(place) => Ok(Self::Unmounted(place)),
            Site::Mounted(path) => Ok(Self::Mounted(Mounted::open(&path)?)),
        }
    }
}

/// Opens a volume to change its quotas.
pub fn open(place: &Place) -> Result<Volume, Failure> {
    open_volume(&place.volume)
}

/// Counts a volume's groups, with a bar if `bar` shows one.
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

    fn rescan(&self) -> Done {
        match QuotaSite::parse(&self.volume)? {
            QuotaSite::Mounted(mounted) => mounted.rescan(),
            QuotaSite::Unmounted(place) => {
                let volume = open(&place)?;
                rescan(&volume, &self.bar()).context(self.volume.display())?;
                Ok(volume.close()?)
            }
        }
    }
}

impl Rescan {
    fn run(&self) -> Done {
        if !self.status && !self.wait_norescan {
            return self.scanned.rescan();
        }
        let mounted = match QuotaSite::parse(&self.scanned.volume)? {
            QuotaSite::Mounted(mounted) => mounted,
            QuotaSite::Unmounted(_) => {
                return fail(format!(
                    "{}: is not mounted, so no count is under way; `butterfs quota status` says \
                     whether the numbers are right",
                    self.scanned.volume.display()
                ));
            }
        };
        if self.wait_norescan {
            return mounted.ask("counting", kernel::wait_for_rescan);
        }
        match mounted.ask("counting", kernel::rescan_progress)? {
            Some(key) => say!("rescan operation running (current key {key})"),
            None => say!("no rescan operation in progress"),
        }
        Ok(())
    }
}

impl Enable {
    fn run(&self) -> Done {
        let word = &self.scanned.volume;
        let place = match QuotaSite::parse(word)? {
            QuotaSite::Unmounted(place) => place,
            QuotaSite::Mounted(mounted) => {
                let switch = if self.simple {
                    QuotaSwitch::OnSimple
                } else {
                    QuotaSwitch::On
                };
                mounted.ask("enabling", |file| kernel::switch_quotas(file, switch))?;
                // The kernel counts in the background.
                return mounted.ask("counting", kernel::wait_for_rescan);
            }
        };
        let mode = if self.simple {
            QuotaMode::Simple
        } else {
            QuotaMode::Full
        };
        let volume = open(&place)?;
        let bar = self.scanned.bar();
        let enabled = volume
            .files()
            .enable_quotas(mode, &Limits::default(), &mut |progress| {
                show(&bar, progress)
            });
        bar.finish_and_clear();
        enabled.context(word.display())?;
        Ok(volume.close()?)
    }
}

impl OfVolume {
    fn disable(&self) -> Done {
        match QuotaSite::parse(&self.volume)? {
            QuotaSite::Mounted(mounted) => mounted.ask("disabling", |file| {
                kernel::switch_quotas(file, QuotaSwitch::Off)
            }),
            QuotaSite::Unmounted(place) => {
                let volume = open(&place)?;
                let disabled = volume.files().disable_quotas();
                disabled.context(self.volume.display())?;
                Ok(volume.close()?)
            }
        }
    }
}

impl StatusFacts {
    const OFF: Self = Self {
        enabled: false,
        inconsistent: false,
        reason: None,
        mode: None,
        groups: 0,
        levels: BTreeMap::new(),
    };

    fn on<'g>(
        status: &QgroupStatus,
        groups: impl Iterator<Item = &'g GroupId>,
        reason: Option<String>,
    ) -> Self {
        let mut levels = BTreeMap::new();
        for group in groups {
            *levels.entry(group.level()).or_default() += 1;
        }
        let has = |flag| status.flags.contains(flag);
        let is_simple = has(QgroupStatusFlags::SIMPLE_MODE);
        let is_counted = has(QgroupStatusFlags::RESCAN);
        let inconsistent = has(QgroupStatusFlags::INCONSISTENT) || is_counted;
        let reason = reason.or_else(|| is_counted.then(|| "they are being counted".to_owned()));
        Self {
            enabled: true,
            inconsistent: inconsistent && !is_simple,
            reason: reason.filter(|_| inconsistent && !is_simple),
            mode: Some(if is_simple { "squota" } else { "qgroup" }),
            groups: levels.values().sum(),
            levels,
        }
    }

    fn load(word: &OsString) -> Result<Self, Failure> {
        match QuotaSite::parse(word)? {
            QuotaSite::Mounted(mounted) => Ok(mounted.quotas()?.map_or(Self::OFF, |items| {
                let status = items.status.as_ref();
                status.map_or(Self::OFF, |status| {
                    Self::on(status, items.groups.keys(), None)
                })
            })),
            QuotaSite::Unmounted(place) => {
                let volume = place.open_read_only(None)?;
                Ok(volume.quota_state().map_or(Self::OFF, |quotas| {
                    Self::on(&quotas.status, quotas.groups.keys(), quotas.reason)
                }))
            }
        }
    }
}

impl Status {
    fn run(&self) -> Done {
        let status = StatusFacts::load(&self.volume)?;
        if self.json {
            return json(&status);
        }
        if self.is_enabled {
            if !status.enabled {
                std::process::exit(OFF);
            }
            return Ok(());
        }
        self.print(&status)
    }

    /// Prints the status as btrfs-quota(8) does, with the reason why numbers
    /// are wrong.
    fn print(&self, status: &StatusFacts) -> Done {
        let yes_no = |value| if value { "yes" } else { "no" };
        say!("Quotas on {}:", self.volume.display());
        let Some(mode) = status.mode else {
            say!("  Enabled: no");
            return Ok(());
        };
        let mut rows = vec![
            ("Enabled:".to_owned(), "yes".to_owned()),
            (
                "Mode:".to_owned(),
                match mode {
                    "squota" => "squota (simplified accounting)".to_owned(),
                    mode => format!("{mode} (full accounting)"),
                },
            ),
            (
                "Inconsistent:".to_owned(),
                match &status.reason {
                    Some(reason) => format!("yes: {reason}; `butterfs quota rescan` counts anew"),
                    None => yes_no(status.inconsistent).to_owned(),
                },
            ),
        ];
        // Two switches that only the kernel has.
        let path = Path::new(&self.volume);
        if path.is_dir() && kernel::is_kernel_btrfs(path) {
            let uuid = facts::at(path)?.uuid;
            let read = |name: &str| {
                let text = std::fs::read_to_string(format!("/sys/fs/btrfs/{uuid}/{name}"));
                text.ok().map(|text| text.trim().to_owned())
            };
            if let Some(value) = read("quota_override") {
                rows.push((
                    "Override limits:".to_owned(),
                    yes_no(value != "0").to_owned(),
                ));
            }
            if let Some(levels) = read("qgroups/drop_subtree_threshold") {
                rows.push(("Drop subtree threshold:".to_owned(), levels));
            }
        }
        rows.push(("Total count:".to_owned(), status.groups.to_string()));
        for (level, count) in &status.levels {
            rows.push((format!("Level {level}:"), count.to_string()));
        }
        for (name, value) in rows {
            say!("  {name:<25}{value}");
        }
        Ok(())
    }
}

impl Quota {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Enable(enable) => enable.run(),
            What::Disable(disable) => disable.disable(),
            What::Rescan(rescan) => rescan.run(),
            What::Status(status) => status.run(),
        }
    }
}
