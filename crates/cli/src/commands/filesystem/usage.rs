//! `butterfs filesystem usage`: as btrfs-filesystem(8) prints it.

use super::target::Target;
use crate::facts;
use crate::fail::Done;
use crate::place::json;
use butterfs_server::{DeviceEntry, Facts, KindFacts};
use clap::Args;

/// What `usage` shows.
#[derive(Args, Debug)]
pub struct Usage {
    /// Say in sentences where the space is, what can still be written, what
    /// stands in the way, and which command frees how much.
    #[arg(long)]
    pub explain: bool,
    /// Print a table: devices below one another, kinds beside one another.
    #[arg(short = 'T', conflicts_with_all = ["explain", "json"])]
    table: bool,
    #[command(flatten)]
    pub target: Target,
}

/// With less than this, there is no room for more chunks.
const UNALLOCATED_MIN: u64 = 16 << 20;
/// The names of the kinds in the line about several profiles.
const KINDS: [(&str, &str); 3] = [
    ("Data", "data"),
    ("Metadata", "metadata"),
    ("System", "system"),
];

/// What the whole volume has, of its devices and for its files.
#[derive(Debug, PartialEq)]
struct Overall {
    /// Bytes on devices for a byte of data.
    data_ratio: f64,
    /// Bytes on devices for a byte of metadata; `None` where data and metadata
    /// are together.
    metadata_ratio: Option<f64>,
    /// Bytes that data can still take if new chunks are like the existing ones.
    free: u64,
    /// The same, if new chunks have as many copies as the kind with the most.
    free_min: u64,
    /// Kinds with several profiles.
    several: Vec<&'static str>,
}

fn has(kind: &KindFacts, name: &str) -> bool {
    kind.kind.split('+').any(|word| word == name)
}

impl Overall {
    fn of(facts: &Facts) -> Self {
        let kinds = |name| facts.kinds.iter().filter(move |kind| has(kind, name));
        let ratio = |name| {
            let total: u64 = kinds(name).map(|kind| kind.total).sum();
            let device: u64 = kinds(name).map(|kind| kind.device).sum();
            match total {
                0 => 1.0,
                total => device as f64 / total as f64,
            }
        };
        let data_ratio = ratio("Data");
        let most = facts.kinds.iter().filter(|kind| kind.total > 0);
        let most = most.map(|kind| kind.device as f64 / kind.total as f64);
        let most = most.fold(1.0, f64::max);
        let is_mixed = kinds("Data").any(|kind| has(kind, "Metadata"));
        // As the Btrfs tools compute it: what is free on devices, in all
        // profiles together, divided by the mean ratio.
        let on_devices = |kind: &KindFacts| {
            let unused = kind.total.saturating_sub(kind.used) as f64;
            unused * kind.device as f64 / kind.total.max(1) as f64
        };
        let mut free = (kinds("Data").map(on_devices).sum::<f64>() / data_ratio) as u64;
        if let Some((total, used)) = facts.reserve.filter(|_| is_mixed) {
            free = free.saturating_sub(total.saturating_sub(used));
        }
        let more = match facts.device_unallocated {
            few if few < UNALLOCATED_MIN => 0.0,
            bytes => bytes as f64,
        };
        let names = KINDS.into_iter();
        Self {
            data_ratio,
            metadata_ratio: (!is_mixed).then(|| ratio("Metadata")),
            free: free.saturating_add((more / data_ratio) as u64),
            free_min: free.saturating_add((more / most) as u64),
            several: names
                .filter(|(name, _)| kinds(name).count() > 1)
                .map(|(_, called)| called)
                .collect(),
        }
    }
}

/// Prints it.
pub fn print(of: &Usage) -> Done {
    let target = &of.target;
    let facts = facts::at(&target.volume)?;
    if target.json {
        return json(&facts);
    }
    overall(target, &facts)?;
    let mut kinds: Vec<_> = facts.kinds.iter().collect();
    // Data, Metadata, System.
    kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
    match of.table {
        true => table(target, &facts, &kinds),
        false => list(target, &facts, &kinds),
    }
}

