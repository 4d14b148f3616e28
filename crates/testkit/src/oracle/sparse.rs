//! Content of a file, without its zeros.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Bytes of a file; pages that were never written are zero.
#[derive(Clone, Debug, Default)]
pub struct Sparse {
    size: u64,
    /// By number of the page. Bytes behind the size are zero.
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
}

impl Sparse {
    /// Bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Calls `each` with every part of a page of `from..to`: number, place in
    /// the page, place in the range, length.
    fn parts(from: u64, to: u64, mut each: impl FnMut(u64, usize, usize, usize)) {
        let mut at = from;
        while at < to {
            let within = at % PAGE;
            let length = (PAGE - within).min(to - at);
            each(
                at / PAGE,
                within as usize,
                (at - from) as usize,
                length as usize,
            );
            at += length;
        }
    }

    /// Replaces bytes; the size follows.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        Self::parts(offset, end, |page, within, at, length| {
            let page = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within..within + length].copy_from_slice(&data[at..at + length]);
        });
        self.size = self.size.max(end);
    }

    /// Makes a range zero; the size stays.
    pub fn clear(&mut self, from: u64, to: u64) {
        let to = to.min(self.size);
        let whole = from.div_ceil(PAGE)..to / PAGE;
        if whole.start < whole.end {
            // In a large hole, this removes only the pages that exist.
            let mut behind = self.pages.split_off(&whole.start);
            self.pages.append(&mut behind.split_off(&whole.end));
        }
        let edges = [
            from..to.min(whole.start.saturating_mul(PAGE)),
            from.max(whole.end * PAGE)..to,
        ];
        for edge in edges {
            self.clear_parts(edge);
        }
    }

    fn clear_parts(&mut self, range: std::ops::Range<u64>) {
        Self::parts(range.start, range.end, |number, within, _, length| {
            if let Some(page) = self.pages.get_mut(&number) {
                Arc::make_mut(page)[within..within + length].fill(0);
            }
        });
    }

    /// Cuts or extends with zeros.
    pub fn resize(&mut self, size: u64) {
        self.clear(size, self.size);
        self.size = size;
    }

    /// Extends to at least `size`.
    pub fn extend(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Bytes from `offset` on, as far as the content goes.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let end = (offset + buffer.len() as u64).min(self.size);
        Self::parts(offset, end, |number, within, at, length| {
            let out = &mut buffer[at..at + length];
            match self.pages.get(&number) {
                Some(page) => out.copy_from_slice(&page[within..within + length]),
                None => out.fill(0),
            }
        });
        end.saturating_sub(offset) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn like_a_vector() {
        let mut random = Random::new(1);
        let mut sparse = Sparse::default();
        let mut plain: Vec<u8> = Vec::new();
        for _ in 0..3000 {
            let at = random.below(30_000);
            let length = random.below(9000);
            let end = (at + length) as usize;
            match random.below(4) {
                0 => {
                    let data = crate::content::content(random.bits(), length as usize);
                    sparse.write(at, &data);
                    plain.resize(plain.len().max(end), 0);
                    plain[at as usize..end].copy_from_slice(&data);
                }
                1 => {
                    sparse.clear(at, end as u64);
                    let end = end.min(plain.len());
                    let from = (at as usize).min(end);
                    plain[from..end].fill(0);
                }
                2 => {
                    sparse.resize(at);
                    plain.resize(at as usize, 0);
                }
                _ => {
                    sparse.extend(at);
                    plain.resize(plain.len().max(at as usize), 0);
                }
            }
            let mut out = vec![1; 50_000];
            let count = sparse.read(0, &mut out);
            assert!(out[..count] == plain);
        }
    }
}
