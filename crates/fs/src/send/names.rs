//! The order of commands about names.
//!
//! Owns how the names of the parent snapshot become those of the sent one, in
//! two passes over the inodes that differ:
//!
//! 1. *Clear*: every name that the new snapshot lacks is removed. An inode that
//!    keeps no name at its place moves to its new place at once, if that is
//!    free and cannot lie below the inode. Otherwise it moves into the root,
//!    under a name that neither snapshot has there. Then directories that are
//!    gone are removed, the deepest first.
//! 2. *Place*: only names of the new snapshot remain. So every missing name is
//!    free, and its directory is there or can be made. Inodes are made or moved
//!    to their places in ascending order.
//!
//! Invariants: between the passes no directory that is gone exists, and every
//! directory that moved is in the root or at its final name. So no rename of
//! the second pass can meet an existing name or a loop.

use super::error::SendError;
use super::snapshot::{Elsewhere, Identity, Snapshot, join};
use super::state::Sender;
use crate::dir::Link;
use crate::names::{S_IFDIR, S_IFLNK};
use butterfs_format::InodeNumber;
use butterfs_format::send_stream::Command;
use rustc_hash::FxHashMap;

/// The names that an inode keeps, and those that are new to it.
struct Difference {
    kept: Vec<Link>,
    removed: Vec<Link>,
    added: Vec<Link>,
}

