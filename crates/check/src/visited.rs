//! Which nodes were reached.

use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_volume::ChunkMap;
use std::sync::atomic::{AtomicU64, Ordering};

struct Part {
    start: u64,
    end: u64,
    words: Box<[AtomicU64]>,
}

/// One bit for each sector of the chunks that hold nodes.
pub(crate) struct Visited {
    sector: u64,
    parts: Vec<Part>,
}

impl Visited {
    pub(crate) fn new(map: &ChunkMap, sector: u64) -> Self {
        let holds_nodes = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let parts = map
            .iter()
            .filter(|(_, chunk)| chunk.flags.intersects(holds_nodes))
            .map(|(start, chunk)| {
                let sectors = chunk.length.checked_div(sector).unwrap_or(0);
                let words = usize::try_from(sectors.div_ceil(64)).unwrap_or(0);
                Part {
                    start: start.get(),
                    end: start.get().saturating_add(chunk.length),
                    words: (0..words).map(|_| AtomicU64::new(0)).collect(),
                }
            })
            .collect();
        Self { sector, parts }
    }

    /// Bytes that the map takes.
    pub(crate) fn bytes(&self) -> u64 {
        let words: usize = self.parts.iter().map(|part| part.words.len()).sum();
        u64::try_from(words).unwrap_or(u64::MAX).saturating_mul(8)
    }

    /// Marks the node at `logical`: true for the first who comes, `None`
    /// where no node can be.
    pub(crate) fn claim(&self, logical: Logical) -> Option<bool> {
        let at = logical.get();
        let index = self.parts.partition_point(|part| part.end <= at);
        let part = self.parts.get(index)?;
        let within = at.checked_sub(part.start)?.checked_div(self.sector)?;
        let word = part.words.get(usize::try_from(within >> 6).ok()?)?;
        let bit = 1_u64.checked_shl(u32::try_from(within & 63).ok()?)?;
        Some(word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }
}
