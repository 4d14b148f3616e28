//! What the trees of the last commit say of chunks.
//!
//! Only items that pointers from the superblock lead to count, and each is one
//! of the last commit. Items of chunks themselves may be older: they only
//! propose an order of stripes.

use crate::forest::Forest;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::patient::{MemberPlace, Patient};
use crate::plan::{Origin, Plan, Seen};
use crate::roots::{Candidate, RootSource};
use butterfs_format::features::Incompat;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::item::raid_stripe;
use butterfs_format::superblock::Superblock;
use butterfs_format::{DeviceId, DeviceOffset, ItemType, Logical, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// Different items of one chunk that are kept, the newest first.
const ITEMS_MAX: usize = 16;
/// Stripes of a chunk that are kept.
const STRIPES_MAX: usize = 4096;

/// A block group of the last commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) length: u64,
    pub(super) flags: BlockGroupFlags,
    pub(super) used: u64,
}

/// The device extents of a chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    pub(super) stripes: Vec<(DeviceId, DeviceOffset)>,
    /// Bytes of each; `None` if they differ.
    pub(super) length: Option<u64>,
}

/// All that is known.
pub(super) struct Facts<'p> {
    pub(super) patient: &'p Patient,
    pub(super) superblock: Superblock,
    pub(super) forest: Forest,
    pub(super) groups: BTreeMap<Logical, Group>,
    pub(super) has_all_groups: bool,
    pub(super) extents: BTreeMap<Logical, Extents>,
    pub(super) has_all_extents: bool,
    /// Items of chunks that are left, the newest first.
    pub(super) items: BTreeMap<Logical, Vec<Chunk>>,
    pub(super) allocations: Plan,
    pub(super) checksums: Plan,
}

impl<'p> Facts<'p> {
    /// Reads them; `None` without a superblock.
    pub(super) fn load(patient: &'p Patient) -> Option<Self> {
        let superblock = patient.superblock()?.clone();
        let forest = patient.forest(&Candidate {
            root: Some(butterfs_format::NodeRef {
                logical: superblock.root,
                generation: superblock.generation,
                level: superblock.root_level,
            }),
            generation: superblock.generation,
            source: RootSource::Superblock,
        });
        let nodes = patient.nodes();
        let plan = |tree| forest.plan(nodes, tree, &Live::nothing(nodes));
        let allocations = plan(TreeId::EXTENT);
        let group_tree = match superblock.has_block_group_tree() {
            true => plan(TreeId::BLOCK_GROUP),
            false => allocations.clone(),
        };
        let device_tree = plan(TreeId::DEVICE);
        let is_rooted = forest.roots.is_whole();
        Some(Self {
            patient,
            has_all_groups: is_rooted && group_tree.is_whole(),
            groups: groups(&group_tree, nodes),
            has_all_extents: is_rooted && device_tree.is_whole(),
            extents: extents(&device_tree, nodes),
            items: items(patient),
            checksums: plan(TreeId::CSUM),
            allocations,
            superblock,
            forest,
        })
    }

    pub(super) fn nodes(&self) -> &Nodes {
        self.patient.nodes()
    }

    /// Addresses of all chunks that there may be.
    pub(super) fn all(&self) -> BTreeSet<Logical> {
        let mut all: BTreeSet<Logical> = self.groups.keys().copied().collect();
        all.extend(self.extents.keys().copied());
        // If neither tree is whole, older items name chunks that may be there.
        if !self.has_all_groups && !self.has_all_extents {
            all.extend(self.items.keys().copied());
        }
        all
    }

    pub(super) fn member(&self, id: DeviceId) -> Option<&MemberPlace> {
        self.patient.members().iter().find(|one| one.id == id)
    }

    /// Bytes of a device that chunks can lie on.
    pub(super) fn device_size(&self, id: DeviceId) -> Option<u64> {
        let member = self.member(id)?;
        let device = self.nodes().devices.get(member.device)?;
        Some(device.size().saturating_sub(member.base))
    }

