//! One extent's item with its inline references, to be changed and written
//! back.
//!
//! Owns the order of inline references (types ascending; within a type the
//! greatest offset or hash first) and their limit. Owns the keyed items of
//! references beyond this limit.

use super::pending::{Backref, ExtentKind};
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::item_fault::ItemFault;
use butterfs_format::bytes::{Reader, Writer};
use butterfs_format::checksum::crc32c_raw;
use butterfs_format::{
    Generation, InodeNumber, ItemType, Key, Logical, NodeRef, ParseError, TreeId,
};
use butterfs_tree::{Cursor, NodeSource, find};

/// Flag of a data extent.
pub const FLAG_DATA: u64 = 1;
/// Flag of a node.
pub const FLAG_TREE_BLOCK: u64 = 2;
/// Children are referred to by parent.
pub const FLAG_FULL_BACKREF: u64 = 1 << 8;

/// Its name in errors.
const WHAT: &str = "extent item";
/// Bytes of the fixed part.
const FIXED: usize = 24;
/// Bytes of key and level of a node without the skinny form.
const TREE_BLOCK_INFO: usize = 18;

/// An extent's item.
#[derive(Clone, Debug)]
pub struct ExtentRecord {
    /// Key of its item.
    pub key: Key,
    /// All references, inline and keyed.
    pub refs: u64,
    /// Generation that allocated it.
    pub generation: Generation,
    /// `FLAG_*`.
    pub flags: u64,
    /// First key and level, without the skinny form.
    pub info: Option<[u8; TREE_BLOCK_INFO]>,
    /// Owner under simple quotas, kept as it is.
    pub owner: Option<u64>,
    /// Inline references and their counts.
    pub inline: Vec<(Backref, u32)>,
}

/// What an extent's item says before its references.
#[derive(Clone, Copy, Debug)]
pub struct ExtentHead {
    /// Key of its item.
    pub key: Key,
    /// All references, inline and keyed.
    pub refs: u64,
    /// Generation that allocated it.
    pub generation: Generation,
    /// `FLAG_*`.
    pub flags: u64,
    /// First key and level, without the skinny form.
    info: Option<[u8; TREE_BLOCK_INFO]>,
}

impl ExtentHead {
    /// Parses an item's beginning; the references behind it are not looked at.
    pub fn parse(key: Key, data: &[u8]) -> Result<Self, ParseError> {
        Self::read(key, &mut Reader::new(WHAT, data))
    }

    fn read(key: Key, r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let refs = r.u64()?;
        let generation = Generation(r.u64()?);
        let flags = r.u64()?;
        let is_long = flags & FLAG_TREE_BLOCK != 0 && key.item_type == ItemType::EXTENT_ITEM;
        Ok(Self {
            key,
            refs,
            generation,
            flags,
            info: is_long.then(|| r.array()).transpose()?,
        })
    }

    /// Level of a node; `None` for data.
    pub fn level(&self) -> Option<u8> {
        if self.flags & FLAG_DATA != 0 {
            return None;
        }
        Some(match &self.info {
            Some(info) => info[Key::SIZE],
            None => u8::try_from(self.key.offset).unwrap_or(u8::MAX),
        })
    }
}

