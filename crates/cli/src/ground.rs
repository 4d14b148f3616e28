//! Where a command on files works: in a volume that it opened itself, or below
//! directories that another process showed to the server of a mount.
//!
//! Owns what the paths of such a command stand for. In a volume they are
//! resolved from its root. On a mount the kernel has resolved them, for the
//! process that asked ([`crate::on_mount`]).

use crate::changes;
use crate::fail::Failure;
use crate::left_out::{OnUndone, Undone};
use crate::place::Place;
use butterfs::{Calls, InodeId, Volume};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;

/// What a path on a mount stands for.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Begun {
    /// What the descriptor of this number stands for.
    At(usize),
    /// A name in the directory that it stands for.
    Named(usize, Vec<u8>),
    /// The process cannot reach it, for the reason of this errno.
    Failed(i32),
}

/// A path as somebody wrote it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Given {
    /// The path.
    pub word: OsString,
    /// What it stands for.
    pub begun: Begun,
}

/// The paths of a command on a mount, by what was written.
#[derive(Debug)]
pub struct Shown {
    starts: Vec<InodeId>,
    given: HashMap<OsString, Begun>,
}

impl Shown {
    /// Paths, and what the process's descriptors stand for.
    pub fn new(given: Vec<Given>, starts: Vec<InodeId>) -> Self {
        let given = given.into_iter();
        Self {
            starts,
            given: given.map(|given| (given.word, given.begun)).collect(),
        }
    }

    /// The inode of a descriptor, and the name in it that a path ends with.
    fn of(&self, place: &Place) -> Result<(InodeId, Option<&[u8]>), Undone> {
        let unknown = || Undone::Entry(Failure("nobody showed where this is".to_owned()));
        let start = |number: &usize| self.starts.get(*number).copied().ok_or_else(unknown);
        match self.given.get(&place.path).ok_or_else(unknown)? {
            Begun::At(number) => Ok((start(number)?, None)),
            Begun::Named(number, name) => Ok((start(number)?, Some(name))),
            Begun::Failed(errno) => Err(io::Error::from_raw_os_error(*errno).into()),
        }
    }
}

/// Where a command on files works.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// What carries out its calls.
    pub calls: &'a dyn Calls,
    /// The volume below it. It asks nobody who may do what.
    pub volume: &'a Volume,
    shown: Option<&'a Shown>,
}

impl<'a> Ground<'a> {
    /// A volume that the command opened.
    pub fn opened(volume: &'a Volume) -> Self {
        Self {
            calls: volume,
            volume,
            shown: None,
        }
    }

    /// A mount's volume, for another process.
    pub fn mounted(volume: &'a Volume, calls: &'a dyn Calls, shown: &'a Shown) -> Self {
        Self {
            calls,
            volume,
            shown: Some(shown),
        }
    }

    /// Whether it is on a mount.
    pub const fn is_mounted(&self) -> bool {
        self.shown.is_some()
    }

    /// What happens if a command that only looks cannot look at something. On a
    /// mount that may be a right which the caller does not have.
    pub const fn when_unreadable(&self) -> OnUndone {
        match self.shown {
            Some(_) => OnUndone::GoesOn,
            None => OnUndone::Ends,
        }
    }

    /// What is at a place. A link at its end is not followed.
    pub fn find(&self, place: &Place) -> Result<InodeId, Undone> {
        let Some(shown) = self.shown else {
            return Ok(self.volume.resolve(&place.path)?);
        };
        match shown.of(place)? {
            (start, None) => Ok(start),
            (dir, Some(name)) => Ok(self.calls.lookup(dir, name)?.inode),
        }
    }

    /// What is at a place. A link at its end is followed.
    pub fn followed(&self, place: &Place) -> Result<InodeId, Undone> {
        match self.shown {
            None => changes::followed(self.volume, place).map_err(Undone::Entry),
            // The kernel followed it.
            Some(_) => self.find(place),
        }
    }

    /// The directory at a place, if there is one. A link to a directory counts.
    pub fn directory(&self, place: &Place) -> Result<Option<InodeId>, Failure> {
        let Some(shown) = self.shown else {
            return changes::directory(self.volume, place);
        };
        match shown.of(place).map_err(Undone::into_failure)? {
            (start, None) => {
                let of = self.calls.attributes(start)?;
                Ok(of.is_directory().then_some(start))
            }
            (_, Some(_)) => Ok(None),
        }
    }

    /// The directory and name of a place.
    pub fn name_of<'p>(&'p self, place: &'p Place) -> Result<(InodeId, &'p [u8]), Undone> {
        let Some(shown) = self.shown else {
            return changes::name_of(self.volume, place).map_err(Undone::Entry);
        };
        match shown.of(place)? {
            (dir, Some(name)) => Ok((dir, name)),
            (_, None) => Err(Undone::Entry(Failure("it has no name here".to_owned()))),
        }
    }

    /// Whether a directory on the way to a place is missing.
    pub fn lacks_way(&self, place: &Place) -> bool {
        match self.shown {
            None => self.volume.attributes(parent_path(place)).is_err(),
            Some(shown) => matches!(
                shown.given.get(&place.path),
                Some(Begun::Failed(libc::ENOENT | libc::ENOTDIR))
            ),
        }
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
