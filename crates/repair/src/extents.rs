//! The extent tree, made equal to what all trees refer to.
//!
//! Owns the comparison and the form of extent items. An extent that is recorded
//! rightly stays as it is; so if little is wrong, little is written.

use crate::error::RepairError;
use crate::items::{self, Items};
use crate::ranges::Ranges;
use crate::walk::{By, DataBy, DataRef, Found, FoundNode, Recorded};
use crate::writer::Writer;
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader, ExtentItem, TreeBlockInfo};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::{FileOffset, Generation, InodeNumber, ItemType, Key, Logical, TreeId};
use butterfs_tree::{Cursor, Editor};
use std::collections::BTreeMap;

/// Extents that are changed before the tree is read further.
const BATCH: usize = 4096;

/// An extent as the trees refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) kind: Kind,
    pub(crate) generation: u64,
    /// Without counts twice: each reference once, with its count.
    pub(crate) refs: Vec<ExtentRef>,
}

/// What an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Node {
        level: u8,
        is_parent: bool,
        first_key: Key,
    },
    Data(u64),
}

/// How extents are written in this volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) node_size: u32,
    pub(crate) is_skinny: bool,
    /// No item is of a later generation.
    pub(crate) newest: Generation,
}

/// Removes and inserts of one extent's items.
#[derive(Debug, Default)]
struct Change {
    remove: Vec<Key>,
    insert: Vec<(Key, Vec<u8>)>,
}

/// What became of the extent tree.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// Space of all extents that are recorded now.
    pub(crate) allocated: Ranges,
    /// Extents that were recorded wrongly or not at all.
    pub(crate) corrected: u64,
    /// Extents that nothing refers to, which are gone now.
    pub(crate) removed: u64,
    /// References that contradict each other.
    pub(crate) contradictions: u64,
}

fn ref_of(by: By) -> ExtentRef {
    match by {
        By::Tree(root) => ExtentRef::TreeBlock { root: TreeId(root) },
        By::Parent(parent) => ExtentRef::SharedBlock {
            parent: Logical(parent),
        },
    }
}

fn data_ref(by: DataBy, count: u32) -> ExtentRef {
    match by {
        DataBy::File {
            root,
            inode,
            offset,
        } => ExtentRef::Data {
            root: TreeId(root),
            inode: InodeNumber(inode),
            offset: FileOffset(offset),
            count,
        },
        DataBy::Leaf(leaf) => ExtentRef::SharedData {
            parent: Logical(leaf),
            count,
        },
    }
}

/// Sorts references as extent items have them.
fn sort(refs: &mut [ExtentRef]) {
    refs.sort_by_key(|one| (one.item_type(), std::cmp::Reverse(one.order())));
}

impl Extent {
    /// A node with its references.
    pub(crate) fn of_node(node: &FoundNode, by: impl Iterator<Item = By>) -> Self {
        let mut refs: Vec<ExtentRef> = by.map(ref_of).collect();
        sort(&mut refs);
        Self {
            logical: node.logical,
            kind: Kind::Node {
                level: node.level,
                is_parent: node.is_parent,
                first_key: node.first_key,
            },
            generation: node.generation,
            refs,
        }
    }

    /// Data with all references to its first byte. The greatest length counts.
    fn of_data(all: &[DataRef]) -> Option<Self> {
        let first = all.first()?;
        let mut counts: BTreeMap<DataBy, u32> = BTreeMap::new();
        for one in all {
            let count = counts.entry(one.by).or_default();
            *count = count.saturating_add(1);
        }
        let mut refs: Vec<ExtentRef> = counts.into_iter().map(|(by, n)| data_ref(by, n)).collect();
        sort(&mut refs);
        let generation = all.iter().map(|one| one.generation).min();
        Some(Self {
            logical: first.extent,
            kind: Kind::Data(all.iter().map(|one| one.length).max()?),
            generation: generation?,
            refs,
        })
    }

