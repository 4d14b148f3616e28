//! Moving content between files.

use super::{Id, Oracle};
use crate::op::{OpPath, Span};
use rustix::io::Errno;

const SECTOR: u64 = 4096;

impl Oracle {
    /// Opens both ends. Only regular files have content to share.
    fn ends(&self, from: &OpPath, to: &OpPath) -> Result<(Id, Id), Errno> {
        let source = self.open_for_reading(from)?;
        let target = self.open_for_writing(to)?;
        self.inode(source).content()?;
        Ok((source, target))
    }

    fn transfer(
        &mut self,
        source: Id,
        span: Span,
        target: Id,
        to_offset: u64,
    ) -> Result<(), Errno> {
        let mut data = vec![0; span.length as usize];
        self.inode(source).content()?.read(span.offset, &mut data);
        let inode = self.inode_mut(target);
        inode.content_mut()?.write(to_offset, &data);
        inode.modified = None;
        Ok(())
    }

    /// Only whole sectors are shared. A range may end within a sector only if
    /// it reaches the end of `from` and becomes the end of `to`.
    pub(super) fn clone_range(
        &mut self,
        from: &OpPath,
        span: Span,
        to: &OpPath,
        to_offset: u64,
    ) -> Result<(), Errno> {
        let (source, target) = self.ends(from, to)?;
        let size = self.inode(source).content()?.size();
        let target_size = self.inode(target).content()?.size();
        let Span { offset, length } = span;
        let aligned = offset.is_multiple_of(SECTOR) && to_offset.is_multiple_of(SECTOR);
        if !aligned || offset >= size || length > size - offset {
            return Err(Errno::INVAL);
        }
        let to_end = offset + length == size;
        let makes_end = to_end && to_offset + length >= target_size;
        if !(length.is_multiple_of(SECTOR) || makes_end) {
            return Err(Errno::INVAL);
        }
        let covered = length.next_multiple_of(SECTOR);
        let overlap = to_offset + covered > offset && to_offset < offset + covered;
        if source == target && overlap {
            return Err(Errno::INVAL);
        }
        self.transfer(source, span, target, to_offset)
    }

    pub(super) fn copy_range(
        &mut self,
        from: &OpPath,
        span: Span,
        to: &OpPath,
        to_offset: u64,
    ) -> Result<(), Errno> {
        let (source, target) = self.ends(from, to)?;
        let size = self.inode(source).content()?.size();
        let Span { offset, length } = span;
        let length = length.min(size.saturating_sub(offset));
        if length == 0 {
            return Ok(());
        }
        if source == target && to_offset + length > offset && to_offset < offset + length {
            return Err(Errno::INVAL);
        }
        self.transfer(source, Span { offset, length }, target, to_offset)
    }
}
