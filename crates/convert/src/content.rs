//! What becomes of the content of a file: parts that stay, parts that are
//! copied, or a few bytes that move into the tree.

use crate::error::ConvertError;
use crate::ground::{SECTOR, down, up};
use crate::options::Inline;
use crate::source::Old;
use butterfs_ext4::{Inode, Mapping, State};
use std::ops::Range;

/// Files of at most this size move into the tree.
pub(crate) const INLINE_MAX: u64 = 2048;
/// The most bytes that are copied as one part.
const COPY_MAX: u64 = 1 << 20;

/// Where copied bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset in the part.
    pub(crate) at: u64,
    /// Where the bytes lie on the device.
    pub(crate) from: Range<u64>,
}

/// A part of a file. Offsets and lengths are whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Sectors that stay where they are.
    Stays {
        offset: u64,
        physical: Range<u64>,
        state: State,
    },
    /// Sectors that are put together from parts of blocks.
    Composed {
        offset: u64,
        length: u64,
        segments: Vec<Segment>,
    },
    /// Sectors whose bytes lie in the inode.
    Given { offset: u64, bytes: Vec<u8> },
}

impl Part {
    /// Offset in the file.
    pub(crate) const fn offset(&self) -> u64 {
        match self {
            Self::Stays { offset, .. }
            | Self::Composed { offset, .. }
            | Self::Given { offset, .. } => *offset,
        }
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Stays { physical, .. } => physical.end - physical.start,
            Self::Composed { length, .. } => *length,
            Self::Given { bytes, .. } => up(u64::try_from(bytes.len()).unwrap_or(u64::MAX), SECTOR),
        }
    }
}

/// Gets the parts of a file, ascending.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(Part) -> Result<(), ConvertError>;

/// The whole content of a file that moves into the tree, if it does.
///
/// # Errors
/// Reading.
pub(crate) fn inline(
    old: &Old,
    inode: &Inode,
    (wish, most): (Inline, u64),
) -> Result<Option<Vec<u8>>, ConvertError> {
    if wish == Inline::Never || inode.size == 0 || inode.size > INLINE_MAX.min(most) {
        return Ok(None);
    }
    if let Some(mut data) = old.inline_data(inode)? {
        data.resize(usize::try_from(inode.size).unwrap_or(0), 0);
        return Ok(Some(data));
    }
    let size = old.superblock().block_size();
    let mut data = vec![0; usize::try_from(inode.size).unwrap_or(0)];
    let mut has_only_data = true;
    let mut has_any = false;
    old.mappings(inode, &mut |mapping| -> Result<(), ConvertError> {
        let start = mapping.file_block.saturating_mul(size);
        if mapping.state == State::Unwritten || start >= inode.size {
            has_only_data = false;
            return Ok(());
        }
        has_any = true;
        let at = usize::try_from(start).unwrap_or(usize::MAX);
        let length = mapping.blocks.saturating_mul(size);
        let target = data.get_mut(at..).unwrap_or_default();
        let count = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(target.len());
        if let Some(target) = target.get_mut(..count) {
            old.read(mapping.block.saturating_mul(size), target)?;
        }
        Ok(())
    })?;
    Ok(Some(data).filter(|_| has_only_data && has_any))
}

/// Visits the parts of a file.
///
/// # Errors
/// Reading, and what `visit` returns.
pub(crate) fn parts(old: &Old, inode: &Inode, visit: Visit<'_>) -> Result<(), ConvertError> {
    if let Some(bytes) = old.inline_data(inode)? {
        return match bytes.is_empty() {
            true => Ok(()),
            false => visit(Part::Given { offset: 0, bytes }),
        };
    }
    let block = old.superblock().block_size();
    let end = up(inode.size, SECTOR);
    if block >= SECTOR {
        return old.mappings(inode, &mut |mapping| {
            let offset = mapping.file_block.saturating_mul(block);
            let from = mapping.block.saturating_mul(block);
            let mut length = mapping.blocks.saturating_mul(block);
            // What is written lies before the end of the file. Preallocated
            // space may be behind it.
            if mapping.state == State::Written {
                length = length.min(end.saturating_sub(offset));
            }
            match length {
                0 => Ok(()),
                _ => visit(Part::Stays {
                    offset,
                    physical: from..from.saturating_add(length),
                    state: mapping.state,
                }),
            }
        });
    }
    let mut small = Small {
        block,
        size: inode.size,
        loose: None,
        visit,
    };
    old.mappings(inode, &mut |mapping| small.mapping(mapping))?;
    small.end()
}