    fn length(&self, form: Form) -> u64 {
        match self.kind {
            Kind::Node { .. } => u64::from(form.node_size),
            Kind::Data(length) => length,
        }
    }

    fn end(&self, form: Form) -> u64 {
        self.logical.saturating_add(self.length(form))
    }

    /// Key of its item.
    pub(crate) fn key(&self, form: Form) -> Key {
        match self.kind {
            Kind::Node { level, .. } if form.is_skinny => {
                Key::new(self.logical, ItemType::METADATA_ITEM, u64::from(level))
            }
            _ => Key::new(self.logical, ItemType::EXTENT_ITEM, self.length(form)),
        }
    }

    fn count(&self) -> u64 {
        let counts = self.refs.iter().map(|one| u64::from(one.count()));
        counts.fold(0, u64::saturating_add)
    }

    fn header(&self, form: Form) -> ExtentHeader {
        let (flags, tree_block) = match self.kind {
            Kind::Data(_) => (ExtentFlags::DATA, None),
            Kind::Node {
                level,
                is_parent,
                first_key,
            } => (
                match is_parent {
                    true => ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF,
                    false => ExtentFlags::TREE_BLOCK,
                },
                (!form.is_skinny).then_some(TreeBlockInfo { first_key, level }),
            ),
        };
        ExtentHeader {
            refs: self.count(),
            generation: Generation(self.generation),
            flags,
            tree_block,
        }
    }

    /// Its items: the extent item with as many references as fit, and the other
    /// references. `owner` is who is charged for it under simple quotas.
    pub(crate) fn items(&self, form: Form, owner: Option<ExtentRef>) -> Vec<(Key, Vec<u8>)> {
        let leaf = usize::try_from(form.node_size)
            .unwrap_or(0)
            .saturating_sub(HEADER_SIZE);
        let room = (leaf >> 4).saturating_sub(ITEM_SIZE);
        let mut item = ExtentItem {
            header: self.header(form),
            inline: owner.into_iter().collect(),
        };
        let mut size = item.encode().len();
        let mut keyed: Items = Items::new();
        for one in &self.refs {
            let with = size.saturating_add(one.inline_size());
            if with <= room {
                size = with;
                item.inline.push(*one);
                continue;
            }
            let mut key = one.key(Logical(self.logical));
            while keyed.contains_key(&key) {
                key.offset = key.offset.wrapping_add(1);
            }
            keyed.insert(key, one.encode_keyed());
        }
        let mut all = vec![(self.key(form), item.encode())];
        all.extend(keyed);
        all
    }
}

/// What the extent tree has at one address.
#[derive(Debug, Default)]
struct Known {
    keys: Vec<Key>,
    items: Vec<(Key, ExtentItem)>,
    refs: Vec<ExtentRef>,
    owner: Option<ExtentRef>,
    is_bad: bool,
}

impl Known {
    fn add(&mut self, key: Key, data: &[u8]) {
        self.keys.push(key);
        let parsed = match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                ExtentItem::parse(key.item_type, data).map(|item| {
                    self.is_bad |= !item.is_sorted();
                    for one in &item.inline {
                        match one {
                            ExtentRef::Owner { .. } => self.owner = Some(*one),
                            _ => self.refs.push(*one),
                        }
                    }
                    self.items.push((key, item));
                })
            }
            _ => ExtentRef::parse_keyed(&key, data).map(|one| self.refs.push(one)),
        };
        self.is_bad |= parsed.is_err();
    }

    /// Bytes of the extent, if it has an item that can be read.
    fn length(&self, form: Form) -> Option<u64> {
        let (key, _) = self.items.first()?;
        Some(match key.item_type {
            ItemType::METADATA_ITEM => u64::from(form.node_size),
            _ => key.offset,
        })
    }

    fn is(&self, extent: &Extent, form: Form) -> bool {
        let [(key, item)] = &self.items[..] else {
            return false;
        };
        let wanted = extent.header(form);
        let level = |header: &ExtentHeader| header.tree_block.map(|info| info.level);
        let is_node = matches!(extent.kind, Kind::Node { .. });
        if self.is_bad
            || *key != extent.key(form)
            || item.header.refs != wanted.refs
            || item.header.flags != wanted.flags
            || level(&item.header) != level(&wanted)
            || (is_node && item.header.generation != wanted.generation)
            || item.header.generation > form.newest
        {
            return false;
        }
        let mut refs = self.refs.clone();
        sort(&mut refs);
        let mut expected = extent.refs.clone();
        sort(&mut expected);
        refs == expected
    }
}

