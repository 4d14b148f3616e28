//! From the host into a volume.
//!
//! Three threads share the work: one reads the host ahead ([`super::host`]),
//! one makes inodes and names, one brings the data of complete files to the
//! device.

use super::host::{Ahead, Entry, Event, Files, files_of, holds_volume};
use super::tally::Tally;
use crate::changes::verify_is_name_of_file;
use crate::fail::{Context, Done, Failure, fail};
use crate::left_out::Undone;
use crate::place::Place;
use crate::whole_file::name_beside;
use butterfs::{
    Flusher, FsError, Inode, InodeFlags, InodeId, NewInode, OldName, Owner, RenameMode,
    SetAttributes, SetMode, SetTime, Timespec, Volume,
};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

struct Work<'a> {
    volume: &'a Volume,
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
    /// Files that hold the volume.
    own: Arc<Files>,
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
        let mut work = Work {
            volume: self.volume,
            flags: Some(self.flags),
            owner: None,
            linked: HashMap::new(),
            unlinked: HashSet::new(),
            flusher: Flusher::new(self.volume.files()),
            tally,
            own: Arc::new(files_of(self.volume, None)),
        };
        work.copy(directory, Target::Directory(self.volume.files().root()))
    }
}

/// Where a copy goes.
enum Target<'a> {
    /// It gets a name in a directory.
    Named(InodeId, &'a [u8]),
    /// A directory becomes this one.
    Directory(InodeId),
}

/// Copies all `sources` to `place`.
pub fn copy(
    volume: &Volume,
    sources: &[OsString],
    place: &Place,
    owner: Option<Owner>,
    tally: &mut Tally,
) -> Done {
    let mut work = Work {
        volume,
        flags: None,
        owner,
        linked: HashMap::new(),
        unlinked: HashSet::new(),
        flusher: Flusher::new(volume.files()),
        tally,
        own: Arc::new(files_of(volume, Some(&place.volume))),
    };
    for source in sources.iter().map(Path::new) {
        if std::fs::symlink_metadata(source)
            .is_ok_and(|found| work.own.contains(&(found.dev(), found.ino())))
        {
            return Err(holds_volume(source));
        }
    }
    let path = place.path.as_bytes();
    // A slash makes a link to a directory be followed.
    let existing = match volume.resolve(&[path, b"/"].concat()) {
        Ok(id) => volume
            .files()
            .attributes(id)
            .context(place)?
            .is_directory()
            .then_some(id),
        Err(_) => None,
    };
    for source in sources {
        let host = Path::new(source);
        let is_content = source == "." || source.as_bytes().ends_with(b"/.");
        if let Some(directory) = existing.filter(|_| is_content && host.is_dir()) {
            work.copy(host, Target::Directory(directory))?;
        } else if let Some(directory) = existing {
            let absolute = std::path::absolute(host).context(host.display())?;
            match absolute.file_name() {
                Some(name) => work.copy(host, Target::Named(directory, name.as_bytes()))?,
                None => return fail(format!("{} has no name", host.display())),
            }
        } else if sources.len() == 1 {
            if std::fs::symlink_metadata(host).is_ok_and(|host| !host.is_dir()) {
                verify_is_name_of_file(place)?;
            }
            let (parent, name) = volume.resolve_parent(path)?;
            work.copy(host, Target::Named(parent, name))?;
        } else {
            return fail(format!("{place} is no directory"));
        }
    }
    Ok(())
}

