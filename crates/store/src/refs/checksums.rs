//! Data checksums: those that wait for the commit, and the checksum tree.

use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::{ItemType, Key, TreeId, object};
use butterfs_tree::{Cursor, Editor, find};
use std::collections::BTreeMap;
use std::ops::Range;

/// Checksums of a range of sectors; some may be missing.
#[derive(Debug)]
pub struct SectorChecksums {
    size: usize,
    sums: Vec<u8>,
    present: Vec<bool>,
}

impl SectorChecksums {
    /// Checksum of the sector with this index, if it has one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        (*self.present.get(index)?).then(|| &self.sums[index * self.size..][..self.size])
    }
}

fn key(logical: u64) -> Key {
    Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, logical)
}

/// Bytes of the greatest item of checksums, as in the kernel.
pub(crate) const fn item_bytes_max(node_size: usize, sum_size: usize) -> usize {
    ((node_size - HEADER_SIZE - 2 * ITEM_SIZE) / sum_size - 1) * sum_size
}

impl Engine {
    pub(crate) fn sum_size(&self) -> usize {
        self.nodes.identity().checksum.size()
    }

    /// Checksums in `range` that the last commit does not have: runs of
    /// sectors, cut to it.
    pub(crate) fn waiting_checksums(&self, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let sector = self.sector_size();
        let size = self.sum_size();
        let held = [&self.ledger.checksums.runs, &self.ledger.checksums.applied];
        let runs = held.into_iter().flat_map(|runs| {
            let before = runs.range(..range.start).next_back();
            before.into_iter().chain(runs.range(range.clone()))
        });
        let mut waiting = Vec::new();
        for (at, sums) in runs {
            let end = at.saturating_add((sums.len() / size) as u64 * sector);
            let (from, to) = ((*at).max(range.start), end.min(range.end));
            if from < to {
                let first = ((from - at) / sector) as usize * size;
                let last = ((to - at) / sector) as usize * size;
                waiting.push((from, sums[first..last].to_vec()));
            }
        }
        waiting
    }

