//! `butterfs qgroup`: groups of subvolumes and their limits.

mod show;
mod site;
mod stale;

use super::quota;
use crate::fail::{Done, Failure, fail};
use crate::sizes;
use butterfs::quota::{Assigned, GroupId, LimitChange, QgroupLimitFlags, QgroupStatusFlags};
use butterfs::{FsError, Volume};
use butterfs_kernel::{self as kernel, GroupLimit, Way};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use site::{change, group_at, without_path};
use std::ffi::OsString;

/// Makes, joins, limits and shows quota groups.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs qgroup show -pcre disk.img
  butterfs qgroup create 1/100 disk.img
  butterfs qgroup assign 0/256 1/100 disk.img
  butterfs qgroup limit 10g 0/256 disk.img
  butterfs qgroup limit -e none 1/100 disk.img
  butterfs qgroup show --json mnt")]
pub struct Qgroup {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a group of groups.
    Create(One),
    /// Remove a group without members.
    Destroy(One),
    /// Put a group into another.
    Assign(Relation),
    /// Take a group out of another.
    Remove(Relation),
    /// Limit what a group may use.
    Limit(Limit),
    ClearStale(stale::ClearStale),
    /// Show groups and what they use.
    #[command(disable_help_flag = true)]
    Show(show::Show),
}

#[derive(Args, Debug)]
struct One {
    /// LEVEL/NUMBER.
    group: GroupId,
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

#[derive(Args, Debug)]
struct Relation {
    /// If the numbers become inconsistent, leave them so instead of counting
    /// again.
    #[arg(long)]
    no_rescan: bool,
    /// If the numbers become inconsistent, count again: the default.
    #[arg(long = "rescan", conflicts_with = "no_rescan")]
    _rescan: bool,
    /// The group that is in the other: LEVEL/NUMBER, or the id of a subvolume.
    child: GroupId,
    /// The group that it is in: LEVEL/NUMBER.
    parent: GroupId,
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

#[derive(Args, Debug)]
struct Limit {
    /// Limit what no other group uses, instead of all that it uses.
    #[arg(short)]
    exclusive: bool,
    /// Limit what is on the device, after compression: there is no other way.
    #[arg(short = 'c')]
    _compressed: bool,
    /// Bytes (4096, 16k, 10g), or `none`.
    #[arg(value_parser = size_or_none)]
    size: Bytes,
    /// LEVEL/NUMBER, a subvolume's id, or (as the last argument) a subvolume's
    /// path.
    group: OsString,
    /// File or block device that holds the volume, or its mountpoint.
    volume: Option<OsString>,
}

/// A limit; `None` is none.
#[derive(Clone, Copy, Debug)]
struct Bytes(Option<u64>);

fn size_or_none(text: &str) -> Result<Bytes, String> {
    match text {
        "none" => Ok(Bytes(None)),
        size => Ok(Bytes(Some(sizes::parse(size)?))),
    }
}

impl One {
    fn run(&self, way: Way, edit: impl FnOnce(&Volume) -> Result<(), FsError>) -> Done {
        change(
            &self.volume,
            |volume| edit(volume),
            |mounted| {
                mounted.ask(&self.group.to_string(), |file| {
                    kernel::change_group(file, self.group, way)
                })
            },
        )
    }
}

impl Relation {
    fn run(&self, way: Way, edit: impl FnOnce(&Volume) -> Result<Assigned, FsError>) -> Done {
        let unmounted = |volume: &Volume| -> Result<(), FsError> {
            let assigned = edit(volume)?;
            if assigned == Assigned::NeedsRescan && !self.no_rescan {
                quota::rescan(volume, &ProgressBar::hidden())?;
            }
            Ok(())
        };
        change(&self.volume, unmounted, |mounted| {
            let what = format!("{} in {}", self.child, self.parent);
            mounted.ask(&what, |file| {
                kernel::change_relation(file, (self.child, self.parent), way)
            })?;
            let status = mounted.quotas()?.and_then(|items| items.status);
            let is_wrong = status.is_some_and(|status| {
                let flags = status.flags;
                flags.contains(QgroupStatusFlags::INCONSISTENT)
                    && !flags.contains(QgroupStatusFlags::SIMPLE_MODE)
            });
            if is_wrong && !self.no_rescan {
                mounted.rescan()?;
            }
            Ok(())
        })
    }
}

impl Limit {
    /// The group, and the volume.
    fn subject(&self) -> Result<(GroupId, OsString), Failure> {
        let Some(volume) = &self.volume else {
            return Ok((group_at(&self.group)?, without_path(&self.group)?));
        };
        let group = self.group.to_str().and_then(|text| text.parse().ok());
        match group {
            Some(group) => Ok((group, volume.clone())),
            None => fail(format!(
                "{}: a group is LEVEL/NUMBER, like 1/100, or the id of a subvolume",
                self.group.display()
            )),
        }
    }

    fn run(&self) -> Done {
        let Bytes(bytes) = self.size;
        let (group, volume) = self.subject()?;
        let unmounted = |volume: &Volume| {
            let change = if self.exclusive {
                LimitChange {
                    exclusive: Some(bytes),
                    ..LimitChange::default()
                }
            } else {
                LimitChange {
                    referenced: Some(bytes),
                    ..LimitChange::default()
                }
            };
            volume.limit_quota_group(group, change)
        };
        change(&volume, unmounted, |mounted| {
            let flag = if self.exclusive {
                QgroupLimitFlags::MAX_EXCLUSIVE
            } else {
                QgroupLimitFlags::MAX_REFERENCED
            };
            let limit = GroupLimit {
                group,
                flag: flag.0,
                bytes,
            };
            kernel::allow_reading();
            mounted.ask(&group.to_string(), |file| kernel::limit_group(file, limit))
        })
    }
}

impl Qgroup {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Create(one) => one.run(Way::Add, |volume| volume.create_quota_group(one.group)),
            What::Destroy(one) => {
                one.run(Way::Remove, |volume| volume.destroy_quota_group(one.group))
            }
            What::Assign(relation) => relation.run(Way::Add, |volume| {
                volume.assign_quota_group(relation.child, relation.parent)
            }),
            What::Remove(relation) => relation.run(Way::Remove, |volume| {
                volume.remove_quota_relation(relation.child, relation.parent)
            }),
            What::Limit(limit) => limit.run(),
            What::ClearStale(clear) => clear.run(),
            What::Show(show) => show.run(),
        }
    }
}
