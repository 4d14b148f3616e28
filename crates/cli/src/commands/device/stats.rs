//! `butterfs device stats`: the error counters.

use crate::facts;
use crate::fail::{Done, fail};
use crate::place::json;
use crate::tools_json::{self, Format};
use butterfs_server::{DeviceEntry, StatsFacts};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Exit code of `stats --check` where something was counted, as `btrfs device
/// stats` has it.
const COUNTED: i32 = 64;

/// What is shown, and how.
#[derive(Args, Debug)]
pub struct Stats {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Set the counters to zero after showing them.
    #[arg(short = 'z', long)]
    reset: bool,
    /// Show a table.
    #[arg(short = 'T')]
    table: bool,
    /// The form of output: text, or JSON as the Btrfs tools have it.
    #[arg(long, value_name = "TYPE", conflicts_with = "json")]
    format: Option<Format>,
    /// Answer with exit code 64 when a counter is not zero.
    #[arg(short, long)]
    check: bool,
    /// Refuse a mountpoint; the counters of a file or device are read from it in
    /// any case.
    #[arg(long)]
    offline: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: PathBuf,
}

/// Counters of a volume: all together, and of each device.
#[derive(Serialize)]
struct Counted<'f> {
    #[serde(flatten)]
    all: StatsFacts,
    devices: &'f [DeviceEntry],
}

/// Where a device is, for a line about it.
fn place_of(device: &DeviceEntry) -> String {
    match &device.path {
        Some(path) => path.clone(),
        None => format!("devid:{}", device.id),
    }
}

/// Counters of a device, as the Btrfs tools have them in JSON.
#[derive(Serialize)]
struct ToolsRow {
    device: String,
    devid: u64,
    write_io_errs: u64,
    read_io_errs: u64,
    flush_io_errs: u64,
    corruption_errs: u64,
    generation_errs: u64,
}

impl From<&DeviceEntry> for ToolsRow {
    fn from(device: &DeviceEntry) -> Self {
        let stats = &device.stats;
        Self {
            device: place_of(device),
            devid: device.id,
            write_io_errs: stats.write_io_errs,
            read_io_errs: stats.read_io_errs,
            flush_io_errs: stats.flush_io_errs,
            corruption_errs: stats.corruption_errs,
            generation_errs: stats.generation_errs,
        }
    }
}

/// Counters of all devices, a line for each.
fn print_table(devices: &[DeviceEntry]) -> Done {
    const HEADS: [&str; 7] = [
        "Id",
        "Path",
        "Write errors",
        "Read errors",
        "Flush errors",
        "Corruption errors",
        "Generation errors",
    ];
    let rows = devices.iter().map(|device| {
        let counters = device.stats.named().map(|(_, value)| value.to_string());
        let mut row = vec![device.id.to_string(), place_of(device)];
        row.extend(counters);
        row
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let widths: Vec<usize> = HEADS
        .iter()
        .enumerate()
        .map(|(at, head)| {
            let own = rows.iter().filter_map(|row| row.get(at));
            own.map(String::len).max().unwrap_or(0).max(head.len())
        })
        .collect();
    let path = widths.get(1).copied().unwrap_or(0);
    say!(
        "{:<2} {:<path$} {}",
        HEADS[0],
        HEADS[1],
        HEADS[2..].join(" ")
    );
    let lines: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    say!("{}", lines.join(" "));
    for row in &rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, width))| match at {
                1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        say!("{}", cells.collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

impl Stats {
    /// Runs it.
    pub fn run(self) -> Done {
        if self.offline && self.volume.is_dir() {
            return fail(format!(
                "{}: is a directory; name the file or device that holds the volume",
                self.volume.display()
            ));
        }
        let facts = facts::at(&self.volume)?;
        let all = facts.device_stats;
        if self.json {
            json(&Counted {
                all,
                devices: &facts.members,
            })?;
        } else if self.table {
            print_table(&facts.members)?;
        } else if self.format == Some(Format::Json) {
            let rows: Vec<_> = facts.members.iter().map(ToolsRow::from).collect();
            tools_json::print("device-stats", &rows)?;
        } else {
            for device in &facts.members {
                let name = place_of(device);
                for (counter, value) in device.stats.named() {
                    say!("[{name}].{counter:<16} {value}");
                }
            }
        }
        if self.reset {
            facts::reset_stats(&self.volume)?;
        }
        if self.check && all.named().iter().any(|(_, value)| *value > 0) {
            std::process::exit(COUNTED);
        }
        Ok(())
    }
}
