//! Removing files and directories with all below them.

use crate::{Calls, Error};
use butterfs_format::InodeId;
use butterfs_format::item::dir::FileType;
use butterfs_fs::FsError;
use butterfs_fs::dir::{ListedEntry, is_absent_subvolume};
use std::collections::HashSet;

/// Removes `name` from `parent`, with everything below it. Does nothing if
/// there is no such name. Calls `undone` with the error of each file or
/// directory that cannot be removed, and goes on with the others if that
/// returns no error. What is or holds a subvolume stays whole.
///
/// # Errors
/// Those of `undone`.
pub fn remove_tree<E: From<Error>>(
    calls: &dyn Calls,
    (parent, name): (InodeId, &[u8]),
    undone: &mut dyn FnMut(Error) -> Result<(), E>,
) -> Result<(), E> {
    if matches!(name, b"." | b"..") {
        let error = FsError::Invalid("a directory is not removed by the name `.` or `..`");
        return undone(Error::at(name, error));
    }
    let found = match calls.lookup(parent, name) {
        Err(FsError::NotFound) => return Ok(()),
        Err(error) => return undone(Error::at(name, error)),
        Ok(found) => found,
    };
    let is_directory = found.kind == FileType::Directory;
    if is_directory && let Some(path) = subvolume_below(calls, parent, (name, found.inode)) {
        return undone(Error::at(&path, FsError::HoldsSubvolume));
    }
    // Directories that keep something, and so stay.
    let mut kept: HashSet<InodeId> = HashSet::new();
    // A directory is removed after its content, so the loop meets it twice.
    let mut waiting = vec![(parent, name.to_vec(), found.inode, name.to_vec(), false)];
    while let Some((parent, name, id, path, is_left)) = waiting.pop() {
        if is_left && kept.contains(&id) {
            kept.insert(parent);
            continue;
        }
        let removed = match is_left {
            true => calls.rmdir(parent, &name).map(|()| None),
            false => remove_or_list(calls, (parent, &name), id),
        };
        match removed {
            Ok(None) => {}
            Ok(Some(children)) => {
                waiting.push((parent, name, id, path.clone(), true));
                for child in children {
                    let path = [&path[..], b"/", &child.name].concat();
                    waiting.push((id, child.name, child.target.inode, path, false));
                }
            }
            Err(error) => {
                kept.insert(parent);
                undone(Error::at(&path, error))?;
            }
        }
    }
    Ok(())
}

/// Removes what is no directory, and lists a directory.
fn remove_or_list(
    calls: &dyn Calls,
    (parent, name): (InodeId, &[u8]),
    id: InodeId,
) -> Result<Option<Vec<ListedEntry>>, FsError> {
    // Where a directory could not be listed before, nobody knew of it.
    if id.tree != parent.tree && !is_absent_subvolume(id) {
        return Err(FsError::HoldsSubvolume);
    }
    match calls.attributes(id)?.is_directory() {
        // An empty directory needs no right to be read.
        true => calls.list(id).map(Some).or_else(|error| {
            let removed = calls.rmdir(parent, name);
            removed.map(|()| None).map_err(|_| error)
        }),
        false => calls.unlink(parent, name).map(|()| None),
    }
}

/// The path of a subvolume at or below `id`, which has this name. The empty
/// directory that a snapshot has in a subvolume's place is none. What cannot
/// be read is passed over: who removes it meets the error again.
fn subvolume_below(
    calls: &dyn Calls,
    parent: InodeId,
    (name, id): (&[u8], InodeId),
) -> Option<Vec<u8>> {
    let mut waiting = vec![(parent.tree, id, name.to_vec())];
    while let Some((tree, id, path)) = waiting.pop() {
        if is_absent_subvolume(id) {
            continue;
        }
        if id.tree != tree {
            return Some(path);
        }
        for child in calls.list(id).unwrap_or_default() {
            if child.target.kind == FileType::Directory {
                let path = [&path[..], b"/", &child.name].concat();
                waiting.push((tree, child.target.inode, path));
            }
        }
    }
    None
}
