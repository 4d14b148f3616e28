//! Whether a chunk is certain.

use super::facts::{Extents, Facts, Group};
use super::order::{Fit, Order, OrderFault};
use super::{ChunkDoubt, ChunkEvidence};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::{DeviceId, DeviceOffset, Logical, TreeId};
use butterfs_volume::{Profile, stripe_length};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a stripe element.
const ELEMENT: u32 = 64 << 10;
/// Nodes whose addresses are compared with those of a chunk without device
/// extents.
const NODES_MAX: usize = 65_536;

/// The chunk at an address, or why it is not certain.
pub(super) fn decide(
    facts: &Facts<'_>,
    logical: Logical,
) -> Result<(Chunk, ChunkEvidence), ChunkDoubt> {
    let group = facts.groups.get(&logical).copied();
    let extents = facts.extents.get(&logical);
    let extents = match (extents, facts.has_all_extents) {
        (None, true) => return Err(ChunkDoubt::NoPlace),
        (Some(extents), true) => Some(extents),
        // A part of a chunk's extents says nothing of the others.
        (_, false) => None,
    };
    if let Some(chunk) = from_items(facts, logical, group, extents)? {
        return Ok((chunk, ChunkEvidence::Item));
    }
    match (group, extents) {
        (None, _) => Err(ChunkDoubt::NoBlockGroup),
        (Some(group), Some(extents)) => from_trees(facts, logical, group, extents),
        (Some(group), None) => from_addresses(facts, logical, group),
    }
}

/// The newest item of the chunk with which the trees agree.
fn from_items(
    facts: &Facts<'_>,
    logical: Logical,
    group: Option<Group>,
    extents: Option<&Extents>,
) -> Result<Option<Chunk>, ChunkDoubt> {
    let mut is_elsewhere = false;
    for item in facts.items.get(&logical).into_iter().flatten() {
        let is_of_group =
            group.is_none_or(|group| (group.length, group.flags) == (item.length, item.flags));
        let is_placed = extents.is_none_or(|extents| are_same(item, extents));
        // One of the two trees of the last commit has to know the chunk.
        if !is_of_group || !is_placed || (group.is_none() && extents.is_none()) {
            continue;
        }
        // The last commit wrote the superblock.
        let known = facts.superblock.sys_chunks.iter();
        let is_current = known
            .filter(|(at, _)| *at == logical)
            .any(|(_, one)| one == item);
        let stripes = item.stripes.iter();
        let stripes: Option<Vec<Stripe>> = stripes
            .map(|stripe| facts.stripe(stripe.device, stripe.offset))
            .collect();
        let Some(stripes) = stripes else {
            return Err(ChunkDoubt::NoDevice);
        };
        let chunk = Chunk {
            stripes,
            ..item.clone()
        };
        match Order::new(facts, logical, &chunk).map(|order| order.fit(&chunk)) {
            // Without device extents, only content shows that the item is not
            // of an earlier chunk.
            Some(Fit::Right) => return Ok(Some(chunk)),
            Some(Fit::Unknown) if extents.is_some() || is_current => return Ok(Some(chunk)),
            Some(Fit::Wrong) => is_elsewhere = true,
            Some(Fit::Unknown) | None => {}
        }
    }
    match is_elsewhere && extents.is_none() {
        true => Err(ChunkDoubt::Elsewhere),
        false => Ok(None),
    }
}

/// Whether an item has just these device extents, in whatever order.
fn are_same(item: &Chunk, extents: &Extents) -> bool {
    let own: BTreeSet<(DeviceId, DeviceOffset)> = item
        .stripes
        .iter()
        .map(|stripe| (stripe.device, stripe.offset))
        .collect();
    let others: BTreeSet<(DeviceId, DeviceOffset)> = extents.stripes.iter().copied().collect();
    own == others
        && item.stripes.len() == extents.stripes.len()
        && Profile::from_flags(item.flags).is_some()
        && extents.length == Some(stripe_length(item))
}

/// A chunk with stripes in the order of `stripes`.
fn chunk_of(facts: &Facts<'_>, group: Group, profile: Profile, stripes: Vec<Stripe>) -> Chunk {
    Chunk {
        length: group.length,
        owner: TreeId::EXTENT.get(),
        stripe_length: u64::from(ELEMENT),
        flags: group.flags,
        io_align: ELEMENT,
        io_width: ELEMENT,
        sector_size: facts.superblock.sector_size,
        sub_stripes: profile.sub_stripes(),
        stripes,
    }
}

