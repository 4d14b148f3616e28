//! `butterfs mv`.

use crate::changes::{Start, directory, last_name, name_of, verify_is_name_of_file};
use crate::fail::{Context, Done, fail};
use crate::place::Place;
use butterfs::{FileType, FsError, OldName, RenameMode, Volume};
use clap::Args;

/// Renames and moves within a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs mv disk.img:/etc/issue disk.img:/etc/issue.old
  butterfs mv disk.img:/a disk.img:/b disk.img:/directory

From one subvolume to another the files are copied so that they share their data, and then
removed.")]
pub struct Mv {
    /// Fail where the new name exists.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    start: Start,
    /// VOLUME:/path of the sources, and then of the destination.
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    places: Vec<Place>,
}

impl Mv {
    /// Runs it.
    pub fn run(self) -> Done {
        self.start.change(&self.places, |volume| self.all(volume))
    }

    fn all(&self, volume: &Volume) -> Done {
        let Some((destination, sources)) = self.places.split_last() else {
            return fail("sources and a destination are needed");
        };
        let into = directory(volume, destination)?;
        if into.is_none() && sources.len() > 1 {
            return fail(format!("{destination} is no directory"));
        }
        for source in sources {
            let (dir, name) = name_of(volume, source)?;
            let from = butterfs::Place { dir, name };
            let to = match into {
                Some(dir) => butterfs::Place {
                    dir,
                    name: last_name(source)?,
                },
                None => {
                    let source = volume.files().lookup(from.dir, from.name);
                    if source.is_ok_and(|source| source.kind != FileType::Directory) {
                        verify_is_name_of_file(destination)?;
                    }
                    let (dir, name) = name_of(volume, destination)?;
                    butterfs::Place { dir, name }
                }
            };
            self.one(volume, from, to)
                .map_err(|failure| failure.at(source))?;
        }
        Ok(())
    }

    fn one(&self, volume: &Volume, from: butterfs::Place<'_>, to: butterfs::Place<'_>) -> Done {
        let files = volume.files();
        let mode = match self.no_clobber {
            true => RenameMode::NoReplace,
            false => RenameMode::Replace,
        };
        match files.rename(from, to, mode, OldName::Free) {
            Err(FsError::CrossesSubvolumes) => {}
            renamed => return Ok(renamed?),
        }
        let source = files.lookup(from.dir, from.name)?;
        match files.lookup(to.dir, to.name) {
            Ok(_) if self.no_clobber => return fail("the new name exists already"),
            Ok(there) if files.attributes(there.inode)?.is_directory() => {
                // Never merged, as with mv(1).
                files.rmdir(to.dir, to.name).context("the destination")?;
            }
            Ok(_) => files.unlink(to.dir, to.name)?,
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        volume.clone_tree(source.inode, to.dir, to.name, &mut |_| {})?;
        Ok(volume.remove_tree(from.dir, from.name)?)
    }
}
