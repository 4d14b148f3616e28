//! Files out of a volume, into a target.
//!
//! Everything that is whole comes out under its own path. A file with lost
//! ranges gets `.incomplete` behind its name, so that nobody takes it for whole,
//! and a file that may be of an earlier time gets `.older`.
//! What lost its directory goes to `lost+found`, by inode number.

use crate::checksums::DataFacts;
use crate::content::{ContentReader, Wholeness};
use crate::error::RescueError;
use crate::forest::{Forest, Subvolume};
use crate::inodes::{InodeKind, InodeParts, each_inode};
use crate::live::Live;
use crate::names::{LOST_AND_FOUND, Names, safe};
use crate::nodes::Nodes;
use crate::patient::{Patient, ScanScope};
use crate::plan::Plan;
use crate::roots::{Candidate, RootSource};
use crate::target::{Attributes, Begun, Extras, LeftOut, Special, Target};
use crate::watch::{Step, Watch};
use butterfs_format::item::NAME_MAX;
use butterfs_format::{Generation, InodeNumber, NodeRef, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// What is appended to the name of a file that is not whole.
const INCOMPLETE: &[u8] = b".incomplete";
/// What is appended to the name of a file that may be of an earlier time.
const OLDER: &[u8] = b".older";
/// Generations that are looked at for one that is whole.
const EARLIER_MAX: usize = 8;
/// Bytes of holes that an archive is not filled with.
const HOLES_MAX: u64 = 1 << 40;

/// Says which paths are wanted: names from the volume's root, joined by `/`,
/// with a `/` in front.
pub type Wanted<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// What to restore, and how.
#[derive(Clone, Copy, Default)]
pub struct RestoreOptions<'a> {
    /// The generation to restore; the newest that opens if `None`.
    pub generation: Option<u64>,
    /// Address of a root of the tree of roots.
    pub tree_root: Option<u64>,
    /// Address of the root of a subvolume's tree.
    pub fs_root: Option<u64>,
    /// The only subvolume to restore.
    pub subvolume: Option<u64>,
    /// Snapshots too.
    pub snapshots: bool,
    /// Extended attributes too.
    pub xattrs: bool,
    /// Owners, permissions and times too.
    pub attributes: bool,
    /// Symbolic links, devices, pipes and sockets too.
    pub symlinks: bool,
    /// Only say what would be restored.
    pub dry_run: bool,
    /// Only these paths.
    pub wanted: Option<Wanted<'a>>,
}

impl std::fmt::Debug for RestoreOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RestoreOptions").finish_non_exhaustive()
    }
}

/// What became of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is there, verified.
    Whole,
    /// All of it is there, but not all could be verified.
    Unverified(Wholeness),
    /// Parts of it are lost.
    Incomplete(Wholeness),
    /// Only its name is left.
    Lost,
    /// It was in the target already.
    Exists,
    /// It would be restored.
    Listed,
    /// It is a device, a pipe or a socket, which were not asked for.
    Special,
    /// The target cannot hold such a thing.
    LeftOut(&'static str),
    /// It is there, but the target did not take one of its extended attributes.
    WithoutAttribute {
        /// Name of the attribute.
        name: Vec<u8>,
        /// What the target says.
        why: String,
    },
    /// The target refused it.
    Failed(String),
}

/// What a restore brought out.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The generation that was restored.
    pub generation: u64,
    /// A newer generation, if nothing of it can be read. What was changed in it
    /// is lost.
    pub lost_generation: Option<u64>,
    /// Whether the tree of roots was put together from its leaves.
    pub from_leaves: bool,
    /// Subvolumes.
    pub subvolumes: u64,
    /// Regular files, whatever became of them.
    pub files: u64,
    /// Files that are whole and verified.
    pub whole: u64,
    /// Files that are all there, but not verified.
    pub unverified: u64,
    /// Those of the files not verified that may be of an earlier time.
    pub older: u64,
    /// Files of which parts are lost.
    pub incomplete: u64,
    /// Names whose files are lost.
    pub lost: u64,
    /// Files that were in the target already.
    pub existing: u64,
    /// What the target refused.
    pub failed: u64,
    /// Devices, pipes and sockets, whatever became of them.
    pub special: u64,
    /// What the target cannot hold.
    pub left_out: u64,
    /// Extended attributes that the target did not take.
    pub attributes_left_out: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of files that were read.
    pub bytes: u64,
    /// Parts of trees for which no leaf is left.
    pub gaps: u64,
}

