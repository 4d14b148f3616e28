//! The standing invariant: between two superblocks, nothing is written to what
//! the last committed generation uses.
//!
//! Data may be written in place if they are not copied on write, and into
//! preallocated space. In these cases only metadata are watched.

use butterfs::{Access, BlockDevice, LogPolicy, MemoryDevice, OpenOptions};
use butterfs_device::record::{Action, Event};
use butterfs_format::superblock::{COPIES, SIZE};
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_store::Store;
use butterfs_tree::Cursor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Which extents must not be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    All,
    Metadata,
}

/// Physical ranges, start to end, that a volume's last commit uses.
fn live(device: &MemoryDevice, watch: Watch) -> BTreeMap<u64, u64> {
    let mut options = OpenOptions::read_only().store;
    options.access = Access::ReadOnly;
    options.log = LogPolicy::Ignore;
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let store = Store::open(shared, &options).expect("a committed volume opens");
    let engine = store.read();
    let mut live = BTreeMap::new();
    let mut cursor = Cursor::seek_in(&*engine, TreeId::EXTENT, &Key::MIN).expect("the extent tree");
    while let Some((key, data)) = cursor.item() {
        let length = match key.item_type {
            ItemType::METADATA_ITEM => engine.node_size() as u64,
            ItemType::EXTENT_ITEM => key.offset,
            _ => 0,
        };
        // Flags follow count and generation; bit 0 is data.
        let is_data = data.get(16).is_some_and(|flags| flags & 1 == 1);
        if length > 0 && (watch == Watch::All || !is_data) {
            let chunk = engine
                .chunks()
                .find(|(start, chunk)| {
                    (start.get()..start.get() + chunk.length).contains(&key.objectid)
                })
                .expect("an extent lies in a chunk");
            for stripe in &chunk.1.stripes {
                let start = stripe.offset.get() + (key.objectid - chunk.0.get());
                live.insert(start, start + length);
            }
        }
        cursor.next().expect("the extent tree");
    }
    live
}

fn touched(live: &BTreeMap<u64, u64>, write: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = live.range(..write.end).next_back()?;
    (*end > write.start).then_some(*start..*end)
}

/// Checks all writes of a recording over `base` against the invariant.
pub fn hold(base: &MemoryDevice, events: &[Event], watch: Watch) -> Result<(), String> {
    let device = base.snapshot();
    let mut kept = live(&device, watch);
    for (at, event) in events.iter().enumerate() {
        let Action::Write { offset, data } = &event.action else {
            continue;
        };
        let range = offset.get()..offset.get() + data.len() as u64;
        device.write_at(*offset, data).expect("memory");
        if COPIES.contains(offset) && data.len() == SIZE {
            if *offset == COPIES[0] {
                kept = live(&device, watch);
            }
            continue;
        }
        if let Some(victim) = touched(&kept, &range) {
            return Err(format!(
                "event {at} writes {range:?}, but the last commit has {victim:?}"
            ));
        }
    }
    Ok(())
}
