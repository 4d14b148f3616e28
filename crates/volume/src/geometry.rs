//! Where a byte of a chunk lies on its stripes: plain arithmetic.
//!
//! In striped profiles, consecutive elements of 64 KiB go to the stripes in
//! turn, row by row. In RAID5 and RAID6, each row begins one stripe further
//! than the row before, and its parities follow its data.

use crate::Profile;
use butterfs_format::item::chunk::{Chunk, Stripe};
use butterfs_format::superblock::{COPIES, COPY_SPAN};
use butterfs_format::{Logical, Physical};
use std::ops::Range;

/// Bytes of a stripe element; the format allows no other.
pub(crate) const ELEMENT: u64 = 64 << 10;

/// Where the beginning of a logical range lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Bytes of the range that this covers.
    pub length: u64,
    /// One place for each copy.
    pub copies: Vec<Physical>,
    /// Where it begins in its chunk.
    pub(crate) within: u64,
    /// Number of ways to rebuild it from the rest of its row.
    pub(crate) rebuilds: usize,
}

/// One row of a chunk with parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Where it begins in its chunk.
    pub(crate) start: u64,
    /// Where its elements begin: data in logical order, then the parities.
    pub(crate) elements: Vec<Physical>,
    /// How many of them are parities.
    pub(crate) parities: usize,
}

/// One element, by its row and its stripe.
pub(crate) struct Element {
    pub(crate) row: u64,
    /// Index of the first stripe that holds it.
    pub(crate) stripe: usize,
}

/// Maps the beginning of the `length` bytes that start `within` bytes inside of
/// `chunk`. `None` if `within` is outside of the chunk, or if the chunk did not
/// pass its check.
pub(crate) fn map(profile: Profile, chunk: &Chunk, within: u64, length: u64) -> Option<Mapping> {
    let left = chunk.length.checked_sub(within)?;
    let place = |stripes, offset, length| mapping(stripes, offset, (within, length));
    if !profile.is_striped() {
        return place(&chunk.stripes, within, length.min(left));
    }
    let inside = within.checked_rem(ELEMENT)?;
    let element = locate(profile, chunk.stripes.len(), within / ELEMENT)?;
    let end = element.stripe.checked_add(profile.copies())?;
    let stripes = chunk.stripes.get(element.stripe..end)?;
    let offset = element.row.checked_mul(ELEMENT)?.checked_add(inside)?;
    let to_border = ELEMENT.checked_sub(inside)?;
    let mut found = place(stripes, offset, length.min(left).min(to_border))?;
    found.rebuilds = match profile.parities() {
        0 => 0,
        1 => 1,
        // The plain way, and one for each other element that may be bad too.
        _ => chunk.stripes.len(),
    };
    Some(found)
}

fn mapping(stripes: &[Stripe], offset: u64, (within, length): (u64, u64)) -> Option<Mapping> {
    let copies = stripes
        .iter()
        .map(|stripe| at(stripe, offset))
        .collect::<Option<Vec<_>>>()?;
    Some(Mapping {
        length,
        copies,
        within,
        rebuilds: 0,
    })
}

fn at(stripe: &Stripe, offset: u64) -> Option<Physical> {
    Some(Physical {
        device: stripe.device,
        offset: stripe.offset.checked_add(offset)?,
    })
}

/// The row with parity that holds the byte `within` bytes inside of `chunk`.
pub(crate) fn row(profile: Profile, chunk: &Chunk, within: u64) -> Option<Row> {
    let count = chunk.stripes.len();
    let parities = profile.parities();
    if parities == 0 || within >= chunk.length {
        return None;
    }
    let columns = crate::bytes_of(profile.data_stripes(count));
    let number = (within / ELEMENT).checked_div(columns)?;
    let offset = number.checked_mul(ELEMENT)?;
    let first = usize::try_from(number.checked_rem(crate::bytes_of(count))?).ok()?;
    let (before, after) = chunk.stripes.split_at_checked(first)?;
    let elements = after.iter().chain(before).map(|stripe| at(stripe, offset));
    Some(Row {
        start: offset.checked_mul(columns)?,
        elements: elements.collect::<Option<Vec<_>>>()?,
        parities,
    })
}

