//! The order of a chunk's stripes, by what lies on them.
//!
//! The extent tree says which nodes and data the last commit has in a chunk. A
//! node says its address, and a sector of data has a checksum, so each stripe
//! is tried at each place of the order. Stripes whose places hold the same
//! bytes (the mirrors of RAID10) form one class: their order is of no account.
//! In rows with parity, an order is right if the parities fit.

use super::ChunkEvidence;
use super::facts::Facts;
use crate::checksums::{Known, sums_of};
use crate::plan::{Origin, Seen};
use crate::stripes::{Content, Ordering, place_of};
use butterfs_format::bytes::Reader;
use butterfs_format::item::chunk::{Chunk, Stripe};
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader};
use butterfs_format::{Generation, ItemType, Key, Logical, Physical};
use butterfs_volume::{ChunkMap, Profile};
use std::collections::BTreeMap;

/// Bytes of a stripe element.
const ELEMENT: u64 = 64 << 10;
/// Addresses that are tried for each class.
const SAMPLES_MAX: usize = 48;
/// Addresses of data of which a checksum is looked for, for each class.
const ATTEMPTS_MAX: usize = 256;
/// Elements of a chunk that are looked at.
const ELEMENTS_MAX: u64 = 1 << 22;
/// Rows whose parity is computed.
const ROWS_MAX: usize = 64;
/// Stripes of which all orders are tried.
const TRIED_MAX: usize = 6;
/// Sectors and nodes of a chunk that are all compared.
const PROVEN_MAX: usize = 16_384;

/// Whether an order fits what lies on the stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does.
    Right,
    /// Nothing that is left tells.
    Unknown,
    /// Something lies elsewhere.
    Wrong,
}

/// Why no order was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderFault {
    /// Several are possible.
    Several,
}

/// What is known of one class of places.
#[derive(Default)]
struct Class {
    samples: Vec<(Logical, Content)>,
    attempts: usize,
    /// The last commit has something there.
    is_used: bool,
}

/// The content of a chunk, by class. Which class an address belongs to does not
/// depend on the order of the stripes.
pub(super) struct Order<'f, 'p> {
    facts: &'f Facts<'p>,
    start: Logical,
    profile: Profile,
    /// Stripes of a class.
    width: usize,
    classes: Vec<Class>,
    /// Rows with content, by their first address.
    rows: Vec<Logical>,
    /// All that the last commit has in the chunk was seen.
    is_complete: bool,
}

/// An allocation of the last commit.
struct Allocation {
    at: Logical,
    length: u64,
    /// The generation of a node; `None` for data.
    node: Option<Generation>,
}

/// Calls `visit` with the allocations of a chunk, ascending; false if some may
/// be lost.
fn allocations(
    facts: &Facts<'_>,
    start: Logical,
    length: u64,
    mut visit: impl FnMut(Allocation),
) -> bool {
    let key = |at: Logical| Key::new(at.get(), ItemType::MIN, 0);
    let keys = (key(start), key(start.saturating_add(length)));
    let mut is_complete = true;
    facts.allocations.each_in(facts.nodes(), keys, |seen| {
        let Seen::Item { key, data, origin } = seen else {
            is_complete = false;
            return;
        };
        if origin == Origin::Found {
            is_complete = false;
            return;
        }
        if ![ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM].contains(&key.item_type) {
            return;
        }
        let header = ExtentHeader::read(key.item_type, &mut Reader::new("extent", data));
        let Ok(header) = header else {
            is_complete = false;
            return;
        };
        let is_node = header.flags.contains(ExtentFlags::TREE_BLOCK);
        visit(Allocation {
            at: Logical(key.objectid),
            length: match is_node {
                true => crate::bytes_of(facts.nodes().identity.node_size),
                false => key.offset,
            },
            node: is_node.then_some(header.generation),
        });
    });
    is_complete
}

