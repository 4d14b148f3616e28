//! The way back: verifying that it is there, and going it.

use crate::decide::{self, OLD_PLACE, OLD_SIZE, PLACE, Search, Side, State};
use crate::error::{ConvertError, InTheWay};
use crate::ground::{CELL, Ground, Kind, SECTOR, free_runs, used_sectors};
use crate::options::{Step, Watch};
use crate::sums::sums_of;
use crate::volume::{ImageSource, SavedImage, Volume};
use butterfs_device::{BlockDevice, DeviceRange};
use butterfs_ext4::{FileSystem, Source as _};
use butterfs_format::item::csum::{self, CsumItem};
use butterfs_format::superblock::{COPIES, SIZE};
use butterfs_format::{DeviceOffset, ItemType, Key, Logical, TreeId, UuidBytes};
use butterfs_tree::Cursor;
use std::ops::Range;
use std::sync::Arc;

/// Bytes whose checksums are compared at once.
const BATCH: u64 = 32 << 20;
const PIECE: u64 = 1 << 20;

/// What was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// UUID of the old file system.
    pub uuid: UuidBytes,
    /// Its label.
    pub label: Vec<u8>,
    /// Its bytes.
    pub size: u64,
    /// Whether a way back that was begun was only ended.
    pub was_begun: bool,
}

/// Says whether there is a way back, and writes nothing.
///
/// # Errors
/// [`ConvertError::NoWayBack`] says what is in the way.
pub fn verify_rollback(
    device: &Arc<dyn BlockDevice>,
    watch: &dyn Watch,
) -> Result<RolledBack, ConvertError> {
    let State::New(superblock) = decide::state(device)? else {
        return Err(InTheWay::NoSubvolume.into());
    };
    let volume = Volume::open(device, &superblock)?;
    Ok(Back::verify(device, &volume, watch)?.facts)
}

/// Gives the old file system back, bit for bit. What was changed since the
/// conversion is lost.
///
/// # Errors
/// [`ConvertError::NoWayBack`] says what is in the way; nothing was written
/// then.
pub fn rollback(
    device: &Arc<dyn BlockDevice>,
    watch: &dyn Watch,
) -> Result<RolledBack, ConvertError> {
    let State::New(superblock) = decide::state(device)? else {
        if !decide::mend(device, Side::Old, Search::All)? {
            return Err(InTheWay::NoSubvolume.into());
        }
        let old = crate::source::Old::open(crate::source::DeviceSource::new(device))?;
        let facts = old.superblock();
        return Ok(RolledBack {
            uuid: facts.uuid,
            label: facts.label.clone(),
            size: facts.blocks.saturating_mul(facts.block_size()),
            was_begun: true,
        });
    };
    let volume = Volume::open(device, &superblock)?;
    let back = Back::verify(device, &volume, watch)?;
    back.go(device, &volume)?;
    Ok(back.facts)
}

/// A way back that was verified.
struct Back {
    image: SavedImage,
    ground: Ground,
    facts: RolledBack,
    /// Where a note goes.
    note: u64,
    /// What the volume has that the image does not: ascending.
    added: Vec<Range<u64>>,
}

impl Back {
    fn verify(
        device: &Arc<dyn BlockDevice>,
        volume: &Volume,
        watch: &dyn Watch,
    ) -> Result<Self, ConvertError> {
        let image = volume.image()?;
        if device.size() < image.size {
            return Err(InTheWay::Shorter.into());
        }
        let ground = Ground::of_size(image.size);
        let source = ImageSource {
            device,
            image: &image,
            space: &volume.space,
        };
        let not_ext4 = |error: ConvertError| InTheWay::NotExt4(error.to_string());
        let old = FileSystem::open(source).map_err(|error| not_ext4(error.into()))?;
        used_sectors(&old, &mut |used| covered(&image, &ground, &used)).map_err(
            |error| match error {
                ConvertError::NoWayBack(_) => error,
                other => not_ext4(other).into(),
            },
        )?;
        if image.has_sums {
            compare(device, volume, &image, watch)?;
        }
        let added = added(volume, &image)?;
        let runs = free_runs(&old, &ground).map_err(not_ext4)?;
        let note = note_place(volume, &runs, &added).ok_or(InTheWay::NoRoom)?;
        let superblock = old.superblock();
        let facts = RolledBack {
            uuid: superblock.uuid,
            label: superblock.label.clone(),
            size: image.size,
            was_begun: false,
        };
        Ok(Self {
            facts,
            ground,
            note,
            added,
            image,
        })
    }

