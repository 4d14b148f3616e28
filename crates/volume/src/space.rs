//! Reading and writing logical space.
//!
//! Invariants: a write reaches all copies or is an error; data that a verifier
//! refused are never given to the caller.

use crate::error::{BadCopy, CopyFault, VolumeError};
use crate::map::ChunkMap;
use butterfs_device::{Access, BlockDevice, DeviceRange};
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one vectored write at most.
const WRITE_MAX: usize = 4 << 20;
/// Parts of one vectored write at most (the system's limit is 1024).
const PARTS_MAX: usize = 512;

/// Errors of one device since it was opened.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Writes that failed.
    pub write_errs: AtomicU64,
    /// Reads that failed.
    pub read_errs: AtomicU64,
    /// Flushes that failed.
    pub flush_errs: AtomicU64,
    /// Checksum and content errors.
    pub corruption_errs: AtomicU64,
    /// Nodes of another generation than expected.
    pub generation_errs: AtomicU64,
}

#[derive(Debug)]
struct Member {
    device: Arc<dyn BlockDevice>,
    stats: DeviceStats,
}

/// What is done with bad copies when a good one is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// They are rewritten.
    Heal,
    /// They are left alone.
    Leave,
}

/// A volume's logical space.
#[derive(Debug)]
pub struct LogicalSpace {
    members: BTreeMap<DeviceId, Member>,
    map: RwLock<Arc<ChunkMap>>,
    on_damage: OnDamage,
}

impl LogicalSpace {
    /// The space of `map` over `devices`. Damage is healed when all devices
    /// are open for writing and `on_damage` says so.
    #[must_use]
    pub fn new(
        devices: Vec<(DeviceId, Arc<dyn BlockDevice>)>,
        map: ChunkMap,
        on_damage: OnDamage,
    ) -> Self {
        let writable = devices
            .iter()
            .all(|(_, device)| device.access() == Access::ReadWrite);
        let members = devices
            .into_iter()
            .map(|(id, device)| {
                let stats = DeviceStats::default();
                (id, Member { device, stats })
            })
            .collect();
        Self {
            members,
            map: RwLock::new(Arc::new(map)),
            on_damage: if writable { on_damage } else { OnDamage::Leave },
        }
    }

    /// The chunks now.
    #[must_use]
    pub fn map(&self) -> Arc<ChunkMap> {
        self.map.read().clone()
    }

    /// Replaces the chunks.
    pub fn set_map(&self, map: ChunkMap) {
        *self.map.write() = Arc::new(map);
    }