/// Logical ranges of a chunk that lie on superblock copies of its devices,
/// ascending. With parity they are whole rows, because no part of such a row
/// can be written.
#[must_use]
pub fn superblock_ranges(logical: Logical, chunk: &Chunk) -> Vec<Range<u64>> {
    let Some(profile) = Profile::from_flags(chunk.flags) else {
        return Vec::new();
    };
    let bytes = stripe_bytes(profile, chunk);
    let mut ranges = Vec::new();
    for (index, stripe) in chunk.stripes.iter().enumerate() {
        let begin = stripe.offset.get();
        for copy in COPIES {
            let start = copy.get().max(begin).saturating_sub(begin);
            let end = copy.get().saturating_add(COPY_SPAN).saturating_sub(begin);
            let end = end.min(bytes);
            if start < end {
                add_ranges(&mut ranges, (profile, chunk), index, start..end);
            }
        }
    }
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = logical.saturating_add(range.start).get()
            ..logical.saturating_add(range.end.min(chunk.length)).get();
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Adds the ranges of a chunk that lie in the range `left` of one of its
/// stripes. With parity these are whole rows.
fn add_ranges(
    ranges: &mut Vec<Range<u64>>,
    (profile, chunk): (Profile, &Chunk),
    index: usize,
    mut left: Range<u64>,
) {
    if !profile.is_striped() {
        ranges.push(left);
        return;
    }
    let columns = crate::bytes_of(profile.data_stripes(chunk.stripes.len()));
    let column = crate::bytes_of(index.checked_div(profile.copies()).unwrap_or(0));
    while left.start < left.end {
        let row = left.start / ELEMENT;
        let end = row.saturating_add(1).saturating_mul(ELEMENT).min(left.end);
        let first = row.saturating_mul(columns).saturating_mul(ELEMENT);
        if profile.parities() > 0 {
            let length = columns.saturating_mul(ELEMENT);
            ranges.push(first..first.saturating_add(length));
        } else {
            let inside = left.start.saturating_sub(row.saturating_mul(ELEMENT));
            let at = first
                .saturating_add(column.saturating_mul(ELEMENT))
                .saturating_add(inside);
            let length = end.saturating_sub(left.start);
            ranges.push(at..at.saturating_add(length));
        }
        left.start = end;
    }
}

pub(crate) fn locate(profile: Profile, stripes: usize, element: u64) -> Option<Element> {
    let columns = crate::bytes_of(profile.data_stripes(stripes));
    let row = element.checked_div(columns)?;
    let column = element.checked_rem(columns)?;
    let stripe = if profile.parities() > 0 {
        column
            .checked_add(row)?
            .checked_rem(crate::bytes_of(stripes))?
    } else {
        column.checked_mul(crate::bytes_of(profile.copies()))?
    };
    Some(Element {
        row,
        stripe: usize::try_from(stripe).ok()?,
    })
}

/// Bytes that each stripe of a chunk takes on its device.
pub(crate) fn stripe_bytes(profile: Profile, chunk: &Chunk) -> u64 {
    let data = crate::bytes_of(profile.data_stripes(chunk.stripes.len()));
    chunk.length.checked_div(data).unwrap_or(chunk.length)
}

/// Bytes that each stripe of a chunk takes on its device.
#[must_use]
pub fn stripe_length(chunk: &Chunk) -> u64 {
    let profile = Profile::from_flags(chunk.flags);
    profile.map_or(chunk.length, |profile| stripe_bytes(profile, chunk))
}

/// Bytes of a row of a chunk with parity; `None` without parity. Rows should be
/// written as a whole.
#[must_use]
pub fn row_length(chunk: &Chunk) -> Option<u64> {
    let profile = Profile::from_flags(chunk.flags)?;
    let data = crate::bytes_of(profile.data_stripes(chunk.stripes.len()));
    (profile.parities() > 0).then(|| data.saturating_mul(ELEMENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::item::chunk::BlockGroupFlags;
    use butterfs_format::{DeviceId, DeviceOffset};
    use std::collections::HashMap;

    fn chunk(profile: Profile, stripes: usize, rows: u64) -> Chunk {
        Chunk {
            length: rows * ELEMENT * profile.data_stripes(stripes) as u64,
            owner: 2,
            stripe_length: ELEMENT,
            flags: profile.flag() | BlockGroupFlags::DATA,
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 1,
            stripes: (0..stripes as u64)
                .map(|n| Stripe {
                    device: DeviceId(n + 1),
                    offset: DeviceOffset((n + 1) << 30),
                    device_uuid: [0; 16],
                })
                .collect(),
        }
    }

    /// Deals out the elements of a chunk row by row, as the format describes
    /// it. Gives the (stripe, row) of the copies of each logical element.
    fn dealt(profile: Profile, stripes: usize, rows: u64) -> Vec<Vec<(usize, u64)>> {
        let mut elements = Vec::new();
        for row in 0..rows {
            let mut order: Vec<usize> = (0..stripes).collect();
            if profile.parities() > 0 {
                order.rotate_left(row as usize % stripes);
                order.truncate(stripes - profile.parities());
            }
            for group in order.chunks(profile.copies()) {
                elements.push(group.iter().map(|stripe| (*stripe, row)).collect());
            }
        }
        elements
    }

    #[test]
    fn every_small_geometry_as_dealt_by_hand() {
        for profile in Profile::ALL {
            for stripes in (1..=6).filter(|n| profile.allows_stripes(*n)) {
                let rows = 13;
                let chunk = chunk(profile, stripes, rows);
                let elements = dealt(profile, stripes, rows);
                assert_eq!(elements.len() as u64 * ELEMENT, chunk.length);
                assert_eq!(stripe_bytes(profile, &chunk), rows * ELEMENT);
                for (number, places) in elements.iter().enumerate() {
                    for inside in [0, 4096, ELEMENT - 1] {
                        let within = number as u64 * ELEMENT + inside;
                        let found = map(profile, &chunk, within, 200_000).unwrap();
                        let expected: Vec<Physical> = places
                            .iter()
                            .map(|(stripe, row)| Physical {
                                device: DeviceId(*stripe as u64 + 1),
                                offset: DeviceOffset(
                                    ((*stripe as u64 + 1) << 30) + row * ELEMENT + inside,
                                ),
                            })
                            .collect();
                        assert_eq!(found.copies, expected, "{profile} {stripes} {within}");
                        let left = (chunk.length - within).min(200_000);
                        let most = if profile.is_striped() {
                            left.min(ELEMENT - inside)
                        } else {
                            left
                        };
                        assert_eq!(found.length, most);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_have_all_data_in_order_and_the_parities_last() {
        for profile in [Profile::Raid5, Profile::Raid6] {
            for stripes in (2..=6).filter(|n| profile.allows_stripes(*n)) {
                let chunk = chunk(profile, stripes, 13);
                let columns = profile.data_stripes(stripes);
                for number in 0..13_u64 {
                    let start = number * ELEMENT * columns as u64;
                    let row = row(profile, &chunk, start + 5).unwrap();
                    assert_eq!(row.start, start);
                    assert_eq!(row.elements.len(), stripes);
                    assert_eq!(row.parities, profile.parities());
                    for (column, element) in row.elements[..columns].iter().enumerate() {
                        let at = start + column as u64 * ELEMENT;
                        let found = map(profile, &chunk, at, 1).unwrap();
                        assert_eq!(found.copies, [*element]);
                    }
                    let devices: HashMap<_, _> =
                        row.elements.iter().map(|e| (e.device, ())).collect();
                    assert_eq!(devices.len(), stripes, "each device once");
                }
            }
        }
    }

    /// Compares with what the map says about each sector.
    #[test]
    fn superblocks_are_found_in_every_profile() {
        for profile in Profile::ALL {
            for stripes in (1..=5).filter(|n| profile.allows_stripes(*n)) {
                let mut chunk = chunk(profile, stripes, 40);
                let logical = Logical(1 << 40);
                for (n, stripe) in chunk.stripes.iter_mut().enumerate() {
                    let rows_before = [3, 17, 39, 50, 1][n];
                    stripe.offset = DeviceOffset((64 << 20) - rows_before * ELEMENT);
                }
                let found = superblock_ranges(logical, &chunk);
                let hits = |place: &Physical| {
                    COPIES.iter().any(|copy| {
                        (copy.get()..copy.get() + COPY_SPAN).contains(&place.offset.get())
                    })
                };
                for sector in (0..chunk.length).step_by(4096) {
                    let is_hit = match row(profile, &chunk, sector) {
                        Some(row) => row.elements.iter().any(hits),
                        None => map(profile, &chunk, sector, 1)
                            .unwrap()
                            .copies
                            .iter()
                            .any(hits),
                    };
                    let at = logical.get() + sector;
                    let is_found = found.iter().any(|range| range.contains(&at));
                    assert_eq!(is_found, is_hit, "{profile} {stripes} {sector}");
                }
            }
        }
    }

    #[test]
    fn no_two_logical_elements_share_a_place() {
        for profile in Profile::ALL {
            for stripes in (1..=8).filter(|n| profile.allows_stripes(*n)) {
                let chunk = chunk(profile, stripes, 9);
                let mut owner = HashMap::new();
                for within in (0..chunk.length).step_by(ELEMENT as usize) {
                    let found = map(profile, &chunk, within, 1).unwrap();
                    assert_eq!(found.copies.len(), profile.copies());
                    for place in found.copies {
                        assert_eq!(owner.insert(place, within), None);
                    }
                }
                // What is left of the stripes is parity.
                let parity = 9 * profile.parities();
                assert_eq!(owner.len() + parity, 9 * stripes);
            }
        }
    }
}
