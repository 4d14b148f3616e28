//! Files and directories that were deleted, and older versions of files.
//!
//! A deleted file is in the leaves of earlier generations until something new
//! is written there. Its bytes are old ones if they match a checksum of that
//! time, and may be if the extent tree says that the space is free.
//! Directories, symbolic links, devices, pipes and sockets lie in such a leaf as
//! a whole.

use crate::checksums::DataFacts;
use crate::content::{ContentReader, Wholeness};
use crate::error::RescueError;
use crate::forest::Forest;
use crate::inodes::{InodeKind, InodeParts, each_inode, is_inode};
use crate::live::Live;
use crate::names::{Directory, Names};
use crate::nodes::Nodes;
use crate::patient::{Patient, ScanScope};
use crate::plan::{Plan, PlanRequest, Seen, plan};
use crate::restore::{RestoreOptions, Wanted, choose};
use crate::target::{Attributes, Begun, Extras, LeftOut, Special, Target};
use crate::watch::{Step, Watch};
use butterfs_format::item::inode::{InodeItem, Timespec};
use butterfs_format::{Generation, InodeNumber, ItemType, Key, NodeRef, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::convert::Infallible;
use std::io;

/// Versions of one file that are told apart.
const VERSIONS_MAX: usize = 64;
const ANY_SIZE: (u64, u64) = (0, u64::MAX);

/// Whether a file is gone, or has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The file was deleted.
    Deleted,
    /// The file is there in a newer version.
    Older,
}

/// What was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletedKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe or a socket.
    Special,
}

impl DeletedKind {
    const fn of(kind: InodeKind) -> Option<Self> {
        match kind {
            InodeKind::File => Some(Self::File),
            InodeKind::Directory => Some(Self::Directory),
            InodeKind::Symlink => Some(Self::Symlink),
            InodeKind::Special => Some(Self::Special),
            InodeKind::Unknown => None,
        }
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Special => "device, pipe or socket",
        }
    }
}

/// How certain it is that the bytes are the old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Nothing of it is left.
    Gone,
    /// Some of it is overwritten or reads as zeros.
    Partly,
    /// Its space is free, but there are no checksums of its time.
    Likely,
    /// All bytes match checksums of its time, or lie in the leaf itself.
    Certain,
}

impl Confidence {
    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Partly => "partly",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

/// What to look for.
#[derive(Clone, Copy)]
pub struct UndeleteOptions<'a> {
    /// What is scanned.
    pub scope: ScanScope,
    /// Older versions too.
    pub versions: bool,
    /// Only this subvolume.
    pub subvolume: Option<u64>,
    /// Only these paths, and what lies below them.
    pub wanted: Option<Wanted<'a>>,
    /// Smallest and greatest size of a file, in bytes. With a bound only files are
    /// looked for.
    pub size: (u64, u64),
    /// First and last moment at which the content changed, in seconds.
    pub changed: (i64, i64),
}

impl Default for UndeleteOptions<'_> {
    fn default() -> Self {
        Self {
            scope: ScanScope::Nodes,
            versions: false,
            subvolume: None,
            wanted: None,
            size: ANY_SIZE,
            changed: (i64::MIN, i64::MAX),
        }
    }
}

impl std::fmt::Debug for UndeleteOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UndeleteOptions").finish_non_exhaustive()
    }
}

/// A file or directory that can perhaps be brought back.
#[derive(Clone, Debug)]
pub struct Deleted {
    /// What it is.
    pub kind: DeletedKind,
    /// Its subvolume.
    pub subvolume: TreeId,
    /// Its inode.
    pub inode: InodeNumber,
    /// The newest generation in which it was found.
    pub generation: Generation,
    /// Whether it is gone or changed.
    pub version: Version,
    /// Names from the root of its subvolume.
    pub path: Vec<Vec<u8>>,
    /// Bytes of its content.
    pub size: u64,
    /// Last change of its content.
    pub mtime: Timespec,
    /// How certain its bytes are.
    pub confidence: Confidence,
    /// Bytes that something newer lies on.
    pub overwritten: u64,
    /// Bytes without a checksum of its time.
    pub unverified: u64,
    /// Those of the latter that are zeros, as after a discard.
    pub zeros: u64,
}

