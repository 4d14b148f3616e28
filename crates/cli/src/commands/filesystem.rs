//! `butterfs filesystem`: facts about a volume, mounted or not.

use super::explain::Explain;
use super::space;
use super::subvolume::site::said;
use crate::facts;
use crate::fail::{Context, Done};
use crate::place::json;
use crate::service::OnVolume;
use crate::units::Units;
use clap::{Args, Subcommand};
use std::fs::File;
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

#[derive(Args, Debug)]
struct Target {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// File or block device that holds the volume, or its mountpoint.
    volume: PathBuf,
}

#[derive(Args, Debug)]
struct Usage {
    /// Say in sentences where the space is, what can still be written, what
    /// stands in the way, and which command frees how much.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    target: Target,
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
        let file = File::open(&self.path).context(self.path.display())?;
        butterfs_kernel::sync(file.as_fd()).map_err(|error| said(&self.path.display(), error))
    }
}

#[derive(Debug, Subcommand)]
enum What {
    /// Space by kind and profile.
    #[command(disable_help_flag = true)]
    Df(Target),
    /// Space of the device and of each kind.
    #[command(disable_help_flag = true)]
    Usage(Usage),
    /// Label, UUID, device and space used.
    #[command(disable_help_flag = true)]
    Show(Target),
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
    Resize(super::resize::Resize),
    #[command(visible_alias = "defrag")]
    Defragment(super::defragment::Defragment),
}

impl Target {
    fn size(&self, bytes: u64) -> String {
        self.units.size(bytes)
    }
}

impl Filesystem {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Df(target) => df(&target),
            What::Usage(of) if of.explain => {
                OnVolume::run(Explain::new(of.target.volume, of.target.json))
            }
            What::Usage(of) => usage(&of.target),
            What::Show(target) => show(&target),
            What::Du(du) => space::Order::from(du).run(),
            What::Sync(sync) => sync.run(),
            What::Resize(resize) => resize.run(),
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

fn df(target: &Target) -> Done {
    let facts = facts::at(&target.volume)?;
    if target.json {
        return json(&facts.kinds);
    }
    for kind in &facts.kinds {
        say!(
            "{}, {}: total={}, used={}",
            kind.kind,
            kind.profile,
            target.size(kind.total),
            target.size(kind.used)
        );
    }
    Ok(())
}

fn usage(target: &Target) -> Done {
    let facts = facts::at(&target.volume)?;
    if target.json {
        return json(&facts);
    }
    let line = |name: &str, bytes| -> Done {
        say!("    {name:<24}{:>16}", target.size(bytes));
        Ok(())
    };
    say!("Overall:");
    line("Device size:", facts.device_size)?;
    line("Device allocated:", facts.device_allocated)?;
    line("Device unallocated:", facts.device_unallocated)?;
    line("Used:", facts.device_used)?;
    line("Free (estimated):", facts.free_estimated)?;
    if let Some(options) = &facts.options {
        say!("    {:<24}{options}", "Mount options:");
    }
    if let Some(transport) = &facts.transport {
        say!(
            "    {:<24}{}, at most {} threads with buffers of {} each",
            "Requests come by:",
            transport.name,
            transport.threads_max,
            target.size(transport.thread_buffers)
        );
        if let Some(nanos) = transport.wake_up_ns {
            say!(
                "    {:<24}{} microseconds; keeping CPUs awake took {}.{:03} s of CPU time",
                "Waking a CPU takes:",
                nanos / 1_000,
                transport.awake_ms / 1_000,
                transport.awake_ms % 1_000
            );
        }
    }
    if let Some(reason) = &facts.read_only_because {
        say!("    {:<24}{reason}", "Read-only because:");
    }
    let mut kinds: Vec<_> = facts.kinds.iter().collect();
    // Data, Metadata, System.
    kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
    for kind in kinds {
        let total = u128::from(kind.total.max(1));
        let hundredths = (u128::from(kind.used) * 10_000 + total / 2) / total;
        say!(
            "\n{},{}: Size:{}, Used:{} ({}.{:02}%)",
            kind.kind,
            kind.profile,
            target.size(kind.total),
            target.size(kind.used),
            hundredths / 100,
            hundredths % 100
        );
        for device in &facts.members {
            let mut shares = device.chunks.iter();
            let share = shares.find(|one| one.kind == kind.kind && one.profile == kind.profile);
            if let Some(share) = share {
                say!("   {}\t{:>10}", device.name(), target.size(share.bytes));
            }
        }
    }
    say!("\nUnallocated:");
    for device in &facts.members {
        let bytes = device.size.saturating_sub(device.allocated);
        say!("   {}\t{:>10}", device.name(), target.size(bytes));
    }
    Ok(())
}

fn show(target: &Target) -> Done {
    let facts = facts::at(&target.volume)?;
    if target.json {
        return json(&facts);
    }
    let label = if facts.label.is_empty() {
        "none".to_owned()
    } else {
        format!("'{}'", facts.label)
    };
    say!("Label: {label}  uuid: {}", facts.uuid);
    say!(
        "\tTotal devices {} FS bytes used {}",
        facts.devices,
        target.size(facts.used)
    );
    for device in &facts.members {
        let path = device.path.as_deref().unwrap_or("MISSING");
        let state = match &device.state[..] {
            "stale" | "failing" => format!(" ({})", device.state),
            _ => String::new(),
        };
        say!(
            "\tdevid {:>4} size {} used {} path {path}{state}",
            device.id,
            target.size(device.size),
            target.size(device.allocated),
        );
    }
    Ok(())
}
