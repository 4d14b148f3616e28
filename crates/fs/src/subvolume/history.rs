//! One file through all snapshots: which have it, and when it changed.
//!
//! Owns the order of the versions and what is compared. Each version, in the
//! family of subvolumes, is compared with the one before it in time. Only the
//! file's own items are read.

use super::diff::{Compared, DifferenceKind, FileDifference, diff_inode, inode_item};
use super::list::{SubvolumeInfo, Subvolumes};
use super::paths::Paths;
use crate::dir::lookup;
use crate::error::FsError;
use butterfs_format::item::inode::{InodeItem, Timespec};
use butterfs_format::{Generation, InodeId, InodeNumber, TreeId};
use butterfs_store::Engine;
use butterfs_tree::NodeSource;

/// The file in one subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The subvolume.
    pub subvolume: TreeId,
    /// Generation of the state that it shows.
    pub generation: Generation,
    /// Time of the state that it shows.
    pub time: Timespec,
    /// The file itself, whatever its name; `None` if the subvolume does not
    /// have it.
    pub file: Option<FileVersion>,
    /// What is at the path that was asked for: the same file or another one.
    pub at_path: AtPath,
}

/// What is at the path that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtPath {
    /// Nothing.
    Nothing,
    /// The file.
    SameFile,
    /// A different file with the same inode number.
    Other(InodeNumber),
}

/// A version of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Its paths, from the root of the subvolume. Sorted.
    pub paths: Vec<Vec<u8>>,
    /// Bytes.
    pub size: u64,
    /// Last change of content.
    pub modified: Timespec,
    /// What differs from the version before it. `None` for the first version,
    /// and if nothing differs.
    pub change: Option<FileDifference>,
}

/// A file whose history is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'p> {
    /// The file.
    pub inode: InodeId,
    /// Its path, from the root of its subvolume.
    pub path: &'p [u8],
}

/// The history of a file in all subvolumes that descend from one another,
/// earliest state first.
///
/// # Errors
/// The file or its subvolume is not there; damage, reading.
pub fn history(engine: &Engine, subject: Subject<'_>) -> Result<Vec<HistoryEntry>, FsError> {
    let subvolumes = Subvolumes::load(engine)?;
    let here = subvolumes.get(subject.inode.tree);
    let here = here.ok_or(FsError::NotFound)?;
    let number = subject.inode.number;
    let wanted = inode_item(engine, here.id, number)?.ok_or(FsError::NotFound)?;
    let same = |item: &InodeItem| {
        item.generation == wanted.generation && item.otime == wanted.otime && item.nlink > 0
    };
    let mut family = subvolumes.family(here);
    family.sort_by_key(|info| (state(info).0, info.id));
    let mut entries = Vec::new();
    let mut before: Option<TreeId> = None;
    for info in family {
        let item = inode_item(engine, info.id, number)?.filter(|item| same(item));
        let file = match item {
            Some(item) => Some(version(engine, before, info.id, (number, &item))?),
            None => None,
        };
        if file.is_some() {
            before = Some(info.id);
        }
        let found = at_path(engine, info.id, subject.path)?;
        let at_path = match found {
            None => AtPath::Nothing,
            Some(found) if found == number && file.is_some() => AtPath::SameFile,
            Some(found) => AtPath::Other(found),
        };
        let (generation, time) = state(info);
        entries.push(HistoryEntry {
            subvolume: info.id,
            generation,
            time,
            file,
            at_path,
        });
    }
    Ok(entries)
}

/// When the state of a subvolume was made. For a writable subvolume, the time
/// of its last change.
fn state(info: &SubvolumeInfo) -> (Generation, Timespec) {
    let item = &info.item;
    if info.is_read_only() || item.ctransid <= item.otransid {
        (item.otransid, item.otime)
    } else {
        (item.ctransid, item.ctime)
    }
}

fn version(
    engine: &Engine,
    before: Option<TreeId>,
    tree: TreeId,
    (number, item): (InodeNumber, &InodeItem),
) -> Result<FileVersion, FsError> {
    let change = match before {
        Some(old) => diff_inode(engine, Compared { old, new: tree }, number)?
            .into_iter()
            .find(|difference| difference.kind == DifferenceKind::Changed),
        None => None,
    };
    let paths = Paths::new(engine, tree, engine.root(tree)?).of(number)?;
    Ok(FileVersion {
        paths,
        size: item.size,
        modified: item.mtime,
        change,
    })
}

/// The inode at a path in one subvolume. Links are not followed, and nested
/// subvolumes are not entered.
fn at_path(engine: &Engine, tree: TreeId, path: &[u8]) -> Result<Option<InodeNumber>, FsError> {
    let mut at = InodeId {
        tree,
        number: InodeNumber::ROOT,
    };
    let names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty());
    for name in names {
        match lookup(engine, at, name)? {
            Some(target) if !target.subvolume => at = target.inode,
            _ => return Ok(None),
        }
    }
    Ok(Some(at.number))
}
