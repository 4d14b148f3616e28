//! File extents that are new since a generation.
//!
//! Owns the walk of one subvolume. It skips every node that has not changed
//! since, so its cost grows with what changed.

use super::paths::{Paths, joined};

use crate::error::FsError;
use butterfs_format::compression::Algorithm;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{
    FileOffset, Generation, InodeId, InodeNumber, ItemType, Key, Logical, TreeId,
};
use butterfs_store::Engine;
use butterfs_tree::{NodeSource, Sweep};

/// How a file extent keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewExtentKind {
    /// In an extent.
    Regular,
    /// In the tree.
    Inline,
    /// Nothing was written to it yet.
    Prealloc,
}

/// A file extent that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewExtent {
    /// Inode of the file.
    pub inode: InodeNumber,
    /// First byte in the file.
    pub offset: FileOffset,
    /// Bytes of the file.
    pub length: u64,
    /// The extent; 0 for a hole or inline data.
    pub disk: Logical,
    /// Where the part begins in the extent's uncompressed bytes.
    pub disk_offset: u64,
    /// When it was written.
    pub generation: Generation,
    /// How it is kept.
    pub kind: NewExtentKind,
    /// How it is compressed.
    pub compression: Option<Algorithm>,
    /// A path of the file from the root of the subvolume; `None` if the file
    /// has no name.
    pub path: Option<Vec<u8>>,
}

/// What a search for new extents cost, and what it found at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindNewEnd {
    /// Generation of the subvolume: what a later search starts from.
    pub generation: Generation,
    /// Nodes that were read.
    pub nodes_read: u64,
}

/// Gives every file extent of `tree` that was written in `since` or later to
/// `visit`, by inode and offset.
///
/// # Errors
/// Damage, reading; what `visit` gives.
pub fn find_new<E: From<FsError>>(
    engine: &Engine,
    tree: TreeId,
    since: Generation,
    visit: &mut dyn FnMut(&NewExtent) -> Result<(), E>,
) -> Result<FindNewEnd, E> {
    let root = engine.root(tree).map_err(FsError::from)?;
    let mut end = FindNewEnd {
        generation: root.generation,
        nodes_read: 0,
    };
    let mut paths = Paths::new(engine, tree, root);
    let mut last: Option<(InodeNumber, Option<Vec<u8>>)> = None;
    let mut sweep = Sweep::new(engine);
    if root.generation >= since {
        let added = sweep.add_root(root, (), &mut |(), ()| ());
        added.map_err(FsError::from)?;
    }
    while let Some(stop) = sweep.next() {
        let node = sweep.load(&stop).map_err(FsError::from)?;
        end.nodes_read = end.nodes_read.saturating_add(1);
        if !node.is_leaf() {
            for slot in 0..node.len() {
                if node.child(slot).generation >= since {
                    let only = slot..slot.saturating_add(1);
                    let below = sweep.descend(&stop, &node, only, &mut |(), ()| ());
                    below.map_err(FsError::from)?;
                }
            }
            continue;
        }
        for slot in 0..node.len() {
            let key = node.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Some(mut found) = new_extent(tree, key, node.data(slot), since)? else {
                continue;
            };
            if last.as_ref().is_none_or(|(inode, _)| *inode != found.inode) {
                last = Some((found.inode, first_path(&mut paths, found.inode)?));
            }
            found.path = last.as_ref().and_then(|(_, path)| path.clone());
            visit(&found)?;
        }
    }
    Ok(end)
}

fn first_path(paths: &mut Paths<'_>, inode: InodeNumber) -> Result<Option<Vec<u8>>, FsError> {
    let Some(link) = paths.links(inode)?.into_iter().next() else {
        return Ok(None);
    };
    Ok(Some(joined(&paths.directory(link.parent)?, &link.name)))
}

fn new_extent(
    tree: TreeId,
    key: Key,
    data: &[u8],
    since: Generation,
) -> Result<Option<NewExtent>, FsError> {
    let inode = InodeNumber(key.objectid);
    let extent = FileExtent::parse(data).map_err(|error| {
        FsError::bad_item(
            InodeId {
                tree,
                number: inode,
            },
            "file extent",
            &error,
        )
    })?;
    if extent.generation < since {
        return Ok(None);
    }
    let (kind, length, disk, disk_offset) = match extent.body {
        FileExtentBody::Inline(_) => (NewExtentKind::Inline, extent.ram_bytes, Logical(0), 0),
        FileExtentBody::Regular(place) => (
            NewExtentKind::Regular,
            place.length,
            place.disk,
            place.offset,
        ),
        FileExtentBody::Prealloc(place) => (
            NewExtentKind::Prealloc,
            place.length,
            place.disk,
            place.offset,
        ),
    };
    Ok(Some(NewExtent {
        inode,
        offset: FileOffset(key.offset),
        length,
        disk,
        disk_offset,
        generation: extent.generation,
        kind,
        compression: extent.compression,
        path: None,
    }))
}
