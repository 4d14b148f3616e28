//! Changes of volumes that are not mounted, by path.
//!
//! Owns opening one volume for all paths of a command, and closing it. When the
//! command returns, what it changed is on the device, or the command fails.

use crate::fail::{Context, Done, Failure, fail};
use crate::part::PartArguments;
use crate::place::Place;
use butterfs::{InodeId, OpenOptions, Owner, Part, Subvolume, Volume};
use clap::Args;
use std::os::unix::ffi::OsStrExt;

/// Where the paths of a command in a volume begin.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Start {
    /// Subvolume id to start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    #[command(flatten)]
    part: PartArguments,
}

impl Start {
    /// From the arguments of commands that have more of their own.
    pub const fn new(subvolid: Option<u64>, part: PartArguments) -> Self {
        Self { subvolid, part }
    }

    /// Whether nothing was said.
    pub fn is_plain(&self) -> bool {
        self.subvolid.is_none() && self.part.part() == Part::Whole
    }

    /// Opens the volume of a place for looking.
    pub fn open(&self, place: &Place) -> Result<Volume, Failure> {
        check_not_mounted(place)?;
        place.open_part(self.subvolid, self.part.part())
    }

    /// Opens the one volume of all `places`, lets `work` change it, and closes
    /// it. What was changed before a failure stays.
    pub fn change(&self, places: &[Place], work: impl FnOnce(&Volume) -> Done) -> Done {
        let Some(first) = places.first() else {
            return fail("no VOLUME:/path was given");
        };
        if places.iter().any(|place| place.volume != first.volume) {
            return fail("all paths must be in one volume");
        }
        check_not_mounted(first)?;
        let mut options = OpenOptions {
            part: self.part.part(),
            owner: own(),
            ..OpenOptions::default()
        };
        if let Some(id) = self.subvolid {
            options.subvolume = Subvolume::Id(id);
        }
        let volume = Volume::open(&first.volume, options).context(first.volume.display())?;
        let done = work(&volume);
        // Without a close, none of it is on the device.
        volume.close().context(first.volume.display())?;
        done
    }
}

/// The user and group that run this program.
pub fn own() -> Owner {
    Owner {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

fn check_not_mounted(place: &Place) -> Done {
    if place.volume.is_dir() {
        return fail(format!(
            "{} is a directory, and on no mount of ButterFS that this command can use; use the \
             system's own commands there, and here name the file or device that holds a volume, as \
             in disk.img:/path",
            place.volume.display()
        ));
    }
    Ok(())
}

/// The inode at a place. A link at its end is followed.
pub fn followed(volume: &Volume, place: &Place) -> Result<InodeId, Failure> {
    // The slash makes a link be followed, also to a file.
    Ok(volume.resolve(&[place.path.as_bytes(), b"/"].concat())?)
}

/// The directory at a place, if there is one. A link to a directory counts.
pub fn directory(volume: &Volume, place: &Place) -> Result<Option<InodeId>, Failure> {
    let Ok(id) = followed(volume, place) else {
        return Ok(None);
    };
    let of = volume.files().attributes(id).context(place)?;
    Ok(of.is_directory().then_some(id))
}

/// The directory and name of a place that is to be removed or renamed.
pub fn name_of<'p>(volume: &Volume, place: &'p Place) -> Result<(InodeId, &'p [u8]), Failure> {
    let path = place.path.as_bytes();
    let is_root = path.split(|byte| *byte == b'/').all(<[u8]>::is_empty);
    if is_root {
        return fail(format!("{place}: this is the root of the volume"));
    }
    let (parent, name) = volume.resolve_parent(path)?;
    if matches!(name, b"." | b"..") {
        return fail(format!("{place}: a path cannot end in . or .. here"));
    }
    Ok((parent, name))
}

/// Errors if a new name of what is no directory ends in a slash.
pub fn verify_is_name_of_file(place: &Place) -> Done {
    match place.path.as_bytes().ends_with(b"/") {
        false => Ok(()),
        true => fail(format!(
            "{place}: not a directory; make the directory first, or leave out the slash at the end"
        )),
    }
}

/// The last name of a path: the name that a copy gets in a directory.
pub fn last_name(place: &Place) -> Result<&[u8], Failure> {
    let path = place.path.as_bytes();
    match path
        .split(|byte| *byte == b'/')
        .rfind(|name| !name.is_empty())
    {
        Some(name) if !matches!(name, b"." | b"..") => Ok(name),
        _ => fail(format!("{place} has no name of its own")),
    }
}
