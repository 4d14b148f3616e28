//! A new block group, where no free space is left for the nodes of a repair.
//!
//! It lies in space of the devices that neither a chunk nor a device extent has.

use crate::error::RepairError;
use crate::items;
use crate::step::{Step, StepKind};
use crate::writer::Writer;
use butterfs_format::item::chunk::{Chunk, Stripe};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use butterfs_volume::placement::{DeviceSpace, plan};
use butterfs_volume::{Profile, VolumeError};
use std::collections::BTreeMap;

/// Bytes of a stripe element, and the alignment of chunks.
const ELEMENT: u32 = 64 << 10;

/// What of each device is taken, by chunks and by device extents that can be
/// read.
fn taken(writer: &Writer) -> BTreeMap<DeviceId, Vec<(u64, u64)>> {
    let mut taken: BTreeMap<DeviceId, Vec<(u64, u64)>> = BTreeMap::new();
    let mut add = |device: DeviceId, start: u64, length: u64| {
        let of_device = taken.entry(device).or_default();
        of_device.push((start, start.saturating_add(length)));
    };
    let map = writer.patient.space.map();
    for (logical, chunk) in map.iter() {
        let length = map.find_stripe_length(logical);
        let length = length.map_or(0, |(_, length)| length);
        for stripe in &chunk.stripes {
            add(stripe.device, stripe.offset.get(), length);
        }
    }
    // The chunks say where everything lies. An extent without a chunk may be of
    // one that is lost.
    let _ = items::each(writer, TreeId::DEVICE, Key::MIN..=Key::MAX, |key, data| {
        if key.item_type == ItemType::DEV_EXTENT
            && let Ok(extent) = DeviceExtent::parse(data)
        {
            add(DeviceId(key.objectid), key.offset, extent.length);
        }
        Ok(())
    });
    taken
}

/// Makes a block group of the profile that the newest one for metadata has.
///
/// # Errors
/// [`RepairError::NoSpace`] if no device has room for it.
pub(crate) fn add(writer: &mut Writer, steps: &mut Vec<Step>) -> Result<(), RepairError> {
    let newest = writer.groups().iter().rfind(|one| writer.is_for_nodes(one));
    let flags = newest
        .map(|group| group.flags)
        .ok_or(RepairError::NoSpace)?;
    let mut taken = taken(writer);
    let members = &writer.patient.members;
    let spaces: Vec<DeviceSpace> = members
        .iter()
        .map(|member| {
            let own = &member.superblock.device;
            let mut allocated = taken.remove(&own.id).unwrap_or_default();
            allocated.sort_unstable();
            DeviceSpace {
                device: own.id,
                size: member.device.size().min(own.total_bytes),
                allocated: allocated
                    .into_iter()
                    .map(|(start, end)| start..end)
                    .collect(),
            }
        })
        .collect();
    let plan = plan(flags, &spaces).map_err(|error| match error {
        VolumeError::NoSpace => RepairError::NoSpace,
        other => other.into(),
    })?;
    let map = writer.patient.space.map();
    let last = map.iter().last();
    let end = last.map_or(0, |(at, chunk)| at.get().saturating_add(chunk.length));
    // No extent may lie there either, not even one that is recorded wrongly.
    let start = writer.used.first_gap(end..u64::MAX, plan.length);
    let logical = Logical(start.ok_or(RepairError::NoSpace)?);
    let uuid_of = |id: DeviceId| {
        let own = members.iter().map(|member| &member.superblock.device);
        own.clone().find(|own| own.id == id).map(|own| own.uuid)
    };
    let stripes = plan.stripes.iter().map(|(device, offset)| Stripe {
        device: *device,
        offset: *offset,
        device_uuid: uuid_of(*device).unwrap_or_default(),
    });
    let chunk = Chunk {
        length: plan.length,
        owner: TreeId::EXTENT.get(),
        stripe_length: u64::from(ELEMENT),
        flags,
        io_align: ELEMENT,
        io_width: ELEMENT,
        sector_size: writer.patient.superblock.sector_size,
        sub_stripes: Profile::from_flags(flags).map_or(1, Profile::sub_stripes),
        stripes: stripes.collect(),
    };
    writer.add_chunk(logical, chunk)?;
    let text = format!("{} bytes at logical {logical}.", plan.length);
    steps.push(Step::new(StepKind::NewBlockGroup, text));
    Ok(())
}
