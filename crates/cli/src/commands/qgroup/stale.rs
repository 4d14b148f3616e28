//! `butterfs qgroup clear-stale`.

use super::site::change;
use crate::commands::subvolume::mounted::MountedRoots;
use crate::fail::{Done, Failure};
use butterfs::quota::GroupId;
use butterfs::{TreeId, Volume};
use butterfs_kernel::{self as kernel, Way};
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

/// Remove the groups of subvolumes that no longer exist.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs qgroup clear-stale disk.img
  butterfs qgroup clear-stale mnt

A group stays while its subvolume is still being deleted; `butterfs subvolume sync` waits for that.")]
pub struct ClearStale {
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

/// Groups that belong to a subvolume which is not among `there`.
fn stale<'g>(groups: impl Iterator<Item = &'g GroupId>, there: &BTreeSet<TreeId>) -> Vec<GroupId> {
    let is_stale = |group: &&GroupId| group.tree().is_some_and(|tree| !there.contains(&tree));
    groups.filter(is_stale).copied().collect()
}

fn unmounted(volume: &Volume) -> Result<Vec<GroupId>, butterfs::Error> {
    let Some(state) = volume.quota_state() else {
        return Ok(Vec::new());
    };
    let subvolumes = volume.subvolumes()?;
    let there = subvolumes.iter().map(|info| info.id).collect();
    let stale = stale(state.groups.keys(), &there);
    for group in &stale {
        volume.destroy_quota_group(*group)?;
    }
    Ok(stale)
}

impl ClearStale {
    /// Runs it.
    pub fn run(&self) -> Done {
        let removed = change(&self.volume, unmounted, |mounted| {
            let roots = MountedRoots::open(Path::new(&self.volume))?;
            // A subvolume that was just made already has a group.
            roots.commit()?;
            let groups = mounted.quotas()?.unwrap_or_default().groups;
            let there = roots.all()?.into_iter().map(|(id, _)| id).collect();
            let stale = stale(groups.keys(), &there);
            for group in &stale {
                mounted.ask(&group.to_string(), |file| {
                    kernel::change_group(file, *group, Way::Remove)
                })?;
            }
            Ok::<_, Failure>(stale)
        })?;
        for group in removed {
            say!("Delete stale qgroup {group}");
        }
        Ok(())
    }
}
