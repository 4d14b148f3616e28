//! The order of a chunk's stripes, if only device extents tell of it.
//!
//! What lies at a logical address is known in many places: a node says its
//! address, and a sector has a checksum. So each stripe is tried at each place
//! of the order. Copies are alike, so their order does not matter.

use crate::checksums::{Known, sums_of};
use crate::chunks::MapFacts;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::patient::MemberPlace;
use crate::plan::{Plan, PlanRequest, Seen, plan};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::item::csum;
use butterfs_format::node::{HEADER_SIZE, NodeHeader};
use butterfs_format::{DeviceId, DeviceOffset, Generation, Logical, Physical, TreeId};
use butterfs_volume::{ChunkMap, Profile, stripe_length};
use std::collections::BTreeMap;

/// Addresses that are tried in each chunk.
const SAMPLES_MAX: usize = 512;
/// Bytes of a stripe element.
const ELEMENT: u64 = 64 << 10;

/// What is known of an address.
pub(crate) enum Content {
    /// A node of this generation, by its header.
    Node(Generation),
    /// A node of this generation, by all of its bytes.
    WholeNode(Generation),
    /// A sector with this checksum.
    Sector(Vec<u8>),
}

/// What ordering needs.
pub(crate) struct Ordering<'o> {
    pub(crate) nodes: &'o Nodes,
    pub(crate) members: &'o [MemberPlace],
}

impl Ordering<'_> {
    /// Puts the stripes of striped chunks in order, as far as they were made
    /// from device extents.
    pub(crate) fn order(&self, map: ChunkMap, facts: &MapFacts) -> ChunkMap {
        let mut map = map;
        let mut sums: Option<Plan> = None;
        for logical in &facts.from_device_extents {
            let Some((_, chunk)) = map.find(*logical) else {
                continue;
            };
            let profile = Profile::from_flags(chunk.flags);
            if !profile.is_some_and(Profile::is_striped) || chunk.stripes.len() < 2 {
                continue;
            }
            let chunk = chunk.clone();
            let samples = match chunk.flags.contains(BlockGroupFlags::DATA) {
                false => self.nodes_in(*logical, &chunk),
                true => {
                    let sums = sums.get_or_insert_with(|| self.checksums());
                    self.sectors_in(*logical, &chunk, sums)
                }
            };
            let stripes = self.best(&map, &chunk, &samples);
            let ordered = Chunk {
                stripes,
                ..chunk.clone()
            };
            if let Ok(better) = map.without(*logical).with(*logical, ordered) {
                map = better;
            }
        }
        map
    }

    fn checksums(&self) -> Plan {
        let request = PlanRequest::whole(TreeId::CSUM, None, Generation(u64::MAX));
        plan(self.nodes, &request, &Live::nothing(self.nodes))
    }

    fn nodes_in(&self, start: Logical, chunk: &Chunk) -> Vec<(Logical, Content)> {
        let end = start.saturating_add(chunk.length);
        let all = self.nodes.index.nodes.iter();
        let inside = all.filter(|node| (start..end).contains(&node.logical));
        let samples = inside.map(|node| (node.logical, Content::Node(node.generation)));
        samples.take(SAMPLES_MAX).collect()
    }

    /// One sector of each element that has checksums.
    fn sectors_in(&self, start: Logical, chunk: &Chunk, sums: &Plan) -> Vec<(Logical, Content)> {
        let end = start.saturating_add(chunk.length);
        let mut elements: Vec<Logical> = Vec::new();
        let keys = (csum::key(start), csum::key(end));
        sums.each_in(self.nodes, keys, |seen| {
            if let Seen::Item { key, data, .. } = seen {
                let kind = self.nodes.identity.checksum;
                let count = csum::entries(data.len(), kind);
                let bytes = count.saturating_mul(self.nodes.identity.sector_size);
                let mut at = key.offset;
                while at < key.offset.saturating_add(bytes) && elements.len() < SAMPLES_MAX {
                    elements.push(Logical(at));
                    at = at.saturating_add(ELEMENT);
                }
            }
        });
        let known = elements.into_iter().filter_map(|at| {
            let sum = sums_of(sums, self.nodes, at, 1).pop()?;
            match sum {
                Known::Sum(sum) | Known::Older(sum) => Some((at, Content::Sector(sum))),
                Known::Absent | Known::Lost => None,
            }
        });
        known.collect()
    }

    /// Which devices of the volume some devices are that hold no nodes: those
    /// whose data match their checksums. A last one alone is the one that lacks.
    pub(crate) fn find_members(
        &self,
        map: &ChunkMap,
        facts: &MapFacts,
        devices: &[usize],
        ids: &[DeviceId],
    ) -> Vec<(usize, DeviceId)> {
        if let ([device], [id]) = (devices, ids) {
            return vec![(*device, *id)];
        }
        if devices.is_empty() || ids.is_empty() {
            return Vec::new();
        }
        let sums = self.checksums();
        let mut scores: BTreeMap<(usize, DeviceId), usize> = BTreeMap::new();
        for (logical, chunk) in map.iter() {
            let is_ordered = !facts.from_device_extents.contains(&logical);
            let is_of_one = chunk.stripes.iter().any(|one| ids.contains(&one.device));
            let is_data = chunk.flags.contains(BlockGroupFlags::DATA);
            if !is_ordered || !is_of_one || !is_data || scores.values().sum::<usize>() > SAMPLES_MAX
            {
                continue;
            }
            for (at, content) in self.sectors_in(logical, chunk, &sums) {
                let copies = map.map(at, 1).map(|mapping| mapping.copies);
                for copy in copies.unwrap_or_default() {
                    for device in devices.iter().filter(|_| ids.contains(&copy.device)) {
                        let offset = copy.offset.get();
                        if self.is_at((*device, offset), at, &content) {
                            let score = scores.entry((*device, copy.device)).or_default();
                            *score = score.saturating_add(1);
                        }
                    }
                }
            }
        }
        let mut pairs: Vec<((usize, DeviceId), usize)> = scores.into_iter().collect();
        pairs.sort_by_key(|(_, score)| std::cmp::Reverse(*score));
        let mut found: Vec<(usize, DeviceId)> = Vec::new();
        for ((device, id), _) in pairs {
            let is_free = found
                .iter()
                .all(|(other, taken)| *other != device && *taken != id);
            if is_free {
                found.push((device, id));
            }
        }
        found
    }

    /// The stripes in the order in which most samples are right.
    fn best(&self, map: &ChunkMap, chunk: &Chunk, samples: &[(Logical, Content)]) -> Vec<Stripe> {
        let count = chunk.stripes.len();
        let mut scores = vec![vec![0_usize; count]; count];
        for (logical, content) in samples {
            let Ok(mapping) = map.map(*logical, 1) else {
                continue;
            };
            for copy in mapping.copies {
                let Some((place, within)) = place_of(chunk, copy) else {
                    continue;
                };
                for (number, stripe) in chunk.stripes.iter().enumerate() {
                    let at = Physical {
                        device: stripe.device,
                        offset: stripe.offset.saturating_add(within),
                    };
                    let is_right = self.is_there(at, *logical, content);
                    let score = scores.get_mut(place).and_then(|row| row.get_mut(number));
                    if let Some(score) = score.filter(|_| is_right) {
                        *score = score.saturating_add(1);
                    }
                }
            }
        }
        assign(&scores, &chunk.stripes)
    }

    /// Whether a place has what an address should have.
    pub(crate) fn is_there(&self, at: Physical, logical: Logical, content: &Content) -> bool {
        let mut members = self.members.iter();
        let member = members.find(|member| member.id == at.device);
        let place = member.and_then(|member| {
            let offset = member.base.checked_add(at.offset.get())?;
            Some((member.device, offset))
        });
        place.is_some_and(|place| self.is_at(place, logical, content))
    }

    /// Whether an offset of a device has what an address should have.
    fn is_at(&self, (device, offset): (usize, u64), logical: Logical, content: &Content) -> bool {
        let length = match content {
            Content::Node(_) => HEADER_SIZE,
            Content::WholeNode(_) => self.nodes.identity.node_size,
            Content::Sector(_) => self.nodes.sector(),
        };
        let mut bytes = vec![0; length];
        let Some(device) = self.nodes.devices.get(device) else {
            return false;
        };
        if device.read_at(DeviceOffset(offset), &mut bytes).is_err() {
            return false;
        }
        let has_header = |generation: &Generation| {
            NodeHeader::parse(&bytes)
                .is_ok_and(|header| header.logical == logical && header.generation == *generation)
        };
        match content {
            Content::Node(generation) => has_header(generation),
            Content::WholeNode(generation) => {
                has_header(generation) && self.nodes.identity.checksum.verify_block(&bytes)
            }
            Content::Sector(sum) => {
                let kind = self.nodes.identity.checksum;
                let own = kind.compute(&bytes);
                own.get(..kind.size()) == Some(sum.as_slice())
            }
        }
    }
}