impl<'s> Sender<'_, 's> {
    /// True for an inode that both snapshots have.
    pub(super) fn is_kept(&self, number: InodeNumber) -> Result<bool, SendError> {
        let Some(old) = self.old else {
            return Ok(false);
        };
        if number == InodeNumber::ROOT {
            return Ok(true);
        }
        let identity = old.identity(number)?;
        if identity.is_none() || identity != self.new.identity(number)? {
            return Ok(false);
        }
        // The target of a link cannot be changed.
        let is_link = identity.is_some_and(|identity| identity.kind == S_IFLNK);
        Ok(!is_link || old.target(number)? == self.new.target(number)?)
    }

    fn differing_names(
        &self,
        old: &Snapshot<'_>,
        number: InodeNumber,
    ) -> Result<Difference, SendError> {
        let before = old.links(number)?;
        let now = self.new.links(number)?;
        let mut difference = Difference {
            kept: Vec::new(),
            removed: Vec::new(),
            added: Vec::new(),
        };
        // A file may have 65,000 names.
        let places: FxHashMap<(InodeNumber, &[u8]), usize> = now
            .iter()
            .enumerate()
            .map(|(at, link)| ((link.parent, &link.name[..]), at))
            .collect();
        let mut is_new = vec![true; now.len()];
        for link in before {
            let at = places.get(&(link.parent, &link.name[..])).copied();
            match at {
                Some(at) if self.is_kept(link.parent)? => {
                    is_new[at] = false;
                    difference.kept.push(link);
                }
                _ => difference.removed.push(link),
            }
        }
        let of_new = now.into_iter().zip(is_new).filter(|(_, is_new)| *is_new);
        difference.added = of_new.map(|(link, _)| link).collect();
        Ok(difference)
    }

    /// Path that a directory of the old snapshot has now, while names are
    /// cleared.
    fn path_while_clearing(
        &self,
        old: &Snapshot<'_>,
        directory: InodeNumber,
    ) -> Result<Vec<u8>, SendError> {
        old.directory_path(directory, &|at| self.names.moved.get(&at).cloned())
    }

    /// Path that a directory of the new snapshot has now, while names are
    /// placed.
    pub(super) fn path_of_directory(&self, directory: InodeNumber) -> Result<Vec<u8>, SendError> {
        let in_root = |at| match self.names.moved.get(&at) {
            Some(Elsewhere::InRoot(name)) => Some(Elsewhere::InRoot(name.clone())),
            _ => None,
        };
        self.new.directory_path(directory, &in_root)
    }

    pub(super) fn path_of(&self, link: &Link) -> Result<Vec<u8>, SendError> {
        let directory = self.path_of_directory(link.parent)?;
        Ok(join(&directory, &link.name))
    }

    /// First pass, one inode.
    pub(super) fn clear(
        &mut self,
        old: &'s Snapshot<'s>,
        number: InodeNumber,
    ) -> Result<(), SendError> {
        if number == InodeNumber::ROOT || !self.names.cleared.insert(number) {
            return Ok(());
        }
        let Some(identity) = old.identity(number)? else {
            return Ok(());
        };
        if !self.is_kept(number)? {
            return self.clear_gone(old, number, identity);
        }
        let mut difference = self.differing_names(old, number)?;
        if difference.kept.is_empty() && !difference.removed.is_empty() {
            let first = difference.removed.remove(0);
            self.move_away(old, number, &first, &difference.added)?;
        }
        for link in difference.removed {
            self.unlink(old, &link)?;
        }
        Ok(())
    }

    fn clear_gone(
        &mut self,
        old: &'s Snapshot<'s>,
        number: InodeNumber,
        identity: Identity,
    ) -> Result<(), SendError> {
        if identity.kind != S_IFDIR {
            for link in old.links(number)? {
                self.unlink(old, &link)?;
            }
            return Ok(());
        }
        self.names.gone.push(number);
        if let Some(other) = self.new.identity(number)? {
            self.names.forced.extend(old.children(number)?);
            if other.kind == S_IFDIR {
                self.names.forced.extend(self.new.children(number)?);
            }
        }
        Ok(())
    }

    fn unlink(&mut self, old: &Snapshot<'_>, link: &Link) -> Result<(), SendError> {
        let directory = self.path_while_clearing(old, link.parent)?;
        let path = join(&directory, &link.name);
        self.late.insert(link.parent);
        self.put(&Command::Unlink { path: &path })
    }

    /// Moves an inode that keeps no name to one of its new ones, or into the
    /// root.
    fn move_away(
        &mut self,
        old: &'s Snapshot<'s>,
        number: InodeNumber,
        from: &Link,
        added: &[Link],
    ) -> Result<(), SendError> {
        let mut target = None;
        for link in added {
            if self.can_take(old, number, link)? {
                target = Some(link);
                break;
            }
        }
        let directory = self.path_while_clearing(old, from.parent)?;
        let path = join(&directory, &from.name);
        let (to, place) = match target {
            Some(link) => {
                let directory = self.path_while_clearing(old, link.parent)?;
                self.late.insert(link.parent);
                let to = join(&directory, &link.name);
                (to, Elsewhere::At(link.clone()))
            }
            None => {
                let name = self.name_in_root(old, number)?;
                (name.clone(), Elsewhere::InRoot(name))
            }
        };
        self.late.insert(from.parent);
        self.late.insert(InodeNumber::ROOT);
        self.names.moved.insert(number, place);
        self.put(&Command::Rename {
            path: &path,
            to: &to,
        })
    }

    /// True if `number` can get the name `link` already while names are
    /// cleared: its directory is there, the name is free, and the directory
    /// does not lie below `number` now.
    fn can_take(
        &self,
        old: &Snapshot<'_>,
        number: InodeNumber,
        link: &Link,
    ) -> Result<bool, SendError> {
        if !self.is_kept(link.parent)? || old.has_name(link.parent, &link.name)? {
            return Ok(false);
        }
        let below = std::cell::Cell::new(false);
        old.directory_path(link.parent, &|at| {
            if at == number {
                below.set(true);
            }
            self.names.moved.get(&at).cloned()
        })?;
        Ok(!below.get())
    }

    /// A name in the root that neither snapshot has there.
    fn name_in_root(&self, old: &Snapshot<'_>, number: InodeNumber) -> Result<Vec<u8>, SendError> {
        let generation = self.new.get_inode(number)?.generation;
        for attempt in 0_u64.. {
            let name = format!("o{number}-{generation}-{attempt}").into_bytes();
            let root = InodeNumber::ROOT;
            if !old.has_name(root, &name)? && !self.new.has_name(root, &name)? {
                return Ok(name);
            }
        }
        Err(self.new.damaged(number, "it finds no free name"))
    }

    /// Ends the first pass: removes directories that are gone.
    pub(super) fn remove_gone(&mut self, old: &'s Snapshot<'s>) -> Result<(), SendError> {
        let mut gone = Vec::new();
        for number in std::mem::take(&mut self.names.gone) {
            let depth = std::cell::Cell::new(0_usize);
            old.directory_path(number, &|_| {
                depth.set(depth.get() + 1);
                None
            })?;
            gone.push((depth.get(), number));
        }
        gone.sort_unstable();
        for (_, number) in gone.into_iter().rev() {
            let link = old.home(number)?;
            let directory = self.path_while_clearing(old, link.parent)?;
            let path = join(&directory, &link.name);
            self.late.insert(link.parent);
            self.put(&Command::RemoveDirectory { path: &path })?;
        }
        Ok(())
    }

    /// Second pass: gives an inode of both snapshots its new names.
    pub(super) fn place(
        &mut self,
        old: &'s Snapshot<'s>,
        number: InodeNumber,
    ) -> Result<(), SendError> {
        if number == InodeNumber::ROOT {
            return Ok(());
        }
        let Difference {
            kept, mut added, ..
        } = self.differing_names(old, number)?;
        let existing = match self.names.moved.get(&number).cloned() {
            Some(Elsewhere::InRoot(name)) if !added.is_empty() => {
                let first = added.remove(0);
                self.enter(first.parent)?;
                let to = self.path_of(&first)?;
                self.put(&Command::Rename {
                    path: &name,
                    to: &to,
                })?;
                self.names
                    .moved
                    .insert(number, Elsewhere::At(first.clone()));
                Some(first)
            }
            Some(Elsewhere::At(link)) => {
                added.retain(|other| *other != link);
                Some(link)
            }
            _ => kept.into_iter().next(),
        };
        let Some(existing) = existing else {
            return Err(self.new.damaged(number, "it lost all of its names"));
        };
        self.link_all(&existing, &added)
    }

    fn link_all(&mut self, existing: &Link, added: &[Link]) -> Result<(), SendError> {
        for link in added {
            self.enter(link.parent)?;
            let (path, existing) = (self.path_of(link)?, self.path_of(existing)?);
            self.put(&Command::Link {
                path: &path,
                existing: &existing,
            })?;
        }
        Ok(())
    }

    /// Second pass: makes an inode that only the new snapshot has.
    pub(super) fn make(&mut self, number: InodeNumber, kind: u32) -> Result<(), SendError> {
        if number == InodeNumber::ROOT {
            return Ok(());
        }
        if kind == S_IFDIR {
            if !self.names.made.remove(&number) {
                self.make_directory(number)?;
            }
            return Ok(());
        }
        let links = self.new.links(number)?;
        let (first, rest) = links
            .split_first()
            .ok_or_else(|| self.new.damaged(number, "it has no name"))?;
        self.enter(first.parent)?;
        self.prepare_birth(first.parent)?;
        self.make_file(number, &self.path_of(first)?)?;
        self.link_all(first, rest)
    }

    /// Makes sure that a directory of the new snapshot is there, and gets its
    /// times at the end.
    fn enter(&mut self, directory: InodeNumber) -> Result<(), SendError> {
        self.late.insert(directory);
        let mut missing = Vec::new();
        let mut at = directory;
        while !self.is_there(at)? {
            if missing.contains(&at) {
                return Err(self.new.damaged(at, "its directories form a loop"));
            }
            missing.push(at);
            at = self.new.home(at)?.parent;
        }
        for number in missing.into_iter().rev() {
            self.make_directory(number)?;
            self.names.made.insert(number);
        }
        Ok(())
    }

    fn is_there(&self, directory: InodeNumber) -> Result<bool, SendError> {
        Ok(directory == InodeNumber::ROOT
            || directory < self.current
            || self.names.made.contains(&directory)
            || self.is_kept(directory)?)
    }

    fn make_directory(&mut self, number: InodeNumber) -> Result<(), SendError> {
        let link = self.new.home(number)?;
        if number == self.current {
            self.enter(link.parent)?;
        }
        self.late.insert(link.parent);
        self.late.insert(number);
        self.prepare_birth(link.parent)?;
        let path = self.path_of(&link)?;
        self.put(&Command::MakeDirectory {
            path: &path,
            inode: Some(number),
        })
    }
}
