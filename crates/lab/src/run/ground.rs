//! Where a workload works, and what happens between its phases.

use super::meter::Meter;
use super::mounted::{Folders, Mounted};
use super::undo::Undo;
use crate::plan::Cache;
use crate::workload::{Directory, Files, Ground};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the workload's directory in the file system.
pub(crate) const WORK: &str = "work";

pub(crate) struct CellGround<'a, 'b> {
    pub(crate) mounted: &'b mut Mounted<'a>,
    pub(crate) undo: &'b mut Undo,
    pub(crate) meter: &'b mut Meter,
    pub(crate) cache: Cache,
    pub(crate) seed: u64,
    pub(crate) cancel: &'b AtomicBool,
    pub(crate) directory: PathBuf,
    pub(crate) scratch: PathBuf,
    /// Phases that began with a cold cache, with the sectors that each read.
    /// The last phase is still running.
    pub(crate) cold: Vec<(String, u64)>,
}

impl<'a, 'b> CellGround<'a, 'b> {
    pub(crate) fn new(
        (mounted, undo, meter): (&'b mut Mounted<'a>, &'b mut Undo, &'b mut Meter),
        folders: &Folders,
        (cache, seed): (Cache, u64),
        cancel: &'b AtomicBool,
    ) -> Self {
        Self {
            directory: mounted.directory().join(WORK),
            scratch: folders.scratch.clone(),
            mounted,
            undo,
            meter,
            cache,
            seed,
            cancel,
            cold: Vec::new(),
        }
    }

    /// Ends a phase: what it wrote is on the devices, and the cost of that is
    /// included.
    pub(crate) fn end_phase(&mut self) -> Result<(), String> {
        let synced = self.mounted.sync();
        let spent = self.meter.off();
        if let Some((_, read)) = self.cold.last_mut() {
            // This is 0 if the phase that ends is not measured.
            *read += spent.read;
        }
        synced
    }
}

/// Brings everything of the file system at a directory to its devices.
pub(crate) fn sync(directory: &Path) -> Result<(), String> {
    let at = |error: &dyn std::fmt::Display| format!("sync of {}: {error}", directory.display());
    let root = File::open(directory).map_err(|error| at(&error))?;
    rustix::fs::syncfs(&root).map_err(|error| at(&error))
}

impl Ground for CellGround<'_, '_> {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn next_phase(&mut self, name: &str) -> Result<(), String> {
        self.next_phase_aside(name)?;
        if self.cache == Cache::Cold {
            self.cold.push((name.to_owned(), 0));
        }
        self.meter.on(self.mounted.servers());
        Ok(())
    }

    fn next_phase_aside(&mut self, _name: &str) -> Result<(), String> {
        self.end_phase()?;
        if self.cache == Cache::Cold {
            self.mounted.renew(self.undo)?;
        }
        Ok(())
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn files(&self) -> Arc<dyn Files> {
        match self.mounted.library() {
            Some(library) => Arc::new(library.below(WORK)),
            None => Arc::new(Directory::new(self.directory())),
        }
    }
}
