//! Positions in directories, and where a listing ends.
//!
//! Positions are small, as in the kernel, because programs of 32 bits take no
//! others. Any index of the directory is one, and a listing goes on from it.
//!
//! A renamed entry gets a new, higher index. So a listing that went on to the
//! last index at each moment could meet the same files for ever. Instead it ends
//! at the index that was the last one when it began. Opens are stateless, so a
//! request must say which end its listing has. The end itself has no room in a
//! small position: the position has the number of the end in [`Listings`].

use butterfs_format::InodeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The position after the last entry of a listing, as in the kernel: the
/// greatest one of a program of 32 bits.
pub(crate) const AT_END: u64 = i32::MAX as u64;
/// Set in positions that have the number of an end.
const NUMBERED: u64 = 1 << 30;
/// Bits of the index in such a position. The number follows.
const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Ends of a directory that have numbers. The next number would be that of
/// [`AT_END`].
const ENDS_MAX: usize = 63;
/// Set in positions that are an index too great for 30 bits.
pub(crate) const FAR: u64 = 1 << 62;
/// Directories whose ends are remembered, in each of two generations.
const DIRS_MAX: usize = 512;

/// The last index of a listing: that of its directory when the listing began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListingEnd(pub(crate) u64);

/// The number of an end among those of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndNumber(u8);

/// A position in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The least index that comes next, in no known listing.
    Index(u64),
    /// The same, in the listing that has this end.
    Numbered { index: u64, end: EndNumber },
    /// After the last entry.
    AtEnd,
}

impl Position {
    /// A position as callers know it. Any number is one.
    pub(crate) fn decode(position: u64) -> Self {
        if position == AT_END {
            return Self::AtEnd;
        }
        let number = u8::try_from(position.wrapping_sub(NUMBERED) >> INDEX_BITS);
        match number {
            Ok(number) if usize::from(number) < ENDS_MAX => Self::Numbered {
                index: position & INDEX_MASK,
                end: EndNumber(number),
            },
            _ => Self::Index(position & (FAR - 1)),
        }
    }

    /// The position for callers.
    fn encode(self) -> u64 {
        match self {
            Self::Index(index) if index < NUMBERED => index,
            Self::Index(index) => FAR | index,
            Self::Numbered { index, end } => NUMBERED | u64::from(end.0) << INDEX_BITS | index,
            Self::AtEnd => AT_END,
        }
    }
}

/// The ends that the listings of a directory have.
#[derive(Debug, Default)]
struct Ends {
    numbered: Vec<Numbered>,
    /// How often one of them was used.
    uses: u64,
    /// The end of the last listing that began, where it has no number.
    far: Option<ListingEnd>,
}

#[derive(Debug)]
struct Numbered {
    end: ListingEnd,
    /// When it was used last, counted in uses.
    used: u64,
}

impl Ends {
    /// Gives an end a number. If there are too many, the one that was not used
    /// for longest loses its number to it. If a listing still goes on to that
    /// one, it becomes longer.
    fn number(&mut self, end: ListingEnd) -> EndNumber {
        self.uses += 1;
        let used = self.uses;
        let same = self.numbered.iter().position(|one| one.end == end);
        let place = match same {
            Some(place) => place,
            None if self.numbered.len() < ENDS_MAX => self.numbered.len(),
            None => {
                let unused = self.numbered.iter().enumerate();
                let unused = unused.min_by_key(|(_, one)| one.used);
                unused.map_or(0, |(place, _)| place)
            }
        };
        let new = Numbered { end, used };
        match self.numbered.get_mut(place) {
            Some(old) => *old = new,
            None => self.numbered.push(new),
        }
        EndNumber(u8::try_from(place).unwrap_or_default())
    }

    fn get(&mut self, number: EndNumber) -> Option<ListingEnd> {
        self.uses += 1;
        let found = self.numbered.get_mut(usize::from(number.0))?;
        found.used = self.uses;
        Some(found.end)
    }
}

/// Where the listings of directories end. If a directory was forgotten, its
/// listings go on to its last index of that moment.
///
/// Invariant: what a number means only becomes a later moment. So no listing ends
/// before an entry that was there when it began.
#[derive(Debug, Default)]
pub(crate) struct Listings(Mutex<Generations>);

/// Directories that were listed lately, and those from before.
#[derive(Debug, Default)]
struct Generations {
    young: FxHashMap<InodeId, Ends>,
    old: FxHashMap<InodeId, Ends>,
}

impl Generations {
    fn ends(&mut self, dir: InodeId) -> &mut Ends {
        if self.young.len() >= DIRS_MAX && !self.young.contains_key(&dir) {
            self.old = std::mem::take(&mut self.young);
        }
        let old = &mut self.old;
        let known = || old.remove(&dir).unwrap_or_default();
        self.young.entry(dir).or_insert_with(known)
    }
}

