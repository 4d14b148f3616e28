//! Data that arrive already compressed.
//!
//! Owns bringing units of a stream to the device as they are. They are
//! allocated, checksummed, written and named by file extents without being
//! decompressed. As for all data, the decompressed content is verified when it
//! is read.

use super::SIZE_MAX;
use super::extents::COMPRESSED_MAX;
use super::outgoing::Sums;
use super::output::{Output, Target};
use super::write::check_file;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::Inode;
use butterfs_format::compression::Algorithm;
use butterfs_format::item::inode::InodeFlags;
use butterfs_store::now;
use std::borrow::Cow;

/// A compressed extent that belongs to one file as a whole.
#[derive(Clone, Debug)]
pub(crate) struct EncodedUnit {
    /// File offset.
    pub offset: u64,
    /// Bytes of the file.
    pub length: u64,
    /// Compression.
    pub algorithm: Algorithm,
    /// Compressed bytes, whole sectors.
    pub data: Vec<u8>,
}

impl EncodedUnit {
    /// True if it can be stored unchanged on a volume with such sectors.
    fn fits(&self, sector: u64) -> bool {
        let disk = self.data.len() as u64;
        let whole = self.length.next_multiple_of(sector);
        self.offset.is_multiple_of(sector)
            && disk.is_multiple_of(sector)
            && disk > 0
            && disk < whole
            && whole <= COMPRESSED_MAX
    }
}

impl Filesystem {
    /// Writes units, which ascend and do not overlap. False if they cannot be
    /// stored as they are; then nothing was written.
    ///
    /// # Errors
    /// As writing.
    pub(crate) fn write_encoded(
        &self,
        inode: &Inode,
        units: &[EncodedUnit],
    ) -> Result<bool, FsError> {
        self.store.check_writable()?;
        let sector = self.sector_size;
        let Some(last) = units.last() else {
            return Ok(true);
        };
        let end = last
            .offset
            .checked_add(last.length)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(FsError::TooBig)?;
        let stored: u64 = units.iter().map(|unit| unit.data.len() as u64).sum();
        self.ensure_quota(inode.id.tree, stored)?;
        let space = Some(self.promise(units.iter().map(|unit| unit.data.len() as u64).sum())?);
        let mut state = inode.state.write();
        check_file(&state)?;
        self.check_changeable(inode.id.tree)?;
        let plain = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        // A partial sector can only be the end of the file.
        let whole = |unit: &EncodedUnit| {
            unit.length.is_multiple_of(sector)
                || (unit.offset == last.offset && end >= state.item.size)
        };
        let fits = units.iter().all(|unit| unit.fits(sector) && whole(unit));
        if !fits || state.item.flags.intersects(plain) {
            return Ok(false);
        }
        if units[0].offset > state.item.size {
            self.load_tail(inode, &mut state, &space)?;
        }
        self.leave_inline_for_good(inode, &mut state, &space)?;
        let mut outputs: Vec<Output<'_>> = units
            .iter()
            .map(|unit| Output {
                start: unit.offset,
                length: unit.length.next_multiple_of(sector),
                compression: Some(unit.algorithm),
                parts: vec![Cow::Borrowed(&unit.data[..])],
                target: Target::New(None),
                sums: Vec::new(),
            })
            .collect();
        self.allocate(&mut outputs)?;
        let size = state.item.size;
        let time = now();
        state.item.size = size.max(end);
        state.item.mtime = time;
        state.item.ctime = time;
        state.item.sequence = state.item.sequence.wrapping_add(1);
        let _in_flight = self
            .buffers
            .in_flight(units.iter().map(|unit| unit.data.len() as u64).sum());
        let written = self.write_outputs(&mut outputs, Sums::Wanted);
        let is_written = written.is_ok();
        let result = written.and_then(|()| self.enter(inode.id, &mut state, &outputs));
        if result.is_err() {
            state.item.size = size;
            if is_written {
                self.give_back(&outputs);
            }
        }
        result.map(|()| true)
    }
}
