//! Names in the fsync log, and how they stay true when files are renamed.
//!
//! A replay would bring back a name that a logged file has lost. So the next
//! fsync, of any file, first brings the log up to date.

use super::copy::{Items, forget_extents, items, write_items};
use crate::dir::{self, Link};
use crate::error::FsError;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::{DirEntries, FileType};
use butterfs_format::item::inode::{InodeItem, RefEntries};
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, NodeRef};
use butterfs_store::{Engine, GivenName, LogEditor};
use butterfs_tree::Cursor;

/// How many files an fsync brings up to date. For more, a commit is cheaper.
const STALE_MAX: usize = 200;

/// Whether the log can express everything that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    All,
    /// It cannot; a commit is needed.
    NotAll,
}

/// What would bring back a file without names after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nobody,
    Log,
    Commit,
}

/// Where a file that lost its last name still has one.
pub(super) fn known_by(engine: &Engine, id: InodeId) -> Result<Known, FsError> {
    if !engine.log().names_changed(id) {
        return Ok(Known::Nobody);
    }
    if is_committed(engine, id)? {
        return Ok(Known::Commit);
    }
    Ok(match engine.log().has_inode(id) {
        true => Known::Log,
        false => Known::Nobody,
    })
}

fn is_committed(engine: &Engine, id: InodeId) -> Result<bool, FsError> {
    let Some(root) = engine.committed_root(id.tree)? else {
        return Ok(false);
    };
    Ok(committed_generation(engine, root, id)?.is_some())
}

/// The generation that made an inode of the last commit, which is at `root`;
/// `None` if the commit has no such inode.
pub(super) fn committed_generation(
    engine: &Engine,
    root: NodeRef,
    id: InodeId,
) -> Result<Option<u64>, FsError> {
    let Some(data) = find_at(engine, root, &crate::inode::item_key(id))? else {
        return Ok(None);
    };
    let item =
        InodeItem::parse(&data).map_err(|error| FsError::bad_item(id, "inode item", &error))?;
    Ok(Some(item.generation.get()))
}

/// Whether an inode has no names any more.
pub(super) fn is_gone(engine: &Engine, id: InodeId) -> Result<bool, FsError> {
    match crate::inode::load_item(engine, id) {
        Ok(item) => Ok(item.nlink == 0),
        Err(FsError::NotFound) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Brings up to date, in the log, the names of logged files that changed since.
/// The caller will say which names are gone from `dir`, if there is one. An
/// error leaves the log half edited.
pub(super) fn bring_up_to_date(engine: &mut Engine, dir: Option<InodeId>) -> Result<Said, FsError> {
    let stale = engine.log_mut().take_stale_names();
    if stale.len() > STALE_MAX {
        return Ok(Said::NotAll);
    }
    let taken = taken_names(engine, &stale)?;
    // A name may have passed from one file to another, so all files give up
    // their names first.
    for id in &stale {
        engine.log_of(id.tree)?.give_names(id.number, Vec::new());
    }
    for id in stale {
        let said = match crate::inode::load_item(engine, id) {
            Ok(item) if item.nlink > 0 => rename(engine, id, &item, dir)?,
            Ok(_) => {
                // If it gets a name again, all of it must be logged.
                let sector = engine.sector_size();
                engine.log().note_extents(id, 0..u64::MAX / sector * sector);
                forget(engine, id)?
            }
            Err(FsError::NotFound) => forget(engine, id)?,
            Err(error) => return Err(error),
        };
        if said == Said::NotAll {
            return Ok(said);
        }
    }
    // The file of the last commit would get its name back.
    let is_said = |(parent, name)| dir == Some(parent) || engine.log().has_name(parent, name);
    let mut taken = taken.into_iter();
    Ok(match taken.all(is_said) {
        true => Said::All,
        false => Said::NotAll,
    })
}

/// Names that the log gives to `files` although the last commit has them: a
/// replay takes them away from the files of the last commit.
fn taken_names(engine: &Engine, files: &[InodeId]) -> Result<Vec<(InodeId, Vec<u8>)>, FsError> {
    let mut taken = Vec::new();
    for id in files {
        let Some(root) = engine.committed_root(id.tree)? else {
            continue;
        };
        for given in engine.log().names_of(*id) {
            let entry = entry_at(engine, root, given.dir, &given.name)?;
            if let Some((location, _)) = entry
                && !is_said_gone(engine, root, given.dir, &given.name, &location)?
            {
                taken.push((given.dir, given.name.clone()));
            }
        }
    }
    Ok(taken)
}

fn rename(
    engine: &mut Engine,
    id: InodeId,
    item: &InodeItem,
    dir: Option<InodeId>,
) -> Result<Said, FsError> {
    let Some(root) = engine.committed_root(id.tree)? else {
        return Ok(Said::NotAll);
    };
    if engine.tree_state(id.tree)?.item.last_snapshot >= engine.generation() {
        return Ok(Said::NotAll);
    }
    let Some(names) = to_log(engine, id, item, root, dir)? else {
        return Ok(Said::NotAll);
    };
    let said = write(&mut engine.log_of(id.tree)?, id, &names)?;
    if said == Said::All {
        note_replaced(engine, id, root)?;
    }
    Ok(said)
}

/// Notes which files are gone, as the log says by giving their only names in the
/// last commit, at `root`, to `id`.
pub(super) fn note_replaced(
    engine: &mut Engine,
    id: InodeId,
    root: NodeRef,
) -> Result<(), FsError> {
    let mut replaced = Vec::new();
    for given in engine.log().names_of(id) {
        let Some((location, _)) = entry_at(engine, root, given.dir, &given.name)? else {
            continue;
        };
        let old = InodeId {
            tree: id.tree,
            number: InodeNumber(location.objectid),
        };
        if location.item_type == ItemType::INODE_ITEM
            && is_gone(engine, old)?
            && committed_links(engine, root, old)?.len() == 1
        {
            replaced.push(old);
        }
    }
    for old in replaced {
        engine.log_mut().note_names_said_of(old);
    }
    Ok(())
}

/// Takes a file that is gone out of the log.
fn forget(engine: &mut Engine, id: InodeId) -> Result<Said, FsError> {
    if is_committed(engine, id)? {
        return Ok(Said::NotAll);
    }
    let object = id.number.get();
    let mut log = engine.log_of(id.tree)?;
    forget_extents(&mut log, id, &(0..u64::MAX))?;
    let first = Key::new(object, ItemType::MIN, 0);
    log.remove_range(first..=Key::new(object, ItemType::MAX, u64::MAX))?;
    log.forget(id.number);
    Ok(Said::All)
}

/// Writes the items of a file's names.
pub(super) fn write(log: &mut LogEditor<'_>, id: InodeId, names: &Items) -> Result<Said, FsError> {
    let mut given = Vec::new();
    for (key, data) in names {
        let dir = InodeId {
            tree: id.tree,
            number: InodeNumber(key.offset),
        };
        for entry in RefEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(id, "name", &error))?;
            given.push(GivenName {
                dir,
                index: entry.index,
                name: entry.name.to_vec(),
            });
        }
    }
    if !log.give_names(id.number, given) {
        return Ok(Said::NotAll);
    }
    write_items(log, id, ItemType::INODE_REF, names)?;
    Ok(Said::All)
}

