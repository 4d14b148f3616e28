//! Estimates how long a balance takes, without writing anything.

use super::Planned;
use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_store::Store;
use butterfs_volume::Profile;
use std::time::{Duration, Instant};

/// Bytes of the sample that is read to measure the speed.
const SAMPLE: u64 = 64 << 20;
/// Bytes of one read.
const READ: u64 = 1 << 20;
/// The longest time for reading the sample.
const SAMPLE_TIME: Duration = Duration::from_secs(2);
/// Time for moving a node, without reading and writing it: finding the
/// references to it, and changing them.
const NODE: Duration = Duration::from_micros(60);
/// Time for each block group, which takes at least one commit.
const GROUP: Duration = Duration::from_millis(50);

/// Returns how many bytes can be read in a second, by a sample from all of the
/// groups; `None` if nothing could be read.
fn read_rate(store: &Store, planned: &[Planned]) -> Option<f64> {
    let space = store.space();
    let total: u64 = planned.iter().map(|group| group.used).sum();
    let begun = Instant::now();
    let mut buffer = vec![0; READ as usize];
    let mut bytes = 0;
    for group in planned {
        let share = SAMPLE.saturating_mul(group.used) / total.max(1);
        let reads = share.div_ceil(READ).min(group.length / READ);
        for number in 0..reads {
            let within = group.length / READ * number / reads.max(1) * READ;
            let at = Logical(group.start.get() + within);
            if space.read_first(at, &mut buffer).is_ok() {
                bytes += READ;
            }
            if begun.elapsed() > SAMPLE_TIME {
                break;
            }
        }
    }
    (bytes > 0).then(|| bytes as f64 / begun.elapsed().as_secs_f64().max(1e-6))
}

/// Estimates how long the balance of these groups takes. It assumes that their
/// content is read once and written to all copies, at the speed at which a sample
/// of it can be read now. If the devices write more slowly, it takes longer.
#[must_use]
pub fn estimate(store: &Store, planned: &[Planned]) -> Duration {
    let Some(rate) = read_rate(store, planned) else {
        return GROUP.saturating_mul(planned.len() as u32);
    };
    let node_size = store.look(|engine| Ok::<_, butterfs_store::StoreError>(engine.node_size()));
    let node_size = node_size.unwrap_or(16384) as u64;
    let mut time = Duration::ZERO;
    for group in planned {
        let profile = Profile::from_flags(group.flags).unwrap_or(Profile::Single);
        let times = 1 + profile.copies() + profile.parities();
        time += GROUP + Duration::from_secs_f64(group.used as f64 * times as f64 / rate);
        if !group.flags.contains(BlockGroupFlags::DATA) {
            let nodes = u32::try_from(group.used / node_size).unwrap_or(u32::MAX);
            time = time.saturating_add(NODE.saturating_mul(nodes));
        }
    }
    time
}