impl Work<'_> {
    fn copy(&mut self, host: &Path, target: Target<'_>) -> Done {
        let name = match target {
            Target::Named(_, name) => name.to_vec(),
            Target::Directory(_) => Vec::new(),
        };
        let mut host = Ahead::new(host.to_path_buf(), name, Arc::clone(&self.own))?;
        // Directories get their metadata after their content. Otherwise the
        // content would inherit their default ACLs and change their times. One
        // that is left out has none, and is left out with all below it.
        let mut directories: Vec<Option<(Arc<Inode>, Box<Entry>)>> = Vec::new();
        while let Some(event) = host.next()? {
            self.tally.check_interrupt()?;
            let entry = match event {
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
                (None, Target::Named(parent, _)) => Some(*parent),
                (None, Target::Directory(root)) => {
                    let root = self.volume.files().inode(*root)?;
                    directories.push(Some((root, entry)));
                    continue;
                }
                (Some(at), _) => directories[at].as_ref().map(|(made, _)| made.id),
            };
            let is_directory = entry.metadata.is_dir();
            let made = match parent {
                None => None,
                Some(parent) => {
                    let tried = match is_directory {
                        true => self.directory(&entry, parent).map(Some),
                        false => self.file(&entry, parent, &mut host).map(|()| None),
                    };
                    self.tally.left_out.entry(entry.path.display(), tried)?
                }
            };
            host.skip_file()?;
            match made {
                Some(_) => self.tally.file(),
                None if !is_directory && entry.metadata.nlink() > 1 => {
                    self.unlinked.insert(identity(&entry.metadata));
                }
                None => {}
            }
            if is_directory {
                directories.push(made.flatten().map(|inode| (inode, entry)));
            }
        }
        for (inode, entry) in directories.iter().rev().flatten() {
            let set = self.metadata(entry, inode);
            self.tally.left_out.entry(entry.path.display(), set)?;
        }
        Ok(())
    }

    fn set_flags(&self, entry: &Entry, inode: &Inode) -> Result<(), FsError> {
        match self.flags.and_then(|flags| flags.get(&entry.path)) {
            Some(flags) => self.volume.files().set_flags(inode, *flags),
            None => Ok(()),
        }
    }

    fn owner(&self, metadata: &Metadata) -> Owner {
        self.owner.unwrap_or(Owner {
            uid: metadata.uid(),
            gid: metadata.gid(),
        })
    }

    /// Makes a directory, or finds it.
    fn directory(&self, entry: &Entry, parent: InodeId) -> Result<Arc<Inode>, Undone> {
        let (metadata, name) = (&entry.metadata, &entry.name[..]);
        let files = self.volume.files();
        let inode = match files.lookup(parent, name) {
            Ok(found) if files.attributes(found.inode)?.is_directory() => {
                Some(files.inode(found.inode)?)
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
                let new = NewInode::new(metadata.mode(), self.owner(metadata));
                files.create(parent, name, &new)?
            }
        };
        self.set_flags(entry, &inode)?;
        Ok(inode)
    }

    /// Copies what is not a directory.
    fn file(&mut self, entry: &Entry, parent: InodeId, host: &mut Ahead) -> Result<(), Undone> {
        let is_again = self.unlinked.remove(&identity(&entry.metadata));
        if !is_again || !entry.metadata.is_file() {
            return self.file_from(entry, parent, host);
        }
        let own = Arc::clone(&self.own);
        let mut again = Ahead::new(entry.path.clone(), entry.name.clone(), own)?;
        match again.next()? {
            Some(Event::Entry(entry)) => self.file_from(&entry, parent, &mut again),
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
        host: &mut Ahead,
    ) -> Result<(), Undone> {
        let (metadata, name) = (&entry.metadata, &entry.name[..]);
        let files = self.volume.files();
        let old = match files.lookup(parent, name) {
            Ok(found) if files.attributes(found.inode)?.is_directory() => {
                return Err(FsError::IsADirectory.into());
            }
            Ok(found) => Some(found.inode),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let several_names = metadata.nlink() > 1;
        let identity = identity(metadata);
        if several_names && let Some(id) = self.linked.get(&identity) {
            if metadata.is_file() {
                while next_data(host)?.is_some() {}
            }
            if id.tree != parent.tree {
                // No inode has names in two subvolumes, so the content is
                // shared.
                self.volume.clone_tree(*id, parent, name, &mut |_| {})?;
                return Ok(());
            }
            return Ok(self.give_name(*id, parent, name, old)?);
        }
        let mut new = NewInode::new(metadata.mode(), self.owner(metadata));
        if metadata.is_symlink() {
            new = NewInode::symlink(entry.target.as_os_str().as_bytes(), self.owner(metadata));
        }
        if matches!(
            metadata.mode() & libc::S_IFMT,
            libc::S_IFCHR | libc::S_IFBLK
        ) {
            let (major, minor) = (
                rustix::fs::major(metadata.rdev()),
                rustix::fs::minor(metadata.rdev()),
            );
            new.rdev = (u64::from(major) << 20) | u64::from(minor);
        }
        let inode = files.create_unnamed(parent, &new)?;
        files.pin(&inode);
        let flagged = self.set_flags(entry, &inode).map_err(Undone::from);
        let filled = flagged.and_then(|()| self.fill(entry, &inode, host));
        let made = filled.and_then(|bytes| {
            self.give_name(inode.id, parent, name, old)?;
            Ok(bytes)
        });
        // If it got no name, this removes it.
        let unpinned = self.volume.files().unpin(&inode, 1);
        let bytes = made?;
        unpinned?;
        if several_names {
            self.linked.insert(identity, inode.id);
        }
        if bytes > 0 {
            self.flusher.flush(inode, bytes);
        }
        Ok(())
    }

    /// Fills a new inode with data and metadata. Returns the number of bytes
    /// written.
    fn fill(&mut self, entry: &Entry, inode: &Arc<Inode>, host: &mut Ahead) -> Result<u64, Undone> {
        let mut bytes = 0;
        if entry.metadata.is_file() {
            while let Some((at, data)) = next_data(host)? {
                self.tally.check_interrupt()?;
                self.volume.write_at(inode, at, &data)?;
                self.tally.data(data.len());
                bytes += data.len() as u64;
            }
            // The end may be a hole.
            let size = entry.metadata.len();
            if self.volume.files().attributes_of(inode)?.size < size {
                self.volume.files().truncate(inode, size)?;
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
        let files = self.volume.files();
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
        let moved = files.rename(place(beside), place(name), mode, OldName::Free);
        if moved.is_err() {
            // Its own error comes first.
            let _ = files.unlink(parent, beside);
        }
        moved
    }

    fn metadata(&mut self, entry: &Entry, inode: &Arc<Inode>) -> Result<(), Undone> {
        let metadata = &entry.metadata;
        let files = self.volume.files();
        let owner = self.owner(metadata);
        let mut set = SetAttributes {
            uid: Some(owner.uid),
            gid: Some(owner.gid),
            ..SetAttributes::default()
        };
        if !metadata.is_symlink() {
            set.mode = Some(metadata.mode());
        }
        if !entry.attributes.is_empty() {
            // The system calls that follow have rules by owner and mode, and
            // change times.
            files.set_attributes(inode, &set)?;
            set = SetAttributes::default();
        }
        for (name, value) in &entry.attributes {
            match files.set_xattr(inode, name, value, SetMode::Any) {
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
        let birth = metadata.created().ok();
        let birth = birth.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        set.atime = Some(time(metadata.atime(), metadata.atime_nsec()));
        set.mtime = Some(time(metadata.mtime(), metadata.mtime_nsec()));
        set.btime = birth.map(|since| Timespec {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        });
        Ok(files.set_attributes(inode, &set)?)
    }
}

/// What all names of a file of the host have in common.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The next data of the file that is being read; `None` at its end.
fn next_data(host: &mut Ahead) -> Result<Option<(u64, Vec<u8>)>, Undone> {
    match host.next()? {
        Some(Event::Data(at, data)) => Ok(Some((at, data))),
        Some(Event::End) => Ok(None),
        Some(Event::Failed(undone)) => Err(undone),
        Some(Event::Entry(_) | Event::LeftOut(_)) | None => Err(Undone::All(Failure(
            "internal error, please report it: a file without an end".to_owned(),
        ))),
    }
}

fn time(seconds: i64, nanoseconds: i64) -> SetTime {
    SetTime::At(Timespec {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    })
}