impl Deleted {
    /// Where it comes back, from the target's root: what was in other
    /// subvolumes than the top level in a directory for each, and with an ending
    /// what is an older version or not whole.
    #[must_use]
    pub fn place(&self) -> Vec<Vec<u8>> {
        let mut path = self.path.clone();
        if self.subvolume != TreeId::FS {
            path.insert(0, format!("subvolume-{}", self.subvolume).into_bytes());
        }
        if let Some(name) = path.last_mut() {
            if self.version == Version::Older {
                let ending = format!(".generation-{}", self.generation);
                name.truncate(200);
                name.extend_from_slice(ending.as_bytes());
            }
            if self.confidence < Confidence::Likely {
                name.truncate(240);
                name.extend_from_slice(b".incomplete");
            }
        }
        path
    }
}

/// What came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroughtBack {
    /// Directories.
    pub directories: u64,
    /// Everything else.
    pub files: u64,
}

/// A version of an inode in an old leaf.
#[derive(Clone, Copy)]
struct Trace {
    inode: InodeNumber,
    generation: Generation,
    version: Version,
}

struct Search<'s> {
    nodes: &'s Nodes,
    facts: &'s DataFacts<'s>,
    options: &'s UndeleteOptions<'s>,
    watch: &'s dyn Watch,
}

/// Finds deleted files and directories.
///
/// # Errors
/// Those of [`Patient::scan`].
pub fn undelete(
    patient: &mut Patient,
    options: &UndeleteOptions<'_>,
    watch: &dyn Watch,
) -> Result<Vec<Deleted>, RescueError> {
    patient.scan(options.scope, watch)?;
    let chosen = choose(patient, &RestoreOptions::default(), watch)?;
    let nodes = patient.nodes();
    let facts = DataFacts::new(nodes, &chosen.forest);
    let search = Search {
        nodes,
        facts: &facts,
        options,
        watch,
    };
    let mut found = Vec::new();
    for tree in nodes.index.trees().filter(|tree| tree.is_subvolume()) {
        if options.subvolume.is_none_or(|only| TreeId(only) == tree) {
            search.subvolume(tree, &chosen.forest, &mut found)?;
        }
    }
    Ok(found)
}

