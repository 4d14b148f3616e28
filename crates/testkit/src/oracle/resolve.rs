//! From paths to inodes.

use super::inode::Body;
use super::{Id, Oracle, ROOT};
use crate::op::OpPath;
use crate::op::names::NAME_MAX;
use rustix::io::Errno;

/// Greatest number of symbolic links in one path.
const LINKS_MAX: u32 = 40;

/// What happens to a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It is followed.
    Follow,
    /// The link itself is meant.
    Itself,
}

/// A name in a directory, which may or may not exist.
#[derive(Clone, Debug)]
pub struct Place {
    pub directory: Id,
    pub name: Vec<u8>,
}

impl Oracle {
    /// The inode at `path`; the root for the empty path.
    pub(super) fn find(&self, path: &OpPath, last: Last) -> Result<Id, Errno> {
        self.walk(ROOT, &path.0, last, &mut 0)
    }

    fn walk(&self, from: Id, path: &[u8], last: Last, links: &mut u32) -> Result<Id, Errno> {
        let mut at = from;
        let mut rest = path;
        while !rest.is_empty() {
            let (name, behind) = match rest.iter().position(|byte| *byte == b'/') {
                Some(slash) => (&rest[..slash], &rest[slash + 1..]),
                None => (rest, &rest[rest.len()..]),
            };
            let is_last = behind.is_empty();
            let child = self.child(at, name)?;
            let follow = !is_last || last == Last::Follow;
            at = match &self.inode(child).body {
                Body::Symlink(target) if follow => {
                    *links += 1;
                    if *links > LINKS_MAX {
                        return Err(Errno::LOOP);
                    }
                    self.walk(at, target, Last::Follow, links)?
                }
                _ => child,
            };
            rest = behind;
        }
        Ok(at)
    }

    /// The inode called `name` in `directory`.
    pub(super) fn child(&self, directory: Id, name: &[u8]) -> Result<Id, Errno> {
        let entries = self.entries(directory)?;
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        entries.get(name).copied().ok_or(Errno::NOENT)
    }

    pub(super) fn entries(
        &self,
        directory: Id,
    ) -> Result<&std::collections::BTreeMap<Vec<u8>, Id>, Errno> {
        match &self.inode(directory).body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Where the last name of `path` is or would be.
    pub(super) fn place(&self, path: &OpPath) -> Result<Place, Errno> {
        let (parent, name) = match path.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path.0[..slash], &path.0[slash + 1..]),
            None => (&path.0[..0], &path.0[..]),
        };
        let directory = self.walk(ROOT, parent, Last::Follow, &mut 0)?;
        self.entries(directory)?;
        Ok(Place {
            directory,
            name: name.to_vec(),
        })
    }

    /// Where a new name can be made.
    pub(super) fn free_place(&self, path: &OpPath) -> Result<Place, Errno> {
        let place = self.place(path)?;
        match self.child(place.directory, &place.name) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok(place),
            Err(error) => Err(error),
        }
    }
}
