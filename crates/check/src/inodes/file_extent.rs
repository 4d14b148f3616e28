//! The rules for one file extent.

use super::run::InodeRun;
use super::run::Rules;
use crate::DataChecksums;
use crate::code::FaultCode;
use crate::ranges::Ranges;
use butterfs_format::compression::{Scratch, UNIT};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::{Generation, Key, ParseError};
use std::cell::RefCell;
use std::ops::Range;

/// What file extents are compared with.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'b> {
    pub(crate) sector: u64,
    /// The newest possible generation.
    pub(crate) generation: Generation,
    /// Space with checksums.
    pub(crate) covered: &'b Ranges,
    /// Whether inline data are unpacked.
    pub(crate) data: DataChecksums,
}

thread_local! {
    /// Contexts for unpacking are large.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Unpacks compressed inline data. No data checksum covers them: a leaf may be
/// whole and hold a stream that nobody can read.
fn unpack(bounds: &Bounds<'_>, extent: &FileExtent<'_>, data: &[u8]) -> Result<(), ParseError> {
    let Some(algorithm) = extent.compression else {
        return Ok(());
    };
    let memory = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
    let mut unpacked = vec![0; memory(extent.ram_bytes.min(bounds.sector))];
    SCRATCH.with_borrow_mut(|scratch| {
        let sector = memory(bounds.sector);
        scratch
            .decompress(algorithm, data, &mut unpacked, sector)
            .map(drop)
    })
}

/// Checks a file extent and adds it to its inode.
pub(crate) fn check(
    rules: &Rules<'_>,
    bounds: &Bounds<'_>,
    inode: &mut InodeRun,
    key: Key,
    extent: &FileExtent<'_>,
) {
    let invalid = |text: String| rules.fault(FaultCode::FileExtentInvalid, key, text);
    if !key.offset.is_multiple_of(bounds.sector) {
        invalid("it does not begin at a sector".to_owned());
    }
    if extent.generation > bounds.generation {
        invalid(format!(
            "its generation {} is not yet committed",
            extent.generation
        ));
    }
    let place = match &extent.body {
        FileExtentBody::Inline(data) => {
            inline(rules, bounds, key, extent, data);
            let length = extent.ram_bytes.min(bounds.sector.saturating_mul(16));
            inode.is_inline = true;
            inode.ends_with_nul = extent.compression.is_none() && data.last() == Some(&0);
            inode.bytes = inode.bytes.saturating_add(length);
            let end = length.next_multiple_of(bounds.sector);
            inode.add_extent(rules, key.offset, key.offset.saturating_add(end));
            return;
        }
        FileExtentBody::Prealloc(place) => {
            if place.disk.get() == 0 || extent.compression.is_some() {
                invalid("preallocated space needs an extent, which is not compressed".to_owned());
            }
            place
        }
        FileExtentBody::Regular(place) => place,
    };
    let Some(end) = key.offset.checked_add(place.length) else {
        return invalid("it ends beyond all offsets".to_owned());
    };
    inode.add_extent(rules, key.offset, end);
    if let Some(text) = misplaced(bounds, extent, place) {
        return invalid(text);
    }
    if place.disk.get() == 0 {
        return;
    }
    inode.bytes = inode.bytes.saturating_add(place.length);
    checksums(bounds, inode, extent, place);
}

fn misplaced(bounds: &Bounds<'_>, extent: &FileExtent<'_>, place: &ExtentPlace) -> Option<String> {
    let numbers = [
        place.disk.get(),
        place.disk_length,
        place.offset,
        place.length,
        extent.ram_bytes,
    ];
    if !numbers.iter().all(|n| n.is_multiple_of(bounds.sector)) {
        return Some("its place is not one of whole sectors".to_owned());
    }
    let end = place.offset.saturating_add(place.length);
    if place.disk.get() == 0 {
        if extent.compression.is_some() {
            return Some("a hole cannot be compressed".to_owned());
        }
        let ram = extent.ram_bytes;
        return (end > ram).then(|| format!("it ends {end} bytes into a hole of {ram}"));
    }
    let unit = u64::try_from(UNIT).unwrap_or(u64::MAX);
    if extent.compression.is_some() {
        let fits = place.disk_length <= unit && extent.ram_bytes <= unit;
        return (!fits || place.disk_length == 0).then(|| {
            format!(
                "{} bytes compressed to {} are impossible",
                extent.ram_bytes, place.disk_length
            )
        });
    }
    (end > place.disk_length).then(|| {
        format!(
            "it ends {end} bytes into an extent of {}",
            place.disk_length
        )
    })
}

fn checksums(
    bounds: &Bounds<'_>,
    inode: &mut InodeRun,
    extent: &FileExtent<'_>,
    place: &ExtentPlace,
) {
    if matches!(extent.body, FileExtentBody::Prealloc(_)) {
        return;
    }
    let range = summed_space(extent, place);
    let (start, length) = (range.start, range.end.saturating_sub(range.start));
    let found = bounds.covered.bytes_within(range);
    if found > 0 {
        inode.summed_at = inode.summed_at.or(Some(start));
    }
    if found < length {
        inode.bare_at = inode.bare_at.or(Some(start));
        if extent.compression.is_some() {
            inode.bare_compressed_at = inode.bare_compressed_at.or(Some(start));
        }
    }
}

/// Returns the space whose checksums a reader of the file extent compares.
pub(crate) fn summed_space(extent: &FileExtent<'_>, place: &ExtentPlace) -> Range<u64> {
    let (start, length) = if extent.compression.is_some() {
        (place.disk.get(), place.disk_length)
    } else {
        (place.disk.get().saturating_add(place.offset), place.length)
    };
    start..start.saturating_add(length)
}

/// Returns the space of a preallocated file extent if a part of it has
/// checksums.
pub(crate) fn summed_prealloc(bounds: &Bounds<'_>, extent: &FileExtent<'_>) -> Option<Range<u64>> {
    let FileExtentBody::Prealloc(place) = &extent.body else {
        return None;
    };
    let range = summed_space(extent, place);
    (bounds.covered.bytes_within(range.clone()) > 0).then_some(range)
}

/// Checks inline data: they lie at the beginning of the file and are not empty.
/// What is stored is shorter than a sector. Compressed data may fill a sector
/// when they are decompressed.
fn inline(rules: &Rules<'_>, bounds: &Bounds<'_>, key: Key, extent: &FileExtent<'_>, data: &[u8]) {
    let fault = |text: String| rules.fault(FaultCode::FileExtentInline, key, text);
    if key.offset != 0 {
        return fault("inline data lie at the beginning of a file only".to_owned());
    }
    let stored = u64::try_from(data.len()).unwrap_or(u64::MAX);
    if extent.ram_bytes == 0 || stored == 0 {
        return fault("it is empty".to_owned());
    }
    let sector = bounds.sector;
    if extent.ram_bytes > sector {
        fault(format!("{} bytes do not fit a sector", extent.ram_bytes));
    } else if stored >= sector {
        let text = format!("it stores {stored} bytes; data of a whole sector are not inline");
        fault(text);
    } else if bounds.data == DataChecksums::Verify
        && let Err(error) = unpack(bounds, extent, data)
    {
        rules.fault(FaultCode::FileExtentCompressed, key, error.to_string());
    }
}
