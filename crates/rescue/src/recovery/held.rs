//! What a chunk that is lost held.

use super::facts::Facts;
use super::{ChunkDoubt, LostChunk};
use crate::inodes::each_inode;
use crate::live::Live;
use crate::names::Names;
use butterfs_format::item::file_extent::FileExtentBody;
use butterfs_format::{Logical, TreeId};
use std::convert::Infallible;

/// Paths that are named for each chunk.
const PATHS_MAX: usize = 100;

/// What a chunk held, by what is left of the trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of it that were in use, if its block group is left.
    pub used: Option<u64>,
    /// Files with data in it, by subvolume and path. Only the first ones.
    pub files: Vec<(TreeId, Vec<u8>)>,
    /// All of them.
    pub file_count: u64,
}

/// Chunks that are not certain, with what they held.
pub(super) fn held(facts: &Facts<'_>, doubts: Vec<(Logical, ChunkDoubt)>) -> Vec<LostChunk> {
    let lost = doubts.into_iter().map(|(logical, doubt)| {
        let group = facts.groups.get(&logical);
        let items = facts.items.get(&logical);
        let item = items.and_then(|items| items.first());
        let length = group.map(|group| group.length);
        LostChunk {
            logical,
            length: length.or(item.map(|item| item.length)),
            flags: group
                .map(|group| group.flags)
                .or(item.map(|item| item.flags)),
            doubt,
            held: Held {
                used: group.map(|group| group.used),
                ..Held::default()
            },
        }
    });
    let mut lost: Vec<LostChunk> = lost.collect();
    if !lost.is_empty() {
        add_files(facts, &mut lost);
    }
    lost
}

/// Adds the files whose extents lie in the chunks.
fn add_files(facts: &Facts<'_>, lost: &mut [LostChunk]) {
    let nodes = facts.nodes();
    for subvolume in facts.forest.subvolumes() {
        let plan = facts
            .forest
            .plan(nodes, subvolume.id, &Live::nothing(nodes));
        let names = Names::load(&plan, nodes);
        let done: Result<(), Infallible> = each_inode(&plan, nodes, |inode| {
            for chunk in lost.iter_mut() {
                let start = chunk.logical;
                let end = start.saturating_add(chunk.length.unwrap_or(0));
                let has_data = inode.parsed().any(|(_, extent)| match extent.body {
                    FileExtentBody::Regular(place) => (start..end).contains(&place.disk),
                    FileExtentBody::Inline(_) | FileExtentBody::Prealloc(_) => false,
                });
                if !has_data {
                    continue;
                }
                let count = &mut chunk.held.file_count;
                *count = count.saturating_add(1);
                if chunk.held.files.len() < PATHS_MAX {
                    let paths = names.paths(inode.number, &inode.names, subvolume.id);
                    let path = paths.into_iter().next().unwrap_or_default();
                    chunk.held.files.push((subvolume.id, path.join(&b'/')));
                }
            }
            Ok(())
        });
        let Ok(()) = done;
    }
}
