//! The sources of an image: directories and archives of the host.
//!
//! Owns reading them into a [`FileTree`]. OCI layouts are in `oci`.

use super::content::{ContentId, Contents};
use super::model::{Body, FileTree, Metadata, Node, NodeId, shown};
use super::owners::OwnerMap;
use super::{BuildError, NODE_SIZE, oci};
use crate::archive::{self, Member, MemberKind};
use crate::pack::item_max;
use butterfs_format::item::dir::DirEntry;
use butterfs_format::item::inode::{LINKS_MAX, Timespec};
use rayon::prelude::*;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A source of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of the host, an archive, or an OCI layout.
    Path(PathBuf),
    /// An archive on standard input.
    Input,
}

/// What happens to a file that cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnreadable {
    /// It is an error.
    Ends,
    /// It is left out, and named in [`Gathered::left_out`].
    IsLeftOut,
}

/// The files that become an image.
#[derive(Debug)]
pub struct Gathered {
    /// The files.
    pub tree: FileTree,
    /// Their content.
    pub contents: Contents,
    /// The tree after each layer of an OCI layout and after each state, except
    /// the last one.
    pub layers: Vec<FileTree>,
    /// Number of sockets that were left out.
    pub sockets: u64,
    /// Why each file, directory or attribute that was left out could not be taken.
    pub left_out: Vec<BuildError>,
    pub(super) on_unreadable: OnUnreadable,
    /// Maps the owners of the sources to those of the image.
    pub(super) owners: OwnerMap,
}

impl Gathered {
    /// Makes an empty tree. Directories that no source describes get `time`.
    #[must_use]
    pub fn new(time: Timespec, owners: OwnerMap) -> Self {
        Self {
            tree: FileTree::new(time),
            contents: Contents::default(),
            layers: Vec::new(),
            sockets: 0,
            left_out: Vec::new(),
            on_unreadable: OnUnreadable::Ends,
            owners,
        }
    }

    /// From now on, what cannot be taken is left out.
    #[must_use]
    pub fn keep_going(self) -> Self {
        Self {
            on_unreadable: OnUnreadable::IsLeftOut,
            ..self
        }
    }

    /// Leaves something out, if that is the rule.
    ///
    /// # Errors
    /// `error`, otherwise.
    pub(super) fn leave_out(&mut self, error: BuildError) -> Result<(), BuildError> {
        match self.on_unreadable {
            OnUnreadable::Ends => Err(error),
            OnUnreadable::IsLeftOut => {
                self.left_out.push(error);
                Ok(())
            }
        }
    }

    /// Leaves out the files that have a content which could not be read, and all
    /// others that can already be known to have none.
    pub(super) fn leave_out_content(&mut self, content: ContentId, error: BuildError) {
        let mut gone = self.contents.unreadable();
        if !gone.iter().any(|(known, _)| *known == content) {
            gone.push((content, error));
        }
        let ids: HashSet<ContentId> = gone.iter().map(|(id, _)| *id).collect();
        let trees = self.layers.iter_mut().chain([&mut self.tree]);
        let mut named = HashSet::new();
        for tree in trees {
            tree.retain(&mut |_, node| match node.body {
                Body::File(id) if ids.contains(&id) => {
                    named.insert(id);
                    true
                }
                _ => false,
            });
        }
        let errors = gone.into_iter().filter(|(id, _)| named.contains(id));
        self.left_out.extend(errors.map(|(_, error)| error));
    }

    /// Leaves out the names of files that have more than a file can have.
    pub(super) fn leave_out_links(&mut self) {
        let mut left_out = Vec::new();
        for tree in self.layers.iter_mut().chain([&mut self.tree]) {
            let mut counts: HashMap<NodeId, u32> = HashMap::new();
            let mut beyond = HashSet::new();
            tree.visit(&mut |path, id| {
                let count = counts.entry(id).or_default();
                *count += 1;
                if *count > LINKS_MAX {
                    beyond.insert(path.to_vec());
                }
            });
            if beyond.is_empty() {
                continue;
            }
            tree.retain(&mut |path, _| beyond.contains(path));
            left_out.extend(beyond.into_iter().map(|path| BuildError::Path {
                path: String::from_utf8_lossy(&path).into_owned(),
                reason: "the file has as many names as it can have",
            }));
        }
        self.left_out.extend(left_out);
    }

