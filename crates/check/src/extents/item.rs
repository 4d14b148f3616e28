//! Items of the extent tree as this crate reads them.

use super::tally::{By, Shape};
use butterfs_format::bytes::Reader;
use butterfs_format::checksum::crc32c_raw;
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{ItemType, Key, ParseError};
use thiserror::Error;

const FLAG_DATA: u64 = 1;
const FLAG_NODE: u64 = 2;
const FLAG_FULL_BACKREF: u64 = 1 << 8;

/// What is wrong with an item of the extent tree.
#[derive(Debug, Error)]
pub(crate) enum ExtentFault {
    /// It ends early.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Neither data nor node, or more than is known.
    #[error("it has the impossible flags {0:#x}")]
    Flags(u64),
    /// Its number of references is zero.
    #[error("it has no references")]
    NoReferences,
    /// Key and flags say different things.
    #[error("it is the item of a node but is flagged as data")]
    NodeIsData,
    /// A node of another size than the volume's.
    #[error("a node cannot have {0} bytes")]
    NodeSize(u64),
    /// A level that no node has.
    #[error("a node cannot have level {0}")]
    Level(u64),
    /// Data with FULL_BACKREF.
    #[error("data are flagged as a parent of nodes")]
    DataIsParent,
    /// The owner of simple quotas is not the first inline item.
    #[error("its owner does not come first, and once")]
    OwnerOrder,
    /// The owner of simple quotas with a node.
    #[error("it is a node but has an owner of data")]
    OwnerOfNode,
    /// An inline item that is no reference.
    #[error("it has an inline reference of unknown type {0}")]
    InlineType(u8),
    /// An inline reference that counts zero.
    #[error("its reference by {0} counts nothing")]
    InlineCount(By),
    /// Inline references that do not ascend.
    #[error("its inline references are out of order")]
    InlineOrder,
    /// A reference of data by a tree, or of a node by a file.
    #[error("it is {shape} but has a reference by {by}")]
    Unsuitable { shape: Shape, by: By },
    /// A reference with more bytes than it needs.
    #[error("it has {0} bytes too many")]
    TooLong(usize),
    /// A reference that counts zero.
    #[error("it counts nothing")]
    Count,
}

/// An extent as the extent tree has it.
#[derive(Clone, Debug)]
pub(crate) struct ExtentItem {
    pub(crate) shape: Shape,
    pub(crate) refs: u64,
    pub(crate) generation: u64,
    /// References of this node to its children are by parent.
    pub(crate) is_parent: bool,
    /// Inline references with their counts.
    pub(crate) inline: Vec<(By, u64)>,
    /// Tree that allocated it, where simple quotas noted that.
    pub(crate) owner: Option<u64>,
}

