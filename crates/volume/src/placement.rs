//! Where a new chunk goes: planned purely from what is allocated.

use crate::error::VolumeError;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::superblock::RESERVED;
use butterfs_format::{DeviceId, DeviceOffset};
use std::ops::Range;

/// Chunks are multiples of this.
const ALIGN: u64 = 64 << 10;
/// No chunk is smaller.
const LENGTH_MIN: u64 = 1 << 20;

/// A device with room for chunks.
#[derive(Clone, Debug)]
pub struct DeviceSpace {
    /// Device.
    pub device: DeviceId,
    /// Bytes.
    pub size: u64,
    /// Ranges in use by chunks, ascending.
    pub allocated: Vec<Range<u64>>,
}

/// A chunk to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of logical space.
    pub length: u64,
    /// One place for each stripe.
    pub stripes: Vec<(DeviceId, DeviceOffset)>,
}

/// Greatest chunk that the kernel would make for `flags` on a volume of
/// `total` bytes: data 1 GiB, metadata 256 MiB (1 GiB above 50 GiB), system
/// 32 MiB; at most a tenth of the volume.
fn length_max(flags: BlockGroupFlags, total: u64) -> u64 {
    let wanted = if flags.contains(BlockGroupFlags::DATA) {
        1 << 30
    } else if flags.contains(BlockGroupFlags::METADATA) {
        if total > 50 << 30 { 1 << 30 } else { 256 << 20 }
    } else {
        32 << 20
    };
    wanted.min(total / 10).max(LENGTH_MIN)
}

impl DeviceSpace {
    fn holes(&self) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = RESERVED;
        for used in &self.allocated {
            if used.start > at {
                holes.push(at..used.start);
            }
            at = at.max(used.end);
        }
        if self.size > at {
            holes.push(at..self.size);
        }
        for hole in &mut holes {
            hole.start = hole.start.next_multiple_of(ALIGN);
            hole.end -= hole.end % ALIGN;
        }
        holes.retain(|hole| hole.start < hole.end);
        holes
    }

    /// Bytes that no chunk uses.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        self.holes().iter().map(|hole| hole.end - hole.start).sum()
    }
}

/// Stripes that a profile puts on one device, if it is supported.
fn stripes_on_one(flags: BlockGroupFlags) -> Result<usize, VolumeError> {
    let profile = flags.profile();
    if profile.is_empty() {
        Ok(1)
    } else if profile == BlockGroupFlags::DUP {
        Ok(2)
    } else {
        Err(VolumeError::Profile {
            profile: flags.profile_name().to_owned(),
        })
    }
}

/// Plans a chunk of `flags`: as large as is usual, smaller when the holes are.
///
/// # Errors
/// [`VolumeError::NoSpace`], [`VolumeError::Profile`]
pub fn plan(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> Result<Plan, VolumeError> {
    let count = stripes_on_one(flags)?;
    let total = devices.iter().map(|device| device.size).sum();
    let most = length_max(flags, total) / ALIGN * ALIGN;
    let best = devices
        .iter()
        .filter_map(|device| on_device(device, count, most))
        .max_by_key(|plan| plan.length);
    best.ok_or(VolumeError::NoSpace)
}

fn on_device(device: &DeviceSpace, count: usize, most: u64) -> Option<Plan> {
    let holes = device.holes();
    let fits = |length: u64| -> u64 { holes.iter().map(|h| (h.end - h.start) / length).sum() };
    // The greatest length for which `count` stripes fit in the holes: limited
    // by a hole divided by the number of stripes in it.
    let length = holes
        .iter()
        .flat_map(|hole| (1..=count as u64).map(move |n| (hole.end - hole.start) / n))
        .map(|length| length.min(most) / ALIGN * ALIGN)
        .filter(|length| *length >= LENGTH_MIN && fits(*length) >= count as u64)
        .max()?;
    let mut stripes = Vec::new();
    for hole in &holes {
        let mut at = hole.start;
        while stripes.len() < count && at + length <= hole.end {
            stripes.push((device.device, DeviceOffset(at)));
            at += length;
        }
    }
    Some(Plan { length, stripes })
}

/// Bytes of logical space that further chunks of `flags` could have.
#[must_use]
pub fn possible(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> u64 {
    let Ok(count) = stripes_on_one(flags) else {
        return 0;
    };
    let count = count as u64;
    devices
        .iter()
        .flat_map(DeviceSpace::holes)
        .map(|hole| (hole.end - hole.start) / count / ALIGN * ALIGN)
        .filter(|length| *length >= LENGTH_MIN)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(size: u64, allocated: &[Range<u64>]) -> DeviceSpace {
        DeviceSpace {
            device: DeviceId(1),
            size,
            allocated: allocated.to_vec(),
        }
    }

    const MIB: u64 = 1 << 20;
    const DUP: BlockGroupFlags = BlockGroupFlags::METADATA.union(BlockGroupFlags::DUP);

    #[test]
    fn usual_sizes() {
        let large = [device(100 << 30, &[])];
        assert_eq!(plan(BlockGroupFlags::DATA, &large).unwrap().length, 1 << 30);
        assert_eq!(plan(DUP, &large).unwrap().length, 1 << 30);
        let small = [device(1 << 30, &[])];
        let metadata = plan(DUP, &small).unwrap();
        assert_eq!(metadata.length, (1 << 30) / 10 / ALIGN * ALIGN);
        assert_eq!(metadata.stripes[0].1, DeviceOffset(MIB));
    }

    /// All ways to occupy 12 MiB in units of 1 MiB.
    #[test]
    fn stripes_never_overlap_anything() {
        for mask in 0_u32..1 << 11 {
            let allocated: Vec<_> = (0..11)
                .filter(|bit| mask & (1 << bit) != 0)
                .map(|bit| (bit + 1) * MIB..(bit + 2) * MIB)
                .collect();
            let space = device(12 * MIB, &allocated);
            for flags in [BlockGroupFlags::DATA, DUP] {
                let count = stripes_on_one(flags).unwrap();
                let Ok(plan) = plan(flags, std::slice::from_ref(&space)) else {
                    assert!(space.unallocated() < count as u64 * MIB);
                    continue;
                };
                assert_eq!(plan.stripes.len(), count);
                let mut used = allocated.clone();
                used.push(0..RESERVED);
                for (_, offset) in &plan.stripes {
                    let own = offset.get()..offset.get() + plan.length;
                    assert!(own.end <= space.size);
                    assert!(used.iter().all(|u| u.end <= own.start || own.end <= u.start));
                    used.push(own);
                }
            }
        }
    }
}
