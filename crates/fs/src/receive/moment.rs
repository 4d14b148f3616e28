//! Whether the content of a subvolume is what it was at a moment.
//!
//! A program that reads notes access times, and a balance moves nodes: both
//! write the tree anew and leave the content as it is. So the generation of the
//! tree alone does not tell.

use crate::FsError;
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::inode::{InodeItem, Timespec};
use butterfs_format::{Generation, InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Engine, now};
use butterfs_tree::{NodeSource, Sweep};
use std::fmt;

/// How long the moment of a note may lie ahead of it.
const AHEAD_NANOSECONDS: u32 = 20_000_000;
const NANOSECONDS: u32 = 1_000_000_000;

/// When a note was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// The generation of the tree that has the note.
    generation: Generation,
    /// The time, in seconds and nanoseconds. Older versions did not note it.
    time: Option<(i64, u32)>,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "generation {}", self.generation)?;
        match self.time {
            Some((seconds, nanoseconds)) => writeln!(f, "time {seconds} {nanoseconds}"),
            None => Ok(()),
        }
    }
}

impl Moment {
    /// The moment of a note that is written now, in the generation that is not
    /// committed yet. Writing it changes a time of the root of the subvolume,
    /// and that must not lie after the moment.
    pub(super) fn soon(generation: Generation) -> Self {
        let now = now();
        let nanoseconds = now.nanoseconds.saturating_add(AHEAD_NANOSECONDS);
        let seconds = now
            .seconds
            .saturating_add((nanoseconds / NANOSECONDS).into());
        Self {
            generation,
            time: Some((seconds, nanoseconds % NANOSECONDS)),
        }
    }

    /// Whether a change in this generation, at this time, is not later.
    pub(super) fn includes(self, generation: Generation, time: Timespec) -> bool {
        let is_before = |until| (time.seconds, time.nanoseconds) <= until;
        generation == self.generation && self.time.is_none_or(is_before)
    }

    /// The moment at the beginning of a text, and the rest.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let (first, rest) = text.split_once('\n')?;
        let generation = Generation(first.strip_prefix("generation ")?.parse().ok()?);
        let Some(after) = rest.strip_prefix("time ") else {
            let time = None;
            return Some((Self { generation, time }, rest));
        };
        let (line, rest) = after.split_once('\n')?;
        let (seconds, nanoseconds) = line.split_once(' ')?;
        let time = Some((seconds.parse().ok()?, nanoseconds.parse().ok()?));
        Some((Self { generation, time }, rest))
    }

    /// Whether the item shows that the content changed after the moment.
    fn is_before(self, tree: TreeId, key: Key, data: &[u8]) -> Result<bool, FsError> {
        let inode = InodeId {
            tree,
            number: InodeNumber(key.objectid),
        };
        let bad = |what| move |error| FsError::bad_item(inode, what, &error);
        let later = |generation: Generation| generation > self.generation;
        Ok(match key.item_type {
            ItemType::INODE_ITEM => {
                let item = InodeItem::parse(data).map_err(bad("inode item"))?;
                let changed = (item.ctime.seconds, item.ctime.nanoseconds);
                later(item.generation)
                    || (later(item.transid) && self.time.is_none_or(|time| changed > time))
            }
            // The clock may have been set back, so these are looked at, too.
            ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
                for entry in DirEntries::new(data) {
                    let entry = entry.map_err(bad("directory entry"))?;
                    if later(entry.generation) {
                        return Ok(true);
                    }
                }
                false
            }
            ItemType::EXTENT_DATA => {
                let extent = FileExtent::parse(data).map_err(bad("file extent"))?;
                later(extent.generation)
            }
            _ => false,
        })
    }
}

/// Whether the content of a subvolume is what it was at a moment. Reads the
/// nodes that were written since.
pub(super) fn is_as_at(engine: &Engine, tree: TreeId, moment: Moment) -> Result<bool, FsError> {
    let root = engine.root(tree)?;
    if root.generation == moment.generation {
        return Ok(true);
    }
    if moment.time.is_none() || root.generation < moment.generation {
        return Ok(false);
    }
    let mut sweep = Sweep::new(engine);
    sweep.add_root(root, (), &mut |(), ()| ())?;
    while let Some(stop) = sweep.next() {
        let node = sweep.load(&stop)?;
        for slot in 0..node.len() {
            if node.is_leaf() {
                if moment.is_before(tree, node.key(slot), node.data(slot))? {
                    return Ok(false);
                }
            } else if node.child(slot).generation > moment.generation {
                let only = slot..slot.saturating_add(1);
                sweep.descend(&stop, &node, only, &mut |(), ()| ())?;
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_as_it_was_written() {
        let moment = Moment::soon(Generation(77));
        let text = format!("{moment}receiving x\n");
        assert_eq!(Moment::parse(&text), Some((moment, "receiving x\n")));
        let old = Moment {
            generation: Generation(77),
            time: None,
        };
        assert_eq!(Moment::parse("generation 77\nrest"), Some((old, "rest")));
        for bad in [
            "",
            "generation x\n",
            "generation 7\ntime 1\n",
            "generation 7\ntime 1 x\n",
        ] {
            assert_eq!(Moment::parse(bad), None, "{bad}");
        }
    }
}
