//! `butterfs scrub limit`: how many bytes of a device a scrub reads in a second.

use super::subject::Subject;
use super::{of_kernel, record};
use crate::facts;
use crate::fail::{Done, fail};
use crate::sizes::{self, human};
use crate::units::Units;
use butterfs_format::DeviceId;
use butterfs_server::Facts;
use clap::Args;
use std::path::PathBuf;

/// Show or set how many bytes of a device are read in a second.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs scrub limit disk.img
  butterfs scrub limit -l 100m disk.img
  butterfs scrub limit -d 1 -l 0 /mnt      device 1, as many as there can be")]
pub struct Limit {
    /// Bytes in a second; 0 for as many as there can be. A scrub that runs
    /// follows.
    #[arg(short, long, value_parser = sizes::parse, value_name = "SIZE")]
    limit: Option<u64>,
    /// All devices, as without -d.
    #[arg(short, long, requires = "limit", conflicts_with = "devid")]
    all: bool,
    /// This device alone, on mounts of the kernel's Btrfs.
    #[arg(short, long, value_name = "ID", requires = "limit")]
    devid: Option<u64>,
    #[command(flatten)]
    units: Units,
    /// File or block device that holds the volume, or its mountpoint.
    volume: PathBuf,
}

/// A device and its limit in bytes per second, if it has one.
struct Row {
    id: u64,
    limit: Option<u64>,
    path: String,
}

impl Limit {
    /// Runs it.
    pub fn run(&self) -> Done {
        let subject = Subject::of(&self.volume)?;
        let at = subject.of_kernel.as_ref().unwrap_or(&self.volume);
        let is_kernels = subject.of_kernel.is_some();
        let facts = facts::at(at)?;
        let rows = self.rows(&facts, is_kernels);
        say!("UUID: {}", facts.uuid);
        let Some(limit) = self.limit else {
            return self.print(&rows);
        };
        if let Some(id) = self.devid {
            if !rows.iter().any(|row| row.id == id) {
                return fail(format!("device with devid {id} not found"));
            }
            if !is_kernels {
                return fail("one limit holds for all devices here; leave -d out");
            }
            of_kernel::set_limit_of(&facts, DeviceId(id), limit)?;
        } else if is_kernels {
            of_kernel::set_limit(&facts, limit)?;
        } else {
            record::set_limit(&facts.uuid, limit)?;
        }
        let said = |limit: Option<u64>| match limit {
            Some(limit) if limit > 0 => format!("{}/s", human(limit)),
            _ => "unlimited".to_owned(),
        };
        for row in rows
            .iter()
            .filter(|row| self.devid.is_none_or(|id| id == row.id))
        {
            say!(
                "Set scrub limit of devid {} from {} to {}",
                row.id,
                said(row.limit),
                said(Some(limit))
            );
        }
        Ok(())
    }

    fn rows(&self, facts: &Facts, is_kernels: bool) -> Vec<Row> {
        let there = facts.members.iter().filter(|device| device.path.is_some());
        let rows = there.map(|device| Row {
            id: device.id,
            limit: match is_kernels {
                true => of_kernel::limit_of(facts, DeviceId(device.id)),
                false => record::limit(&facts.uuid),
            },
            path: device.path.clone().unwrap_or_default(),
        });
        rows.collect()
    }

    fn print(&self, rows: &[Row]) -> Done {
        const HEADS: [&str; 3] = ["Id", "Limit", "Path"];
        let rows: Vec<[String; 3]> = rows
            .iter()
            .map(|row| {
                let limit = row.limit.map(|limit| self.units.size(limit));
                let limit = limit.unwrap_or_else(|| "-".to_owned());
                [row.id.to_string(), limit, row.path.clone()]
            })
            .collect();
        let width = |at: usize| {
            let cells = rows.iter().map(|row| row[at].len());
            cells.fold(HEADS[at].len(), usize::max)
        };
        let [id, limit, path] = std::array::from_fn(width);
        say!(
            "{:>id$}  {:>limit$}  {:>path$}",
            HEADS[0],
            HEADS[1],
            HEADS[2]
        );
        say!(
            "{}  {}  {}",
            "-".repeat(id),
            "-".repeat(limit),
            "-".repeat(path)
        );
        for [number, rate, place] in &rows {
            say!("{number:>id$}  {rate:>limit$}  {place}");
        }
        Ok(())
    }
}
