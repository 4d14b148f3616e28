//! What is read, healed and counted when copies fail, rot or vanish.

use butterfs_device::fault::{Fault, Rot, When};
use butterfs_device::{
    Access, BlockDevice, DeviceError, DeviceRange, FaultDevice, MemoryDevice, Operation,
    ReadOnlyDevice,
};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use butterfs_volume::{ChunkMap, CopyFault, Healed, LogicalSpace, OnDamage, Profile, VolumeError};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const START: Logical = Logical(16 * MIB);

fn chunk(profile: Profile, places: &[(u64, u64)]) -> Chunk {
    Chunk {
        length: 4 * MIB * profile.data_stripes(places.len()) as u64,
        owner: 2,
        stripe_length: 65536,
        flags: profile.flag() | BlockGroupFlags::DATA,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: 2,
        stripes: places
            .iter()
            .map(|(device, offset)| Stripe {
                device: DeviceId(*device),
                offset: DeviceOffset(*offset),
                device_uuid: [0; 16],
            })
            .collect(),
    }
}

/// A chunk with one stripe on each device (dup: both on the first).
struct Bench {
    faults: Vec<Arc<FaultDevice>>,
    space: LogicalSpace,
}

impl Bench {
    fn new(profile: Profile, stripes: u64) -> Self {
        let places: Vec<(u64, u64)> = (0..stripes)
            .map(|n| match profile {
                Profile::Dup => (1, MIB + n * 8 * MIB),
                _ => (n + 1, MIB),
            })
            .collect();
        let faults: Vec<Arc<FaultDevice>> = (1..=stripes)
            .map(|n| {
                let memory = MemoryDevice::new(32 * MIB);
                Arc::new(FaultDevice::new(Arc::new(memory), n))
            })
            .collect();
        let devices = faults
            .iter()
            .zip(1..)
            .map(|(device, id)| (DeviceId(id), device.clone() as Arc<dyn BlockDevice>))
            .collect();
        let map = ChunkMap::default()
            .with(START, chunk(profile, &places))
            .unwrap();
        let space = LogicalSpace::new(devices, map, OnDamage::Heal);
        space.check_chunks().unwrap();
        Self { faults, space }
    }

    fn stats(&self, device: u64) -> [u64; 5] {
        let stats = self.space.stats(DeviceId(device)).unwrap();
        stats.values().map(|(_, value)| value)
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|n| (n / 512) as u8 ^ (n as u8).wrapping_mul(31) ^ seed)
        .collect()
}

fn at(offset: u64) -> Logical {
    START.saturating_add(offset)
}

#[test]
fn every_profile_reads_back_what_was_written() {
    for profile in Profile::ALL {
        for stripes in (1..=6_usize).filter(|n| profile.allows_stripes(*n)) {
            let bench = Bench::new(profile, stripes as u64);
            let data = pattern(700_000, 1);
            bench.space.write(at(60_000), &data).unwrap();
            bench.space.flush().unwrap();
            let mut found = vec![0; data.len()];
            bench.space.read(at(60_000), &mut found).unwrap();
            assert_eq!(found, data, "{profile} {stripes}");
            // The copies, then the ways to rebuild the content from the rest of
            // its row.
            let mut ways = 0;
            while bench.space.read_copy(at(60_000), ways, &mut found).is_ok() {
                assert_eq!(found, data, "{profile} {stripes} way {ways}");
                found.fill(0);
                ways += 1;
            }
            match profile {
                Profile::Raid5 | Profile::Raid6 => assert!(ways > profile.copies(), "{ways}"),
                _ => assert_eq!(ways, profile.copies(), "{profile} {stripes}"),
            }
        }
    }
}

#[test]
fn a_rotten_copy_is_rewritten_and_counted() {
    for profile in [Profile::Dup, Profile::Raid1, Profile::Raid1c3] {
        let bench = Bench::new(profile, profile.copies() as u64);
        let data = pattern(16384, 3);
        bench.space.write(at(0), &data).unwrap();
        let first = DeviceRange::new(DeviceOffset(MIB), 16384);
        bench.faults[0].inject(Fault::FlipBits(first, Rot::UntilWritten));
        let mut buf = vec![0; 16384];
        let mut read = || {
            let healed = bench
                .space
                .read_verified(at(0), &mut buf, &mut |b| b == data);
            assert_eq!(buf, data);
            healed.unwrap()
        };
        assert_eq!(
            read(),
            Healed {
                bad: 1,
                rewritten: 1
            }
        );
        assert_eq!(read(), Healed::default());
        assert_eq!(bench.stats(1), [0, 0, 0, 1, 0]);
    }
}

