//! Members of an archive become files of a volume or a mount.

use crate::changes::own;
use crate::fail::{Done, Failure};
use crate::files_bar::FilesBar;
use crate::frames::Kept;
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::left_out::{LeftOut, OnUndone, Undone};
use butterfs::{FileType, FsError, Inode, InodeId, NewInode, Owner, SetAttributes, SetTime};
use butterfs_admin::archive::{Member, MemberKind};
use std::collections::HashSet;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

const STEP: usize = 1 << 20;
/// The most symbolic links that are followed in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// Extracting into a volume or a mount.
pub(super) struct Work<'a> {
    ground: Ground<'a>,
    root: InodeId,
    /// A server learns from its calls that nobody wants it any more.
    interrupt: Option<Interrupt>,
    /// Who owns the files, if not the owners in the archive.
    own: Option<Owner>,
    files: u64,
    /// Attributes that volumes do not accept.
    refused: u64,
    pub(super) left_out: LeftOut,
    /// Where the root is in the volume.
    root_path: &'a [u8],
    /// Symbolic links that came from the archive.
    links: HashSet<InodeId>,
    /// Directories, which get their times after their content.
    directories: Vec<(Arc<Inode>, Member)>,
    /// What a server keeps of what it is sent.
    kept: Kept,
}

/// A member's path, for people.
pub(super) fn shown(path: &[Vec<u8>]) -> String {
    String::from_utf8_lossy(&path.join(&b'/')).into_owned()
}

/// What was made of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    File,
    /// It is the directory into which the archive is extracted.
    Nothing,
}