/// The extents that the walk found, by address.
struct Wanted<'f> {
    found: &'f Found,
    nodes: usize,
    refs: usize,
    data: usize,
}

impl<'f> Wanted<'f> {
    const fn new(found: &'f Found) -> Self {
        Self {
            found,
            nodes: 0,
            refs: 0,
            data: 0,
        }
    }

    /// Address of the next extent.
    fn peek(&self) -> Option<u64> {
        let node = self.found.nodes.get(self.nodes).map(|node| node.logical);
        let data = self.found.data.get(self.data).map(|data| data.extent);
        match (node, data) {
            (Some(node), Some(data)) => Some(node.min(data)),
            (node, data) => node.or(data),
        }
    }

    fn next(&mut self) -> Option<Extent> {
        let at = self.peek()?;
        if let Some(node) = self
            .found
            .nodes
            .get(self.nodes)
            .filter(|node| node.logical == at)
        {
            self.nodes = self.nodes.saturating_add(1);
            let rest = self.found.node_refs.get(self.refs..).unwrap_or_default();
            let count = rest.iter().take_while(|(to, _)| *to == at).count();
            self.refs = self.refs.saturating_add(count);
            let by = rest.iter().take(count).map(|(_, by)| *by);
            return Some(Extent::of_node(node, by));
        }
        let rest = self.found.data.get(self.data..).unwrap_or_default();
        let count = rest.iter().take_while(|one| one.extent == at).count();
        self.data = self.data.saturating_add(count);
        Extent::of_data(rest.get(..count)?)
    }
}

/// What is done with extents that nothing was found to refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// They are removed: everything was read.
    Remove,
    /// They stay: what refers to them may be unreadable.
    Keep,
}

/// How this volume writes extents.
pub(crate) fn form(writer: &Writer) -> Form {
    Form {
        node_size: writer.patient.superblock.node_size,
        is_skinny: writer.patient.superblock.has_skinny_metadata(),
        newest: writer.generation,
    }
}

/// Reads what the extent tree says: its nodes that are parents, and the space of
/// its extents. What cannot be read is left out.
pub(crate) fn recorded(writer: &Writer) -> (Recorded, Ranges) {
    let mut recorded = Recorded::default();
    let mut space = Ranges::default();
    let node = writer.patient.node_bytes();
    let read = items::each(writer, TreeId::EXTENT, Key::MIN..=Key::MAX, |key, data| {
        let length = match key.item_type {
            ItemType::METADATA_ITEM => node,
            ItemType::EXTENT_ITEM => key.offset,
            _ => return Ok(()),
        };
        if let Some(end) = key.objectid.checked_add(length) {
            space.add(key.objectid..end);
        }
        if let Ok(item) = ExtentItem::parse(key.item_type, data)
            && item.header.flags.contains(ExtentFlags::FULL_BACKREF)
        {
            recorded.parents.insert(key.objectid);
        }
        Ok(())
    });
    recorded.is_whole = read.is_ok();
    (recorded, space)
}

/// Makes the extent tree equal to `found`.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn merge(
    writer: &mut Writer,
    found: &Found,
    unknown: Unknown,
) -> Result<Merged, RepairError> {
    let form = form(writer);
    let mut merged = Merged::default();
    let mut wanted = Wanted::new(found);
    let mut from = Some(0_u64);
    while let Some(start) = from {
        let (changes, next) = compare(writer, (&mut wanted, unknown), start, form, &mut merged)?;
        let mut editor = Editor::new(writer, TreeId::EXTENT);
        for change in changes {
            for key in change.remove {
                editor.remove(&key)?;
            }
            for (key, data) in change.insert {
                editor.replace(&key, &data)?;
            }
        }
        from = next;
    }
    Ok(merged)
}

