//! From the host into a volume.
//!
//! Three threads share the work: one reads the host ahead ([`super::host`]),
//! one makes inodes and names, one brings the data of complete files to the
//! device.

use super::facts::Facts;
use super::host::{Ahead, Entry, Event, Source, files_of, holds_volume};
use super::tally::Tally;
use crate::changes::verify_is_name_of_file;
use crate::fail::{Context, Done, Failure, fail};
use crate::frames::Kept;
use crate::ground::Ground;
use crate::left_out::Undone;
use crate::place::Place;
use crate::whole_file::name_beside;
use butterfs::{
    Flusher, FsError, Inode, InodeFlags, InodeId, NewInode, Owner, RenameMode, SetAttributes,
    SetTime, Volume,
};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copying into a volume or a mount.
pub(super) struct Work<'a> {
    ground: Ground<'a>,
    /// Flags of what is made, by paths on the host.
    flags: Option<&'a HashMap<PathBuf, InodeFlags>>,
    /// Who owns the copies; `None` keeps the owners of the originals.
    owner: Option<Owner>,
    /// Inodes made for files of the host that have several names, the first of each.
    linked: HashMap<(u64, u64), InodeId>,
    /// Files of the host that have several names, and of which the data were
    /// read and not copied. They are read again for their next name.
    unlinked: HashSet<(u64, u64)>,
    flusher: Flusher,
    tally: &'a mut Tally,
    /// What a server keeps of what it is sent.
    kept: Kept,
}

/// How the root of a new volume is filled.
pub struct Filled<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// Flags of files and directories, by their paths on the host. What is made
    /// in a directory inherits its flags.
    pub flags: &'a HashMap<PathBuf, InodeFlags>,
}

impl Filled<'_> {
    /// Copies what is in `directory`; the root gets its metadata.
    pub fn copy_into_root(&self, directory: &Path, tally: &mut Tally) -> Done {
        let mut work = Work::new(Ground::opened(self.volume), None, tally);
        work.flags = Some(self.flags);
        let own = Arc::new(files_of(self.volume, None));
        let mut host = Ahead::new(directory.to_path_buf(), own)?;
        work.copy(&mut host, Target::Directory(self.volume.files().root()))
    }
}

/// Where a copy goes.
pub(super) enum Target<'a> {
    /// It gets a name in a directory.
    Named(InodeId, &'a [u8]),
    /// A directory becomes this one.
    Directory(InodeId),
}

/// A source as its name tells.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Named {
    /// The name of a copy in a directory; `None` for the root of the host.
    name: Option<OsString>,
    /// What is in the directory is meant, not the directory.
    is_content: bool,
    /// Something else than a directory.
    is_file: bool,
}

impl Named {
    /// What the name of a source on the host tells.
    pub(super) fn of(source: &OsStr) -> Result<Self, Failure> {
        let host = Path::new(source);
        let is_content = source == "." || source.as_bytes().ends_with(b"/.");
        let absolute = std::path::absolute(host).context(host.display())?;
        Ok(Self {
            name: absolute.file_name().map(OsStr::to_owned),
            is_content: is_content && host.is_dir(),
            is_file: std::fs::symlink_metadata(host).is_ok_and(|host| !host.is_dir()),
        })
    }
}

/// Copies all `sources` to `place`.
pub fn copy(
    volume: &Volume,
    sources: &[OsString],
    place: &Place,
    owner: Option<Owner>,
    tally: &mut Tally,
) -> Done {
    let own = Arc::new(files_of(volume, Some(&place.volume)));
    for source in sources.iter().map(Path::new) {
        if std::fs::symlink_metadata(source)
            .is_ok_and(|found| own.contains(&(found.dev(), found.ino())))
        {
            return Err(holds_volume(source));
        }
    }
    let named: Result<Vec<Named>, Failure> = sources.iter().map(|word| Named::of(word)).collect();
    let mut work = Work::new(Ground::opened(volume), owner, tally);
    let open = |at: usize| {
        let host = sources.get(at).map(PathBuf::from).unwrap_or_default();
        Ahead::new(host, Arc::clone(&own))
    };
    work.all(&named?, place, open)
}

