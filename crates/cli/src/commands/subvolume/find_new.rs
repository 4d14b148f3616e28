//! `butterfs subvolume find-new`.

use super::shown::Name;
use super::site::subvolume_at;
use crate::fail::{Done, Failure};
use crate::output;
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use butterfs::Generation;
use butterfs::find_new::{NewExtent, NewExtentKind};
use clap::Args;
use serde::{Deserialize, Serialize};

/// List what was written to a subvolume since a generation. Only what changed
/// is read.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Example:
  butterfs subvolume find-new disk.img:/home 1234
The last line names the generation to go on from the next time.")]
pub struct FindNew {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Subvolume id that the path starts from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// The subvolume: VOLUME or VOLUME:/path.
    place: Place,
    /// The generation: what was written in it or later is listed.
    generation: u64,
}

#[derive(Serialize)]
struct Fact {
    inode: u64,
    offset: u64,
    length: u64,
    disk_start: u64,
    disk_offset: u64,
    generation: u64,
    flags: Vec<&'static str>,
    path: Option<Name>,
}

#[derive(Serialize)]
struct Facts {
    extents: Vec<Fact>,
    generation: u64,
}

fn fact(extent: &NewExtent) -> Fact {
    let mut flags = Vec::new();
    if extent.compression.is_some() {
        flags.push("COMPRESS");
    }
    match extent.kind {
        NewExtentKind::Regular => {}
        NewExtentKind::Inline => flags.push("INLINE"),
        NewExtentKind::Prealloc => flags.push("PREALLOC"),
    }
    Fact {
        inode: extent.inode.get(),
        offset: extent.offset.get(),
        length: extent.length,
        disk_start: extent.disk.get(),
        disk_offset: extent.disk_offset,
        generation: extent.generation.get(),
        flags,
        path: extent.path.as_deref().map(Name::of),
    }
}

impl OnVolume for FindNew {
    const NAME: &'static str = "subvolume find-new";
    const TAG: &'static str = "FindNew";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_read_only(self.subvolid)?;
        let tree = subvolume_at(&volume, &self.place)?;
        let mut extents = Vec::new();
        let end = volume.find_new::<Failure>(tree, Generation(self.generation), &mut |found| {
            let fact = fact(found);
            if self.json {
                extents.push(fact);
                return Ok(());
            }
            let flags = if fact.flags.is_empty() {
                "NONE".to_owned()
            } else {
                fact.flags.join("|")
            };
            let facts = format!(
                "inode {} file offset {} len {} disk start {} offset {} gen {} flags {flags} ",
                fact.inode,
                fact.offset,
                fact.length,
                fact.disk_start,
                fact.disk_offset,
                fact.generation,
            );
            let path = fact.path.as_ref().map_or(&b"?"[..], |path| &path.0);
            output::line(&[facts.as_bytes(), path])
        })?;
        if self.json {
            let generation = end.generation.get();
            return json(&Facts {
                extents,
                generation,
            });
        }
        say!("transid marker was {}", end.generation);
        Ok(())
    }
}
