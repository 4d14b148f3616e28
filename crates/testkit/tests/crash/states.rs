//! The states in which a crash can leave a device.

use butterfs::{BlockDevice, MemoryDevice};
use butterfs_device::record::{Action, Event, Position};
use butterfs_format::DeviceOffset;
use butterfs_testkit::Random;
use std::collections::{HashMap, HashSet};
use xxhash_rust::xxh64::xxh64;

const SECTOR: usize = 512;
/// All subsets of at most this many writes are tried.
const ALL_SUBSETS: usize = 6;

/// A crash: its time, and what the device holds then.
pub struct State {
    pub time: usize,
    pub device: MemoryDevice,
    pub what: String,
}

fn write(device: &MemoryDevice, offset: DeviceOffset, data: &[u8]) {
    device.write_at(offset, data).expect("memory");
}

/// The difference from the base, as one number: equal content has an equal
/// number.
#[derive(Clone, Default)]
struct Difference {
    sectors: HashMap<u64, u64>,
    sum: u64,
}

impl Difference {
    fn set(&mut self, (sector, hash): (u64, u64)) {
        let old = self.sectors.insert(sector, hash).unwrap_or(0);
        self.sum ^= old ^ hash;
    }

    /// The number with `changes` on top.
    fn with(&self, changes: impl Iterator<Item = (u64, u64)>) -> u64 {
        let mut over: HashMap<u64, u64> = HashMap::new();
        let mut sum = self.sum;
        for (sector, hash) in changes {
            let below = || self.sectors.get(&sector).copied().unwrap_or(0);
            let old = over.get(&sector).copied().unwrap_or_else(below);
            over.insert(sector, hash);
            sum ^= old ^ hash;
        }
        sum
    }
}

/// Sectors that an event writes, each with a hash of its new content; 0 if that
/// is the base's content.
fn sectors(base: &MemoryDevice, event: &Event) -> Vec<(u64, u64)> {
    let (offset, data) = match &event.action {
        Action::Write { offset, data } => (*offset, data.to_vec()),
        Action::Discard(range) => (range.start, vec![0; range.length as usize]),
        Action::Flush { .. } => return Vec::new(),
    };
    let mut old = vec![0; data.len()];
    base.read_at(offset, &mut old).expect("memory");
    let pairs = data.chunks(SECTOR).zip(old.chunks(SECTOR));
    let first = offset.get() / SECTOR as u64;
    (first..)
        .zip(pairs)
        .map(|(sector, (new, old))| {
            let hash = if new == old { 0 } else { xxh64(new, sector) };
            (sector, hash)
        })
        .collect()
}

/// How many states a visit had.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visited {
    /// All states.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub all: usize,
    /// States whose content no other state has.
    pub distinct: usize,
}

/// Visits crash states of a recording over `base`: at each flush and at the
/// end, with subsets of the unflushed writes, about `budget` of them at most.
/// Content that was visited is visited again only if more is promised.
pub fn visit(
    base: &MemoryDevice,
    events: &[Event],
    random: &mut Random,
    budget: usize,
    visit: &mut dyn FnMut(State),
) -> Visited {
    let durable = base.snapshot();
    let mut below = Difference::default();
    let mut all = HashSet::new();
    let is_flush = |event: &Event| matches!(event.action, Action::Flush { .. });
    let flushes = events.iter().filter(|event| is_flush(event)).count();
    let share = (budget / (flushes + 1)).max(4);
    let mut states = 0;
    // Writes that no flush has made durable.
    let mut waiting: Vec<usize> = Vec::new();
    for at in 0..=events.len() {
        if events.get(at).is_some_and(|event| !is_flush(event)) {
            waiting.push(at);
            continue;
        }
        let numbers = std::mem::take(&mut waiting);
        let waiting_now: Vec<&Event> = numbers.iter().map(|number| &events[*number]).collect();
        let changes = waiting_now.iter().map(|event| sectors(base, event));
        let changes: Vec<_> = changes.collect();
        let mut here = HashSet::new();
        for fates in subsets(numbers.len(), random, share) {
            let kept = changes.iter().zip(&fates).flat_map(|(sectors, fate)| {
                let is_kept = |number: usize| fate.keeps(number);
                let numbered = sectors.iter().enumerate();
                numbered.filter_map(move |(number, sector)| is_kept(number).then_some(*sector))
            });
            let content = below.with(kept);
            if !here.insert(content) {
                continue;
            }
            all.insert(content);
            let device = durable.snapshot();
            for (event, fate) in waiting_now.iter().zip(&fates) {
                fate.apply(&device, event);
            }
            states += 1;
            visit(State {
                time: at,
                device,
                what: format!("events {numbers:?}: {fates:?}"),
            });
        }
        let is_durable = |number: usize| match events.get(at).map(|event| &event.action) {
            Some(Action::Flush { began, unfinished }) => {
                number < began.0 && !unfinished.contains(&Position(number))
            }
            _ => false,
        };
        for ((event, sectors), number) in waiting_now.into_iter().zip(changes).zip(numbers) {
            if is_durable(number) {
                Fate::Kept.apply(&durable, event);
                sectors.into_iter().for_each(|sector| below.set(sector));
            } else {
                waiting.push(number);
            }
        }
    }
    Visited {
        all: states,
        distinct: all.len(),
    }
}

