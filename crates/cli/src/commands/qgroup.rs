//! `butterfs qgroup`: groups of subvolumes and their limits.

mod show;

use super::quota;
use crate::fail::{Context, Done};
use crate::sizes;
use butterfs::quota::{Assigned, GroupId, LimitChange};
use butterfs::{FsError, Volume};
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
  butterfs qgroup limit -e none 1/100 disk.img")]
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
    Show(show::Show),
}

#[derive(Args, Debug)]
struct One {
    /// LEVEL/NUMBER.
    group: GroupId,
    /// The file or device that holds the volume, which is not mounted.
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
    /// The file or device that holds the volume, which is not mounted.
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
    /// The file or device that holds the volume, which is not mounted.
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

/// Changes groups of a volume and closes it.
fn change<R>(
    word: &OsString,
    change: impl FnOnce(&Volume) -> Result<R, FsError>,
) -> Result<R, crate::fail::Failure> {
    let volume = quota::open(word)?;
    let done = change(&volume).context(word.display())?;
    volume.close()?;
    Ok(done)
}

impl Relation {
    fn run(&self, way: impl FnOnce(&mut butterfs::Engine) -> Result<Assigned, FsError>) -> Done {
        change(&self.volume, |volume| {
            let assigned = volume.files().change_quotas(way)?;
            if assigned == Assigned::NeedsRescan && !self.no_rescan {
                quota::rescan(volume, &ProgressBar::hidden())?;
            }
            Ok(())
        })
    }
}

impl Qgroup {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Create(one) => change(&one.volume, |volume| {
                let create =
                    |engine: &mut butterfs::Engine| Ok(engine.create_quota_group(one.group)?);
                volume.files().change_quotas(create)
            }),
            What::Destroy(one) => change(&one.volume, |volume| {
                let destroy =
                    |engine: &mut butterfs::Engine| Ok(engine.destroy_quota_group(one.group)?);
                volume.files().change_quotas(destroy)
            }),
            What::Assign(relation) => relation
                .run(|engine| Ok(engine.assign_quota_group(relation.child, relation.parent)?)),
            What::Remove(relation) => relation
                .run(|engine| Ok(engine.remove_quota_relation(relation.child, relation.parent)?)),
            What::Limit(limit) => change(&limit.volume, |volume| {
                let Bytes(bytes) = limit.size;
                let change = if limit.exclusive {
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
                volume
                    .files()
                    .change_quotas(|engine| Ok(engine.limit_quota_group(limit.group, change)?))
            }),
            What::Show(show) => show.run(),
        }
    }
}
