//! `butterfs inspect-internal min-dev-size`: how small a device can become.

use crate::fail::{Context, Done, Failure, fail};
use crate::place::Place;
use crate::service::{OnKernel, OnVolume};
use crate::sizes;
use butterfs::{Part, TreeId, Volume};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::{ItemType, Key, ParseError};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::ops::{ControlFlow, Range};

/// Bytes at the start of a device in which nothing is allocated.
const RESERVED: u64 = 1 << 20;
/// Bytes of the greatest system chunk: moving others may need a new one.
const SYSTEM_CHUNK_MAX: u64 = 32 << 20;

/// Print the smallest size to which a device can be shrunk.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Example:
  butterfs inspect min-dev-size --id 2 /mnt

`butterfs filesystem resize` makes no device smaller than 256 MiB, as Linux.")]
pub struct MinDevSize {
    /// Number of the device.
    #[arg(long, value_name = "DEVID", default_value_t = 1)]
    id: u64,
    /// The volume, or a path on a mount of it.
    place: Place,
}

impl OnVolume for MinDevSize {
    const NAME: &'static str = "inspect-internal min-dev-size";
    const TAG: &'static str = "MinDevSize";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.place, Part::Whole))
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_as_committed()?;
        let at = self.place.volume.display();
        let allocated = allocated(&volume, self.id).map_err(|error| error.at(&at))?;
        if allocated.is_empty() && !has_device(&volume, self.id).context(&at)? {
            return fail(format!("{at} has no device {}", self.id));
        }
        let size = least_size(&allocated);
        say!("{size} bytes ({})", sizes::human(size));
        Ok(())
    }
}

fn has_device(volume: &Volume, id: u64) -> Result<bool, butterfs::FsError> {
    let key = Key::new(1, ItemType::DEV_ITEM, id);
    let mut found = false;
    volume
        .trees()
        .items_from(TreeId::CHUNK, &key, &mut |item| {
            found = item.key == key;
            ControlFlow::Break(())
        })?;
    Ok(found)
}

/// The allocated ranges of a device, in order.
fn allocated(volume: &Volume, id: u64) -> Result<Vec<Range<u64>>, Failure> {
    let first = Key::new(id, ItemType::DEV_EXTENT, 0);
    let mut found = Vec::new();
    let mut damage: Option<ParseError> = None;
    let done = volume
        .trees()
        .items_from(TreeId::DEVICE, &first, &mut |item| {
            if (item.key.objectid, item.key.item_type) != (id, ItemType::DEV_EXTENT) {
                return ControlFlow::Break(());
            }
            match DeviceExtent::parse(item.data) {
                Ok(extent) => {
                    found.push(item.key.offset..item.key.offset.saturating_add(extent.length));
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    damage = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
    done.context("reading the device tree")?;
    match damage {
        Some(error) => Err(error.into()),
        None => Ok(found),
    }
}

/// The smallest size of a device with these ranges allocated, in order. Without
/// gaps it would be their sum. A range beyond that moves into a gap before it that
/// is large enough; where there is none, the device ends with that range. While
/// a range moves, it needs its space twice, and the volume may need a new
/// system chunk.
fn least_size(allocated: &[Range<u64>]) -> u64 {
    let length = |range: &Range<u64>| range.end.saturating_sub(range.start);
    let sum = allocated.iter().map(length).fold(0, u64::saturating_add);
    let packed = sum.saturating_add(RESERVED);
    let mut gaps = Vec::new();
    let mut end = RESERVED;
    for range in allocated {
        if range.start > end {
            gaps.push(end..range.start);
        }
        end = end.max(range.end);
    }
    let mut moved = 0;
    for range in allocated.iter().rev() {
        let stays = if range.end <= packed {
            packed
        } else {
            let fits =
                |gap: &&mut Range<u64>| gap.end <= range.start && length(gap) >= length(range);
            match gaps.iter_mut().find(fits) {
                Some(gap) => {
                    gap.start += length(range);
                    moved = moved.max(length(range));
                    continue;
                }
                None => range.end,
            }
        };
        return needed(stays, moved);
    }
    needed(packed, moved)
}

/// The size with the space that moving needs.
const fn needed(size: u64, moved: u64) -> u64 {
    match moved {
        0 => size,
        moved => size.saturating_add(moved).saturating_add(SYSTEM_CHUNK_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::{RESERVED, SYSTEM_CHUNK_MAX, least_size};

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_lies_without_gaps_stays() {
        assert_eq!(least_size(&[]), RESERVED);
        let ranges = [MIB..9 * MIB, 9 * MIB..41 * MIB];
        assert_eq!(least_size(&ranges), 41 * MIB);
    }

    #[test]
    fn a_range_that_fits_no_gap_stays() {
        // As mkfs.btrfs lays out a small volume.
        let ranges = [
            MIB..9 * MIB,
            13 * MIB..37 * MIB,
            37 * MIB..69 * MIB,
            69 * MIB..101 * MIB,
        ];
        assert_eq!(least_size(&ranges), 101 * MIB);
    }

    #[test]
    fn a_range_that_fits_a_gap_moves() {
        let ranges = [MIB..9 * MIB, 100 * MIB..132 * MIB];
        let packed = 41 * MIB;
        assert_eq!(least_size(&ranges), packed + 32 * MIB + SYSTEM_CHUNK_MAX);
    }
}
