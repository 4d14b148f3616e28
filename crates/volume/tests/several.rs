//! Volumes of several devices: parity, and going on without a device.

use butterfs_device::fault::{Fault, Rot, When};
use butterfs_device::{
    Access, BlockDevice, DeviceError, DeviceRange, FaultDevice, MemoryDevice, Operation,
};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use butterfs_volume::{
    ChunkMap, Healed, LogicalSpace, MemberState, OnDamage, OnLoss, Profile, Trust, VolumeDevice,
    VolumeError,
};
use proptest::prelude::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const START: Logical = Logical(16 * MIB);
/// Bytes of each stripe.
const STRIPE: u64 = 8 * 65536;

fn chunk(profile: Profile, stripes: u64) -> Chunk {
    Chunk {
        length: STRIPE * profile.data_stripes(stripes as usize) as u64,
        owner: 2,
        stripe_length: 65536,
        flags: profile.flag() | BlockGroupFlags::DATA,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: profile.sub_stripes().max(1),
        stripes: (1..=stripes)
            .map(|n| Stripe {
                device: DeviceId(n),
                offset: DeviceOffset(MIB),
                device_uuid: [n as u8; 16],
            })
            .collect(),
    }
}

struct Bench {
    profile: Profile,
    memory: Vec<Arc<MemoryDevice>>,
    faults: Vec<Arc<FaultDevice>>,
    space: LogicalSpace,
}

impl Bench {
    fn new(profile: Profile, stripes: u64) -> Self {
        let memory = (0..stripes).map(|_| Arc::new(MemoryDevice::new(16 * MIB)));
        Self::over(profile, memory.collect(), |given| given)
    }

    /// Over devices that `change` gives another state.
    fn over(
        profile: Profile,
        memory: Vec<Arc<MemoryDevice>>,
        change: impl Fn(VolumeDevice) -> VolumeDevice,
    ) -> Self {
        let faults: Vec<Arc<FaultDevice>> = memory
            .iter()
            .zip(1..)
            .map(|(memory, seed)| Arc::new(FaultDevice::new(memory.clone(), seed)))
            .collect();
        let devices = faults.iter().zip(1..).map(|(device, id)| {
            let device = device.clone() as Arc<dyn BlockDevice>;
            change(VolumeDevice::present(DeviceId(id), [id as u8; 16], device))
        });
        let map = ChunkMap::default()
            .with(START, chunk(profile, memory.len() as u64))
            .unwrap();
        let space = LogicalSpace::over(devices.collect(), map, OnDamage::Heal, OnLoss::GoOn);
        space.check_chunks().unwrap();
        Self {
            profile,
            memory,
            faults,
            space,
        }
    }

    /// The same content without some devices, counted from 0.
    fn without(&self, gone: &[usize]) -> Self {
        let memory = self.memory.iter().map(|m| Arc::new(m.snapshot()));
        Self::over(self.profile, memory.collect(), |given| {
            match gone.contains(&(given.id.get() as usize - 1)) {
                true => VolumeDevice::missing(given.id, given.uuid),
                false => given,
            }
        })
    }

    fn read(&self, length: usize) -> Result<Vec<u8>, VolumeError> {
        let mut found = vec![0; length];
        self.space.read(START, &mut found).map(|()| found)
    }
}

/// All sets of at most `most` of `count` numbers.
fn sets(count: usize, most: usize) -> Vec<Vec<usize>> {
    (0_usize..1 << count)
        .map(|mask| (0..count).filter(|n| mask & (1 << n) != 0).collect())
        .filter(|set: &Vec<usize>| set.len() <= most)
        .collect()
}

fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(step).collect()
}

const REDUNDANT: [Profile; 6] = [
    Profile::Raid1,
    Profile::Raid1c3,
    Profile::Raid1c4,
    Profile::Raid10,
    Profile::Raid5,
    Profile::Raid6,
];

