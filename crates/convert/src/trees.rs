//! The trees beside those of files: the image's, and those that say where
//! everything lies; and the superblock.

use crate::error::ConvertError;
use crate::extents::{Extents, IMAGE, Image};
use crate::files::{SAVED, SAVED_TREE, entry, file_extent, twice};
use crate::ground::{CELL, Ground, SECTOR};
use crate::inode::GENERATION;
use crate::layout::Group;
use crate::loader::{Counter, Items, Loaded, NodeNote};
use crate::options::{DataSums, Options};
use crate::relocation::Relocations;
use butterfs_ext4::State;
use butterfs_format::checksum::name_hash;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::item::dir::FileType;
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::item::inode::{InodeFlags, InodeItem, RefEntry};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::uuid;
use butterfs_format::packed::{Item, root_directory};
use butterfs_format::superblock::{BackupRoot, Superblock};
use butterfs_format::{
    DeviceId, DeviceOffset, Generation, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId,
    UuidBytes,
};
use std::collections::BTreeMap;

const DEVICE: DeviceId = DeviceId(1);
/// The name of the image in its subvolume.
pub(crate) const IMAGE_NAME: &[u8] = b"image";
/// A file that its owner alone may read.
const IMAGE_MODE: u32 = 0o100_400;
const DIRECTORY_MODE: u32 = 0o040_755;

/// UUIDs of the new volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identities {
    pub(crate) fsid: UuidBytes,
    pub(crate) device: UuidBytes,
    pub(crate) chunk_tree: UuidBytes,
    pub(crate) top_level: UuidBytes,
    pub(crate) saved: UuidBytes,
}

/// Adds the items of the subvolume with the image.
///
/// # Errors
/// As [`Extents::each`]; writing.
pub(crate) fn saved_tree(
    (options, ground): (&Options, &Ground),
    (extents, image_bytes): (&Extents<'_>, u64),
    items: &mut dyn Items,
) -> Result<(), ConvertError> {
    let time = options.time;
    let mut directory = directory(options);
    directory.size = twice(IMAGE_NAME);
    directory.nbytes = 0;
    let root = InodeNumber::ROOT.get();
    for Item { key, data } in root_directory(root, &directory) {
        items.item(key, data)?;
    }
    let location = Key::new(IMAGE, ItemType::INODE_ITEM, 0);
    let data = entry(location, IMAGE_NAME, FileType::Regular);
    let hash = name_hash(IMAGE_NAME);
    items.item(Key::new(root, ItemType::DIR_ITEM, hash), data.clone())?;
    items.item(Key::new(root, ItemType::DIR_INDEX, 2), data)?;
    let mut flags = InodeFlags::READONLY;
    if options.data_sums == DataSums::LeftOut {
        flags |= InodeFlags::NODATASUM;
    }
    let image = InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        size: ground.size,
        nbytes: image_bytes,
        nlink: 1,
        mode: IMAGE_MODE,
        flags,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    };
    items.item(location, image.encode())?;
    let reference = RefEntry {
        index: 2,
        name: IMAGE_NAME,
    };
    items.item(
        Key::new(IMAGE, ItemType::INODE_REF, root),
        reference.encode(),
    )?;
    image_extents(extents, &mut |at, data| {
        items.item(Key::new(IMAGE, ItemType::EXTENT_DATA, at), data)
    })
}

/// Visits the file extents of the image, ascending.
fn image_extents(
    extents: &Extents<'_>,
    visit: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let mut copies = extents.relocations.0.iter().peekable();
    let mut copies_before = |limit: u64, visit: &mut dyn FnMut(u64, Vec<u8>) -> _| {
        while let Some(copy) = copies.next_if(|copy| copy.from.start < limit) {
            let range = copy.copy();
            visit(copy.from.start, file_extent(&range, &range, State::Written))?;
        }
        Ok::<(), ConvertError>(())
    };
    extents.each(&mut |extent| {
        if extent.image != Image::Same {
            return Ok(());
        }
        let range = &extent.range;
        copies_before(range.start, visit)?;
        visit(range.start, file_extent(range, range, State::Written))
    })?;
    copies_before(u64::MAX, visit)
}