impl<'a> Work<'a> {
    /// Copies to `ground`, for `owner` or with the owners of the originals.
    pub(super) fn new(ground: Ground<'a>, owner: Option<Owner>, tally: &'a mut Tally) -> Self {
        Self {
            ground,
            flags: None,
            owner,
            linked: HashMap::new(),
            unlinked: HashSet::new(),
            flusher: Flusher::new(ground.volume.files()),
            tally,
            kept: Kept::default(),
        }
    }

    /// Copies all sources to `place`. `open` gives each one's content, in their
    /// order.
    pub(super) fn all<S: Source>(
        &mut self,
        sources: &[Named],
        place: &Place,
        mut open: impl FnMut(usize) -> Result<S, Failure>,
    ) -> Done {
        let ground = self.ground;
        let existing = ground.directory(place)?;
        for (at, source) in sources.iter().enumerate() {
            let target = match (existing, &source.name) {
                (Some(directory), _) if source.is_content => Target::Directory(directory),
                (Some(directory), Some(name)) => Target::Named(directory, name.as_bytes()),
                (Some(_), None) => return fail("a source has no name"),
                (None, _) if sources.len() == 1 => {
                    if source.is_file {
                        verify_is_name_of_file(place)?;
                    }
                    let named = ground.name_of(place).map_err(Undone::into_failure);
                    let (parent, name) = named?;
                    Target::Named(parent, name)
                }
                (None, _) => return fail(format!("{place} is no directory")),
            };
            self.copy(&mut open(at)?, target)?;
        }
        Ok(())
    }

    fn copy(&mut self, host: &mut impl Source, target: Target<'_>) -> Done {
        // Directories get their metadata after their content. Otherwise the
        // content would inherit their default ACLs and change their times. One
        // that is left out has none, and is left out with all below it.
        let mut directories: Vec<Option<(Arc<Inode>, Box<Entry>)>> = Vec::new();
        while let Some(event) = host.next()? {
            self.tally.check_interrupt()?;
            let mut entry = match event {
                Event::Entry(entry) => entry,
                Event::LeftOut(undone) => {
                    self.tally.left_out.undone(undone)?;
                    continue;
                }
                Event::Data(..) | Event::End | Event::Failed(_) => {
                    return fail("internal error, please report it: data without a file");
                }
            };
            let parent = match (entry.directory.checked_sub(1), &target) {
                (None, Target::Named(parent, name)) => {
                    entry.name = name.to_vec();
                    Some(*parent)
                }
                (None, Target::Directory(root)) => {
                    let root = self.ground.volume.files().inode(*root)?;
                    directories.push(Some((root, entry)));
                    continue;
                }
                (Some(at), _) => match directories.get(at) {
                    Some(made) => made.as_ref().map(|(made, _)| made.id),
                    None => return fail("a file came before its directory"),
                },
            };
            let is_directory = entry.facts.is_directory();
            let made = match parent {
                None => None,
                Some(parent) => {
                    let tried = match is_directory {
                        true => self.directory(&entry, parent).map(Some),
                        false => self.file(&entry, parent, host).map(|()| None),
                    };
                    self.tally.left_out.entry(entry.path.display(), tried)?
                }
            };
            host.skip_file()?;
            match made {
                Some(_) => self.tally.file(),
                None if !is_directory && entry.facts.links > 1 => {
                    self.keep(0)?;
                    self.unlinked.insert(entry.facts.identity);
                }
                None => {}
            }
            if is_directory {
                self.keep(entry.size())?;
                directories.push(made.flatten().map(|inode| (inode, entry)));
            }
        }
        for (inode, entry) in directories.iter().rev().flatten() {
            let set = self.metadata(entry, inode);
            self.tally.left_out.entry(entry.path.display(), set)?;
        }
        Ok(())
    }

    /// Bounds what a server keeps for whoever sends files.
    fn keep(&mut self, bytes: usize) -> Done {
        /// An entry of a table.
        const ENTRY: usize = 64;
        match self.ground.is_mounted() {
            true => self.kept.keep(bytes + ENTRY),
            false => Ok(()),
        }
    }

