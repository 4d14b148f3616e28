//! `butterfs qgroup`: groups of subvolumes and their limits.

mod show;

use super::quota::mounted::Mounted;
use super::quota::{self, QuotaSite};
use crate::fail::{Context, Done, Failure};
use crate::sizes;
use butterfs::quota::{Assigned, GroupId, LimitChange, QgroupLimitFlags, QgroupStatusFlags};
use butterfs::{FsError, Volume};
use butterfs_kernel::{self as kernel, GroupLimit, Way};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
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
    /// Show groups and what they use.
    #[command(disable_help_flag = true)]
    Show(show::Show),
}

#[derive(Args, Debug)]
struct One {
    /// LEVEL/NUMBER.
    group: GroupId,
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
    volume: OsString,
}

#[derive(Args, Debug)]
struct Relation {
    /// Leave the numbers wrong where they cannot follow, instead of counting
    /// everything anew.
    #[arg(long)]
    no_rescan: bool,
    /// The group that is in the other: LEVEL/NUMBER, or the id of a subvolume.
    child: GroupId,
    /// The group that it is in: LEVEL/NUMBER.
    parent: GroupId,
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
    volume: OsString,
}

#[derive(Args, Debug)]
struct Limit {
    /// Limit what no other group uses, instead of all that it uses.
    #[arg(short)]
    exclusive: bool,
    /// Bytes (4096, 16k, 10g), or `none`.
    #[arg(value_parser = size_or_none)]
    size: Bytes,
    /// LEVEL/NUMBER, or the id of a subvolume.
    group: GroupId,
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
    volume: OsString,
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

/// Changes groups of a volume, on either side, and closes it.
fn change<R>(
    word: &OsString,
    unmounted: impl FnOnce(&Volume) -> Result<R, FsError>,
    mounted: impl FnOnce(&Mounted) -> Result<R, Failure>,
) -> Result<R, Failure> {
    match QuotaSite::parse(word)? {
        QuotaSite::Unmounted(place) => {
            let volume = quota::open(&place)?;
            let done = unmounted(&volume).context(word.display())?;
            volume.close()?;
            Ok(done)
        }
        QuotaSite::Mounted(place) => mounted(&place),
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
        let unmounted = |volume: &Volume| {
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
    fn run(&self) -> Done {
        let Bytes(bytes) = self.size;
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
            volume.limit_quota_group(self.group, change)
        };
        change(&self.volume, unmounted, |mounted| {
            let flag = if self.exclusive {
                QgroupLimitFlags::MAX_EXCLUSIVE
            } else {
                QgroupLimitFlags::MAX_REFERENCED
            };
            let limit = GroupLimit {
                group: self.group,
                flag: flag.0,
                bytes,
            };
            kernel::allow_reading();
            mounted.ask(&self.group.to_string(), |file| {
                kernel::limit_group(file, limit)
            })
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
            What::Show(show) => show.run(),
        }
    }
}