impl Restored {
    /// Whether nothing is known to lack.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.lost_generation.is_none()
            && self.incomplete == 0
            && self.older == 0
            && self.lost == 0
            && self.failed == 0
            && self.left_out == 0
            && self.attributes_left_out == 0
            && self.gaps == 0
    }
}

/// Takes what became of each path.
pub type Tell<'t> = &'t mut dyn FnMut(&[Vec<u8>], &Outcome);

/// The trees to restore from.
pub(crate) struct Chosen {
    pub(crate) candidate: Candidate,
    pub(crate) forest: Forest,
    /// A newer generation, of which nothing can be read.
    lost: Option<Generation>,
}

/// Finds the generation that the options name, or else the newest. Scans if
/// something cannot be read otherwise.
pub(crate) fn choose(
    patient: &mut Patient,
    options: &RestoreOptions<'_>,
    watch: &dyn Watch,
) -> Result<Chosen, RescueError> {
    if patient.needs_scan() {
        patient.scan(ScanScope::Nodes, watch)?;
    }
    let mut chosen = choose_once(patient, options)?;
    if patient.scanned().is_none() {
        if is_readable(patient.nodes(), &chosen.forest, options, watch)? {
            return Ok(chosen);
        }
        patient.scan(ScanScope::Nodes, watch)?;
        chosen = choose_once(patient, options)?;
    }
    match chosen.candidate.source {
        RootSource::Leaves if names_nothing(options) => {
            let earlier = last_whole(patient, &chosen.forest, options, watch)?;
            Ok(earlier.unwrap_or(chosen))
        }
        _ => Ok(chosen),
    }
}

const fn names_nothing(options: &RestoreOptions<'_>) -> bool {
    options.generation.is_none() && options.tree_root.is_none() && options.fs_root.is_none()
}

/// The newest generation of which everything can be read, if nothing of the one
/// after it can: neither the root of a subvolume, nor the root of the extent
/// tree, which tells the leaves of the trees from older ones. So it is where
/// the nodes of the last commit never came to the device ("parent transid
/// verify failed").
fn last_whole(
    patient: &Patient,
    newest: &Forest,
    options: &RestoreOptions<'_>,
    watch: &dyn Watch,
) -> Result<Option<Chosen>, RescueError> {
    let nodes = patient.nodes();
    let has = |root: Option<NodeRef>| root.is_some_and(|root| nodes.read(root).is_some());
    let mut wanted = newest.subvolumes().filter(|one| is_wanted(one, options));
    if has(newest.extents()) || wanted.any(|one| has(one.root)) {
        return Ok(None);
    }
    let earlier = patient
        .candidates()
        .into_iter()
        .filter(|candidate| candidate.root.is_some() && candidate.generation < newest.generation);
    for candidate in earlier.take(EARLIER_MAX) {
        let forest = patient.forest(&candidate);
        if is_readable(nodes, &forest, options, watch)? {
            return Ok(Some(Chosen {
                candidate,
                forest,
                lost: Some(newest.generation),
            }));
        }
    }
    Ok(None)
}

fn choose_once(patient: &Patient, options: &RestoreOptions<'_>) -> Result<Chosen, RescueError> {
    let nodes = patient.nodes();
    let load = |candidate: Candidate| Chosen {
        candidate,
        forest: patient.forest(&candidate),
        lost: None,
    };
    let mut chosen = if let Some(address) = options.tree_root {
        let node = root_at(nodes, address)?;
        load(Candidate {
            root: Some(node),
            generation: node.generation,
            source: RootSource::Scan,
        })
    } else {
        let all = patient.candidates();
        let named = options.generation.map(Generation);
        let leaves = all.last().copied();
        let found = all.iter().find(|candidate| match named {
            Some(generation) => candidate.generation == generation,
            None => candidate.source == RootSource::Superblock,
        });
        // Without a superblock, a whole commit that the scan found will do.
        let found = found.or_else(|| {
            let newest = leaves.map_or(0, |one| one.generation.get());
            let mut scanned = all.iter().filter(|one| one.source == RootSource::Scan);
            let is_late = |one: &&Candidate| one.generation.get().saturating_add(1) >= newest;
            let found = scanned.find(|one| named.is_none() && is_late(one))?;
            // A later commit has an extent tree, but its tree of roots is lost.
            let later = leaves.map(load).and_then(|leaves| leaves.forest.extents());
            let is_last = later.is_none_or(|root| root.generation <= found.generation);
            is_last.then_some(found)
        });
        match (found, named) {
            (Some(found), _) => {
                let chosen = load(*found);
                let is_whole = chosen.forest.roots.is_whole();
                match leaves.filter(|_| named.is_none() && !is_whole) {
                    Some(leaves) => load(leaves),
                    None => chosen,
                }
            }
            (None, Some(generation)) => return Err(RescueError::NoGeneration(generation.get())),
            (None, None) => load(leaves.ok_or(RescueError::NothingFound)?),
        }
    };
    if let Some(address) = options.fs_root {
        let root = root_at(nodes, address)?;
        let owner = nodes.read(root).map_or(TreeId::FS, |node| node.owner());
        let id = options.subvolume.map_or(owner, TreeId);
        chosen.forest.set_root(id, root);
    }
    Ok(chosen)
}

