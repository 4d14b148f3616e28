//! `butterfs mkdir`.

use super::chmod::ModeChange;
use crate::changes::{Start, directory};
use crate::fail::{Context, Done};
use crate::place::Place;
use butterfs::{SetAttributes, Volume};
use clap::Args;
use std::os::unix::ffi::OsStrExt;

/// Makes directories in a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs mkdir -p disk.img:/srv/www/logs")]
pub struct Mkdir {
    /// Make missing parent directories; an existing directory is no error.
    #[arg(short, long)]
    parents: bool,
    /// Permissions, as chmod(1) takes them (default 755).
    #[arg(short, long)]
    mode: Option<ModeChange>,
    #[command(flatten)]
    start: Start,
    /// VOLUME:/path, one or more, in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

impl Mkdir {
    /// Runs it.
    pub fn run(self) -> Done {
        self.start.change(&self.places, |volume| {
            self.places
                .iter()
                .try_for_each(|place| self.make(volume, place))
        })
    }

    fn make(&self, volume: &Volume, place: &Place) -> Done {
        if self.parents {
            let path = place.path.as_bytes();
            let ends = (1..path.len()).filter(|at| path[*at] == b'/');
            for end in ends {
                let above = Place {
                    volume: place.volume.clone(),
                    path: std::ffi::OsStr::from_bytes(&path[..end]).to_owned(),
                };
                if directory(volume, &above)?.is_none() {
                    volume.create_dir(above.path.as_bytes())?;
                }
            }
            if directory(volume, place)?.is_some() {
                return Ok(());
            }
        }
        let made = volume.create_dir(place.path.as_bytes())?;
        if let Some(mode) = &self.mode {
            let files = volume.files();
            let old = files.attributes(made).context(place)?.mode;
            let set = SetAttributes {
                mode: Some(mode.applied_to(old)),
                ..SetAttributes::default()
            };
            let inode = files.inode(made).context(place)?;
            files.set_attributes(&inode, &set).context(place)?;
        }
        Ok(())
    }
}
