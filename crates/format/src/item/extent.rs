//! EXTENT_ITEM and METADATA_ITEM: an allocation and who refers to it.
//!
//! Owns the fixed part, the node's first key and level (only with
//! EXTENT_ITEM), and the sequence of inline references. Their order is checked
//! by [`ExtentItem::is_sorted`], not by parsing.

use crate::bit_flags;
use crate::bytes::{Reader, Writer};
use crate::item::extent_ref::ExtentRef;
use crate::node::LEVEL_MAX;
use crate::{Generation, ItemType, Key, ParseError};

const WHAT: &str = "extent item";

bit_flags!(
    /// What an extent is.
    ExtentFlags: u64 {
        /// It holds file data.
        DATA = 1 << 0, "DATA";
        /// It holds a node.
        TREE_BLOCK = 1 << 1, "TREE_BLOCK";
        /// References of the node's content are by parent, not by tree.
        FULL_BACKREF = 1 << 8, "FULL_BACKREF";
    }
);

/// What an EXTENT_ITEM says of a node. A METADATA_ITEM has the level in its
/// key's offset and leaves the key out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeBlockInfo {
    /// First key of the node when it was allocated.
    pub first_key: Key,
    /// Its level.
    pub level: u8,
}

/// The parts of an extent item before its references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentHeader {
    /// All references, inline and keyed.
    pub refs: u64,
    /// Generation that allocated it.
    pub generation: Generation,
    /// What it is.
    pub flags: ExtentFlags,
    /// First key and level of a node, with EXTENT_ITEM.
    pub tree_block: Option<TreeBlockInfo>,
}

impl ExtentHeader {
    /// Bytes without [`TreeBlockInfo`].
    pub const SIZE: usize = 24;

    /// Reads the header of an item with a key of `item_type`; the inline
    /// references follow.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]; [`ParseError::BadValue`] for flags that name
    /// neither data nor a node, or both, and for a level out of range.
    pub fn read(item_type: ItemType, r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let bad = |field, value| ParseError::BadValue {
            what: WHAT,
            field,
            value,
        };
        let refs = r.u64()?;
        let generation = Generation(r.u64()?);
        let flags = ExtentFlags(r.u64()?);
        let is_node = flags.contains(ExtentFlags::TREE_BLOCK);
        let is_data = flags.contains(ExtentFlags::DATA);
        let skinny = item_type == ItemType::METADATA_ITEM;
        if is_node == is_data || (skinny && is_data) {
            return Err(bad("flags", flags.0));
        }
        let tree_block = if is_node && !skinny {
            let info = TreeBlockInfo {
                first_key: Key::parse(r)?,
                level: r.u8()?,
            };
            if info.level > LEVEL_MAX {
                return Err(bad("level", u64::from(info.level)));
            }
            Some(info)
        } else {
            None
        };
        Ok(Self {
            refs,
            generation,
            flags,
            tree_block,
        })
    }

    /// Appends its bytes.
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.refs)
            .u64(self.generation.get())
            .u64(self.flags.0);
        if let Some(info) = self.tree_block {
            w.bytes(&info.first_key.to_bytes()).u8(info.level);
        }
    }
}

/// Inline references of an extent item; ends after the first error.
#[derive(Clone, Debug)]
pub struct InlineRefs<'a>(Reader<'a>);

impl<'a> InlineRefs<'a> {
    /// References in the bytes after an [`ExtentHeader`].
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new("extent reference", bytes))
    }
}

impl Iterator for InlineRefs<'_> {
    type Item = Result<ExtentRef, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.remaining() == 0 {
            return None;
        }
        let entry = ExtentRef::read_inline(&mut self.0);
        if entry.is_err() {
            *self = Self::new(&[]);
        }
        Some(entry)
    }
}

/// A whole extent item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentItem {
    /// The fixed part.
    pub header: ExtentHeader,
    /// Inline references in their order on disk.
    pub inline: Vec<ExtentRef>,
}

