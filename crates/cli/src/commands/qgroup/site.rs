//! Where the groups of a command are: in a volume that is not mounted, or below
//! a mountpoint.

use crate::commands::quota::mounted::Mounted;
use crate::commands::quota::{self, QuotaSite};
use crate::commands::subvolume::site::{Site, check_root, open_directory, said, subvolume_at};
use crate::fail::{Context, Failure};
use butterfs::quota::GroupId;
use butterfs::{Part, Volume};
use butterfs_kernel as kernel;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::AsFd;

/// Changes groups of a volume, mounted or not, and closes it.
pub fn change<R, E: Display>(
    word: &OsString,
    unmounted: impl FnOnce(&Volume) -> Result<R, E>,
    mounted: impl FnOnce(&Mounted) -> Result<R, Failure>,
) -> Result<R, Failure> {
    match QuotaSite::parse(word)? {
        QuotaSite::Unmounted(place) => {
            let volume = quota::open(&place)?;
            let done = unmounted(&volume).context(word.display())?;
            volume.close()?;
            Ok(done)
        }
        QuotaSite::Mounted(place) => mounted(&place),
    }
}

/// The group of the subvolume at a path.
pub fn group_at(word: &OsStr) -> Result<GroupId, Failure> {
    let tree = match Site::parse(word) {
        Site::Unmounted(place) => subvolume_at(&place.open_read_only(None)?, &place)?,
        Site::Mounted(path) => {
            let directory = open_directory(&path)?;
            check_root(path.display(), directory.as_fd())?;
            let found = kernel::subvolume_info(directory.as_fd());
            found.map_err(|error| said(&path.display(), error))?.id
        }
    };
    Ok(GroupId::of_tree(tree))
}

/// The volume or mountpoint that a word names, with a path in it or without.
pub fn without_path(word: &OsStr) -> Result<OsString, Failure> {
    match Site::parse(word) {
        Site::Unmounted(place) => {
            place.verify_exists(Part::Whole)?;
            Ok(place.volume.into())
        }
        Site::Mounted(_) => Ok(word.to_owned()),
    }
}
