//! The files of an image before the image exists.
//!
//! Owns a tree of names and the nodes to which they lead. Sources are laid over
//! each other in it, one layer after the other. Content stays where it is until
//! the image is written ([`Contents`](super::content::Contents)). Names are in
//! the order of their bytes, so the same files make the same tree, whatever the
//! order in which they came.

use super::BuildError;
use super::content::ContentId;
use butterfs_format::item::inode::Timespec;
use std::collections::BTreeMap;

/// The most symbolic links that are followed in one path. More count as a loop.
const LINKS_MAX: usize = 40;

/// Identifies a node of the tree. It becomes an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

/// The fields that all nodes have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Permissions, without the type.
    pub permissions: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change.
    pub mtime: Timespec,
    /// Extended attributes, by name.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The type of a node, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory and its names.
    Directory(BTreeMap<Vec<u8>, NodeId>),
    /// A file.
    File(ContentId),
    /// A symbolic link to this text.
    Symlink(Vec<u8>),
    /// A character device: `major << 20 | minor`.
    CharDevice(u64),
    /// A block device: `major << 20 | minor`.
    BlockDevice(u64),
    /// A FIFO.
    Fifo,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Owner, permissions, time, attributes.
    pub metadata: Metadata,
    /// Type and content.
    pub body: Body,
}

/// A tree of files. A file with several names is one node.
#[derive(Clone, Debug)]
pub struct FileTree {
    nodes: Vec<Node>,
    /// For directories that no source describes.
    default: Metadata,
}

impl FileTree {
    /// Makes a tree with an empty root directory, owned by user 0 and changed at
    /// `time`.
    #[must_use]
    pub fn new(time: Timespec) -> Self {
        let default = Metadata {
            permissions: 0o755,
            mtime: time,
            ..Metadata::default()
        };
        let root = Node {
            metadata: default.clone(),
            body: Body::Directory(BTreeMap::new()),
        };
        Self {
            nodes: vec![root],
            default,
        }
    }

    /// Returns the root directory.
    #[must_use]
    pub const fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// Returns a node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Returns a node to change it.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// The number of nodes, including those without names.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The index of a node in tables of [`Self::len`] entries.
    pub(super) const fn index(id: NodeId) -> usize {
        id.0
    }

    /// Returns the names of a directory, sorted; none if the node is no
    /// directory.
    pub fn names(&self, id: NodeId) -> impl Iterator<Item = (&Vec<u8>, NodeId)> {
        let names = match &self.nodes[id.0].body {
            Body::Directory(names) => Some(names),
            _ => None,
        };
        let names = names.into_iter().flatten();
        names.map(|(name, node)| (name, *node))
    }

    fn names_mut(&mut self, id: NodeId) -> Option<&mut BTreeMap<Vec<u8>, NodeId>> {
        match &mut self.nodes[id.0].body {
            Body::Directory(names) => Some(names),
            _ => None,
        }
    }