impl<'f, 'p> Order<'f, 'p> {
    /// Reads what lies in `chunk`; `None` if there can be no such chunk. The
    /// order of its stripes does not count.
    pub(super) fn new(facts: &'f Facts<'p>, start: Logical, chunk: &Chunk) -> Option<Self> {
        let profile = Profile::from_flags(chunk.flags)?;
        let map = ChunkMap::default().with(start, chunk.clone()).ok()?;
        let count = chunk.stripes.len();
        let width = match profile.is_striped() {
            true => profile.copies(),
            false => count,
        };
        let classes = count.checked_div(width)?;
        let mut order = Self {
            facts,
            start,
            profile,
            width,
            classes: (0..classes).map(|_| Class::default()).collect(),
            rows: Vec::new(),
            is_complete: true,
        };
        if facts.is_in_stripe_tree(chunk.flags) {
            order.is_complete = false;
            return Some(order);
        }
        let end = start.saturating_add(chunk.length);
        let mut left = ELEMENTS_MAX;
        let is_complete = allocations(facts, start, chunk.length, |allocation| {
            let stop = allocation.at.saturating_add(allocation.length).min(end);
            let mut at = allocation.at;
            while at < stop {
                let Some(less) = left.checked_sub(1) else {
                    return;
                };
                left = less;
                order.take(&map, chunk, at, allocation.node);
                if !profile.is_striped() {
                    return;
                }
                let within = at.get().saturating_sub(start.get());
                let next = within
                    .checked_div(ELEMENT)
                    .unwrap_or(0)
                    .saturating_add(1)
                    .saturating_mul(ELEMENT);
                at = start.saturating_add(next);
            }
        });
        order.is_complete = is_complete && left > 0;
        Some(order)
    }

    /// Nodes of the last commit in a range.
    pub(super) fn live_nodes(
        facts: &Facts<'_>,
        start: Logical,
        length: u64,
        most: usize,
    ) -> Vec<(Logical, Generation)> {
        let mut all = Vec::new();
        allocations(facts, start, length, |allocation| {
            if let Some(generation) = allocation.node
                && all.len() < most
            {
                all.push((allocation.at, generation));
            }
        });
        all
    }

    /// Takes one address that is in use.
    fn take(&mut self, map: &ChunkMap, chunk: &Chunk, at: Logical, node: Option<Generation>) {
        let mapping = map.map(at, 1).ok();
        let first = mapping.and_then(|mapping| mapping.copies.first().copied());
        let Some((place, within)) = first.and_then(|copy| place_of(chunk, copy)) else {
            return;
        };
        let width = self.width.max(1);
        let number = place.checked_div(width).unwrap_or(0);
        if self.profile.parities() > 0 && self.rows.len() < ROWS_MAX {
            self.take_row(chunk, within);
        }
        let facts = self.facts;
        let Some(class) = self.classes.get_mut(number) else {
            return;
        };
        class.is_used = true;
        if class.samples.len() >= SAMPLES_MAX || class.attempts >= ATTEMPTS_MAX {
            return;
        }
        class.attempts = class.attempts.saturating_add(1);
        if let Some(generation) = node {
            class.samples.push((at, Content::Node(generation)));
        } else if let Some(Known::Sum(sum)) = sums_of(&facts.checksums, facts.nodes(), at, 1).pop()
        {
            class.samples.push((at, Content::Sector(sum)));
        }
    }

    /// Notes the row of a place in a stripe.
    fn take_row(&mut self, chunk: &Chunk, within: u64) {
        let row = within.checked_div(ELEMENT).unwrap_or(0);
        let data = self.profile.data_stripes(chunk.stripes.len());
        let bytes = crate::bytes_of(data).saturating_mul(ELEMENT);
        let at = self.start.saturating_add(row.saturating_mul(bytes));
        if self.rows.last() != Some(&at) {
            self.rows.push(at);
        }
    }