impl Search<'_> {
    fn subvolume(
        &self,
        tree: TreeId,
        forest: &Forest,
        found: &mut Vec<Deleted>,
    ) -> Result<(), RescueError> {
        let current = match forest.trees.get(&tree) {
            Some(one) if !one.is_dead() => forest.plan(self.nodes, tree, &self.facts.live),
            _ => Plan::default(),
        };
        let mut names = Names::load(&current, self.nodes);
        let live: FxHashSet<NodeRef> = current.pieces.iter().filter_map(|one| one.leaf).collect();
        let traces = self.traces(tree, &current, &live, &mut names);
        let total = crate::bytes_of(traces.len());
        for (number, trace) in traces.iter().enumerate() {
            if self.watch.is_stopped() {
                return Err(RescueError::Stopped);
            }
            self.watch
                .progress(Step::Trees, crate::bytes_of(number), total);
            found.extend(self.look(tree, trace, &names));
        }
        Ok(())
    }

    /// Inodes in leaves that are not in use any more, and directories there.
    fn traces(
        &self,
        tree: TreeId,
        current: &Plan,
        live: &FxHashSet<NodeRef>,
        names: &mut Names,
    ) -> Vec<Trace> {
        let mut traces = Vec::new();
        let mut seen: FxHashMap<(u64, Generation), Vec<Generation>> = FxHashMap::default();
        let mut last = None;
        for record in self.nodes.index.of_tree(tree) {
            let reference = record.reference();
            if record.level > 0 || live.contains(&reference) || last == Some(reference) {
                continue;
            }
            last = Some(reference);
            let Some(leaf) = self.nodes.read(reference) else {
                continue;
            };
            for slot in 0..leaf.len() {
                let key = leaf.key(slot);
                if key.item_type != ItemType::INODE_ITEM || !is_inode(key.objectid) {
                    continue;
                }
                let Ok(item) = InodeItem::parse(leaf.data(slot)) else {
                    continue;
                };
                let inode = InodeNumber(key.objectid);
                let is_directory = item.mode & 0o170_000 == 0o040_000;
                if is_directory {
                    let is_gone = !names.directories.contains_key(&inode);
                    // Without links its name is gone too. An earlier leaf has it.
                    if is_gone && item.nlink > 0 {
                        self.note_directory(tree, inode, record.generation, item, names);
                        traces.push(Trace {
                            inode,
                            generation: record.generation,
                            version: Version::Deleted,
                        });
                    }
                    continue;
                }
                let versions = seen.entry((key.objectid, item.generation)).or_default();
                let is_new = !versions.contains(&item.transid) && versions.len() < VERSIONS_MAX;
                let is_first = versions.is_empty();
                if item.nlink == 0 || !is_new || !(is_first || self.options.versions) {
                    continue;
                }
                let now = current_item(current, self.nodes, inode);
                let version = match now.filter(|now| now.generation == item.generation) {
                    Some(now) if now.transid == item.transid => continue,
                    Some(_) => Version::Older,
                    None => Version::Deleted,
                };
                if version == Version::Older && !self.options.versions {
                    continue;
                }
                versions.push(item.transid);
                traces.push(Trace {
                    inode,
                    generation: record.generation,
                    version,
                });
            }
        }
        traces
    }

    /// Notes where a directory was that is not there any more.
    fn note_directory(
        &self,
        tree: TreeId,
        inode: InodeNumber,
        generation: Generation,
        item: InodeItem,
        names: &mut Names,
    ) {
        let name = parts_of(self.nodes, tree, inode, generation)
            .and_then(|parts| parts.names.into_iter().next());
        let directory = Directory {
            name,
            item: Some(Box::new(item)),
            xattrs: Box::default(),
        };
        names.directories.insert(inode, directory);
    }

    /// What is left of a file or directory.
    fn look(&self, tree: TreeId, trace: &Trace, names: &Names) -> Option<Deleted> {
        let parts = parts_of(self.nodes, tree, trace.inode, trace.generation)?;
        let item = parts.item.as_ref()?;
        let kind = DeletedKind::of(parts.kind())?;
        let (least, most) = self.options.size;
        let (first, last) = self.options.changed;
        let has_wanted_size = match kind {
            DeletedKind::File => (least..=most).contains(&item.size),
            _ => self.options.size == ANY_SIZE,
        };
        if !has_wanted_size || !(first..=last).contains(&item.mtime.seconds) {
            return None;
        }
        let mut paths = names.paths(trace.inode, &parts.names, tree).into_iter();
        let path = paths.find(|path| self.wants(path))?;
        let found = match kind {
            DeletedKind::File => self.read(&parts, trace.generation, &mut |_, _| Ok(())),
            DeletedKind::Symlink if parts.link_text().is_none() => return None,
            _ => Ok(Wholeness::default()),
        };
        let found = found.unwrap_or_default();
        let bytes = |ranges: &[(u64, u64)]| {
            let lengths = ranges.iter().map(|(start, end)| end.saturating_sub(*start));
            lengths.fold(0, u64::saturating_add)
        };
        let (overwritten, unverified) = (bytes(&found.missing), bytes(&found.unverified));
        Some(Deleted {
            kind,
            subvolume: tree,
            inode: trace.inode,
            generation: trace.generation,
            version: trace.version,
            path,
            size: match kind {
                DeletedKind::File | DeletedKind::Symlink => item.size,
                DeletedKind::Directory | DeletedKind::Special => 0,
            },
            mtime: item.mtime,
            confidence: confidence(item.size, overwritten, unverified, found.zeros),
            overwritten,
            unverified,
            zeros: found.zeros,
        })
    }

    /// Whether a path is wanted, or a directory that it lies in.
    fn wants(&self, path: &[Vec<u8>]) -> bool {
        let Some(wanted) = self.options.wanted else {
            return true;
        };
        let mut text = Vec::new();
        path.iter().any(|name| {
            text.push(b'/');
            text.extend_from_slice(name);
            wanted(&text)
        })
    }

    fn read(
        &self,
        parts: &InodeParts,
        generation: Generation,
        sink: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Wholeness> {
        let facts = self.facts.former(generation);
        ContentReader::new(self.nodes, &facts).copy(parts, sink)
    }
}

fn confidence(size: u64, overwritten: u64, unverified: u64, zeros: u64) -> Confidence {
    let lost = overwritten.saturating_add(zeros);
    if lost >= size && size > 0 {
        Confidence::Gone
    } else if lost > 0 {
        Confidence::Partly
    } else if unverified > 0 {
        Confidence::Likely
    } else {
        Confidence::Certain
    }
}

fn current_item(current: &Plan, nodes: &Nodes, inode: InodeNumber) -> Option<InodeItem> {
    let first = Key::new(inode.get(), ItemType::INODE_ITEM, 0);
    let behind = Key::new(inode.get(), ItemType::INODE_ITEM, 1);
    let mut found = None;
    current.each_in(nodes, (first, behind), |seen| {
        if let Seen::Item { data, .. } = seen {
            found = InodeItem::parse(data).ok();
        }
    });
    found
}

