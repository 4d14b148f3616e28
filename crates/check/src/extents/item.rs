//! Items of the extent tree. This crate parses them on its own, so that it does
//! not share faults with the writers.

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
    /// The flags name neither data nor a node, or both, or include unknown ones.
    #[error("it has the impossible flags {0:#x}")]
    Flags(u64),
    /// Its number of references is zero.
    #[error("it has no references")]
    NoReferences,
    /// The key is that of a node, the flags are those of data.
    #[error("it is the item of a node but is flagged as data")]
    NodeIsData,
    /// A node has another size than the nodes of the volume.
    #[error("a node cannot have {0} bytes")]
    NodeSize(u64),
    /// A level that no node can have.
    #[error("a node cannot have level {0}")]
    Level(u64),
    /// Data have the flag FULL_BACKREF.
    #[error("data are flagged as a parent of nodes")]
    DataIsParent,
    /// The owner of simple quotas is not the first inline item, or is there
    /// twice.
    #[error("its owner does not come first, and once")]
    OwnerOrder,
    /// A node has an owner of simple quotas.
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
    /// A tree refers to data, or a file to a node.
    #[error("it is {shape} but has a reference by {by}")]
    Unsuitable { shape: Shape, by: By },
    /// A reference with more bytes than it needs.
    #[error("it has {0} bytes too many")]
    TooLong(usize),
    /// A reference that counts zero.
    #[error("it counts nothing")]
    Count,
    /// The key of a data reference is below the hash of the reference, so that
    /// the kernel does not find it.
    #[error("it lies at {found}, before its hash {hash}, where the kernel does not look for it")]
    BeforeHash { found: u64, hash: u64 },
}

/// An extent as the extent tree records it.
#[derive(Clone, Debug)]
pub(crate) struct ExtentItem {
    pub(crate) shape: Shape,
    pub(crate) refs: u64,
    pub(crate) generation: u64,
    /// References of this node to its children are by parent.
    pub(crate) is_parent: bool,
    /// Inline references with their counts.
    pub(crate) inline: Vec<(By, u64)>,
    /// The tree that allocated it, if simple quotas recorded one.
    pub(crate) owner: Option<u64>,
}

/// The hash of a data reference. References are sorted by it, and it is the key
/// of a reference with its own item.
pub(crate) fn data_hash(root: u64, inode: u64, offset: u64) -> u64 {
    let high = crc32c_raw(u32::MAX, &root.to_le_bytes());
    let low = crc32c_raw(u32::MAX, &inode.to_le_bytes());
    let low = crc32c_raw(low, &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

impl ExtentItem {
    /// Parses an item and its inline references.
    ///
    /// # Errors
    /// Says what is wrong if the item is impossible.
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

/// Parses a reference that has its own item; `None` for items that are no
/// references.
///
/// # Errors
/// Says what is wrong if the reference is impossible.
pub(crate) fn parse_keyed(key: Key, data: &[u8]) -> Result<Option<(By, u64)>, ExtentFault> {
    let mut r = Reader::new("extent reference", data);
    let entry = match key.item_type {
        ItemType::TREE_BLOCK_REF => (By::Tree(key.offset), 1),
        ItemType::SHARED_BLOCK_REF => (By::Parent(key.offset), 1),
        ItemType::SHARED_DATA_REF => (By::Leaf(key.offset), u64::from(r.u32()?)),
        ItemType::EXTENT_DATA_REF => {
            // The key need not be the hash: see `verify_place`.
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

/// Checks the key of a reference that has its own item. If the key of a data
/// reference's hash is taken, writers use the next free one. So its key may be
/// greater than the hash, but never less.
///
/// # Errors
/// [`ExtentFault::BeforeHash`]
pub(crate) fn verify_place(key: Key, by: By) -> Result<(), ExtentFault> {
    let By::File {
        root,
        inode,
        offset,
    } = by
    else {
        return Ok(());
    };
    let (found, hash) = (key.offset, data_hash(root, inode, offset));
    if found < hash {
        return Err(ExtentFault::BeforeHash { found, hash });
    }
    Ok(())
}