    /// For each class and stripe, whether the stripe has what the class should
    /// have: nearly all samples, because single ones may be damaged.
    fn table(&self, chunk: &Chunk) -> Vec<Vec<bool>> {
        let ordering = self.ordering();
        let Ok(map) = ChunkMap::default().with(self.start, chunk.clone()) else {
            return Vec::new();
        };
        let rows = self.classes.iter().map(|class| {
            let mut hits = vec![0_usize; chunk.stripes.len()];
            for (at, content) in &class.samples {
                let mapping = map.map(*at, 1).ok();
                let first = mapping.and_then(|mapping| mapping.copies.first().copied());
                let Some((_, within)) = first.and_then(|copy| place_of(chunk, copy)) else {
                    continue;
                };
                for (stripe, count) in chunk.stripes.iter().zip(&mut hits) {
                    let place = Physical {
                        device: stripe.device,
                        offset: stripe.offset.saturating_add(within),
                    };
                    if ordering.is_there(place, *at, content) {
                        *count = count.saturating_add(1);
                    }
                }
            }
            let needed = class.samples.len().saturating_mul(3).div_ceil(4).max(1);
            hits.into_iter().map(|count| count >= needed).collect()
        });
        rows.collect()
    }

    /// Whether the stripes of `chunk` are in a possible order.
    pub(super) fn fit(&self, chunk: &Chunk) -> Fit {
        let mut fit = Fit::Unknown;
        for (number, row) in self.table(chunk).iter().enumerate() {
            let first = number.saturating_mul(self.width);
            let own = first..first.saturating_add(self.width);
            let is_own = |stripe: usize| own.contains(&stripe);
            let right: Vec<usize> = row
                .iter()
                .enumerate()
                .filter_map(|(stripe, right)| right.then_some(stripe))
                .collect();
            if right.iter().copied().any(is_own) {
                fit = Fit::Right;
            } else if !right.is_empty() || self.is_elsewhere(number) {
                return Fit::Wrong;
            }
        }
        fit
    }

    /// Whether the scan found the nodes of a class, although no stripe has them.
    fn is_elsewhere(&self, class: usize) -> bool {
        let index = &self.facts.nodes().index;
        let samples = self.classes.get(class).map(|class| &class.samples);
        samples.into_iter().flatten().any(|(at, content)| {
            matches!(content, Content::Node(generation) if index.at(*at, *generation).next().is_some())
        })
    }

    /// The stripes in the one order that is possible, and how it is known.
    pub(super) fn find(&self, chunk: &Chunk) -> Result<(Vec<Stripe>, ChunkEvidence), OrderFault> {
        let count = chunk.stripes.len();
        let is_in_tree = self.facts.is_in_stripe_tree(chunk.flags);
        // One class, or copies of one another.
        let is_alike = self.classes.len() < 2 || self.profile.data_stripes(count) < 2;
        if is_alike && !is_in_tree {
            return Ok((chunk.stripes.clone(), ChunkEvidence::Trees));
        }
        let table = self.table(chunk);
        let mut chosen = claims(&table, self.width).ok_or(OrderFault::Several)?;
        let taken: Vec<usize> = chosen.iter().flatten().flatten().copied().collect();
        let free: Vec<usize> = (0..count).filter(|one| !taken.contains(one)).collect();
        let open: Vec<usize> = chosen
            .iter()
            .enumerate()
            .filter_map(|(number, own)| own.is_none().then_some(number))
            .collect();
        let mut evidence = match taken.is_empty() {
            true => ChunkEvidence::Trees,
            false => ChunkEvidence::Content,
        };
        let is_used = |number: &usize| self.classes.get(*number).is_some_and(|one| one.is_used);
        let fill = |chosen: &mut Vec<Option<Vec<usize>>>, stripes: &[usize]| {
            for (class, own) in open.iter().zip(stripes.chunks(self.width.max(1))) {
                if let Some(place) = chosen.get_mut(*class) {
                    *place = Some(own.to_vec());
                }
            }
        };
        let is_empty = match self.profile.parities() > 0 {
            // Parities are used where any data of their row are.
            true => self.rows.is_empty(),
            false => !open.iter().any(is_used),
        };
        if open.len() < 2 || (self.is_complete && is_empty) {
            fill(&mut chosen, &free);
        } else if let Some(only) = self.by_parity(chunk, &free, |stripes| {
            let mut tried = chosen.clone();
            fill(&mut tried, stripes);
            ordered(chunk, &tried)
        }) {
            fill(&mut chosen, &only);
            evidence = ChunkEvidence::Parity;
        } else {
            let stripes = self.prove(chunk).ok_or(OrderFault::Several)?;
            return Ok((stripes, ChunkEvidence::Everything));
        }
        let stripes = ordered(chunk, &chosen).stripes;
        match stripes.len() == count {
            true => Ok((stripes, evidence)),
            false => Err(OrderFault::Several),
        }
    }

