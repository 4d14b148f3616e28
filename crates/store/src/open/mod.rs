//! Opening a volume.
//!
//! Owns the order of the steps, what must be true of a volume before it is used
//! (`verify`, `members`, `features`), and the engines of views. Does not own
//! what it loads: each room takes over its part.
//!
//! Invariants: opening for reading writes nothing. Opening reads nothing that
//! grows with the number of files. What contradicts itself is an error, or is
//! passed over if that was asked for and no file needs it.

use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::quota::groups::Quotas;
use crate::space::block_group::{BlockGroup, Standing};
use crate::space::free_space_tree;
use crate::space::ranges::RangeSet;
use butterfs_device::{Access, BlockDevice};
use std::sync::Arc;

mod choose;
mod features;
mod load;
pub mod member_fault;
mod members;
pub mod older_copy;
mod one_history;
pub mod options;
mod renew;
mod seed;
pub mod space_fault;
mod stripe_tree;
pub mod superblocks;
mod tree_bytes;
mod verify;

use choose::load_members;
use load::{blank_engine, store_of};
use options::{FreeSpace, OpenOptions};

/// Bytes of nodes that a view keeps.
const VIEW_CACHE: usize = 32 << 20;

impl Store {
    /// Opens the volume on `device`.
    ///
    /// # Errors
    /// As [`Store::open_all`].
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self, StoreError> {
        Self::open_all(vec![device], options)
    }

    /// Opens the volume on `devices`, in any order.
    ///
    /// # Errors
    /// [`StoreError::NoSuperblock`], [`StoreError::Unsupported`],
    /// [`StoreError::Members`] where they are not the devices of one volume;
    /// damage, reading.
    pub fn open_all(
        devices: Vec<Arc<dyn BlockDevice>>,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        let (mut members, mut engine) = load_members(&devices, options)?;
        if options.access == Access::ReadWrite {
            engine.verify_used()?;
        }
        // A tree that is not valid (the kernel was making it) is made anew too.
        if options.free_space == FreeSpace::Remade || engine.space_map.remakes_free_space() {
            engine.begin_remake(options.access)?;
        }
        if options.access == Access::ReadWrite && !engine.space_map.remakes_free_space() {
            // How much of the space can be given out is known only then.
            for start in engine.space_map.groups_with_rows() {
                engine.load_group_at(start)?;
            }
        }
        if options.access == Access::ReadWrite
            && let Err(error) = engine.find_orphan_free_space()
        {
            tracing::warn!(%error, "leftovers in the free-space tree are not looked for");
        }
        if options.access == Access::ReadWrite && !engine.space_map.remakes_free_space() {
            engine.verify_device_bytes()?;
        }
        if options.access == Access::ReadWrite {
            engine.cancel_interrupted_replacement()?;
        }
        let mut store = store_of(engine, options);
        store.replacement_targets = members.take_targets();
        let behind = members.one_behind();
        if options.access == Access::ReadWrite && !behind.is_empty() {
            store.renew(&behind)?;
        }
        if options.access == Access::ReadWrite {
            // A log that turns out to lie leaves the devices as they are, and so
            // a copy that does not name it.
            let chosen = members.chosen_copies();
            match store.read().waiting_log() {
                None => store.make_copies_equal(&chosen)?,
                Some(_) => *store.unequal_copies.lock() = Some(chosen),
            }
        }
        Ok(store)
    }

    /// Commits what `clear_cache` changed in memory when the volume was opened.
    /// Nothing is written before this call, so a volume that cannot be used as
    /// asked stays as it is.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn commit_remade(&self) -> Result<(), StoreError> {
        if self.access == Access::ReadWrite && !self.read().is_clean() {
            self.commit()?;
        }
        Ok(())
    }
}

/// The last commit of `live`, for reading alone, with a cache of its own. The
/// caller must keep its nodes from being overwritten meanwhile.
pub(crate) fn view(live: &Engine) -> Result<Engine, StoreError> {
    let default = OpenOptions::default();
    let options = OpenOptions {
        cache_bytes: VIEW_CACHE.min(default.cache_bytes),
        rescue: live.rescue,
        ..default
    };
    let mut engine = blank_engine(
        live.publisher.durable().clone(),
        Arc::clone(&live.space),
        &options,
    );
    engine.nodes.read_former();
    engine
        .publisher
        .set_devices(Arc::clone(live.publisher.durable_devices()));
    engine.load_roots()?;
    engine.space_map.set_chunks(live.space_map.chunks().clone());
    for group in live.space_map.groups().values() {
        engine.space_map.insert_group(BlockGroup {
            start: group.start,
            length: group.length,
            flags: group.flags,
            used: group.used,
            promised: 0,
            pinned: 0,
            excluded: group.excluded.clone(),
            free: None,
            cursor: group.start.get(),
            dirty: false,
            standing: Standing::Committed,
            read_only: true,
            row: None,
            left_over: RangeSet::default(),
        });
    }
    engine.quotas.set(live.quotas().map(Quotas::copied));
    Ok(engine)
}

impl Engine {
    /// Notes for which gaps between block groups the free-space tree has items.
    fn find_orphan_free_space(&mut self) -> Result<(), StoreError> {
        if self.space_map.has_free_space_tree() {
            let groups = self.space_map.groups().values();
            let spans = groups.map(|g| g.start.get()..g.start.get() + g.length);
            let gaps = free_space_tree::find_orphans(self, spans)?;
            self.space_map.note_orphan_free_space(gaps);
        }
        Ok(())
    }
}