/// The stripe that has a place of a chunk, and the offset in it.
pub(crate) fn place_of(chunk: &Chunk, at: Physical) -> Option<(usize, u64)> {
    let length = stripe_length(chunk);
    let mut stripes = chunk.stripes.iter().enumerate();
    stripes.find_map(|(number, stripe)| {
        let within = at.offset.get().checked_sub(stripe.offset.get())?;
        (stripe.device == at.device && within < length).then_some((number, within))
    })
}

/// Gives each place the stripe that fits it best, the most certain first.
fn assign(scores: &[Vec<usize>], stripes: &[Stripe]) -> Vec<Stripe> {
    let count = stripes.len();
    let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
    for (place, row) in scores.iter().enumerate() {
        let scored = row.iter().enumerate();
        pairs.extend(scored.map(|(number, score)| (*score, place, number)));
    }
    pairs.sort_unstable_by_key(|(score, place, number)| {
        // Among equals, a stripe stays where it is.
        (std::cmp::Reverse(*score), place != number, *place, *number)
    });
    let mut chosen: Vec<Option<usize>> = vec![None; count];
    let mut used = vec![false; count];
    for (_, place, number) in pairs {
        let (Some(slot), Some(taken)) = (chosen.get_mut(place), used.get_mut(number)) else {
            continue;
        };
        if slot.is_none() && !*taken {
            *slot = Some(number);
            *taken = true;
        }
    }
    let ordered = chosen.into_iter().flatten();
    ordered
        .filter_map(|number| stripes.get(number).copied())
        .collect()
}
