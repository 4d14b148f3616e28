//! Writing to devices: neighbouring parts go out together, and all writes to a
//! device at the same time.

use crate::error::VolumeError;
use crate::space::LogicalSpace;
use crate::stats::DeviceStats;
use crate::workers;
use butterfs_device::{BlockDevice as _, Caching, DeviceRange, WriteRequest};
use butterfs_format::{DeviceId, DeviceOffset, Physical};
use parking_lot::Mutex;
use std::io::IoSlice;

/// Bytes of one vectored write at most, unless a single block is larger.
const WRITE_MAX: usize = 4 << 20;
/// Parts of one vectored write at most.
const PARTS_MAX: usize = 512;

/// Whether a write waits until the devices have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    UntilDone,
    NotAtAll,
}

/// Parts by neighbours. They are in the order of their places.
pub(crate) fn runs_of(pieces: Vec<(Physical, &[u8])>) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (physical, part) in pieces {
        match runs.last_mut() {
            Some(run) if run.accepts(physical, part.len()) => run.push(part),
            _ => runs.push(Run::new(physical, part)),
        }
    }
    runs
}

impl LogicalSpace {
    /// Writes runs, which are in the order of their devices.
    pub(crate) fn write_runs(&self, runs: Vec<Run<'_>>, wait: Wait) -> Result<(), VolumeError> {
        let mut jobs: Vec<(DeviceId, Vec<Run<'_>>)> = Vec::new();
        for run in runs {
            match jobs.last_mut() {
                Some((device, runs)) if *device == run.start.device => runs.push(run),
                _ => jobs.push((run.start.device, vec![run])),
            }
        }
        if !self.is_worth_threads(&jobs, wait) {
            let mut jobs = jobs.into_iter();
            return jobs.try_for_each(|(device, runs)| self.write_device(device, &runs, wait));
        }
        let jobs = jobs
            .into_iter()
            .map(|(device, runs)| (device, (device, runs)));
        let failed = Mutex::new(Ok(()));
        self.workers
            .run(self.count(), jobs.collect(), |(device, runs)| {
                if let Err(error) = self.write_device(device, &runs, wait) {
                    let mut failed = failed.lock();
                    if failed.is_ok() {
                        *failed = Err(error);
                    }
                }
            });
        failed.into_inner()
    }

    /// Whether devices are written at the same time. Waking a thread takes as
    /// long as copying some data into the page cache, and less long than a
    /// device takes.
    fn is_worth_threads(&self, jobs: &[(DeviceId, Vec<Run<'_>>)], wait: Wait) -> bool {
        let is_direct = |id: &DeviceId| {
            let member = self.member(*id);
            let device = member.as_ref().and_then(|member| member.used());
            device.is_some_and(|device| device.caching() == Some(Caching::Direct))
        };
        let runs = jobs.iter().flat_map(|(_, runs)| runs);
        let bytes: usize = runs.map(|run| run.bytes).sum();
        jobs.len() > 1
            && (bytes >= workers::WORTH_IT
                || (wait == Wait::UntilDone && jobs.iter().any(|(id, _)| is_direct(id))))
    }

    /// Writes the runs of one device, all of them at the same time.
    fn write_device(&self, id: DeviceId, runs: &[Run<'_>], wait: Wait) -> Result<(), VolumeError> {
        let parts: Vec<Vec<IoSlice<'_>>> = runs.iter().map(Run::slices).collect();
        if let Some(target) = self.replace_target(id) {
            for (run, parts) in runs.iter().zip(&parts) {
                target.write(run.start.offset, parts);
            }
        }
        let (device, stats) = match self.used(id) {
            Ok(used) => used,
            // It fell out since the write was planned.
            Err(_) if self.leaves_out(id) => return Ok(()),
            Err(error) => return Err(error),
        };
        let requests: Vec<WriteRequest<'_>> = runs
            .iter()
            .zip(&parts)
            .map(|(run, parts)| WriteRequest {
                offset: run.start.offset,
                parts,
            })
            .collect();
        let written = match wait {
            Wait::UntilDone => device.write_all_at(&requests),
            Wait::NotAtAll => device.write_behind_at(&requests),
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) => {
                DeviceStats::count(&stats.write_errs);
                self.lose(id, error)
            }
        }
    }
}

/// Neighbouring parts of one device.
pub(crate) struct Run<'a> {
    start: Physical,
    bytes: usize,
    parts: Vec<&'a [u8]>,
}

impl Run<'_> {
    /// The bytes of the device that it writes.
    pub(crate) fn place(&self) -> (DeviceId, DeviceRange) {
        let range = DeviceRange::of_buffer(self.start.offset, self.bytes);
        (self.start.device, range)
    }
}

impl<'a> Run<'a> {
    fn new(start: Physical, part: &'a [u8]) -> Self {
        Self {
            start,
            bytes: part.len(),
            parts: vec![part],
        }
    }

    fn push(&mut self, part: &'a [u8]) {
        self.bytes = self.bytes.saturating_add(part.len());
        self.parts.push(part);
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        self.parts.iter().map(|part| IoSlice::new(part)).collect()
    }

    fn accepts(&self, at: Physical, length: usize) -> bool {
        let end: DeviceOffset = DeviceRange::of_buffer(self.start.offset, self.bytes).end();
        self.start.device == at.device
            && end == at.offset
            && self.bytes.saturating_add(length) <= WRITE_MAX
            && self.parts.len() < PARTS_MAX
    }
}