impl ExtentItem {
    /// Reads the item of a key of `item_type`.
    ///
    /// # Errors
    /// Those of [`ExtentHeader::read`] and [`ExtentRef::read_inline`].
    pub fn parse(item_type: ItemType, data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new(WHAT, data);
        let header = ExtentHeader::read(item_type, &mut r)?;
        let inline = InlineRefs::new(r.rest()).collect::<Result<_, _>>()?;
        Ok(Self { header, inline })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64);
        self.header.write(&mut w);
        for entry in &self.inline {
            entry.write_inline(&mut w);
        }
        w.finish()
    }

    /// True when the inline references are in their order and none is there
    /// twice.
    #[must_use]
    pub fn is_sorted(&self) -> bool {
        self.inline.is_sorted_by(|first, second| {
            let (a, b) = (first.item_type(), second.item_type());
            a < b || (a == b && first.order() > second.order())
        })
    }

    /// Sum of the inline counts; the difference to `refs` is in keyed items.
    #[must_use]
    pub fn inline_count(&self) -> u64 {
        self.inline.iter().fold(0, |sum: u64, entry| {
            sum.saturating_add(u64::from(entry.count()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileOffset, InodeNumber, Logical, TreeId};

    fn header(flags: u64) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(1).u64(7).u64(flags);
        w.finish()
    }

    #[test]
    fn each_fault_is_told() {
        let bad = |field, value| {
            Err(ParseError::BadValue {
                what: WHAT,
                field,
                value,
            })
        };
        let parse = ExtentItem::parse;
        assert_eq!(parse(ItemType::EXTENT_ITEM, &header(0)), bad("flags", 0));
        assert_eq!(parse(ItemType::EXTENT_ITEM, &header(3)), bad("flags", 3));
        assert_eq!(parse(ItemType::METADATA_ITEM, &header(1)), bad("flags", 1));
        let mut deep = header(2);
        deep.extend([0; 17]);
        deep.push(8);
        assert_eq!(parse(ItemType::EXTENT_ITEM, &deep), bad("level", 8));
        let mut unknown = header(1);
        unknown.extend([99; 9]);
        assert_eq!(
            parse(ItemType::EXTENT_ITEM, &unknown),
            Err(ParseError::BadValue {
                what: "extent reference",
                field: "type",
                value: 99
            })
        );
        let mut none = header(1);
        let shared = ExtentRef::SharedData {
            parent: Logical(4096),
            count: 0,
        };
        let mut w = Writer::default();
        shared.write_inline(&mut w);
        none.extend(w.finish());
        assert_eq!(
            parse(ItemType::EXTENT_ITEM, &none),
            Err(ParseError::BadValue {
                what: "extent reference",
                field: "count",
                value: 0
            })
        );
    }

    #[test]
    fn order_is_by_type_then_descending() {
        let data = |inode| ExtentRef::Data {
            root: TreeId(5),
            inode: InodeNumber(inode),
            offset: FileOffset(0),
            count: 1,
        };
        let (mut first, mut second) = (data(257), data(258));
        if first.order() < second.order() {
            std::mem::swap(&mut first, &mut second);
        }
        let shared = ExtentRef::SharedData {
            parent: Logical(1),
            count: 1,
        };
        let owner = ExtentRef::Owner { root: TreeId(5) };
        let mut item = ExtentItem {
            header: ExtentHeader {
                refs: 3,
                generation: Generation(1),
                flags: ExtentFlags::DATA,
                tree_block: None,
            },
            inline: vec![owner, first, second, shared],
        };
        assert!(item.is_sorted());
        assert_eq!(item.inline_count(), 3);
        assert_eq!(
            ExtentItem::parse(ItemType::EXTENT_ITEM, &item.encode()).unwrap(),
            item
        );
        item.inline.swap(1, 2);
        assert!(!item.is_sorted());
        item.inline[1] = item.inline[2];
        assert!(!item.is_sorted());
    }
}
