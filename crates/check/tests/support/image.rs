//! Edits a volume in place, without copy-on-write and accounting.

use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, POINTER_SIZE};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{
    Cursor, Expected, Node, NodeSink, NodeSource, TreeError, VolumeIdentity, insert, remove, update,
};
use butterfs_volume::ChunkMap;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// An open image.
pub struct Image {
    pub file: File,
    pub superblock: Superblock,
    pub map: ChunkMap,
    identity: VolumeIdentity,
    pub roots: BTreeMap<TreeId, NodeRef>,
    changed: BTreeMap<Logical, Node>,
}

impl Image {
    pub fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut bytes = vec![0; SIZE];
        file.read_exact_at(&mut bytes, COPIES[0].get()).unwrap();
        let superblock = Superblock::parse(&bytes, COPIES[0]).unwrap();
        let mut map = ChunkMap::default();
        for (at, chunk) in &superblock.sys_chunks {
            map.insert(*at, chunk.clone()).unwrap();
        }
        let identity = VolumeIdentity {
            fsid: superblock.node_fsid(),
            node_size: superblock.node_size as usize,
            sector_size: u64::from(superblock.sector_size),
            checksum: superblock.checksum_type,
            headers: butterfs_tree::Headers::Agree,
        };
        let node = |logical, generation, level| NodeRef {
            logical,
            generation,
            level,
        };
        let chunk_root = node(
            superblock.chunk_root,
            superblock.chunk_root_generation,
            superblock.chunk_root_level,
        );
        let root = node(
            superblock.root,
            superblock.generation,
            superblock.root_level,
        );
        let roots = BTreeMap::from([(TreeId::CHUNK, chunk_root), (TreeId::ROOT, root)]);
        let mut image = Self {
            file,
            superblock,
            map,
            identity,
            roots,
            changed: BTreeMap::new(),
        };
        for (key, data) in image.items(TreeId::CHUNK) {
            if key.item_type == ItemType::CHUNK_ITEM {
                let chunk = Chunk::parse(&data).unwrap();
                image.map.insert(Logical(key.offset), chunk).unwrap();
            }
        }
        for (key, data) in image.items(TreeId::ROOT) {
            if key.item_type == ItemType::ROOT_ITEM {
                let item = RootItem::parse(&data).unwrap();
                let root = node(item.logical, item.generation, item.level);
                image.roots.insert(TreeId(key.objectid), root);
            }
        }
        if image.superblock.log_root.get() != 0 {
            let generation = Generation(image.superblock.generation.get() + 1);
            let root = node(
                image.superblock.log_root,
                generation,
                image.superblock.log_root_level,
            );
            image.roots.insert(TreeId::LOG, root);
        }
        image
    }

    /// Makes the log of a subvolume the tree `LOG`, which was the tree of log
    /// roots before.
    pub fn enter_log(&mut self) {
        let (_, data) = self.items(TreeId::LOG)[0].clone();
        let item = RootItem::parse(&data).unwrap();
        let root = NodeRef {
            logical: item.logical,
            generation: item.generation,
            level: item.level,
        };
        self.roots.insert(TreeId::LOG, root);
    }

    /// Returns all items of a tree.
    pub fn items(&self, tree: TreeId) -> Vec<(Key, Vec<u8>)> {
        let mut cursor = Cursor::seek_in(self, tree, &Key::MIN).unwrap();
        let mut items = Vec::new();
        while let Some((key, data)) = cursor.item() {
            items.push((key, data.to_vec()));
            cursor.next().unwrap();
        }
        items
    }

    /// Returns the first item that `fits`.
    pub fn find(&self, tree: TreeId, fits: impl Fn(Key, &[u8]) -> bool) -> (Key, Vec<u8>) {
        let mut items = self.items(tree).into_iter();
        let found = items.find(|(key, data)| fits(*key, data));
        found.expect("the volume has such an item")
    }

    /// Returns the first item of a type.
    pub fn first(&self, tree: TreeId, item_type: ItemType) -> (Key, Vec<u8>) {
        self.find(tree, |key, _| key.item_type == item_type)
    }

    /// Changes an item's data.
    pub fn update(&mut self, tree: TreeId, key: Key, change: impl FnOnce(&mut [u8])) {
        update(self, tree, &key, change).unwrap();
        self.flush();
    }

    /// Adds to a number in an item.
    pub fn bump(&mut self, tree: TreeId, key: Key, at: usize, by: u64) {
        self.update(tree, key, |data| {
            let field: [u8; 8] = data[at..at + 8].try_into().unwrap();
            let sum = u64::from_le_bytes(field).wrapping_add(by);
            data[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        });
    }

    pub fn remove(&mut self, tree: TreeId, key: Key) {
        assert!(remove(self, tree, &key).unwrap());
        self.flush();
    }

    pub fn insert(&mut self, tree: TreeId, key: Key, data: &[u8]) {
        insert(self, tree, &key, data).unwrap();
        self.flush();
    }

    /// Gives an item another key, even if it does not fit the order of the leaf.
    pub fn rekey(&mut self, tree: TreeId, from: Key, to: Key) {
        let (leaf, slot) = butterfs_tree::find(self, tree, &from).unwrap().unwrap();
        self.raw(leaf.logical(), |bytes| {
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            bytes[at..at + Key::SIZE].copy_from_slice(&to.to_bytes());
        });
    }

    /// Whether the volume has a tree whose root can be read and is not empty.
    pub fn has(&self, tree: TreeId) -> bool {
        let root = self.roots.get(&tree);
        root.is_some_and(|root| self.node(*root).is_ok_and(|node| !node.is_empty()))
    }

    /// Returns the addresses of all nodes of a tree.
    pub fn nodes(&self, tree: TreeId) -> Vec<Logical> {
        let mut waiting = vec![self.root(tree)];
        let mut nodes = Vec::new();
        while let Some(reference) = waiting.pop() {
            nodes.push(reference.logical);
            let node = self.node(reference).unwrap();
            if !node.is_leaf() {
                waiting.extend((0..node.len()).map(|slot| node.child(slot)));
            }
        }
        nodes
    }

    /// Returns the root of a tree.
    pub fn root(&self, tree: TreeId) -> NodeRef {
        self.roots[&tree]
    }

    /// Returns leaf number `index` of a tree of two levels, and where its
    /// pointer is: the address of the node and the offset in it.
    pub fn leaf(&self, tree: TreeId, index: usize) -> (NodeRef, Logical, usize) {
        let root = self.node(self.root(tree)).unwrap();
        assert_eq!(root.level(), 1, "the tree has two levels");
        let at = HEADER_SIZE + index * POINTER_SIZE;
        (root.child(index), root.logical(), at)
    }

    /// Changes the bytes of a node in all copies and computes its checksum anew.
    pub fn raw(&mut self, logical: Logical, change: impl FnOnce(&mut [u8])) {
        let mut bytes = self.read(logical);
        change(&mut bytes);
        self.identity.checksum.seal_block(&mut bytes);
        self.write(logical, &bytes);
    }

    pub fn read(&self, logical: Logical) -> Vec<u8> {
        let mut bytes = vec![0; self.identity.node_size];
        let mapping = self.map.map(logical, bytes.len() as u64).unwrap();
        let at = mapping.copies[0].offset.get();
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Writes to all copies.
    pub fn write(&self, logical: Logical, bytes: &[u8]) {
        let mapping = self.map.map(logical, bytes.len() as u64).unwrap();
        for copy in mapping.copies {
            self.file.write_all_at(bytes, copy.offset.get()).unwrap();
        }
    }

    /// Writes the superblock to all copies after a change.
    pub fn superblock(&mut self, change: impl FnOnce(&mut Superblock)) {
        change(&mut self.superblock);
        let size = self.file.metadata().unwrap().len();
        for offset in COPIES {
            if offset.get() + SIZE as u64 <= size {
                let bytes = self.superblock.encode(offset);
                self.file.write_all_at(&bytes, offset.get()).unwrap();
            }
        }
    }

    fn flush(&mut self) {
        for (logical, mut node) in std::mem::take(&mut self.changed) {
            self.identity.checksum.seal_block(node.bytes_mut());
            self.write(logical, node.bytes());
        }
    }
}

impl NodeSource for Image {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        if let Some(node) = self.changed.get(&reference.logical) {
            return Ok(Arc::new(node.clone()));
        }
        let bytes = self.read(reference.logical).into_boxed_slice();
        let expected = Expected::from(reference);
        let node = Node::verify(bytes, &self.identity, expected);
        node.map(Arc::new).map_err(|fault| TreeError::Corrupt {
            logical: reference.logical,
            fault,
        })
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        let root = self.roots.get(&tree).copied();
        root.ok_or(TreeError::NoSuchTree(tree))
    }
}

impl NodeSink for Image {
    fn make_writable(&mut self, _: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        let found = self.node(node)?;
        self.changed.insert(node.logical, (*found).clone());
        Ok(node)
    }

    fn create(&mut self, _: TreeId, _: u8) -> Result<NodeRef, TreeError> {
        panic!("damage must not split nodes");
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        Ok(self
            .changed
            .get_mut(&node.logical)
            .expect("it was made writable"))
    }

    fn release(&mut self, _: TreeId, node: NodeRef) -> Result<(), TreeError> {
        self.changed.remove(&node.logical);
        Ok(())
    }

    fn set_root(&mut self, _: TreeId, _: NodeRef) -> Result<(), TreeError> {
        Ok(())
    }
}