fn overall(target: &Target, facts: &Facts) -> Done {
    let found = Overall::of(facts);
    let width = target.units.width();
    let line = |name: &str, value: &str, more: &str| -> Done {
        // Values begin behind the third tab stop, names at the fourth column.
        let tabs = match name.len() + 4 {
            ..16 => "\t\t\t",
            _ => "\t\t",
        };
        say!("    {name}{tabs}{value:>width$}{more}");
        Ok(())
    };
    let bytes = |name, bytes| line(name, &target.size(bytes), "");
    let missing = facts.members.iter().filter(|one| one.path.is_none());
    let slack: u64 = facts.members.iter().map(|one| one.slack).sum();
    say!("Overall:");
    bytes("Device size:", facts.device_size)?;
    bytes("Device allocated:", facts.device_allocated)?;
    bytes("Device unallocated:", facts.device_unallocated)?;
    bytes("Device missing:", missing.map(|one| one.size).sum())?;
    bytes("Device slack:", slack)?;
    bytes("Used:", facts.device_used)?;
    let min = format!("\t(min: {})", target.size(found.free_min));
    line("Free (estimated):", &target.size(found.free), &min)?;
    bytes("Free (statfs, df):", facts.free_estimated)?;
    line("Data ratio:", &format!("{:.2}", found.data_ratio), "")?;
    if let Some(ratio) = found.metadata_ratio {
        line("Metadata ratio:", &format!("{ratio:.2}"), "")?;
    }
    if let Some((total, used)) = facts.reserve {
        let used = format!("\t(used: {})", target.size(used));
        line("Global reserve:", &target.size(total), &used)?;
    }
    match &found.several[..] {
        [] => line("Multiple profiles:", "no", "")?,
        kinds => line(
            "Multiple profiles:",
            "yes",
            &format!("\t({})", kinds.join(", ")),
        )?,
    }
    of_mount(target, facts)
}

/// Facts that only a mount of ButterFS reports.
fn of_mount(target: &Target, facts: &Facts) -> Done {
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
    Ok(())
}

/// What chunks of a kind take of a device.
fn share(device: &DeviceEntry, kind: &KindFacts) -> Option<u64> {
    let mut shares = device.chunks.iter();
    let share = shares.find(|one| one.kind == kind.kind && one.profile == kind.profile);
    share.map(|share| share.bytes)
}

const fn unallocated(device: &DeviceEntry) -> u64 {
    device.size.saturating_sub(device.allocated)
}

fn list(target: &Target, facts: &Facts, kinds: &[&KindFacts]) -> Done {
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
            if let Some(bytes) = share(device, kind) {
                say!("   {}\t{:>10}", device.name(), target.size(bytes));
            }
        }
    }
    say!("\nUnallocated:");
    for device in &facts.members {
        let bytes = target.size(unallocated(device));
        say!("   {}\t{bytes:>10}", device.name());
    }
    Ok(())
}

fn table(target: &Target, facts: &Facts, kinds: &[&KindFacts]) -> Done {
    let size = |bytes| target.size(bytes);
    let or_dash = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    let row = |first: [&str; 2], of_kinds: &dyn Fn(&KindFacts) -> String, rest: [String; 3]| {
        let mut row: Vec<String> = first.map(str::to_owned).into();
        row.extend(kinds.iter().map(|kind| of_kinds(kind)));
        row.extend(rest);
        row
    };
    let sum = |of: fn(&DeviceEntry) -> u64| facts.members.iter().map(of).sum();
    let names = [
        row(["", ""], &|kind| kind.kind.clone(), Default::default()),
        {
            let rest = ["Unallocated", "Total", "Slack"].map(str::to_owned);
            row(["Id", "Path"], &|kind| kind.profile.clone(), rest)
        },
    ];
    let devices: Vec<Vec<String>> = facts
        .members
        .iter()
        .map(|device| {
            let rest = [
                size(unallocated(device)),
                size(device.size),
                or_dash(Some(device.slack).filter(|bytes| *bytes > 0)),
            ];
            let id = device.id.to_string();
            row(
                [&id, device.name()],
                &|kind| or_dash(share(device, kind)),
                rest,
            )
        })
        .collect();
    let sums = [
        row(
            ["", "Total"],
            &|kind| size(kind.total),
            [
                size(sum(unallocated)),
                size(sum(|one| one.size)),
                size(sum(|one| one.slack)),
            ],
        ),
        row(["", "Used"], &|kind| size(kind.used), Default::default()),
    ];
    let all = || names.iter().chain(&devices).chain(&sums);
    let widths: Vec<usize> = (0..names[0].len())
        .map(|at| all().map(|row| row[at].chars().count()).max().unwrap_or(0))
        .collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let print = |row: &[String], is_name: bool| -> Done {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match is_name || at == 1 {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        say!("{}", cells.collect::<Vec<_>>().join(" "));
        Ok(())
    };
    say!("");
    names.iter().try_for_each(|row| print(row, true))?;
    print(&rule, true)?;
    devices.iter().try_for_each(|row| print(row, false))?;
    print(&rule, true)?;
    sums.iter().try_for_each(|row| print(row, false))
}