impl Listings {
    /// Notes where a listing ends that begins.
    pub(crate) fn begun(&self, dir: InodeId, end: ListingEnd) -> Listing {
        let mut generations = self.0.lock();
        let ends = generations.ends(dir);
        let number = if end.0 < INDEX_MASK {
            Some(ends.number(end))
        } else {
            ends.far = Some(end);
            None
        };
        Listing { end, number }
    }

    /// The listing that has an end of this number.
    pub(crate) fn numbered(&self, dir: InodeId, number: EndNumber) -> Option<Listing> {
        let mut generations = self.0.lock();
        let ends = generations.ends(dir);
        let end = ends.get(number)?;
        let number = Some(number);
        Some(Listing { end, number })
    }

    /// The last listing that began where ends have no numbers.
    pub(crate) fn far(&self, dir: InodeId) -> Option<Listing> {
        let end = self.0.lock().ends(dir).far?;
        Some(Listing { end, number: None })
    }
}

/// A listing that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) end: ListingEnd,
    pub(crate) number: Option<EndNumber>,
}

impl Listing {
    /// The position of an index in it.
    pub(crate) fn at(self, index: u64) -> u64 {
        let position = match self.number {
            Some(end) => Position::Numbered { index, end },
            None => Position::Index(index),
        };
        position.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::{InodeNumber, TreeId};

    const fn dir(number: u64) -> InodeId {
        InodeId {
            tree: TreeId::FS,
            number: InodeNumber(number),
        }
    }

    #[test]
    fn positions_are_read_as_they_were_written() {
        let numbered = |index, end| Position::Numbered {
            index,
            end: EndNumber(end),
        };
        let small = [
            Position::Index(0),
            Position::Index(2),
            Position::Index(NUMBERED - 1),
            numbered(3, 0),
            numbered(INDEX_MASK, ENDS_MAX as u8 - 1),
            Position::AtEnd,
        ];
        for position in small {
            let number = position.encode();
            assert!(i32::try_from(number).is_ok(), "{position:?}");
            assert_eq!(Position::decode(number), position);
        }
        for index in [NUMBERED, NUMBERED + 7, AT_END, 1 << 40, FAR - 1] {
            let number = Position::Index(index).encode();
            assert!(i64::try_from(number).is_ok());
            assert_eq!(Position::decode(number), Position::Index(index));
        }
        // Numbers that nobody was given.
        for number in [AT_END + 1, FAR - 1, u64::MAX, 0x7f00_0000] {
            let index = Position::Index(number & (FAR - 1));
            assert_eq!(Position::decode(number), index, "{number:#x}");
        }
    }

    #[test]
    fn an_end_in_use_keeps_its_number() {
        let listings = Listings::default();
        let first = listings.begun(dir(1), ListingEnd(100));
        let number = first.number.unwrap();
        assert_eq!(listings.begun(dir(1), ListingEnd(100)), first);
        for later in 1..500 {
            let other = listings.begun(dir(1), ListingEnd(100 + later));
            assert_ne!(other.number, first.number);
            assert_eq!(listings.numbered(dir(1), number), Some(first));
        }
        // Its listing becomes longer if nobody goes on with it.
        for later in 1..ENDS_MAX as u64 {
            listings.begun(dir(1), ListingEnd(1000 + later));
        }
        assert_eq!(listings.numbered(dir(1), number), Some(first));
        for later in 0..=ENDS_MAX as u64 {
            listings.begun(dir(1), ListingEnd(2000 + later));
        }
        let longer = listings.numbered(dir(1), number).unwrap();
        assert!(longer.end > ListingEnd(1999), "{longer:?}");
    }

    #[test]
    fn a_directory_in_use_is_not_forgotten() {
        let listings = Listings::default();
        let first = listings.begun(dir(1), ListingEnd(100));
        for other in 2..4000 {
            listings.begun(dir(other), ListingEnd(4));
            assert_eq!(
                listings.numbered(dir(1), first.number.unwrap()),
                Some(first)
            );
        }
        for other in 4000..6000 {
            listings.begun(dir(other), ListingEnd(4));
        }
        assert_eq!(listings.numbered(dir(1), first.number.unwrap()), None);
        let generations = listings.0.lock();
        assert!(generations.young.len() <= DIRS_MAX && generations.old.len() <= DIRS_MAX);
    }

    #[test]
    fn far_ends_have_no_numbers() {
        let listings = Listings::default();
        let far = listings.begun(dir(1), ListingEnd(INDEX_MASK));
        assert_eq!(far.number, None);
        assert_eq!(listings.far(dir(1)), Some(far));
        assert_eq!(far.at(1 << 24), 1 << 24);
    }
}
