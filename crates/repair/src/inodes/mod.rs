//! Subvolumes: what is wrong with their inodes, names and file extents is mended
//! where another item still tells the truth.
//!
//! Owns the plan of a pass, and the order of the four passes over a subvolume:
//! impossible items; missing inodes; names, which are kept on three sides; and
//! what inodes count. Each pass plans its changes, which are then made. Memory:
//! the changes of one pass.

mod counts;
mod impossible;
mod missing;
mod seen;
mod sides;

use crate::error::RepairError;
use crate::items;
use crate::names::INDEX_END;
use crate::step::{Step, StepKind};
use crate::writer::Writer;
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{InodeNumber, ItemType, Key, TreeId, object};
use butterfs_tree::{Cursor, Editor, TreeError, find};
use std::collections::BTreeMap;

/// Names that are listed in a step.
const LISTED_MAX: usize = 20;
const ROOT: u64 = InodeNumber::ROOT.get();

/// Changes of one tree that are not made yet, and the tree below them.
pub(crate) struct Plan<'w> {
    pub(crate) writer: &'w Writer,
    pub(crate) tree: TreeId,
    /// New data of items; `None` for items that go.
    pub(crate) changes: BTreeMap<Key, Option<Vec<u8>>>,
    counts: BTreeMap<StepKind, Count>,
    /// The next free index of directories that get entries.
    next_index: BTreeMap<u64, u64>,
    next_inode: Option<u64>,
}

#[derive(Default)]
struct Count {
    count: u64,
    inodes: Vec<u64>,
    lost: Vec<String>,
}

impl<'w> Plan<'w> {
    fn new(writer: &'w Writer, tree: TreeId) -> Self {
        Self {
            writer,
            tree,
            changes: BTreeMap::new(),
            counts: BTreeMap::new(),
            next_index: BTreeMap::new(),
            next_inode: None,
        }
    }

    fn count(&mut self, kind: StepKind, inode: u64) {
        let count = self.counts.entry(kind).or_default();
        count.count = count.count.saturating_add(1);
        if count.inodes.len() < LISTED_MAX && !count.inodes.contains(&inode) {
            count.inodes.push(inode);
        }
    }

    fn lose(&mut self, kind: StepKind, what: String) {
        let count = self.counts.entry(kind).or_default();
        if count.lost.len() < LISTED_MAX {
            count.lost.push(what);
        }
    }

    pub(crate) fn put(&mut self, kind: StepKind, key: Key, data: Vec<u8>) {
        self.count(kind, key.objectid);
        self.changes.insert(key, Some(data));
    }

    pub(crate) fn remove(&mut self, kind: StepKind, key: Key) {
        self.count(kind, key.objectid);
        self.changes.insert(key, None);
    }