#[test]
fn an_unreadable_copy_is_rewritten() {
    let bench = Bench::new(Profile::Raid1, 2);
    let data = pattern(4096, 4);
    bench.space.write(at(0), &data).unwrap();
    let place = DeviceRange::new(DeviceOffset(MIB), 4096);
    bench.faults[0].inject(Fault::Fail(Operation::Read, When::Within(place)));
    let mut buf = vec![0; 4096];
    let healed = bench
        .space
        .read_verified(at(0), &mut buf, &mut |b| b == data)
        .unwrap();
    assert_eq!(
        healed,
        Healed {
            bad: 1,
            rewritten: 1
        }
    );
    assert_eq!(bench.stats(1), [0, 1, 0, 0, 0]);
}

#[test]
fn a_lost_write_is_found_although_it_was_reported_done() {
    let bench = Bench::new(Profile::Raid1, 2);
    bench.space.write(at(0), &pattern(4096, 1)).unwrap();
    bench.faults[0].inject(Fault::LoseWrite(When::After(0)));
    let data = pattern(4096, 2);
    bench.space.write(at(0), &data).unwrap();
    let mut buf = vec![0; 4096];
    let healed = bench
        .space
        .read_verified(at(0), &mut buf, &mut |b| b == data)
        .unwrap();
    assert_eq!(
        healed,
        Healed {
            bad: 1,
            rewritten: 1
        }
    );
}

#[test]
fn without_a_good_copy_the_error_names_all_places() {
    let bench = Bench::new(Profile::Raid1, 2);
    bench.faults[1].inject(Fault::Gone);
    let mut buf = vec![0; 4096];
    let error = bench
        .space
        .read_verified(at(8192), &mut buf, &mut |_| false)
        .unwrap_err();
    let text = error.to_string();
    for part in [
        "logical 16785408",
        "device 1 offset 1056768",
        "device 2 offset 1056768",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let VolumeError::NoGoodCopy { copies, .. } = error else {
        panic!("{text}");
    };
    assert!(matches!(copies[0].fault, CopyFault::Damaged));
    assert!(matches!(copies[1].fault, CopyFault::Unreadable(_)));
    assert_eq!(bench.stats(1), [0, 0, 0, 1, 0]);
    assert_eq!(bench.stats(2), [0, 1, 0, 0, 0]);
}

#[test]
fn nothing_is_rewritten_where_that_is_not_wanted() {
    let memory = Arc::new(MemoryDevice::new(32 * MIB));
    let dup = chunk(Profile::Dup, &[(1, MIB), (1, 9 * MIB)]);
    let data = pattern(4096, 5);
    memory.write_at(DeviceOffset(9 * MIB), &data).unwrap();
    let before = memory.snapshot();
    let read_only = Arc::new(ReadOnlyDevice::new(memory.clone()));
    let cases: [(Arc<dyn BlockDevice>, OnDamage); 2] = [
        (memory.clone(), OnDamage::Leave),
        (read_only, OnDamage::Heal),
    ];
    for (device, on_damage) in cases {
        let map = ChunkMap::default().with(START, dup.clone()).unwrap();
        let space = LogicalSpace::new(vec![(DeviceId(1), device)], map, on_damage);
        let mut buf = vec![0; 4096];
        let healed = space
            .read_verified(START, &mut buf, &mut |b| b == data)
            .unwrap();
        assert_eq!(
            healed,
            Healed {
                bad: 1,
                rewritten: 0
            }
        );
        assert_eq!(memory.first_difference(&before), None);
    }
}

#[test]
fn a_missing_device_is_read_around_but_not_written_around() {
    let memory = Arc::new(MemoryDevice::new(32 * MIB));
    let data = pattern(4096, 6);
    memory.write_at(DeviceOffset(MIB), &data).unwrap();
    let raid1 = chunk(Profile::Raid1, &[(1, MIB), (2, MIB)]);
    let map = ChunkMap::default().with(START, raid1).unwrap();
    let space = LogicalSpace::new(vec![(DeviceId(2), memory.clone())], map, OnDamage::Heal);
    let mut buf = vec![0; 4096];
    let healed = space
        .read_verified(START, &mut buf, &mut |b| b == data)
        .unwrap();
    assert_eq!(
        healed,
        Healed {
            bad: 1,
            rewritten: 0
        }
    );
    let before = memory.snapshot();
    assert!(matches!(
        space.write(START, &[0; 4096]),
        Err(VolumeError::MissingDevice(DeviceId(1)))
    ));
    assert_eq!(memory.first_difference(&before), None);
}

#[test]
fn a_failed_write_or_flush_is_an_error_and_counted() {
    let bench = Bench::new(Profile::Raid1, 2);
    bench.faults[1].inject(Fault::Fail(Operation::Write, When::After(0)));
    bench.faults[0].inject(Fault::Fail(Operation::Flush, When::After(0)));
    assert!(bench.space.write(at(0), &[1; 4096]).is_err());
    assert!(bench.space.flush().is_err());
    assert_eq!(bench.stats(1), [0, 0, 1, 0, 0]);
    assert_eq!(bench.stats(2), [1, 0, 0, 0, 0]);
}

#[test]
fn superblocks_are_not_written_over() {
    let device = Arc::new(MemoryDevice::new(128 * MIB));
    let mut over = chunk(Profile::Single, &[(1, 62 * MIB)]);
    over.length = 8 * MIB;
    let map = ChunkMap::default().with(START, over).unwrap();
    let space = LogicalSpace::new(vec![(DeviceId(1), device.clone())], map, OnDamage::Heal);
    let blocks: [(Logical, &[u8]); 2] = [(at(0), &[1; 4096]), (at(2 * MIB - 4096), &[1; 8192])];
    assert!(matches!(
        space.write_many(&blocks),
        Err(VolumeError::HitsSuperblock {
            physical: Physical {
                offset: DeviceOffset(0x400_0000),
                ..
            },
            ..
        })
    ));
    assert_eq!(device.allocated(), 0, "refused before anything was written");
    assert!(space.discard(at(MIB), 2 * MIB).is_err());
    space.write(at(2 * MIB + 4096), &[1; 4096]).unwrap();
}

/// Notes where each call that writes begins, and its bytes.
#[derive(Debug)]
struct Calls {
    inner: MemoryDevice,
    writes: Mutex<Vec<(u64, usize)>>,
}

impl BlockDevice for Calls {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.write_vectored_at(offset, &[IoSlice::new(data)])
    }
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.writes.lock().push((offset.get(), length));
        self.inner.write_vectored_at(offset, parts)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn identity(&self) -> String {
        self.inner.identity()
    }
    fn access(&self) -> Access {
        self.inner.access()
    }
}

