//! Error counters of the devices, kept where the kernel keeps them: items of
//! the device tree, written at commits.

use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_format::{DeviceId, ItemType, Key, TreeId};
use butterfs_tree::find;
use butterfs_volume::LogicalSpace;

/// Key of a device's item: object 0, offset its number.
pub(crate) const fn key_of(device: DeviceId) -> Key {
    Key::new(0, ItemType::PERSISTENT_ITEM, device.get())
}

/// Counters of a device: failed writes, reads and flushes, content that did
/// not pass its check, nodes of a wrong generation.
pub(crate) fn stats_of(space: &LogicalSpace, device: DeviceId) -> [u64; 5] {
    let stats = space.stats(device);
    stats.map_or([0; 5], |stats| stats.values().map(|(_, value)| value))
}

impl Engine {
    /// The counters of all devices together.
    #[must_use]
    pub fn device_stats(&self) -> [u64; 5] {
        let mut sum = [0_u64; 5];
        for device in self.publisher.devices.keys() {
            for (sum, value) in sum.iter_mut().zip(stats_of(&self.space, *device)) {
                *sum = sum.saturating_add(value);
            }
        }
        sum
    }

    /// Sets all counters to zero; the next commit writes them.
    pub fn reset_device_stats(&mut self) {
        for device in self.publisher.devices.keys() {
            self.reset_stats_of(*device);
        }
    }

    /// Sets the counters of one device to zero; the next commit writes them.
    pub fn reset_stats_of(&self, device: DeviceId) {
        if let Some(stats) = self.space.stats(device) {
            stats.set([0; 5]);
        }
    }

    pub(crate) fn load_device_stats(&mut self) -> Result<(), StoreError> {
        let devices: Vec<DeviceId> = self.publisher.devices.keys().copied().collect();
        for device in devices {
            let key = key_of(device);
            let Some((leaf, slot)) = find(self, TreeId::DEVICE, &key)? else {
                continue;
            };
            let mut written = [0; 5];
            // A shorter item is of an older kernel, with fewer counters.
            for (value, bytes) in written.iter_mut().zip(leaf.data(slot).as_chunks().0) {
                *value = u64::from_le_bytes(*bytes);
            }
            self.publisher.stats.insert(device, written);
            if let Some(stats) = self.space.stats(device) {
                // Errors that happen while the volume is opened count too.
                let met = stats.values().map(|(_, value)| value);
                let mut sum = written;
                for (sum, met) in sum.iter_mut().zip(met) {
                    *sum = sum.saturating_add(met);
                }
                stats.set(sum);
            }
        }
        Ok(())
    }

    pub(crate) fn write_device_stats(&mut self) -> Result<(), StoreError> {
        let devices: Vec<DeviceId> = self.publisher.devices.keys().copied().collect();
        for device in devices {
            let now = stats_of(&self.space, device);
            if now
                != self
                    .publisher
                    .stats
                    .get(&device)
                    .copied()
                    .unwrap_or_default()
            {
                let bytes: Vec<u8> = now.iter().flat_map(|value| value.to_le_bytes()).collect();
                butterfs_tree::replace(self, TreeId::DEVICE, &key_of(device), &bytes)?;
                self.publisher.stats.insert(device, now);
            }
        }
        Ok(())
    }
}