    fn set_flags(&self, entry: &Entry, inode: &Inode) -> Result<(), FsError> {
        match self.flags.and_then(|flags| flags.get(&entry.path)) {
            Some(flags) => self.ground.volume.files().set_flags(inode, *flags),
            None => Ok(()),
        }
    }

    fn owner(&self, facts: &Facts) -> Owner {
        self.owner.unwrap_or(Owner {
            uid: facts.uid,
            gid: facts.gid,
        })
    }

    /// Makes a directory, or finds it.
    fn directory(&self, entry: &Entry, parent: InodeId) -> Result<Arc<Inode>, Undone> {
        let (facts, name) = (&entry.facts, &entry.name[..]);
        let files = self.ground.calls;
        let inode = match files.lookup(parent, name) {
            Ok(found) if files.attributes(found.inode)?.is_directory() => {
                Some(self.ground.volume.files().inode(found.inode)?)
            }
            Ok(_) => {
                files.unlink(parent, name)?;
                None
            }
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let inode = match inode {
            Some(inode) => inode,
            None => {
                let new = NewInode::new(facts.mode, self.owner(facts));
                files.create(parent, name, &new)?
            }
        };
        self.set_flags(entry, &inode)?;
        Ok(inode)
    }

    /// Copies what is not a directory.
    fn file(
        &mut self,
        entry: &Entry,
        parent: InodeId,
        host: &mut impl Source,
    ) -> Result<(), Undone> {
        let is_again = self.unlinked.contains(&entry.facts.identity);
        if !is_again || !entry.facts.is_file() {
            return self.file_from(entry, parent, host);
        }
        let Some(mut again) = host.again(entry)? else {
            return Err(Undone::Entry(Failure(
                "it came with another of its names, which is left out".to_owned(),
            )));
        };
        self.unlinked.remove(&entry.facts.identity);
        match again.next()? {
            Some(Event::Entry(mut found)) => {
                found.name.clone_from(&entry.name);
                self.file_from(&found, parent, &mut again)
            }
            Some(Event::LeftOut(undone)) => Err(undone),
            _ => Err(Undone::Entry(Failure("it is no file any more".to_owned()))),
        }
    }

    /// Copies what is not a directory. It gets its name when it is complete,
    /// and replaces what had the name.
    fn file_from(
        &mut self,
        entry: &Entry,
        parent: InodeId,
        host: &mut impl Source,
    ) -> Result<(), Undone> {
        let (facts, name) = (&entry.facts, &entry.name[..]);
        let (files, volume) = (self.ground.calls, self.ground.volume);
        let old = match files.lookup(parent, name) {
            Ok(found) if files.attributes(found.inode)?.is_directory() => {
                return Err(FsError::IsADirectory.into());
            }
            Ok(found) => Some(found.inode),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let several_names = facts.links > 1;
        let identity = facts.identity;
        if several_names && let Some(id) = self.linked.get(&identity) {
            if facts.is_file() {
                while next_data(host)?.is_some() {}
            }
            if id.tree != parent.tree && !self.ground.is_mounted() {
                // No inode has names in two subvolumes, so the content is
                // shared.
                volume.clone_tree(*id, parent, name, &mut |_| {})?;
                return Ok(());
            }
            return Ok(self.give_name(*id, parent, name, old)?);
        }
        let mut new = NewInode::new(facts.mode, self.owner(facts));
        if facts.is_link() {
            new = NewInode::symlink(entry.target.as_os_str().as_bytes(), self.owner(facts));
        }
        if facts.is_device() {
            new.rdev = facts.rdev;
        }
        let inode = files.create_unnamed(parent, &new)?;
        volume.files().pin(&inode);
        let flagged = self.set_flags(entry, &inode).map_err(Undone::from);
        let filled = flagged.and_then(|()| self.fill(entry, &inode, host));
        let made = filled.and_then(|bytes| {
            self.give_name(inode.id, parent, name, old)?;
            Ok(bytes)
        });
        // If it got no name, this removes it.
        let unpinned = volume.files().unpin(&inode, 1);
        let bytes = made?;
        unpinned?;
        if several_names {
            self.keep(0)?;
            self.linked.insert(identity, inode.id);
        }
        if bytes > 0 {
            self.flusher.flush(inode, bytes);
        }
        Ok(())
    }

    /// Fills a new inode with data and metadata. Returns the number of bytes
    /// written.
    fn fill(
        &mut self,
        entry: &Entry,
        inode: &Arc<Inode>,
        host: &mut impl Source,
    ) -> Result<u64, Undone> {
        let volume = self.ground.volume;
        let mut bytes = 0;
        if entry.facts.is_file() {
            while let Some((at, data)) = next_data(host)? {
                self.tally.check_interrupt()?;
                volume.write_at(inode, at, &data)?;
                self.tally.data(data.len());
                bytes += data.len() as u64;
            }
            // The end may be a hole.
            let size = entry.facts.size;
            if volume.files().attributes_of(inode)?.size < size {
                volume.files().truncate(inode, size)?;
            }
        }
        self.metadata(entry, inode)?;
        Ok(bytes)
    }

    /// Names an inode, in place of what has the name.
    fn give_name(
        &self,
        id: InodeId,
        parent: InodeId,
        name: &[u8],
        old: Option<InodeId>,
    ) -> Result<(), FsError> {
        let files = self.ground.calls;
        match old {
            None => return files.link(id, parent, name),
            Some(old) if old == id => return Ok(()),
            Some(_) => {}
        }
        let beside = name_beside(Path::new(OsStr::from_bytes(name)));
        let beside = beside.as_os_str().as_bytes();
        files.link(id, parent, beside)?;
        let place = |name| butterfs::Place { dir: parent, name };
        let mode = RenameMode::Replace;
        let moved = files.rename(place(beside), place(name), mode);
        if moved.is_err() {
            // Its own error comes first.
            let _ = files.unlink(parent, beside);
        }
        moved
    }

    fn metadata(&mut self, entry: &Entry, inode: &Arc<Inode>) -> Result<(), Undone> {
        let facts = &entry.facts;
        let files = self.ground.calls;
        let wanted = self.owner(facts);
        let given = files.owner_given(wanted);
        let is_kept = given.uid == Some(wanted.uid) && given.gid == Some(wanted.gid);
        if !is_kept {
            self.tally.refuse();
        }
        let mut set = SetAttributes {
            uid: given.uid,
            gid: given.gid,
            ..SetAttributes::default()
        };
        if !facts.is_link() {
            // A program must not lend the rights of somebody else.
            let lent = match is_kept {
                true => 0,
                false => libc::S_ISUID | libc::S_ISGID,
            };
            set.mode = Some(facts.mode & !lent);
        }
        if !entry.attributes.is_empty() {
            // The system calls that follow have rules by owner and mode, and
            // change times.
            files.set_attributes(inode.id, &set)?;
            set = SetAttributes::default();
        }
        for (name, value) in &entry.attributes {
            match files.set_xattr(inode, name, value) {
                Ok(()) => {}
                Err(FsError::NotSupported(_)) => self.tally.refuse(),
                Err(error) => {
                    let name = String::from_utf8_lossy(name);
                    let undone = Undone::from(error).at(format!("its attribute {name}"));
                    let undone = undone.at(entry.path.display());
                    self.tally.left_out.attribute(undone)?;
                }
            }
        }
        set.atime = Some(SetTime::At(facts.atime));
        set.mtime = Some(SetTime::At(facts.mtime));
        set.btime = facts.birth;
        Ok(files.set_attributes(inode.id, &set)?)
    }
}

/// The next data of the file that is being read; `None` at its end.
fn next_data(host: &mut impl Source) -> Result<Option<(u64, Vec<u8>)>, Undone> {
    match host.next()? {
        Some(Event::Data(at, data)) => Ok(Some((at, data))),
        Some(Event::End) => Ok(None),
        Some(Event::Failed(undone)) => Err(undone),
        Some(Event::Entry(_) | Event::LeftOut(_)) | None => Err(Undone::All(Failure(
            "internal error, please report it: a file without an end".to_owned(),
        ))),
    }
}
