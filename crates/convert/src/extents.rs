//! All extents of the new volume in ascending order, with who refers to them.
//!
//! They come from the sorted extents of files, from what ext4 uses besides (the
//! image alone has that), and from copies. Nothing is kept: the stream is made
//! anew each time it is needed.

use crate::error::ConvertError;
use crate::files::{Piece, SAVED_TREE};
use crate::ground::{Ground, Kind, used_sectors};
use crate::inode::GENERATION;
use crate::relocation::{Relocation, Relocations};
use crate::sorter::{Sorted, SortedReader};
use crate::source::Old;
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::{FileOffset, InodeNumber, ItemType, Key, TreeId};
use std::ops::Range;

/// The inode of the image.
pub(crate) const IMAGE: u64 = 257;

/// An extent.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) range: Range<u64>,
    refs: Vec<ExtentRef>,
    /// Where the image has it, if it does and that is not at the same offset.
    pub(crate) image: Image,
}

/// Whether the image has an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// At the extent's own address.
    Same,
    /// Not at all, or elsewhere: copies.
    Other,
}

fn reference(root: TreeId, inode: u64, offset: u64, count: u32) -> ExtentRef {
    ExtentRef::Data {
        root,
        inode: InodeNumber(inode),
        offset: FileOffset(offset),
        count,
    }
}

impl Extent {
    fn of_image(range: Range<u64>) -> Self {
        Self {
            refs: vec![reference(SAVED_TREE, IMAGE, range.start, 1)],
            range,
            image: Image::Same,
        }
    }

    fn of_file(piece: &Piece) -> Self {
        let range = piece.start..piece.end;
        let own = reference(TreeId::FS, piece.inode, piece.offset, 1);
        match piece.stays {
            false => Self {
                range,
                refs: vec![own],
                image: Image::Other,
            },
            true => {
                let mut extent = Self::of_image(range);
                extent.refs.push(own);
                extent
            }
        }
    }

    fn of_copy(relocation: &Relocation) -> Self {
        let referrers = relocation.referrers.iter();
        let mut refs: Vec<ExtentRef> = referrers
            .map(|((tree, inode, begins), count)| reference(*tree, *inode, *begins, *count))
            .collect();
        refs.push(reference(SAVED_TREE, IMAGE, relocation.from.start, 1));
        Self {
            range: relocation.copy(),
            refs,
            image: Image::Other,
        }
    }

    /// Bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Its item in the extent tree. All references are in it: they are few.
    pub(crate) fn item(&self) -> (Key, Vec<u8>) {
        let mut refs = self.refs.clone();
        refs.sort_by_key(|one| std::cmp::Reverse(one.order()));
        let count = refs
            .iter()
            .fold(0_u64, |sum, one| sum.saturating_add(one.count().into()));
        let item = ExtentItem {
            header: ExtentHeader {
                refs: count,
                generation: GENERATION,
                flags: ExtentFlags::DATA,
                tree_block: None,
            },
            inline: refs,
        };
        let key = Key::new(self.range.start, ItemType::EXTENT_ITEM, self.length());
        (key, item.encode())
    }
}

/// Where extents come from.
pub(crate) struct Extents<'e> {
    pub(crate) old: &'e Old,
    pub(crate) ground: &'e Ground,
    pub(crate) pieces: &'e Sorted,
    pub(crate) relocations: &'e Relocations,
}

type Visit<'v> = &'v mut dyn FnMut(&Extent) -> Result<(), ConvertError>;

impl Extents<'_> {
    /// Visits all extents, ascending and apart.
    ///
    /// # Errors
    /// Blocks that two files have, or that a bitmap calls free; reading; what
    /// `visit` returns.
    pub(crate) fn each(&self, visit: Visit<'_>) -> Result<(), ConvertError> {
        let mut copies: Vec<&Relocation> = self.relocations.0.iter().collect();
        copies.sort_by_key(|one| one.to);
        let mut merge = Merge {
            reader: self.pieces.read()?,
            next: None,
            copies: copies.into_iter().peekable(),
            visit,
        };
        merge.advance()?;
        used_sectors(self.old, &mut |used| {
            self.ground.cut(used, &mut |part, kind| match kind {
                Kind::Usable => merge.used(part),
                Kind::Reserved => Ok(()),
            })
        })?;
        merge.copies_before(u64::MAX)
    }
}

struct Merge<'m, 'v> {
    reader: SortedReader<'m>,
    /// The next extent of a file.
    next: Option<Piece>,
    copies: std::iter::Peekable<std::vec::IntoIter<&'m Relocation>>,
    visit: Visit<'v>,
}

impl Merge<'_, '_> {
    fn advance(&mut self) -> Result<(), ConvertError> {
        self.next = self.reader.next()?.and_then(Piece::parse);
        Ok(())
    }

    /// Visits copies before an address.
    fn copies_before(&mut self, limit: u64) -> Result<(), ConvertError> {
        loop {
            let copy = self.copies.peek().filter(|one| one.to < limit).copied();
            let piece = self.next.filter(|piece| piece.start < limit);
            match (piece, copy) {
                (None, None) => return Ok(()),
                (Some(piece), _) if piece.stays => {
                    return Err(ConvertError::Blocks {
                        at: piece.start,
                        what: "belongs to a file, but is called free, or to two files",
                    });
                }
                (Some(piece), None) => self.piece(&piece)?,
                (Some(piece), Some(copy)) if piece.start < copy.to => self.piece(&piece)?,
                (_, Some(copy)) => {
                    (self.visit)(&Extent::of_copy(copy))?;
                    self.copies.next();
                }
            }
        }
    }

    fn piece(&mut self, piece: &Piece) -> Result<(), ConvertError> {
        (self.visit)(&Extent::of_file(piece))?;
        self.advance()
    }

    /// Visits what lies in a range that ext4 uses.
    fn used(&mut self, range: Range<u64>) -> Result<(), ConvertError> {
        self.copies_before(range.start)?;
        let mut at = range.start;
        while let Some(piece) = self.next.filter(|piece| piece.start < range.end) {
            if piece.start < at || !piece.stays {
                return Err(ConvertError::Blocks {
                    at: piece.start,
                    what: "belongs to two files",
                });
            }
            if piece.end > range.end {
                return Err(ConvertError::Blocks {
                    at: range.end,
                    what: "belongs to a file, but is called free",
                });
            }
            if at < piece.start {
                (self.visit)(&Extent::of_image(at..piece.start))?;
            }
            self.piece(&piece)?;
            at = piece.end;
        }
        match at < range.end {
            true => (self.visit)(&Extent::of_image(at..range.end)),
            false => Ok(()),
        }
    }
}
