//! From an archive into a volume.

use super::Extract;
use crate::changes::{directory, own};
use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::interrupt::Interrupt;
use crate::left_out::{LeftOut, OnUndone, Undone};
use butterfs::{
    FileType, FsError, Inode, InodeId, NewInode, Owner, SetAttributes, SetMode, SetTime, Volume,
};
use butterfs_admin::archive::{self, ArchiveError, Member, MemberKind};
use std::collections::HashSet;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

const STEP: usize = 1 << 20;
/// The most symbolic links that are followed in one path, as in Linux.
const LINKS_MAX: usize = 40;

struct Work<'a> {
    volume: &'a Volume,
    root: InodeId,
    interrupt: Interrupt,
    is_own: bool,
    files: u64,
    /// Attributes that volumes do not accept.
    refused: u64,
    left_out: LeftOut,
    /// Where the root is in the volume.
    root_path: &'a [u8],
    /// Symbolic links that came from the archive.
    links: HashSet<InodeId>,
    /// Directories, which get their times after their content.
    directories: Vec<(Arc<Inode>, Member)>,
}

/// What went wrong while an archive was read.
enum Stopped {
    Archive(ArchiveError),
    Other(Failure),
}

impl From<ArchiveError> for Stopped {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

impl Extract {
    /// Runs it.
    pub(super) fn run(self) -> Done {
        let places = [self.place.clone()];
        let mut bar = FilesBar::new(false);
        let name = match &self.file {
            Some(path) => path.display().to_string(),
            None => "standard input".to_owned(),
        };
        let input: Box<dyn Read> = match &self.file {
            Some(path) => {
                let file = archive::open(path).context(&name)?;
                let meta = file.metadata().context(&name)?;
                if meta.is_file() {
                    bar.expect_bytes(meta.len());
                }
                Box::new(file)
            }
            None => Box::new(io::stdin().lock()),
        };
        let done = bar.done();
        let input = archive::decompressed(done.reading(input)).context(&name)?;
        self.start.change(&places, |volume| {
            let Some(root) = directory(volume, &self.place)? else {
                return fail(format!("{} is no directory", self.place));
            };
            let mut work = Work {
                volume,
                root,
                interrupt: Interrupt::watch()?,
                is_own: self.no_owner,
                files: 0,
                refused: 0,
                left_out: LeftOut::new(OnUndone::GoesOn, &bar),
                root_path: self.place.path.as_encoded_bytes(),
                links: HashSet::new(),
                directories: Vec::new(),
            };
            let read = archive::read(input, &mut |found, content| {
                done.file();
                let member = match found {
                    Ok(member) => member,
                    Err(error) => {
                        let undone = Undone::Entry(error.into());
                        return work.left_out.undone(undone).map_err(Stopped::Other);
                    }
                };
                let path = shown(&member.path);
                let tried = work.one(member, content);
                let made = work.left_out.entry(path, tried).map_err(Stopped::Other)?;
                work.files += u64::from(made == Some(Made::File));
                Ok(())
            });
            bar.end();
            let files = work.files;
            let read = read.map_err(|stopped| match stopped {
                Stopped::Archive(error) => Failure(format!("{name}: {error}")),
                Stopped::Other(failure) => failure,
            });
            read.map_err(|failure| match files {
                0 => failure,
                _ => Failure(format!(
                    "{}; {files} files before it are extracted, each whole",
                    failure.0
                )),
            })?;
            work.finish()?;
            say!("{files} files");
            if work.refused > 0 {
                note!(
                    "butterfs: {} attributes are none that a volume takes",
                    work.refused
                );
            }
            work.left_out.ended("extracted")
        })
    }
}

fn shown(path: &[Vec<u8>]) -> String {
    String::from_utf8_lossy(&path.join(&b'/')).into_owned()
}

/// What was made of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    File,
    /// It is the directory into which the archive is extracted.
    Nothing,
}

impl Work<'_> {
    fn one(&mut self, member: Member, content: &mut dyn Read) -> Result<Made, Undone> {
        self.interrupt.check()?;
        let Some((name, above)) = member.path.split_last() else {
            // The directory itself.
            if member.kind == MemberKind::Directory {
                let root = self.volume.files().inode(self.root)?;
                self.directories.push((root, member));
            }
            return Ok(Made::Nothing);
        };
        let parent = self.directory(above)?;
        if member.kind == MemberKind::Directory {
            let id = self.make_directory(parent, name)?;
            let inode = self.volume.files().inode(id)?;
            self.directories.push((inode, member));
            return Ok(Made::File);
        }
        self.other(parent, name, &member, content)?;
        Ok(Made::File)
    }

    /// The directory at a path; it is made if it is missing. Links that the
    /// volume had before lead to it. A link of the archive is replaced, so that
    /// no member can lead others elsewhere.
    fn directory(&self, path: &[Vec<u8>]) -> Result<InodeId, Undone> {
        let files = self.volume.files();
        let mut at = self.root;
        for (depth, name) in (1..).zip(path) {
            let behind = match files.lookup(at, name) {
                Ok(there) if there.kind == FileType::Directory => Some(there.inode),
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

    /// The directory at a path, through links of the volume alone.
    fn behind_link(&self, path: &[Vec<u8>]) -> Option<InodeId> {
        let files = self.volume.files();
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
        let files = self.volume.files();
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
        let files = self.volume.files();
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
        files.pin(&inode);
        if let MemberKind::Symlink(_) = member.kind {
            self.links.insert(inode.id);
        }
        let made = self.fill(&inode, member, content).and_then(|()| {
            self.free(parent, name)?;
            Ok(files.link(inode.id, parent, name)?)
        });
        // If it got no name, this removes it.
        let unpinned = self.volume.files().unpin(&inode, 1);
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
                self.volume.files().truncate(inode, member.size)?;
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
            self.interrupt.check()?;
            let left = usize::try_from(range.end - at).unwrap_or(STEP);
            let room = left.min(STEP);
            // What cannot be read of the archive is missing behind it, too.
            let read = content.read_exact(&mut buffer[..room]);
            read.map_err(|error| Undone::All(error.into()))?;
            self.volume.write_at(inode, at, &buffer[..room])?;
            at += room as u64;
        }
        Ok(())
    }

    /// Frees a name for a file.
    fn free(&self, parent: InodeId, name: &[u8]) -> Result<(), Undone> {
        match self.volume.files().unlink(parent, name) {
            Ok(()) | Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn find(&self, path: &[Vec<u8>]) -> Result<InodeId, Undone> {
        let mut at = self.root;
        for name in path {
            let found = self.volume.files().lookup(at, name);
            at = found
                .map_err(|error| Undone::from(error).at(format!("a link to {}", shown(path))))?
                .inode;
        }
        Ok(at)
    }

    fn owner(&self, member: &Member) -> Owner {
        match self.is_own {
            true => own(),
            false => Owner {
                uid: member.uid,
                gid: member.gid,
            },
        }
    }

    fn metadata(&mut self, inode: &Inode, member: &Member) -> Result<(), Undone> {
        let files = self.volume.files();
        let owner = self.owner(member);
        let is_link = matches!(member.kind, MemberKind::Symlink(_));
        let set = SetAttributes {
            mode: (!is_link).then_some(member.permissions),
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            ..SetAttributes::default()
        };
        files.set_attributes(inode, &set)?;
        for (name, value) in &member.attributes {
            match files.set_xattr(inode, name, value, SetMode::Any) {
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
        Ok(files.set_attributes(inode, &times)?)
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
