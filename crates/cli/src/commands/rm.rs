//! `butterfs rm`.

use crate::changes::Start;
use crate::fail::{Done, Failure};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::on_mount::{Ending, OnFiles};
use crate::place::Place;
use crate::service::Effect;
use butterfs::{FileType, FsError, remove_tree};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Removes files and directories, in a volume or on a mount.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs rm disk.img:/etc/nologin
  butterfs rm -r disk.img:/var/cache/apt
  butterfs rm -r /mnt/var/cache/apt       on a mount, by its server

What cannot be removed is named, all else is removed, and the exit code is 1. A directory that
holds a subvolume stays whole; `butterfs subvolume delete` deletes subvolumes.")]
pub struct Rm {
    /// Directories with all below them too.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Say nothing of what is not there.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    #[serde(skip)]
    start: Start,
    /// VOLUME:/path or paths on a mount, one or more, in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

impl OnFiles for Rm {
    const TAG: &'static str = "Rm";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        let places = self.places.iter_mut();
        places.map(|place| (place, Ending::Name)).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    fn here(self) -> Done {
        let work = |volume: &_| self.on(&Ground::opened(volume));
        self.start.change(&self.places, work)
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for place in &self.places {
            self.remove(ground, place, &left_out)
                .or_else(|undone| left_out.undone(undone))?;
        }
        left_out.ended("removed")
    }
}

impl Rm {
    fn remove(&self, ground: &Ground<'_>, place: &Place, left_out: &LeftOut) -> Result<(), Undone> {
        let (parent, name) = match ground.name_of(place) {
            // A directory on the way is missing, and with it the file.
            Err(_) if self.force && ground.lacks_way(place) => return Ok(()),
            Err(undone) if ground.is_mounted() => return Err(undone.at(place)),
            found => found?,
        };
        let found = match ground.calls.lookup(parent, name) {
            Err(FsError::NotFound) if self.force => return Ok(()),
            found => found.map_err(|error| Undone::from(error).at(place))?,
        };
        if found.subvolume {
            return Err(Undone::Entry(Failure(format!(
                "{place} is a subvolume; `butterfs subvolume delete` deletes it"
            ))));
        }
        // What cannot be read is removed as what its name says.
        let is_directory = found.kind == FileType::Directory;
        if is_directory && !self.recursive {
            return Err(Undone::Entry(Failure(format!(
                "{place} is a directory; -r removes it with all below"
            ))));
        }
        let removed = remove_tree::<Failure>(ground.calls, (parent, name), &mut |error| {
            left_out.undone(Undone::from(error).at(place))
        });
        Ok(removed?)
    }
}
