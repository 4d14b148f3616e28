//! The files of an image before it is one.
//!
//! Owns a tree of names and what they lead to. Sources are laid over each
//! other in it, one layer after the other; content stays where it is until the
//! image is written ([`Contents`](super::content::Contents)). Names are in the
//! order of their bytes, so the same files make the same tree in whatever order
//! they came.

use super::BuildError;
use super::content::ContentId;
use butterfs_format::item::inode::Timespec;
use std::collections::BTreeMap;

/// Symbolic links followed in one path before it counts as a loop.
const LINKS_MAX: usize = 40;

/// A node of the tree: an inode to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

/// What all nodes have.
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

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory and its names.
    Directory(BTreeMap<Vec<u8>, Entry>),
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

/// A name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it leads to.
    pub node: NodeId,
    /// The layer that gave it.
    layer: u32,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Owner, permissions, time, attributes.
    pub metadata: Metadata,
    /// The rest.
    pub body: Body,
}

/// A tree of files. Files with several names are one node.
#[derive(Clone, Debug)]
pub struct FileTree {
    nodes: Vec<Node>,
    layer: u32,
    /// What directories get that no source describes.
    default: Metadata,
}

impl FileTree {
    /// An empty root directory of root, changed at `time`.
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
            layer: 0,
            default,
        }
    }

    /// The root directory.
    #[must_use]
    pub const fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// A node, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// Nodes there are, those without names included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A number for tables of nodes.
    pub(super) const fn index(id: NodeId) -> usize {
        id.0
    }

    /// What comes from now on lies over what is there.
    pub fn next_layer(&mut self) {
        self.layer += 1;
    }

    /// Names of a directory, in their order; none where it is none.
    pub fn names(&self, id: NodeId) -> impl Iterator<Item = (&Vec<u8>, NodeId)> {
        let names = match &self.nodes[id.0].body {
            Body::Directory(names) => Some(names),
            _ => None,
        };
        let names = names.into_iter().flatten();
        names.map(|(name, entry)| (name, entry.node))
    }

    fn names_mut(&mut self, id: NodeId) -> Option<&mut BTreeMap<Vec<u8>, Entry>> {
        match &mut self.nodes[id.0].body {
            Body::Directory(names) => Some(names),
            _ => None,
        }
    }

    /// What a name leads to.
    #[must_use]
    pub fn find(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.nodes[directory.0].body {
            Body::Directory(names) => names.get(name).map(|entry| entry.node),
            _ => None,
        }
    }

    /// Adds a node without a name.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Names a node in place of what had the name.
    pub fn put(&mut self, directory: NodeId, name: &[u8], node: NodeId) {
        let layer = self.layer;
        if let Some(names) = self.names_mut(directory) {
            names.insert(name.to_vec(), Entry { node, layer });
        }
    }

    /// Takes a name away.
    pub fn remove(&mut self, directory: NodeId, name: &[u8]) {
        if let Some(names) = self.names_mut(directory) {
            names.remove(name);
        }
    }

    /// Takes all names away.
    pub fn clear(&mut self, directory: NodeId) {
        if let Some(names) = self.names_mut(directory) {
            names.clear();
        }
    }

    /// The directory of this name: the one that is there, or a new one instead
    /// of anything else that has the name.
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

    /// The directory at a path, made where it is missing. Links on the way lead
    /// to where they would in the image, never out of it.
    ///
    /// # Errors
    /// Links in a circle.
    pub fn directory_at(&mut self, path: &[Vec<u8>]) -> Result<NodeId, BuildError> {
        self.walk(path, Missing::Make)?
            .ok_or_else(|| Self::loop_at(path))
    }

    /// The directory at a path, if there is one.
    ///
    /// # Errors
    /// Links in a circle.
    pub fn find_directory(&mut self, path: &[Vec<u8>]) -> Result<Option<NodeId>, BuildError> {
        self.walk(path, Missing::Stop)
    }

    fn loop_at(path: &[Vec<u8>]) -> BuildError {
        BuildError::Path {
            path: shown(path),
            reason: "too many symbolic links lead there",
        }
    }

    fn walk(&mut self, path: &[Vec<u8>], missing: Missing) -> Result<Option<NodeId>, BuildError> {
        // Directories from the root to where the walk is.
        let mut above = vec![self.root()];
        let mut rest: Vec<Vec<u8>> = path.iter().rev().cloned().collect();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let at = above.last().copied().unwrap_or(NodeId(0));
            if name == b".." {
                if above.len() > 1 {
                    above.pop();
                }
                continue;
            }
            let found = self.find(at, &name);
            let target = match found.map(|id| &self.nodes[id.0].body) {
                Some(Body::Symlink(target)) => Some(target.clone()),
                _ => None,
            };
            if let Some(target) = target {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Self::loop_at(path));
                }
                if target.first() == Some(&b'/') {
                    above.truncate(1);
                }
                let names = target.split(|byte| *byte == b'/').rev();
                let names = names.filter(|name| !name.is_empty() && *name != b".");
                rest.extend(names.map(<[u8]>::to_vec));
                continue;
            }
            let is_directory =
                found.is_some_and(|id| matches!(self.nodes[id.0].body, Body::Directory(_)));
            match (found, missing) {
                (Some(found), _) if is_directory => above.push(found),
                (_, Missing::Make) => {
                    let made = self.directory(at, &name);
                    above.push(made);
                }
                (_, Missing::Stop) => return Ok(None),
            }
        }
        Ok(above.last().copied())
    }

    /// Gives every name and its node to `visit`, directories before what is in
    /// them.
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

/// A path for people.
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
    }
}