impl<'a> Work<'a> {
    /// Into `root`, for `own` or for the owners in the archive. `root_path` is where
    /// the root is in a volume.
    pub(super) fn new(
        ground: Ground<'a>,
        (root, root_path): (InodeId, &'a [u8]),
        own: Option<Owner>,
    ) -> Self {
        Self {
            ground,
            root,
            interrupt: None,
            own,
            files: 0,
            refused: 0,
            left_out: LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true)),
            root_path,
            links: HashSet::new(),
            directories: Vec::new(),
            kept: Kept::default(),
        }
    }

    /// The user may interrupt it, and sees what is left out beside a line.
    pub(super) fn watched(mut self, interrupt: Interrupt, bar: &FilesBar) -> Self {
        self.interrupt = Some(interrupt);
        self.left_out = LeftOut::new(OnUndone::GoesOn, bar);
        self
    }

    /// Extracts a member, or leaves it out.
    pub(super) fn take(&mut self, member: Member, content: &mut dyn Read) -> Done {
        let path = shown(&member.path);
        let tried = self.one(member, content);
        let made = self.left_out.entry(path, tried)?;
        self.files += u64::from(made == Some(Made::File));
        Ok(())
    }

    /// Ends what was read with this result.
    pub(super) fn ended(mut self, read: Done) -> Done {
        let files = self.files;
        read.map_err(|failure| match files {
            0 => failure,
            _ => Failure(format!(
                "{}; {files} files before it are extracted, each whole",
                failure.0
            )),
        })?;
        self.finish()?;
        say!("{files} files");
        if self.refused > 0 {
            note!(
                "butterfs: {} owners or attributes are none that the destination takes",
                self.refused
            );
        }
        self.left_out.ended("extracted")
    }

    fn check_interrupt(&self) -> Done {
        self.interrupt.as_ref().map_or(Ok(()), Interrupt::check)
    }

    /// Bounds what a server keeps for whoever sends an archive.
    fn keep(&mut self, bytes: usize) -> Done {
        match self.ground.is_mounted() {
            true => self.kept.keep(bytes),
            false => Ok(()),
        }
    }

    /// Notes a directory, which gets its metadata in the end.
    fn note_directory(&mut self, id: InodeId, member: Member) -> Result<(), Undone> {
        let attributes = member.attributes.iter();
        let attributes: usize = attributes
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let names: usize = member.path.iter().map(|name| name.len() + 32).sum();
        self.keep(size_of::<Member>() + attributes + names)?;
        let inode = self.ground.volume.files().inode(id)?;
        self.directories.push((inode, member));
        Ok(())
    }

    fn one(&mut self, member: Member, content: &mut dyn Read) -> Result<Made, Undone> {
        self.check_interrupt()?;
        let Some((name, above)) = member.path.split_last() else {
            // The directory itself.
            if member.kind == MemberKind::Directory {
                self.note_directory(self.root, member)?;
            }
            return Ok(Made::Nothing);
        };
        let parent = self.directory(above)?;
        if member.kind == MemberKind::Directory {
            let id = self.make_directory(parent, name)?;
            self.note_directory(id, member)?;
            return Ok(Made::File);
        }
        self.other(parent, name, &member, content)?;
        Ok(Made::File)
    }

    /// The directory at a path; it is made if it is missing. Links that the
    /// volume had before lead to it. A link of the archive is replaced, so that
    /// no member can lead others elsewhere.
    fn directory(&self, path: &[Vec<u8>]) -> Result<InodeId, Undone> {
        let files = self.ground.calls;
        let mut at = self.root;
        for (depth, name) in (1..).zip(path) {
            let behind = match files.lookup(at, name) {
                Ok(there) if there.kind == FileType::Directory => Some(there.inode),
                Ok(there) if there.kind == FileType::Symlink && self.ground.is_mounted() => {
                    match self.links.contains(&there.inode) {
                        true => None,
                        false => Some(self.below_root(&path[..depth])?),
                    }
                }
                Ok(there) if there.kind == FileType::Symlink => self.behind_link(&path[..depth]),
                _ => None,
            };
            at = match behind {
                Some(directory) => directory,
                None => self.make_directory(at, name)?,
            };
        }
        Ok(at)
    }

    /// The directory at a path on a mount, through links that do not lead out of
    /// the directory into which the archive goes. What lies outside of it, nobody
    /// showed.
    fn below_root(&self, path: &[Vec<u8>]) -> Result<InodeId, Undone> {
        let files = self.ground.calls;
        let outside = || {
            Undone::Entry(Failure(format!(
                "{} leads out of the directory into which the archive goes",
                shown(path)
            )))
        };
        let mut rest: Vec<Vec<u8>> = path.iter().rev().cloned().collect();
        let (mut way, mut links) = (vec![self.root], 0);
        while let Some(name) = rest.pop() {
            let at = *way.last().ok_or_else(outside)?;
            if name.is_empty() || name == b"." {
                continue;
            }
            if name == b".." {
                way.pop();
                continue;
            }
            let there = files.lookup(at, &name)?;
            match there.kind {
                FileType::Directory => way.push(there.inode),
                FileType::Symlink if !self.links.contains(&there.inode) => {
                    links += 1;
                    let target = files.read_link(there.inode)?;
                    if target.starts_with(b"/") || links > LINKS_MAX {
                        return Err(outside());
                    }
                    let names = target.split(|byte| *byte == b'/').rev();
                    rest.extend(names.map(<[u8]>::to_vec));
                }
                _ => return Err(FsError::NotADirectory.into()),
            }
        }
        way.last().copied().ok_or_else(outside)
    }

    /// The directory at a path, through links of the volume alone.
    fn behind_link(&self, path: &[Vec<u8>]) -> Option<InodeId> {
        let files = self.ground.volume.files();
        let names_of = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|byte| *byte == b'/').rev();
            let names = names.filter(|name| !name.is_empty() && *name != b".");
            names.map(<[u8]>::to_vec).collect()
        };
        let mut rest = names_of(&[self.root_path, b"/", &path.join(&b'/')].concat());
        let (mut at, mut links) = (files.root(), 0);
        while let Some(name) = rest.pop() {
            let there = files.lookup(at, &name).ok()?;
            match there.kind {
                FileType::Directory => at = there.inode,
                FileType::Symlink if !self.links.contains(&there.inode) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return None;
                    }
                    let target = files.read_link(there.inode).ok()?;
                    if target.starts_with(b"/") {
                        at = files.root();
                    }
                    rest.extend(names_of(&target));
                }
                _ => return None,
            }
        }
        Some(at)
    }

    /// A directory of this name: the existing one, or a new one in place of
    /// anything else.
    fn make_directory(&self, parent: InodeId, name: &[u8]) -> Result<InodeId, Undone> {
        let files = self.ground.calls;
        match files.lookup(parent, name) {
            Ok(there) if there.kind == FileType::Directory => return Ok(there.inode),
            Ok(_) => files.unlink(parent, name)?,
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let new = NewInode::new(libc::S_IFDIR | 0o755, own());
        Ok(files.create(parent, name, &new)?.id)
    }

    /// Makes what is not a directory. It gets its name when it is complete.
    fn other(
        &mut self,
        parent: InodeId,
        name: &[u8],
        member: &Member,
        content: &mut dyn Read,
    ) -> Result<(), Undone> {
        let (files, volume) = (self.ground.calls, self.ground.volume);
        if let MemberKind::HardLink(target) = &member.kind {
            let id = self.find(target)?;
            if files
                .lookup(parent, name)
                .is_ok_and(|there| there.inode == id)
            {
                return Ok(());
            }
            self.free(parent, name)?;
            return Ok(files.link(id, parent, name)?);
        }
        let owner = self.owner(member);
        let mut new = match &member.kind {
            MemberKind::Symlink(target) => NewInode::symlink(target, owner),
            MemberKind::CharDevice(_) => NewInode::new(libc::S_IFCHR, owner),
            MemberKind::BlockDevice(_) => NewInode::new(libc::S_IFBLK, owner),
            MemberKind::Fifo => NewInode::new(libc::S_IFIFO, owner),
            _ => NewInode::new(libc::S_IFREG, owner),
        };
        if let MemberKind::CharDevice(number) | MemberKind::BlockDevice(number) = member.kind {
            new.rdev = number;
        }
        let inode = files.create_unnamed(parent, &new)?;
        volume.files().pin(&inode);
        if let MemberKind::Symlink(_) = member.kind {
            self.keep(64)?;
            self.links.insert(inode.id);
        }
        let made = self.fill(&inode, member, content).and_then(|()| {
            self.free(parent, name)?;
            Ok(files.link(inode.id, parent, name)?)
        });
        // If it got no name, this removes it.
        let unpinned = volume.files().unpin(&inode, 1);
        made?;
        Ok(unpinned?)
    }

    fn fill(
        &mut self,
        inode: &Arc<Inode>,
        member: &Member,
        content: &mut dyn Read,
    ) -> Result<(), Undone> {
        if member.kind == MemberKind::File {
            let whole = 0..member.size;
            let pieces = member.pieces.as_deref();
            for piece in pieces.unwrap_or(std::slice::from_ref(&whole)) {
                self.piece(inode, piece.clone(), content)?;
            }
            // The end of a sparse file may be a hole.
            if member.pieces.is_some() {
                self.ground.volume.files().truncate(inode, member.size)?;
            }
        }
        self.metadata(inode, member)
    }

    /// Fills a range of a file.
    fn piece(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        content: &mut dyn Read,
    ) -> Result<(), Undone> {
        let room = range.end - range.start;
        let mut buffer = vec![0; usize::try_from(room).unwrap_or(STEP).min(STEP)];
        let mut at = range.start;
        while at < range.end {
            self.check_interrupt()?;
            let left = usize::try_from(range.end - at).unwrap_or(STEP);
            let room = left.min(STEP);
            // What cannot be read of the archive is missing behind it, too.
            let read = content.read_exact(&mut buffer[..room]);
            read.map_err(|error| Undone::All(error.into()))?;
            self.ground.volume.write_at(inode, at, &buffer[..room])?;
            at += room as u64;
        }
        Ok(())
    }

    /// Frees a name for a file.
    fn free(&self, parent: InodeId, name: &[u8]) -> Result<(), Undone> {
        match self.ground.calls.unlink(parent, name) {
            Ok(()) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn find(&self, path: &[Vec<u8>]) -> Result<InodeId, Undone> {
        let mut at = self.root;
        for name in path {
            let found = self.ground.calls.lookup(at, name);
            at = found
                .map_err(|error| Undone::from(error).at(format!("a link to {}", shown(path))))?
                .inode;
        }
        Ok(at)
    }

    fn owner(&self, member: &Member) -> Owner {
        self.own.unwrap_or(Owner {
            uid: member.uid,
            gid: member.gid,
        })
    }

    fn metadata(&mut self, inode: &Inode, member: &Member) -> Result<(), Undone> {
        let files = self.ground.calls;
        let wanted = self.owner(member);
        let given = files.owner_given(wanted);
        let is_kept = given.uid == Some(wanted.uid) && given.gid == Some(wanted.gid);
        // A program must not lend the rights of somebody else.
        let lent = match is_kept {
            true => 0,
            false => libc::S_ISUID | libc::S_ISGID,
        };
        self.refused += u64::from(!is_kept);
        let is_link = matches!(member.kind, MemberKind::Symlink(_));
        let set = SetAttributes {
            mode: (!is_link).then_some(member.permissions & !lent),
            uid: given.uid,
            gid: given.gid,
            ..SetAttributes::default()
        };
        files.set_attributes(inode.id, &set)?;
        for (name, value) in &member.attributes {
            match files.set_xattr(inode, name, value) {
                Ok(()) => {}
                Err(FsError::NotSupported(_)) => self.refused += 1,
                Err(error) => {
                    let name = String::from_utf8_lossy(name);
                    let undone = Undone::from(error).at(format!("its attribute {name}"));
                    self.left_out.attribute(undone.at(shown(&member.path)))?;
                }
            }
        }
        let times = SetAttributes {
            mtime: Some(SetTime::At(member.mtime)),
            ..SetAttributes::default()
        };
        Ok(files.set_attributes(inode.id, &times)?)
    }

    /// Gives directories their metadata, the last one first. What an archive
    /// lists last counts.
    fn finish(&mut self) -> Done {
        let mut done = HashSet::new();
        for (inode, member) in std::mem::take(&mut self.directories).iter().rev() {
            if !done.insert(inode.id) {
                continue;
            }
            let set = self.metadata(inode, member);
            self.left_out.entry(shown(&member.path), set)?;
        }
        Ok(())
    }
}