/// Hash of a data reference: part of its key, and its order inline.
pub fn data_ref_hash(root: TreeId, inode: InodeNumber, offset: u64) -> u64 {
    let high = crc32c_raw(u32::MAX, &root.get().to_le_bytes());
    let low = crc32c_raw(u32::MAX, &inode.get().to_le_bytes());
    let low = crc32c_raw(low, &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

impl Backref {
    /// Type and order (or key offset) of this reference.
    pub fn place(&self) -> (ItemType, u64) {
        match *self {
            Self::Tree(tree) => (ItemType::TREE_BLOCK_REF, tree.get()),
            Self::SharedNode(parent) => (ItemType::SHARED_BLOCK_REF, parent.get()),
            Self::Data {
                root,
                inode,
                offset,
            } => (
                ItemType::EXTENT_DATA_REF,
                data_ref_hash(root, inode, offset),
            ),
            Self::SharedData(parent) => (ItemType::SHARED_DATA_REF, parent.get()),
        }
    }

    /// Bytes of its inline form.
    pub const fn inline_size(&self) -> usize {
        match self {
            Self::Tree(_) | Self::SharedNode(_) => 9,
            Self::Data { .. } => 29,
            Self::SharedData(_) => 13,
        }
    }

    /// Data of its keyed item.
    pub fn keyed_data(&self, count: u32) -> Vec<u8> {
        let mut w = Writer::default();
        match *self {
            Self::Tree(_) | Self::SharedNode(_) => {}
            Self::Data {
                root,
                inode,
                offset,
            } => {
                w.u64(root.get()).u64(inode.get()).u64(offset).u32(count);
            }
            Self::SharedData(_) => {
                w.u32(count);
            }
        }
        w.finish()
    }
}

impl ExtentRecord {
    /// A record for a new extent, without references.
    pub fn new(
        logical: Logical,
        length: u64,
        kind: ExtentKind,
        generation: Generation,
        skinny: bool,
    ) -> Self {
        let (item_type, offset, flags, info) = match kind {
            ExtentKind::Data => (ItemType::EXTENT_ITEM, length, FLAG_DATA, None),
            ExtentKind::Node { level, .. } if skinny => (
                ItemType::METADATA_ITEM,
                u64::from(level),
                FLAG_TREE_BLOCK,
                None,
            ),
            ExtentKind::Node { level, first_key } => {
                let mut info = [0; TREE_BLOCK_INFO];
                info[..Key::SIZE].copy_from_slice(&first_key.unwrap_or(Key::MIN).to_bytes());
                info[Key::SIZE] = level;
                (ItemType::EXTENT_ITEM, length, FLAG_TREE_BLOCK, Some(info))
            }
        };
        Self {
            key: Key::new(logical.get(), item_type, offset),
            refs: 0,
            generation,
            flags,
            info,
            owner: None,
            inline: Vec::new(),
        }
    }

    /// Reads the record of an extent from the extent tree.
    ///
    /// # Errors
    /// It is missing or damaged; reading.
    pub fn load<S: NodeSource>(
        source: &S,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
    ) -> Result<Self, StoreError> {
        let plain = Key::new(logical.get(), ItemType::EXTENT_ITEM, length);
        let skinny = match kind {
            ExtentKind::Node { level, .. } => Some(Key::new(
                logical.get(),
                ItemType::METADATA_ITEM,
                u64::from(level),
            )),
            ExtentKind::Data => None,
        };
        for key in skinny.into_iter().chain([plain]) {
            if let Some((leaf, slot)) = find(source, TreeId::EXTENT, &key)? {
                return Self::parse_counted(key, leaf.data(slot));
            }
        }
        Err(corrupt_item(
            TreeId::EXTENT,
            plain,
            ItemFault::MissingExtent,
        ))
    }

    /// Parses an item, and compares its count with the references that it
    /// lists. Whoever believes a count that is too small frees or overwrites
    /// what others refer to.
    ///
    /// # Errors
    /// It is damaged; it counts fewer references than it lists.
    pub fn parse_counted(key: Key, data: &[u8]) -> Result<Self, StoreError> {
        let record =
            Self::parse(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        if record.refs < record.listed() {
            let fault = ItemFault::MoreRefsThanCounted;
            return Err(corrupt_item(TreeId::EXTENT, key, fault));
        }
        Ok(record)
    }

    /// References that lie in the item itself.
    fn listed(&self) -> u64 {
        let inline = self.inline.iter().map(|(_, count)| u64::from(*count));
        inline.sum()
    }

    /// Parses an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(key: Key, data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new(WHAT, data);
        let ExtentHead {
            refs,
            generation,
            flags,
            info,
            ..
        } = ExtentHead::read(key, &mut r)?;
        let mut inline = Vec::new();
        let mut owner = None;
        while r.remaining() > 0 {
            let item_type = ItemType(r.u8()?);
            let entry = match item_type {
                ItemType::TREE_BLOCK_REF => (Backref::Tree(TreeId(r.u64()?)), 1),
                ItemType::SHARED_BLOCK_REF => (Backref::SharedNode(Logical(r.u64()?)), 1),
                ItemType::EXTENT_DATA_REF => {
                    let root = TreeId(r.u64()?);
                    let inode = InodeNumber(r.u64()?);
                    let offset = r.u64()?;
                    let by = Backref::Data {
                        root,
                        inode,
                        offset,
                    };
                    (by, r.u32()?)
                }
                ItemType::SHARED_DATA_REF => {
                    let by = Backref::SharedData(Logical(r.u64()?));
                    (by, r.u32()?)
                }
                ItemType::EXTENT_OWNER_REF => {
                    owner = Some(r.u64()?);
                    continue;
                }
                ItemType(other) => {
                    return Err(ParseError::BadValue {
                        what: WHAT,
                        field: "inline reference type",
                        value: u64::from(other),
                    });
                }
            };
            inline.push(entry);
        }
        Ok(Self {
            key,
            refs,
            generation,
            flags,
            info,
            owner,
            inline,
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(FIXED + 32);
        w.u64(self.refs).u64(self.generation.get()).u64(self.flags);
        if let Some(info) = &self.info {
            w.bytes(info);
        }
        if let Some(owner) = self.owner {
            w.u8(ItemType::EXTENT_OWNER_REF.0).u64(owner);
        }
        for (by, count) in &self.inline {
            w.u8(by.place().0.0);
            match *by {
                Backref::Tree(tree) => {
                    w.u64(tree.get());
                }
                Backref::SharedNode(parent) => {
                    w.u64(parent.get());
                }
                Backref::Data { .. } => {
                    w.bytes(&by.keyed_data(*count));
                }
                Backref::SharedData(parent) => {
                    w.u64(parent.get()).u32(*count);
                }
            }
        }
        w.finish()
    }

    /// The pointer to the node of this record; `None` for data.
    pub fn node(&self) -> Option<NodeRef> {
        if self.flags & FLAG_TREE_BLOCK == 0 {
            return None;
        }
        let level = match (self.key.item_type, &self.info) {
            (ItemType::METADATA_ITEM, _) => u8::try_from(self.key.offset).unwrap_or(u8::MAX),
            (_, Some(info)) => info[Key::SIZE],
            (_, None) => 0,
        };
        Some(NodeRef {
            logical: Logical(self.key.objectid),
            generation: self.generation,
            level,
        })
    }

    /// True when children are referred to by parent.
    pub const fn is_full_backref(&self) -> bool {
        self.flags & FLAG_FULL_BACKREF != 0
    }

    /// Bytes of its encoding.
    pub fn size(&self) -> usize {
        let inline: usize = self.inline.iter().map(|(by, _)| by.inline_size()).sum();
        FIXED + self.info.map_or(0, |_| TREE_BLOCK_INFO) + self.owner.map_or(0, |_| 9) + inline
    }

    /// True when references have items of their own.
    pub fn has_keyed(&self) -> bool {
        self.refs > self.listed()
    }

    /// The count of one reference. It may be too small if the item was found
    /// behind others whose hashes collide.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn count_of<S: NodeSource>(&self, source: &S, by: Backref) -> Result<i64, StoreError> {
        let inline = self.inline.iter().filter(|(other, _)| *other == by);
        let inline: i64 = inline.map(|(_, count)| i64::from(*count)).sum();
        if !self.has_keyed() {
            return Ok(inline);
        }
        let place = find_keyed(source, self.key.objectid, by, Reach::Near)?;
        Ok(inline + place.found.map_or(0, |(_, count)| i64::from(count)))
    }

    /// Adds an inline reference in its place.
    pub fn add_inline(&mut self, by: Backref, count: u32) {
        let (item_type, order) = by.place();
        let at = self.inline.partition_point(|(other, _)| {
            let (other_type, other_order) = other.place();
            other_type < item_type || (other_type == item_type && other_order > order)
        });
        self.inline.insert(at, (by, count));
    }

    /// All references of an extent with their counts, keyed ones included.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn all_refs<S: NodeSource>(&self, source: &S) -> Result<Vec<(Backref, u32)>, StoreError> {
        let mut all = self.inline.clone();
        let first = Key::new(self.key.objectid, ItemType::TREE_BLOCK_REF, 0);
        let mut cursor = Cursor::seek_in(source, TreeId::EXTENT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != self.key.objectid || key.item_type > ItemType::SHARED_DATA_REF {
                break;
            }
            if let Some(entry) =
                parse_keyed(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?
            {
                all.push(entry);
            }
            cursor.next()?;
        }
        Ok(all)
    }
}

/// Errors if an extent that goes has references in items of their own.
///
/// # Errors
/// Damage, reading.
pub fn verify_none_keyed<S: NodeSource>(source: &S, extent: Key) -> Result<(), StoreError> {
    let first = Key::new(extent.objectid, ItemType::TREE_BLOCK_REF, 0);
    let cursor = Cursor::seek_in(source, TreeId::EXTENT, &first)?;
    let is_ref =
        |key: &Key| key.objectid == first.objectid && key.item_type <= ItemType::SHARED_DATA_REF;
    match cursor.key().filter(is_ref) {
        Some(_) => Err(corrupt_item(TreeId::EXTENT, extent, ItemFault::RefsLeft)),
        None => Ok(()),
    }
}

/// Where the keyed item of a reference is, or belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The item with its count.
    pub found: Option<(Key, u32)>,
    /// The first key that no reference before it has.
    pub free: Key,
}

/// How far to look for the item of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// As far as collisions have probably put it. It need not be there.
    Near,
    /// Among all items of the extent. It must be there.
    Far,
}

/// How many keys are searched behind the last one that collisions explain now.
/// The items that once kept a reference from its place may be gone.
const BRANCHES: u64 = 1 << 16;

/// Looks for the keyed item of a reference to the extent at `object`.
///
/// Hashes of data references may collide. An item lies at its hash, or at the
/// first offset behind it that was free when the item was made. So there may be
/// holes before it. The kernel may even have made two items of one reference,
/// one of them in such a hole. The first one is found. Only a fault puts an item
/// before its hash. It is looked for there last, and only by [`Reach::Far`].
///
/// # Errors
/// Damage, reading.
pub fn find_keyed<S: NodeSource>(
    source: &S,
    object: u64,
    by: Backref,
    reach: Reach,
) -> Result<Place, StoreError> {
    let (item_type, first) = by.place();
    let mut place = Place {
        found: None,
        free: Key::new(object, item_type, first),
    };
    let mut cursor = Cursor::seek_in(source, TreeId::EXTENT, &place.free)?;
    while let Some((key, data)) = cursor.item() {
        if key.objectid != object || key.item_type != item_type {
            break;
        }
        if key == place.free {
            let beyond = || corrupt_item(TreeId::EXTENT, key, ItemFault::NoOffsetBehind);
            place.free.offset = key.offset.checked_add(1).ok_or_else(beyond)?;
        } else if item_type != ItemType::EXTENT_DATA_REF
            || (reach == Reach::Near && key.offset - place.free.offset > BRANCHES)
        {
            break;
        }
        let parsed =
            parse_keyed(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        if let Some((other, count)) = parsed
            && other == by
        {
            place.found = Some((key, count));
            return Ok(place);
        }
        cursor.next()?;
    }
    if reach == Reach::Far && item_type == ItemType::EXTENT_DATA_REF {
        place.found = find_before_hash(source, Key::new(object, item_type, first), by)?;
    }
    Ok(place)
}

/// Looks for the keyed item of a data reference before the place of its hash.
fn find_before_hash<S: NodeSource>(
    source: &S,
    hash: Key,
    by: Backref,
) -> Result<Option<(Key, u32)>, StoreError> {
    let mut cursor = Cursor::seek_in(source, TreeId::EXTENT, &Key { offset: 0, ..hash })?;
    while let Some((key, data)) = cursor.item().filter(|(key, _)| *key < hash) {
        let parsed =
            parse_keyed(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        if let Some((other, count)) = parsed
            && other == by
        {
            return Ok(Some((key, count)));
        }
        cursor.next()?;
    }
    Ok(None)
}

/// Looks through the unbroken chain behind `gap`, whose item is gone. Gives the
/// first item that belongs at `gap` or before it, with its data.
///
/// # Errors
/// Damage, reading.
pub fn displaced_behind<S: NodeSource>(
    source: &S,
    gap: Key,
) -> Result<Option<(Key, Vec<u8>)>, StoreError> {
    let Some(offset) = gap.offset.checked_add(1) else {
        return Ok(None);
    };
    if gap.item_type != ItemType::EXTENT_DATA_REF {
        return Ok(None);
    }
    let mut next = Key { offset, ..gap };
    let mut cursor = Cursor::seek_in(source, TreeId::EXTENT, &next)?;
    while let Some((key, data)) = cursor.item().filter(|(key, _)| *key == next) {
        let parsed =
            parse_keyed(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        if parsed.is_some_and(|(by, _)| by.place().1 <= gap.offset) {
            return Ok(Some((key, data.to_vec())));
        }
        let Some(offset) = next.offset.checked_add(1) else {
            break;
        };
        next.offset = offset;
        cursor.next()?;
    }
    Ok(None)
}

/// Parses a keyed reference; `None` for other items.
///
/// # Errors
/// [`ParseError`]
pub fn parse_keyed(key: Key, data: &[u8]) -> Result<Option<(Backref, u32)>, ParseError> {
    let mut r = Reader::new("extent reference", data);
    Ok(Some(match key.item_type {
        ItemType::TREE_BLOCK_REF => (Backref::Tree(TreeId(key.offset)), 1),
        ItemType::SHARED_BLOCK_REF => (Backref::SharedNode(Logical(key.offset)), 1),
        ItemType::EXTENT_DATA_REF => {
            let by = Backref::Data {
                root: TreeId(r.u64()?),
                inode: InodeNumber(r.u64()?),
                offset: r.u64()?,
            };
            (by, r.u32()?)
        }
        ItemType::SHARED_DATA_REF => (Backref::SharedData(Logical(key.offset)), r.u32()?),
        _ => return Ok(None),
    }))
}
