//! Compares the numbers of quota groups with what subvolumes hold.
//!
//! A group's numbers depend on the set of subvolumes that reach each extent.
//! There are few such sets, so each gets a number. Each node is visited once,
//! level by level from the roots, with the union of its parents' sets.

use super::Items;
use super::roots::Roots;
use crate::budget::{Taken, bytes_of};
use crate::code::FaultCode;
use crate::context::Context;
use crate::inodes::refs::place_of;
use crate::report::{Place, QuotaGroup};
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::qgroup::{
    GroupId, QgroupInfo, QgroupLimit, QgroupStatus, QgroupStatusFlags,
};
use butterfs_format::{Generation, ItemType, Key, NodeRef, ParseError, TreeId};
use butterfs_tree::Node;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Status flags.
const ON: u64 = 1;
const RESCAN: u64 = 2;
const INCONSISTENT: u64 = 4;
const SIMPLE: u64 = 8;
/// Number of bits of a group's number below its level.
const LEVEL_SHIFT: u32 = 48;
/// Bytes of memory for a data extent, for a node that waits for its visit, for a
/// known union of two sets, and for a subvolume in a set.
const EXTENT_BYTES: u64 = 48;
const WAITING_BYTES: u64 = 80;
const UNION_BYTES: u64 = 64;
const MEMBER_BYTES: u64 = 64;

/// Sets of subvolumes, each with a number.
struct Sets {
    all: Vec<BTreeSet<u64>>,
    numbers: BTreeMap<BTreeSet<u64>, usize>,
    unions: FxHashMap<(usize, usize), usize>,
    /// For each set, the bytes that exactly its subvolumes reach.
    bytes: Vec<u64>,
    taken: Taken,
}

impl Sets {
    fn new(taken: Taken) -> Self {
        Self {
            all: Vec::new(),
            numbers: BTreeMap::new(),
            unions: FxHashMap::default(),
            bytes: Vec::new(),
            taken,
        }
    }

    /// Returns the number of a set; `None` if there is no memory for a new one.
    fn number(&mut self, set: BTreeSet<u64>) -> Option<usize> {
        if let Some(number) = self.numbers.get(&set) {
            return Some(*number);
        }
        let members = bytes_of(set.len().saturating_add(2), MEMBER_BYTES);
        if !self.taken.try_add(members) {
            return None;
        }
        let number = self.all.len();
        self.numbers.insert(set.clone(), number);
        self.all.push(set);
        self.bytes.push(0);
        Some(number)
    }

    fn union(&mut self, a: usize, b: usize) -> Option<usize> {
        if a == b {
            return Some(a);
        }
        if let Some(known) = self.unions.get(&(a, b)) {
            return Some(*known);
        }
        let mut set = self.all.get(a).cloned().unwrap_or_default();
        set.extend(self.all.get(b).into_iter().flatten());
        let number = self.number(set)?;
        if !self.taken.try_add(UNION_BYTES) {
            return None;
        }
        self.unions.insert((a, b), number);
        Some(number)
    }