/// Bytes of the image that are no holes.
pub(crate) fn copied_bytes(relocations: &Relocations) -> u64 {
    let copies = relocations.0.iter();
    copies.map(|one| one.from.end - one.from.start).sum()
}

fn directory(options: &Options) -> InodeItem {
    let time = options.time;
    InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        nbytes: options.node_size.into(),
        nlink: 1,
        mode: DIRECTORY_MODE,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    }
}

/// Everything from which the last trees are made.
pub(crate) struct Makings<'m> {
    pub(crate) options: &'m Options,
    pub(crate) ids: &'m Identities,
    pub(crate) ground: &'m Ground,
    /// All groups, ascending.
    pub(crate) groups: &'m [Group],
    pub(crate) label: &'m [u8],
    pub(crate) saved_index: u64,
}

impl Makings<'_> {
    /// Whether block group items have a tree of their own.
    pub(crate) fn has_group_tree(&self) -> bool {
        self.options.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
    }

    /// Whether there is a free-space tree.
    pub(crate) fn has_free_space_tree(&self) -> bool {
        self.options.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    /// The trees that have a root item.
    pub(crate) fn rooted(&self) -> Vec<TreeId> {
        let mut trees = vec![
            TreeId::EXTENT,
            TreeId::DEVICE,
            TreeId::FS,
            TreeId::CSUM,
            TreeId::UUID,
            SAVED_TREE,
            TreeId::DATA_RELOC,
        ];
        if self.has_free_space_tree() {
            trees.push(TreeId::FREE_SPACE);
        }
        if self.has_group_tree() {
            trees.push(TreeId::BLOCK_GROUP);
        }
        trees
    }

    /// The items of the UUID tree.
    pub(crate) fn uuids(&self) -> Vec<Item> {
        let of = |id: &UuidBytes, tree| Item {
            key: uuid::key(id, ItemType::UUID_SUBVOL),
            data: uuid::encode(&[tree]),
        };
        let mut items = vec![
            of(&self.ids.top_level, TreeId::FS),
            of(&self.ids.saved, SAVED_TREE),
        ];
        items.sort_by_key(|item| item.key);
        items
    }

    /// The items of the tree for relocation of data.
    pub(crate) fn data_reloc(&self) -> Vec<Item> {
        root_directory(InodeNumber::ROOT.get(), &directory(self.options))
    }

    /// The items of the block group tree.
    pub(crate) fn block_groups(&self) -> impl Iterator<Item = Item> + '_ {
        self.groups.iter().map(|group| {
            let (key, data) = group.item();
            Item { key, data }
        })
    }

    fn chunk(&self, group: &Group) -> Chunk {
        // As the kernel's: the alignment of the chunk tree's is a sector.
        let align = match group.flags == BlockGroupFlags::SYSTEM {
            true => SECTOR,
            false => CELL,
        };
        let align = u32::try_from(align).unwrap_or(u32::MAX);
        Chunk {
            length: group.length(),
            owner: TreeId::EXTENT.get(),
            stripe_length: CELL,
            flags: group.flags,
            io_align: align,
            io_width: align,
            sector_size: u32::try_from(SECTOR).unwrap_or(u32::MAX),
            sub_stripes: 1,
            stripes: vec![Stripe {
                device: DEVICE,
                offset: DeviceOffset(group.range.start),
                device_uuid: self.ids.device,
            }],
        }
    }

    fn device_item(&self) -> DeviceItem {
        let sector = u32::try_from(SECTOR).unwrap_or(u32::MAX);
        DeviceItem {
            id: DEVICE,
            total_bytes: self.ground.total,
            bytes_used: self.groups.iter().map(Group::length).sum(),
            io_align: sector,
            io_width: sector,
            sector_size: sector,
            uuid: self.ids.device,
            fsid: self.ids.fsid,
            ..DeviceItem::default()
        }
    }

    /// The items of the chunk tree.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Item> + '_ {
        let device = Item {
            key: Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, DEVICE.get()),
            data: self.device_item().encode(),
        };
        let chunks = self.groups.iter().map(|group| Item {
            key: Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, group.range.start),
            data: self.chunk(group).encode(),
        });
        std::iter::once(device).chain(chunks)
    }

    /// The items of the device tree.
    pub(crate) fn device_extents(&self) -> impl Iterator<Item = Item> + '_ {
        self.groups.iter().map(|group| Item {
            key: Key::new(DEVICE.get(), ItemType::DEV_EXTENT, group.range.start),
            data: DeviceExtent {
                chunk_tree: TreeId::CHUNK.get(),
                chunk_objectid: Chunk::OBJECT,
                chunk: Logical(group.range.start),
                length: group.length(),
                chunk_tree_uuid: self.ids.chunk_tree,
            }
            .encode(),
        })
    }

    fn root_item(&self, tree: TreeId, loaded: Option<&Loaded>) -> RootItem {
        let root = loaded.map_or(NO_NODE, |loaded| loaded.root);
        let nodes = loaded.map_or(0, |loaded| loaded.nodes);
        let mut item = RootItem::of_new_tree(root, nodes, self.options.node_size);
        if tree == TreeId::DATA_RELOC {
            item.root_dir = InodeNumber::ROOT;
        }
        let uuid = match tree {
            TreeId::FS => self.ids.top_level,
            SAVED_TREE => self.ids.saved,
            _ => return item,
        };
        item.root_dir = InodeNumber::ROOT;
        item.vouch_for_flags();
        item.uuid = uuid;
        item.ctime = self.options.time;
        item.otime = self.options.time;
        if tree != TreeId::FS {
            item.ctransid = GENERATION;
            item.otransid = GENERATION;
        }
        item
    }

    /// The items of the tree of roots.
    pub(crate) fn roots(&self, trees: &BTreeMap<TreeId, Loaded>) -> Vec<Item> {
        let mut items: Vec<Item> = self
            .rooted()
            .into_iter()
            .map(|tree| Item {
                key: Key::new(tree.get(), ItemType::ROOT_ITEM, 0),
                data: self.root_item(tree, trees.get(&tree)).encode(),
            })
            .collect();
        let (parent, child) = (TreeId::FS.get(), SAVED_TREE.get());
        let reference = RootRef {
            directory: InodeNumber::ROOT,
            index: self.saved_index,
            name: SAVED,
        }
        .encode();
        items.push(Item {
            key: Key::new(parent, ItemType::ROOT_REF, child),
            data: reference.clone(),
        });
        items.push(Item {
            key: Key::new(child, ItemType::ROOT_BACKREF, parent),
            data: reference,
        });
        let object = TreeId::ROOT_TREE_DIR.get();
        let name = b"default";
        items.push(Item {
            key: Key::new(parent, ItemType::INODE_REF, object),
            data: RefEntry { index: 0, name }.encode(),
        });
        items.extend(root_directory(object, &directory(self.options)));
        let location = Key::new(parent, ItemType::ROOT_ITEM, u64::MAX);
        items.push(Item {
            key: Key::new(object, ItemType::DIR_ITEM, name_hash(name)),
            data: entry(location, name, FileType::Directory),
        });
        items.sort_by_key(|item| item.key);
        items
    }

    /// Adds the items of the extent tree: data, nodes, and, where they have no
    /// tree of their own, block groups.
    ///
    /// # Errors
    /// As [`Extents::each`]; writing.
    pub(crate) fn extent_tree(
        &self,
        extents: &Extents<'_>,
        notes: &[NodeNote],
        items: &mut dyn Items,
    ) -> Result<(), ConvertError> {
        let mut notes = notes.iter().peekable();
        let groups: &[Group] = match self.has_group_tree() {
            true => &[],
            false => self.groups,
        };
        let mut groups = groups.iter().peekable();
        let mut before = |limit: Key, items: &mut dyn Items| {
            loop {
                let node = notes
                    .peek()
                    .map(|note| Key::new(note.at, ItemType::METADATA_ITEM, u64::from(note.level)));
                let group = groups.peek().map(|group| group.item().0);
                let first = node.into_iter().chain(group).min();
                let Some(first) = first.filter(|first| *first < limit) else {
                    return Ok::<(), ConvertError>(());
                };
                if node == Some(first) {
                    if let Some(note) = notes.next() {
                        items.item(first, node_item(note))?;
                    }
                } else if let Some(group) = groups.next() {
                    items.item(first, group.item().1)?;
                }
            }
        };
        extents.each(&mut |extent| {
            let (key, data) = extent.item();
            before(key, items)?;
            items.item(key, data)
        })?;
        before(Key::MAX, items)
    }

    /// The superblock.
    pub(crate) fn superblock(&self, trees: &BTreeMap<TreeId, Loaded>) -> Superblock {
        let root = |tree| {
            trees
                .get(&tree)
                .map_or(NO_NODE, |loaded: &Loaded| loaded.root)
        };
        let (chunk_root, tree_root) = (root(TreeId::CHUNK), root(TreeId::ROOT));
        let used = self.groups.iter().map(|group| group.used).sum();
        let sector = u32::try_from(SECTOR).unwrap_or(u32::MAX);
        let mut superblock = Superblock::blank(self.ids.fsid, self.options.checksum);
        superblock.generation = GENERATION;
        superblock.root = tree_root.logical;
        superblock.root_level = tree_root.level;
        superblock.chunk_root = chunk_root.logical;
        superblock.chunk_root_level = chunk_root.level;
        superblock.chunk_root_generation = GENERATION;
        superblock.total_bytes = self.ground.total;
        superblock.bytes_used = used;
        superblock.sector_size = sector;
        superblock.node_size = self.options.node_size;
        superblock.stripe_size = sector;
        superblock.incompat = self.incompat();
        superblock.compat_ro = self.compat_ro();
        superblock.device = self.device_item();
        superblock.label = self.label.to_vec();
        superblock.uuid_tree_generation = GENERATION;
        let system = self.groups.iter();
        superblock.sys_chunks = system
            .filter(|group| group.flags == BlockGroupFlags::SYSTEM)
            .map(|group| (Logical(group.range.start), self.chunk(group)))
            .collect();
        let backup = BackupRoot {
            tree_root,
            chunk_root,
            extent_root: root(TreeId::EXTENT),
            fs_root: root(TreeId::FS),
            device_root: root(TreeId::DEVICE),
            csum_root: root(TreeId::CSUM),
            total_bytes: self.ground.total,
            bytes_used: used,
            num_devices: 1,
        };
        if let Some(first) = superblock.backup_roots.first_mut() {
            *first = backup;
        }
        superblock
    }

    fn incompat(&self) -> Incompat {
        let mut bits = Incompat::MIXED_BACKREF
            | Incompat::EXTENDED_IREF
            | Incompat::SKINNY_METADATA
            | Incompat::NO_HOLES;
        if u64::from(self.options.node_size) > SECTOR {
            bits |= Incompat::BIG_METADATA;
        }
        bits
    }

    fn compat_ro(&self) -> CompatRo {
        let mut bits = self.options.compat_ro;
        if self.has_free_space_tree() {
            bits |= CompatRo::FREE_SPACE_TREE_VALID;
        }
        bits
    }
}

/// The item of a node in the extent tree.
fn node_item(note: &NodeNote) -> Vec<u8> {
    ExtentItem {
        header: ExtentHeader {
            refs: 1,
            generation: GENERATION,
            flags: ExtentFlags::TREE_BLOCK,
            tree_block: None,
        },
        inline: vec![ExtentRef::TreeBlock { root: note.owner }],
    }
    .encode()
}

/// Counts the nodes of a tree of these items.
pub(crate) fn count(node_size: u32, items: impl IntoIterator<Item = Item>) -> u64 {
    let mut counter = Counter::new(node_size);
    for item in items {
        counter.size(item.data.len());
    }
    counter.nodes()
}

const NO_NODE: NodeRef = NodeRef {
    logical: Logical(0),
    generation: Generation(0),
    level: 0,
};
