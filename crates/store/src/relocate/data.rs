//! Data that move: they are copied first, and then named by their new address.

use super::graph::Graph;
use super::moves::{Move, Moves};
use super::terms::{BATCH_BYTES, BATCH_EXTENTS, NODES_BESIDE, NODES_LEAST, WRITERS_WAIT, range_of};
use crate::Store;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::pending::{Backref, ExtentKind};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Bytes that are read and written at once.
const PIECE: u64 = 4 << 20;
/// Greatest length of a compressed extent after unpacking, in bytes.
const UNPACKED_MAX: u64 = 128 << 10;

/// A data extent of a group.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: Logical,
    length: u64,
}

/// What the file extents of an extent are.
struct Leaves {
    /// Leaves that hold them.
    leaves: BTreeSet<Logical>,
    /// Nothing of it was written yet.
    is_preallocated: bool,
}

impl Leaves {
    fn add(&mut self, leaf: Logical, body: &FileExtentBody<'_>) {
        self.leaves.insert(leaf);
        self.is_preallocated &= matches!(body, FileExtentBody::Prealloc(_));
    }
}

const fn disk_of(body: &FileExtentBody<'_>) -> Option<Logical> {
    match body {
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => Some(place.disk),
        FileExtentBody::Inline(_) => None,
    }
}

impl Engine {
    fn data_in(&self, group: (Logical, u64)) -> Result<Vec<Found>, StoreError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        self.visit_extents(&range_of(group), &mut |head, length| {
            if head.level().is_none() {
                found.push(Found {
                    at: Logical(head.key.objectid),
                    length,
                });
                bytes += length;
            }
            Ok(match bytes < BATCH_BYTES && found.len() < BATCH_EXTENTS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        })?;
        Ok(found)
    }

    /// Leaves with file extents of a data extent, at least one for each
    /// reference.
    fn leaves_of(&self, extent: Found) -> Result<Leaves, StoreError> {
        let now = self.refs_now(extent.at, extent.length, ExtentKind::Data)?;
        let mut leaves = Leaves {
            leaves: BTreeSet::new(),
            is_preallocated: true,
        };
        for (by, _) in now.by {
            match by {
                Backref::Data {
                    root,
                    inode,
                    offset,
                } => self.leaves_by_key(extent, (root, inode.get(), offset), &mut leaves)?,
                Backref::SharedData(leaf) => {
                    let node = self.leaf_at(leaf)?;
                    for slot in 0..node.len() {
                        let key = node.key(slot);
                        if key.item_type != ItemType::EXTENT_DATA {
                            continue;
                        }
                        let found = FileExtent::parse(node.data(slot))
                            .map_err(|error| bad_item(node.owner(), key, &error))?;
                        if disk_of(&found.body) == Some(extent.at) {
                            leaves.add(leaf, &found.body);
                        }
                    }
                }
                Backref::Tree(_) | Backref::SharedNode(_) => {
                    let key = Key::new(extent.at.get(), ItemType::EXTENT_ITEM, extent.length);
                    let fault = ItemFault::RefForNodes;
                    return Err(corrupt_item(TreeId::EXTENT, key, fault));
                }
            }
        }
        Ok(leaves)
    }

