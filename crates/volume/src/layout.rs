//! What one stripe of a chunk holds, for callers that go through a device and
//! not through logical space.

use crate::Profile;
use crate::bytes_of;
use crate::geometry::{self, ELEMENT};
use butterfs_format::item::chunk::Chunk;
use std::ops::Range;

/// What one stripe of a chunk holds. Offsets in the chunk are counted from its
/// beginning, offsets in the stripe from the stripe's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeLayout {
    profile: Profile,
    /// Index of the stripe in its chunk.
    index: usize,
    stripes: usize,
    columns: u64,
    chunk: u64,
    length: u64,
}

/// How a stripe holds a part of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeRole {
    /// The part lies in the stripe, from this offset on.
    Held {
        /// Offset in the stripe.
        at: u64,
    },
    /// The stripe holds a parity of the part.
    Parity {
        /// Offset in the stripe.
        at: u64,
        /// Where the row begins in the chunk.
        row: u64,
        /// 0 for P, 1 for Q.
        which: usize,
    },
    /// The stripe holds neither.
    None,
}

/// A part of a chunk that lies in one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripePart {
    /// Offsets in the chunk.
    pub within: Range<u64>,
    /// Where it begins in its element. If the profile is not striped, where it
    /// begins in the chunk.
    pub inside: u64,
    /// How the stripe holds it.
    pub role: StripeRole,
}

impl StripeLayout {
    /// The layout of stripe `index`; `None` if the chunk has no such stripe.
    #[must_use]
    pub fn of(chunk: &Chunk, index: usize) -> Option<Self> {
        let profile = Profile::from_flags(chunk.flags)?;
        let stripes = chunk.stripes.len();
        (index < stripes && profile.allows_stripes(stripes)).then(|| Self {
            profile,
            index,
            stripes,
            columns: bytes_of(profile.data_stripes(stripes)).max(1),
            chunk: chunk.length,
            length: geometry::stripe_bytes(profile, chunk),
        })
    }

    /// Bytes of the stripe.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Number of the copy that the stripe holds, counted from 0.
    #[must_use]
    pub fn copy(&self) -> usize {
        match self.profile.is_striped() {
            true => self.index.checked_rem(self.profile.copies()).unwrap_or(0),
            false => self.index,
        }
    }

    /// Stripes whose lengths add up to the chunk's.
    #[must_use]
    pub const fn columns(&self) -> u64 {
        self.columns
    }

    /// About how many of `bytes` bytes of the chunk lie in the stripe. All
    /// stripes hold the same share, parities aside.
    #[must_use]
    pub fn share(&self, bytes: u64) -> u64 {
        let held = bytes.saturating_mul(bytes_of(self.profile.copies()));
        held.checked_div(bytes_of(self.stripes)).unwrap_or(bytes)
    }

    /// Bytes of the chunk's logical space.
    #[must_use]
    pub const fn chunk_length(&self) -> u64 {
        self.chunk
    }

    /// Parities of each row.
    #[must_use]
    pub const fn parities(&self) -> usize {
        self.profile.parities()
    }

    /// The whole rows that a part of the stripe touches: their range in the
    /// stripe, and their range in the chunk. They are cut to `most` bytes of
    /// the chunk, but to no less than one row. If the profile is not striped,
    /// the part is only cut.
    #[must_use]
    pub fn rows(&self, part: Range<u64>, most: u64) -> (Range<u64>, Range<u64>) {
        let end = part.end.min(self.length);
        if !self.profile.is_striped() {
            let start = part.start.min(end);
            let end = end.min(start.saturating_add(most));
            return (start..end, start..end);
        }
        let row = |offset: u64| (offset / ELEMENT).saturating_mul(ELEMENT);
        let start = row(part.start);
        let rows = most
            .checked_div(self.columns.saturating_mul(ELEMENT))
            .unwrap_or(1)
            .max(1);
        let most = start.saturating_add(rows.saturating_mul(ELEMENT));
        let end = row(end.saturating_add(ELEMENT).saturating_sub(1)).min(most);
        let within = |offset: u64| offset.saturating_mul(self.columns).min(self.chunk);
        (start..end.min(self.length), within(start)..within(end))
    }