/// Compares a part of the tree, from address `start` on. Gives the changes, and
/// where the next part begins.
fn compare(
    writer: &Writer,
    (wanted, unknown): (&mut Wanted<'_>, Unknown),
    start: u64,
    form: Form,
    merged: &mut Merged,
) -> Result<(Vec<Change>, Option<u64>), RepairError> {
    let mut changes = Vec::new();
    let begin = Key::new(start, ItemType::MIN, 0);
    let mut cursor = Cursor::seek_in(writer, TreeId::EXTENT, &begin)?;
    loop {
        let tree = loop {
            match cursor.key() {
                Some(key) if key.item_type == ItemType::BLOCK_GROUP_ITEM => cursor.next()?,
                other => break other.map(|key| key.objectid),
            };
        };
        let at = match (wanted.peek(), tree) {
            (None, None) => return Ok((changes, None)),
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).unwrap_or(0),
        };
        if changes.len() >= BATCH {
            return Ok((changes, Some(at)));
        }
        let mut known = Known::default();
        while let Some((key, data)) = cursor.item().filter(|(key, _)| key.objectid == at) {
            if key.item_type != ItemType::BLOCK_GROUP_ITEM {
                known.add(key, data);
            }
            cursor.next()?;
        }
        let extent = match wanted.peek() == Some(at) {
            true => wanted.next(),
            false => None,
        };
        let Some(mut extent) = extent else {
            match (unknown, known.length(form)) {
                (Unknown::Keep, Some(length)) if !known.is_bad => {
                    merged.allocated.add(at..at.saturating_add(length));
                }
                _ => {
                    // What the repair itself gave up was right.
                    if !writer.gone.contains_key(&at) {
                        merged.removed = merged.removed.saturating_add(1);
                    }
                    changes.push(Change {
                        remove: known.keys,
                        insert: Vec::new(),
                    });
                }
            }
            continue;
        };
        if unknown == Unknown::Keep {
            keep_refs(&mut extent, &known);
        }
        let end = extent.end(form);
        if merged.allocated.touches(at..end) {
            merged.contradictions = merged.contradictions.saturating_add(1);
            continue;
        }
        merged.allocated.add(at..end);
        if !known.is(&extent, form) {
            if extent.generation != writer.generation.get() {
                merged.corrected = merged.corrected.saturating_add(1);
            }
            let insert = extent.items(form, known.owner);
            let stays = |key: &Key| !insert.iter().any(|(new, _)| new == key);
            changes.push(Change {
                remove: known.keys.into_iter().filter(stays).collect(),
                insert,
            });
        }
    }
}

/// Adds recorded references that were not found.
fn keep_refs(extent: &mut Extent, known: &Known) {
    let fits = |one: &ExtentRef| {
        let of_node = matches!(
            one.item_type(),
            ItemType::TREE_BLOCK_REF | ItemType::SHARED_BLOCK_REF
        );
        of_node == matches!(extent.kind, Kind::Node { .. })
    };
    let same = |a: &ExtentRef, b: &ExtentRef| match (a, b) {
        (
            ExtentRef::Data {
                root,
                inode,
                offset,
                ..
            },
            ExtentRef::Data {
                root: r,
                inode: i,
                offset: o,
                ..
            },
        ) => (root, inode, offset) == (r, i, o),
        _ => (a.item_type(), a.order()) == (b.item_type(), b.order()),
    };
    let more: Vec<ExtentRef> = known
        .refs
        .iter()
        .filter(|one| fits(one) && !extent.refs.iter().any(|have| same(have, one)))
        .copied()
        .collect();
    extent.refs.extend(more);
    sort(&mut extent.refs);
}