    /// A stripe with the UUID of its device; `None` if that was not given.
    pub(super) fn stripe(&self, device: DeviceId, offset: DeviceOffset) -> Option<Stripe> {
        let member = self.member(device)?;
        Some(Stripe {
            device,
            offset,
            device_uuid: member.uuid,
        })
    }

    /// Whether the stripe tree says where the content of a chunk lies: then its
    /// stripes do not tell.
    pub(super) fn is_in_stripe_tree(&self, flags: BlockGroupFlags) -> bool {
        let incompat = self.superblock.incompat;
        incompat.contains(Incompat::RAID_STRIPE_TREE) && raid_stripe::is_in_tree(flags)
    }
}

/// Block groups that pointers lead to.
fn groups(plan: &Plan, nodes: &Nodes) -> BTreeMap<Logical, Group> {
    let mut all = BTreeMap::new();
    each_pointed(plan, nodes, ItemType::BLOCK_GROUP_ITEM, |key, data| {
        if let Ok(item) = BlockGroupItem::parse(data) {
            let group = Group {
                length: key.offset,
                flags: item.flags,
                used: item.used,
            };
            all.insert(Logical(key.objectid), group);
        }
    });
    all
}

/// Device extents that pointers lead to, by chunk.
fn extents(plan: &Plan, nodes: &Nodes) -> BTreeMap<Logical, Extents> {
    let mut all: BTreeMap<Logical, Extents> = BTreeMap::new();
    each_pointed(plan, nodes, ItemType::DEV_EXTENT, |key, data| {
        let Ok(extent) = DeviceExtent::parse(data) else {
            return;
        };
        let chunk = all.entry(extent.chunk).or_default();
        let is_first = chunk.stripes.is_empty();
        if chunk.stripes.len() < STRIPES_MAX {
            let stripe = (DeviceId(key.objectid), DeviceOffset(key.offset));
            chunk.stripes.push(stripe);
        }
        match is_first {
            true => chunk.length = Some(extent.length),
            false => chunk.length = chunk.length.filter(|length| *length == extent.length),
        }
    });
    all
}

/// Calls `visit` with each item of a kind that pointers lead to.
fn each_pointed(
    plan: &Plan,
    nodes: &Nodes,
    kind: ItemType,
    mut visit: impl FnMut(butterfs_format::Key, &[u8]),
) {
    let done: Result<(), Infallible> = plan.each(nodes, |seen| {
        if let Seen::Item { key, data, origin } = seen
            && key.item_type == kind
            && origin == Origin::Pointed
        {
            visit(key, data);
        }
        Ok(())
    });
    let Ok(()) = done;
}

/// Items of chunks in all superblocks and in all leaves of chunk trees.
fn items(patient: &Patient) -> BTreeMap<Logical, Vec<Chunk>> {
    let mut all: BTreeMap<Logical, Vec<Chunk>> = BTreeMap::new();
    let mut add = |logical: Logical, chunk: Chunk| {
        let known = all.entry(logical).or_default();
        if known.len() < ITEMS_MAX && !known.contains(&chunk) {
            known.push(chunk);
        }
    };
    let mut superblocks: Vec<&Superblock> = patient
        .superblocks
        .iter()
        .map(|found| &found.superblock)
        .collect();
    superblocks.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
    for superblock in superblocks {
        for (logical, chunk) in &superblock.sys_chunks {
            add(*logical, chunk.clone());
        }
    }
    let nodes = patient.nodes();
    let mut last = None;
    for record in nodes.index.of_tree(TreeId::CHUNK) {
        let reference = record.reference();
        if record.level > 0 || last == Some(reference) {
            continue;
        }
        last = Some(reference);
        let Some(leaf) = nodes.read(reference) else {
            continue;
        };
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if key.item_type == ItemType::CHUNK_ITEM
                && key.objectid == Chunk::OBJECT
                && let Ok(chunk) = Chunk::parse(leaf.data(slot))
            {
                add(Logical(key.offset), chunk);
            }
        }
    }
    all
}
