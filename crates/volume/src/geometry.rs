//! Where a byte of a chunk lies on its stripes: plain arithmetic.
//!
//! Striped profiles deal consecutive elements of 64 KiB out to the stripes,
//! row by row. RAID5 and RAID6 turn each row one stripe further than the one
//! before; its parities follow its data.

use crate::Profile;
use butterfs_format::Physical;
use butterfs_format::item::chunk::{Chunk, Stripe};

/// Bytes of a stripe element; the format allows no other.
pub(crate) const ELEMENT: u64 = 64 << 10;

/// Where the beginning of a logical range lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Bytes of the range that this covers.
    pub length: u64,
    /// One place for each copy.
    pub copies: Vec<Physical>,
}

/// One element: which row of which stripe.
struct Element {
    row: u64,
    /// Index of the first stripe that holds it.
    stripe: usize,
}

/// Maps the beginning of the `length` bytes from `within` bytes inside of
/// `chunk` on. The chunk has passed its check and `within` is inside of it;
/// `None` means that this was not so.
pub(crate) fn map(profile: Profile, chunk: &Chunk, within: u64, length: u64) -> Option<Mapping> {
    let left = chunk.length.checked_sub(within)?;
    if !profile.is_striped() {
        return mapping(&chunk.stripes, within, length.min(left));
    }
    let inside = within.checked_rem(ELEMENT)?;
    let element = locate(profile, chunk.stripes.len(), within / ELEMENT)?;
    let end = element.stripe.checked_add(profile.copies())?;
    let stripes = chunk.stripes.get(element.stripe..end)?;
    let offset = element.row.checked_mul(ELEMENT)?.checked_add(inside)?;
    let to_border = ELEMENT.checked_sub(inside)?;
    mapping(stripes, offset, length.min(left).min(to_border))
}

fn mapping(stripes: &[Stripe], offset: u64, length: u64) -> Option<Mapping> {
    let copies = stripes
        .iter()
        .map(|stripe| {
            Some(Physical {
                device: stripe.device,
                offset: stripe.offset.checked_add(offset)?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Mapping { length, copies })
}

fn locate(profile: Profile, stripes: usize, element: u64) -> Option<Element> {
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

    /// Deals the elements of a chunk out as the format describes it, row by
    /// row, as lists: for each logical element the (stripe, row) of its copies.
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
