//! What an open volume is, its state, and operations on the whole of it.

use crate::Volume;
use butterfs_device::Access;
use butterfs_format::Generation;
use butterfs_format::superblock::Superblock;
use butterfs_fs::FsError;
use butterfs_store::{DeviceFacts, StoreError, Trim};

impl Volume {
    /// How it was opened: for reading only, or for writing.
    #[must_use]
    pub fn access(&self) -> Access {
        self.store().access()
    }

    /// Whether it can be changed now: it was opened for writing, is still open,
    /// and nothing failed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.store().check_writable().is_ok()
    }

    /// Its superblock, as of now.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.store().read().superblock().clone()
    }

    /// Its devices and their state.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceFacts> {
        self.store().read().devices()
    }

    /// Error counters of all its devices together, in the order of `btrfs
    /// device stats`: writes, reads, flushes, corruption, generations.
    #[must_use]
    pub fn device_stats(&self) -> [u64; 5] {
        self.store().read().device_stats()
    }

    /// Why nothing is written any more, if something failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.store().poison()
    }

    /// Commits what is in the trees. Data that wait in memory keep waiting;
    /// [`Volume::sync`] writes them too.
    ///
    /// # Errors
    /// Errors of writing. The volume is read-only after them.
    pub fn commit(&self) -> Result<Generation, FsError> {
        Ok(self.store().commit()?)
    }

    /// Tells the device which of its space is unused. Returns how many bytes
    /// that is.
    ///
    /// # Errors
    /// The volume cannot be written; errors of the device.
    pub fn trim(&self, wanted: &Trim) -> Result<u64, FsError> {
        Ok(self.store().trim(wanted)?)
    }

    /// From now on nothing is written, as after a power failure.
    pub fn shut_down(&self) {
        self.store().fail(&StoreError::ShutDown);
    }

    /// From now on nothing is written: something panicked while it worked on
    /// the volume.
    pub fn fail_after_panic(&self) {
        self.store().fail_after_panic();
    }

    /// Runs `work`. A panic in it fails the volume and is passed on.
    pub fn watch_panics<R>(&self, work: impl FnOnce() -> R) -> R {
        let _watch = self.store().fail_on_panic();
        work()
    }
}