    fn go(&self, device: &Arc<dyn BlockDevice>, volume: &Volume) -> Result<(), ConvertError> {
        let source = ImageSource {
            device,
            image: &self.image,
            space: &volume.space,
        };
        let failed = ConvertError::Temporary;
        let mut superblock = vec![0; usize::try_from(OLD_SIZE).unwrap_or(0)];
        source.read_at(OLD_PLACE, &mut superblock).map_err(failed)?;
        let mut old = vec![0; SIZE];
        source.read_at(PLACE.get(), &mut old).map_err(failed)?;
        for (range, _) in &self.image.copies {
            let end = range.end.min(self.image.size);
            let length = end.saturating_sub(range.start);
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            source.read_at(range.start, &mut bytes).map_err(failed)?;
            self.write_back(device, range.start, &bytes)?;
        }
        // Copies of the superblock where the old file system has nothing.
        for copy in COPIES.into_iter().skip(1) {
            let place = copy.get()..copy.get().saturating_add(SECTOR);
            let is_copied = self
                .image
                .copies
                .iter()
                .any(|(range, _)| range.start < place.end && place.start < range.end);
            if place.end <= self.ground.size && !is_copied {
                device.write_at(copy, &vec![0; SIZE])?;
            }
        }
        device.flush()?;
        decide::back(device, &superblock, old, self.note)?;
        // Only advice: what the volume had besides is free now.
        for range in &self.added {
            let length = range.end - range.start;
            let range = DeviceRange {
                start: DeviceOffset(range.start),
                length,
            };
            device.discard(range).ok();
        }
        decide::erase_note(device, self.note)
    }

    /// Writes bytes back where they differ, but the superblock of ext4 and the
    /// place that decides.
    fn write_back(
        &self,
        device: &Arc<dyn BlockDevice>,
        start: u64,
        bytes: &[u8],
    ) -> Result<(), ConvertError> {
        const STEP: usize = 512;
        let keeps = [
            OLD_PLACE..OLD_PLACE + OLD_SIZE,
            PLACE.get()..PLACE.get() + SECTOR,
        ];
        let mut now = vec![0; bytes.len()];
        device.read_at(DeviceOffset(start), &mut now)?;
        let mut at = start;
        for (wanted, now) in bytes.chunks(STEP).zip(now.chunks(STEP)) {
            let is_kept = keeps.iter().any(|kept| kept.contains(&at));
            if !is_kept && wanted != now {
                device.write_at(DeviceOffset(at), wanted)?;
            }
            at = at.saturating_add(u64::try_from(wanted.len()).unwrap_or(0));
        }
        Ok(())
    }
}

/// Whether the image has a range that the old file system uses.
fn covered(image: &SavedImage, ground: &Ground, used: &Range<u64>) -> Result<(), ConvertError> {
    ground.cut(used.clone(), &mut |part, kind| {
        let mut at = part.start;
        while at < part.end {
            let end = match kind {
                Kind::Usable => {
                    let number = image.in_place.partition_point(|run| run.end <= at);
                    let run = image.in_place.get(number);
                    run.filter(|run| run.start <= at).map(|run| run.end)
                }
                Kind::Reserved => {
                    let mut copies = image.copies.iter();
                    let copy = copies.find(|(range, _)| range.contains(&at));
                    copy.map(|(range, _)| range.end)
                }
            };
            at = end.ok_or(InTheWay::Missing { at })?;
        }
        Ok(())
    })
}

/// Compares all data of the image with their checksums.
fn compare(
    device: &Arc<dyn BlockDevice>,
    volume: &Volume,
    image: &SavedImage,
    watch: &dyn Watch,
) -> Result<(), ConvertError> {
    let size = |range: &Range<u64>| range.end - range.start;
    let total = image.pieces.iter().map(|(range, _)| size(range)).sum();
    let mut done = 0;
    // Copies may lie anywhere.
    for (range, logical) in &image.copies {
        let mut bytes = vec![0; usize::try_from(size(range)).unwrap_or(0)];
        volume.space.read(*logical, &mut bytes)?;
        let mut sums = Vec::new();
        for sector in bytes.chunks(usize::try_from(SECTOR).unwrap_or(1)) {
            sums.extend(sum(volume, sector));
        }
        same(volume, (range.start, *logical), &sums)?;
    }
    let mut batch: Vec<(Range<u64>, Logical)> = Vec::new();
    let mut waits = 0;
    for (range, logical) in &image.pieces {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(PIECE));
            batch.push((at..end, logical.saturating_add(at - range.start)));
            waits += end - at;
            at = end;
            if waits >= BATCH {
                compare_batch(device, volume, std::mem::take(&mut batch))?;
                done += std::mem::take(&mut waits);
                watch.progress(Step::Comparing, done, total);
                if watch.is_stopped() {
                    return Err(ConvertError::Stopped);
                }
            }
        }
    }
    compare_batch(device, volume, batch)?;
    watch.progress(Step::Comparing, total, total);
    Ok(())
}

