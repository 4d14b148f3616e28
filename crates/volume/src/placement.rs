//! Plans where a new chunk goes, from nothing but what is allocated.

use crate::{Profile, VolumeError};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::superblock::{COPIES, COPY_SPAN, RESERVED, SYSTEM_STRIPES_MAX};
use butterfs_format::{DeviceId, DeviceOffset};
use std::ops::Range;

/// Lengths of chunks are multiples of this.
const ALIGN: u64 = 64 << 10;
/// Neither a chunk nor a stripe of it is smaller.
const LENGTH_MIN: u64 = 1 << 20;
/// A data chunk has at most this many bytes.
const DATA_CHUNK_MAX: u64 = 10 << 30;
/// A chunk has at most this many stripes: its item fits a node of 4 KiB.
const STRIPES_MAX: usize = 32;

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
    /// Bytes that each stripe takes on its device.
    pub stripe_length: u64,
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
            // A range past the end of the device leaves no hole there.
            let start = used.start.min(self.size);
            if start > at {
                holes.push(at..start);
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

/// Bytes of logical space that a chunk has at most, whatever its stripes.
fn chunk_max(flags: BlockGroupFlags, total: u64) -> u64 {
    if flags.contains(BlockGroupFlags::DATA) {
        DATA_CHUNK_MAX.min(total / 10).max(LENGTH_MIN)
    } else {
        length_max(flags, total)
    }
}

fn profile_of(flags: BlockGroupFlags) -> Result<Profile, VolumeError> {
    Profile::from_flags(flags).ok_or_else(|| VolumeError::Profile {
        profile: flags.profile_name().to_owned(),
    })
}

/// Plans a chunk of `flags`: as large as is usual, smaller when the holes are.
/// Of several devices, those with the most room are taken.
///
/// # Errors
/// [`VolumeError::NoSpace`], [`VolumeError::Profile`]
pub fn plan(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> Result<Plan, VolumeError> {
    plan_narrow(flags, devices, STRIPES_MAX)
}

/// As [`plan`], with at most `stripes_max` stripes where the profile has a
/// choice.
///
/// # Errors
/// As [`plan`].
pub fn plan_narrow(
    flags: BlockGroupFlags,
    devices: &[DeviceSpace],
    stripes_max: usize,
) -> Result<Plan, VolumeError> {
    let stripes_max = match flags.contains(BlockGroupFlags::SYSTEM) {
        true => stripes_max.min(SYSTEM_STRIPES_MAX),
        false => stripes_max,
    };
    let profile = profile_of(flags)?;
    let total = sum(devices.iter().map(|device| device.size));
    let most = align_down(length_max(flags, total));
    let planned = match profile.devices_max() {
        Some(1) => {
            let count = crate::bytes_of(profile.stripes_per_device());
            let plans = devices.iter().filter_map(|device| {
                let plan = on_device(device, count, most)?;
                Some((plan, device.unallocated()))
            });
            let best = plans.rev().max_by_key(|(plan, room)| (plan.length, *room));
            best.map(|(plan, _)| plan)
        }
        _ => {
            let whole = chunk_max(flags, total);
            across(profile, devices, stripes_max, (most, whole))
        }
    };
    planned.ok_or(VolumeError::NoSpace)
}

/// A device that can take a stripe.
struct Room<'d> {
    device: &'d DeviceSpace,
    holes: Vec<Range<u64>>,
    /// Bytes of its greatest hole that one stripe may take.
    greatest: u64,
    unallocated: u64,
}

/// Plans a chunk with one stripe on each of several devices, `stripes_max` at
/// most, of at most `most` bytes each and `whole` bytes together.
fn across(
    profile: Profile,
    devices: &[DeviceSpace],
    stripes_max: usize,
    (most, whole): (u64, u64),
) -> Option<Plan> {
    let room = |device| {
        let holes = DeviceSpace::holes(device);
        let greatest = holes.iter().map(length_of).max()?.min(most);
        (greatest >= LENGTH_MIN).then(|| Room {
            device,
            greatest,
            unallocated: sum(holes.iter().map(length_of)),
            holes,
        })
    };
    let mut rooms: Vec<Room<'_>> = devices.iter().filter_map(room).collect();
    rooms.sort_by_key(|room| std::cmp::Reverse((room.greatest, room.unallocated)));
    let count = profile.devices_max().unwrap_or(stripes_max);
    let count = count.min(rooms.len());
    let count = match profile.devices_max() {
        Some(exactly) => exactly,
        // Only whole groups of mirrors.
        None => count.saturating_sub(count.checked_rem(profile.copies()).unwrap_or(0)),
    };
    if count < profile.devices_min() || count > rooms.len() {
        return None;
    }
    rooms.truncate(count);
    let data = crate::bytes_of(profile.data_stripes(count));
    let least = rooms.iter().map(|room| room.greatest).min()?;
    let each = whole.checked_div(data).unwrap_or(whole).max(LENGTH_MIN);
    let stripe_length = align_down(least.min(each));
    let stripes = rooms.iter().map(|room| {
        let hole = room
            .holes
            .iter()
            .find(|hole| length_of(hole) >= stripe_length)?;
        Some((room.device.device, DeviceOffset(hole.start)))
    });
    Some(Plan {
        length: stripe_length.checked_mul(data)?,
        stripe_length,
        stripes: stripes.collect::<Option<_>>()?,
    })
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
    Some(Plan {
        length,
        stripe_length: length,
        stripes,
    })
}

/// Bytes of logical space that chunks of any size would have together. `rooms`
/// gives the unallocated bytes of each device.
fn spread(profile: Profile, rooms: &[u64]) -> u64 {
    let all = sum(rooms.iter().copied());
    let copies = crate::bytes_of(profile.copies());
    match profile {
        Profile::Single | Profile::Raid0 => all,
        Profile::Dup => all / 2,
        Profile::Raid1 | Profile::Raid1c3 | Profile::Raid1c4 | Profile::Raid10 => {
            // A device holds at most one copy of each byte.
            let holds = |length: u64| {
                let held = sum(rooms.iter().map(|room| (*room).min(length)));
                held.checked_div(copies).unwrap_or(0) >= length
            };
            let (mut fits, mut too_much) = (0, all.saturating_add(1));
            while too_much.saturating_sub(fits) > ALIGN {
                let middle = fits.midpoint(too_much);
                if holds(middle) {
                    fits = middle;
                } else {
                    too_much = middle;
                }
            }
            fits
        }
        Profile::Raid5 | Profile::Raid6 => {
            // Rows go over all devices until the smallest is full, then over
            // the others, and so on.
            let mut rooms = rooms.to_vec();
            rooms.sort_unstable();
            let (mut bytes, mut height) = (0_u64, 0_u64);
            for (full, room) in rooms.iter().enumerate() {
                let left = rooms.len().saturating_sub(full);
                if left < profile.devices_min() {
                    break;
                }
                let data = crate::bytes_of(profile.data_stripes(left));
                let rows = room.saturating_sub(height);
                bytes = bytes.saturating_add(rows.saturating_mul(data));
                height = *room;
            }
            bytes
        }
    }
}

/// Unallocated bytes of each device when no further chunk of `flags` fits,
/// because the other devices have no space left for their stripes. Devices with
/// less than the smallest chunk takes are left out.
#[must_use]
pub fn stranded(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> Vec<(DeviceId, u64)> {
    /// Chunks that are planned at most; with more, what is left is not known.
    const PLANNED_MAX: usize = 1 << 14;
    let mut devices = devices.to_vec();
    for _ in 0..PLANNED_MAX {
        let Ok(plan) = plan(flags, &devices) else {
            let left = devices.iter();
            let left = left.map(|device| (device.device, device.unallocated()));
            return left.filter(|(_, bytes)| *bytes >= LENGTH_MIN).collect();
        };
        allocate(&plan, &mut devices);
    }
    Vec::new()
}

/// Gives a planned chunk its space.
fn allocate(plan: &Plan, devices: &mut [DeviceSpace]) {
    for (device, start) in &plan.stripes {
        let end = start.get().saturating_add(plan.stripe_length);
        for space in devices.iter_mut().filter(|space| space.device == *device) {
            space.allocated.push(start.get()..end);
            space.allocated.sort_by_key(|range| range.start);
            // One range for neighbours: the next plan has less to look at.
            space.allocated.dedup_by(|next, before| {
                let joined = next.start <= before.end;
                if joined {
                    before.end = before.end.max(next.end);
                }
                joined
            });
        }
    }
}

/// Bytes of logical space that further chunks of `flags` will have at least.
/// The number is exact if there is room for only a few chunks.
#[must_use]
pub fn possible(flags: BlockGroupFlags, devices: &[DeviceSpace]) -> u64 {
    /// Chunks that are planned one by one.
    const PLANNED_MAX: usize = 64;
    let Ok(profile) = profile_of(flags) else {
        return 0;
    };
    let mut devices = devices.to_vec();
    let mut bytes = 0_u64;
    for _ in 0..PLANNED_MAX {
        let Ok(plan) = plan(flags, &devices) else {
            return bytes;
        };
        bytes = bytes.saturating_add(plan.length);
        // A row with parity that has a copy of the superblock is not used.
        let lost = match profile.parities() {
            0 => COPY_SPAN,
            _ => COPY_SPAN.saturating_mul(crate::bytes_of(plan.stripes.len())),
        };
        for (_, start) in &plan.stripes {
            let end = DeviceOffset(start.get().saturating_add(plan.stripe_length));
            for _ in COPIES.iter().filter(|copy| (*start..end).contains(copy)) {
                bytes = bytes.saturating_sub(lost);
            }
        }
        allocate(&plan, &mut devices);
    }
    // What is left of each hole may be too small for a chunk.
    if profile.devices_max() == Some(1) {
        let count = crate::bytes_of(profile.stripes_per_device());
        let rest = sum(devices
            .iter()
            .flat_map(DeviceSpace::holes)
            .filter_map(|hole| length_of(&hole).checked_div(count))
            .map(|length| align_down(length).saturating_sub(LENGTH_MIN)));
        return bytes.saturating_add(rest);
    }
    let rooms: Vec<u64> = devices
        .iter()
        .map(|device| {
            let holes = device.holes();
            sum(holes
                .iter()
                .map(|hole| align_down(length_of(hole)).saturating_sub(LENGTH_MIN)))
        })
        .collect();
    bytes.saturating_add(spread(profile, &rooms))
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

    /// A stripe of a damaged chunk item may lie past the end of its device.
    #[test]
    fn nothing_past_the_end_of_a_device_is_a_hole() {
        let space = device(100 * MIB, &[10 * MIB..20 * MIB, 1 << 50..1 << 51]);
        assert_eq!(space.unallocated(), 89 * MIB);
        let all = stranded(DUP, std::slice::from_ref(&space));
        assert_eq!(all, []);
        assert!(possible(DUP, std::slice::from_ref(&space)) <= 45 * MIB);
    }

    /// Planning 8 TiB of unallocated space takes only a moment.
    #[test]
    fn what_many_chunks_strand_is_planned() {
        let mut small = device(8 << 40, &[]);
        let mut large = device(9 << 40, &[]);
        (small.device, large.device) = (DeviceId(1), DeviceId(2));
        let raid1 = BlockGroupFlags::DATA.union(BlockGroupFlags::RAID1);
        assert_eq!(stranded(raid1, &[small, large]), [(DeviceId(2), 1 << 40)]);
    }

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
            for (flags, count) in [(BlockGroupFlags::DATA, 1), (DUP, 2)] {
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

    /// The plan is the first fit of its length, and no greater length fits. The
    /// test tries every length.
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

    fn devices(sizes: &[u64]) -> Vec<DeviceSpace> {
        (1..)
            .zip(sizes)
            .map(|(id, size)| DeviceSpace {
                device: DeviceId(id),
                ..device(*size, &[])
            })
            .collect()
    }

    fn flags_of(profile: Profile) -> BlockGroupFlags {
        BlockGroupFlags::DATA | profile.flag()
    }

    fn ids(plan: &Plan) -> Vec<u64> {
        plan.stripes.iter().map(|(id, _)| id.get()).collect()
    }

    #[test]
    fn the_devices_with_the_most_room_are_taken() {
        let four = devices(&[2 << 30, 4 << 30, 3 << 30, 5 << 30]);
        let taken = |profile| ids(&plan(flags_of(profile), &four).unwrap());
        assert_eq!(taken(Profile::Single), [4]);
        assert_eq!(taken(Profile::Dup), [4, 4]);
        assert_eq!(taken(Profile::Raid1), [4, 2]);
        assert_eq!(taken(Profile::Raid1c3), [4, 2, 3]);
        assert_eq!(taken(Profile::Raid1c4), [4, 2, 3, 1]);
        assert_eq!(taken(Profile::Raid0), [4, 2, 3, 1]);
        assert_eq!(taken(Profile::Raid10), [4, 2, 3, 1]);
        assert_eq!(taken(Profile::Raid6), [4, 2, 3, 1]);
        let three = &four[..3];
        assert_eq!(
            ids(&plan(flags_of(Profile::Raid10), three).unwrap()),
            [2, 3]
        );
        assert_eq!(
            ids(&plan(flags_of(Profile::Raid5), three).unwrap()),
            [2, 3, 1]
        );
        assert!(plan(flags_of(Profile::Raid1c4), three).is_err());
        assert!(plan(flags_of(Profile::Raid1), &four[..1]).is_err());
        assert!(plan(flags_of(Profile::Raid6), &four[..2]).is_err());
        // Equal devices: the first ones.
        let equal = devices(&[3 << 30; 4]);
        assert_eq!(ids(&plan(flags_of(Profile::Single), &equal).unwrap()), [1]);
        assert_eq!(
            ids(&plan(flags_of(Profile::Raid1), &equal).unwrap()),
            [1, 2]
        );
    }

    #[test]
    fn two_system_chunks_fit_the_superblock() {
        let devices = devices(&[200 * MIB; 40]);
        for profile in [
            Profile::Raid0,
            Profile::Raid10,
            Profile::Raid5,
            Profile::Raid6,
        ] {
            let flags = profile.flag();
            let metadata = plan(BlockGroupFlags::METADATA | flags, &devices).unwrap();
            assert_eq!(metadata.stripes.len(), 32, "{profile}");
            let system = plan(BlockGroupFlags::SYSTEM | flags, &devices).unwrap();
            let most = if profile == Profile::Raid10 { 28 } else { 29 };
            assert_eq!(system.stripes.len(), most, "{profile}");
            let narrow = plan_narrow(BlockGroupFlags::SYSTEM | flags, &devices, 5).unwrap();
            let most = if profile == Profile::Raid10 { 4 } else { 5 };
            assert_eq!(narrow.stripes.len(), most, "{profile}");
        }
    }

    #[test]
    fn stripes_add_up_to_usual_chunks() {
        let large = devices(&[100 << 30; 4]);
        let of = |profile, flags: BlockGroupFlags| {
            let plan = plan(flags | Profile::flag(profile), &large).unwrap();
            (plan.length >> 20, plan.stripe_length >> 20)
        };
        let data = BlockGroupFlags::DATA;
        assert_eq!(of(Profile::Raid0, data), (4096, 1024));
        assert_eq!(of(Profile::Raid1, data), (1024, 1024));
        assert_eq!(of(Profile::Raid10, data), (2048, 1024));
        assert_eq!(of(Profile::Raid5, data), (3072, 1024));
        assert_eq!(of(Profile::Raid6, data), (2048, 1024));
        let metadata = BlockGroupFlags::METADATA;
        assert_eq!(of(Profile::Raid1, metadata), (1024, 1024));
        assert_eq!(of(Profile::Raid0, metadata), (1024, 256));
    }

    /// Makes chunk after chunk until nothing fits. What was said to be possible
    /// is there, and no two stripes overlap.
    #[test]
    fn what_is_possible_can_be_had() {
        for sizes in [
            &[300 * MIB, 300 * MIB][..],
            &[200 * MIB, 700 * MIB, 500 * MIB],
            &[100 * MIB, 150 * MIB, 900 * MIB, 150 * MIB],
            &[64 * MIB, 4000 * MIB, 4000 * MIB, 100 * MIB, 300 * MIB],
        ] {
            for profile in Profile::ALL {
                let flags = flags_of(profile);
                let mut spaces = devices(sizes);
                let said = possible(flags, &spaces);
                let mut had = 0;
                while let Ok(plan) = plan(flags, &spaces) {
                    let data = profile.data_stripes(plan.stripes.len()) as u64;
                    assert_eq!(plan.length, data * plan.stripe_length);
                    assert!(profile.allows_stripes(plan.stripes.len()));
                    had += plan.length;
                    for (id, start) in &plan.stripes {
                        let space = &mut spaces[id.get() as usize - 1];
                        let own = start.get()..start.get() + plan.stripe_length;
                        assert!(own.end <= space.size);
                        let free =
                            |used: &Range<u64>| used.end <= own.start || own.end <= used.start;
                        assert!(space.allocated.iter().all(free));
                        space.allocated.push(own);
                        space.allocated.sort_by_key(|range| range.start);
                    }
                }
                assert!(said <= had, "{profile} {sizes:?}: {said} of {had}");
                let most = sum(sizes.iter().copied()) / profile.copies() as u64;
                assert!(had <= most, "{profile} {sizes:?}");
            }
        }
    }

    #[test]
    fn rest_by_profile() {
        let rooms = [1000 * MIB, 300 * MIB, 300 * MIB];
        let near = |profile, expected: u64| {
            let found = spread(profile, &rooms);
            assert!(found.abs_diff(expected) <= ALIGN, "{profile}: {found}");
        };
        near(Profile::Single, 1600 * MIB);
        near(Profile::Raid1, 600 * MIB);
        near(Profile::Raid1c3, 300 * MIB);
        near(Profile::Raid1c4, 0);
        near(Profile::Raid5, 600 * MIB);
        near(Profile::Raid6, 300 * MIB);
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
            // One of the two has room.
            let planned = plan(BlockGroupFlags::DATA | profile.flag(), &space);
            let is_enough = profile.devices_min() == 1;
            assert_eq!(planned.is_ok(), is_enough, "{profile}");
            let room = possible(BlockGroupFlags::DATA | profile.flag(), &space);
            assert_eq!(room > 0, is_enough, "{profile}");
        }
    }
}