    /// An item with the planned changes.
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, RepairError> {
        if let Some(planned) = self.changes.get(key) {
            return Ok(planned.clone());
        }
        match find(self.writer, self.tree, key) {
            Ok(found) => Ok(found.map(|(leaf, slot)| leaf.data(slot).to_vec())),
            // A damaged leaf has nothing that can be read.
            Err(TreeError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn inode(&self, number: u64) -> Result<Option<InodeItem>, RepairError> {
        let data = self.get(&Key::new(number, ItemType::INODE_ITEM, 0))?;
        Ok(data.and_then(|data| InodeItem::parse(&data).ok()))
    }

    /// Whether any item has this inode, planned or not.
    fn has_items(&self, number: u64) -> Result<bool, RepairError> {
        let mut planned = self
            .changes
            .range(Key::new(number, ItemType::MIN, 0)..=Key::new(number, ItemType::MAX, u64::MAX));
        if planned.any(|(_, data)| data.is_some()) {
            return Ok(true);
        }
        let cursor = Cursor::seek_in(self.writer, self.tree, &Key::new(number, ItemType::MIN, 0));
        Ok(cursor?.key().is_some_and(|key| key.objectid == number))
    }

    /// A free index of a directory.
    fn new_index(&mut self, directory: u64) -> Result<u64, RepairError> {
        let next = match self.next_index.get(&directory) {
            Some(next) => *next,
            None => {
                let last = Key::new(directory, ItemType::DIR_INDEX, INDEX_END.saturating_sub(2));
                let mut cursor = Cursor::at_root(self.writer, self.root()?);
                let found = cursor.seek_back(&last)?;
                let key = cursor.key().filter(|key| {
                    found && key.objectid == directory && key.item_type == ItemType::DIR_INDEX
                });
                key.map_or(2, |key| key.offset.saturating_add(1).max(2))
            }
        };
        self.next_index.insert(directory, next.saturating_add(1));
        Ok(next)
    }

    fn root(&self) -> Result<butterfs_format::NodeRef, RepairError> {
        use butterfs_tree::NodeSource as _;
        Ok(self.writer.root(self.tree)?)
    }

    /// A free inode number.
    fn new_inode(&mut self) -> Result<u64, RepairError> {
        let next = match self.next_inode {
            Some(next) => next,
            None => {
                let last = Key::new(u64::MAX.wrapping_sub(255), ItemType::MIN, 0);
                let mut cursor = Cursor::at_root(self.writer, self.root()?);
                let found = cursor.seek_back(&last)?;
                let key = cursor.key().filter(|_| found);
                let last = key.map_or(ROOT, |key| key.objectid.max(ROOT));
                last.saturating_add(1)
            }
        };
        self.next_inode = Some(next.saturating_add(1));
        Ok(next)
    }
}

/// One look at a subvolume, which plans changes.
type Pass = fn(&mut Plan<'_>) -> Result<(), RepairError>;

/// Mends a subvolume.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn mend(
    writer: &mut Writer,
    tree: TreeId,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let passes: [Pass; 4] = [
        impossible::impossible_items,
        missing::missing_inodes,
        sides::sides_of_names,
        counts::counts,
    ];
    for pass in passes {
        let mut plan = Plan::new(writer, tree);
        pass(&mut plan)?;
        let Plan {
            changes, counts, ..
        } = plan;
        let mut editor = Editor::new(writer, tree);
        for (key, data) in changes {
            match data {
                Some(data) => editor.replace(&key, &data)?,
                None => {
                    editor.remove(&key)?;
                }
            }
        }
        for (kind, count) in counts {
            let inodes: Vec<String> = count.inodes.iter().map(u64::to_string).collect();
            let text = format!(
                "{} in tree {tree}, inodes {}{}.",
                count.count,
                inodes.join(", "),
                if count.inodes.len() == LISTED_MAX {
                    " and more"
                } else {
                    ""
                }
            );
            let mut step = Step::new(kind, text);
            if !count.lost.is_empty() {
                step = step.losing(count.lost.join("; "));
            }
            steps.push(step);
        }
    }
    Ok(())
}

/// Removes the inode cache of old kernels, which nobody reads.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn remove_cache(
    writer: &mut Writer,
    tree: TreeId,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let mut removed = 0_usize;
    for object in INODE_CACHE {
        let keys = Key::new(object, ItemType::MIN, 0)..=Key::new(object, ItemType::MAX, u64::MAX);
        let have = items::read(writer, tree, keys)?;
        let changed = items::change(writer, tree, &have, &items::Items::new())?;
        removed = removed.saturating_add(changed);
    }
    if removed > 0 {
        let text = format!("{removed} of the inode cache in tree {tree}.");
        steps.push(Step::new(StepKind::Items, text));
    }
    Ok(())
}

/// Calls `see` with each item of the tree, as it is without planned changes.
fn each(
    plan: &mut Plan<'_>,
    mut see: impl FnMut(&mut Plan<'_>, Key, &[u8]) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    let (writer, tree) = (plan.writer, plan.tree);
    items::each(writer, tree, Key::MIN..=Key::MAX, |key, data| {
        see(plan, key, data)
    })
}

/// Objects of the inode cache of old kernels.
const INODE_CACHE: [u64; 2] = [object::FREE_INO, object::FREE_SPACE];