fn root_at(nodes: &Nodes, address: u64) -> Result<NodeRef, RescueError> {
    let node = nodes.read_at_address(butterfs_format::Logical(address));
    let node = node.ok_or(RescueError::NoNode(address))?;
    Ok(node.reference())
}

/// Whether all nodes that a restore needs are there.
fn is_readable(
    nodes: &Nodes,
    forest: &Forest,
    options: &RestoreOptions<'_>,
    watch: &dyn Watch,
) -> Result<bool, RescueError> {
    if !forest.roots.is_whole() {
        return Ok(false);
    }
    let mut read = 0_u64;
    let wanted = forest.subvolumes().filter(|one| is_wanted(one, options));
    for tree in wanted.map(|one| one.id).chain([TreeId::CSUM]) {
        if watch.is_stopped() {
            return Err(RescueError::Stopped);
        }
        let plan = forest.plan(nodes, tree, &Live::nothing(nodes));
        read = read.saturating_add(plan.nodes);
        watch.progress(Step::Trees, read, 0);
        if !plan.is_whole() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_wanted(subvolume: &Subvolume, options: &RestoreOptions<'_>) -> bool {
    match options.subvolume {
        Some(only) => subvolume.id == TreeId(only),
        None => options.snapshots || !subvolume.is_snapshot(),
    }
}

/// Restores a volume.
///
/// # Errors
/// Those of [`Patient::scan`]; no such generation or subvolume; the target as a
/// whole. What cannot be done for one file is told and counted.
pub fn restore(
    patient: &mut Patient,
    target: &mut dyn Target,
    options: &RestoreOptions<'_>,
    watch: &dyn Watch,
    tell: Tell<'_>,
) -> Result<Restored, RescueError> {
    let chosen = choose(patient, options, watch)?;
    let nodes = patient.nodes();
    let facts = DataFacts::new(nodes, &chosen.forest);
    if let Some(only) = options.subvolume
        && !chosen.forest.trees.contains_key(&TreeId(only))
    {
        return Err(RescueError::NoSubvolume(only));
    }
    let mut run = Run {
        nodes,
        facts: &facts,
        forest: &chosen.forest,
        target,
        options,
        watch,
        tell,
        total: 0,
        restored: Restored {
            generation: chosen.candidate.generation.get(),
            lost_generation: chosen.lost.map(Generation::get),
            from_leaves: chosen.candidate.source == RootSource::Leaves,
            ..Restored::default()
        },
    };
    run.all()?;
    let restored = run.restored;
    if !options.dry_run {
        target.finish().map_err(RescueError::Output)?;
    }
    Ok(restored)
}

/// A directory that was made, and what is to be set of it.
type Made = (Vec<Vec<u8>>, Extras);

struct Run<'r> {
    nodes: &'r Nodes,
    facts: &'r DataFacts<'r>,
    forest: &'r Forest,
    target: &'r mut dyn Target,
    options: &'r RestoreOptions<'r>,
    watch: &'r dyn Watch,
    tell: Tell<'r>,
    /// Bytes of all files so far known.
    total: u64,
    restored: Restored,
}

/// A subvolume that is being restored.
struct Place<'p> {
    tree: TreeId,
    base: &'p [Vec<u8>],
    names: &'p Names,
}

