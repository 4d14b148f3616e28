//! Sends one subvolume.
//!
//! Owns the order of everything about one inode (names, attributes, data,
//! owner, permissions, times). Owns what is put off to the end: times and
//! inheritable attributes of directories.

use super::changes::{ChangedInode, InodeChanges};
use super::content::Content;
use super::error::SendError;
use super::options::DataMode;
use super::snapshot::Snapshot;
use super::state::{Sender, Subject};
use crate::Inode;
use crate::names::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG};
use crate::xattr::{ACL_DEFAULT, CAPABILITY, COMPRESSION};
use butterfs_format::InodeNumber;
use butterfs_format::item::inode::InodeItem;
use butterfs_format::send_stream::{Command, PathTimes, Special, Version};
use std::sync::Arc;

/// Attributes that a directory passes on to what is made in it. They are set
/// last, so that nothing inherits what it does not have at the sender.
const INHERITED: [&[u8]; 2] = [ACL_DEFAULT, COMPRESSION];
/// Setuid and setgid, which a change of owner or content takes away.
const PRIVILEGES: u32 = 0o6000;

impl<'s> Sender<'_, 's> {
    /// Sends everything but the command at the beginning and the one at the
    /// end.
    pub fn run(&mut self) -> Result<(), SendError> {
        if let Some(old) = self.old {
            self.clear_all(old)?;
        }
        let mut forced = std::mem::take(&mut self.names.forced)
            .into_iter()
            .peekable();
        let mut changes = InodeChanges::new(self.nodes, self.old, self.new)?;
        while let Some(changed) = changes.next()? {
            while let Some(number) = forced.next_if(|number| *number < changed.number) {
                let unchanged = ChangedInode::new(number);
                self.inode(&unchanged, Reason::Forced)?;
            }
            let reason = match forced.next_if_eq(&changed.number) {
                Some(_) => Reason::Forced,
                None => Reason::Changed,
            };
            self.inode(&changed, reason)?;
        }
        for number in forced {
            self.inode(&ChangedInode::new(number), Reason::Forced)?;
        }
        self.current = InodeNumber(u64::MAX);
        self.finish_directories()
    }

    fn clear_all(&mut self, old: &'s Snapshot<'s>) -> Result<(), SendError> {
        let mut changes = InodeChanges::new(self.nodes, Some(old), self.new)?;
        while let Some(changed) = changes.next()? {
            // The target of a symbolic link is a file extent, so a change of it
            // shows in the ranges.
            if changed.names || changed.item || !changed.ranges.is_empty() {
                self.clear(old, changed.number)?;
            }
        }
        // Directories in a directory whose number now belongs to another one
        // may add to the list.
        let mut next = InodeNumber(0);
        while let Some(number) = self.names.forced.range(next..).next().copied() {
            self.clear(old, number)?;
            next = InodeNumber(number.get().saturating_add(1));
        }
        self.remove_gone(old)
    }

    /// Everything about one inode.
    fn inode(&mut self, changed: &ChangedInode, reason: Reason) -> Result<(), SendError> {
        let number = changed.number;
        self.current = number;
        let Some(item) = self.new.inode(number)? else {
            return Ok(());
        };
        let kept = match self.old {
            Some(old) if self.is_kept(number)? => Some((old, old.get_inode(number)?)),
            _ => None,
        };
        match &kept {
            None => self.make(number, item.mode & S_IFMT)?,
            Some((old, _)) if changed.names || reason == Reason::Forced => {
                self.place(old, number)?;
            }
            Some(_) => {}
        }
        let path = if number == InodeNumber::ROOT {
            Vec::new()
        } else {
            let links = self.new.links(number)?;
            let link = links
                .first()
                .ok_or_else(|| self.new.damaged(number, "it has no name"))?;
            self.path_of(link)?
        };
        let subject = Subject {
            number,
            path,
            item,
            old: kept.map(|(_, item)| item),
        };
        if subject.kind() == S_IFDIR {
            self.late.insert(number);
        }
        self.attributes(changed, &subject)
    }

    fn attributes(&mut self, changed: &ChangedInode, subject: &Subject) -> Result<(), SendError> {
        let fresh = subject.old.is_none();
        let (path, item) = (&subject.path[..], &subject.item);
        let mut capability = None;
        if fresh || changed.xattrs {
            capability = self.xattrs(subject)?;
        }
        let mut content = Content::Same;
        if subject.kind() == S_IFREG {
            content = self.content(subject, &changed.ranges)?;
        }
        let owner = |item: &InodeItem| (item.uid, item.gid);
        let mode = |item: &InodeItem| item.mode & 0o7777;
        let owned = subject
            .old
            .as_ref()
            .is_none_or(|old| owner(old) != owner(item));
        if owned {
            self.put(&Command::Chown {
                path,
                uid: item.uid.into(),
                gid: item.gid.into(),
            })?;
        }
        let touched = owned || content == Content::Written;
        let permitted = subject
            .old
            .as_ref()
            .is_none_or(|old| mode(old) != mode(item))
            || (touched && item.mode & PRIVILEGES != 0);
        if permitted && subject.kind() != S_IFLNK {
            self.put(&Command::Chmod {
                path,
                mode: mode(item).into(),
            })?;
        }
        if touched && capability.is_none() && subject.kind() == S_IFREG {
            let all = self.new.xattrs(subject.number)?;
            capability = all
                .into_iter()
                .find(|(name, _)| name == CAPABILITY)
                .map(|(_, value)| value);
        }
        if let Some(value) = capability {
            self.put(&Command::SetXattr {
                path,
                name: CAPABILITY,
                value: &value,
            })?;
        }
        if subject.kind() != S_IFDIR && (fresh || changed.item || content == Content::Written) {
            self.times(path, item)?;
        }
        Ok(())
    }

    fn times(&mut self, path: &[u8], item: &InodeItem) -> Result<(), SendError> {
        let otime = (self.options.version > Version::One).then_some(item.otime);
        self.put(&Command::Times {
            path,
            times: PathTimes {
                atime: item.atime,
                mtime: item.mtime,
                ctime: item.ctime,
                otime,
            },
        })
    }

    /// Sends the attributes that differ, except those that come later. Gives a
    /// capability that differs.
    fn xattrs(&mut self, subject: &Subject) -> Result<Option<Vec<u8>>, SendError> {
        let path = &subject.path[..];
        let later = |name: &[u8]| subject.kind() == S_IFDIR && INHERITED.contains(&name);
        let now = self.new.xattrs(subject.number)?;
        let before = match (&subject.old, self.old) {
            (Some(_), Some(old)) => old.xattrs(subject.number)?,
            _ => Vec::new(),
        };
        let value_in = |all: &[(Vec<u8>, Vec<u8>)], name: &[u8]| {
            let found = all.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| value.clone())
        };
        for (name, _) in &before {
            if value_in(&now, name).is_none() && !later(name) {
                self.put(&Command::RemoveXattr { path, name })?;
            }
        }
        let mut capability = None;
        for (name, value) in now {
            if later(&name) || value_in(&before, &name).as_ref() == Some(&value) {
                continue;
            }
            if name == CAPABILITY {
                capability = Some(value);
                continue;
            }
            self.put(&Command::SetXattr {
                path,
                name: &name,
                value: &value,
            })?;
        }
        Ok(capability)
    }

    /// Before something is made in a directory that the receiver already has:
    /// removes what the directory would pass on.
    pub fn prepare_birth(&mut self, directory: InodeNumber) -> Result<(), SendError> {
        let Some(old) = self.old else {
            return Ok(());
        };
        if self.bare.contains(&directory) || !self.is_kept(directory)? {
            return Ok(());
        }
        self.bare.insert(directory);
        for (name, _) in old.xattrs(directory)? {
            if INHERITED.contains(&&name[..]) {
                let path = self.path_of_directory(directory)?;
                self.put(&Command::RemoveXattr {
                    path: &path,
                    name: &name,
                })?;
            }
        }
        Ok(())
    }

    /// Sends what directories pass on, and their times, after everything that
    /// changes these.
    fn finish_directories(&mut self) -> Result<(), SendError> {
        let mut all: Vec<InodeNumber> = std::mem::take(&mut self.late).into_iter().collect();
        all.sort_unstable();
        for number in all {
            let Some(item) = self.new.inode(number)? else {
                continue;
            };
            if item.mode & S_IFMT != S_IFDIR {
                continue;
            }
            let path = self.path_of_directory(number)?;
            let now = self.new.xattrs(number)?;
            let before = match self.old {
                Some(old) if !self.bare.contains(&number) && self.is_kept(number)? => {
                    old.xattrs(number)?
                }
                _ => Vec::new(),
            };
            for name in INHERITED {
                let value = |all: &[(Vec<u8>, Vec<u8>)]| {
                    let found = all.iter().find(|(other, _)| other == name);
                    found.map(|(_, value)| value.clone())
                };
                match (value(&before), value(&now)) {
                    (before, Some(value)) if before.as_ref() != Some(&value) => {
                        self.put(&Command::SetXattr {
                            path: &path,
                            name,
                            value: &value,
                        })?;
                    }
                    (Some(_), None) => self.put(&Command::RemoveXattr { path: &path, name })?,
                    _ => {}
                }
            }
            self.times(&path, &item)?;
        }
        Ok(())
    }

    /// Makes an inode that is no directory.
    pub fn make_file(&mut self, number: InodeNumber, path: &[u8]) -> Result<(), SendError> {
        let item = self.new.get_inode(number)?;
        let inode = Some(number);
        let kind = match item.mode & S_IFMT {
            S_IFREG => return self.put(&Command::MakeFile { path, inode }),
            S_IFLNK => {
                let target = self.new.target(number)?;
                return self.put(&Command::Symlink {
                    path,
                    inode,
                    target: &target,
                });
            }
            S_IFCHR | S_IFBLK => Special::Node,
            S_IFIFO => Special::Fifo,
            _ => Special::Socket,
        };
        self.put(&Command::MakeSpecial {
            path,
            inode,
            kind,
            mode: item.mode.into(),
            rdev: device_number(item.rdev),
        })
    }

    /// The inode, to read data of.
    pub fn reader(&self, number: InodeNumber) -> Result<Arc<Inode>, SendError> {
        self.files.inode(self.new.id(number)).map_err(SendError::fs)
    }

    /// Whether data are sent.
    pub const fn sends_data(&self) -> bool {
        !matches!(self.options.data, DataMode::Omit)
    }
}

/// Why an inode is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Items of it differ.
    Changed,
    /// Its directory is another one.
    Forced,
}

/// A device number as stat(2) packs it; items keep major and minor apart at
/// bit 20.
const fn device_number(rdev: u64) -> u64 {
    let (major, minor) = (rdev >> 20, rdev & 0xf_ffff);
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12) | ((major & !0xfff) << 32)
}