    fn leaves_by_key(
        &self,
        extent: Found,
        (tree, inode, offset): (TreeId, u64, u64),
        leaves: &mut Leaves,
    ) -> Result<(), StoreError> {
        // It is not known where in the extent a file extent begins.
        let span = extent.length.max(UNPACKED_MAX);
        let start = if i64::try_from(offset).is_err() {
            0
        } else {
            offset
        };
        let first = Key::new(inode, ItemType::EXTENT_DATA, start);
        let mut cursor = Cursor::seek_in(self, tree, &first)?;
        while let (Some((key, data)), Some((leaf, _))) = (cursor.item(), cursor.leaf()) {
            if key.objectid != inode
                || key.item_type != ItemType::EXTENT_DATA
                || key.offset.wrapping_sub(offset) > span
            {
                break;
            }
            let found = FileExtent::parse(data).map_err(|error| bad_item(tree, key, &error))?;
            if disk_of(&found.body) == Some(extent.at) {
                leaves.add(leaf.logical(), &found.body);
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Leaves that must move for `left`, in about `most` nodes at most,
    /// counting the nodes above them. `false` if there are more.
    fn graph_of(&self, left: &[Found], most: usize) -> Result<(Graph, bool), StoreError> {
        let mut graph = Graph::default();
        for extent in left {
            let state = self.extent_state(extent.at, extent.length, ExtentKind::Data);
            match state {
                Ok(state) if state.count > 0 => {}
                // It was freed meanwhile.
                Ok(_) => continue,
                Err(error) if self.is_gone(*extent)? => {
                    tracing::debug!(%error, "an extent was freed while it was copied");
                    continue;
                }
                Err(error) => return Err(error),
            }
            for leaf in self.leaves_of(*extent)?.leaves {
                if graph.len() >= most {
                    return Ok((graph, false));
                }
                graph.add(self, leaf, 0)?;
            }
        }
        Ok((graph, true))
    }

    /// True when the extent tree has no such extent.
    fn is_gone(&self, extent: Found) -> Result<bool, StoreError> {
        let key = Key::new(extent.at.get(), ItemType::EXTENT_ITEM, extent.length);
        Ok(butterfs_tree::find(self, TreeId::EXTENT, &key)?.is_none())
    }
}

impl Store {
    /// Moves some data extents of a group. Gives the number of bytes that
    /// moved, 0 if the group has none.
    pub(super) fn relocate_data(
        &self,
        group: (Logical, u64),
        nodes_max: usize,
    ) -> Result<u64, StoreError> {
        let found = self.look(|engine| engine.data_in(group))?;
        if found.is_empty() {
            return Ok(0);
        }
        if self.keeps_trees() {
            return Err(StoreError::GroupInUse(group.0));
        }
        let mut moves = Moves::default();
        let moved = self.copy_and_name(group.0, &found, nodes_max, &mut moves);
        // Returns the space of copies that nothing names.
        let unborn = moves.0.values().filter(|moved| !moved.is_born);
        let unborn: Vec<_> = unborn.map(|moved| (moved.to, moved.length)).collect();
        if !unborn.is_empty() && self.check_writable().is_ok() {
            let mut engine = self.change();
            for (to, length) in unborn {
                engine.give_back(to, length);
            }
        }
        moved?;
        Ok(found.iter().map(|extent| extent.length).sum())
    }

    fn copy_and_name(
        &self,
        group: Logical,
        found: &[Found],
        mut nodes_max: usize,
        moves: &mut Moves,
    ) -> Result<(), StoreError> {
        let mut buffer = Vec::new();
        for extent in found {
            if let Some(moved) = self.copy_extent(*extent, &mut buffer)? {
                moves.0.insert(extent.at, moved);
            }
        }
        loop {
            // Most of the commit's work is done before any operation waits.
            self.write_back()?;
            let Some(_nobody) = self.wait_for_holders(WRITERS_WAIT) else {
                return Err(StoreError::GroupInUse(group));
            };
            let named = self.commit_with(nodes_max + NODES_BESIDE, |engine| {
                if !engine.kept_trees.is_empty() {
                    return Err(StoreError::GroupInUse(group));
                }
                self.note_data_move();
                let (graph, is_all) = engine.graph_of(found, nodes_max)?;
                if graph.len() > 0 {
                    graph.move_all(engine, moves)?;
                }
                Ok::<_, StoreError>((is_all, graph.len()))
            });
            match named {
                Ok((true, _)) => break,
                Ok((false, 0)) => return Err(StoreError::Internal("a step moved nothing")),
                Ok((false, _)) => {}
                Err(StoreError::NoSpace) if nodes_max > NODES_LEAST => nodes_max /= 4,
                Err(error) => return Err(error),
            }
        }
        // An extent that is still there has file extents that are not where its
        // references say.
        self.look(|engine| {
            for extent in found {
                if !engine.is_gone(*extent)? {
                    let key = Key::new(extent.at.get(), ItemType::EXTENT_ITEM, extent.length);
                    let fault = ItemFault::RefsLeadNowhere;
                    return Err(corrupt_item(TreeId::EXTENT, key, fault));
                }
            }
            Ok(())
        })
    }

    /// Copies an extent to new space; `None` if it was freed meanwhile.
    fn copy_extent(&self, extent: Found, buffer: &mut Vec<u8>) -> Result<Option<Move>, StoreError> {
        let range = extent.at.get()..extent.at.get() + extent.length;
        let sector = self.identity.sector_size;
        let looked = self.look(|engine| {
            if engine.is_gone(extent)? {
                return Ok(None);
            }
            let sums = engine.data_checksums(range.clone())?;
            let leaves = engine.leaves_of(extent)?;
            let now = engine.refs_now(extent.at, extent.length, ExtentKind::Data)?;
            Ok::<_, StoreError>(Some((sums, leaves.is_preallocated, now.owner)))
        })?;
        let Some((sums, is_preallocated, owner)) = looked else {
            return Ok(None);
        };
        let to = self.allocate_whole(extent.length)?;
        let mut moved = Move {
            length: extent.length,
            to,
            owner,
            sums: Vec::new(),
            is_born: false,
        };
        let count = extent.length / sector;
        let mut run: Option<(u64, Vec<u8>)> = None;
        for index in 0..count {
            match sums.get(index as usize) {
                Some(sum) => run
                    .get_or_insert_with(|| (to.get() + index * sector, Vec::new()))
                    .1
                    .extend_from_slice(sum),
                None => moved.sums.extend(run.take()),
            }
        }
        moved.sums.extend(run);
        if is_preallocated && moved.sums.is_empty() {
            return Ok(Some(moved));
        }
        let mut done = 0;
        while done < extent.length {
            let length = PIECE.min(extent.length - done);
            buffer.resize(length as usize, 0);
            let first = (done / sector) as usize;
            let good = &mut |index: usize, bytes: &[u8]| {
                sums.get(first + index)
                    .is_none_or(|sum| self.identity.checksum.compute(bytes)[..sum.len()] == *sum)
            };
            let at = Logical(extent.at.get() + done);
            let sector_bytes = u32::try_from(sector).unwrap_or(u32::MAX);
            let read = self
                .space
                .read_verified_sectors(at, buffer, sector_bytes, good);
            let written = read.and_then(|_| self.space.write(Logical(to.get() + done), buffer));
            if let Err(error) = written {
                if let Ok(mut engine) = self.change_writable() {
                    engine.give_back(to, extent.length);
                }
                return Err(error.into());
            }
            done += length;
        }
        Ok(Some(moved))
    }

    /// Allocates data space in one piece.
    fn allocate_whole(&self, length: u64) -> Result<Logical, StoreError> {
        let mut transaction = self.begin(NODES_BESIDE, crate::Purpose::Grow)?;
        let range = transaction.allocate_data(length)?;
        let got = range.end - range.start;
        if got < length {
            transaction.give_back(Logical(range.start), got);
            transaction.finish();
            return Err(StoreError::NoSpace);
        }
        transaction.finish();
        Ok(Logical(range.start))
    }
}