#[test]
fn what_was_written_is_read_without_any_devices_that_may_be_lost() {
    for profile in REDUNDANT {
        for stripes in (1..=6_usize).filter(|n| profile.allows_stripes(*n)) {
            let bench = Bench::new(profile, stripes as u64);
            let length = chunk(profile, stripes as u64).length as usize;
            let data = content(length, 1);
            bench.space.write(START, &data).unwrap();
            for gone in sets(stripes, profile.tolerated()) {
                let degraded = bench.without(&gone);
                degraded.space.check_degraded().unwrap();
                assert_eq!(degraded.read(length).unwrap(), data, "{profile} {gone:?}");
                // Writing works without these devices too.
                let other = content(100_000, 2);
                let at = START.saturating_add(40_000);
                degraded.space.write(at, &other).unwrap();
                let mut expected = data.clone();
                expected[40_000..140_000].copy_from_slice(&other);
                assert_eq!(
                    degraded.read(length).unwrap(),
                    expected,
                    "{profile} {gone:?}"
                );
            }
            let too_many: Vec<usize> = (0..=profile.tolerated()).collect();
            if too_many.len() <= stripes {
                let broken = bench.without(&too_many);
                assert!(broken.space.check_degraded().is_err(), "{profile}");
            }
        }
    }
}

