//! `butterfs rm`.

use crate::changes::{Start, name_of};
use crate::fail::{Done, Failure};
use crate::files_bar::FilesBar;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::place::Place;
use butterfs::{FileType, FsError, Volume};
use clap::Args;

/// Removes files and directories from a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs rm disk.img:/etc/nologin
  butterfs rm -r disk.img:/var/cache/apt

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
    start: Start,
    /// VOLUME:/path, one or more, in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

impl Rm {
    /// Runs it.
    pub fn run(self) -> Done {
        self.start.change(&self.places, |volume| {
            let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
            for place in &self.places {
                self.remove(volume, place, &left_out)
                    .or_else(|undone| left_out.undone(undone))?;
            }
            left_out.ended("removed")
        })
    }

    fn remove(&self, volume: &Volume, place: &Place, left_out: &LeftOut) -> Result<(), Undone> {
        let (parent, name) = match name_of(volume, place) {
            // A directory on the way is missing, and with it the file.
            Err(_) if self.force && volume.attributes(parent_path(place)).is_err() => return Ok(()),
            found => found.map_err(Undone::Entry)?,
        };
        let files = volume.files();
        let found = match files.lookup(parent, name) {
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
        let removed = volume.remove_tree_where_possible::<Failure>(parent, name, &mut |error| {
            left_out.undone(Undone::from(error).at(place))
        });
        Ok(removed?)
    }
}

/// The path up to its last name.
fn parent_path(place: &Place) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    let path = place.path.as_bytes();
    let end = path.iter().rposition(|byte| *byte != b'/').unwrap_or(0);
    let cut = path[..end].iter().rposition(|byte| *byte == b'/');
    &path[..cut.unwrap_or(0)]
}
