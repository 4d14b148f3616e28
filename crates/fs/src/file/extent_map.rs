//! Where a file lies, for reports such as FIEMAP's.

use super::extents::{self, Body};
use super::flush::InlineRule;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::Inode;
use butterfs_format::Logical;
use butterfs_format::compression::Algorithm;
use butterfs_store::SharingProbe;
use std::ops::Range;

/// What a mapped extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedKind {
    /// Data in the tree.
    Inline,
    /// Data elsewhere.
    Data,
    /// Space that reads as zeros.
    Preallocated,
}

/// A range of a file that has space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// File offset.
    pub offset: u64,
    /// Bytes of the file.
    pub length: u64,
    /// Address of its first byte; of the whole extent when it is compressed,
    /// `None` when it is inline.
    pub logical: Option<Logical>,
    /// Bytes on disk of the whole extent it is part of; of the item's data
    /// when it is inline.
    pub disk_length: u64,
    /// Compression.
    pub compression: Option<Algorithm>,
    /// What it holds.
    pub kind: MappedKind,
    /// Other files, other subvolumes or other places of this file have a part of
    /// the whole extent, too.
    pub is_shared: bool,
}

impl Filesystem {
    /// The extents of a file that overlap `range`, ascending, at most `limit`;
    /// holes are left out. Waiting data are brought to the device first.
    ///
    /// # Errors
    /// What flushing met; damage, reading.
    pub fn extent_map(
        &self,
        inode: &Inode,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<MappedExtent>, FsError> {
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        let engine = self.store.read();
        let mut mapped = Vec::new();
        let mut at = range.start;
        while mapped.len() < limit && at < range.end {
            let batch = extents::overlapping(&engine, inode.id, at..range.end, limit)?;
            let Some(end) = batch.last().map(extents::Found::end) else {
                break;
            };
            let room = limit - mapped.len();
            let mut probe = SharingProbe::new(&engine);
            for extent in batch.iter().take(room) {
                let Some(mut found) = describe(extent) else {
                    continue;
                };
                if let Body::Regular(place) | Body::Prealloc(place) = &extent.body {
                    let owner = extents::owner(inode.id, extent.start, place);
                    found.is_shared = probe.is_shared(extents::extent_of(place), owner)?;
                }
                mapped.push(found);
            }
            // An inline extent ends where the next sector begins.
            at = end
                .checked_next_multiple_of(self.sector_size)
                .unwrap_or(end);
        }
        Ok(mapped)
    }
}

/// Space of a file's data, in bytes of the file as in FIEMAP, compressed or
/// not. Inline data do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSpace {
    /// All of it.
    pub total: u64,
    /// Parts that other files, other subvolumes or other places of this file
    /// share: addresses and bytes.
    pub shared: Vec<(Logical, u64)>,
}

impl Filesystem {
    /// The space that a file's data take. Waiting data are brought to the
    /// device first.
    ///
    /// # Errors
    /// What flushing met; damage, reading.
    pub fn space_of(&self, inode: &Inode) -> Result<FileSpace, FsError> {
        const BATCH: usize = 4096;
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        let mut space = FileSpace::default();
        let mut at = 0;
        loop {
            let engine = self.store.read();
            let batch = extents::overlapping(&engine, inode.id, at..u64::MAX, BATCH)?;
            let Some(end) = batch.last().map(extents::Found::end) else {
                return Ok(space);
            };
            let mut probe = SharingProbe::new(&engine);
            for extent in &batch {
                let (Body::Regular(place) | Body::Prealloc(place)) = &extent.body else {
                    continue;
                };
                let Some((part, start)) = describe(extent).and_then(|part| {
                    let start = part.logical?;
                    Some((part, start))
                }) else {
                    continue;
                };
                space.total = space.total.saturating_add(part.length);
                let owner = extents::owner(inode.id, extent.start, place);
                if probe.is_shared(extents::extent_of(place), owner)? {
                    space.shared.push((start, part.length));
                }
            }
            at = end
                .checked_next_multiple_of(self.sector_size)
                .unwrap_or(end);
        }
    }
}

fn describe(extent: &extents::Found) -> Option<MappedExtent> {
    let (place, kind) = match &extent.body {
        Body::Inline(data) => {
            return Some(MappedExtent {
                offset: extent.start,
                length: extent.ram_bytes,
                logical: None,
                disk_length: data.len() as u64,
                compression: extent.compression,
                kind: MappedKind::Inline,
                is_shared: false,
            });
        }
        Body::Regular(_) if extent.is_hole() => return None,
        Body::Regular(place) => (place, MappedKind::Data),
        Body::Prealloc(place) => (place, MappedKind::Preallocated),
    };
    let skip = match extent.compression {
        Some(_) => 0,
        None => place.offset,
    };
    Some(MappedExtent {
        offset: extent.start,
        length: place.length,
        logical: Some(place.disk.saturating_add(skip)),
        disk_length: place.disk_length,
        compression: extent.compression,
        kind,
        is_shared: false,
    })
}