    /// The only order of some stripes in which both parities fit. One parity alone
    /// fits in each order.
    fn by_parity(
        &self,
        chunk: &Chunk,
        free: &[usize],
        with: impl Fn(&[usize]) -> Chunk,
    ) -> Option<Vec<usize>> {
        let can_tell = self.profile.parities() > 1 && !self.facts.is_in_stripe_tree(chunk.flags);
        if !can_tell || free.len() > TRIED_MAX {
            return None;
        }
        let all = orders(free).into_iter();
        let mut fitting = all.filter(|stripes| self.has_parity(&with(stripes)));
        let first = fitting.next()?;
        fitting.next().is_none().then_some(first)
    }

    /// An order in which every byte that the last commit has in the chunk is
    /// right. Where several are, they differ in nothing that is in use.
    fn prove(&self, chunk: &Chunk) -> Option<Vec<Stripe>> {
        let count = chunk.stripes.len();
        let is_bounded = count <= TRIED_MAX && self.rows.len() < ROWS_MAX;
        if !self.is_complete || !is_bounded {
            return None;
        }
        let map = ChunkMap::default().with(self.start, chunk.clone()).ok()?;
        let ordering = self.ordering();
        let mut table = vec![vec![true; count]; self.classes.len()];
        for (at, content) in self.everything(chunk.length)? {
            let first = map.map(at, 1).ok()?.copies.first().copied()?;
            let (place, within) = place_of(chunk, first)?;
            let row = table.get_mut(place.checked_div(self.width)?)?;
            for (stripe, is_right) in chunk.stripes.iter().zip(row) {
                let there = Physical {
                    device: stripe.device,
                    offset: stripe.offset.saturating_add(within),
                };
                *is_right = *is_right && ordering.is_there(there, at, &content);
            }
        }
        let numbers: Vec<usize> = (0..count).collect();
        orders(&numbers).into_iter().find_map(|order| {
            let mut classes = order.chunks(self.width.max(1)).zip(&table);
            let is_right = classes.all(|(own, row)| {
                let mut own = own.iter();
                own.all(|stripe| row.get(*stripe) == Some(&true))
            });
            let classes = order.chunks(self.width.max(1));
            let chosen: Vec<Option<Vec<usize>>> = classes.map(|own| Some(own.to_vec())).collect();
            let tried = ordered(chunk, &chosen);
            let fits = is_right && (self.profile.parities() == 0 || self.has_parity(&tried));
            fits.then_some(tried.stripes)
        })
    }

    /// All nodes and sectors in use; `None` if there are too many, or if a sector
    /// has no checksum.
    fn everything(&self, length: u64) -> Option<Vec<(Logical, Content)>> {
        let facts = self.facts;
        let sector = facts.nodes().identity.sector_size.max(1);
        let mut all = Some(Vec::new());
        allocations(facts, self.start, length, |allocation| {
            let Some(list) = &mut all else {
                return;
            };
            if let Some(generation) = allocation.node {
                list.push((allocation.at, Content::WholeNode(generation)));
                all = all.take().filter(|list| list.len() <= PROVEN_MAX);
                return;
            }
            let count = allocation.length.checked_div(sector).unwrap_or(0);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            if count.saturating_add(list.len()) > PROVEN_MAX {
                all = None;
                return;
            }
            let sums = sums_of(&facts.checksums, facts.nodes(), allocation.at, count);
            for (sum, number) in sums.into_iter().zip(0_u64..) {
                let at = allocation.at.saturating_add(number.saturating_mul(sector));
                let Known::Sum(sum) = sum else {
                    all = None;
                    return;
                };
                list.push((at, Content::Sector(sum)));
            }
        });
        all
    }