/// Whichever part of a row rots, the content that is rebuilt from the rest of
/// the row passes the check and is written back.
#[test]
fn rot_is_made_good_from_parity() {
    for (profile, stripes) in [
        (Profile::Raid5, 2),
        (Profile::Raid5, 4),
        (Profile::Raid6, 3),
        (Profile::Raid6, 5),
    ] {
        let bench = Bench::new(profile, stripes);
        let length = chunk(profile, stripes).length as usize;
        let data = content(length, 3);
        bench.space.write(START, &data).unwrap();
        for sector in (0..length).step_by(4096 * 7) {
            let at = START.saturating_add(sector as u64);
            let place = bench.space.map().map(at, 4096).unwrap().copies[0];
            let own = place.device.get() as usize - 1;
            for other in 0..stripes as usize {
                let both = [own, other];
                let rotten = match profile {
                    Profile::Raid6 => &both[..],
                    _ => &both[..1],
                };
                for device in rotten {
                    bench.faults[*device].clear();
                    let range = DeviceRange::new(place.offset, 4096);
                    bench.faults[*device].inject(Fault::FlipBits(range, Rot::UntilWritten));
                }
                let expected = &data[sector..sector + 4096];
                let mut found = vec![0; 4096];
                let healed = bench
                    .space
                    .read_verified(at, &mut found, &mut |bytes| bytes == expected)
                    .unwrap();
                assert_eq!(
                    healed,
                    Healed {
                        bad: 1,
                        rewritten: 1
                    },
                    "{profile} {sector} {other}"
                );
                for device in rotten {
                    bench.faults[*device].clear();
                }
            }
        }
        // Nothing wrong was written anywhere.
        for gone in sets(stripes as usize, profile.tolerated()) {
            assert_eq!(bench.without(&gone).read(length).unwrap(), data);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    /// Writes parts of rows in any order, several at a time. The parity
    /// follows.
    #[test]
    fn parity_follows_every_write(
        seeds in prop::collection::vec((0_u64..2000, 1_u64..60), 1..12),
        raid6 in any::<bool>(),
    ) {
        let (profile, stripes) = if raid6 { (Profile::Raid6, 4) } else { (Profile::Raid5, 3) };
        let bench = Bench::new(profile, stripes);
        let length = chunk(profile, stripes).length as usize;
        let mut expected = vec![0; length];
        for (number, (at, sectors)) in seeds.into_iter().enumerate() {
            let at = (at as usize * 4096) % length;
            let end = (at + sectors as usize * 4096).min(length);
            let data = content(end - at, number as u64);
            // In two blocks, the later one first.
            let half = (end - at) / 8192 * 4096;
            let (first, second) = data.split_at(half);
            let blocks: Vec<(Logical, &[u8])> = vec![
                (START.saturating_add((at + half) as u64), second),
                (START.saturating_add(at as u64), first),
            ];
            bench.space.write_many(&blocks).unwrap();
            expected[at..end].copy_from_slice(&data);
        }
        for gone in sets(stripes as usize, profile.tolerated()) {
            prop_assert_eq!(&bench.without(&gone).read(length).unwrap(), &expected);
        }
    }
}

#[test]
fn a_device_that_fails_is_left_out_and_the_next_one_is_not() {
    for (profile, stripes) in [
        (Profile::Raid1, 2),
        (Profile::Raid10, 4),
        (Profile::Raid5, 3),
    ] {
        for operation in [Operation::Write, Operation::Flush] {
            let bench = Bench::new(profile, stripes);
            let length = chunk(profile, stripes).length as usize;
            let before = content(length, 5);
            bench.space.write(START, &before).unwrap();
            assert!(bench.space.is_whole());
            bench.faults[1].inject(Fault::Fail(operation, When::Always));
            let after = content(length, 6);
            bench.space.write(START, &after).unwrap();
            bench.space.flush().unwrap();
            assert_eq!(bench.space.state(DeviceId(2)), Some(MemberState::Failing));
            assert_eq!(bench.space.losses(), 1);
            assert!(!bench.space.is_whole());
            let counted = bench.space.stats(DeviceId(2)).unwrap().values();
            assert_eq!(counted.map(|(_, n)| n).iter().sum::<u64>(), 1);
            // The device works again, but it is not used.
            bench.faults[1].clear();
            assert_eq!(bench.read(length).unwrap(), after, "{profile}");
            bench.space.write(START, &before).unwrap();
            assert_eq!(bench.read(length).unwrap(), before, "{profile}");
            bench.faults[0].inject(Fault::Fail(operation, When::Always));
            let failed = bench
                .space
                .write(START, &after)
                .and_then(|()| bench.space.flush());
            assert!(matches!(failed, Err(VolumeError::Device(_))), "{profile}");
            assert_eq!(bench.space.state(DeviceId(1)), Some(MemberState::Present));
        }
    }
}

#[test]
fn what_has_one_copy_is_not_given_up() {
    let bench = Bench::new(Profile::Raid0, 2);
    bench.faults[1].inject(Fault::Fail(Operation::Write, When::Always));
    let failed = bench.space.write(START, &content(300_000, 1));
    assert!(matches!(failed, Err(VolumeError::Device(_))));
    assert_eq!(bench.space.losses(), 0);
    assert_eq!(bench.space.state(DeviceId(2)), Some(MemberState::Present));
}

#[test]
fn stale_devices_are_never_read_and_suspect_ones_last() {
    let bench = Bench::new(Profile::Raid1, 2);
    let length = chunk(Profile::Raid1, 2).length as usize;
    let (old, new) = (content(length, 7), content(length, 8));
    bench.space.write(START, &old).unwrap();
    let memory = bench.memory.clone();
    // Device 1 has the new content, device 2 the old one.
    memory[0].write_at(DeviceOffset(MIB), &new).unwrap();
    let with = |state, trust| {
        Bench::over(Profile::Raid1, memory.clone(), move |given| {
            match given.id.get() {
                2 => VolumeDevice {
                    state,
                    trust,
                    ..given
                },
                _ => given,
            }
        })
    };
    let stale = with(MemberState::Stale, Trust::Last);
    assert_eq!(stale.read(length).unwrap(), new);
    let is_new = &mut |bytes: &[u8]| bytes == new;
    let mut found = vec![0; length];
    let healed = stale
        .space
        .read_verified(START, &mut found, is_new)
        .unwrap();
    assert_eq!(healed, Healed::default());
    stale.faults[0].inject(Fault::Gone);
    assert!(
        stale.read(length).is_err(),
        "rather nothing than old content"
    );
    let suspect = with(MemberState::Present, Trust::Last);
    for at in (0..length).step_by(65536) {
        let mut found = vec![0; 4096];
        let at = START.saturating_add(at as u64);
        suspect.space.read(at, &mut found).unwrap();
        let from = (at.get() - START.get()) as usize;
        assert_eq!(found, new[from..from + 4096]);
    }
    suspect.faults[0].inject(Fault::Gone);
    assert_eq!(suspect.read(length).unwrap(), old);
}

/// Each of two mirrors is asked for its part.
#[test]
fn mirrors_take_turns() {
    let memory: Vec<Arc<MemoryDevice>> = (0..2)
        .map(|_| Arc::new(MemoryDevice::new(64 * MIB)))
        .collect();
    let mut large = chunk(Profile::Raid1, 2);
    large.length = 32 * MIB;
    let traced: Vec<Arc<FaultDevice>> = memory
        .iter()
        .map(|memory| Arc::new(FaultDevice::new(memory.clone(), 1)))
        .collect();
    let devices = traced.iter().zip(1..).map(|(device, id)| {
        VolumeDevice::present(
            DeviceId(id),
            [0; 16],
            device.clone() as Arc<dyn BlockDevice>,
        )
    });
    let map = ChunkMap::default().with(START, large).unwrap();
    let space = LogicalSpace::over(devices.collect(), map, OnDamage::Leave, OnLoss::GoOn);
    // Device 1 fails all reads, so its error counter shows how many it was
    // asked for.
    traced[0].inject(Fault::Fail(Operation::Read, When::Always));
    let mut buffer = vec![0; 4096];
    for mebibyte in 0..32 {
        space
            .read(START.saturating_add(mebibyte * MIB), &mut buffer)
            .unwrap();
    }
    let errors = space.stats(DeviceId(1)).unwrap().values()[1].1;
    // Half of the 32 reads try it first: once for all pieces, and once piece by
    // piece.
    assert_eq!(errors, 32);
}

/// Holds every write but the first back, until it is opened.
#[derive(Debug, Default)]
struct Gate {
    writes: std::sync::Mutex<(usize, bool)>,
    changed: std::sync::Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.writes.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        if state.0 > 1 {
            drop(self.changed.wait_while(state, |state| !state.1).unwrap());
        }
    }

    fn wait_for_second(&self) {
        let state = self.writes.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.0 < 2).unwrap());
    }

    fn open(&self) {
        *self.writes.lock().unwrap() = (2, true);
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct Gated(Arc<MemoryDevice>, Arc<Gate>);

impl BlockDevice for Gated {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read_at(&self, offset: DeviceOffset, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buffer)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.1.pass();
        self.0.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        self.0.discard(range)
    }
    fn identity(&self) -> String {
        self.0.identity()
    }
    fn access(&self) -> Access {
        self.0.access()
    }
}