    /// Leaves out attributes that no node holds. (Where they are not left out,
    /// the image's items find them.)
    fn leave_out_attributes(&mut self, metadata: &mut Metadata, path: &[Vec<u8>]) {
        if self.on_unreadable == OnUnreadable::Ends {
            return;
        }
        let most = item_max(NODE_SIZE) - DirEntry::HEADER;
        let left_out = &mut self.left_out;
        metadata.attributes.retain(|name, value| {
            let fits = name.len() + value.len() <= most;
            if !fits {
                left_out.push(BuildError::AttributeTooLarge {
                    path: shown(path),
                    name: String::from_utf8_lossy(name).into_owned(),
                });
            }
            fits
        });
    }

    /// Lays a source over what was gathered.
    ///
    /// # Errors
    /// A [`BuildError`] if the source cannot be read, a path in it cannot be
    /// used, or the map of owners has no entry for an owner.
    pub fn add(&mut self, source: &Source) -> Result<(), BuildError> {
        match source {
            Source::Input => {
                let added = self.add_archive(std::io::stdin().lock());
                added.map_err(|error| error.of_archive("standard input"))
            }
            Source::Path(path) if path.join("oci-layout").exists() => oci::add(self, path),
            Source::Path(path) if path.is_dir() => self.add_directory(path),
            Source::Path(path) => {
                let file = archive::open(path).map_err(BuildError::from);
                let added = file.and_then(|file| self.add_archive(file));
                added.map_err(|error| error.of_archive(path.display()))
            }
        }
    }

    /// Replaces the gathered tree by `base` with the files of an archive over it.
    /// Content that an earlier state had is kept once.
    ///
    /// # Errors
    /// As [`Self::add`], for the archive.
    pub fn put_state(&mut self, base: &FileTree, archive: impl Read) -> Result<(), BuildError> {
        self.contents.share();
        self.tree = base.clone();
        self.add_archive(archive)
    }

    /// Lays a plain or compressed archive over what was gathered.
    pub(super) fn add_archive(&mut self, input: impl Read) -> Result<(), BuildError> {
        let input = archive::decompressed(input)?;
        archive::read(input, &mut |found, content| {
            let member = match found {
                Ok(member) => member,
                Err(error) => return self.leave_out(error.into()),
            };
            let content = self.content_of(&member, content)?;
            self.add_member(member, content)
                .or_else(|error| self.leave_out(error))
        })
    }

    /// Adds the content of a file of an archive; `None` for other members.
    pub(super) fn content_of(
        &mut self,
        member: &Member,
        content: &mut dyn Read,
    ) -> Result<Option<ContentId>, BuildError> {
        if member.kind != MemberKind::File {
            return Ok(None);
        }
        let content = self.contents.add(content, member)?;
        Ok(Some(content))
    }

    /// Adds a member of an archive.
    pub(super) fn add_member(
        &mut self,
        member: Member,
        content: Option<ContentId>,
    ) -> Result<(), BuildError> {
        let path = member.path;
        let mut metadata = Metadata {
            permissions: member.permissions,
            uid: member.uid,
            gid: member.gid,
            mtime: member.mtime,
            attributes: member.attributes.into_iter().collect(),
        };
        self.owners.apply(&mut metadata, &path)?;
        self.leave_out_attributes(&mut metadata, &path);
        let Some((name, above)) = path.split_last() else {
            let root = self.tree.root();
            self.tree.node_mut(root).metadata = metadata;
            return Ok(());
        };
        let parent = self.tree.directory_at(above)?;
        let body = match (member.kind, content) {
            (MemberKind::Directory, _) => {
                let node = self.tree.directory(parent, name);
                self.tree.node_mut(node).metadata = metadata;
                // From now on, the name comes from this layer.
                self.tree.put(parent, name, node);
                return Ok(());
            }
            (MemberKind::HardLink(target), _) => {
                let node = self.linked(&target)?;
                self.tree.put(parent, name, node);
                return Ok(());
            }
            (MemberKind::Symlink(target), _) => Body::Symlink(target),
            (MemberKind::CharDevice(number), _) => Body::CharDevice(number),
            (MemberKind::BlockDevice(number), _) => Body::BlockDevice(number),
            (MemberKind::Fifo, _) => Body::Fifo,
            (MemberKind::File, Some(content)) => Body::File(content),
            (MemberKind::File, None) => unreachable!("a file has its content"),
        };
        let node = self.tree.add(Node { metadata, body });
        self.tree.put(parent, name, node);
        Ok(())
    }