/// Sectors of a file whose blocks are smaller.
struct Small<'v> {
    block: u64,
    /// Bytes of the file.
    size: u64,
    /// Sectors that are put together and may go on.
    loose: Option<Loose>,
    visit: Visit<'v>,
}

struct Loose {
    offset: u64,
    length: u64,
    segments: Vec<Segment>,
}

impl Small<'_> {
    fn mapping(&mut self, mapping: Mapping) -> Result<(), ConvertError> {
        let start = mapping.file_block.saturating_mul(self.block);
        let from = mapping.block.saturating_mul(self.block);
        let end = start.saturating_add(mapping.blocks.saturating_mul(self.block));
        let physical = |at: u64| from.saturating_add(at.saturating_sub(start));
        let is_aligned = start % SECTOR == from % SECTOR;
        let (first, last) = match is_aligned {
            true => (
                up(start, SECTOR).min(end),
                down(end, SECTOR).max(up(start, SECTOR).min(end)),
            ),
            false => (end, end),
        };
        self.loose(start..first, physical(start), mapping.state)?;
        let limit = match mapping.state {
            State::Written => last.min(up(self.size, SECTOR)).max(first),
            State::Unwritten => last,
        };
        if first < limit {
            self.end()?;
            (self.visit)(Part::Stays {
                offset: first,
                physical: physical(first)..physical(limit),
                state: mapping.state,
            })?;
        }
        self.loose(last..end, physical(last), mapping.state)
    }

    /// Adds bytes of the file that share sectors with others. Preallocated
    /// blocks among them become holes.
    fn loose(&mut self, range: Range<u64>, from: u64, state: State) -> Result<(), ConvertError> {
        let mut at = range.start;
        let range_end = range.end.min(self.size);
        if state == State::Unwritten {
            return Ok(());
        }
        while at < range_end {
            let sector = down(at, SECTOR);
            let end = sector.saturating_add(SECTOR).min(range_end);
            let source = from.saturating_add(at.saturating_sub(range.start));
            let continues = self.loose.as_ref().is_some_and(|loose| {
                let loose_end = loose.offset.saturating_add(loose.length);
                sector < loose_end || (sector == loose_end && loose.length < COPY_MAX)
            });
            if !continues {
                self.end()?;
                self.loose = Some(Loose {
                    offset: sector,
                    length: 0,
                    segments: Vec::new(),
                });
            }
            if let Some(loose) = &mut self.loose {
                let inside = sector.saturating_sub(loose.offset).saturating_add(SECTOR);
                loose.length = loose.length.max(inside);
                let into = at.saturating_sub(loose.offset);
                let to = source.saturating_add(end.saturating_sub(at));
                match loose.segments.last_mut() {
                    Some(last)
                        if last.from.end == source
                            && last.at.saturating_add(last.from.end - last.from.start) == into =>
                    {
                        last.from.end = to;
                    }
                    _ => loose.segments.push(Segment {
                        at: into,
                        from: source..to,
                    }),
                }
            }
            at = end;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), ConvertError> {
        match self.loose.take() {
            Some(loose) => (self.visit)(Part::Composed {
                offset: loose.offset,
                length: loose.length,
                segments: loose.segments,
            }),
            None => Ok(()),
        }
    }
}

/// All bytes of a link that does not lie in its inode.
///
/// # Errors
/// Reading.
pub(crate) fn whole(old: &Old, inode: &Inode) -> Result<Vec<u8>, ConvertError> {
    if let Some(data) = old.inline_data(inode)? {
        return Ok(data);
    }
    let size = old.superblock().block_size();
    let mut data = vec![0; usize::try_from(inode.size).unwrap_or(0)];
    old.mappings(inode, &mut |mapping| -> Result<(), ConvertError> {
        let at = mapping.file_block.saturating_mul(size);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let length = usize::try_from(mapping.blocks.saturating_mul(size)).unwrap_or(usize::MAX);
        let left = data.get_mut(at..).unwrap_or_default();
        let count = length.min(left.len());
        let target = left.get_mut(..count).unwrap_or_default();
        Ok(old.read(mapping.block.saturating_mul(size), target)?)
    })?;
    Ok(data)
}
