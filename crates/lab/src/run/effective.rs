//! What was asked for, compared with what the machine says.

use super::device::Device;
use super::integrity::Content;
use super::mounts;
use crate::filesystem::{FileSystem, Probe};
use crate::model::Effective;
use crate::plan::Cell;
use crate::workload::{Aligned, Caching, Directory, Files as _, Workload};
use serde_json::Value;
use std::path::Path;

/// Name of the attribute of a ButterFS mount that tells its facts.
const FACTS: &str = "butterfs.facts";

/// Parameter of workloads that can use O_DIRECT.
const DIRECT: &str = "direct";

/// Scheduler, direct I/O and mount options of a cell that is mounted.
pub(crate) fn of_mount(
    cell: &Cell,
    file_system: &FileSystem,
    devices: &[Device],
    directory: &Path,
) -> Vec<Effective> {
    let mut found = Vec::new();
    for device in devices {
        let (scheduler, _) = device.schedulers();
        found.push(Effective {
            name: "scheduler".to_owned(),
            agrees: cell.scheduler.is_empty() || cell.scheduler == scheduler,
            requested: cell.scheduler.clone(),
            effective: scheduler,
        });
        if let Some(direct) = device.is_direct() {
            found.push(Effective {
                name: "device's direct I/O".to_owned(),
                requested: "on".to_owned(),
                effective: if direct { "on" } else { "off" }.to_owned(),
                agrees: direct,
            });
        }
    }
    found.dedup();
    found.push(options(cell, file_system, directory));
    found
}

fn options(cell: &Cell, file_system: &FileSystem, directory: &Path) -> Effective {
    let shown = shown_options(file_system.probe, directory);
    let missing: Vec<&str> = match &shown {
        None => Vec::new(),
        Some(shown) => cell
            .mount
            .split(',')
            .map(str::trim)
            .filter(|option| !option.is_empty() && !is_shown(file_system, option, shown))
            .collect(),
    };
    let mut effective = shown.map_or_else(
        || "nobody tells the options of this mount".to_owned(),
        |shown| shown.join(","),
    );
    if !missing.is_empty() {
        effective = format!("{effective} (without {})", missing.join(","));
    }
    Effective {
        name: "mount options".to_owned(),
        requested: cell.mount.clone(),
        agrees: missing.is_empty(),
        effective,
    }
}

/// The options that a mount shows; `None` if nothing tells them.
fn shown_options(probe: Probe, directory: &Path) -> Option<Vec<String>> {
    match probe {
        Probe::None => None,
        Probe::Mountinfo | Probe::Btrfs => Some(mounts::at(directory)?.options),
        Probe::Butterfs => {
            let facts = facts(directory)?;
            let options = facts.get("options")?.as_str()?;
            Some(
                options
                    .split(',')
                    .map(|one| one.trim().to_owned())
                    .collect(),
            )
        }
    }
}

fn is_shown(file_system: &FileSystem, option: &str, shown: &[String]) -> bool {
    let wanted = file_system.shown.get(option).map_or(option, String::as_str);
    let matches = |one: &String| {
        let rest = one.strip_prefix(wanted);
        // A value may follow, or a remark in brackets.
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(['=', ':']) || rest.starts_with(" (")
        })
    };
    wanted.is_empty() || matches!(wanted, "rw" | "defaults") || shown.iter().any(matches)
}

fn facts(directory: &Path) -> Option<Value> {
    let mut value = vec![0_u8; 64 << 10];
    let length = rustix::fs::getxattr(directory, FACTS, &mut value[..]).ok()?;
    serde_json::from_slice(&value[..length]).ok()
}

/// Profiles of data and metadata; after the workload, when there are block
/// groups of all kinds.
pub(crate) fn profile(cell: &Cell, probe: Probe, directory: &Path) -> Option<Effective> {
    let all: Vec<(String, String)> = match probe {
        Probe::Btrfs => {
            let line = [
                "btrfs",
                "filesystem",
                "df",
                &directory.display().to_string(),
            ]
            .map(str::to_owned);
            let said = super::command::run(&line, super::command::TIME_LIMIT).ok()?;
            // "Data, RAID1: total=1.00GiB, used=0.00B"
            said.lines()
                .filter_map(|line| {
                    let (kind, rest) = line.split_once(", ")?;
                    let (profile, _) = rest.split_once(':')?;
                    Some((kind.to_owned(), profile.to_lowercase()))
                })
                .collect()
        }
        Probe::Butterfs => {
            let facts = facts(directory)?;
            let text = |kind: &Value, name: &str| Some(kind.get(name)?.as_str()?.to_lowercase());
            let kinds = facts.get("kinds")?.as_array()?.iter();
            kinds
                .filter_map(|kind| Some((text(kind, "kind")?, text(kind, "profile")?)))
                .collect()
        }
        Probe::Mountinfo | Probe::None => return None,
    };
    let of = |wanted: &str| {
        let own = all
            .iter()
            .filter(|(kind, _)| kind.to_lowercase().contains(wanted));
        own.map(|(_, profile)| profile.clone()).collect::<Vec<_>>()
    };
    let (data, metadata) = (of("data").into_iter().next(), of("metadata"));
    let data_groups: Vec<String> = all
        .iter()
        .filter(|(kind, _)| matches!(kind.to_lowercase().as_str(), "data" | "data+metadata"))
        .map(|(_, profile)| profile.clone())
        .collect();
    Some(Effective {
        name: "profile".to_owned(),
        requested: cell.profile.clone(),
        agrees: cell.profile.is_empty() || data_groups.iter().all(|one| *one == cell.profile),
        effective: format!(
            "data {}, metadata {}",
            if data_groups.is_empty() {
                data.unwrap_or_default()
            } else {
                data_groups.join("+")
            },
            metadata.join("+")
        ),
    })
}

