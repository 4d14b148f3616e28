//! Trees as text.

use super::{DumpTree, items};
use crate::fail::{Context, Done, Failure, fail};
use crate::place::json;
use butterfs::{OpenOptions, TreeId, Volume};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, NodeHeader, POINTER_SIZE};
use butterfs_format::{ItemType, Key, NodeRef};
use butterfs_tree::{Cursor, Node, NodeSource};
use serde::Serialize;
use std::sync::Arc;
use uuid::Uuid;

/// Trees by name: on the command line, and as the Btrfs tools print them.
const NAMES: &[(TreeId, &str, &str)] = &[
    (TreeId::ROOT, "root", "ROOT_TREE"),
    (TreeId::EXTENT, "extent", "EXTENT_TREE"),
    (TreeId::CHUNK, "chunk", "CHUNK_TREE"),
    (TreeId::DEVICE, "dev", "DEV_TREE"),
    (TreeId::FS, "fs", "FS_TREE"),
    (TreeId::ROOT_TREE_DIR, "", "ROOT_TREE_DIR"),
    (TreeId::CSUM, "csum", "CSUM_TREE"),
    (TreeId::QUOTA, "quota", "QUOTA_TREE"),
    (TreeId::UUID, "uuid", "UUID_TREE"),
    (TreeId::FREE_SPACE, "free-space", "FREE_SPACE_TREE"),
    (TreeId::BLOCK_GROUP, "block-group", "BLOCK_GROUP_TREE"),
    (TreeId::DATA_RELOC, "data-reloc", "DATA_RELOC_TREE"),
];

#[derive(Serialize)]
struct Item {
    tree: u64,
    key: (u64, String, u64),
    bytes: String,
}

pub(super) fn object_name(number: u64) -> String {
    let known = NAMES.iter().find(|(tree, ..)| tree.get() == number);
    match (known, number) {
        (Some((_, _, name)), _) => (*name).to_owned(),
        (None, u64::MAX) => "-1".to_owned(),
        (None, n) if n == u64::MAX - 4 => "ORPHAN".to_owned(),
        (None, n) if n == u64::MAX - 9 => "EXTENT_CSUM".to_owned(),
        (None, n) => n.to_string(),
    }
}

/// A key as the Btrfs tools print it.
pub(super) fn key_text(tree: TreeId, key: Key) -> String {
    // Objects are trees in the tree of roots alone.
    let object = match tree {
        TreeId::ROOT | TreeId::CSUM => object_name(key.objectid),
        _ if key.item_type == ItemType::ORPHAN_ITEM => object_name(key.objectid),
        TreeId::CHUNK if key.item_type == ItemType::CHUNK_ITEM => "FIRST_CHUNK_TREE".to_owned(),
        TreeId::CHUNK if key.item_type == ItemType::DEV_ITEM => "DEV_ITEMS".to_owned(),
        _ => key.objectid.to_string(),
    };
    format!("({object} {:?} {})", key.item_type, key.offset)
}

impl DumpTree {
    /// Runs it.
    pub fn run(self) -> Done {
        let volume = Volume::open(&self.volume, OpenOptions::read_only());
        let volume = volume.context(self.volume.display())?;
        let trees = match &self.tree {
            Some(name) => vec![parse_tree(name)?],
            None => all_trees(&volume)?,
        };
        let engine = volume.store().read();
        let mut found = Vec::new();
        for tree in trees {
            let root = engine.tree_state(tree)?.root;
            if self.json {
                let mut cursor = Cursor::seek_in(&*engine, tree, &Key::MIN)?;
                while let Some((key, data)) = cursor.item() {
                    found.push(Item {
                        tree: tree.get(),
                        key: (key.objectid, format!("{:?}", key.item_type), key.offset),
                        bytes: data.iter().map(|byte| format!("{byte:02x}")).collect(),
                    });
                    cursor.next()?;
                }
                continue;
            }
            match tree {
                TreeId::ROOT => say!("root tree"),
                TreeId::CHUNK => say!("chunk tree"),
                _ => say!("tree key ({} ROOT_ITEM 0)", object_name(tree.get())),
            }
            dump(&*engine, tree, root)?;
        }
        if self.json {
            return json(&found);
        }
        let superblock = engine.superblock();
        say!("total bytes {}", superblock.total_bytes);
        say!("bytes used {}", superblock.bytes_used);
        say!("uuid {}", Uuid::from_bytes(superblock.fsid));
        Ok(())
    }
}

fn parse_tree(name: &str) -> Result<TreeId, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(TreeId(number));
    }
    let known = NAMES.iter().find(|(_, word, long)| {
        !word.is_empty() && (*word == name || long.eq_ignore_ascii_case(name))
    });
    match known {
        Some((tree, ..)) => Ok(*tree),
        None => fail(format!("there is no tree named {name}; see --help")),
    }
}

fn all_trees(volume: &Volume) -> Result<Vec<TreeId>, Failure> {
    let engine = volume.store().read();
    let mut trees = vec![TreeId::ROOT, TreeId::CHUNK];
    let mut cursor = Cursor::seek_in(&*engine, TreeId::ROOT, &Key::MIN)?;
    while let Some(key) = cursor.key() {
        if key.item_type == ItemType::ROOT_ITEM {
            trees.push(TreeId(key.objectid));
        }
        cursor.next()?;
    }
    Ok(trees)
}

/// Prints a node and all below it, from an explicit stack.
fn dump<S: NodeSource>(source: &S, tree: TreeId, root: NodeRef) -> Done {
    let mut waiting = vec![root];
    while let Some(reference) = waiting.pop() {
        let node = source.node(reference)?;
        header(&node)?;
        if let Ok(stamp) = NodeHeader::parse(node.bytes()) {
            say!("fs uuid {}", Uuid::from_bytes(stamp.fsid));
            say!("chunk uuid {}", Uuid::from_bytes(stamp.chunk_tree_uuid));
        }
        if node.is_leaf() {
            let mut offset = node.bytes().len() - HEADER_SIZE;
            for slot in 0..node.len() {
                let (key, data) = (node.key(slot), node.data(slot));
                offset -= data.len();
                say!(
                    "\titem {slot} key {} itemoff {offset} itemsize {}",
                    key_text(tree, key),
                    data.len()
                );
                items::print(key, data)?;
            }
            continue;
        }
        for slot in 0..node.len() {
            let child = node.child(slot);
            say!(
                "\tkey {} block {} gen {}",
                key_text(tree, node.key(slot)),
                child.logical,
                child.generation
            );
        }
        waiting.extend((0..node.len()).rev().map(|slot| node.child(slot)));
    }
    Ok(())
}

fn header(node: &Arc<Node>) -> Done {
    let (logical, generation) = (node.logical(), node.generation());
    let owner = object_name(node.owner().get());
    let room = node.bytes().len() - HEADER_SIZE;
    if node.is_leaf() {
        let used: usize = (0..node.len())
            .map(|s| node.data(s).len() + ITEM_SIZE)
            .sum();
        say!(
            "leaf {logical} items {} free space {} generation {generation} owner {owner}",
            node.len(),
            room.saturating_sub(used)
        );
    } else {
        say!(
            "node {logical} level {} items {} free space {} generation {generation} owner {owner}",
            node.level(),
            node.len(),
            (room / POINTER_SIZE).saturating_sub(node.len())
        );
    }
    Ok(())
}
