//! `butterfs mv`.

use crate::changes::{Start, directory, last_name, name_of, verify_is_name_of_file};
use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::place::Place;
use butterfs::{FileType, FsError, InodeId, OldName, RenameMode, Volume};
use clap::Args;

/// Renames and moves within a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs mv disk.img:/etc/issue disk.img:/etc/issue.old
  butterfs mv disk.img:/a disk.img:/b disk.img:/directory

From one subvolume to another the files are copied so that they share their data, and then
removed. What cannot be moved is named, all else is moved, and the exit code is 1.")]
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
        let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for source in sources {
            let moved = self.to(volume, source, (destination, into), &left_out);
            left_out.entry(source, moved)?;
        }
        left_out.ended("moved")
    }

    fn to(
        &self,
        volume: &Volume,
        source: &Place,
        (destination, into): (&Place, Option<InodeId>),
        left_out: &LeftOut,
    ) -> Result<(), Undone> {
        let (dir, name) = name_of(volume, source).map_err(Undone::Entry)?;
        let from = butterfs::Place { dir, name };
        let to = match into {
            Some(dir) => butterfs::Place {
                dir,
                name: last_name(source).map_err(Undone::Entry)?,
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
        self.one(volume, from, to, &mut |error| {
            left_out.undone(Undone::from(error).at(source))
        })
    }

    /// Moves one source. `undone` learns of each file that cannot be moved to
    /// another subvolume.
    fn one(
        &self,
        volume: &Volume,
        from: butterfs::Place<'_>,
        to: butterfs::Place<'_>,
        undone: &mut dyn FnMut(butterfs::Error) -> Done,
    ) -> Result<(), Undone> {
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
            Ok(_) if self.no_clobber => return Err(FsError::Exists.into()),
            Ok(there) if files.attributes(there.inode)?.is_directory() => {
                // Never merged, as with mv(1).
                let removed = files.rmdir(to.dir, to.name);
                removed.map_err(|error| Undone::from(error).at("the destination"))?;
            }
            Ok(_) => files.unlink(to.dir, to.name)?,
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let (source, mut is_whole) = ((source.inode, to.dir, to.name), true);
        volume.clone_tree_where_possible::<Failure>(source, &mut |_| {}, &mut |error| {
            is_whole = false;
            undone(error)
        })?;
        if !is_whole {
            return Err(Undone::Entry(Failure(
                "it stays, because not all of it could be copied".to_owned(),
            )));
        }
        Ok(volume.remove_tree_where_possible::<Failure>(from.dir, from.name, undone)?)
    }
}