/// The order of a data reference among others, and its key.
pub(crate) fn data_hash(root: u64, inode: u64, offset: u64) -> u64 {
    let high = crc32c_raw(u32::MAX, &root.to_le_bytes());
    let low = crc32c_raw(u32::MAX, &inode.to_le_bytes());
    let low = crc32c_raw(low, &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

impl ExtentItem {
    /// Reads an item.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(key: Key, data: &[u8], node_bytes: u64) -> Result<Self, ExtentFault> {
        let mut r = Reader::new("extent item", data);
        let refs = r.u64()?;
        let generation = r.u64()?;
        let flags = r.u64()?;
        let known = FLAG_DATA | FLAG_NODE | FLAG_FULL_BACKREF;
        let is_node = flags & FLAG_NODE != 0;
        if flags & !known != 0 || is_node == (flags & FLAG_DATA != 0) {
            return Err(ExtentFault::Flags(flags));
        }
        if refs == 0 {
            return Err(ExtentFault::NoReferences);
        }
        let shape = if key.item_type == ItemType::METADATA_ITEM {
            if !is_node {
                return Err(ExtentFault::NodeIsData);
            }
            Shape::Node(level_of(key.offset)?)
        } else if is_node {
            r.bytes(Key::SIZE)?;
            let level = r.u8()?;
            if key.offset != node_bytes {
                return Err(ExtentFault::NodeSize(key.offset));
            }
            Shape::Node(level_of(u64::from(level))?)
        } else {
            Shape::Data(key.offset)
        };
        let is_parent = flags & FLAG_FULL_BACKREF != 0;
        if is_parent && !is_node {
            return Err(ExtentFault::DataIsParent);
        }
        let mut item = Self {
            shape,
            refs,
            generation,
            is_parent,
            inline: Vec::new(),
            owner: None,
        };
        item.parse_inline(&mut r)?;
        Ok(item)
    }

    fn parse_inline(&mut self, r: &mut Reader<'_>) -> Result<(), ExtentFault> {
        let mut before: Option<(u8, u64)> = None;
        while r.remaining() > 0 {
            let kind = ItemType(r.u8()?);
            if kind == ItemType::EXTENT_OWNER_REF {
                let owner = r.u64()?;
                if before.is_some() || self.owner.is_some() {
                    return Err(ExtentFault::OwnerOrder);
                }
                if matches!(self.shape, Shape::Node(_)) {
                    return Err(ExtentFault::OwnerOfNode);
                }
                self.owner = Some(owner);
                continue;
            }
            let (by, count, order) = match kind {
                ItemType::EXTENT_DATA_REF => read_data(r)?,
                ItemType::TREE_BLOCK_REF => {
                    let tree = r.u64()?;
                    (By::Tree(tree), 1, tree)
                }
                ItemType::SHARED_BLOCK_REF => {
                    let parent = r.u64()?;
                    (By::Parent(parent), 1, parent)
                }
                ItemType::SHARED_DATA_REF => {
                    let leaf = r.u64()?;
                    (By::Leaf(leaf), u64::from(r.u32()?), leaf)
                }
                ItemType(other) => {
                    return Err(ExtentFault::InlineType(other));
                }
            };
            self.suits(by)?;
            if count == 0 {
                return Err(ExtentFault::InlineCount(by));
            }
            let out_of_order = before
                .is_some_and(|(last, least)| kind.0 < last || (kind.0 == last && order >= least));
            if out_of_order {
                return Err(ExtentFault::InlineOrder);
            }
            before = Some((kind.0, order));
            self.inline.push((by, count));
        }
        Ok(())
    }

    fn suits(&self, by: By) -> Result<(), ExtentFault> {
        let to_node = matches!(by, By::Tree(_) | By::Parent(_));
        if to_node == matches!(self.shape, Shape::Node(_)) {
            return Ok(());
        }
        Err(ExtentFault::Unsuitable {
            shape: self.shape,
            by,
        })
    }
}

fn level_of(level: u64) -> Result<u8, ExtentFault> {
    match u8::try_from(level) {
        Ok(level) if level <= LEVEL_MAX => Ok(level),
        _ => Err(ExtentFault::Level(level)),
    }
}

fn read_data(r: &mut Reader<'_>) -> Result<(By, u64, u64), ParseError> {
    let (root, inode, offset) = (r.u64()?, r.u64()?, r.u64()?);
    let count = u64::from(r.u32()?);
    let by = By::File {
        root,
        inode,
        offset,
    };
    Ok((by, count, data_hash(root, inode, offset)))
}

/// Reads a reference with an item of its own; `None` for items that are none.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse_keyed(key: Key, data: &[u8]) -> Result<Option<(By, u64)>, ExtentFault> {
    let mut r = Reader::new("extent reference", data);
    let entry = match key.item_type {
        ItemType::TREE_BLOCK_REF => (By::Tree(key.offset), 1),
        ItemType::SHARED_BLOCK_REF => (By::Parent(key.offset), 1),
        ItemType::SHARED_DATA_REF => (By::Leaf(key.offset), u64::from(r.u32()?)),
        ItemType::EXTENT_DATA_REF => {
            // Other hashes are probed forward from the right one.
            let (by, count, _) = read_data(&mut r)?;
            (by, count)
        }
        _ => return Ok(None),
    };
    if r.remaining() != 0 {
        return Err(ExtentFault::TooLong(r.remaining()));
    }
    if entry.1 == 0 {
        return Err(ExtentFault::Count);
    }
    Ok(Some(entry))
}