    /// Returns the node to which a hard link of an archive leads.
    fn linked(&mut self, target: &[Vec<u8>]) -> Result<NodeId, BuildError> {
        let absent = || BuildError::Path {
            path: shown(target),
            reason: "a link names this, and it is not in the archive before it",
        };
        let (name, above) = target.split_last().ok_or_else(absent)?;
        let parent = self.tree.find_directory(above)?.ok_or_else(absent)?;
        let found = self.tree.find(parent, name).ok_or_else(absent)?;
        match self.tree.node(found).body {
            Body::Directory(_) => Err(BuildError::Path {
                path: shown(target),
                reason: "a link names this, and it is a directory",
            }),
            _ => Ok(found),
        }
    }

    /// Lays a directory of the host over what was gathered.
    fn add_directory(&mut self, top: &Path) -> Result<(), BuildError> {
        let mut linked: HashMap<(u64, u64), NodeId> = HashMap::new();
        // The source itself may be a link to a directory.
        let looked = look(top, std::fs::metadata(top));
        self.add_host(top, &[], looked, &mut linked)?;
        let mut waiting = below(top, &[])?;
        while let Some((host, path, looked)) = waiting.pop() {
            let added = self.add_host(&host, &path, looked, &mut linked);
            let listed = match added {
                Ok(HostKind::Directory) => below(&host, &path),
                Ok(HostKind::Other) => Ok(Vec::new()),
                Err(error) => Err(error),
            };
            match listed {
                Ok(more) => waiting.extend(more),
                Err(error) => self.leave_out(error)?,
            }
        }
        Ok(())
    }

    /// Adds a file or directory of the host, without what is below it.
    fn add_host(
        &mut self,
        host: &Path,
        path: &[Vec<u8>],
        looked: Looked,
        linked: &mut HashMap<(u64, u64), NodeId>,
    ) -> Result<HostKind, BuildError> {
        let (meta, attributes) = looked?;
        let identity = (meta.dev(), meta.ino());
        let metadata = self.host_metadata(&meta, attributes, path)?;
        let parent = match path.split_last() {
            Some((_, above)) => self.tree.directory_at(above)?,
            None => self.tree.root(),
        };
        let name = path.last().cloned().unwrap_or_default();
        if meta.is_dir() {
            let node = match path.is_empty() {
                true => parent,
                false => {
                    let node = self.tree.directory(parent, &name);
                    self.tree.put(parent, &name, node);
                    node
                }
            };
            self.tree.node_mut(node).metadata = metadata;
            return Ok(HostKind::Directory);
        }
        if let Some(first) = linked.get(&identity) {
            self.tree.put(parent, &name, *first);
            return Ok(HostKind::Other);
        }
        let Some(body) = self.host_body(host, &meta)? else {
            self.sockets += 1;
            return Ok(HostKind::Other);
        };
        let node = self.tree.add(Node { metadata, body });
        self.tree.put(parent, &name, node);
        if meta.nlink() > 1 {
            linked.insert(identity, node);
        }
        Ok(HostKind::Other)
    }

