//! The sweeps that find who holds what.
//!
//! Owns the list of holders and the sums by set. The parent module answers
//! questions from them.

use super::terms::{Limits, Progress, Role, Space, index};
use crate::error::FsError;
use crate::subvolume::list::Subvolumes;
use crate::subvolume::member_sets::{Member, MemberSets, SetId};
use butterfs_format::bytes::Reader;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::extent::ExtentHeader;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::root::RootItem;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_store::{BlockGroup, Engine, ItemFault, bad_item, corrupt_item};
use butterfs_tree::{Cursor, Node, NodeSource, Sweep, find};
use rustc_hash::FxHashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// A tree that may hold space.
pub(super) struct Holder {
    /// Its id, of subvolumes.
    pub(super) tree: Option<TreeId>,
    pub(super) role: Role,
    root: Option<NodeRef>,
    /// Where its deletion continues. What lies before is gone.
    dropped: Option<(Key, u8)>,
}

pub(super) fn numbered(members: &[Holder]) -> impl Iterator<Item = (Member, &Holder)> {
    (0..).map(Member).zip(members)
}

/// All holders. The last one stands for those that are not known.
pub(super) fn holders(engine: &Engine) -> Result<Vec<Holder>, FsError> {
    let mut members = Vec::new();
    for info in Subvolumes::load(engine)?.iter() {
        let item = &info.item;
        let dying = info.is_being_deleted();
        members.push(Holder {
            tree: Some(info.id),
            role: if dying { Role::Dying } else { Role::Subvolume },
            root: Some(item.root()),
            dropped: item
                .drop_progress
                .filter(|_| dying)
                .map(|key| (key, item.drop_level)),
        });
    }
    // Trees that an interrupted balance left. They will be dropped, and hold
    // nothing then.
    let mut cursor = Cursor::seek_in(
        engine,
        TreeId::ROOT,
        &Key::new(TreeId::RELOC.get(), ItemType::ROOT_ITEM, 0),
    )?;
    while let Some((key, data)) = cursor.item() {
        if key.objectid != TreeId::RELOC.get() || key.item_type != ItemType::ROOT_ITEM {
            break;
        }
        let item = RootItem::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
        members.push(Holder {
            tree: None,
            role: Role::Dying,
            root: Some(item.root()),
            dropped: item.drop_progress.map(|key| (key, item.drop_level)),
        });
        cursor.next()?;
    }
    if let Ok(root) = engine.root(TreeId::DATA_RELOC) {
        members.push(Holder {
            tree: None,
            role: Role::Kept,
            root: Some(root),
            dropped: None,
        });
    }
    members.push(Holder {
        tree: None,
        role: Role::Kept,
        root: None,
        dropped: None,
    });
    Ok(members)
}