/// Makes a recorded write.
#[allow(dead_code, reason = "one of the tests asks")]
pub fn keep(device: &MemoryDevice, event: &Event) {
    Fate::Kept.apply(device, event);
}

/// What flushes had made durable of a recording over `base` before event `end`,
/// and the writes that no flush had made durable.
#[allow(dead_code, reason = "one of the tests asks")]
pub fn cut(base: &MemoryDevice, events: &[Event], end: usize) -> (MemoryDevice, Vec<Event>) {
    let durable = base.snapshot();
    let mut waiting: Vec<usize> = Vec::new();
    for (at, event) in events[..end].iter().enumerate() {
        let Action::Flush { began, unfinished } = &event.action else {
            waiting.push(at);
            continue;
        };
        waiting.retain(|number| {
            let is_durable = *number < began.0 && !unfinished.contains(&Position(*number));
            if is_durable {
                Fate::Kept.apply(&durable, &events[*number]);
            }
            !is_durable
        });
    }
    let waiting = waiting.into_iter().map(|number| events[number].clone());
    (durable, waiting.collect())
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    /// The sectors whose bit is set are there.
    Torn(u64),
}

impl Fate {
    const fn keeps(self, sector: usize) -> bool {
        match self {
            Self::Kept => true,
            Self::Lost => false,
            Self::Torn(mask) => mask >> (sector % 64) & 1 == 1,
        }
    }

    fn apply(self, device: &MemoryDevice, event: &Event) {
        match (self, &event.action) {
            (Self::Lost, _) | (_, Action::Flush { .. }) => {}
            (Self::Kept, Action::Write { offset, data }) => write(device, *offset, data),
            (Self::Torn(_), Action::Write { offset, data }) => {
                for (number, bytes) in data.chunks(SECTOR).enumerate() {
                    if self.keeps(number) {
                        let at = offset.get() + (number * SECTOR) as u64;
                        write(device, DeviceOffset(at), bytes);
                    }
                }
            }
            // A discard frees a whole range. If it is torn, it counts as lost.
            (Self::Kept, Action::Discard(range)) => device.discard(*range).expect("memory"),
            (Self::Torn(_), Action::Discard(_)) => {}
        }
    }
}

/// Fates of `n` unflushed writes, about `share` of them.
fn subsets(n: usize, random: &mut Random, share: usize) -> Vec<Vec<Fate>> {
    let fate = |kept| if kept { Fate::Kept } else { Fate::Lost };
    let mut all: Vec<Vec<Fate>> = Vec::new();
    if n <= ALL_SUBSETS {
        for mask in 0_u32..1 << n {
            all.push((0..n).map(|at| fate(mask >> at & 1 == 1)).collect());
        }
    } else {
        all.push(vec![Fate::Lost; n]);
        all.push(vec![Fate::Kept; n]);
        // Each write alone, and each one missing, as far as the share allows.
        let mut order: Vec<usize> = (0..n).collect();
        for at in (1..n).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        for one in order.into_iter().take((share / 4).max(1)) {
            all.push((0..n).map(|at| fate(at == one)).collect());
            all.push((0..n).map(|at| fate(at != one)).collect());
        }
        while all.len() < share / 4 * 3 {
            all.push((0..n).map(|_| fate(random.one_in(2))).collect());
        }
    }
    let room = share.saturating_sub(all.len()).clamp(4, 64);
    for _ in 0..if n > 0 { room } else { 0 } {
        let torn = random.below(n as u64) as usize;
        let mut fates: Vec<Fate> = (0..n).map(|_| fate(random.one_in(2))).collect();
        fates[torn] = Fate::Torn(random.bits());
        all.push(fates);
    }
    all
}