    /// Checksums of the sectors in `range`.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn data_checksums(&self, range: Range<u64>) -> Result<SectorChecksums, StoreError> {
        let sector = self.sector_size();
        let size = self.sum_size();
        let count = ((range.end - range.start) / sector) as usize;
        let mut out = SectorChecksums {
            size,
            sums: vec![0; count * size],
            present: vec![false; count],
        };
        let mut copy = |at: u64, sums: &[u8]| {
            let end = at + (sums.len() / size) as u64 * sector;
            let (from, to) = (at.max(range.start), end.min(range.end));
            if from < to {
                let into = ((from - range.start) / sector) as usize;
                let skip = ((from - at) / sector) as usize;
                let n = ((to - from) / sector) as usize;
                out.sums[into * size..(into + n) * size]
                    .copy_from_slice(&sums[skip * size..(skip + n) * size]);
                out.present[into..into + n].fill(true);
            }
        };
        let mut waiting = 0;
        let before = self.ledger.checksums.runs.range(..=range.start).next_back();
        let inside = self
            .ledger
            .checksums
            .runs
            .range(range.start.saturating_add(1)..range.end.max(range.start + 1));
        for (at, sums) in before.into_iter().chain(inside) {
            let end = at + (sums.len() / size) as u64 * sector;
            waiting += end.min(range.end).saturating_sub((*at).max(range.start));
            copy(*at, sums);
        }
        if waiting >= range.end - range.start {
            return Ok(out);
        }
        self.rescue.pass_over(self.copy_checksums(&range, copy))?;
        Ok(out)
    }

    /// Gives `copy` the items of the checksum tree that may lie in `range`.
    fn copy_checksums(
        &self,
        range: &Range<u64>,
        mut copy: impl FnMut(u64, &[u8]),
    ) -> Result<(), StoreError> {
        let (sector, size) = (self.sector_size(), self.sum_size());
        let mut cursor = Cursor::seek_in(self, TreeId::CSUM, &key(range.start))?;
        if cursor.key() != Some(key(range.start)) {
            cursor.prev()?;
        }
        while let Some((found, sums)) = cursor.item() {
            if found.objectid == object::EXTENT_CSUM && found.item_type == ItemType::EXTENT_CSUM {
                if found.offset >= range.end {
                    break;
                }
                if sums.len() % size != 0 || found.offset % sector != 0 {
                    return Err(corrupt_item(TreeId::CSUM, found, ItemFault::Size));
                }
                copy(found.offset, sums);
            } else if found > key(range.end) {
                break;
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Brings waiting checksums into the checksum tree.
    pub(crate) fn apply_checksums(&mut self) -> Result<(), StoreError> {
        let runs = self.ledger.checksums.take();
        self.insert_runs(&runs)
    }

    /// [`Engine::apply_checksums`] before the commit, while the fsync log still
    /// needs the checksums.
    pub(crate) fn apply_checksums_for_writeback(&mut self) -> Result<(), StoreError> {
        let bytes = self.ledger.checksums.bytes;
        let runs = self.ledger.checksums.take();
        self.insert_runs(&runs)?;
        self.ledger.checksums.applied_bytes += bytes;
        for (at, sums) in runs {
            if let Some(old) = self.ledger.checksums.applied.insert(at, sums) {
                self.ledger.checksums.applied_bytes -= old.len();
            }
        }
        Ok(())
    }

    fn insert_runs(&mut self, runs: &BTreeMap<u64, Vec<u8>>) -> Result<(), StoreError> {
        let sector = self.sector_size();
        let size = self.sum_size();
        let item_max = item_bytes_max(self.node_size(), size);
        let mut joined: Option<(u64, Vec<u8>)> = None;
        for (at, sums) in runs {
            if let Some((start, run)) = &mut joined {
                if *start + (run.len() / size) as u64 * sector == *at {
                    run.extend_from_slice(sums);
                    continue;
                }
                let (start, run) = (*start, std::mem::take(run));
                self.insert_run(start, &run, item_max)?;
            }
            joined = Some((*at, sums.clone()));
        }
        match joined {
            Some((start, run)) => self.insert_run(start, &run, item_max),
            None => Ok(()),
        }
    }

    fn insert_run(
        &mut self,
        mut start: u64,
        mut run: &[u8],
        item_max: usize,
    ) -> Result<(), StoreError> {
        let sector = self.sector_size();
        let size = self.sum_size();
        // Fill up the item that ends where the run begins.
        let mut cursor = Cursor::seek_in(self, TreeId::CSUM, &key(start))?;
        let mut extended = None;
        if cursor.prev()?
            && let Some((found, sums)) = cursor.item()
            && found.objectid == object::EXTENT_CSUM
            && found.item_type == ItemType::EXTENT_CSUM
            && found
                .offset
                .saturating_add((sums.len() / size) as u64 * sector)
                == start
            && sums.len() < item_max
        {
            let (head, rest) = run.split_at(run.len().min(item_max - sums.len()));
            extended = Some((found, [sums, head].concat()));
            start += (head.len() / size) as u64 * sector;
            run = rest;
        }
        drop(cursor);
        let mut editor = Editor::new(self, TreeId::CSUM);
        if let Some((found, sums)) = extended {
            editor.replace(&found, &sums)?;
        }
        while !run.is_empty() {
            let (head, rest) = run.split_at(run.len().min(item_max));
            editor.insert(&key(start), head)?;
            start += (head.len() / size) as u64 * sector;
            run = rest;
        }
        Ok(())
    }
}

/// Removes the checksums of freed data from the checksum tree.
pub fn remove_range(engine: &mut Engine, range: &Range<u64>) -> Result<(), StoreError> {
    let sector = engine.sector_size();
    let size = engine.sum_size();
    let mut affected = Vec::new();
    {
        let mut cursor = Cursor::seek_in(engine, TreeId::CSUM, &key(range.start))?;
        if cursor.key() != Some(key(range.start)) {
            cursor.prev()?;
        }
        while let Some((found, sums)) = cursor.item() {
            if found >= key(range.end) {
                break;
            }
            let end = found
                .offset
                .saturating_add((sums.len() / size) as u64 * sector);
            if found >= key(0) && end > range.start {
                affected.push((found, end));
            }
            cursor.next()?;
        }
    }
    for (found, end) in affected {
        if found.offset >= range.start && end <= range.end {
            Editor::new(engine, TreeId::CSUM).remove(&found)?;
            continue;
        }
        let Some((leaf, slot)) = find(engine, TreeId::CSUM, &found)? else {
            return Err(StoreError::Internal("a checksum item went away"));
        };
        let sums = leaf.data(slot).to_vec();
        drop(leaf);
        let mut editor = Editor::new(engine, TreeId::CSUM);
        editor.remove(&found)?;
        let at = |logical: u64| ((logical - found.offset) / sector) as usize * size;
        if found.offset < range.start {
            editor.insert(&found, &sums[..at(range.start)])?;
        }
        if end > range.end {
            editor.insert(&key(range.end), &sums[at(range.end)..])?;
        }
    }
    Ok(())
}