#[test]
fn neighbours_go_out_together() {
    let calls = Arc::new(Calls {
        inner: MemoryDevice::new(64 * MIB),
        writes: Mutex::default(),
    });
    let mut dup = chunk(Profile::Dup, &[(1, MIB), (1, 16 * MIB)]);
    dup.length = 12 * MIB;
    let map = ChunkMap::default().with(START, dup).unwrap();
    let space = LogicalSpace::new(vec![(DeviceId(1), calls.clone())], map, OnDamage::Heal);
    let node = [7; 16384];
    // Not in order.
    let blocks: Vec<(Logical, &[u8])> = [3, 1, 2, 9]
        .iter()
        .map(|n| (at(n * 16384), &node[..]))
        .collect();
    space.write_many(&blocks).unwrap();
    assert_eq!(
        std::mem::take(&mut *calls.writes.lock()),
        [
            (MIB + 16384, 3 * 16384),
            (MIB + 9 * 16384, 16384),
            (16 * MIB + 16384, 3 * 16384),
            (16 * MIB + 9 * 16384, 16384),
        ]
    );
    // 10 MiB of nodes go out in calls of 4 MiB at most.
    let blocks: Vec<(Logical, &[u8])> = (0..640).map(|n| (at(n * 16384), &node[..])).collect();
    space.write_many(&blocks).unwrap();
    let lengths: Vec<usize> = calls.writes.lock().iter().map(|(_, n)| *n).collect();
    let mib = 1 << 20;
    assert_eq!(
        lengths,
        [4 * mib, 4 * mib, 2 * mib, 4 * mib, 4 * mib, 2 * mib]
    );
}