    /// Visits a range of the chunk in parts that lie in one element each.
    pub fn visit(&self, within: Range<u64>, visit: &mut dyn FnMut(StripePart)) {
        let within = within.start..within.end.min(self.chunk);
        if !self.profile.is_striped() {
            if within.start < within.end {
                let at = within.start;
                visit(StripePart {
                    within,
                    inside: at,
                    role: StripeRole::Held { at },
                });
            }
            return;
        }
        let mut at = within.start;
        while at < within.end {
            let element = at / ELEMENT;
            let next = element.saturating_add(1).saturating_mul(ELEMENT);
            let inside = at.saturating_sub(element.saturating_mul(ELEMENT));
            visit(StripePart {
                within: at..next.min(within.end),
                inside,
                role: self.role(element, inside),
            });
            at = next;
        }
    }

    fn role(&self, element: u64, inside: u64) -> StripeRole {
        let Some(found) = geometry::locate(self.profile, self.stripes, element) else {
            return StripeRole::None;
        };
        let row = found.row.saturating_mul(ELEMENT);
        let own = found.stripe..found.stripe.saturating_add(self.profile.copies());
        if own.contains(&self.index) {
            return StripeRole::Held {
                at: row.saturating_add(inside),
            };
        }
        let stripes = bytes_of(self.stripes);
        let turned = found.row.checked_rem(stripes).unwrap_or(0);
        let column = bytes_of(self.index)
            .saturating_add(stripes)
            .saturating_sub(turned)
            .checked_rem(stripes)
            .unwrap_or(0);
        match column.checked_sub(self.columns) {
            Some(which) if self.parities() > 0 => StripeRole::Parity {
                at: row,
                row: row.saturating_mul(self.columns),
                which: crate::memory_of(which),
            },
            _ => StripeRole::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::item::chunk::{BlockGroupFlags, Stripe};
    use butterfs_format::{DeviceId, DeviceOffset, Physical};

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

    /// Compares each part of each stripe with what the map says.
    #[test]
    fn stripes_hold_what_the_map_says() {
        for profile in Profile::ALL {
            for stripes in (1..=6).filter(|n| profile.allows_stripes(*n)) {
                let chunk = chunk(profile, stripes, 11);
                let (mut held, mut parities) = (0, 0);
                for (index, stripe) in chunk.stripes.iter().enumerate() {
                    let layout = StripeLayout::of(&chunk, index).unwrap();
                    assert_eq!(layout.length(), 11 * ELEMENT);
                    let place = |at: u64| Physical {
                        device: stripe.device,
                        offset: DeviceOffset(stripe.offset.get() + at),
                    };
                    let mut next = 4096;
                    layout.visit(4096..chunk.length, &mut |part| {
                        assert_eq!(part.within.start, next);
                        next = part.within.end;
                        let length = next - part.within.start;
                        let map = geometry::map(profile, &chunk, part.within.start, length);
                        let map = map.unwrap();
                        assert_eq!(map.length, length);
                        let copies: Vec<_> = map.copies;
                        match part.role {
                            StripeRole::Held { at } => {
                                assert_eq!(copies[layout.copy()], place(at));
                                held += length;
                            }
                            StripeRole::Parity { at, row, which } => {
                                let found = geometry::row(profile, &chunk, row).unwrap();
                                assert_eq!(found.start, row);
                                let data = found.elements.len() - found.parities;
                                assert_eq!(found.elements[data + which], place(at));
                                parities += 1;
                            }
                            StripeRole::None => {
                                let own = copies.iter().any(|copy| copy.device == stripe.device);
                                assert!(!own, "{profile} {stripes}");
                            }
                        }
                    });
                    assert_eq!(next, chunk.length);
                }
                let copies = profile.copies() as u64;
                assert_eq!(held, (chunk.length - 4096) * copies);
                let elements = profile.data_stripes(stripes) * profile.parities() * 11;
                assert_eq!(parities, elements, "each data element has its parities");
            }
        }
    }

    #[test]
    fn rows_are_whole_and_bounded() {
        let raid5 = StripeLayout::of(&chunk(Profile::Raid5, 3, 10), 1).unwrap();
        let row = ELEMENT;
        assert_eq!(raid5.rows(5..row + 1, 1 << 30), (0..2 * row, 0..4 * row));
        assert_eq!(
            raid5.rows(row..10 * row, 5 * row),
            (row..3 * row, 2 * row..6 * row)
        );
        assert_eq!(
            raid5.rows(row..9 * row, 1),
            (row..2 * row, 2 * row..4 * row)
        );
        let single = StripeLayout::of(&chunk(Profile::Single, 1, 10), 0).unwrap();
        assert_eq!(single.rows(5..9, 2), (5..7, 5..7));
        assert_eq!(single.rows(5..u64::MAX, u64::MAX).0, 5..10 * row);
        assert!(StripeLayout::of(&chunk(Profile::Single, 1, 10), 1).is_none());
    }
}