/// Sums by set: sweeps until all addresses are counted.
pub(super) fn count(
    engine: &Engine,
    members: &[Holder],
    sets: &mut MemberSets,
    limits: &Limits,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Vec<Space>, FsError> {
    let node_size = u64::try_from(engine.node_size()).unwrap_or(u64::MAX);
    let metadata = engine
        .groups()
        .filter(|group| group.flags.contains(BlockGroupFlags::METADATA));
    let used = metadata.fold(0, |sum: u64, group| sum.saturating_add(group.used));
    let mut seen = Progress {
        nodes_max: used.checked_div(node_size).unwrap_or_default(),
        ..Progress::default()
    };
    let mut tally: Vec<Space> = Vec::new();
    let end = engine.groups().map(BlockGroup::end).max();
    let end = Logical(end.unwrap_or_default());
    const LAST: Logical = Logical(u64::MAX);
    let mut window = Logical(0)..LAST;
    loop {
        seen.sweeps = seen.sweeps.saturating_add(1);
        seen.nodes = 0;
        let mut pass = Pass {
            engine,
            members,
            sets,
            limits,
            window: window.clone(),
            node_size,
            tally: Vec::new(),
            waiting: FxHashMap::default(),
            extents: ExtentRefs::default(),
        };
        match pass.run(&mut seen, progress)? {
            Swept::All => {
                let is_first = window.start == Logical(0);
                let counted = pass.tally;
                if tally.len() < counted.len() {
                    tally.resize(counted.len(), Space::default());
                }
                for (sum, space) in tally.iter_mut().zip(counted) {
                    // Only the first sweep counts nodes.
                    let metadata = if is_first { space.metadata } else { 0 };
                    *sum += Space { metadata, ..space };
                }
                if window.end >= end {
                    return Ok(tally);
                }
                // What fitted here may be denser than what follows.
                let span = window.end.get().saturating_sub(window.start.get());
                let next = window.end.saturating_add(span.saturating_mul(2));
                window = window.end..if next < end { next } else { LAST };
            }
            Swept::TooMany { middle } => {
                if middle <= window.start || middle >= window.end {
                    return Err(FsError::NotSupported(
                        "the memory given is too small for any range of extents; give more",
                    ));
                }
                window.end = middle;
            }
        }
    }
}

/// How a sweep ended.
enum Swept {
    /// Everything in the window is counted.
    All,
    /// Too many extents waited at once. Half of them lie before `middle`.
    TooMany { middle: Logical },
}

/// Who reaches a node.
#[derive(Clone, Copy)]
struct Mark {
    set: SetId,
    /// The running deletion of this tree, the node's only holder, passes
    /// through the node.
    dropping: Option<Member>,
}

/// An extent of which only some file extents were found so far.
struct WaitingExtent {
    missing: u64,
    length: u64,
    set: SetId,
}

/// One sweep, which counts all nodes, and the extents in a window.
struct Pass<'p> {
    engine: &'p Engine,
    members: &'p [Holder],
    sets: &'p mut MemberSets,
    limits: &'p Limits,
    window: Range<Logical>,
    node_size: u64,
    tally: Vec<Space>,
    waiting: FxHashMap<Logical, WaitingExtent>,
    extents: ExtentRefs,
}

/// Nodes between two calls of the caller's progress.
const PROGRESS_STEP: u64 = 64;

