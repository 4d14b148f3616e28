//! Copying requests into a lane's buffer.

use super::lane::Gathered;
use super::ring::ENTRIES;
use crate::WriteRequest;
use crate::parts::after;
use std::io::IoSlice;
use std::slice::Iter;

/// What of a request is not copied yet.
pub(super) struct Rest<'a> {
    offset: u64,
    part: &'a [u8],
    parts: Iter<'a, IoSlice<'a>>,
}

impl<'a> Rest<'a> {
    pub(super) fn of(request: &WriteRequest<'a>) -> Self {
        Self {
            offset: request.offset.get(),
            part: &[],
            parts: request.parts.iter(),
        }
    }

    /// Whether nothing is left.
    fn is_empty(&mut self) -> bool {
        while self.part.is_empty() {
            match self.parts.next() {
                Some(next) => self.part = next,
                None => return true,
            }
        }
        false
    }

    /// Fills `place` as far as there is something. Gives the number of bytes.
    fn fill(&mut self, place: &mut [u8]) -> usize {
        let mut filled = 0_usize;
        while let Some(rest) = place.get_mut(filled..)
            && !rest.is_empty()
            && !self.is_empty()
        {
            let (now, later) = self.part.split_at(self.part.len().min(rest.len()));
            let (rest, _) = rest.split_at_mut(now.len());
            rest.copy_from_slice(now);
            filled = filled.saturating_add(now.len());
            self.part = later;
        }
        self.offset = after(self.offset, filled);
        filled
    }
}

/// Requests that are in a buffer, ready to be written.
pub(super) struct Gather {
    /// Each begins at a multiple of this many bytes of the buffer.
    unit: usize,
    used: usize,
    pub(super) writes: Vec<Gathered>,
}

impl Gather {
    pub(super) const fn new(unit: usize) -> Self {
        Self {
            unit,
            used: 0,
            writes: Vec::new(),
        }
    }

    /// Copies what fits of a request. False if something is left: then what was
    /// gathered is written first.
    pub(super) fn add(&mut self, buffer: &mut [u8], rest: &mut Rest<'_>) -> bool {
        if rest.is_empty() {
            return true;
        }
        if self.writes.len() == ENTRIES {
            return false;
        }
        let offset = rest.offset;
        let filled = rest.fill(buffer.get_mut(self.used..).unwrap_or_default());
        if filled > 0 {
            let end = self.used.saturating_add(filled);
            let bytes = self.used..end;
            self.writes.push(Gathered { offset, bytes });
            self.used = end.next_multiple_of(self.unit);
        }
        rest.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.writes.clear();
    }
}
