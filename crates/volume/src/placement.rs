//! Where a new chunk goes: planned purely from what is allocated.

use crate::{Profile, VolumeError};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::superblock::{COPIES, COPY_SPAN, RESERVED};
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

const fn align_down(length: u64) -> u64 {
    length.saturating_sub(length % ALIGN)
}

const fn length_of(hole: &Range<u64>) -> u64 {
    hole.end.saturating_sub(hole.start)
}

/// Device sizes come from disk: their sum may exceed all numbers.
fn sum(lengths: impl Iterator<Item = u64>) -> u64 {
    lengths.fold(0, u64::saturating_add)
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
        holes
            .into_iter()
            .filter_map(|hole| {
                let start = hole.start.checked_next_multiple_of(ALIGN)?;
                let end = align_down(hole.end);
                (start < end).then_some(start..end)
            })
            .collect()
    }

    /// Bytes that no chunk uses.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        sum(self.holes().iter().map(length_of))
    }
}

/// Stripes that a profile puts on one device, if it is supported.
fn stripes_on_one(flags: BlockGroupFlags) -> Result<u64, VolumeError> {
    match Profile::from_flags(flags) {
        Some(Profile::Single) => Ok(1),
        Some(Profile::Dup) => Ok(2),
        _ => Err(VolumeError::Profile {
            profile: flags.profile_name().to_owned(),
        }),
    }
}

/// Plans a chunk of `flags`: as large as is usual, smaller when the holes are.
///
/// # Errors
/// [`VolumeError::NoSpace`], [`VolumeError::Profile`]
pub fn plan(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> Result<Plan, VolumeError> {
    let count = stripes_on_one(flags)?;
    let total = sum(devices.iter().map(|device| device.size));
    let most = align_down(length_max(flags, total));
    let best = devices
        .iter()
        .filter_map(|device| on_device(device, count, most))
        .max_by_key(|plan| plan.length);
    best.ok_or(VolumeError::NoSpace)
}

fn on_device(device: &DeviceSpace, count: u64, most: u64) -> Option<Plan> {
    let holes = device.holes();
    let fits = |length: u64| -> u64 {
        sum(holes
            .iter()
            .filter_map(|hole| length_of(hole).checked_div(length)))
    };
    // The greatest length for which `count` stripes fit in the holes: limited
    // by a hole divided by the number of stripes in it.
    let length = holes
        .iter()
        .flat_map(|hole| (1..=count).filter_map(move |n| length_of(hole).checked_div(n)))
        .map(|length| align_down(length.min(most)))
        .filter(|length| *length >= LENGTH_MIN && fits(*length) >= count)
        .max()?;
    let mut places = holes.iter().flat_map(|hole| {
        let mut at = hole.start;
        let end = hole.end;
        std::iter::from_fn(move || {
            let next = at.checked_add(length).filter(|next| *next <= end)?;
            Some(DeviceOffset(std::mem::replace(&mut at, next)))
        })
    });
    let stripes = (0..count)
        .map(|_| Some((device.device, places.next()?)))
        .collect::<Option<_>>()?;
    Some(Plan { length, stripes })
}

/// Bytes of logical space that further chunks of `flags` will have at least:
/// exact when there is room for few.
#[must_use]
pub fn possible(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> u64 {
    /// Chunks that are planned one by one.
    const PLANNED_MAX: usize = 64;
    let Ok(count) = stripes_on_one(flags) else {
        return 0;
    };
    let mut devices = devices.to_vec();
    let mut bytes = 0_u64;
    for _ in 0..PLANNED_MAX {
        let Ok(plan) = plan(flags, &devices) else {
            return bytes;
        };
        bytes = bytes.saturating_add(plan.length);
        for (device, start) in &plan.stripes {
            let end = DeviceOffset(start.get().saturating_add(plan.length));
            for _ in COPIES.iter().filter(|copy| (*start..end).contains(copy)) {
                bytes = bytes.saturating_sub(COPY_SPAN);
            }
            for space in devices.iter_mut().filter(|space| space.device == *device) {
                space.allocated.push(start.get()..end.get());
                space.allocated.sort_by_key(|range| range.start);
            }
        }
    }
    // What is left of each hole may be too small for a chunk.
    let rest = sum(devices
        .iter()
        .flat_map(DeviceSpace::holes)
        .filter_map(|hole| length_of(&hole).checked_div(count))
        .map(|length| align_down(length).saturating_sub(LENGTH_MIN)));
    bytes.saturating_add(rest)
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
                    assert!(space.unallocated() < count * MIB);
                    continue;
                };
                assert_eq!(plan.stripes.len() as u64, count);
                let mut used = allocated.clone();
                used.push(0..RESERVED);
                for (_, offset) in &plan.stripes {
                    let own = offset.get()..offset.get() + plan.length;
                    assert!(own.end <= space.size);
                    assert!(
                        used.iter()
                            .all(|u| u.end <= own.start || own.end <= u.start)
                    );
                    used.push(own);
                }
            }
        }
    }

    /// The plan is the first fit of its length, and no greater length fits:
    /// compared with trying every length.
    #[test]
    fn the_greatest_length_at_the_first_place() {
        let free = |space: &DeviceSpace, start: u64, length: u64| {
            start >= RESERVED
                && start + length <= space.size
                && space
                    .allocated
                    .iter()
                    .all(|used| used.end <= start || start + length <= used.start)
        };
        let step = 512 << 10;
        for mask in 0_u32..1 << 12 {
            // Units of 512 KiB, so that holes are no multiples of the least
            // length.
            let allocated: Vec<_> = (2..14)
                .filter(|bit| mask & (1 << (bit - 2)) != 0)
                .map(|bit| bit * step..(bit + 1) * step)
                .collect();
            let space = device(14 * step, &allocated);
            for (flags, count) in [(BlockGroupFlags::DATA, 1), (DUP, 2)] {
                let most = length_max(flags, 1 << 40);
                let pack = |length: u64| -> Vec<u64> {
                    let mut places = Vec::new();
                    let mut at = RESERVED;
                    while places.len() < count && at < space.size {
                        if free(&space, at, length) {
                            places.push(at);
                            at += length;
                        } else {
                            at += ALIGN;
                        }
                    }
                    places
                };
                let best = (LENGTH_MIN / ALIGN..=space.size.min(most) / ALIGN)
                    .rev()
                    .map(|units| units * ALIGN)
                    .find(|length| pack(*length).len() == count);
                let found = on_device(&space, count as u64, most);
                assert_eq!(found.as_ref().map(|plan| plan.length), best, "{mask:b}");
                if let Some(plan) = found {
                    let offsets: Vec<u64> = plan.stripes.iter().map(|(_, at)| at.get()).collect();
                    assert_eq!(offsets, pack(plan.length), "{mask:b}");
                }
            }
        }
    }

    #[test]
    fn hostile_sizes_are_survived() {
        let range = |start: u64, end: u64| Range { start, end };
        let space = [
            device(u64::MAX, &[range(0, u64::MAX - 1)]),
            device(u64::MAX, &[range(u64::MAX - 5, u64::MAX), range(7, 3)]),
        ];
        plan(BlockGroupFlags::DATA, &space).unwrap();
        assert!(possible(DUP, &space) > 0);
        for profile in Profile::ALL {
            let planned = plan(BlockGroupFlags::DATA | profile.flag(), &space);
            let supported = matches!(profile, Profile::Single | Profile::Dup);
            assert_eq!(planned.is_ok(), supported, "{profile}");
        }
    }
}
