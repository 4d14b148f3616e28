//! What a flush writes: the pieces that become extents.

use super::read::with_scratch;
use crate::error::FsError;
use butterfs_format::compression::Algorithm;
use butterfs_store::StoreError;
use std::borrow::Cow;
use std::ops::Range;

/// Greatest plain extent.
pub(super) const EXTENT_MAX: usize = 32 << 20;

/// Something to write.
pub(super) struct Output<'a> {
    /// File offset.
    pub start: u64,
    /// Bytes of the file.
    pub length: u64,
    pub compression: Option<Algorithm>,
    /// Whole sectors, in one or more pieces.
    pub parts: Vec<Cow<'a, [u8]>>,
    pub target: Target,
    /// Checksums of the bytes on disk, once they were written.
    pub sums: Vec<u8>,
}

/// Where an output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// New space.
    New(Option<u64>),
    /// Over data that are not copied on write.
    Overwrite(u64),
    /// Into preallocated space.
    Prealloc(u64),
}

/// Contiguous dirty data, in one or more runs.
pub(super) struct Segment<'a> {
    pub start: u64,
    pub length: u64,
    pub runs: Vec<&'a [u8]>,
}

impl<'a> Segment<'a> {
    /// The bytes of `range`, run by run.
    pub(super) fn parts(&self, range: &Range<u64>) -> Vec<Cow<'a, [u8]>> {
        let mut at = self.start;
        let mut parts = Vec::new();
        for run in &self.runs {
            let end = at + run.len() as u64;
            let from = range.start.max(at);
            let to = range.end.min(end);
            if from < to {
                let part = &run[(from - at) as usize..(to - at) as usize];
                parts.push(Cow::Borrowed(part));
            }
            at = end;
        }
        parts
    }

    /// The bytes of `range`; copied only when they span runs.
    pub(super) fn slice(&self, range: &Range<u64>) -> Cow<'a, [u8]> {
        let mut parts = self.parts(range);
        if parts.len() == 1 {
            return parts.remove(0);
        }
        Cow::Owned(parts.concat())
    }
}

/// Joins runs that touch.
pub(super) fn segments<'a>(runs: impl Iterator<Item = (u64, &'a [u8])>) -> Vec<Segment<'a>> {
    let mut segments: Vec<Segment<'a>> = Vec::new();
    for (start, run) in runs {
        match segments.last_mut() {
            Some(last) if last.start + last.length == start => {
                last.length += run.len() as u64;
                last.runs.push(run);
            }
            _ => segments.push(Segment {
                start,
                length: run.len() as u64,
                runs: vec![run],
            }),
        }
    }
    segments
}

/// Plain outputs for `range`.
pub(super) fn plain<'a>(segment: &Segment<'a>, range: Range<u64>) -> Vec<Output<'a>> {
    (range.start..range.end)
        .step_by(EXTENT_MAX)
        .map(|start| start..(start + EXTENT_MAX as u64).min(range.end))
        .map(|part| Output {
            start: part.start,
            length: part.end - part.start,
            compression: None,
            parts: segment.parts(&part),
            target: Target::New(None),
            sums: Vec::new(),
        })
        .collect()
}

impl<'a> Output<'a> {
    /// A compressed unit as plain data again.
    pub(super) fn unpacked(&self, sector: u64) -> Result<Output<'a>, FsError> {
        let mut bytes = vec![0; self.length as usize];
        let packed = self.parts.concat();
        if let Some(algorithm) = self.compression {
            with_scratch(|scratch| {
                scratch.decompress(algorithm, &packed, &mut bytes, sector as usize)
            })
            .map_err(|_| StoreError::Internal("a unit that was compressed does not decompress"))?;
        }
        Ok(Output {
            start: self.start,
            length: self.length,
            compression: None,
            sums: Vec::new(),
            parts: vec![Cow::Owned(bytes)],
            target: Target::New(None),
        })
    }
}

impl Output<'_> {
    /// Bytes on disk.
    pub(super) fn disk_length(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Keeps the first `bytes` and gives the rest.
    pub(super) fn split_off(&mut self, bytes: u64) -> Self {
        let mut left = bytes as usize;
        let mut rest = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            let (kept, later) = match part {
                part if part.len() <= left => (Some(part), None),
                part if left == 0 => (None, Some(part)),
                Cow::Borrowed(part) => {
                    let (kept, later) = part.split_at(left);
                    (Some(Cow::Borrowed(kept)), Some(Cow::Borrowed(later)))
                }
                Cow::Owned(mut kept) => {
                    let later = kept.split_off(left);
                    (Some(Cow::Owned(kept)), Some(Cow::Owned(later)))
                }
            };
            left -= kept.as_ref().map_or(0, |kept| kept.len());
            self.parts.extend(kept);
            rest.extend(later);
        }
        let length = self.length - bytes;
        self.length = bytes;
        Output {
            start: self.start + bytes,
            length,
            compression: None,
            parts: rest,
            target: Target::New(None),
            sums: Vec::new(),
        }
    }
}
