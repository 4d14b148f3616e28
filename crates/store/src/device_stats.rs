//! Error counters of the device, kept where the kernel keeps them: an item of
//! the device tree, written at commits.

use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_tree::find;

impl Engine {
    /// Key of the item: object 0, offset the device's id.
    fn device_stats_key(&self) -> Key {
        let device = self.superblock.device.id.get();
        Key::new(0, ItemType::PERSISTENT_ITEM, device)
    }

    /// Counters of the device: failed writes, reads and flushes, content that
    /// did not pass its check, nodes of a wrong generation.
    #[must_use]
    pub fn device_stats(&self) -> [u64; 5] {
        let stats = self.space.stats(self.superblock.device.id);
        stats.map_or([0; 5], |stats| stats.values().map(|(_, value)| value))
    }

    /// Sets all counters to zero; the next commit writes them.
    pub fn reset_device_stats(&mut self) {
        if let Some(stats) = self.space.stats(self.superblock.device.id) {
            stats.set([0; 5]);
        }
    }

    pub(crate) fn load_device_stats(&mut self) -> Result<(), StoreError> {
        let key = self.device_stats_key();
        let Some((leaf, slot)) = find(self, TreeId::DEVICE, &key)? else {
            return Ok(());
        };
        // A shorter item is of an older kernel, with fewer counters.
        for (value, bytes) in self.stats.iter_mut().zip(leaf.data(slot).as_chunks().0) {
            *value = u64::from_le_bytes(*bytes);
        }
        if let Some(stats) = self.space.stats(self.superblock.device.id) {
            // Errors of the opening itself count too.
            let met = stats.values().map(|(_, value)| value);
            let mut sum = self.stats;
            for (sum, met) in sum.iter_mut().zip(met) {
                *sum = sum.saturating_add(met);
            }
            stats.set(sum);
        }
        Ok(())
    }

    pub(crate) fn write_device_stats(&mut self) -> Result<(), StoreError> {
        let now = self.device_stats();
        if now != self.stats {
            let bytes: Vec<u8> = now.iter().flat_map(|value| value.to_le_bytes()).collect();
            let key = self.device_stats_key();
            butterfs_tree::replace(self, TreeId::DEVICE, &key, &bytes)?;
            self.stats = now;
        }
        Ok(())
    }
}
