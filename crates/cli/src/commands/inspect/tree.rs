//! Trees as text.

use super::items::{self, Names, Style};
use super::names::{key_text, object_name, parse_tree, title};
use super::{DumpTree, superblock};
use crate::fail::{Context, Done, Failure, fail};
use crate::place::json;
use crate::reading;
use butterfs::{OpenOptions, TreeId, Trees, Volume};
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{
    BACKREF_REVISION_SHIFT, FLAG_RELOC, FLAG_WRITTEN, HEADER_SIZE, ITEM_SIZE, NodeHeader,
    POINTER_SIZE,
};
use butterfs_format::{ItemType, Key, Logical, NodeRef};
use butterfs_tree::{Node, NodeSource};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use uuid::Uuid;

#[derive(Serialize)]
struct Item {
    tree: u64,
    key: (u64, String, u64),
    bytes: String,
}

/// A tree that is printed.
#[derive(Clone, Copy)]
struct Subject {
    /// Key of its root item; the tree of roots and the chunk tree have none.
    key: Key,
    /// The root, if that item does not say it.
    root: Option<NodeRef>,
}

impl Subject {
    const fn of(tree: TreeId) -> Self {
        Self {
            key: Key::new(tree.0, ItemType::ROOT_ITEM, 0),
            root: None,
        }
    }

    const fn tree(self) -> TreeId {
        TreeId(self.key.objectid)
    }

    fn root(self, trees: &Trees<'_>) -> Result<NodeRef, Failure> {
        match self.root {
            Some(root) => Ok(root),
            None => Ok(trees.root(self.tree())?),
        }
    }

    /// What stands in front of its nodes.
    fn title(self) -> String {
        let title = title(self.tree());
        match (self.tree(), self.root) {
            (TreeId::ROOT | TreeId::CHUNK, _) => format!("{title} tree"),
            (TreeId::LOG, Some(_)) if self.key.offset == 0 => "log root tree".to_owned(),
            _ => format!("{title} tree key {}", key_text(self.key)),
        }
    }
}

impl DumpTree {
    /// Runs it.
    pub fn run(self) -> Done {
        // The state on the devices is shown, not what a replay would make of
        // it.
        let options = OpenOptions::as_committed();
        let volume = match &self.volume[..] {
            [one] if !self.noscan => reading::open(one, options)?,
            these => reading::open_these(these, options)?,
        };
        let trees = volume.trees();
        let superblock = trees.superblock();
        let style = Style {
            names: match self.hide_names {
                true => Names::Hidden,
                false => Names::Shown,
            },
            csum_items: self.csum_items,
            csum_headers: self.csum_headers,
            checksum: superblock.checksum_type,
            sector_size: superblock.sector_size,
        };
        if !self.json {
            say!("butterfs {}", env!("CARGO_PKG_VERSION"));
        }
        if !self.block.is_empty() {
            return self.blocks(&trees, &style);
        }
        let damaged = self.print(&volume, &trees, &style)?;
        if !self.json {
            if self.backups {
                superblock::print_backups(superblock)?;
            }
            if !self.is_part() {
                say!("total bytes {}", superblock.total_bytes);
                say!("bytes used {}", superblock.bytes_used);
                say!("uuid {}", Uuid::from_bytes(superblock.fsid));
            }
        }
        whole(damaged)
    }

    /// Whether the user chose trees that the Btrfs tools print without the
    /// usual line on the whole volume.
    fn is_part(&self) -> bool {
        let tree = self.tree.as_deref().map(parse_tree);
        let bare = matches!(tree, Some(Ok(TreeId::ROOT | TreeId::CHUNK)));
        self.extents || self.device || self.uuid || (bare && !self.roots && !self.backups)
    }

    /// Prints the nodes that are asked for by address.
    fn blocks(&self, trees: &Trees<'_>, style: &Style) -> Done {
        let sector = u64::from(style.sector_size);
        let mut damaged = 0;
        for address in &self.block {
            if !address.is_multiple_of(sector) {
                return fail(format!(
                    "{address} is no address of a node: it is no multiple of {sector}"
                ));
            }
            let at = format!("node at {address}");
            let node = trees.node_at(Logical(*address)).context(at)?;
            match self.follow {
                true => damaged += self.walk_and_print(trees, node.reference(), style)?,
                false => print(&node, style)?,
            }
        }
        whole(damaged)
    }