    fn add(&mut self, set: usize, bytes: u64) {
        if let Some(sum) = self.bytes.get_mut(set) {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Returns the bytes that `members` reach, and those of them that no other
    /// subvolume reaches.
    fn numbers(&self, members: &BTreeSet<u64>) -> (u64, u64) {
        let mut numbers = (0_u64, 0_u64);
        for (set, bytes) in self.all.iter().zip(&self.bytes) {
            if !set.is_disjoint(members) {
                numbers.0 = numbers.0.saturating_add(*bytes);
            }
            if set.is_subset(members) {
                numbers.1 = numbers.1.saturating_add(*bytes);
            }
        }
        numbers
    }
}

/// The numbers of a group by its item.
struct Info {
    referenced: u64,
    exclusive: u64,
}

/// The quota tree.
#[derive(Default)]
struct Quotas {
    flags: u64,
    generation: u64,
    infos: BTreeMap<u64, (Key, Info)>,
    relations: BTreeSet<(u64, u64)>,
}

fn level(group: u64) -> u64 {
    group.checked_shr(LEVEL_SHIFT).unwrap_or(0)
}

fn name(group: u64) -> String {
    let number = group & 1_u64.checked_shl(LEVEL_SHIFT).unwrap_or(1).wrapping_sub(1);
    format!("{}/{number}", level(group))
}

impl Quotas {
    fn item(&mut self, key: Key, data: &[u8]) -> Result<(), ParseError> {
        match key.item_type {
            ItemType::QGROUP_STATUS => {
                let status = QgroupStatus::parse(data)?;
                self.generation = status.generation.get();
                self.flags = status.flags.0;
            }
            ItemType::QGROUP_INFO => {
                let item = QgroupInfo::parse(data)?;
                let info = Info {
                    referenced: item.referenced,
                    exclusive: item.exclusive,
                };
                self.infos.insert(key.offset, (key, info));
            }
            ItemType::QGROUP_LIMIT => drop(QgroupLimit::parse(data)?),
            ItemType::QGROUP_RELATION => {
                self.relations.insert((key.objectid, key.offset));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the subvolumes below a group; for the group of a subvolume, that
    /// subvolume.
    fn members(&self, group: u64) -> BTreeSet<u64> {
        let mut members = BTreeSet::new();
        let mut seen = BTreeSet::from([group]);
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            if level(group) == 0 {
                members.insert(group);
                continue;
            }
            let of = self.relations.range((group, 0)..=(group, u64::MAX));
            for (_, other) in of.filter(|(_, other)| level(*other) < level(group)) {
                if seen.insert(*other) {
                    waiting.push(*other);
                }
            }
        }
        members
    }
}

/// Returns the generation from which on simple quotas charge extents; `None` if
/// they are off.
pub(crate) fn charged_from(items: &Items) -> Option<u64> {
    let (_, data) = items.first()?;
    let status = QgroupStatus::parse(data).ok()?;
    let on = QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE;
    let from = status
        .enable_generation
        .filter(|_| status.flags.contains(on));
    from.map(Generation::get)
}

/// Whether a status item is that of other programs than these.
fn has_unknown_version(data: &[u8]) -> bool {
    let version = data.first_chunk().copied().map(u64::from_le_bytes);
    version.is_some_and(|version| version != QgroupStatus::VERSION)
}

/// Checks the quota groups. Skips their numbers if the quota tree says that they
/// are outdated or inconsistent.
pub(crate) fn check(context: &Context<'_>, roots: &Roots, items: &Items) {
    let mut quotas = Quotas::default();
    for (key, data) in items {
        let Err(error) = quotas.item(*key, data) else {
            continue;
        };
        let place = Place::item(TreeId::QUOTA, *key);
        if key.item_type == ItemType::QGROUP_STATUS && has_unknown_version(data) {
            let text = format!("{error}; quotas are off, and nobody keeps the numbers");
            context.fault(FaultCode::QgroupVersion, place, text);
        } else {
            context.fault(FaultCode::ItemInvalid, place, error.to_string());
        }
    }
    if quotas.flags & ON == 0 {
        return;
    }
    for (a, b) in &quotas.relations {
        if !quotas.relations.contains(&(*b, *a)) {
            let text = format!(
                "group {} is related to {}, but not the reverse",
                name(*a),
                name(*b)
            );
            context.fault(FaultCode::QgroupMissing, Place::tree(TreeId::QUOTA), text);
        }
    }
    for root in roots.live() {
        if !quotas.infos.contains_key(&root.id.get()) {
            let text = format!("subvolume {} has no quota group", root.id);
            context.fault(FaultCode::QgroupMissing, Place::tree(TreeId::QUOTA), text);
        }
    }
    if quotas.flags & SIMPLE != 0 {
        match &context.charges {
            Some(charges) => compare_charges(context, &quotas, &charges.all()),
            None => context.faults.unchecked("the numbers of simple quotas"),
        }
        return;
    }
    let outdated = quotas.generation != context.superblock.generation.get();
    if quotas.flags & (RESCAN | INCONSISTENT) != 0 || outdated {
        return;
    }
    if roots.passing().next().is_some() {
        // The numbers are corrected bit by bit while subvolumes are deleted.
        return;
    }
    match sum_up(context, roots) {
        Some(sets) => compare(context, &quotas, &sets),
        None => context
            .faults
            .unchecked("the numbers of quota groups need more memory"),
    }
}

fn compare(context: &Context<'_>, quotas: &Quotas, sets: &Sets) {
    for (group, (key, info)) in &quotas.infos {
        let (referenced, exclusive) = sets.numbers(&quotas.members(*group));
        context.faults.quota_group(QuotaGroup {
            group: GroupId(*group),
            noted_referenced: info.referenced,
            noted_exclusive: info.exclusive,
            referenced,
            exclusive,
        });
        if (info.referenced, info.exclusive) != (referenced, exclusive) {
            let text = format!(
                "group {} counts {} bytes, {} of them exclusive; it has {referenced} and {exclusive}",
                name(*group),
                info.referenced,
                info.exclusive
            );
            let place = Place::item(TreeId::QUOTA, *key);
            context.fault(FaultCode::QgroupNumbers, place, text);
        }
    }
}

/// Compares simple quotas: a group has what its subvolumes allocated, also those
/// that were deleted.
fn compare_charges(context: &Context<'_>, quotas: &Quotas, charges: &FxHashMap<u64, u64>) {
    for (group, (key, info)) in &quotas.infos {
        let members = quotas.members(*group);
        let charged = members.iter().filter_map(|tree| charges.get(tree));
        let charged = charged.fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        if (info.referenced, info.exclusive) != (charged, charged) {
            let text = format!(
                "group {} counts {} bytes, {} of them exclusive; {charged} were allocated",
                name(*group),
                info.referenced,
                info.exclusive
            );
            let place = Place::item(TreeId::QUOTA, *key);
            context.fault(FaultCode::QgroupNumbers, place, text);
        }
    }
    let mut missing: Vec<_> = charges
        .iter()
        .filter(|(tree, bytes)| {
            **bytes > 0 && TreeId(**tree).is_subvolume() && !quotas.infos.contains_key(tree)
        })
        .collect();
    missing.sort_unstable();
    for (tree, bytes) in missing {
        let text = format!("subvolume {tree} allocated {bytes} bytes but has no quota group");
        context.fault(FaultCode::QgroupMissing, Place::tree(TreeId::QUOTA), text);
    }
}

type Waiting = FxHashMap<u64, (NodeRef, usize)>;

fn reach(sets: &mut Sets, waiting: &mut Waiting, node: NodeRef, set: usize) -> Option<()> {
    if let Some(entry) = waiting.get_mut(&node.logical.get()) {
        entry.1 = sets.union(entry.1, set)?;
        return Some(());
    }
    if !sets.taken.try_add(WAITING_BYTES) {
        return None;
    }
    waiting.insert(node.logical.get(), (node, set));
    Some(())
}

/// Sums up what each set of subvolumes holds; `None` if there is not enough
/// memory.
fn sum_up(context: &Context<'_>, roots: &Roots) -> Option<Sets> {
    let mut sets = Sets::new(context.taken());
    let mut levels: [Waiting; 8] = Default::default();
    let mut data: FxHashMap<u64, (u64, usize)> = FxHashMap::default();
    for root in roots.live() {
        let set = sets.number(BTreeSet::from([root.id.get()]))?;
        let level = levels.get_mut(usize::from(root.item.level))?;
        reach(&mut sets, level, root.node(), set)?;
    }
    for level in (0..levels.len()).rev() {
        let mut nodes: Vec<_> = std::mem::take(levels.get_mut(level)?)
            .into_values()
            .collect();
        nodes.sort_unstable_by_key(|(node, _)| node.logical);
        for (reference, set) in nodes {
            context.advance(context.node_bytes());
            sets.add(set, context.node_bytes());
            // The walk reported damaged nodes before.
            let Ok(node) = context.peek(reference.into()) else {
                continue;
            };
            if node.is_leaf() {
                leaf(&mut sets, &mut data, &node, set)?;
                continue;
            }
            let below = levels.get_mut(level.checked_sub(1)?)?;
            for slot in 0..node.len() {
                reach(&mut sets, below, node.child(slot), set)?;
            }
        }
    }
    for (bytes, set) in data.into_values() {
        sets.add(set, bytes);
    }
    Some(sets)
}

fn leaf(
    sets: &mut Sets,
    data: &mut FxHashMap<u64, (u64, usize)>,
    node: &Node,
    set: usize,
) -> Option<()> {
    for slot in 0..node.len() {
        if node.key(slot).item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let Ok(extent) = FileExtent::parse(node.data(slot)) else {
            continue;
        };
        if let Some(place) = place_of(&extent) {
            if let Some(entry) = data.get_mut(&place.disk.get()) {
                entry.1 = sets.union(entry.1, set)?;
                continue;
            }
            if !sets.taken.try_add(EXTENT_BYTES) {
                return None;
            }
            data.insert(place.disk.get(), (place.disk_length, set));
        }
    }
    Some(())
}
