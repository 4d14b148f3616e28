//! A sparse map of pages, shared copy-on-write.
//!
//! Owns the arithmetic between byte ranges and pages. The caller decides what
//! an absent page holds: zeros, or the content of another device.

use butterfs_format::DeviceOffset;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page: one node of the usual size, so that writing a node copies
/// no neighbour.
pub(crate) const PAGE_SIZE: usize = 16 * 1024;
const PAGE_SIZE_U64: u64 = 16 * 1024;

pub(crate) type Page = Arc<[u8; PAGE_SIZE]>;

/// Pages by number. A clone shares all pages until one side writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageMap {
    pages: BTreeMap<u64, Page>,
}

/// The part of one page that a byte range covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) page: u64,
    /// First byte inside the page.
    pub(crate) within: usize,
    pub(crate) length: usize,
}

/// Cuts `length` bytes from `offset` on at the borders of pages.
pub(crate) fn pieces(offset: DeviceOffset, length: usize) -> impl Iterator<Item = Piece> {
    let mut page = offset.get() / PAGE_SIZE_U64;
    let mut within = usize::try_from(offset.get() % PAGE_SIZE_U64).unwrap_or(0);
    let mut left = length;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let piece = Piece {
            page,
            within,
            length: left.min(PAGE_SIZE.saturating_sub(within)),
        };
        left = left.saturating_sub(piece.length);
        page = page.saturating_add(1);
        within = 0;
        Some(piece)
    })
}

/// First byte of a page.
pub(crate) const fn page_start(page: u64) -> DeviceOffset {
    DeviceOffset(page.saturating_mul(PAGE_SIZE_U64))
}

impl PageMap {
    /// Copies into `buf` what present pages hold. For each absent page it calls
    /// `absent` with the offset and the part of `buf`.
    ///
    /// # Errors
    /// Those of `absent`.
    pub(crate) fn read<E>(
        &self,
        offset: DeviceOffset,
        buf: &mut [u8],
        mut absent: impl FnMut(DeviceOffset, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = buf;
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at_mut(piece.length);
            rest = later;
            match self.pages.get(&piece.page) {
                Some(page) => {
                    if let Some(from) = page.get(piece.within..).and_then(|p| p.get(..now.len())) {
                        now.copy_from_slice(from);
                    }
                }
                None => {
                    let within = u64::try_from(piece.within).unwrap_or(0);
                    absent(page_start(piece.page).saturating_add(within), now)?;
                }
            }
        }
        Ok(())
    }

    /// Stores `data`. Where `data` covers only part of a page that is not
    /// present yet, `absent` fills the page first; it gets a page of zeros.
    ///
    /// # Errors
    /// Those of `absent`; pages before the failed one are already changed.
    pub(crate) fn write<E>(
        &mut self,
        offset: DeviceOffset,
        data: &[u8],
        mut absent: impl FnMut(DeviceOffset, &mut [u8; PAGE_SIZE]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = data;
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at(piece.length);
            rest = later;
            let page = match self.pages.entry(piece.page) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let mut fresh = Arc::new([0; PAGE_SIZE]);
                    if piece.length < PAGE_SIZE {
                        absent(page_start(piece.page), Arc::make_mut(&mut fresh))?;
                    }
                    entry.insert(fresh)
                }
            };
            let to = Arc::make_mut(page)
                .get_mut(piece.within..)
                .and_then(|p| p.get_mut(..now.len()));
            if let Some(to) = to {
                to.copy_from_slice(now);
            }
        }
        Ok(())
    }

    /// Makes every byte of the range absent or zero.
    pub(crate) fn clear(&mut self, offset: DeviceOffset, length: u64) {
        let end = offset.saturating_add(length);
        let first_whole = offset.get().div_ceil(PAGE_SIZE_U64);
        let past_whole = end.get() / PAGE_SIZE_U64;
        let first = offset.get() / PAGE_SIZE_U64;
        let numbers: Vec<u64> = self
            .pages
            .range(first..=past_whole)
            .map(|(n, _)| *n)
            .collect();
        for number in numbers {
            if (first_whole..past_whole).contains(&number) {
                self.pages.remove(&number);
                continue;
            }
            let start = page_start(number).get();
            let within = |at: DeviceOffset| {
                let bytes = at.get().saturating_sub(start).min(PAGE_SIZE_U64);
                usize::try_from(bytes).unwrap_or(PAGE_SIZE)
            };
            if let Some(page) = self.pages.get_mut(&number)
                && let Some(part) = Arc::make_mut(page).get_mut(within(offset)..within(end))
            {
                part.fill(0);
            }
        }
    }

    /// Present pages in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.iter().map(|(number, page)| (*number, page))
    }

    /// The page of this number, if present.
    pub(crate) fn get(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number)
    }

    /// Number of present pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }
}