impl Run<'_> {
    /// Restores the subvolumes, each after the one that it lies in.
    fn all(&mut self) -> Result<(), RescueError> {
        let mut left: BTreeSet<TreeId> = self.forest.subvolumes().map(|one| one.id).collect();
        let mut bases: BTreeMap<TreeId, Vec<Vec<u8>>> = BTreeMap::new();
        if let Some(only) = self.options.subvolume {
            left = BTreeSet::from([TreeId(only)]);
            bases.insert(TreeId(only), Vec::new());
        } else if left.contains(&TreeId::FS) {
            bases.insert(TreeId::FS, Vec::new());
        }
        while !left.is_empty() {
            let known = left.iter().find(|tree| bases.contains_key(tree)).copied();
            let Some(tree) = known.or(left.first().copied()) else {
                break;
            };
            left.remove(&tree);
            let base = bases.remove(&tree).unwrap_or_else(|| {
                let name = format!("subvolume-{tree}").into_bytes();
                vec![LOST_AND_FOUND.to_vec(), name]
            });
            let one = self.forest.trees.get(&tree);
            let is_restored = one.is_some_and(|one| is_wanted(one, self.options));
            let plan = self.forest.plan(self.nodes, tree, &self.facts.live);
            let names = Names::load(&plan, self.nodes);
            if self.options.subvolume.is_none() {
                self.add_bases(tree, &base, &names, &mut bases);
            }
            if is_restored {
                let place = Place {
                    tree,
                    base: &base,
                    names: &names,
                };
                self.subvolume(&plan, &place)?;
            }
        }
        Ok(())
    }

    /// Notes where the subvolumes in a subvolume are.
    fn add_bases(
        &self,
        tree: TreeId,
        base: &[Vec<u8>],
        names: &Names,
        bases: &mut BTreeMap<TreeId, Vec<Vec<u8>>>,
    ) {
        for one in self.forest.subvolumes().filter(|one| one.id != tree) {
            let named = match &one.parent {
                Some((parent, directory, name)) if *parent == tree => Some((*directory, name)),
                Some(_) => None,
                None => {
                    let entry = names.subvolumes.get(&one.id);
                    entry.map(|(directory, name)| (*directory, name))
                }
            };
            let Some((directory, name)) = named else {
                continue;
            };
            let mut path = base.to_vec();
            path.extend(names.path_of(directory, tree));
            path.push(safe(name, InodeNumber(one.id.get())));
            bases.entry(one.id).or_insert(path);
        }
    }

    fn subvolume(&mut self, plan: &Plan, place: &Place<'_>) -> Result<(), RescueError> {
        let restored = &mut self.restored;
        restored.subvolumes = restored.subvolumes.saturating_add(1);
        restored.gaps = restored.gaps.saturating_add(plan.lost_leaves());
        self.total = self.total.saturating_add(place.names.bytes);
        let directories = match self.options.wanted {
            None => self.make_directories(place)?,
            Some(_) => Vec::new(),
        };
        let mut reader = ContentReader::new(self.nodes, self.facts);
        each_inode(plan, self.nodes, |inode| {
            if self.watch.is_stopped() {
                return Err(RescueError::Stopped);
            }
            self.inode(&inode, place, &mut reader)
        })?;
        for name in &place.names.lost {
            let mut path = place.base.to_vec();
            path.extend(place.names.path_of(name.parent, place.tree));
            path.push(safe(&name.name, name.inode));
            if self.wants(&path) {
                self.restored.lost = self.restored.lost.saturating_add(1);
                (self.tell)(&path, &Outcome::Lost);
            }
        }
        self.finish_directories(&directories)
    }

    fn wants(&self, path: &[Vec<u8>]) -> bool {
        let text = || [b"/", &path.join(&b'/')[..]].concat();
        self.options.wanted.is_none_or(|wanted| wanted(&text()))
    }

    /// Makes the directories of a subvolume. Returns them, the deepest first.
    fn make_directories(&mut self, place: &Place<'_>) -> Result<Vec<Made>, RescueError> {
        let mut all = Vec::new();
        for (number, directory) in &place.names.directories {
            let mut path = place.base.to_vec();
            path.extend(place.names.path_of(*number, place.tree));
            let mut extras = Extras::default();
            if self.options.attributes {
                extras.attributes = directory.item.as_deref().map(Attributes::of);
            }
            if self.options.xattrs {
                extras.xattrs = directory.xattrs.to_vec();
            }
            all.push((path, extras));
        }
        all.sort_by(|(one, _), (other, _)| (other.len(), other).cmp(&(one.len(), one)));
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        self.restored.directories = self.restored.directories.saturating_add(count);
        if self.options.dry_run {
            return Ok(Vec::new());
        }
        for (path, _) in all.iter().rev() {
            if let Err(error) = self.target.directory(path) {
                self.fail(path, &error)?;
            }
        }
        Ok(all)
    }

    fn finish_directories(&mut self, directories: &[Made]) -> Result<(), RescueError> {
        for (path, extras) in directories {
            if let Err(error) = self.target.finish_directory(path, extras) {
                self.fail(path, &error)?;
            }
            self.tell_refused(path);
        }
        Ok(())
    }

    /// Tells which extended attributes of a path the target did not take.
    fn tell_refused(&mut self, path: &[Vec<u8>]) {
        for refused in self.target.take_refused() {
            let count = &mut self.restored.attributes_left_out;
            *count = count.saturating_add(1);
            let why = refused.error.to_string();
            let name = refused.name;
            (self.tell)(path, &Outcome::WithoutAttribute { name, why });
        }
    }

    /// Notes what the target refused, or fails if it refuses everything.
    fn fail(&mut self, path: &[Vec<u8>], error: &io::Error) -> Result<(), RescueError> {
        let is_of_target = matches!(
            error.kind(),
            io::ErrorKind::StorageFull
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::BrokenPipe
        );
        if is_of_target {
            let error = io::Error::new(error.kind(), error.to_string());
            return Err(RescueError::Output(error));
        }
        self.restored.failed = self.restored.failed.saturating_add(1);
        (self.tell)(path, &Outcome::Failed(error.to_string()));
        Ok(())
    }

    fn inode(
        &mut self,
        inode: &InodeParts,
        place: &Place<'_>,
        reader: &mut ContentReader<'_>,
    ) -> Result<(), RescueError> {
        let kind = inode.kind();
        let is_deleted = inode.item.as_ref().is_some_and(|item| item.nlink == 0);
        let is_remains = kind == InodeKind::Unknown && inode.extents.is_empty();
        if kind == InodeKind::Directory || is_deleted || is_remains {
            return Ok(());
        }
        let inner = place.names.paths(inode.number, &inode.names, place.tree);
        let paths = inner
            .into_iter()
            .map(|path| [place.base, &path[..]].concat());
        let paths: Vec<Vec<Vec<u8>>> = paths.filter(|path| self.wants(path)).collect();
        let Some((first, others)) = paths.split_first() else {
            return Ok(());
        };
        let mut extras = Extras::default();
        if self.options.attributes {
            extras.attributes = inode.item.as_ref().map(Attributes::of);
        }
        if self.options.xattrs {
            extras.xattrs.clone_from(&inode.xattrs);
        }
        let done = match kind {
            InodeKind::Special => self.special(inode, first, &extras),
            InodeKind::Symlink => self.symlink(inode, first, &extras),
            _ => self.file(inode, first, &extras, reader),
        };
        match done {
            Err(error) => {
                self.target.drop_file();
                return self.fail(first, &error);
            }
            Ok(None) => return Ok(()),
            Ok(Some(written)) => {
                self.tell_refused(&written);
                for path in others {
                    let path = renamed(path, &written, first);
                    if let Err(error) = self.target.link(&path, &written) {
                        self.fail(&path, &error)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Restores a symbolic link. Returns where it is, if it was made.
    fn symlink(
        &mut self,
        inode: &InodeParts,
        path: &[Vec<u8>],
        extras: &Extras,
    ) -> io::Result<Option<Vec<Vec<u8>>>> {
        if !self.options.symlinks {
            return Ok(None);
        }
        let Some(text) = inode.link_text() else {
            self.restored.lost = self.restored.lost.saturating_add(1);
            (self.tell)(path, &Outcome::Lost);
            return Ok(None);
        };
        self.restored.symlinks = self.restored.symlinks.saturating_add(1);
        if self.options.dry_run {
            (self.tell)(path, &Outcome::Listed);
            return Ok(None);
        }
        let made = self.target.symlink(path, &text, extras)?;
        Ok(self.made(path, made))
    }

    /// Tells what became of a path without content. Returns it, if it was made.
    fn made(&mut self, path: &[Vec<u8>], made: Begun) -> Option<Vec<Vec<u8>>> {
        let outcome = match made {
            Begun::Exists => Outcome::Exists,
            Begun::Writes => Outcome::Whole,
        };
        (self.tell)(path, &outcome);
        (made == Begun::Writes).then(|| path.to_vec())
    }

    /// Restores a device, a pipe or a socket. Returns where it is, if it was
    /// made.
    fn special(
        &mut self,
        inode: &InodeParts,
        path: &[Vec<u8>],
        extras: &Extras,
    ) -> io::Result<Option<Vec<Vec<u8>>>> {
        self.restored.special = self.restored.special.saturating_add(1);
        let of = inode.item.as_ref().and_then(Special::of);
        let Some(of) = of.filter(|_| self.options.symlinks) else {
            (self.tell)(path, &Outcome::Special);
            return Ok(None);
        };
        if self.options.dry_run {
            (self.tell)(path, &Outcome::Listed);
            return Ok(None);
        }
        match self.target.special(path, of, extras)? {
            Ok(made) => Ok(self.made(path, made)),
            Err(LeftOut(why)) => {
                self.restored.left_out = self.restored.left_out.saturating_add(1);
                (self.tell)(path, &Outcome::LeftOut(why));
                Ok(None)
            }
        }
    }

    /// Restores a file. Returns where it is, if it was written.
    fn file(
        &mut self,
        inode: &InodeParts,
        path: &[Vec<u8>],
        extras: &Extras,
        reader: &mut ContentReader<'_>,
    ) -> io::Result<Option<Vec<Vec<u8>>>> {
        self.restored.files = self.restored.files.saturating_add(1);
        if self.options.dry_run {
            (self.tell)(path, &Outcome::Listed);
            return Ok(None);
        }
        let size = inode.size();
        let mut path = path.to_vec();
        if self.target.needs_name_first() {
            let data: u64 = inode
                .parsed()
                .map(|(_, one)| crate::inodes::length(&one))
                .sum();
            if size.saturating_sub(data) > HOLES_MAX {
                return Err(io::Error::other(
                    "it has more than 1 TiB of holes, which a tar archive would have to write",
                ));
            }
            let found = reader.copy(inode, &mut |_, _| Ok(()))?;
            path = named(path, &found);
        }
        if self.target.begin_file(&path, size, extras)? == Begun::Exists {
            self.restored.existing = self.restored.existing.saturating_add(1);
            (self.tell)(&path, &Outcome::Exists);
            return Ok(None);
        }
        let (watch, total) = (self.watch, self.total);
        let before = self.restored.bytes;
        let target = &mut *self.target;
        let found = reader.copy(inode, &mut |offset, data| {
            watch.progress(Step::Files, before.saturating_add(offset), total);
            target.write(offset, data)
        })?;
        let path = match self.target.needs_name_first() {
            true => path,
            false => named(path, &found),
        };
        self.target.end_file(&path, extras)?;
        self.restored.bytes = before.saturating_add(size);
        self.count(&path, found);
        Ok(Some(path))
    }

    fn count(&mut self, path: &[Vec<u8>], found: Wholeness) {
        let restored = &mut self.restored;
        if found.is_whole() && found.may_be_older {
            restored.older = restored.older.saturating_add(1);
        }
        let (count, outcome) = if found.is_verified() {
            (&mut restored.whole, Outcome::Whole)
        } else if found.is_whole() {
            (&mut restored.unverified, Outcome::Unverified(found))
        } else {
            (&mut restored.incomplete, Outcome::Incomplete(found))
        };
        *count = count.saturating_add(1);
        (self.tell)(path, &outcome);
    }
}

/// The path for a file of which so much came back.
fn named(mut path: Vec<Vec<u8>>, found: &Wholeness) -> Vec<Vec<u8>> {
    let ending = match (found.is_whole(), found.may_be_older) {
        (false, _) => INCOMPLETE,
        (true, true) => OLDER,
        (true, false) => return path,
    };
    if let Some(name) = path.last_mut() {
        name.truncate(NAME_MAX.saturating_sub(ending.len()));
        name.extend_from_slice(ending);
    }
    path
}

/// A further name of a file, changed as its first one was.
fn renamed(path: &[Vec<u8>], written: &[Vec<u8>], first: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (Some(old), Some(new)) = (first.last(), written.last()) else {
        return path.to_vec();
    };
    let endings = [INCOMPLETE, OLDER].into_iter();
    let mut endings = endings.filter(|ending| old != new && new.ends_with(ending));
    let mut path = path.to_vec();
    if let (Some(ending), Some(name)) = (endings.next(), path.last_mut()) {
        name.truncate(NAME_MAX.saturating_sub(ending.len()));
        name.extend_from_slice(ending);
    }
    path
}
