//! `butterfs mv`.

use crate::changes::{Start, last_name, verify_is_name_of_file};
use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::on_mount::{Ending, OnFiles};
use crate::place::Place;
use crate::service::Effect;
use butterfs::{FileType, FsError, InodeId, RenameMode};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Renames and moves, within a volume or on a mount.
#[derive(Args, Debug, Deserialize, Serialize)]
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
    #[serde(skip)]
    start: Start,
    /// VOLUME:/path or paths on a mount of the sources, and then of the
    /// destination.
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    places: Vec<Place>,
}

impl OnFiles for Mv {
    const TAG: &'static str = "Mv";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        let last = self.places.len().saturating_sub(1);
        let places = self.places.iter_mut().enumerate();
        let ending = |at| match at == last {
            true => Ending::Destination,
            false => Ending::Name,
        };
        places.map(|(at, place)| (place, ending(at))).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    fn here(self) -> Done {
        let work = |volume: &_| self.on(&Ground::opened(volume));
        self.start.change(&self.places, work)
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let Some((destination, sources)) = self.places.split_last() else {
            return fail("sources and a destination are needed");
        };
        let into = ground.directory(destination)?;
        if into.is_none() && sources.len() > 1 {
            return fail(format!("{destination} is no directory"));
        }
        let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for source in sources {
            let moved = self.to(ground, source, (destination, into), &left_out);
            left_out.entry(source, moved)?;
        }
        left_out.ended("moved")
    }
}

impl Mv {
    fn to(
        &self,
        ground: &Ground<'_>,
        source: &Place,
        (destination, into): (&Place, Option<InodeId>),
        left_out: &LeftOut,
    ) -> Result<(), Undone> {
        let (dir, name) = ground.name_of(source)?;
        let from = butterfs::Place { dir, name };
        let to = match into {
            Some(dir) => butterfs::Place {
                dir,
                name: last_name(source).map_err(Undone::Entry)?,
            },
            None => {
                let source = ground.calls.lookup(from.dir, from.name);
                if source.is_ok_and(|source| source.kind != FileType::Directory) {
                    verify_is_name_of_file(destination)?;
                }
                let (dir, name) = ground
                    .name_of(destination)
                    .map_err(|undone| Undone::All(undone.into_failure()))?;
                butterfs::Place { dir, name }
            }
        };
        self.one(ground, from, to, &mut |error| {
            left_out.undone(Undone::from(error).at(source))
        })
    }

    /// Moves one source. `undone` learns of each file that cannot be moved to
    /// another subvolume.
    fn one(
        &self,
        ground: &Ground<'_>,
        from: butterfs::Place<'_>,
        to: butterfs::Place<'_>,
        undone: &mut dyn FnMut(butterfs::Error) -> Done,
    ) -> Result<(), Undone> {
        let (files, volume) = (ground.calls, ground.volume);
        let mode = match self.no_clobber {
            true => RenameMode::NoReplace,
            false => RenameMode::Replace,
        };
        match files.rename(from, to, mode) {
            Err(FsError::CrossesSubvolumes) if !ground.is_mounted() => {}
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
