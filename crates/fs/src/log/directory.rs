//! Recording a directory in the fsync log.
//!
//! New files are logged with their names, as an fsync of these files would do,
//! but with the data that are on the device already. For a name that is gone,
//! an item says that the log knows all entries at the name's index; a replay
//! finds none there and removes the name.
//!
//! A regular file of the last commit that has other names in the directory is
//! logged with all its names.
//!
//! All else needs a commit: files of the last commit that have, or had, a name
//! in another directory too, directories that were made, moved or removed, new
//! symbolic links and special files, and changes of names elsewhere of which the
//! log says nothing.

use super::copy::write_items;
use super::names::{self, Said};
use super::record::{attributes, log_file, ticket};
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, item_key, load_item};
use crate::mode::{S_IFDIR, S_IFMT};
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::{InodeId, InodeNumber, ItemType, Key};
use butterfs_store::{Engine, LogTicket, Purpose, StoreError, Tries};
use butterfs_tree::{ComparedItem, Comparison, NodeSource};
use std::collections::BTreeSet;

/// Nodes that logging a directory touches at most.
const NODES: usize = 60;
/// For more changed names, a commit is cheaper.
const NAMES_MAX: usize = 200;
/// Nodes that are compared with those of the last commit, at most.
const COMPARED_MAX: u64 = 400;

/// What the log must say of a directory.
#[derive(Debug, Default)]
struct Changes {
    /// Files that got or lost names and exist.
    files: BTreeSet<InodeId>,
    /// Names that only the last commit has: their indexes, and the files.
    gone: Vec<(u64, InodeId)>,
}

impl Filesystem {
    /// Makes the names in a directory durable: through the fsync log, or by a
    /// commit if the log cannot express what happened. It does not flush the
    /// data of files.
    ///
    /// # Errors
    /// Errors of logging or the commit. After a failed commit the volume is
    /// read-only.
    pub fn fsync_directory(&self, dir: &Inode) -> Result<(), FsError> {
        let ticket = {
            let _arrival = self.store.arrive_at_log();
            self.log_directory(dir.id)?
        };
        match ticket {
            Some(ticket) => self.store.sync_log(ticket)?,
            None => {
                self.store.commit()?;
            }
        }
        Ok(())
    }

