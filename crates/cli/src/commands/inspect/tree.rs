//! Trees as text.

use super::names::{NAMES, key_text, object_name};
use super::{DumpTree, items};
use crate::fail::{Done, Failure, fail};
use crate::place::json;
use crate::reading;
use butterfs::{OpenOptions, TreeId, Volume};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, NodeHeader, POINTER_SIZE};
use butterfs_format::{ItemType, NodeRef};
use butterfs_tree::{Node, NodeSource};
use serde::Serialize;
use std::sync::Arc;
use uuid::Uuid;

/// Other names that the Btrfs tools take.
const ALIASES: &[(&str, TreeId)] = &[
    ("device", TreeId::DEVICE),
    ("checksum", TreeId::CSUM),
    ("tree-log", TreeId::LOG),
    ("tree-reloc", TreeId::RELOC),
];

#[derive(Serialize)]
struct Item {
    tree: u64,
    key: (u64, String, u64),
    bytes: String,
}

impl DumpTree {
    /// Runs it.
    pub fn run(self) -> Done {
        let volume = reading::open(&self.volume, OpenOptions::read_only())?;
        let trees = match &self.tree {
            Some(name) => vec![parse_tree(name)?],
            None if self.extents => vec![TreeId::EXTENT, TreeId::DEVICE],
            None if self.device => vec![TreeId::ROOT, TreeId::CHUNK, TreeId::DEVICE],
            None if self.uuid => vec![TreeId::UUID],
            None => all_trees(&volume)?,
        };
        let trees_now = volume.trees();
        let mut found = Vec::new();
        let mut damaged = 0;
        for tree in trees {
            let root = match trees_now.root(tree) {
                Ok(root) => root,
                Err(error) if self.tree.is_none() && !self.json => {
                    say!("tree {}: {error}", object_name(tree.get()));
                    damaged += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if self.roots {
                let (at, level) = (root.logical, root.level);
                match tree {
                    TreeId::ROOT => say!("root tree: {at} level {level}"),
                    TreeId::CHUNK => say!("chunk tree: {at} level {level}"),
                    _ => {
                        let name = object_name(tree.get());
                        say!("tree key ({name} ROOT_ITEM 0) {at} level {level}");
                    }
                }
                continue;
            }
            if self.json {
                damaged += walk(&trees_now, root, Damage::Silent, |node| {
                    if node.is_leaf() {
                        found.extend((0..node.len()).map(|slot| item(tree, node, slot)));
                    }
                    Ok(())
                })?;
                continue;
            }
            match tree {
                TreeId::ROOT => say!("root tree"),
                TreeId::CHUNK => say!("chunk tree"),
                _ => say!("tree key ({} ROOT_ITEM 0)", object_name(tree.get())),
            }
            damaged += walk(&trees_now, root, Damage::Shown, |node| print(tree, node))?;
        }
        if self.json {
            json(&found)?;
            return whole(damaged);
        }
        let superblock = trees_now.superblock();
        say!("total bytes {}", superblock.total_bytes);
        say!("bytes used {}", superblock.bytes_used);
        say!("uuid {}", Uuid::from_bytes(superblock.fsid));
        whole(damaged)
    }
}

/// Errors when nodes could not be read.
fn whole(damaged: u64) -> Done {
    match damaged {
        0 => Ok(()),
        1 => fail("1 node cannot be read; what lies below it is missing here".to_owned()),
        _ => fail(format!(
            "{damaged} nodes cannot be read; what lies below them is missing here"
        )),
    }
}

fn item(tree: TreeId, node: &Node, slot: usize) -> Item {
    let (key, data) = (node.key(slot), node.data(slot));
    Item {
        tree: tree.get(),
        key: (key.objectid, format!("{:?}", key.item_type), key.offset),
        bytes: data.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn parse_tree(name: &str) -> Result<TreeId, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(TreeId(number));
    }
    let plain = name.to_ascii_lowercase().replace('_', "-");
    let known = NAMES.iter().find(|(_, word, long)| {
        !word.is_empty() && (*word == plain || long.eq_ignore_ascii_case(name))
    });
    let alias = ALIASES.iter().find(|(word, _)| *word == plain);
    let known = known.map(|(tree, ..)| tree).or(alias.map(|(_, tree)| tree));
    match known {
        Some(tree) => Ok(*tree),
        None => fail(format!("there is no tree named {name}; see --help")),
    }
}

fn all_trees(volume: &Volume) -> Result<Vec<TreeId>, Failure> {
    let trees_now = volume.trees();
    let mut trees = vec![TreeId::ROOT, TreeId::CHUNK];
    let root = trees_now.root(TreeId::ROOT)?;
    // Damage is shown and counted when the tree itself is.
    walk(&trees_now, root, Damage::Silent, |node| {
        let keys = (0..node.len()).map(|slot| node.key(slot));
        let roots = keys.filter(|key| key.item_type == ItemType::ROOT_ITEM && node.is_leaf());
        trees.extend(roots.map(|key| TreeId(key.objectid)));
        Ok(())
    })?;
    Ok(trees)
}

/// Whether a node that cannot be read is shown in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    Shown,
    Silent,
}

/// Gives a node and all below it, in the order of keys, from an explicit
/// stack. Where a node cannot be read, what lies below it is left out and the
/// walk goes on; the number of such nodes is given back.
fn walk<S: NodeSource>(
    source: &S,
    root: NodeRef,
    damage: Damage,
    mut each: impl FnMut(&Arc<Node>) -> Done,
) -> Result<u64, Failure> {
    let mut damaged = 0;
    let mut waiting = vec![root];
    while let Some(reference) = waiting.pop() {
        match source.node(reference) {
            Ok(node) => {
                each(&node)?;
                if !node.is_leaf() {
                    waiting.extend((0..node.len()).rev().map(|slot| node.child(slot)));
                }
            }
            Err(error) => {
                damaged += 1;
                if damage == Damage::Shown {
                    let (at, level) = (reference.logical, reference.level);
                    say!("damaged node {at} level {level}: {error}");
                }
            }
        }
    }
    Ok(damaged)
}

/// Prints a node.
fn print(tree: TreeId, node: &Arc<Node>) -> Done {
    header(node)?;
    if let Ok(stamp) = NodeHeader::parse(node.bytes()) {
        say!("fs uuid {}", Uuid::from_bytes(stamp.fsid));
        say!("chunk uuid {}", Uuid::from_bytes(stamp.chunk_tree_uuid));
    }
    let mut offset = node.bytes().len() - HEADER_SIZE;
    for slot in 0..node.len() {
        let key = key_text(tree, node.key(slot));
        if node.is_leaf() {
            let data = node.data(slot);
            offset -= data.len();
            let size = data.len();
            say!("\titem {slot} key {key} itemoff {offset} itemsize {size}");
            items::print(node.key(slot), data)?;
        } else {
            let child = node.child(slot);
            say!(
                "\tkey {key} block {} gen {}",
                child.logical,
                child.generation
            );
        }
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

#[cfg(test)]
mod tests {
    use super::{Damage, parse_tree, walk};
    use butterfs::TreeId;
    use butterfs_format::{Generation, Logical, NodeRef};
    use butterfs_tree::{Node, NodeSource, TreeError};
    use std::sync::Arc;

    /// A source without nodes.
    struct Nothing;

    impl NodeSource for Nothing {
        fn node(&self, _: NodeRef) -> Result<Arc<Node>, TreeError> {
            Err(TreeError::NoSuchTree(TreeId::FS))
        }

        fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
            Err(TreeError::NoSuchTree(tree))
        }
    }

    #[test]
    fn names_of_the_btrfs_tools_are_taken() {
        let names = [
            ("device", TreeId::DEVICE),
            ("dev", TreeId::DEVICE),
            ("quota", TreeId::QUOTA),
            ("free_space", TreeId::FREE_SPACE),
            ("free-space", TreeId::FREE_SPACE),
            ("BLOCK_GROUP_TREE", TreeId::BLOCK_GROUP),
            ("checksum", TreeId::CSUM),
            ("257", TreeId(257)),
        ];
        for (name, tree) in names {
            assert_eq!(parse_tree(name).ok(), Some(tree), "{name}");
        }
        assert!(parse_tree("nothing").is_err());
    }

    #[test]
    fn damaged_nodes_are_counted() {
        let root = NodeRef {
            logical: Logical(1 << 20),
            generation: Generation(1),
            level: 1,
        };
        let damaged = walk(&Nothing, root, Damage::Silent, |_| {
            panic!("no node is there")
        });
        assert_eq!(damaged.ok(), Some(1));
    }
}
