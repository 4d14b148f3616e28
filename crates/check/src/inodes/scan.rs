//! Reads the leaves of subvolumes.

use super::file_extent::{self, Bounds};
use super::name_sink::NameSink;
use super::names::{self, Name, NameFault};
use super::prealloc::Suspects;
use super::refs;
use super::run::{DIRECTORY, Facts, FsRun, Rules, SYMLINK, entry_kind, is_inode, kind_of};
use crate::budget::Taken;
use crate::code::FaultCode;
use crate::context::Context;
use crate::extents::tally::Tally;
use crate::ranges::Ranges;
use crate::walk::{Leaf, Visitor};
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{Generation, InodeNumber, ItemType, Key, NodeRef, TreeId, object};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// Objects of the inode cache of old kernels: its inode and its space.
const INODE_CACHE: [u64; 2] = [object::FREE_INO, object::FREE_SPACE];
/// Type and permissions.
const MODE_BITS: u32 = 0o177_777;

/// Reads subvolumes. One scan serves all of them, so that shared nodes are
/// checked once.
pub(crate) struct FsScan<'s, 'a> {
    pub(crate) context: &'s Context<'a>,
    /// Takes the references; `None` if a tree is walked again.
    pub(crate) tally: Option<&'s Tally>,
    /// Space with checksums.
    pub(crate) covered: &'s Ranges,
    /// Takes preallocated space that has checksums.
    pub(crate) suspects: &'s Suspects,
    /// The checksum tree could be read.
    pub(crate) checksums: bool,
    /// Nodes with several references, whose summaries are kept.
    pub(crate) shared: &'s FxHashSet<u64>,
    pub(crate) kept: Mutex<FxHashMap<u64, (FsRun, u64)>>,
    /// The tree that is walked now.
    pub(crate) tree: TreeId,
    /// Takes the names, if a tree is walked again because they do not agree.
    pub(crate) sink: Option<&'s NameSink>,
    /// Memory of kept summaries, and of the lists in summaries.
    pub(crate) taken: Taken,
}

/// Passes what no inode item can have, in a subvolume or in a log, to `fault`.
/// `newest` is the generation that comes after the last commit.
pub(crate) fn impossible_fields(
    item: &InodeItem,
    key: Key,
    newest: Generation,
    mut fault: impl FnMut(String),
) {
    if item.generation > newest || item.transid > newest {
        fault(format!(
            "its generation {} or {} is not yet committed",
            item.generation, item.transid
        ));
    }
    if entry_kind(item.mode).is_none() || key.offset != 0 {
        fault(format!("its mode {:o} names no type", item.mode));
    }
    if item.mode & !MODE_BITS != 0 {
        fault(format!("its mode {:o} has unknown bits", item.mode));
    }
    let known = InodeFlags::known().0;
    if item.flags.0 & !known != 0 {
        fault(format!("it has unknown flags {:#x}", item.flags.0 & !known));
    }
}