fn find_at(engine: &Engine, root: NodeRef, key: &Key) -> Result<Option<Vec<u8>>, FsError> {
    let mut cursor = Cursor::at_root(engine, root);
    cursor.seek(key)?;
    Ok(cursor
        .item()
        .filter(|(found, _)| found == key)
        .map(|(_, data)| data.to_vec()))
}

/// Items of the names that the last commit, at `root`, does not have. `None` if
/// a replay could not repeat what happened to the names. The log says of `dir`,
/// if there is one, which of its names are gone.
pub(super) fn to_log(
    engine: &Engine,
    id: InodeId,
    item: &InodeItem,
    root: NodeRef,
    dir: Option<InodeId>,
) -> Result<Option<Items>, FsError> {
    let is_in_dir = |link: &Link| dir.is_some_and(|dir| lies_in(dir, id, link));
    let now = match committed_generation(engine, root, id)? {
        None => dir::links(engine, id)?,
        Some(old) if old != item.generation.get() => return Ok(None),
        Some(_) if !engine.log().names_changed(id) => return Ok(Some(Vec::new())),
        Some(_) => {
            // A replay gives the file, in each directory for which the log has
            // an item, exactly the names of that item.
            let old = committed_links(engine, root, id)?;
            let now = dir::links(engine, id)?;
            if !old.iter().chain(&now).all(is_in_dir) {
                return Ok(None);
            }
            now
        }
    };
    let mut parents: Vec<InodeNumber> = Vec::new();
    for link in &now {
        if !is_in_dir(link) && !is_free_at(engine, root, id, link)? {
            return Ok(None);
        }
        parents.push(link.parent);
    }
    parents.sort_unstable();
    parents.dedup();
    let mut all = Vec::new();
    for parent in parents {
        let key = Key::new(id.number.get(), ItemType::INODE_REF, parent.get());
        let Some((leaf, slot)) = butterfs_tree::find(engine, id.tree, &key)? else {
            return Ok(None);
        };
        all.push((key, leaf.data(slot).to_vec()));
    }
    let named: usize = all
        .iter()
        .map(|(_, data)| RefEntries::new(data).count())
        .sum();
    // Names that do not fit into the reference items are in extended ones.
    Ok((named >= now.len() && engine_has_no_extended(engine, id)?).then_some(all))
}

