//! A reusable buffer whose data part begins at a page.
//!
//! Owns the alignment. With headers in front, one contiguous buffer serves one
//! system call, and the data in it still suit direct I/O.

const ALIGNMENT: usize = 4096;

/// `lead` bytes of headers, then data that begins at a page.
pub(crate) struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
    lead: usize,
}

impl AlignedBuffer {
    /// Zeroed; pages never touched cost no memory.
    pub(crate) fn new(lead: usize, capacity: usize) -> Self {
        assert!(lead <= ALIGNMENT, "headers fit into a page");
        let storage = vec![0; lead + capacity + 2 * ALIGNMENT];
        let page = storage.as_ptr().align_offset(ALIGNMENT);
        let start = (page + ALIGNMENT - lead) % ALIGNMENT;
        let start = if start + lead < page {
            start + ALIGNMENT
        } else {
            start
        };
        let mut storage = storage;
        storage.truncate(start + lead + capacity);
        Self {
            storage,
            start,
            lead,
        }
    }

    /// Headers and data.
    pub(crate) fn all_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..]
    }

    /// The first `len` bytes of headers and data.
    pub(crate) fn first(&self, len: usize) -> &[u8] {
        &self.storage[self.start..self.start + len]
    }

    /// Headers and data apart.
    pub(crate) fn parts_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        let lead = self.lead;
        self.all_mut().split_at_mut(lead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_begins_at_a_page() {
        for lead in [0, 16, 80, 4095, 4096] {
            let mut buffer = AlignedBuffer::new(lead, 10_000);
            let (head, data) = buffer.parts_mut();
            assert_eq!((head.len(), data.len()), (lead, 10_000));
            assert_eq!(data.as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!(buffer.first(lead + 10_000).len(), lead + 10_000);
        }
    }
}