    /// What a file of the host is; `None` for a socket.
    fn host_body(
        &mut self,
        host: &Path,
        meta: &std::fs::Metadata,
    ) -> Result<Option<Body>, BuildError> {
        let kind = meta.file_type();
        let device = || {
            let (major, minor) = (
                rustix::fs::major(meta.rdev()),
                rustix::fs::minor(meta.rdev()),
            );
            u64::from(major) << 20 | u64::from(minor)
        };
        Ok(Some(if kind.is_symlink() {
            let target = std::fs::read_link(host).map_err(BuildError::io(host.display()))?;
            Body::Symlink(target.as_os_str().as_bytes().to_vec())
        } else if kind.is_char_device() {
            Body::CharDevice(device())
        } else if kind.is_block_device() {
            Body::BlockDevice(device())
        } else if kind.is_fifo() {
            Body::Fifo
        } else if kind.is_socket() {
            return Ok(None);
        } else {
            Body::File(self.contents.add_host(host.to_owned(), meta.len()))
        }))
    }

    fn host_metadata(
        &mut self,
        meta: &std::fs::Metadata,
        attributes: Attributes,
        path: &[Vec<u8>],
    ) -> Result<Metadata, BuildError> {
        let mut metadata = Metadata {
            permissions: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            mtime: Timespec {
                seconds: meta.mtime(),
                nanoseconds: u32::try_from(meta.mtime_nsec()).unwrap_or(0),
            },
            attributes,
        };
        self.owners.apply(&mut metadata, path)?;
        self.leave_out_attributes(&mut metadata, path);
        Ok(metadata)
    }
}

/// Extended attributes of a file of the host.
type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// The least number of files of a directory that a thread looks at in one task.
const TURN: usize = 16;

/// Metadata and extended attributes of a file of the host.
type Looked = Result<(std::fs::Metadata, Attributes), BuildError>;

/// What a file of the host is.
enum HostKind {
    Directory,
    Other,
}

/// Something in a directory of the host: where it is there, its path in the
/// image, and what it is.
type Below = (PathBuf, Vec<Vec<u8>>, Looked);

/// Looks at what is in a directory of the host.
fn below(host: &Path, path: &[Vec<u8>]) -> Result<Vec<Below>, BuildError> {
    let io = || BuildError::io(host.display());
    let entries: Result<Vec<_>, _> = std::fs::read_dir(host).map_err(io())?.collect();
    let entries = entries.map_err(io())?;
    let looked = entries.par_iter().with_min_len(TURN).map(|entry| {
        let host = entry.path();
        let name = entry.file_name().as_bytes().to_vec();
        let below: Vec<Vec<u8>> = path.iter().cloned().chain([name]).collect();
        let looked = look(&host, std::fs::symlink_metadata(&host));
        (host, below, looked)
    });
    Ok(looked.collect())
}

/// Returns the metadata and extended attributes of a file of the host.
fn look(host: &Path, meta: std::io::Result<std::fs::Metadata>) -> Looked {
    let meta = meta.map_err(BuildError::io(host.display()))?;
    let attributes = attributes_of(host).map_err(|error| BuildError::Io {
        what: host.display().to_string(),
        error: error.into(),
    })?;
    Ok((meta, attributes))
}

fn attributes_of(host: &Path) -> Result<Attributes, Errno> {
    let mut all = BTreeMap::new();
    // Most files have few attributes or none.
    let mut names = vec![0_u8; 256];
    let mut listed = rustix::fs::llistxattr(host, &mut names[..]);
    if listed == Err(Errno::RANGE) {
        names.resize(64 << 10, 0);
        listed = rustix::fs::llistxattr(host, &mut names[..]);
    }
    let count = match listed {
        Ok(count) => count,
        Err(Errno::OPNOTSUPP) => return Ok(all),
        Err(error) => return Err(error),
    };
    for name in names[..count].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut value = vec![0_u8; 64 << 10];
        match rustix::fs::lgetxattr(host, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                all.insert(name.to_vec(), value);
            }
            // The attribute was removed meanwhile, or this user may not read it.
            Err(Errno::NODATA | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