/// Where data that are written with O_DIRECT go. Btrfs writes what it must
/// checksum through the page cache, and a server may keep the data in its own
/// memory. This is noted only for a workload that uses O_DIRECT. Only direct
/// writes agree with a cell that asks for O_DIRECT by name.
pub(crate) fn direct_io(
    cell: &Cell,
    workload: &dyn Workload,
    directory: &Path,
    devices: &[Device],
) -> Option<Effective> {
    let known = workload.parameters().iter();
    let (_, default, _) = known.copied().find(|(name, ..)| *name == DIRECT)?;
    let given = cell.parameters.get(DIRECT).map(String::as_str);
    if given.unwrap_or(default) != "yes" {
        return None;
    }
    let found = way_of_direct_writes(&directory.join(".direct"), devices);
    let effective = found.unwrap_or_else(|refused| format!("refused: {refused}"));
    Some(Effective {
        name: "O_DIRECT".to_owned(),
        requested: if given.is_some() { STRAIGHT } else { "" }.to_owned(),
        agrees: given.is_none() || effective == STRAIGHT,
        effective,
    })
}

const STRAIGHT: &str = "direct";

/// Writes 4 MiB with O_DIRECT. If pages of the page cache become dirty, the
/// data were copied there. If the data are not on the devices when the writes
/// return, the file system keeps them in its memory. Takes the least of three
/// tries, because other programs may write, too.
fn way_of_direct_writes(path: &Path, devices: &[Device]) -> Result<String, String> {
    const MIBS: u64 = 4;
    let dirtied = || -> Result<u64, String> {
        let text = std::fs::read_to_string("/proc/vmstat").map_err(|error| error.to_string())?;
        let line = text.lines().find_map(|l| l.strip_prefix("nr_dirtied "));
        let count = line.and_then(|count| count.trim().parse().ok());
        count.ok_or_else(|| "/proc/vmstat has no nr_dirtied".to_owned())
    };
    let written = || devices.iter().map(|one| one.sectors().written).sum::<u64>();
    let mut bytes = Aligned::new(1 << 20);
    let (mut pages, mut sectors) = (u64::MAX, u64::MAX);
    let folder = path.parent().unwrap_or(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let files = Directory::new(folder);
    for _ in 0..3 {
        let file = files.create(&name, Caching::Direct)?;
        let before = (dirtied()?, written());
        for mebibyte in 0..MIBS {
            file.write_at(mebibyte << 20, bytes.bytes())?;
        }
        sectors = sectors.min(written().wrapping_sub(before.1));
        pages = pages.min(dirtied()?.saturating_sub(before.0));
    }
    files.unlink(&name)?;
    let half = |unit: u64| (MIBS << 20) / unit / 2;
    Ok(if pages >= half(4096) {
        "through the page cache".to_owned()
    } else if sectors >= half(512) {
        STRAIGHT.to_owned()
    } else {
        "kept in memory by the file system".to_owned()
    })
}

/// The ratio of the bytes of the files to the space that they took. If
/// compression was asked for and the data compress, the ratio must show it.
pub(crate) fn compression(cell: &Cell, kept: &Content, taken: u64) -> Option<Effective> {
    let bytes = kept.bytes;
    let asked = cell.mount.split(',').any(|option| {
        let name = option.trim().split('=').next().unwrap_or_default();
        matches!(name, "compress" | "compress-force") && !option.ends_with("=no")
    });
    if bytes < 4 << 20 || taken == 0 {
        return None;
    }
    let ratio = bytes as f64 / taken as f64;
    let compressible = cell.key.0.get("compressible");
    let compressible = compressible.and_then(|v| v.parse::<u32>().ok());
    // Small files in whole sectors leave nothing to gain.
    let large = bytes / kept.files.max(1) >= 32 << 10;
    let expected = asked && large && compressible.is_some_and(|percent| percent >= 50);
    Some(Effective {
        name: "compression ratio".to_owned(),
        requested: if expected { "above 1.1" } else { "" }.to_owned(),
        effective: format!("{ratio:.2}"),
        agrees: !expected || ratio > 1.1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::FileSystems;

    #[test]
    fn options_are_shown_in_other_words() {
        let all = FileSystems::shipped();
        let shown = |name: &str, option: &str, shown: &str| {
            let shown: Vec<String> = shown.split(',').map(str::to_owned).collect();
            is_shown(all.get(name).unwrap(), option, &shown)
        };
        assert!(shown("ext4", "barrier=0", "rw,nobarrier"));
        assert!(!shown("ext4", "barrier=0", "rw"));
        assert!(shown("ext4", "commit=60", "rw,commit=60"));
        assert!(!shown("ext4", "commit=60", "rw,commit=6"));
        assert!(shown("btrfs", "compress", "rw,compress=zlib:3"));
        assert!(shown("btrfs", "compress=zstd", "rw,compress=zstd:3"));
        assert!(!shown("btrfs", "compress", "rw,nodatasum,nodatacow"));
        assert!(shown("butterfs", "nobarrier", "rw,nobarrier (UNSAFE)"));
        assert!(!shown("butterfs", "nobarrier", "rw,nobarriers"));
        assert!(shown("xfs", "logbsize=262144", "rw,logbsize=256k"));
    }
}