/// A write to a row changes the data and then the parity. In between, nothing
/// can be rebuilt.
#[test]
fn nothing_is_rebuilt_in_the_middle_of_a_write_to_the_row() {
    const LENGTH: usize = 3 * 65536;
    for (profile, stripes) in [(Profile::Raid5, 4), (Profile::Raid6, 5_u64)] {
        let bench = Bench::new(profile, stripes);
        let old = content(LENGTH, 3);
        bench.space.write(START, &old).unwrap();
        for missing in 0..stripes {
            let gate = Arc::new(Gate::default());
            let devices = bench.memory.iter().zip(1_u64..).map(|(memory, id)| {
                let uuid = [id as u8; 16];
                if id == missing + 1 {
                    return VolumeDevice::missing(DeviceId(id), uuid);
                }
                let gated = Gated(Arc::new(memory.snapshot()), Arc::clone(&gate));
                VolumeDevice::present(DeviceId(id), uuid, Arc::new(gated))
            });
            let map = ChunkMap::default()
                .with(START, chunk(profile, stripes))
                .unwrap();
            let space = LogicalSpace::over(devices.collect(), map, OnDamage::Heal, OnLoss::GoOn);
            // The second column is written; the others stay.
            let new = content(4096, 4);
            let written = START.saturating_add(65536);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let written = space.write(written, &new);
                    // Without a device there may be only one write.
                    gate.open();
                    written
                });
                gate.wait_for_second();
                let readers = [0, 2 * 65536].map(|at| {
                    let space = &space;
                    scope.spawn(move || {
                        let mut found = vec![0; 65536];
                        let from = START.saturating_add(at);
                        space.read(from, &mut found).map(|()| (at, found))
                    })
                });
                let all = scope.spawn(|| {
                    let mut found = vec![0; LENGTH];
                    space.read(START, &mut found).map(|()| found)
                });
                std::thread::sleep(std::time::Duration::from_millis(50));
                gate.open();
                writer.join().unwrap().unwrap();
                for reader in readers {
                    let (at, found) = reader.join().unwrap().unwrap();
                    let at = at as usize;
                    assert!(found == old[at..at + 65536], "{profile}, {missing}, {at}");
                }
                let found = all.join().unwrap().unwrap();
                assert!(found[..65536] == old[..65536], "{profile}, {missing}");
                assert!(
                    found[2 * 65536..] == old[2 * 65536..],
                    "{profile}, {missing}"
                );
            });
        }
    }
}