    /// Returns the node to which a name leads.
    #[must_use]
    pub fn find(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.nodes[directory.0].body {
            Body::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// Adds a node without a name.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Gives a name to a node, instead of to the node that had it.
    pub fn put(&mut self, directory: NodeId, name: &[u8], node: NodeId) {
        if let Some(names) = self.names_mut(directory) {
            names.insert(name.to_vec(), node);
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, directory: NodeId, name: &[u8]) {
        if let Some(names) = self.names_mut(directory) {
            names.remove(name);
        }
    }

    /// Removes all names of a directory.
    pub fn clear(&mut self, directory: NodeId) {
        if let Some(names) = self.names_mut(directory) {
            names.clear();
        }
    }

    /// Removes all names for which `is_gone` says so, by their paths and nodes.
    pub(super) fn retain(&mut self, is_gone: &mut dyn FnMut(&[u8], &Node) -> bool) {
        let mut gone = Vec::new();
        let mut waiting = vec![(Vec::new(), self.root())];
        while let Some((path, directory)) = waiting.pop() {
            for (name, id) in self.names(directory) {
                let path = [&path[..], b"/", name].concat();
                if is_gone(&path, self.node(id)) {
                    gone.push((directory, name.clone()));
                } else {
                    waiting.push((path, id));
                }
            }
        }
        for (directory, name) in gone {
            self.remove(directory, &name);
        }
    }

    /// Returns the directory of this name. If there is none, makes a new one, in
    /// place of any other node that has the name.
    pub fn directory(&mut self, parent: NodeId, name: &[u8]) -> NodeId {
        if let Some(there) = self.find(parent, name)
            && matches!(self.nodes[there.0].body, Body::Directory(_))
        {
            return there;
        }
        let made = self.add(Node {
            metadata: self.default.clone(),
            body: Body::Directory(BTreeMap::new()),
        });
        self.put(parent, name, made);
        made
    }

    /// Returns the directory at a path, and makes missing ones. Links on the way
    /// lead where they would lead in the image, never out of it.
    ///
    /// # Errors
    /// [`BuildError::Path`] if too many links are on the way.
    pub fn directory_at(&mut self, path: &[Vec<u8>]) -> Result<NodeId, BuildError> {
        self.walk(path, Missing::Make, &|_| None)?
            .ok_or_else(|| Self::loop_at(path))
    }

    /// Returns the directory at a path, if there is one.
    ///
    /// # Errors
    /// [`BuildError::Path`] if too many links are on the way.
    pub fn find_directory(&mut self, path: &[Vec<u8>]) -> Result<Option<NodeId>, BuildError> {
        self.walk(path, Missing::Stop, &|_| None)
    }

    /// Returns the directory at a path, if there is one and it stays when a
    /// layer comes over this tree. `of_layer` says whether the layer has this
    /// path, and then whether it is a directory there. A layer replaces what
    /// has its name, unless both are directories.
    ///
    /// # Errors
    /// [`BuildError::Path`] if too many links are on the way.
    pub(super) fn find_directory_below(
        &mut self,
        path: &[Vec<u8>],
        of_layer: &dyn Fn(&[Vec<u8>]) -> Option<bool>,
    ) -> Result<Option<NodeId>, BuildError> {
        self.walk(path, Missing::Stop, of_layer)
    }

    fn loop_at(path: &[Vec<u8>]) -> BuildError {
        BuildError::Path {
            path: shown(path),
            reason: "too many symbolic links lead there",
        }
    }

    fn walk(
        &mut self,
        path: &[Vec<u8>],
        missing: Missing,
        of_layer: &dyn Fn(&[Vec<u8>]) -> Option<bool>,
    ) -> Result<Option<NodeId>, BuildError> {
        // Directories from the root down to the place of the walk, and the
        // names of all but the root.
        let mut above = vec![self.root()];
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut rest: Vec<Vec<u8>> = path.iter().rev().cloned().collect();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let at = above.last().copied().unwrap_or(NodeId(0));
            if name == b".." {
                if above.len() > 1 {
                    above.pop();
                    names.pop();
                }
                continue;
            }
            let found = self.find(at, &name);
            names.push(name);
            let is_directory =
                found.is_some_and(|id| matches!(self.nodes[id.0].body, Body::Directory(_)));
            if of_layer(&names).is_some_and(|of_layer| !(of_layer && is_directory)) {
                return Ok(None);
            }
            let target = match found.map(|id| &self.nodes[id.0].body) {
                Some(Body::Symlink(target)) => Some(target.clone()),
                _ => None,
            };
            if let Some(target) = target {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Self::loop_at(path));
                }
                names.pop();
                if target.first() == Some(&b'/') {
                    above.truncate(1);
                    names.clear();
                }
                let steps = target.split(|byte| *byte == b'/').rev();
                let steps = steps.filter(|name| !name.is_empty() && *name != b".");
                rest.extend(steps.map(<[u8]>::to_vec));
                continue;
            }
            match (found, missing) {
                (Some(found), _) if is_directory => above.push(found),
                (_, Missing::Make) => {
                    let made = self.directory(at, names.last().map_or(&[][..], |name| name));
                    above.push(made);
                }
                (_, Missing::Stop) => return Ok(None),
            }
        }
        Ok(above.last().copied())
    }

    /// Calls `visit` with every path and its node. A directory comes before its
    /// content.
    pub fn visit(&self, visit: &mut dyn FnMut(&[u8], NodeId)) {
        let mut waiting = vec![(Vec::new(), self.root())];
        while let Some((path, id)) = waiting.pop() {
            visit(&path, id);
            let below: Vec<(Vec<u8>, NodeId)> = self
                .names(id)
                .map(|(name, node)| ([&path[..], b"/", name].concat(), node))
                .collect();
            waiting.extend(below.into_iter().rev());
        }
    }
}

#[derive(Clone, Copy)]
enum Missing {
    Make,
    Stop,
}

/// Formats a path for messages.
pub(super) fn shown(path: &[Vec<u8>]) -> String {
    format!("/{}", String::from_utf8_lossy(&path.join(&b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<Vec<u8>> {
        let names = text.split('/').filter(|name| !name.is_empty());
        names.map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn links_lead_within_the_tree() {
        let mut tree = FileTree::new(Timespec::default());
        let lib = tree.directory_at(&path("usr/lib")).unwrap();
        let root = tree.root();
        let link = |tree: &mut FileTree, name: &[u8], target: &[u8]| {
            let node = tree.add(Node {
                metadata: Metadata::default(),
                body: Body::Symlink(target.to_vec()),
            });
            tree.put(root, name, node);
        };
        link(&mut tree, b"lib", b"usr/lib");
        link(&mut tree, b"out", b"../../../usr");
        link(&mut tree, b"abs", b"/usr/./lib/");
        link(&mut tree, b"round", b"round");
        for same in ["lib", "out/lib", "abs", "usr/lib"] {
            assert_eq!(
                tree.find_directory(&path(same)).unwrap(),
                Some(lib),
                "{same}"
            );
        }
        assert!(tree.find_directory(&path("round")).is_err());
        assert_eq!(tree.find_directory(&path("lib/none")).unwrap(), None);
        // What a layer with a directory or a file of this name leaves of a path.
        let mut below = |at: &str, layer: &str, is_directory: bool| {
            let of_layer = |of: &[Vec<u8>]| (of == path(layer)).then_some(is_directory);
            tree.find_directory_below(&path(at), &of_layer).unwrap()
        };
        assert_eq!(below("lib", "other", true), Some(lib));
        assert_eq!(below("lib", "lib", true), None);
        assert_eq!(below("lib", "usr", true), Some(lib));
        assert_eq!(below("lib", "usr", false), None);
        assert_eq!(below("out/lib", "usr/lib", true), Some(lib));
    }
}
