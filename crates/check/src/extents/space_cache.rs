//! The old space cache (version 1): files in the tree of roots that list the
//! free space of each block group.
//!
//! The kernel allocates from a cache that it believes, so a cache that calls
//! used space free makes it overwrite data. It does not believe a cache whose
//! generation, checksums or number of free bytes are wrong. Such a cache is no
//! fault.
//!
//! Source: the on-disk format's documentation, and caches that the kernel
//! wrote.

use super::scan::Group;
use crate::budget::Taken;
use crate::code::FaultCode;
use crate::context::Context;
use crate::extents::free_space::superblocks;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::trees::Items;
use butterfs_format::bytes::Reader;
use butterfs_format::checksum::crc32c;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{Generation, ItemType, Key, Logical, TreeId, object};
use std::collections::BTreeMap;

/// Bytes of a page of a cache.
const PAGE: usize = 4096;
/// Bytes of an entry, and of a checksum.
const ENTRY: usize = 17;
const SUM: usize = 4;
/// Type of an entry for a free range, and of one for a bitmap.
const RANGE: u8 = 1;
const BITMAP: u8 = 2;
/// Larger caches are not read. The kernel writes a page for some 240 ranges, or
/// for 128 MiB.
const BYTES_MAX: u64 = 64 << 20;

/// What an item says about the cache of its block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    file: u64,
    generation: u64,
    entries: u64,
    bitmaps: u64,
}

impl Header {
    fn parse(data: &[u8]) -> Option<Self> {
        let mut r = Reader::new("space cache", data);
        Some(Self {
            file: Key::parse(&mut r).ok()?.objectid,
            generation: r.u64().ok()?,
            entries: r.u64().ok()?,
            bitmaps: r.u64().ok()?,
        })
    }
}

/// Whether the tree of roots' items of this type are needed here.
pub(crate) fn wanted(item_type: ItemType) -> bool {
    item_type == ItemType::MIN || matches!(item_type, ItemType::INODE_ITEM | ItemType::EXTENT_DATA)
}

/// Whether the kernel would use the caches of the volume.
pub(crate) fn is_used(context: &Context<'_>) -> bool {
    let superblock = &context.superblock;
    !superblock.has_valid_free_space_tree()
        && superblock.cache_generation == superblock.generation.get()
}

/// Compares the caches that the kernel would believe with used space. `items`
/// are those that are [`wanted`].
pub(crate) fn check(context: &Context<'_>, items: &Items, groups: &[Group], used: [&Ranges; 2]) {
    let mut extents: BTreeMap<u64, Vec<(Key, &[u8])>> = BTreeMap::new();
    let mut inodes: BTreeMap<u64, InodeItem> = BTreeMap::new();
    for (key, data) in items {
        match key.item_type {
            ItemType::EXTENT_DATA => extents.entry(key.objectid).or_default().push((*key, data)),
            ItemType::INODE_ITEM => {
                if let Ok(item) = InodeItem::parse(data) {
                    inodes.insert(key.objectid, item);
                }
            }
            _ => {}
        }
    }
    let superblocks = superblocks(context);
    for (key, data) in items {
        if key.objectid != object::FREE_SPACE || key.item_type != ItemType::MIN {
            continue;
        }
        let found = groups.binary_search_by_key(&key.offset, |(group, _)| group.objectid);
        let Some((group, _)) = found.ok().and_then(|at| groups.get(at)) else {
            continue;
        };
        let Some(header) = Header::parse(data) else {
            continue;
        };
        let range = group.objectid..group.objectid.saturating_add(group.offset);
        let generation = Generation(header.generation);
        let file = inodes.get(&header.file);
        let Some(file) = file.filter(|file| file.generation == generation) else {
            continue;
        };
        let none = Vec::new();
        let extents = extents.get(&header.file).unwrap_or(&none);
        let memory = context.taken();
        let content = content(context, file.size, extents, &memory);
        let sector = context.sector();
        let Some(free) = content.and_then(|content| ranges(&content, &header, sector)) else {
            continue;
        };
        let free = Ranges::of(free).part(range.clone());
        let [data, nodes] = used;
        let used = data.part(range.clone()).union(&nodes.part(range.clone()));
        let not_used = used.gaps_within(range).without(&superblocks);
        if free.bytes() != not_used.bytes() {
            continue;
        }
        if let Some(wrong) = free.without(&not_used).iter().next() {
            let text = format!(
                "the space cache of the block group at {} calls used space free, from {} to {}; \
                 `butterfs rescue clear-space-cache v1` removes the cache",
                key.offset, wrong.start, wrong.end
            );
            let place = Place {
                tree: Some(TreeId::ROOT),
                key: Some(*key),
                logical: Some(Logical(wrong.start)),
            };
            context.fault(FaultCode::SpaceCacheOverlapsExtent, place, text);
        }
    }
}

