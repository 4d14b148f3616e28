//! Items of the extent tree as this crate reads them.

use super::tally::{By, Shape};
use butterfs_format::bytes::Reader;
use butterfs_format::checksum::crc32c_raw;
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{ItemType, Key};

const FLAG_DATA: u64 = 1;
const FLAG_NODE: u64 = 2;
const FLAG_FULL_BACKREF: u64 = 1 << 8;

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

fn short(error: butterfs_format::ParseError) -> String {
    error.to_string()
}

impl ExtentItem {
    /// Reads an item.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(key: Key, data: &[u8], node_bytes: u64) -> Result<Self, String> {
        let mut r = Reader::new("extent item", data);
        let refs = r.u64().map_err(short)?;
        let generation = r.u64().map_err(short)?;
        let flags = r.u64().map_err(short)?;
        let known = FLAG_DATA | FLAG_NODE | FLAG_FULL_BACKREF;
        let is_node = flags & FLAG_NODE != 0;
        if flags & !known != 0 || is_node == (flags & FLAG_DATA != 0) {
            return Err(format!("it has the impossible flags {flags:#x}"));
        }
        if refs == 0 {
            return Err("it has no references".to_owned());
        }
        let shape = if key.item_type == ItemType::METADATA_ITEM {
            if !is_node {
                return Err("it is the item of a node but is flagged as data".to_owned());
            }
            Shape::Node(level_of(key.offset)?)
        } else if is_node {
            r.bytes(Key::SIZE).map_err(short)?;
            let level = r.u8().map_err(short)?;
            if key.offset != node_bytes {
                return Err(format!("a node cannot have {} bytes", key.offset));
            }
            Shape::Node(level_of(u64::from(level))?)
        } else {
            Shape::Data(key.offset)
        };
        let is_parent = flags & FLAG_FULL_BACKREF != 0;
        if is_parent && !is_node {
            return Err("data are flagged as a parent of nodes".to_owned());
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

    fn parse_inline(&mut self, r: &mut Reader<'_>) -> Result<(), String> {
        let mut before: Option<(u8, u64)> = None;
        while r.remaining() > 0 {
            let kind = ItemType(r.u8().map_err(short)?);
            if kind == ItemType::EXTENT_OWNER_REF {
                let owner = r.u64().map_err(short)?;
                if before.is_some() || self.owner.is_some() {
                    return Err("its owner does not come first, and once".to_owned());
                }
                if matches!(self.shape, Shape::Node(_)) {
                    return Err("it is a node but has an owner of data".to_owned());
                }
                self.owner = Some(owner);
                continue;
            }
            let (by, count, order) = match kind {
                ItemType::EXTENT_DATA_REF => read_data(r).map_err(short)?,
                ItemType::TREE_BLOCK_REF => {
                    let tree = r.u64().map_err(short)?;
                    (By::Tree(tree), 1, tree)
                }
                ItemType::SHARED_BLOCK_REF => {
                    let parent = r.u64().map_err(short)?;
                    (By::Parent(parent), 1, parent)
                }
                ItemType::SHARED_DATA_REF => {
                    let leaf = r.u64().map_err(short)?;
                    (By::Leaf(leaf), u64::from(r.u32().map_err(short)?), leaf)
                }
                ItemType(other) => {
                    return Err(format!(
                        "it has an inline reference of unknown type {other}"
                    ));
                }
            };
            self.suits(by)?;
            if count == 0 {
                return Err(format!("its reference by {by} counts nothing"));
            }
            let out_of_order = before
                .is_some_and(|(last, least)| kind.0 < last || (kind.0 == last && order >= least));
            if out_of_order {
                return Err("its inline references are out of order".to_owned());
            }
            before = Some((kind.0, order));
            self.inline.push((by, count));
        }
        Ok(())
    }

    fn suits(&self, by: By) -> Result<(), String> {
        let to_node = matches!(by, By::Tree(_) | By::Parent(_));
        if to_node == matches!(self.shape, Shape::Node(_)) {
            return Ok(());
        }
        Err(format!("it is {} but has a reference by {by}", self.shape))
    }
}

fn level_of(level: u64) -> Result<u8, String> {
    match u8::try_from(level) {
        Ok(level) if level <= LEVEL_MAX => Ok(level),
        _ => Err(format!("a node cannot have level {level}")),
    }
}

fn read_data(r: &mut Reader<'_>) -> Result<(By, u64, u64), butterfs_format::ParseError> {
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
pub(crate) fn parse_keyed(key: Key, data: &[u8]) -> Result<Option<(By, u64)>, String> {
    let mut r = Reader::new("extent reference", data);
    let entry = match key.item_type {
        ItemType::TREE_BLOCK_REF => (By::Tree(key.offset), 1),
        ItemType::SHARED_BLOCK_REF => (By::Parent(key.offset), 1),
        ItemType::SHARED_DATA_REF => (By::Leaf(key.offset), u64::from(r.u32().map_err(short)?)),
        ItemType::EXTENT_DATA_REF => {
            // Other hashes are probed forward from the right one.
            let (by, count, _) = read_data(&mut r).map_err(short)?;
            (by, count)
        }
        _ => return Ok(None),
    };
    if r.remaining() != 0 {
        return Err(format!("it has {} bytes too many", r.remaining()));
    }
    if entry.1 == 0 {
        return Err("it counts nothing".to_owned());
    }
    Ok(Some(entry))
}