    fn ordering(&self) -> Ordering<'_> {
        Ordering {
            nodes: self.facts.nodes(),
            members: self.facts.patient.members(),
        }
    }

    /// Whether the parities of all rows fit.
    fn has_parity(&self, chunk: &Chunk) -> bool {
        let Ok(map) = ChunkMap::default().with(self.start, chunk.clone()) else {
            return false;
        };
        let space = self.facts.patient.space(&map);
        self.rows.iter().all(|row| {
            let Some(row) = space.lock_row(*row) else {
                return false;
            };
            (0..self.profile.parities()).all(|which| {
                let column = row.data_columns().saturating_add(which);
                row.is_readable(column) && row.column(column) == row.parity(which)
            })
        })
    }
}

/// The stripes of a chunk by classes.
fn ordered(chunk: &Chunk, chosen: &[Option<Vec<usize>>]) -> Chunk {
    let numbers = chosen.iter().flatten().flatten();
    Chunk {
        stripes: numbers
            .filter_map(|number| chunk.stripes.get(*number).copied())
            .collect(),
        ..chunk.clone()
    }
}

/// The stripes of the classes that have just as many as they need; `None` if two
/// classes want the same ones.
fn claims(table: &[Vec<bool>], width: usize) -> Option<Vec<Option<Vec<usize>>>> {
    let mut chosen: Vec<Option<Vec<usize>>> = vec![None; table.len()];
    loop {
        let taken: Vec<usize> = chosen.iter().flatten().flatten().copied().collect();
        let wanted: BTreeMap<usize, Vec<usize>> = table
            .iter()
            .enumerate()
            .filter(|(class, _)| chosen.get(*class).is_some_and(Option::is_none))
            .map(|(class, row)| {
                let right = row.iter().enumerate().filter(|(_, right)| **right);
                let free = right.map(|(stripe, _)| stripe);
                (class, free.filter(|one| !taken.contains(one)).collect())
            })
            .collect();
        let sure: Vec<(usize, Vec<usize>)> = wanted
            .iter()
            .filter(|(_, own)| own.len() == width)
            .map(|(class, own)| (*class, own.clone()))
            .collect();
        if sure.is_empty() {
            return Some(chosen);
        }
        for (class, own) in sure {
            let is_taken = chosen
                .iter()
                .flatten()
                .flatten()
                .any(|one| own.contains(one));
            if is_taken {
                return None;
            }
            if let Some(place) = chosen.get_mut(class) {
                *place = Some(own);
            }
        }
    }
}

/// All orders of some numbers.
fn orders(numbers: &[usize]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in numbers {
        let longer = all.iter().flat_map(|begun| {
            let left = numbers.iter().filter(|one| !begun.contains(one));
            left.map(|one| [begun.as_slice(), &[*one]].concat())
        });
        all = longer.collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(right: &[usize], count: usize) -> Vec<bool> {
        (0..count).map(|stripe| right.contains(&stripe)).collect()
    }

    #[test]
    fn a_stripe_that_fits_several_places_goes_where_it_is_needed() {
        let table = [row(&[0, 2], 3), row(&[2], 3), row(&[], 3)];
        let chosen = claims(&table, 1).unwrap();
        assert_eq!(chosen, [Some(vec![0]), Some(vec![2]), None]);
    }

    #[test]
    fn two_places_that_want_one_stripe_are_not_decided() {
        assert_eq!(claims(&[row(&[1], 2), row(&[1], 2)], 1), None);
    }

    #[test]
    fn mirrors_go_together() {
        let table = [row(&[1, 3], 4), row(&[0, 2], 4)];
        let chosen = claims(&table, 2).unwrap();
        assert_eq!(chosen, [Some(vec![1, 3]), Some(vec![0, 2])]);
    }

    #[test]
    fn all_orders_are_tried() {
        assert_eq!(orders(&[1, 2, 3]).len(), 6);
        assert_eq!(orders(&[]), [Vec::<usize>::new()]);
    }
}