/// Reads a cache; `None` if that fails, as the kernel then has no cache.
fn content(
    context: &Context<'_>,
    size: u64,
    extents: &[(Key, &[u8])],
    memory: &Taken,
) -> Option<Vec<u8>> {
    let size = Some(size).filter(|size| *size <= BYTES_MAX)?;
    memory.add(size);
    let length = usize::try_from(size).ok()?;
    let mut content = vec![0; length.next_multiple_of(PAGE)];
    for (key, data) in extents {
        let extent = FileExtent::parse(data).ok()?;
        let FileExtentBody::Regular(place) = extent.body else {
            continue;
        };
        if place.disk.get() == 0 || extent.compression.is_some() {
            continue;
        }
        let start = usize::try_from(key.offset).ok()?;
        let length = usize::try_from(place.length).ok()?;
        let end = start.checked_add(length)?.min(content.len());
        let part = content.get_mut(start..end)?;
        let at = Logical(place.disk.get().checked_add(place.offset)?);
        context.space.read(at, part).ok()?;
    }
    Some(content)
}

/// The free ranges of a cache; `None` if the kernel would not believe it.
fn ranges(content: &[u8], header: &Header, sector: u64) -> Option<Vec<(u64, u64)>> {
    let pages: Vec<&[u8]> = content.chunks_exact(PAGE).collect();
    let first = pages.first()?;
    let sums = SUM.checked_mul(pages.len())?;
    let is_whole = |number: usize| {
        let page = pages.get(number)?;
        let stored = first
            .get(number.checked_mul(SUM)?..)?
            .first_chunk::<SUM>()?;
        let skipped = if number == 0 { sums } else { 0 };
        (crc32c(page.get(skipped..)?) == u32::from_le_bytes(*stored)).then_some(*page)
    };
    let generation = first.get(sums..)?.first_chunk::<8>()?;
    if u64::from_le_bytes(*generation) != header.generation {
        return None;
    }
    let mut free = Vec::new();
    let mut bitmaps = Vec::new();
    let mut number = 0_usize;
    let mut rest = is_whole(0)?.get(sums.checked_add(8)?..)?;
    for _ in 0..header.entries {
        if rest.len() < ENTRY {
            number = number.checked_add(1)?;
            rest = is_whole(number)?;
        }
        let (entry, later) = rest.split_at_checked(ENTRY)?;
        rest = later;
        let mut r = Reader::new("space cache", entry);
        let (start, bytes, kind) = (r.u64().ok()?, r.u64().ok()?, r.u8().ok()?);
        match kind {
            RANGE => free.push((start, start.checked_add(bytes)?)),
            BITMAP => bitmaps.push(start),
            _ => return None,
        }
    }
    if u64::try_from(bitmaps.len()).ok()? != header.bitmaps {
        return None;
    }
    for start in bitmaps {
        number = number.checked_add(1)?;
        let bits = is_whole(number)?.iter().flat_map(|byte| {
            let byte = *byte;
            (0..8).map(move |bit| byte >> bit & 1 == 1)
        });
        let mut at = start;
        for bit in bits {
            let end = at.checked_add(sector)?;
            if bit {
                free.push((at, end));
            }
            at = end;
        }
    }
    Some(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: u64 = 9;

    /// A cache of three pages: two ranges, and a bitmap with two free sectors.
    fn cache() -> (Vec<u8>, Header) {
        let mut content = vec![0_u8; 3 * PAGE];
        let mut at = 3 * SUM;
        let mut put = |bytes: &[u8]| {
            content[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&GENERATION.to_le_bytes());
        for (start, bytes, kind) in [
            (1_u64 << 20, 8192_u64, RANGE),
            (2 << 20, 4096, RANGE),
            (4 << 20, 8192, BITMAP),
        ] {
            put(&start.to_le_bytes());
            put(&bytes.to_le_bytes());
            put(&[kind]);
        }
        content[PAGE] = 0b101;
        for number in 0..3 {
            let from = number * PAGE + if number == 0 { 3 * SUM } else { 0 };
            let sum = crc32c(&content[from..(number + 1) * PAGE]);
            content[number * SUM..(number + 1) * SUM].copy_from_slice(&sum.to_le_bytes());
        }
        let header = Header {
            file: 256,
            generation: GENERATION,
            entries: 3,
            bitmaps: 1,
        };
        (content, header)
    }

    #[test]
    fn ranges_and_bitmaps_are_read_if_the_kernel_would_believe_them() {
        let (content, header) = cache();
        let mega = 1_u64 << 20;
        let expected = vec![
            (mega, mega + 8192),
            (2 * mega, 2 * mega + 4096),
            (4 * mega, 4 * mega + 4096),
            (4 * mega + 8192, 4 * mega + 12288),
        ];
        assert_eq!(ranges(&content, &header, 4096), Some(expected));
        let other = Header {
            generation: GENERATION + 1,
            ..header
        };
        assert_eq!(ranges(&content, &other, 4096), None);
        let more = Header {
            entries: 4,
            ..header
        };
        assert_eq!(ranges(&content, &more, 4096), None);
        for at in [0, 20, PAGE] {
            let mut damaged = content.clone();
            damaged[at] ^= 1;
            assert_eq!(ranges(&damaged, &header, 4096), None, "{at}");
        }
        for length in [0, PAGE, 2 * PAGE] {
            assert_eq!(ranges(&content[..length], &header, 4096), None, "{length}");
        }
    }
}
