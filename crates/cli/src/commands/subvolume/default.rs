//! `butterfs subvolume get-default` and `set-default`.

use super::shown::text;
use super::site::{Site, open_directory, open_volume, said, subvolume_at};
use crate::fail::{Context, Done, fail};
use crate::place::{Place, json};
use butterfs::TreeId;
use butterfs_kernel as btrfs;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::os::fd::AsFd;

/// Show the subvolume that is mounted when none is named.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs subvolume get-default disk.img")]
pub struct GetDefault {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The volume.
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
}

impl GetDefault {
    /// Runs it.
    pub fn run(self) -> Done {
        let volume = self.volume.open_read_only(None)?;
        let tree = volume.files().default_subvolume()?;
        let path = volume.subvolumes()?;
        let path = path
            .get(tree)
            .and_then(|found| found.path.as_deref().map(text));
        if self.json {
            return json(&Fact {
                id: tree.get(),
                path,
            });
        }
        match path.filter(|path| !path.is_empty()) {
            Some(path) => say!("ID {tree} path {path}"),
            None => say!("ID {tree} (top level)"),
        }
        Ok(())
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
                // 0 is the subvolume that the directory is in.
                let id = id.unwrap_or(TreeId(0));
                btrfs::set_default_subvolume(directory.as_fd(), id).map_err(|e| said(site, e))
            }
        }
    }
}