#[test]
fn sectors_that_are_bad_in_different_copies_are_all_read() {
    let bench = Bench::new(Profile::Raid1, 2);
    let data = pattern(65536, 8);
    bench.space.write(at(0), &data).unwrap();
    let sector = |n: u64| DeviceRange::new(DeviceOffset(MIB + n * 4096), 4096);
    bench.faults[0].inject(Fault::FlipBits(sector(3), Rot::UntilWritten));
    bench.faults[0].inject(Fault::FlipBits(sector(4), Rot::UntilWritten));
    bench.faults[0].inject(Fault::Fail(Operation::Read, When::Within(sector(9))));
    bench.faults[1].inject(Fault::FlipBits(sector(5), Rot::UntilWritten));
    let mut buf = vec![0; 65536];
    let good = |n: usize, sector: &[u8]| sector == &data[n * 4096..][..4096];
    let healed = bench
        .space
        .read_verified_sectors(at(0), &mut buf, 4096, &mut |n, s| good(n, s))
        .unwrap();
    assert_eq!(buf, data);
    assert_eq!(
        healed,
        Healed {
            bad: 3,
            rewritten: 3
        }
    );
    // Before, neither copy was good as a whole.
    bench.faults[0].clear();
    bench.space.read_copy(at(0), 0, &mut buf).unwrap();
    assert_eq!(buf, data);

    bench.faults[0].inject(Fault::FlipBits(sector(5), Rot::Permanent));
    let error = bench
        .space
        .read_verified_sectors(at(0), &mut buf, 4096, &mut |n, s| good(n, s))
        .unwrap_err();
    assert!(matches!(
        error,
        VolumeError::NoGoodCopy { logical, .. } if logical == at(5 * 4096)
    ));
}

#[test]
fn only_the_device_of_a_bad_sector_is_charged() {
    let bench = Bench::new(Profile::Raid0, 2);
    let data = pattern(4 * 65536, 8);
    bench.space.write(at(0), &data).unwrap();
    let sector = DeviceRange::new(DeviceOffset(MIB + 3 * 4096), 4096);
    bench.faults[0].inject(Fault::FlipBits(sector, Rot::Permanent));
    let mut buf = vec![0; data.len()];
    let counted = || {
        [1, 2].map(|n| {
            let stats = bench.space.stats(DeviceId(n)).unwrap();
            stats.corruption_errs.load(Ordering::Relaxed)
        })
    };
    let together = bench
        .space
        .read_verified_together(at(0), &mut buf, &mut |bytes| bytes == data);
    assert!(together.is_err());
    assert_eq!(counted(), [0, 0]);
    let mut verify = |n: usize, bytes: &[u8]| bytes == &data[n * 4096..][..4096];
    let by_sectors = bench
        .space
        .read_verified_sectors(at(0), &mut buf, 4096, &mut verify);
    assert!(by_sectors.is_err());
    assert_eq!(counted(), [1, 0]);
}

#[test]
fn ranges_that_leave_the_chunk_are_errors() {
    let bench = Bench::new(Profile::Single, 1);
    let mut buf = vec![0; 8192];
    let last = at(4 * MIB - 4096);
    assert!(matches!(
        bench.space.read(last, &mut buf),
        Err(VolumeError::Unmapped { .. })
    ));
    assert!(bench.space.write(last, &buf).is_err());
    assert!(bench.space.read(Logical(u64::MAX), &mut buf).is_err());
    bench.space.read(Logical(0), &mut []).unwrap();
    assert_eq!(bench.space.copies(at(0)), 1);
    assert_eq!(bench.space.copies(Logical(0)), 0);
}

/// Damage, as pairs of a device and a bad sector on it.
fn damage() -> impl Strategy<Value = Vec<(usize, u64)>> {
    prop::collection::vec((0_usize..3, 0_u64..64), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever rots, a read gives the data that were written, or an error. The
    /// error comes exactly when some sector has no good copy. After a
    /// successful read, all is healed.
    #[test]
    fn never_wrong_data(damage in damage()) {
        let bench = Bench::new(Profile::Raid1c3, 3);
        let data = pattern(64 * 4096, 9);
        bench.space.write(at(0), &data).unwrap();
        for (device, sector) in &damage {
            let range = DeviceRange::new(DeviceOffset(MIB + sector * 4096), 4096);
            // The same damage twice would undo itself.
            let fault = Fault::FlipBits(range, Rot::UntilWritten);
            if !bench.faults[*device].pending().contains(&fault) {
                bench.faults[*device].inject(fault);
            }
        }
        let hopeless = (0..64).any(|sector| (0..3).all(|d| damage.contains(&(d, sector))));
        let mut buf = vec![0; data.len()];
        let mut verify = |n: usize, s: &[u8]| s == &data[n * 4096..][..4096];
        let read = bench.space.read_verified_sectors(at(0), &mut buf, 4096, &mut verify);
        prop_assert_eq!(read.is_err(), hopeless);
        if read.is_ok() {
            prop_assert_eq!(&buf, &data);
            let again = bench.space.read_verified_sectors(at(0), &mut buf, 4096, &mut verify);
            prop_assert_eq!(again.unwrap(), Healed::default());
            let counted: u64 = (1..=3)
                .map(|n| bench.space.stats(DeviceId(n)).unwrap().corruption_errs.load(Ordering::Relaxed))
                .sum();
            prop_assert_eq!(counted, read.unwrap().bad as u64);
        }
    }
}
