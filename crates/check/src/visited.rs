//! The nodes that a walk has reached.

use crate::budget::{Budget, Taken};
use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_volume::ChunkMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Words of a page: 4096 sectors.
const WORDS: usize = 64;
/// Low bits of a sector's number that say where it is within its page, and
/// within its word.
const PAGE_BITS: u32 = 12;
const WORD_BITS: u32 = 6;
/// Number of parts; each has its own lock.
const SHARDS: usize = 64;
/// Bytes that a page takes, including its entry in the map.
const PAGE_BYTES: u64 = 576;

type Pages = BTreeMap<u64, Box<[u64; WORDS]>>;

/// One bit for the first sector of each node. Only pages in which nodes were
/// reached take memory, whatever size the chunks claim to have.
pub(crate) struct Visited {
    sector: u64,
    map: Arc<ChunkMap>,
    shards: Box<[Mutex<Pages>]>,
    taken: Taken,
}

impl Visited {
    pub(crate) fn new(map: &Arc<ChunkMap>, sector: u64, budget: &Arc<Budget>) -> Self {
        Self {
            sector,
            map: Arc::clone(map),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            taken: Taken::new(budget),
        }
    }

    /// Marks the node at `logical`. Returns true for the first caller, false
    /// for later ones, and `None` if no node can lie there.
    pub(crate) fn claim(&self, logical: Logical) -> Option<bool> {
        let (_, chunk) = self.map.find(logical)?;
        let holds_nodes = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        if !chunk.flags.intersects(holds_nodes) {
            return None;
        }
        let sector = logical.get().checked_div(self.sector)?;
        let page = sector >> PAGE_BITS;
        let shard = usize::try_from(page).ok()?.checked_rem(SHARDS)?;
        let within = usize::try_from(sector & 0xfff).ok()? >> WORD_BITS;
        let bit = 1_u64.checked_shl(u32::try_from(sector & 63).ok()?)?;
        let mut pages = self.shards.get(shard)?.lock();
        let page = pages.entry(page).or_insert_with(|| {
            self.taken.add(PAGE_BYTES);
            Box::new([0; WORDS])
        });
        let word = page.get_mut(within)?;
        let is_first = *word & bit == 0;
        *word |= bit;
        Some(is_first)
    }
}
