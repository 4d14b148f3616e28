//! `butterfs rm`.

use crate::changes::{Start, name_of};
use crate::fail::{Context, Done, fail};
use crate::place::Place;
use butterfs::{FsError, Volume};
use clap::Args;

/// Removes files and directories from a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs rm disk.img:/etc/nologin
  butterfs rm -r disk.img:/var/cache/apt

Subvolumes are deleted by `butterfs subvolume delete`.")]
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
            self.places
                .iter()
                .try_for_each(|place| self.remove(volume, place))
        })
    }

    fn remove(&self, volume: &Volume, place: &Place) -> Done {
        let (parent, name) = match name_of(volume, place) {
            // A directory on the way is missing, and with it the file.
            Err(_) if self.force && volume.attributes(parent_path(place)).is_err() => return Ok(()),
            found => found?,
        };
        let files = volume.files();
        let found = match files.lookup(parent, name) {
            Err(FsError::NotFound) if self.force => return Ok(()),
            found => found.context(place)?,
        };
        if found.subvolume {
            return fail(format!(
                "{place} is a subvolume; `butterfs subvolume delete` deletes it"
            ));
        }
        let is_directory = files.attributes(found.inode).context(place)?.is_directory();
        if is_directory && !self.recursive {
            return fail(format!(
                "{place} is a directory; -r removes it with all below"
            ));
        }
        volume.remove_tree(parent, name).context(place)
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