    /// Puts a directory into the log; `None` if a commit is needed.
    pub(super) fn log_directory(&self, dir: InodeId) -> Result<Option<LogTicket>, FsError> {
        self.store.check_writable()?;
        if let Some(ticket) = self.store.read().ticket_of_logged(dir) {
            return Ok(Some(ticket));
        }
        let mut tries = Tries::default();
        loop {
            let mut engine = match self.store.begin(NODES, Purpose::Grow) {
                Ok(engine) => engine,
                Err(StoreError::NoSpace) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if engine.log().changes_of(dir).is_none() {
                return Ok(Some(engine.log_ticket()));
            }
            if !self.options.log_fsync || !engine.can_log() {
                return Ok(None);
            }
            let changes = engine.attempt(&mut tries, |engine| changes(engine, dir));
            if tries.missed() {
                drop(engine);
                self.store.load_missing(&mut tries);
                continue;
            }
            let Some(changes) = changes? else {
                return Ok(None);
            };
            let said = log(&mut engine, dir, &changes);
            return ticket(&mut engine, said);
        }
    }
}

/// How the names in `dir` differ from those of the last commit; `None` if the
/// log cannot express that.
fn changes(engine: &Engine, dir: InodeId) -> Result<Option<Changes>, FsError> {
    let Some(root) = engine.committed_root(dir.tree)? else {
        return Ok(None);
    };
    if engine.tree_state(dir.tree)?.item.last_snapshot >= engine.generation() {
        return Ok(None);
    }
    let item = match load_item(engine, dir) {
        // It was removed while somebody had it open.
        Err(FsError::NotFound) => return Ok(None),
        item => item?,
    };
    let same = |old: u64| old == item.generation.get();
    let is_known = names::committed_generation(engine, root, dir)?.is_some_and(same);
    if !is_known
        || item.mode & S_IFMT != S_IFDIR
        || item.nlink == 0
        || engine.log().names_changed(dir)
    {
        return Ok(None);
    }
    let entry = |data: &[u8]| match DirEntries::new(data).next() {
        Some(Err(error)) => Err(FsError::bad_item(dir, "directory index", &error)),
        Some(Ok(entry)) => Ok(file(dir, &entry)),
        None => Ok(None),
    };
    let object = dir.number.get();
    let first = Key::new(object, ItemType::DIR_INDEX, 0);
    let last = Key::new(object, ItemType::DIR_INDEX, u64::MAX);
    let now = engine.root(dir.tree)?;
    let mut comparison = Comparison::within(engine, Some(root), now, first..=last)?;
    let mut changes = Changes::default();
    while let Some(change) = comparison.next()? {
        let new = change.new.as_ref().map(ComparedItem::data);
        let old = change.old.as_ref().map(ComparedItem::data);
        match (new, old) {
            (Some(new), None) => {
                let Some((file, FileType::Regular)) = entry(new)? else {
                    return Ok(None);
                };
                changes.files.insert(file);
            }
            (None, Some(old)) => {
                let Some((file, kind)) = entry(old)? else {
                    return Ok(None);
                };
                if !names::is_gone(engine, file)? {
                    if kind != FileType::Regular {
                        return Ok(None);
                    }
                    changes.files.insert(file);
                } else {
                    let links = names::committed_links(engine, root, file)?;
                    if !links.iter().all(|link| names::lies_in(dir, file, link)) {
                        // A replay would leave it the others.
                        return Ok(None);
                    }
                }
                changes.gone.push((change.key.offset, file));
            }
            // An index is not used twice.
            _ => return Ok(None),
        }
        let many = changes.files.len() + changes.gone.len() > NAMES_MAX;
        if many || comparison.cost().read > COMPARED_MAX {
            return Ok(None);
        }
    }
    let is_said = |id: InodeId| {
        let lost = changes.gone.iter().any(|(_, file)| *file == id);
        lost || changes.files.contains(&id)
    };
    Ok((!names::others_wait(engine, &is_said)?).then_some(changes))
}

/// What an entry names and its kind, unless that is a directory or a subvolume.
fn file(dir: InodeId, entry: &DirEntry<'_>) -> Option<(InodeId, FileType)> {
    let is_inode = entry.location.item_type == ItemType::INODE_ITEM;
    let id = InodeId {
        tree: dir.tree,
        number: InodeNumber(entry.location.objectid),
    };
    (is_inode && entry.kind != FileType::Directory).then_some((id, entry.kind))
}

/// Writes a directory and what changed in it into the log. An error leaves the
/// log half edited.
fn log(engine: &mut Engine, dir: InodeId, changes: &Changes) -> Result<Said, FsError> {
    if names::bring_up_to_date(engine, Some(dir))? == Said::NotAll {
        return Ok(Said::NotAll);
    }
    for file in &changes.files {
        // What the log has already has its right names now.
        if !engine.log().has_inode(*file) && log_file(engine, *file, dir)? == Said::NotAll {
            return Ok(Said::NotAll);
        }
    }
    let item = load_item(engine, dir)?;
    let attributes = attributes(engine, dir)?;
    let mut log = engine.log_of(dir.tree)?;
    // From now on a change of its own name makes the directory stale.
    if !log.give_names(dir.number, Vec::new()) {
        return Ok(Said::NotAll);
    }
    log.replace(&item_key(dir), &item.encode())?;
    write_items(&mut log, dir, ItemType::XATTR_ITEM, &attributes)?;
    for (index, _) in &changes.gone {
        log.say_gone(dir.number, *index)?;
    }
    engine.log_mut().note_logged(dir);
    engine.log_mut().note_names_said();
    Ok(Said::All)
}