/// The chunk of a block group and its device extents.
fn from_trees(
    facts: &Facts<'_>,
    logical: Logical,
    group: Group,
    extents: &Extents,
) -> Result<(Chunk, ChunkEvidence), ChunkDoubt> {
    let profile = Profile::from_flags(group.flags).ok_or(ChunkDoubt::Disagreement)?;
    let stripes = extents.stripes.iter();
    let stripes: Option<Vec<Stripe>> = stripes
        .map(|(device, offset)| facts.stripe(*device, *offset))
        .collect();
    let chunk = chunk_of(facts, group, profile, stripes.ok_or(ChunkDoubt::NoDevice)?);
    let fits = profile.allows_stripes(chunk.stripes.len())
        && extents.length == Some(stripe_length(&chunk))
        && is_spread(profile, &chunk);
    if !fits {
        return Err(ChunkDoubt::Disagreement);
    }
    let order = Order::new(facts, logical, &chunk).ok_or(ChunkDoubt::Disagreement)?;
    if !profile.is_striped() {
        return match order.fit(&chunk) {
            Fit::Wrong => Err(ChunkDoubt::Elsewhere),
            Fit::Right | Fit::Unknown => Ok((chunk, ChunkEvidence::Trees)),
        };
    }
    match order.find(&chunk) {
        Ok((stripes, evidence)) => Ok((Chunk { stripes, ..chunk }, evidence)),
        // Nothing but the chunk tree lies there, and that is made anew.
        Err(OrderFault::Several) if is_system(chunk.flags) => Ok((chunk, ChunkEvidence::Trees)),
        Err(OrderFault::Several) => Err(ChunkDoubt::Order),
    }
}

/// Whether a chunk holds the chunk tree and nothing else.
fn is_system(flags: BlockGroupFlags) -> bool {
    let others = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    flags.contains(BlockGroupFlags::SYSTEM) && !flags.intersects(others)
}

/// Whether the stripes lie on as many devices as the profile wants.
fn is_spread(profile: Profile, chunk: &Chunk) -> bool {
    let devices: BTreeSet<DeviceId> = chunk.stripes.iter().map(|one| one.device).collect();
    match profile {
        Profile::Single | Profile::Dup => devices.len() == 1,
        _ => devices.len() == chunk.stripes.len(),
    }
}

/// The chunk of a block group whose device extents are lost: each node of it
/// says its address, and so where its stripe begins. Only copies that are not
/// striped can be found so.
fn from_addresses(
    facts: &Facts<'_>,
    logical: Logical,
    group: Group,
) -> Result<(Chunk, ChunkEvidence), ChunkDoubt> {
    let profile = Profile::from_flags(group.flags).ok_or(ChunkDoubt::Disagreement)?;
    let copies = profile.copies();
    if profile.is_striped() {
        return Err(ChunkDoubt::NoPlace);
    }
    let nodes = facts.nodes();
    let live = Order::live_nodes(facts, logical, group.length, NODES_MAX);
    let mut begins: BTreeMap<(DeviceId, u64), usize> = BTreeMap::new();
    for (at, generation) in &live {
        let within = at.get().saturating_sub(logical.get());
        for copy in nodes.index.at(*at, *generation) {
            let members = facts.patient.members().iter();
            let mut own = members.filter(|one| one.device == usize::from(copy.device));
            let Some(member) = own.next() else {
                continue;
            };
            let begin = copy.offset.get().checked_sub(member.base);
            let begin = begin.and_then(|offset| offset.checked_sub(within));
            if let Some(begin) = begin {
                let count = begins.entry((member.id, begin)).or_default();
                *count = count.saturating_add(1);
            }
        }
    }
    // More beginnings than copies contradict each other.
    if begins.len() != copies {
        return Err(ChunkDoubt::NoPlace);
    }
    let stripes = begins.keys();
    let stripes: Option<Vec<Stripe>> = stripes
        .map(|(device, offset)| facts.stripe(*device, DeviceOffset(*offset)))
        .collect();
    let chunk = chunk_of(facts, group, profile, stripes.ok_or(ChunkDoubt::NoDevice)?);
    match profile.allows_stripes(chunk.stripes.len()) && is_spread(profile, &chunk) {
        true => Ok((chunk, ChunkEvidence::Addresses)),
        false => Err(ChunkDoubt::NoPlace),
    }
}
