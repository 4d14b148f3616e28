//! Facts about the volume at a path: mounted there, or held by a file or
//! device.

use crate::fail::{Context, Done, Failure};
use crate::patience;
use crate::reading;
use butterfs::{OpenOptions, Volume};
use butterfs_kernel::is_kernel_btrfs;
pub use butterfs_server::Facts;
use butterfs_server::facts_of_kernel;
use std::path::Path;

/// Facts about the volume in the file or device at `path`, or mounted there.
pub fn at(path: &Path) -> Result<Facts, Failure> {
    if path.is_dir() {
        return patience::asking(path, || {
            Ok(match is_kernel_btrfs(path) {
                true => Facts::of_kernel(path)?,
                false => Facts::of_mount(path)?,
            })
        });
    }
    let volume = reading::open(path, OpenOptions::as_committed())?;
    Ok(Facts::of(&volume))
}

/// Warns if a kind of space has several profiles, as the Btrfs tools do: a
/// conversion was interrupted, and nobody can tell which profile new chunks
/// get.
pub fn note_mixed_profiles(facts: &Facts) {
    let mut kinds: Vec<&str> = facts.kinds.iter().map(|kind| &kind.kind[..]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mixed = kinds.into_iter().filter_map(|name| {
        let same = facts.kinds.iter().filter(|kind| kind.kind == name);
        let profiles: Vec<String> = same.map(|kind| kind.profile.to_lowercase()).collect();
        (profiles.len() > 1).then(|| format!("WARNING:    {name}: {}", profiles.join(", ")))
    });
    let mixed: Vec<String> = mixed.collect();
    if !mixed.is_empty() {
        note!("WARNING: Multiple block group profiles detected, see 'man btrfs(5)'");
        mixed.iter().for_each(|line| note!("{line}"));
    }
}

/// The same about what is mounted at a directory, if it can be looked at.
pub fn note_mixed_profiles_of_mount(mountpoint: &Path) {
    if mountpoint.is_dir()
        && let Ok(facts) = at(mountpoint)
    {
        note_mixed_profiles(&facts);
    }
}

/// Facts about a volume that is open.
pub fn of(volume: &Volume) -> Facts {
    Facts::of(volume)
}

/// Sets the error counters of the volume at `path`, mounted or not, to zero.
pub fn reset_stats(path: &Path) -> Done {
    if path.is_dir() {
        let done = match is_kernel_btrfs(path) {
            true => facts_of_kernel::reset_stats(path),
            false => butterfs_server::reset_stats(path),
        };
        return Ok(done?);
    }
    let volume = Volume::open(path, OpenOptions::default()).context(path.display())?;
    volume.reset_device_stats()?;
    volume.close().context(path.display())
}

/// Gives the volume at `path`, mounted or not, another label.
pub fn set_label(path: &Path, label: &[u8]) -> Done {
    if path.is_dir() {
        let done = match is_kernel_btrfs(path) {
            true => facts_of_kernel::set_label(path, label),
            false => butterfs_server::set_label(path, label),
        };
        return Ok(done?);
    }
    let volume = Volume::open(path, OpenOptions::default()).context(path.display())?;
    volume.set_label(label)?;
    volume.close().context(path.display())
}