fn sum(volume: &Volume, sector: &[u8]) -> Vec<u8> {
    let checksum = volume.superblock.checksum_type;
    let sum = checksum.compute(sector);
    sum.get(..checksum.size()).unwrap_or_default().to_vec()
}

fn compare_batch(
    device: &Arc<dyn BlockDevice>,
    volume: &Volume,
    batch: Vec<(Range<u64>, Logical)>,
) -> Result<(), ConvertError> {
    let ranges: Vec<Range<u64>> = batch.iter().map(|(range, _)| range.clone()).collect();
    let all = sums_of(device, volume.superblock.checksum_type, &ranges)?;
    for ((range, logical), sums) in batch.into_iter().zip(all) {
        same(volume, (range.start, logical), &sums)?;
    }
    Ok(())
}

/// Compares checksums of sectors from `logical` on with those of the tree.
fn same(volume: &Volume, (at, logical): (u64, Logical), sums: &[u8]) -> Result<(), ConvertError> {
    let checksum = volume.superblock.checksum_type;
    let mut cursor = Cursor::seek_in(volume, TreeId::CSUM, &csum::key(logical))?;
    if cursor.key() != Some(csum::key(logical)) {
        cursor.seek_back(&csum::key(logical))?;
    }
    let mut left = sums.chunks(checksum.size()).enumerate().peekable();
    while let Some((number, sum)) = left.peek().copied() {
        let number = u64::try_from(number).unwrap_or(0);
        let here = logical.saturating_add(number.saturating_mul(SECTOR));
        let wrong = || InTheWay::Overwritten {
            at: at.saturating_add(number.saturating_mul(SECTOR)),
        };
        let (key, data) = cursor.item().ok_or_else(wrong)?;
        if key.item_type != ItemType::EXTENT_CSUM || key.offset > here.get() {
            return Err(wrong().into());
        }
        let sector = volume.superblock.sector_size;
        let item = CsumItem::parse(&key, data, checksum, sector)?;
        match item.find(here) {
            Some(stored) if stored == sum => {
                left.next();
            }
            Some(_) => return Err(wrong().into()),
            None => {
                cursor.next()?;
            }
        }
    }
    Ok(())
}

/// Where the volume has extents that the image does not have.
fn added(volume: &Volume, image: &SavedImage) -> Result<Vec<Range<u64>>, ConvertError> {
    let mut all: Vec<Range<u64>> = Vec::new();
    let node_size = u64::from(volume.superblock.node_size);
    let mut cursor = Cursor::seek_in(volume, TreeId::EXTENT, &Key::MIN)?;
    while let Some(key) = cursor.key() {
        let length = match key.item_type {
            ItemType::EXTENT_ITEM => Some(key.offset),
            ItemType::METADATA_ITEM => Some(node_size),
            _ => None,
        };
        let map = volume.space.map();
        if let Some(length) = length
            && let Some((start, chunk)) = map.find(Logical(key.objectid))
        {
            for stripe in &chunk.stripes {
                let inside = key.objectid.saturating_sub(start.get());
                let at = stripe.offset.get().saturating_add(inside);
                let end = at.saturating_add(length);
                let number = image.in_place.partition_point(|run| run.end <= at);
                let run = image.in_place.get(number);
                if run.is_some_and(|run| run.start < end) {
                    continue;
                }
                match all.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => all.push(at..end),
                }
            }
        }
        cursor.next()?;
    }
    all.sort_by_key(|range| range.start);
    Ok(all)
}

/// The last cell that is free in both file systems.
fn note_place(volume: &Volume, runs: &[Range<u64>], added: &[Range<u64>]) -> Option<u64> {
    let total = volume.superblock.total_bytes;
    for run in runs.iter().rev() {
        let mut end = run.end;
        while end
            .checked_sub(CELL)
            .is_some_and(|start| start >= run.start)
        {
            let start = end - CELL;
            let number = added.partition_point(|range| range.end <= start);
            let is_used = added.get(number).is_some_and(|range| range.start < end);
            if !is_used && end <= total {
                return Some(start);
            }
            end = start;
        }
    }
    None
}
