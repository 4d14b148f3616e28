//! `butterfs subvolume get-default` and `set-default`.

use super::mounted::MountedRoots;
use super::shown::text;
use super::site::{Site, check_root, open_directory, open_volume, said, said_of, subvolume_at};
use crate::fail::{Context, Done, Failure, fail};
use crate::place::{Place, json};
use butterfs::{Part, TreeId};
use butterfs_kernel as btrfs;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;

/// Show the subvolume that is mounted when none is named.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs subvolume get-default disk.img")]
pub struct GetDefault {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The volume, or a path on a mounted Btrfs.
    volume: Place,
}

/// Have a subvolume mounted when none is named.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs subvolume set-default disk.img:/home
  butterfs subvolume set-default 5 disk.img")]
pub struct SetDefault {
    /// The subvolume: VOLUME:/path, a path on a mounted Btrfs, or its id.
    subvolume: OsString,
    /// The volume or mountpoint, where an id is given.
    volume: Option<OsString>,
}

#[derive(Serialize)]
struct Fact {
    id: u64,
    path: Option<String>,
    generation: Option<u64>,
    top_level: Option<u64>,
}

impl GetDefault {
    /// Runs it.
    pub fn run(self) -> Done {
        self.volume.verify_exists(Part::Whole)?;
        let fact = match self.volume.volume.is_dir() {
            true => Self::mounted(&self.volume.volume)?,
            false => self.unmounted()?,
        };
        if self.json {
            return json(&fact);
        }
        match (&fact.path, fact.generation, fact.top_level) {
            (Some(path), Some(generation), Some(top_level)) => say!(
                "ID {} gen {generation} top level {top_level} path {path}",
                fact.id
            ),
            _ if fact.id == TreeId::FS.get() => say!("ID {} (FS_TREE)", fact.id),
            _ => say!("ID {}", fact.id),
        }
        Ok(())
    }

    fn unmounted(&self) -> Result<Fact, Failure> {
        let volume = self.volume.open_read_only(None)?;
        let tree = volume.files().default_subvolume()?;
        let subvolumes = volume.subvolumes()?;
        let found = subvolumes.get(tree);
        let path = found.and_then(|found| found.path.as_deref());
        let parent = found.and_then(|found| found.parent.as_ref());
        Ok(Fact {
            id: tree.get(),
            path: path.filter(|path| !path.is_empty()).map(text),
            generation: found.map(|found| found.item.generation.get()),
            top_level: parent.map(|parent| parent.tree.get()),
        })
    }

    fn mounted(directory: &Path) -> Result<Fact, Failure> {
        let roots = MountedRoots::open(directory)?;
        let tree = roots.default()?;
        let place = roots.place(tree)?;
        let all = roots.all()?;
        let item = all.iter().find(|(id, _)| *id == tree);
        Ok(Fact {
            id: tree.get(),
            path: place.as_ref().map(|(_, path)| text(path)),
            generation: item.map(|(_, item)| item.generation.get()),
            top_level: place.map(|(parent, _)| parent.get()),
        })
    }
}

impl SetDefault {
    /// Runs it.
    pub fn run(self) -> Done {
        let id = self.subvolume.to_str().and_then(|text| text.parse().ok());
        match (id, &self.volume) {
            (Some(id), Some(volume)) => Self::set(&Site::parse_volume(volume), Some(TreeId(id))),
            (_, None) => Self::set(&Site::parse(&self.subvolume), None),
            (None, Some(_)) => fail("give an id and a volume, or a subvolume alone"),
        }
    }

    fn set(site: &Site, id: Option<TreeId>) -> Done {
        match site {
            Site::Unmounted(place) => {
                let volume = open_volume(&place.volume)?;
                let tree = match id {
                    Some(id) => id,
                    None => subvolume_at(&volume, place)?,
                };
                volume.files().set_default_subvolume(tree).context(site)?;
                Ok(volume.close()?)
            }
            Site::Mounted(path) => {
                let directory = open_directory(path)?;
                // The kernel takes 0 for the top level, so the id is asked for.
                let tree = match id {
                    Some(tree) => tree,
                    None => {
                        check_root(site, directory.as_fd())?;
                        let info = btrfs::subvolume_info(directory.as_fd());
                        info.map_err(|error| said(site, error))?.id
                    }
                };
                btrfs::set_default_subvolume(directory.as_fd(), tree)
                    .map_err(|error| said_of(site, tree, error))
            }
        }
    }
}