impl Pass<'_> {
    fn run(
        &mut self,
        seen: &mut Progress,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Swept, FsError> {
        let mut sweep = Sweep::new(self.engine);
        for (member, holder) in numbered(self.members) {
            let Some(root) = holder.root else { continue };
            let mark = Mark {
                set: self.sets.single(member),
                dropping: holder.dropped.map(|_| member),
            };
            sweep.add_root(root, mark, &mut |one, other| self.join(one, other))?;
        }
        while let Some(stop) = sweep.next() {
            if seen.nodes.is_multiple_of(PROGRESS_STEP) && progress(seen).is_break() {
                return Err(FsError::Busy("stopped as asked"));
            }
            seen.nodes = seen.nodes.saturating_add(1);
            self.add(
                stop.mark.set,
                Space {
                    data: 0,
                    metadata: self.node_size,
                },
            );
            let node = sweep.load(&stop)?;
            if node.is_leaf() {
                self.leaf(&node, stop.mark.set)?;
            } else if let Some((key, level)) = self.dropped(&stop.mark, &node) {
                let begin = node.child_slot(&key);
                let after = begin.saturating_add(1);
                let mut beyond = stop;
                beyond.mark.dropping = None;
                let path = if node.level() > level { stop } else { beyond };
                sweep.descend(&path, &node, begin..after, &mut |a, b| self.join(a, b))?;
                sweep.descend(&beyond, &node, after..node.len(), &mut |a, b| {
                    self.join(a, b)
                })?;
            } else {
                let mut whole = stop;
                whole.mark.dropping = None;
                sweep.descend(&whole, &node, 0..node.len(), &mut |a, b| self.join(a, b))?;
            }
            if self.waiting.len() > self.limits.extents {
                return Ok(Swept::TooMany {
                    middle: self.middle(),
                });
            }
            if self.sets.runs_total() > self.limits.runs {
                return Err(FsError::NotSupported(
                    "too many different sets of subvolumes share space for the memory given",
                ));
            }
        }
        // The rest of their file extents are in no tree that was swept.
        let unknown = self.members.len().saturating_sub(1);
        let unknown = Member(u32::try_from(unknown).unwrap_or(u32::MAX));
        let unknown = self.sets.single(unknown);
        for extent in std::mem::take(&mut self.waiting).into_values() {
            let set = self.sets.union(extent.set, unknown);
            self.add(
                set,
                Space {
                    data: extent.length,
                    metadata: 0,
                },
            );
        }
        Ok(Swept::All)
    }

    fn join(&mut self, one: Mark, other: Mark) -> Mark {
        Mark {
            set: self.sets.union(one.set, other.set),
            dropping: None,
        }
    }

    fn add(&mut self, set: SetId, space: Space) {
        let at = set.index();
        if self.tally.len() <= at {
            self.tally.resize(at.saturating_add(1), Space::default());
        }
        if let Some(sum) = self.tally.get_mut(at) {
            *sum += space;
        }
    }

    /// Where a deletion that passes through `node` continues; `None` if none
    /// does.
    fn dropped(&self, mark: &Mark, node: &Node) -> Option<(Key, u8)> {
        let holder = self.members.get(index(mark.dropping?.0))?;
        holder.dropped.filter(|(_, level)| node.level() >= *level)
    }

    fn leaf(&mut self, leaf: &Node, set: SetId) -> Result<(), FsError> {
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::parse(leaf.data(slot)).map_err(|error| {
                let inode = InodeId {
                    tree: leaf.owner(),
                    number: InodeNumber(key.objectid),
                };
                FsError::bad_item(inode, "file extent", &error)
            })?;
            let (FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)) = extent.body
            else {
                continue;
            };
            if place.disk != Logical(0) && self.window.contains(&place.disk) {
                self.found(place.disk, place.disk_length, set)?;
            }
        }
        Ok(())
    }

    /// Notes one file extent.
    fn found(&mut self, disk: Logical, length: u64, set: SetId) -> Result<(), FsError> {
        if let Some(extent) = self.waiting.get_mut(&disk) {
            extent.set = self.sets.union(extent.set, set);
            extent.missing = extent.missing.saturating_sub(1);
            if extent.missing > 0 {
                return Ok(());
            }
            let (set, data) = (extent.set, extent.length);
            self.waiting.remove(&disk);
            self.add(set, Space { data, metadata: 0 });
            return Ok(());
        }
        let refs = self.extents.get(self.engine, disk, length)?;
        if refs > 1 {
            let extent = WaitingExtent {
                missing: refs.saturating_sub(1),
                length,
                set,
            };
            self.waiting.insert(disk, extent);
        } else {
            let space = Space {
                data: length,
                metadata: 0,
            };
            self.add(set, space);
        }
        Ok(())
    }

    /// An address that has half of the waiting extents before it.
    fn middle(&self) -> Logical {
        let mut all: Vec<Logical> = self.waiting.keys().copied().collect();
        let half = all.len() / 2;
        *all.select_nth_unstable(half).1
    }
}

/// Reference counts of extents, from the extent tree. Data of a file lie side
/// by side, so the leaf of the last answer often has the next one.
#[derive(Debug, Default)]
struct ExtentRefs {
    leaf: Option<Arc<Node>>,
}

impl ExtentRefs {
    fn get(&mut self, engine: &Engine, disk: Logical, length: u64) -> Result<u64, FsError> {
        let key = Key::new(disk.get(), ItemType::EXTENT_ITEM, length);
        let here = self
            .leaf
            .as_ref()
            .and_then(|leaf| Some((Arc::clone(leaf), leaf.search(&key).ok()?)));
        let found = match here {
            Some(found) => Some(found),
            None => find(engine, TreeId::EXTENT, &key)?,
        };
        let Some((leaf, slot)) = found else {
            return Err(corrupt_item(TreeId::EXTENT, key, ItemFault::MissingExtent).into());
        };
        let mut reader = Reader::new("extent item", leaf.data(slot));
        let header = ExtentHeader::read(key.item_type, &mut reader)
            .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        self.leaf = Some(leaf);
        Ok(header.refs)
    }
}
