//! Which subvolume a stream is based on.

use butterfs_format::Generation;
use butterfs_format::send_stream::SourceStamp;

/// What tells whether a stream is based on a read-only subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its UUID, and the generation of its last change.
    pub own: SourceStamp,
    /// The generation in which it was made.
    pub made: Generation,
    /// The stamp of the stream that it was received from.
    pub received: SourceStamp,
}

/// Searches the read-only subvolumes of a volume for the one that has a stamp
/// or was received with it.
///
/// The kernel's stream of a received copy names the copy's generation. If no
/// subvolume has the whole stamp, the UUID decides. It is that of a subvolume
/// which has not changed since it was made, or of one that was received in one
/// generation (a received subvolume loses this UUID when it is made writable).
#[derive(Debug)]
pub struct BaseSearch<T> {
    stamp: SourceStamp,
    unchanged: Option<T>,
    copy: Option<(T, SourceStamp)>,
    copies_differ: bool,
}

impl<T> BaseSearch<T> {
    /// Begins.
    #[must_use]
    pub const fn new(stamp: SourceStamp) -> Self {
        Self {
            stamp,
            unchanged: None,
            copy: None,
            copies_differ: false,
        }
    }

    /// Looks at one more subvolume. Gives it back if it has the whole stamp:
    /// then the search is over.
    pub fn offer(&mut self, candidate: &Candidate, subvolume: T) -> Option<T> {
        let Candidate {
            own,
            made,
            received,
        } = *candidate;
        if received == self.stamp || own == self.stamp {
            return Some(subvolume);
        }
        if own.uuid == self.stamp.uuid && own.ctransid <= made {
            self.unchanged = Some(subvolume);
        } else if received.uuid == self.stamp.uuid {
            match &self.copy {
                Some((_, first)) => self.copies_differ |= *first != received,
                None => self.copy = Some((subvolume, received)),
            }
        }
        None
    }

    /// The subvolume with the UUID, if no subvolume had the whole stamp.
    #[must_use]
    pub fn by_uuid(self) -> Option<T> {
        let copy = self.copy.filter(|_| !self.copies_differ);
        self.unchanged.or(copy.map(|(subvolume, _)| subvolume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(uuid: u8, generation: u64) -> SourceStamp {
        SourceStamp {
            uuid: [uuid; 16],
            ctransid: Generation(generation),
        }
    }

    fn candidate(own: SourceStamp, made: u64, received: SourceStamp) -> Candidate {
        Candidate {
            own,
            made: Generation(made),
            received,
        }
    }

    #[test]
    fn the_whole_stamp_is_best_and_a_uuid_must_be_unambiguous() {
        let wanted = stamp(1, 7);
        let copy = |generation| candidate(stamp(9, 50), 40, stamp(1, generation));
        let mut search = BaseSearch::new(wanted);
        assert_eq!(search.offer(&copy(8), "copy"), None);
        assert_eq!(search.offer(&copy(7), "whole"), Some("whole"));
        assert_eq!(search.by_uuid(), Some("copy"));

        let mut search = BaseSearch::new(wanted);
        assert_eq!(search.offer(&copy(8), "copy"), None);
        assert_eq!(search.offer(&copy(8), "again"), None);
        assert_eq!(search.offer(&copy(9), "another"), None);
        assert_eq!(search.by_uuid(), None);

        // The sender's own: it may have changed since, or not.
        let mut search = BaseSearch::new(wanted);
        let own = |generation| candidate(stamp(1, generation), 8, stamp(0, 0));
        assert_eq!(search.offer(&own(9), "changed"), None);
        assert_eq!(search.offer(&own(8), "unchanged"), None);
        assert_eq!(search.by_uuid(), Some("unchanged"));
        assert_eq!(BaseSearch::<()>::new(wanted).by_uuid(), None);
    }
}