impl FsScan<'_, '_> {
    pub(crate) fn rules(&self, tree: TreeId) -> Rules<'_> {
        Rules {
            tree,
            faults: &self.context.faults,
            hash: self.context.hash,
            no_holes: self.context.superblock.has_no_holes(),
            checksums: self.checksums,
        }
    }

    fn newest(&self) -> Generation {
        self.context.superblock.generation.saturating_add(1)
    }

    fn inode_item(&self, rules: &Rules<'_>, run: &mut FsRun, key: Key, data: &[u8]) {
        let item = match InodeItem::parse(data) {
            Ok(item) if data.len() == InodeItem::SIZE => item,
            Ok(_) => return rules.fault(FaultCode::InodeInvalid, key, "its item has a wrong size"),
            Err(error) => return rules.fault(FaultCode::InodeInvalid, key, error.to_string()),
        };
        impossible_fields(&item, key, self.newest(), |text| {
            rules.fault(FaultCode::InodeInvalid, key, text);
        });
        let kind = entry_kind(item.mode);
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if kind_of(item.mode) == SYMLINK && item.flags.intersects(fixed) {
            let text = "a symbolic link cannot be immutable or append-only";
            rules.fault(FaultCode::InodeInvalid, key, text);
        }
        if kind_of(item.mode) == DIRECTORY && item.nlink > 1 {
            let text = format!("a directory cannot have {} links", item.nlink);
            rules.fault(FaultCode::InodeInvalid, key, text);
        }
        let inode = run.inode(rules, key.objectid);
        inode.item = Some(Facts::from(&item));
        if let (Some(sink), Some(kind)) = (self.sink, kind) {
            sink.inode(self.context, key.objectid, kind, item.nlink);
        }
    }

    /// Counts a name, and passes it to the sink if there is one.
    fn name(&self, run: &mut FsRun, name: Name<'_>) {
        run.balance = run.balance.wrapping_add(name.weight(self.context.hash));
        if let Some(sink) = self.sink {
            sink.name(self.context, &name);
        }
    }

    fn entries(&self, rules: &Rules<'_>, run: &mut FsRun, key: Key, data: &[u8]) {
        run.inode(rules, key.objectid).has_entries = true;
        let read = names::entries(key, data, |name| {
            let bytes = u64::try_from(name.name.len()).unwrap_or(0);
            let inode = run.inode(rules, key.objectid);
            inode.entry_bytes = inode.entry_bytes.saturating_add(bytes);
            self.name(run, name);
        });
        if let Err(fault) = read {
            let code = match fault {
                NameFault::Duplicate(_) => FaultCode::NameDuplicate,
                _ => FaultCode::NameInvalid,
            };
            rules.fault(code, key, fault.to_string());
        }
    }

    fn own_names(&self, rules: &Rules<'_>, run: &mut FsRun, key: Key, data: &[u8]) {
        let is_root = key.objectid == InodeNumber::ROOT.get();
        run.inode(rules, key.objectid);
        let read = names::own_names(key, data, |name| {
            let inode = run.inode(rules, key.objectid);
            inode.names = inode.names.saturating_add(1);
            if !is_root {
                self.name(run, name);
            }
        });
        if let Err(fault) = read {
            rules.fault(FaultCode::NameInvalid, key, fault.to_string());
        }
        if is_root && key.offset != key.objectid {
            let text = "the root directory has a name in another directory";
            rules.fault(FaultCode::NameInvalid, key, text);
        }
    }

    fn extent(&self, rules: &Rules<'_>, run: &mut FsRun, leaf: &Leaf<'_>, key: Key, data: &[u8]) {
        let extent = match FileExtent::parse(data) {
            Ok(extent) => extent,
            Err(error) => {
                return rules.fault(FaultCode::FileExtentInvalid, key, error.to_string());
            }
        };
        if let (Some(tally), Some(place)) = (self.tally, refs::place_of(&extent)) {
            refs::add(tally, leaf, key, place);
        }
        let bounds = Bounds {
            sector: self.context.sector(),
            generation: self.newest(),
            covered: self.covered,
            data: self.context.options.data,
        };
        let inode = run.inode(rules, key.objectid);
        file_extent::check(rules, &bounds, inode, key, &extent);
        if let Some(space) = file_extent::summed_prealloc(&bounds, &extent)
            && self.tally.is_some()
            && rules.checksums
        {
            self.suspects.add(rules.tree, key, space);
        }
    }

    fn item(&self, rules: &Rules<'_>, run: &mut FsRun, leaf: &Leaf<'_>, key: Key, data: &[u8]) {
        if key.objectid == object::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM {
            run.inode(rules, key.objectid);
            run.orphans.push(key.offset);
            return;
        }
        if INODE_CACHE.contains(&key.objectid) {
            run.inode(rules, key.objectid);
            if key.item_type == ItemType::EXTENT_DATA {
                self.extent(rules, run, leaf, key, data);
            }
            let text = "it belongs to the inode cache of old kernels";
            return rules.fault(FaultCode::InodeCache, key, text);
        }
        if !is_inode(key.objectid) {
            run.inode(rules, key.objectid);
            if key.item_type == ItemType::EXTENT_DATA {
                self.extent(rules, run, leaf, key, data);
            }
            let text = format!(
                "{} is reserved; no inode of a subvolume has it",
                key.objectid
            );
            return rules.fault(FaultCode::ItemUnexpected, key, text);
        }
        match key.item_type {
            ItemType::INODE_ITEM => self.inode_item(rules, run, key, data),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => self.own_names(rules, run, key, data),
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => self.entries(rules, run, key, data),
            ItemType::EXTENT_DATA => self.extent(rules, run, leaf, key, data),
            ItemType::XATTR_ITEM => {
                run.inode(rules, key.objectid);
                if let Err(fault) = names::attributes(key, data) {
                    rules.fault(FaultCode::ItemInvalid, key, fault.to_string());
                }
            }
            ItemType::VERITY_DESC | ItemType::VERITY_MERKLE => {
                run.inode(rules, key.objectid);
            }
            _ => {
                run.inode(rules, key.objectid);
                let text = "a subvolume holds no such items";
                rules.fault(FaultCode::ItemUnexpected, key, text);
            }
        }
    }
}

impl Visitor for FsScan<'_, '_> {
    type Summary = FsRun;

    fn leaf(&self, leaf: &Leaf<'_>) -> FsRun {
        let rules = self.rules(leaf.tree);
        let mut run = FsRun::default();
        for (key, data) in leaf.items() {
            self.item(&rules, &mut run, leaf, key, data);
        }
        self.taken.add(run.list_bytes());
        run
    }

    fn join(&self, left: FsRun, right: FsRun) -> FsRun {
        let before = left.list_bytes().saturating_add(right.list_bytes());
        let run = left.join(&self.rules(self.tree), right);
        self.taken.add(run.list_bytes().saturating_sub(before));
        run
    }

    fn gap(&self) -> FsRun {
        FsRun::gap()
    }

    fn keep(&self, node: NodeRef, summary: &FsRun, nodes: u64) {
        if self.shared.contains(&node.logical.get()) {
            self.taken
                .add(summary.list_bytes().saturating_add(FsRun::KEPT_BYTES));
            let kept = (summary.clone(), nodes);
            self.kept.lock().insert(node.logical.get(), kept);
        }
    }

    fn kept(&self, node: NodeRef) -> Option<(FsRun, u64)> {
        let kept = self.kept.lock().get(&node.logical.get()).cloned()?;
        self.taken.add(kept.0.list_bytes());
        Some(kept)
    }
}
