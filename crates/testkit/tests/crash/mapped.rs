//! Stores to mapped files, as a FUSE server sees them. Whole dirty pages arrive
//! as writes, in any order and at any time, cut at the size. msync(2) writes
//! the pages of its range, with neighbours joined or not, and then comes fsync.

use super::world::{Outcome, World};
use butterfs_testkit::Random;
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: usize = 4096;

/// Dirty pages of a file by number.
pub type Pages = BTreeMap<usize, Vec<u8>>;

impl World {
    /// A program stores to a mapping, which the file system does not notice.
    pub fn store_mapped(&mut self, path: &str, range: Range<usize>) {
        let new = self.bytes(range.len());
        let content = &self.model.content(path).data;
        let pages = self.mapped.entry(path.to_owned()).or_default();
        for (at, byte) in range.zip(new) {
            let number = at / PAGE;
            let start = number * PAGE;
            assert!(start < content.len(), "SIGBUS in {path} at {at}");
            let page = pages.entry(number).or_insert_with(|| {
                let mut page = vec![0; PAGE];
                let end = content.len().min(start + PAGE);
                page[..end - start].copy_from_slice(&content[start..end]);
                page
            });
            page[at - start] = byte;
        }
    }

    /// The kernel writes dirty pages back by itself.
    pub fn write_back(&mut self, path: &str, pages: Range<usize>) -> Outcome<()> {
        let dirty = self.mapped.entry(path.to_owned()).or_default();
        let taken: Vec<usize> = dirty.range(pages).map(|(number, _)| *number).collect();
        self.counter += 1;
        let mut random = Random::new(self.counter);
        // Neighbours come as one write, or each alone.
        let mut writes: Vec<(usize, Vec<u8>)> = Vec::new();
        for number in taken {
            let page = self
                .mapped
                .get_mut(path)
                .and_then(|all| all.remove(&number));
            let page = page.expect("it is dirty");
            match writes.last_mut() {
                Some((at, data)) if *at + data.len() == number * PAGE && random.one_in(2) => {
                    data.extend(page);
                }
                _ => writes.push((number * PAGE, page)),
            }
        }
        while !writes.is_empty() {
            let next = random.below(writes.len() as u64) as usize;
            let (at, mut data) = writes.swap_remove(next);
            let size = self.model.content(path).data.len();
            data.truncate(size.saturating_sub(at));
            if !data.is_empty() {
                self.write_bytes(path, at as u64, &data)?;
            }
        }
        Ok(())
    }

    /// msync(2) with MS_SYNC.
    pub fn msync(&mut self, path: &str, range: Range<usize>) -> Outcome<()> {
        let wanted = self.seen_by_program(path);
        self.write_back(path, range.start / PAGE..range.end.div_ceil(PAGE))?;
        self.operate(&["fsync", path])?;
        let range = range.start..range.end.min(wanted.len());
        let durable = &self.model.content(path).data[range.clone()];
        assert_eq!(durable, &wanted[range], "msync promises what was stored");
        Ok(())
    }

    /// The file as the program that maps it sees it.
    fn seen_by_program(&self, path: &str) -> Vec<u8> {
        let mut seen = self.model.content(path).data.clone();
        for (number, page) in self.mapped.get(path).into_iter().flatten() {
            let start = (number * PAGE).min(seen.len());
            let end = seen.len().min(start + PAGE);
            seen[start..end].copy_from_slice(&page[..end - start]);
        }
        seen
    }

    /// Pages beyond the new end no longer exist, and neither do the bytes
    /// behind it.
    pub fn truncate_mapped(&mut self, path: &str, size: usize) {
        let Some(pages) = self.mapped.get_mut(path) else {
            return;
        };
        pages.retain(|number, _| number * PAGE < size);
        if let Some(page) = pages.get_mut(&(size / PAGE)) {
            page[size % PAGE..].fill(0);
        }
    }
}
