//! The states in which a crash can leave a device.

use butterfs::{BlockDevice, MemoryDevice};
use butterfs_device::record::{Action, Event};
use butterfs_format::DeviceOffset;
use butterfs_testkit::Random;

const SECTOR: usize = 512;
/// All subsets of at most this many writes are tried.
const ALL_SUBSETS: usize = 5;

/// A crash: when, and what the device holds then.
pub struct State {
    pub time: usize,
    pub device: MemoryDevice,
    pub what: String,
}

fn write(device: &MemoryDevice, offset: DeviceOffset, data: &[u8]) {
    device.write_at(offset, data).expect("memory");
}

fn apply(device: &MemoryDevice, event: &Event) {
    match &event.action {
        Action::Write { offset, data } => write(device, *offset, data),
        Action::Discard(range) => device.discard(*range).expect("memory"),
        Action::Flush { .. } => {}
    }
}

/// Visits crash states of a recording over `base`: at each flush, and at the
/// end, with subsets of what was not flushed; about `budget` of them at most.
pub fn visit(
    base: &MemoryDevice,
    events: &[Event],
    random: &mut Random,
    budget: usize,
    visit: &mut dyn FnMut(State),
) -> usize {
    let durable = base.snapshot();
    let mut count = 0;
    let mut start = 0;
    let flushes = events
        .iter()
        .filter(|event| matches!(event.action, Action::Flush { .. }))
        .count();
    let share = (budget / (flushes + 1)).max(4);
    for at in 0..=events.len() {
        let ends = at == events.len() || matches!(events[at].action, Action::Flush { .. });
        if !ends {
            continue;
        }
        let waiting = &events[start..at];
        for fates in subsets(waiting, random, share) {
            let device = durable.snapshot();
            for (event, fate) in waiting.iter().zip(&fates) {
                match (fate, &event.action) {
                    (Fate::Kept, _) => apply(&device, event),
                    (Fate::Torn(mask), Action::Write { offset, data }) => {
                        for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                            if mask >> (sector % 64) & 1 == 1 {
                                let at = offset.get() + (sector * SECTOR) as u64;
                                write(&device, DeviceOffset(at), bytes);
                            }
                        }
                    }
                    _ => {}
                }
            }
            count += 1;
            visit(State {
                time: at,
                device,
                what: format!("events {start}..{at}: {fates:?}"),
            });
        }
        for event in waiting {
            apply(&durable, event);
        }
        start = at;
    }
    count
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    Torn(u64),
}

fn subsets(waiting: &[Event], random: &mut Random, share: usize) -> Vec<Vec<Fate>> {
    let n = waiting.len();
    let fate = |kept| if kept { Fate::Kept } else { Fate::Lost };
    let mut all: Vec<Vec<Fate>> = Vec::new();
    if n <= ALL_SUBSETS {
        for mask in 0_u32..1 << n {
            all.push((0..n).map(|at| fate(mask >> at & 1 == 1)).collect());
        }
    } else {
        all.push(vec![Fate::Lost; n]);
        all.push(vec![Fate::Kept; n]);
        for _ in 0..share / 4 {
            let only = random.below(n as u64) as usize;
            all.push((0..n).map(|at| fate(at == only)).collect());
            all.push((0..n).map(|at| fate(at != only)).collect());
            all.push((0..n).map(|_| fate(random.one_in(2))).collect());
        }
    }
    if n > 0 {
        for _ in 0..(share / 4).clamp(1, 8) {
            let torn = random.below(n as u64) as usize;
            let mask = random.bits();
            let others = random.bits();
            let mut fates: Vec<Fate> = (0..n)
                .map(|at| fate(others >> (at % 64) & 1 == 1))
                .collect();
            fates[torn] = Fate::Torn(mask);
            all.push(fates);
        }
    }
    all.truncate(share.max(8));
    all
}