    fn print(&self, volume: &Volume, trees: &Trees<'_>, style: &Style) -> Result<u64, Failure> {
        let subjects = match &self.tree {
            Some(name) => named(volume, parse_tree(name)?)?,
            None if self.extents => vec![Subject::of(TreeId::EXTENT), Subject::of(TreeId::DEVICE)],
            None if self.device => [TreeId::ROOT, TreeId::CHUNK, TreeId::DEVICE]
                .map(Subject::of)
                .to_vec(),
            None if self.uuid => vec![Subject::of(TreeId::UUID)],
            None => all_trees(volume)?,
        };
        let mut found = Vec::new();
        let mut damaged = 0;
        for subject in subjects {
            let tree = subject.tree();
            let root = match subject.root(trees) {
                Ok(root) => root,
                Err(error) if self.tree.is_none() && !self.json => {
                    say!("tree {}: {}", object_name(tree.get()), error.0);
                    damaged += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (title, at, level) = (subject.title(), root.logical, root.level);
            if self.roots || self.backups {
                match tree {
                    TreeId::ROOT | TreeId::CHUNK => say!("{title}: {at} level {level}"),
                    _ => say!("{title} {at} level {level}"),
                }
                continue;
            }
            if self.json {
                damaged += walk(trees, root, Order::DepthFirst, Damage::Silent, |node| {
                    if node.is_leaf() {
                        found.extend((0..node.len()).map(|slot| item(tree, node, slot)));
                    }
                    Ok(())
                })?;
                continue;
            }
            match tree {
                TreeId::ROOT | TreeId::CHUNK => say!("{title}"),
                // As the Btrfs tools end this line.
                _ if title.ends_with(')') && !self.extents => say!("{title} "),
                _ => say!("{title}"),
            }
            damaged += self.walk_and_print(trees, root, style)?;
        }
        if self.json {
            json(&found)?;
        }
        Ok(damaged)
    }

    fn walk_and_print(
        &self,
        trees: &Trees<'_>,
        root: NodeRef,
        style: &Style,
    ) -> Result<u64, Failure> {
        let order = match self.dfs {
            true => Order::DepthFirst,
            false => Order::BreadthFirst,
        };
        walk(trees, root, order, Damage::Shown, |node| print(node, style))
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

/// The trees with this number. There may be several logs.
fn named(volume: &Volume, tree: TreeId) -> Result<Vec<Subject>, Failure> {
    let mut found = all_trees(volume)?;
    found.retain(|subject| subject.tree() == tree);
    match (found.is_empty(), tree) {
        (false, _) => Ok(found),
        (true, TreeId::LOG) => fail("this volume has no fsync log that waits for its replay"),
        (true, tree) => fail(format!("there is no tree {}", object_name(tree.get()))),
    }
}

/// The tree of logs, and the logs that it names.
fn logs(trees: &Trees<'_>, root: NodeRef) -> Result<Vec<Subject>, Failure> {
    let first = Subject {
        root: Some(root),
        ..Subject::of(TreeId::LOG)
    };
    let mut found = vec![first];
    walk(trees, root, Order::DepthFirst, Damage::Silent, |node| {
        if node.is_leaf() {
            for slot in 0..node.len() {
                let Ok(item) = RootItem::parse(node.data(slot)) else {
                    continue;
                };
                found.push(Subject {
                    key: node.key(slot),
                    root: Some(item.root()),
                });
            }
        }
        Ok(())
    })?;
    Ok(found)
}

fn all_trees(volume: &Volume) -> Result<Vec<Subject>, Failure> {
    let trees = volume.trees();
    let mut found = vec![Subject::of(TreeId::ROOT), Subject::of(TreeId::CHUNK)];
    let mut logs = match trees.log_root() {
        Some(root) => logs(&trees, root)?,
        None => Vec::new(),
    };
    found.extend(logs.first());
    let root = trees.root(TreeId::ROOT)?;
    // Damage is shown and counted when the tree itself is.
    walk(&trees, root, Order::DepthFirst, Damage::Silent, |node| {
        if node.is_leaf() {
            for slot in 0..node.len() {
                let key = node.key(slot);
                if key.item_type == ItemType::ROOT_ITEM {
                    let item = RootItem::parse(node.data(slot)).ok();
                    found.push(Subject {
                        key,
                        root: item.map(|item| item.root()),
                    });
                }
            }
        }
        Ok(())
    })?;
    found.extend(logs.drain(..).skip(1));
    Ok(found)
}

/// The order in which the nodes of a tree come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// A node, then what lies below it: in the order of keys.
    DepthFirst,
    /// Level by level.
    BreadthFirst,
}

/// Whether a node that cannot be read is shown in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    Shown,
    Silent,
}

/// Visits a node and everything below it, by an explicit stack or queue. If a
/// node cannot be read, what lies below it is left out and the walk continues.
/// Returns the number of such nodes.
fn walk<S: NodeSource>(
    source: &S,
    root: NodeRef,
    order: Order,
    damage: Damage,
    mut each: impl FnMut(&Arc<Node>) -> Done,
) -> Result<u64, Failure> {
    let mut damaged = 0;
    let mut waiting = VecDeque::from([root]);
    while let Some(reference) = waiting.pop_front() {
        match source.node(reference) {
            Ok(node) => {
                each(&node)?;
                if !node.is_leaf() {
                    let children = (0..node.len()).map(|slot| node.child(slot));
                    match order {
                        Order::BreadthFirst => waiting.extend(children),
                        Order::DepthFirst => {
                            for child in children.rev() {
                                waiting.push_front(child);
                            }
                        }
                    }
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
fn print(node: &Arc<Node>, style: &Style) -> Done {
    header(node, style)?;
    if let Ok(stamp) = NodeHeader::parse(node.bytes()) {
        say!("fs uuid {}", Uuid::from_bytes(stamp.fsid));
        say!("chunk uuid {}", Uuid::from_bytes(stamp.chunk_tree_uuid));
    }
    let mut offset = node.bytes().len() - HEADER_SIZE;
    for slot in 0..node.len() {
        let key = key_text(node.key(slot));
        if node.is_leaf() {
            let data = node.data(slot);
            offset -= data.len();
            let size = data.len();
            say!("\titem {slot} key {key} itemoff {offset} itemsize {size}");
            items::print(style, node.key(slot), data)?;
        } else {
            let child = node.child(slot);
            let (at, generation) = (child.logical, child.generation);
            say!("\tkey {key} block {at} gen {generation}");
        }
    }
    Ok(())
}

fn header(node: &Arc<Node>, style: &Style) -> Done {
    let (logical, generation) = (node.logical(), node.generation());
    let owner = object_name(node.owner().get());
    let room = node.bytes().len() - HEADER_SIZE;
    let count = node.len();
    let kind = match node.is_leaf() {
        true => "leaf",
        false => "node",
    };
    let (level, free) = match node.is_leaf() {
        true => {
            let used: usize = (0..count).map(|s| node.data(s).len() + ITEM_SIZE).sum();
            (String::new(), room.saturating_sub(used))
        }
        false => (
            format!(" level {}", node.level()),
            (room / POINTER_SIZE).saturating_sub(count),
        ),
    };
    say!(
        "{kind} {logical}{level} items {count} free space {free} \
         generation {generation} owner {owner}"
    );
    let flags = node.flags() & ((1 << BACKREF_REVISION_SHIFT) - 1);
    let names: Vec<_> = [(FLAG_WRITTEN, "WRITTEN"), (FLAG_RELOC, "RELOC")]
        .into_iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| name)
        .collect();
    let sum = match style.csum_headers {
        true => {
            let sum = node.bytes().iter().take(style.checksum.size());
            format!(" csum {}", items::hex(sum))
        }
        false => String::new(),
    };
    say!(
        "{kind} {logical} flags {flags:#x}({}) backref revision {}{sum}",
        names.join("|"),
        node.flags() >> BACKREF_REVISION_SHIFT
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Damage, Order, walk};
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
    fn damaged_nodes_are_counted() {
        let root = NodeRef {
            logical: Logical(1 << 20),
            generation: Generation(1),
            level: 1,
        };
        let damaged = walk(&Nothing, root, Order::DepthFirst, Damage::Silent, |_| {
            panic!("no node is there")
        });
        assert_eq!(damaged.ok(), Some(1));
    }
}