/// An inode as it was in a generation.
fn parts_of(
    nodes: &Nodes,
    tree: TreeId,
    inode: InodeNumber,
    generation: Generation,
) -> Option<InodeParts> {
    let request = PlanRequest {
        root: None,
        owners: vec![(tree, generation)],
        from: Key::new(inode.get(), ItemType::MIN, 0),
        to: Key::new(inode.get().saturating_add(1), ItemType::MIN, 0),
    };
    let plan = plan(nodes, &request, &Live::nothing(nodes));
    let mut found = None;
    let done: Result<(), Infallible> = each_inode(&plan, nodes, |parts| {
        if parts.number == inode {
            found = Some(parts);
        }
        Ok(())
    });
    let Ok(()) = done;
    found
}

/// Writes what [`undelete`] found into a target, each at its
/// [place](Deleted::place). `tell` gets the error of what was not written,
/// or not with all its extended attributes.
///
/// # Errors
/// [`RescueError::Stopped`], the target as a whole.
pub fn bring_back(
    patient: &mut Patient,
    found: &[Deleted],
    target: &mut dyn Target,
    watch: &dyn Watch,
    tell: &mut dyn FnMut(&Deleted, &io::Error),
) -> Result<BroughtBack, RescueError> {
    let chosen = choose(patient, &RestoreOptions::default(), watch)?;
    let nodes = patient.nodes();
    let facts = DataFacts::new(nodes, &chosen.forest);
    let options = UndeleteOptions::default();
    let search = Search {
        nodes,
        facts: &facts,
        options: &options,
        watch,
    };
    let mut brought = BroughtBack::default();
    let mut directories = Vec::new();
    for one in found {
        if watch.is_stopped() {
            return Err(RescueError::Stopped);
        }
        match write(&search, one, target) {
            Ok(Written::Directory(extras)) => directories.push((one, extras)),
            Ok(Written::Made(Begun::Writes)) => brought.files = brought.files.saturating_add(1),
            Ok(Written::Made(Begun::Exists)) => {}
            Err(error) => {
                target.drop_file();
                tell(one, &error);
            }
        }
        tell_refused(target, one, tell);
    }
    // What is written into a directory changes its times, so it is finished
    // after all that lies below it.
    directories.sort_by_key(|(one, _)| std::cmp::Reverse(one.path.len()));
    for (one, extras) in directories {
        match target.finish_directory(&one.place(), &extras) {
            Ok(()) => brought.directories = brought.directories.saturating_add(1),
            Err(error) => tell(one, &error),
        }
        tell_refused(target, one, tell);
    }
    target.finish().map_err(RescueError::Output)?;
    Ok(brought)
}

fn tell_refused(
    target: &mut dyn Target,
    one: &Deleted,
    tell: &mut dyn FnMut(&Deleted, &io::Error),
) {
    for refused in target.take_refused() {
        let name = String::from_utf8_lossy(&refused.name);
        let error = format!("its attribute {name}: {}", refused.error);
        tell(one, &io::Error::new(refused.error.kind(), error));
    }
}

/// What [`write`] did.
enum Written {
    /// It made a directory. This is to be set when all is in it.
    Directory(Extras),
    /// It made something else.
    Made(Begun),
}

fn write(search: &Search<'_>, one: &Deleted, target: &mut dyn Target) -> io::Result<Written> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let parts = parts_of(search.nodes, one.subvolume, one.inode, one.generation);
    let parts = parts.ok_or_else(missing)?;
    let extras = Extras {
        attributes: parts.item.as_ref().map(Attributes::of),
        xattrs: parts.xattrs.clone(),
    };
    let path = one.place();
    let begun = match one.kind {
        DeletedKind::Directory => {
            target.directory(&path)?;
            return Ok(Written::Directory(extras));
        }
        DeletedKind::Symlink => {
            let text = parts.link_text().ok_or_else(missing)?;
            target.symlink(&path, &text, &extras)?
        }
        DeletedKind::Special => {
            let of = parts.item.as_ref().and_then(Special::of);
            let made = target.special(&path, of.ok_or_else(missing)?, &extras)?;
            made.map_err(|LeftOut(why)| io::Error::other(why))?
        }
        DeletedKind::File => {
            let begun = target.begin_file(&path, one.size, &extras)?;
            if begun == Begun::Writes {
                search.read(&parts, one.generation, &mut |offset, data| {
                    target.write(offset, data)
                })?;
                target.end_file(&path, &extras)?;
            }
            begun
        }
    };
    Ok(Written::Made(begun))
}
