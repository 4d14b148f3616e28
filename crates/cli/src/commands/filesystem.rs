//! `butterfs filesystem`: facts about a volume that is not mounted.

use crate::fail::{Context, Done, Failure, fail};
use crate::place::json;
use crate::sizes::human;
use butterfs::{OpenOptions, Usage, Volume};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Shows and changes facts about a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs filesystem df disk.img
  butterfs filesystem usage --json disk.img
  butterfs filesystem label disk.img photos")]
pub struct Filesystem {
    #[command(subcommand)]
    what: What,
}

#[derive(Args, Debug)]
struct Target {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print bytes instead of KiB, MiB and so on.
    #[arg(short = 'b', long)]
    raw: bool,
    /// File or block device.
    volume: PathBuf,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Space by kind and profile.
    Df(Target),
    /// Space of the device and of each kind.
    Usage(Target),
    /// Label, UUID, device and space used.
    Show(Target),
    /// Print the label, or set it.
    Label {
        /// File or block device.
        volume: PathBuf,
        /// The new label; an empty one removes it.
        label: Option<String>,
    },
}

#[derive(Serialize)]
struct KindFact {
    kind: String,
    profile: &'static str,
    total: u64,
    used: u64,
}

#[derive(Serialize)]
struct UsageFact {
    device_size: u64,
    device_allocated: u64,
    device_unallocated: u64,
    used: u64,
    free_estimated: u64,
    kinds: Vec<KindFact>,
}

#[derive(Serialize)]
struct ShowFact {
    label: String,
    uuid: String,
    devices: u64,
    used: u64,
    device_id: u64,
    device_size: u64,
    device_used: u64,
    path: String,
}

fn open(path: &Path) -> Result<Volume, Failure> {
    Volume::open(path, OpenOptions::read_only()).context(path.display())
}

fn kind_name(flags: butterfs_format::item::chunk::BlockGroupFlags) -> String {
    // Kinds are the low bits, "Data+Metadata" where both are in one group.
    let names = [(1, "Data"), (2, "System"), (4, "Metadata")];
    let set = names.iter().filter(|(bit, _)| flags.0 & bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

impl Target {
    fn size(&self, bytes: u64) -> String {
        if self.raw {
            bytes.to_string()
        } else {
            human(bytes)
        }
    }
}

fn kinds(usage: &Usage) -> Vec<KindFact> {
    let fact = |kind: &butterfs::KindUsage| KindFact {
        kind: kind_name(kind.flags),
        profile: kind.flags.profile_name(),
        total: kind.total,
        used: kind.used,
    };
    usage.kinds.iter().map(fact).collect()
}

impl Filesystem {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Df(target) => df(&target),
            What::Usage(target) => usage(&target),
            What::Show(target) => show(&target),
            What::Label { volume, label } => match label {
                None => {
                    let volume = open(&volume)?;
                    let label = volume.store().read().superblock().label.clone();
                    say!("{}", String::from_utf8_lossy(&label));
                    Ok(())
                }
                Some(_) => fail("setting a label is not supported yet; give it to mkfs with -L"),
            },
        }
    }
}

fn df(target: &Target) -> Done {
    let kinds = kinds(&open(&target.volume)?.usage());
    if target.json {
        return json(&kinds);
    }
    for kind in kinds {
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
    let usage = open(&target.volume)?.usage();
    let fact = UsageFact {
        device_size: usage.device_size,
        device_allocated: usage.device_allocated,
        device_unallocated: usage.unallocated(),
        used: usage.device_used(),
        free_estimated: usage.data_free,
        kinds: kinds(&usage),
    };
    if target.json {
        return json(&fact);
    }
    let line = |name: &str, bytes| say!("    {name:<24}{:>16}", target.size(bytes));
    say!("Overall:");
    line("Device size:", fact.device_size);
    line("Device allocated:", fact.device_allocated);
    line("Device unallocated:", fact.device_unallocated);
    line("Used:", fact.used);
    line("Free (estimated):", fact.free_estimated);
    for (kind, of) in fact.kinds.iter().zip(&usage.kinds) {
        say!(
            "\n{},{}: Size:{}, Used:{}",
            kind.kind,
            kind.profile,
            target.size(kind.total),
            target.size(kind.used)
        );
        say!("   {}\t{}", target.volume.display(), target.size(of.device));
    }
    say!(
        "\nUnallocated:\n   {}\t{}",
        target.volume.display(),
        target.size(fact.device_unallocated)
    );
    Ok(())
}

fn show(target: &Target) -> Done {
    let volume = open(&target.volume)?;
    let engine = volume.store().read();
    let superblock = engine.superblock();
    let fact = ShowFact {
        label: String::from_utf8_lossy(&superblock.label).into_owned(),
        uuid: Uuid::from_bytes(superblock.fsid).to_string(),
        devices: superblock.num_devices,
        used: superblock.bytes_used,
        device_id: superblock.device.id.get(),
        device_size: superblock.device.total_bytes,
        device_used: superblock.device.bytes_used,
        path: target.volume.display().to_string(),
    };
    if target.json {
        return json(&fact);
    }
    let label = if fact.label.is_empty() {
        "none".to_owned()
    } else {
        format!("'{}'", fact.label)
    };
    say!("Label: {label}  uuid: {}", fact.uuid);
    say!(
        "\tTotal devices {} FS bytes used {}",
        fact.devices,
        target.size(fact.used)
    );
    say!(
        "\tdevid {:>4} size {} used {} path {}",
        fact.device_id,
        target.size(fact.device_size),
        target.size(fact.device_used),
        fact.path
    );
    Ok(())
}
