//! Data without checksums on a device that lacks the last commit.
//!
//! Such a device is used, because a crash between two superblocks leaves it so,
//! and it then has everything. But it may also have been away for this one
//! commit, or be a copy from before it. Old nodes and old data with checksums
//! are found and healed when they are read. Old data without checksums are not:
//! after the next commit nothing would tell them from good ones. So they are
//! compared with the copies on the other devices before that commit.

use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::{DeviceId, Logical};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

/// Bytes of a chunk whose extents and checksums are looked up at once.
const PART: u64 = 16 << 20;
/// Bytes that are compared at once.
const STEP: u64 = 1 << 20;

impl Engine {
    /// Sectors of data extents in `range` that have no checksums.
    fn data_without_sums(&self, range: &Range<u64>) -> Result<Vec<Range<u64>>, StoreError> {
        let sector = self.sector_size();
        let mut data: Vec<Range<u64>> = Vec::new();
        self.visit_extents_over(range, &mut |head, length| {
            let start = head.key.objectid;
            if head.level().is_none() {
                let end = start.saturating_add(length).min(range.end);
                data.push(start.max(range.start)..end);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut bare: Vec<Range<u64>> = Vec::new();
        for extent in data {
            let sums = self.data_checksums(extent.clone())?;
            let sectors = extent.clone().step_by(sector as usize);
            for (index, at) in sectors.enumerate() {
                if sums.get(index).is_some() {
                    continue;
                }
                match bare.last_mut() {
                    Some(last) if last.end == at => last.end = at + sector,
                    _ => bare.push(at..at + sector),
                }
            }
        }
        Ok(bare)
    }
}

impl Store {
    /// Makes data without checksums on the devices `behind` the same as on the
    /// others.
    ///
    /// # Errors
    /// Damage, reading, writing.
    pub(super) fn renew(&self, behind: &BTreeSet<DeviceId>) -> Result<(), StoreError> {
        let is_on_them = |chunk: &Chunk| {
            let mut stripes = chunk.stripes.iter();
            chunk.flags.contains(BlockGroupFlags::DATA)
                && stripes.any(|stripe| behind.contains(&stripe.device))
        };
        let chunks: Vec<Range<u64>> = {
            let engine = self.read();
            let chunks = engine.chunks().filter(|(_, chunk)| is_on_them(chunk));
            let range = |(start, chunk): (Logical, &Chunk)| {
                start.get()..start.get().saturating_add(chunk.length)
            };
            chunks.map(range).collect()
        };
        let mut renewed = 0;
        for chunk in chunks {
            for start in chunk.clone().step_by(PART as usize) {
                let part = start..chunk.end.min(start + PART);
                for bare in self.look(|engine| engine.data_without_sums(&part))? {
                    for at in bare.clone().step_by(STEP as usize) {
                        let length = STEP.min(bare.end - at);
                        renewed += self.space.renew(Logical(at), length, behind)?;
                    }
                }
            }
        }
        if renewed > 0 {
            let devices: Vec<String> = behind.iter().map(ToString::to_string).collect();
            tracing::warn!(
                devices = devices.join(", "),
                bytes = renewed,
                "a device lacked the last commit; its data without checksums were copied anew from \
                 the others"
            );
        }
        Ok(())
    }
}
