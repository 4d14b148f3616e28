//! What an open volume is and how it is, and its use as a whole.

use crate::Volume;
use butterfs_device::Access;
use butterfs_format::Generation;
use butterfs_format::superblock::Superblock;
use butterfs_fs::FsError;
use butterfs_store::{DeviceFacts, StoreError, Trim};

impl Volume {
    /// Whether it can be changed, by how it was opened.
    #[must_use]
    pub fn access(&self) -> Access {
        self.store().access()
    }

    /// Whether it can be changed now: it was opened so, is open, and nothing
    /// failed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.store().check_writable().is_ok()
    }

    /// Its superblock, as of now.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.store().read().superblock().clone()
    }

    /// Its devices and how they are.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceFacts> {
        self.store().read().devices()
    }

    /// Error counters of all its devices together, by the order of `btrfs
    /// device stats`: writes, reads, flushes, corruption, generations.
    #[must_use]
    pub fn device_stats(&self) -> [u64; 5] {
        self.store().read().device_stats()
    }

    /// Why nothing is written any more, where something failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.store().poison()
    }

    /// Commits what is in the trees. Data that wait in memory go on waiting;
    /// [`Volume::sync`] brings them along.
    ///
    /// # Errors
    /// Those of writing; the volume is read-only after them.
    pub fn commit(&self) -> Result<Generation, FsError> {
        Ok(self.store().commit()?)
    }

    /// Tells the device what of it is not in use; gives how many bytes.
    ///
    /// # Errors
    /// A volume that cannot be written; the device.
    pub fn trim(&self, wanted: &Trim) -> Result<u64, FsError> {
        Ok(self.store().trim(wanted)?)
    }

    /// Nothing is written from now on, as if the power went.
    pub fn shut_down(&self) {
        self.store().fail(&StoreError::ShutDown);
    }

    /// Nothing is written from now on: something panicked while it worked on
    /// the volume.
    pub fn fail_after_panic(&self) {
        self.store().fail_after_panic();
    }

    /// Runs `work`; a panic in it fails the volume and goes on.
    pub fn watch_panics<R>(&self, work: impl FnOnce() -> R) -> R {
        let _watch = self.store().fail_on_panic();
        work()
    }
}
