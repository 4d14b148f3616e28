//! `butterfs subvolume show`.

use super::shown::{Name, local, uuid};
use super::site::subvolume_at;
use crate::fail::{Done, fail};
use crate::output;
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::units::Units;
use crate::zone::Zone;
use butterfs::list::{SubvolumeInfo, Subvolumes};
use butterfs::quota::{GroupId, QgroupLimitFlags};
use butterfs::{Timespec, TreeId, Volume};
use clap::Args;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Show all facts about a subvolume, and its snapshots.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs subvolume show disk.img:/home
  butterfs subvolume show -r 257 --json disk.img")]
pub struct Show {
    /// Show the subvolume of this id.
    #[arg(short = 'r', long, value_name = "ID", conflicts_with = "uuid")]
    rootid: Option<u64>,
    /// Show the subvolume of this UUID.
    #[arg(short = 'u', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// Subvolume id that the path starts from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// VOLUME or VOLUME:/path.
    place: Place,
    /// The caller's time zone: a server has its own.
    #[arg(skip = std::env::var("TZ").ok())]
    zone: Option<String>,
}

#[derive(Serialize)]
struct Facts {
    path: Name,
    name: Name,
    uuid: Option<String>,
    parent_uuid: Option<String>,
    received_uuid: Option<String>,
    otime_seconds: i64,
    id: u64,
    generation: u64,
    ogen: u64,
    parent: u64,
    read_only: bool,
    stransid: u64,
    stime_seconds: Option<i64>,
    rtransid: u64,
    rtime_seconds: Option<i64>,
    snapshots: Vec<Name>,
    quota: Option<QuotaFacts>,
}

/// What its quota group counts, where quotas are on; bytes.
#[derive(Serialize)]
struct QuotaFacts {
    group: String,
    referenced_max: Option<u64>,
    exclusive_max: Option<u64>,
    referenced: u64,
    exclusive: u64,
}

fn quota(volume: &Volume, tree: TreeId) -> Option<QuotaFacts> {
    let id = GroupId::of_tree(tree);
    let state = volume.quota_state()?;
    let group = state.groups.get(&id)?;
    let limit = |flag, max| group.limit.flags.contains(flag).then_some(max);
    Some(QuotaFacts {
        group: id.to_string(),
        referenced_max: limit(QgroupLimitFlags::MAX_REFERENCED, group.limit.referenced_max),
        exclusive_max: limit(QgroupLimitFlags::MAX_EXCLUSIVE, group.limit.exclusive_max),
        referenced: group.info.referenced,
        exclusive: group.info.exclusive,
    })
}

fn facts(subvolumes: &Subvolumes, info: &SubvolumeInfo) -> Facts {
    let item = &info.item;
    let name = match &info.parent {
        Some(parent) => Name::of(&parent.name),
        None => Name::of(b"<FS_TREE>"),
    };
    let path = match info.path.as_deref() {
        Some(b"") => Name::of(b"/"),
        Some(path) => Name::of(path),
        None => Name::of(b"DELETED"),
    };
    let known = |time: Timespec| (time != Timespec::default()).then_some(time.seconds);
    let snapshots = subvolumes.snapshots(info);
    Facts {
        path,
        name,
        uuid: uuid(item.uuid),
        parent_uuid: uuid(item.parent_uuid),
        received_uuid: uuid(item.received_uuid),
        otime_seconds: item.otime.seconds,
        id: info.id.get(),
        generation: item.generation.get(),
        ogen: item.otransid.get(),
        parent: info.parent.as_ref().map_or(0, |parent| parent.tree.get()),
        read_only: info.is_read_only(),
        stransid: item.stransid.get(),
        stime_seconds: known(item.stime),
        rtransid: item.rtransid.get(),
        rtime_seconds: known(item.rtime),
        snapshots: snapshots
            .into_iter()
            .filter_map(|snapshot| snapshot.path.as_deref().map(Name::of))
            .collect(),
        quota: None,
    }
}

impl OnVolume for Show {
    const NAME: &'static str = "subvolume show";
    const TAG: &'static str = "Show";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_read_only(self.subvolid)?;
        let subvolumes = volume.subvolumes()?;
        let found = match (self.rootid, self.uuid) {
            (Some(id), _) => subvolumes.get(TreeId(id)),
            (None, Some(uuid)) => subvolumes.by_uuid(uuid.into_bytes()),
            (None, None) => subvolumes.get(subvolume_at(&volume, &self.place)?),
        };
        let Some(info) = found else {
            return fail(format!(
                "{}: there is no such subvolume; `butterfs subvolume list -u` shows what there is",
                self.place.volume.display()
            ));
        };
        let mut facts = facts(&subvolumes, info);
        facts.quota = quota(&volume, info.id);
        if self.json {
            return json(&facts);
        }
        print(&facts, self.units, &Zone::of(self.zone.as_deref()))
    }
}

fn print(facts: &Facts, units: Units, zone: &Zone) -> Done {
    let or_dash = |uuid: &Option<String>| uuid.clone().unwrap_or_else(|| "-".to_owned());
    let time = |seconds: Option<i64>| match seconds {
        Some(seconds) => local(seconds, zone),
        None => "-".to_owned(),
    };
    output::line(&[&facts.path.0])?;
    output::line(&[b"\tName: \t\t\t", &facts.name.0])?;
    say!("\tUUID: \t\t\t{}", or_dash(&facts.uuid));
    say!("\tParent UUID: \t\t{}", or_dash(&facts.parent_uuid));
    say!("\tReceived UUID: \t\t{}", or_dash(&facts.received_uuid));
    say!("\tCreation time: \t\t{}", time(Some(facts.otime_seconds)));
    say!("\tSubvolume ID: \t\t{}", facts.id);
    say!("\tGeneration: \t\t{}", facts.generation);
    say!("\tGen at creation: \t{}", facts.ogen);
    say!("\tParent ID: \t\t{}", facts.parent);
    say!("\tTop level ID: \t\t{}", facts.parent);
    let flags = if facts.read_only { "readonly" } else { "-" };
    say!("\tFlags: \t\t\t{flags}");
    say!("\tSend transid: \t\t{}", facts.stransid);
    say!("\tSend time: \t\t{}", time(facts.stime_seconds));
    say!("\tReceive transid: \t{}", facts.rtransid);
    say!("\tReceive time: \t\t{}", time(facts.rtime_seconds));
    say!("\tSnapshot(s):");
    for snapshot in &facts.snapshots {
        output::line(&[b"\t\t\t\t", &snapshot.0])?;
    }
    if let Some(quota) = &facts.quota {
        let limit = |max: Option<u64>| max.map_or_else(|| "-".to_owned(), |max| units.size(max));
        say!("\tQuota group:\t\t{}", quota.group);
        say!("\t  Limit referenced:\t{}", limit(quota.referenced_max));
        say!("\t  Limit exclusive:\t{}", limit(quota.exclusive_max));
        say!("\t  Usage referenced:\t{}", units.size(quota.referenced));
        say!("\t  Usage exclusive:\t{}", units.size(quota.exclusive));
    }
    Ok(())
}
