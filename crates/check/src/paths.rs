//! Paths of the inodes that faults name, if their names lead to the root.

use crate::context::{Context, Lookup};
use crate::inodes::run::is_inode;
use crate::report::Report;
use butterfs_format::item::inode::{ExtrefEntries, RefEntries};
use butterfs_format::{InodeNumber, ItemType, Key, NodeRef, TreeId};
use butterfs_tree::Cursor;
use rustc_hash::FxHashMap;

/// The greatest depth of a path in directories.
const DEPTH_MAX: usize = 512;

/// Adds paths to the faults of a report.
pub(crate) fn add(report: &mut Report, context: &Context<'_>, roots: &FxHashMap<TreeId, NodeRef>) {
    let lookup = Lookup { context, roots };
    for fault in &mut report.faults {
        if let (Some(tree), Some(key)) = (fault.place.tree, fault.place.key)
            && tree.is_subvolume()
            && is_inode(key.objectid)
        {
            fault.path = path(&lookup, tree, key.objectid);
        }
    }
}

/// Returns a directory that holds an inode, and the inode's name there.
fn parent(lookup: &Lookup<'_, '_>, tree: TreeId, inode: u64) -> Option<(u64, Vec<u8>)> {
    let first = Key::new(inode, ItemType::INODE_REF, 0);
    let cursor = Cursor::seek_in(lookup, tree, &first).ok()?;
    let (key, data) = cursor.item()?;
    if key.objectid != inode {
        return None;
    }
    match key.item_type {
        ItemType::INODE_REF => {
            let entry = RefEntries::new(data).next()?.ok()?;
            Some((key.offset, entry.name.to_vec()))
        }
        ItemType::INODE_EXTREF => {
            let entry = ExtrefEntries::new(data).next()?.ok()?;
            Some((entry.parent.get(), entry.name.to_vec()))
        }
        _ => None,
    }
}

fn path(lookup: &Lookup<'_, '_>, tree: TreeId, inode: u64) -> Option<String> {
    let mut names = Vec::new();
    let mut at = inode;
    while at != InodeNumber::ROOT.get() {
        if names.len() >= DEPTH_MAX {
            return None;
        }
        let (directory, name) = parent(lookup, tree, at)?;
        names.push(String::from_utf8_lossy(&name).into_owned());
        at = directory;
    }
    names.reverse();
    Some(format!("/{}", names.join("/")))
}
