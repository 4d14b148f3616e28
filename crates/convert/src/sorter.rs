//! Sorting of more records than memory holds.
//!
//! Records are bytes and are sorted as such. Whoever sorts numbers writes them
//! with the highest byte first.

use crate::error::ConvertError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Bytes of a run that are read at once.
const PIECE: usize = 64 << 10;

/// Takes records in any order.
#[derive(Debug)]
pub(crate) struct Sorter {
    memory: usize,
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
    file: Option<File>,
    written: u64,
    runs: Vec<Range<u64>>,
}

impl Sorter {
    /// Records of up to `memory` bytes stay in memory.
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            memory,
            bytes: Vec::new(),
            records: Vec::new(),
            file: None,
            written: 0,
            runs: Vec::new(),
        }
    }

    /// Takes a record, given in parts.
    ///
    /// # Errors
    /// The temporary file.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) -> Result<(), ConvertError> {
        let start = self.bytes.len();
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.records.push(start..self.bytes.len());
        let index = self.records.len().saturating_mul(size_of::<Range<usize>>());
        match self.bytes.len().saturating_add(index) > self.memory {
            true => self.spill().map_err(ConvertError::Temporary),
            false => Ok(()),
        }
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        let record = |range: &Range<usize>| bytes.get(range.clone()).unwrap_or_default();
        self.records
            .sort_unstable_by(|one, other| record(one).cmp(record(other)));
    }

    fn spill(&mut self) -> io::Result<()> {
        self.sort();
        let mut file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile()?,
        };
        let start = self.written;
        let mut out = io::BufWriter::with_capacity(1 << 20, &mut file);
        for range in self.records.drain(..) {
            let record = self.bytes.get(range).unwrap_or_default();
            let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
            out.write_all(&length.to_le_bytes())?;
            out.write_all(record)?;
            self.written = self
                .written
                .saturating_add(u64::from(length).saturating_add(4));
        }
        out.flush()?;
        drop(out);
        self.runs.push(start..self.written);
        self.bytes.clear();
        self.file = Some(file);
        Ok(())
    }

    /// All records, sorted.
    ///
    /// # Errors
    /// The temporary file.
    pub(crate) fn finish(mut self) -> Result<Sorted, ConvertError> {
        if self.file.is_some() && !self.records.is_empty() {
            self.spill().map_err(ConvertError::Temporary)?;
        }
        self.sort();
        Ok(Sorted(self))
    }
}

/// Records in their order. They can be read any number of times.
#[derive(Debug)]
pub(crate) struct Sorted(Sorter);

impl Sorted {
    /// Reads from the first record on.
    ///
    /// # Errors
    /// The temporary file.
    pub(crate) fn read(&self) -> Result<SortedReader<'_>, ConvertError> {
        let mut reader = SortedReader {
            sorted: self,
            next: 0,
            runs: Vec::new(),
            heap: BinaryHeap::new(),
            current: Vec::new(),
        };
        for (number, run) in self.0.runs.iter().enumerate() {
            reader.runs.push(Run {
                left: run.clone(),
                piece: Vec::new(),
                at: 0,
            });
            reader.refill(number).map_err(ConvertError::Temporary)?;
        }
        Ok(reader)
    }
}

#[derive(Debug)]
struct Run {
    /// What was not read yet.
    left: Range<u64>,
    piece: Vec<u8>,
    at: usize,
}

impl Run {
    /// The next `length` bytes.
    fn take(&mut self, file: &File, length: usize) -> io::Result<Option<Vec<u8>>> {
        let mut taken = Vec::with_capacity(length);
        while taken.len() < length {
            let here = self.piece.get(self.at..).unwrap_or_default();
            if here.is_empty() {
                let left = self.left.end.saturating_sub(self.left.start);
                let size = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
                if size == 0 {
                    return Ok(None);
                }
                self.piece.resize(size, 0);
                self.at = 0;
                file.read_exact_at(&mut self.piece, self.left.start)?;
                self.left.start = self
                    .left
                    .end
                    .saturating_sub(left)
                    .saturating_add(u64::try_from(size).unwrap_or(left));
                continue;
            }
            let count = here.len().min(length.saturating_sub(taken.len()));
            taken.extend_from_slice(here.get(..count).unwrap_or_default());
            self.at = self.at.saturating_add(count);
        }
        Ok(Some(taken))
    }
}

/// Reads sorted records.
#[derive(Debug)]
pub(crate) struct SortedReader<'s> {
    sorted: &'s Sorted,
    next: usize,
    runs: Vec<Run>,
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    current: Vec<u8>,
}

impl SortedReader<'_> {
    fn refill(&mut self, number: usize) -> io::Result<()> {
        let (Some(file), Some(run)) = (&self.sorted.0.file, self.runs.get_mut(number)) else {
            return Ok(());
        };
        let Some(length) = run.take(file, 4)? else {
            return Ok(());
        };
        let length = length.first_chunk().copied().map_or(0, u32::from_le_bytes);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if let Some(record) = run.take(file, length)? {
            self.heap.push(Reverse((record, number)));
        }
        Ok(())
    }

    /// The next record.
    ///
    /// # Errors
    /// The temporary file.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, ConvertError> {
        if self.runs.is_empty() {
            let range = self.sorted.0.records.get(self.next).cloned();
            self.next = self.next.saturating_add(1);
            return Ok(range.and_then(|range| self.sorted.0.bytes.get(range)));
        }
        let Some(Reverse((record, number))) = self.heap.pop() else {
            return Ok(None);
        };
        self.refill(number).map_err(ConvertError::Temporary)?;
        self.current = record;
        Ok(Some(&self.current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_sorts_the_same() {
        let mut state = 7_u64;
        let records: Vec<Vec<u8>> = (0..3000)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let length = (state >> 60) as usize + 1;
                state.to_be_bytes().repeat(3)[..length].to_vec()
            })
            .collect();
        let mut expected = records.clone();
        expected.sort();
        for memory in [1 << 20, 1000, 64] {
            let mut sorter = Sorter::new(memory);
            for record in &records {
                let (head, rest) = record.split_at(1);
                sorter.push(&[head, rest]).unwrap();
            }
            let sorted = sorter.finish().unwrap();
            for _ in 0..2 {
                let mut reader = sorted.read().unwrap();
                for record in &expected {
                    assert_eq!(reader.next().unwrap(), Some(&record[..]));
                }
                assert_eq!(reader.next().unwrap(), None);
            }
        }
    }
}