fn engine_has_no_extended(engine: &Engine, id: InodeId) -> Result<bool, FsError> {
    let object = id.number.get();
    let first = Key::new(object, ItemType::INODE_EXTREF, 0);
    let last = Key::new(object, ItemType::INODE_EXTREF, u64::MAX);
    Ok(items(engine, id, first, last)?.is_empty())
}

/// True if the last commit has the directory of a name, and not its index
/// there. If it has the name, the name's file must be gone, or the log must say
/// that it has the name no more.
fn is_free_at(engine: &Engine, root: NodeRef, id: InodeId, link: &Link) -> Result<bool, FsError> {
    let parent = InodeId {
        tree: id.tree,
        number: link.parent,
    };
    let now = crate::inode::load_item(engine, parent)?;
    if committed_generation(engine, root, parent)? != Some(now.generation.get()) {
        return Ok(false);
    }
    let number = link.parent.get();
    let index = Key::new(number, ItemType::DIR_INDEX, link.index);
    if find_at(engine, root, &index)?.is_some() {
        return Ok(false);
    }
    match entry_at(engine, root, parent, &link.name)? {
        Some((location, _)) if is_said_gone(engine, root, parent, &link.name, &location)? => {
            Ok(true)
        }
        Some(entry) => is_replaced(engine, root, id, entry),
        None => Ok(true),
    }
}

/// What a name in `dir` names at `root`.
fn entry_at(
    engine: &Engine,
    root: NodeRef,
    dir: InodeId,
    name: &[u8],
) -> Result<Option<(Key, FileType)>, FsError> {
    let hash = Key::new(dir.number.get(), ItemType::DIR_ITEM, name_hash(name));
    let Some(entries) = find_at(engine, root, &hash)? else {
        return Ok(None);
    };
    for entry in DirEntries::new(&entries) {
        let entry = entry.map_err(|error| FsError::bad_item(dir, "directory entry", &error))?;
        if entry.name == name {
            return Ok(Some((entry.location, entry.kind)));
        }
    }
    Ok(None)
}

/// Whether the log says that a name in `dir`, which the last commit at `root`
/// gave to what is at `location`, is gone. A replay takes such names away before
/// it gives any, and the log has all names of their file.
fn is_said_gone(
    engine: &Engine,
    root: NodeRef,
    dir: InodeId,
    name: &[u8],
    location: &Key,
) -> Result<bool, FsError> {
    if location.item_type != ItemType::INODE_ITEM {
        return Ok(false);
    }
    let old = InodeId {
        tree: dir.tree,
        number: InodeNumber(location.objectid),
    };
    let links = committed_links(engine, root, old)?;
    let mut of_name = links
        .iter()
        .filter(|link| lies_in(dir, old, link) && link.name == name);
    Ok(of_name.any(|link| engine.log().says_gone(dir, link.index)))
}

/// Whether a replay may give `new` a name that the last commit, at `root`, gave
/// to what is at `location`: a file that is gone. If the file had other names,
/// the replay would leave it those, which it may never have had alone.
fn is_replaced(
    engine: &Engine,
    root: NodeRef,
    new: InodeId,
    (location, kind): (Key, FileType),
) -> Result<bool, FsError> {
    if location.item_type != ItemType::INODE_ITEM || kind == FileType::Directory {
        return Ok(false);
    }
    let number = InodeNumber(location.objectid);
    let old = InodeId {
        tree: new.tree,
        number,
    };
    Ok(is_gone(engine, old)?
        && committed_links(engine, root, old)?.len() == 1
        && !others_wait(engine, &|id| id == old || id == new)?)
}

/// Whether names of files changed of which the log says nothing, other than
/// those for which `is_said` holds. Then an fsync does not take a name away
/// from a file without all of these changes: whoever replaces a file relies on
/// what was named before. (Git gives an object its name, and then a branch its
/// new commit.)
pub(super) fn others_wait(
    engine: &Engine,
    is_said: &dyn Fn(InodeId) -> bool,
) -> Result<bool, FsError> {
    let Some(renamed) = engine.log().renamed() else {
        return Ok(true);
    };
    for id in renamed {
        // A file that came and went is no loss.
        if !is_said(id) && (!is_gone(engine, id)? || is_committed(engine, id)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a name of an inode lies in `dir`. Directories of different
/// subvolumes have the same numbers.
pub(super) fn lies_in(dir: InodeId, id: InodeId, link: &Link) -> bool {
    (id.tree, link.parent) == (dir.tree, dir.number)
}

/// The names of an inode in the last commit, at `root`.
pub(super) fn committed_links(
    engine: &Engine,
    root: NodeRef,
    id: InodeId,
) -> Result<Vec<Link>, FsError> {
    dir::links_at(&mut Cursor::at_root(engine, root), id)
}