    /// Devices with their numbers.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Arc<dyn BlockDevice>)> {
        self.members
            .iter()
            .map(|(id, member)| (*id, &member.device))
    }

    /// Errors of a device.
    #[must_use]
    pub fn stats(&self, device: DeviceId) -> Option<&DeviceStats> {
        self.members.get(&device).map(|member| &member.stats)
    }

    fn member(&self, device: DeviceId) -> Result<&Member, VolumeError> {
        self.members
            .get(&device)
            .ok_or(VolumeError::MissingDevice(device))
    }

    fn read_copy(&self, from: Physical, buffer: &mut [u8]) -> Result<(), CopyFault> {
        let Some(member) = self.members.get(&from.device) else {
            return Err(CopyFault::Missing);
        };
        member
            .device
            .read_at(from.offset, buffer)
            .map_err(|error| {
                member.stats.read_errs.fetch_add(1, Ordering::Relaxed);
                CopyFault::Unreadable(Arc::new(error))
            })
    }

    /// Fills `buffer` from the first copy that can be read, without checks.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::NoGoodCopy`]
    pub fn read(&self, logical: Logical, buffer: &mut [u8]) -> Result<(), VolumeError> {
        self.read_verified(logical, buffer, &mut |_| true)
    }

    /// Fills `buffer` with the first copy that `verify` accepts, and rewrites
    /// the copies before it. `verify` sees the whole buffer, which must lie in
    /// one chunk for there to be a choice.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::NoGoodCopy`]
    pub fn read_verified(
        &self,
        logical: Logical,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VolumeError> {
        let map = self.map();
        let mapping = map.map(logical, buffer.len() as u64)?;
        if mapping.length < buffer.len() as u64 {
            return self.read_across(&map, logical, buffer, verify);
        }
        let mut bad: Vec<BadCopy> = Vec::new();
        for copy in &mapping.copies {
            let fault = match self.read_copy(*copy, buffer) {
                Ok(()) if verify(buffer) => {
                    self.heal(logical, &bad, buffer);
                    return Ok(());
                }
                Ok(()) => {
                    if let Some(stats) = self.stats(copy.device) {
                        stats.corruption_errs.fetch_add(1, Ordering::Relaxed);
                    }
                    CopyFault::Damaged
                }
                Err(fault) => fault,
            };
            bad.push(BadCopy {
                physical: *copy,
                fault,
            });
        }
        Err(VolumeError::NoGoodCopy {
            logical,
            copies: bad,
        })
    }

    fn read_across(
        &self,
        map: &ChunkMap,
        logical: Logical,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), VolumeError> {
        let mut copies = Vec::new();
        let mut done = 0;
        while done < buffer.len() {
            let at = logical.saturating_add(done as u64);
            let mapping = map.map(at, (buffer.len() - done) as u64)?;
            let part = &mut buffer[done..done + mapping.length as usize];
            let good = mapping
                .copies
                .iter()
                .any(|copy| self.read_copy(*copy, part).is_ok());
            copies.extend(mapping.copies.iter().map(|physical| BadCopy {
                physical: *physical,
                fault: CopyFault::Damaged,
            }));
            if !good {
                return Err(VolumeError::NoGoodCopy {
                    logical: at,
                    copies,
                });
            }
            done += mapping.length as usize;
        }
        if verify(buffer) {
            return Ok(());
        }
        Err(VolumeError::NoGoodCopy { logical, copies })
    }

    /// Rewrites bad copies with good content. A failure is counted, not
    /// reported: the read itself succeeded.
    fn heal(&self, logical: Logical, bad: &[BadCopy], good: &[u8]) {
        for copy in bad {
            tracing::warn!(%logical, %copy, "a copy is bad; another one is good");
            let Some(member) = self.members.get(&copy.physical.device) else {
                continue;
            };
            if self.on_damage == OnDamage::Heal
                && member.device.write_at(copy.physical.offset, good).is_err()
            {
                member.stats.write_errs.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Writes `data` to all copies.
    ///
    /// # Errors
    /// After an error any part of any copy may have been written.
    pub fn write(&self, logical: Logical, data: &[u8]) -> Result<(), VolumeError> {
        self.write_many(&[(logical, data)])
    }

    /// Writes blocks (ascending by address) to all copies; neighbours go out
    /// together.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn write_many(&self, blocks: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        let map = self.map();
        let mut runs: BTreeMap<usize, Run<'_>> = BTreeMap::new();
        for (logical, data) in blocks {
            let mut done = 0;
            while done < data.len() {
                let at = logical.saturating_add(done as u64);
                let mapping = map.map(at, (data.len() - done) as u64)?;
                let part = &data[done..done + mapping.length as usize];
                for (copy, physical) in mapping.copies.iter().enumerate() {
                    let run = runs.entry(copy).or_default();
                    if !run.accepts(*physical, part.len()) {
                        self.write_run(std::mem::take(run))?;
                    }
                    run.push(*physical, part);
                }
                done += mapping.length as usize;
            }
        }
        for run in runs.into_values() {
            self.write_run(run)?;
        }
        Ok(())
    }

    fn write_run(&self, run: Run<'_>) -> Result<(), VolumeError> {
        let Some(start) = run.start else {
            return Ok(());
        };
        let member = self.member(start.device)?;
        let parts: Vec<IoSlice<'_>> = run.parts.iter().map(|part| IoSlice::new(part)).collect();
        member
            .device
            .write_vectored_at(start.offset, &parts)
            .inspect_err(|_| {
                member.stats.write_errs.fetch_add(1, Ordering::Relaxed);
            })?;
        Ok(())
    }

    /// Makes all earlier writes durable on all devices.
    ///
    /// # Errors
    /// Afterwards nothing is known of the earlier writes.
    pub fn flush(&self) -> Result<(), VolumeError> {
        for member in self.members.values() {
            member.device.flush().inspect_err(|_| {
                member.stats.flush_errs.fetch_add(1, Ordering::Relaxed);
            })?;
        }
        Ok(())
    }

    /// Says that a range is not needed any more.
    ///
    /// # Errors
    /// Advisory: callers may go on.
    pub fn discard(&self, logical: Logical, length: u64) -> Result<(), VolumeError> {
        let map = self.map();
        let mut at = logical;
        let end = logical.saturating_add(length);
        while at < end {
            let mapping = map.map(at, end.get() - at.get())?;
            for copy in &mapping.copies {
                self.member(copy.device)?
                    .device
                    .discard(DeviceRange::new(copy.offset, mapping.length))?;
            }
            at = at.saturating_add(mapping.length);
        }
        Ok(())
    }
}

/// Neighbouring parts of one device.
#[derive(Default)]
struct Run<'a> {
    start: Option<Physical>,
    bytes: usize,
    parts: Vec<&'a [u8]>,
}

impl<'a> Run<'a> {
    fn accepts(&self, at: Physical, length: usize) -> bool {
        let Some(start) = self.start else {
            return true;
        };
        let end = DeviceOffset(start.offset.get() + self.bytes as u64);
        start.device == at.device
            && end == at.offset
            && self.bytes + length <= WRITE_MAX
            && self.parts.len() < PARTS_MAX
    }

    fn push(&mut self, at: Physical, part: &'a [u8]) {
        self.start.get_or_insert(at);
        self.bytes += part.len();
        self.parts.push(part);
    }
}
