//! Which subvolumes an image has, and the numbers of their inodes.
//!
//! Owns numbering: subvolumes in their order, inodes in the order of a walk. So
//! both depend only on the files and the options.

use super::BuildError;
use super::content::ContentId;
use super::model::{Body, FileTree, NodeId, shown};
use butterfs_format::item::root::RootFlags;
use butterfs_format::{InodeNumber, TreeId};
use std::collections::BTreeMap;

/// First number of a subvolume other than the top-level one.
const FIRST: u64 = 256;

/// Whether a subvolume can be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// It can be changed.
    #[default]
    Writable,
    /// It cannot be changed.
    ReadOnly,
}

/// A subvolume to make in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeSpec {
    /// Its directory, which is made if it is missing.
    pub path: Vec<Vec<u8>>,
    /// Whether it can be changed.
    pub protection: Protection,
    /// A mount shows it by default.
    pub is_default: bool,
}

impl std::str::FromStr for SubvolumeSpec {
    type Err = String;

    /// Parses `PATH[:ro][:default]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let path = words.next().unwrap_or_default();
        let mut spec = Self {
            path: path
                .split('/')
                .filter(|name| !name.is_empty() && *name != ".")
                .map(|name| name.as_bytes().to_vec())
                .collect(),
            protection: Protection::Writable,
            is_default: false,
        };
        for word in words {
            match word {
                "ro" => spec.protection = Protection::ReadOnly,
                "rw" => spec.protection = Protection::Writable,
                "default" => spec.is_default = true,
                _ => {
                    return Err(format!("`{word}` is none of ro, rw, default"));
                }
            }
        }
        if spec.path.iter().any(|name| name == b"..") {
            return Err("a path of a subvolume has no ..".to_owned());
        }
        Ok(spec)
    }
}

/// Where the files of a subvolume come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A directory of the image's own tree.
    Directory(NodeId),
    /// The root of the state after a layer.
    Layer(usize),
}

/// A subvolume of an image.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) tree: TreeId,
    pub(super) origin: Origin,
    pub(super) flags: RootFlags,
    /// For the state after a layer, the subvolume of which it is a snapshot.
    pub(super) snapshot_of: Option<TreeId>,
    /// Its place in another subvolume; `None` for the top-level one.
    pub(super) hangs: Option<Hanging>,
    pub(super) inodes: Vec<NumberedInode>,
}

/// The place of a subvolume in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hanging {
    pub(super) parent: TreeId,
    pub(super) directory: InodeNumber,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
}

/// An inode and its names.
#[derive(Debug)]
pub(super) struct NumberedInode {
    pub(super) node: NodeId,
    pub(super) number: InodeNumber,
    /// Names in directories.
    pub(super) names: Vec<NameOf>,
    /// Entries, for a directory.
    pub(super) children: Vec<Child>,
}

/// A name of an inode.
#[derive(Clone, Debug)]
pub(super) struct NameOf {
    pub(super) parent: InodeNumber,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) name: Vec<u8>,
    pub(super) index: u64,
    pub(super) target: Target,
}

/// The target of a directory entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Inode(NodeId, InodeNumber),
    Subvolume(TreeId),
}

/// All subvolumes, by number, and the one that a mount shows by default.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) subvolumes: Vec<Planned>,
    pub(super) default: TreeId,
}

/// The subvolumes that an image shall have.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted<'a> {
    pub(super) specs: &'a [SubvolumeSpec],
    /// Directory for a read-only snapshot of each layer.
    pub(super) layers: Option<&'a [Vec<u8>]>,
}

/// Plans the subvolumes of `tree` and of the states after its layers.
pub(super) fn plan(
    tree: &mut FileTree,
    layers: &[FileTree],
    wanted: &Wanted<'_>,
) -> Result<Plan, BuildError> {
    let mut roots: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut all = vec![(Origin::Directory(tree.root()), RootFlags::default())];
    let mut default = TreeId::FS;
    for spec in wanted.specs {
        let node = tree.directory_at(&spec.path)?;
        let number = match node == tree.root() {
            true => 0,
            false => *roots.entry(node).or_insert_with(|| {
                all.push((Origin::Directory(node), RootFlags::default()));
                all.len() - 1
            }),
        };
        if spec.protection == Protection::ReadOnly {
            if number == 0 {
                return Err(BuildError::Path {
                    path: "/".to_owned(),
                    reason: "the top level cannot be read-only; name a subvolume in it",
                });
            }
            all[number].1 = RootFlags::READONLY;
        }
        if spec.is_default {
            default = id(number);
        }
    }
    if let Some(above) = wanted.layers {
        let digits = layers.len().to_string().len();
        for number in 0..layers.len() {
            let parent = tree.directory_at(above)?;
            let name = format!("{:0digits$}", number + 1);
            if tree.find(parent, name.as_bytes()).is_some() {
                return Err(BuildError::Path {
                    path: format!("{}/{name}", shown(above)),
                    reason: "the image has this already; choose another directory for its layers",
                });
            }
            let node = tree.directory(parent, name.as_bytes());
            roots.insert(node, all.len());
            all.push((Origin::Layer(number), RootFlags::READONLY));
        }
    }
    let mut hangs: Vec<Option<Hanging>> = vec![None; all.len()];
    let mut subvolumes = Vec::new();
    for (number, (origin, flags)) in all.iter().enumerate() {
        let (files, root) = match origin {
            Origin::Directory(node) => (&*tree, *node),
            Origin::Layer(layer) => (&layers[*layer], layers[*layer].root()),
        };
        // The nodes in `roots` are those of `tree`, so the state after a layer
        // has no subvolumes.
        let none = BTreeMap::new();
        let below = match origin {
            Origin::Directory(_) => &roots,
            Origin::Layer(_) => &none,
        };
        let tree_id = id(number);
        let inodes = number_inodes(files, root, |node| below.get(&node).copied().map(id));
        for inode in &inodes {
            for child in &inode.children {
                if let Target::Subvolume(target) = child.target {
                    hangs[index(target)] = Some(Hanging {
                        parent: tree_id,
                        directory: inode.number,
                        index: child.index,
                        name: child.name.clone(),
                    });
                }
            }
        }
        subvolumes.push(Planned {
            tree: tree_id,
            origin: *origin,
            flags: *flags,
            snapshot_of: matches!(origin, Origin::Layer(_)).then_some(TreeId::FS),
            hangs: None,
            inodes,
        });
    }
    for (subvolume, hangs) in subvolumes.iter_mut().zip(hangs) {
        subvolume.hangs = hangs;
    }
    Ok(Plan {
        subvolumes,
        default,
    })
}

/// Returns the tree of subvolume number `number`.
fn id(number: usize) -> TreeId {
    match number {
        0 => TreeId::FS,
        _ => TreeId(FIRST + number as u64 - 1),
    }
}

fn index(tree: TreeId) -> usize {
    match tree {
        TreeId::FS => 0,
        _ => (tree.get() - FIRST + 1) as usize,
    }
}

/// Numbers everything below `root` in the order of a walk: first the entries of a
/// directory, then the content of each directory among them.
fn number_inodes(
    tree: &FileTree,
    root: NodeId,
    subvolume: impl Fn(NodeId) -> Option<TreeId>,
) -> Vec<NumberedInode> {
    let mut inodes = vec![NumberedInode {
        node: root,
        number: InodeNumber::ROOT,
        names: Vec::new(),
        children: Vec::new(),
    }];
    let mut known: Vec<Option<usize>> = vec![None; tree.len()];
    let mut waiting = vec![0_usize];
    while let Some(at) = waiting.pop() {
        let (directory, parent) = (inodes[at].node, inodes[at].number);
        let mut children = Vec::new();
        let mut below = Vec::new();
        // Indexes 0 and 1 are reserved for . and ..
        for (index, (name, node)) in (2..).zip(tree.names(directory)) {
            let target = if let Some(tree_id) = subvolume(node) {
                Target::Subvolume(tree_id)
            } else {
                let place = *known[FileTree::index(node)].get_or_insert_with(|| {
                    let number = InodeNumber(InodeNumber::ROOT.get() + inodes.len() as u64);
                    inodes.push(NumberedInode {
                        node,
                        number,
                        names: Vec::new(),
                        children: Vec::new(),
                    });
                    if matches!(tree.node(node).body, Body::Directory(_)) {
                        below.push(inodes.len() - 1);
                    }
                    inodes.len() - 1
                });
                inodes[place].names.push(NameOf {
                    parent,
                    index,
                    name: name.clone(),
                });
                Target::Inode(node, inodes[place].number)
            };
            children.push(Child {
                name: name.clone(),
                index,
                target,
            });
        }
        inodes[at].children = children;
        waiting.extend(below.into_iter().rev());
    }
    inodes
}

impl Plan {
    /// Returns the tree that holds the files of a subvolume.
    pub(super) fn files<'t>(
        subvolume: &Planned,
        tree: &'t FileTree,
        layers: &'t [FileTree],
    ) -> &'t FileTree {
        match subvolume.origin {
            Origin::Directory(_) => tree,
            Origin::Layer(layer) => &layers[layer],
        }
    }

    /// Returns the content of all files, in the order of their inodes.
    pub(super) fn contents<'a>(
        &'a self,
        tree: &'a FileTree,
        layers: &'a [FileTree],
    ) -> impl Iterator<Item = ContentId> + 'a {
        self.subvolumes.iter().flat_map(move |subvolume| {
            let files = Self::files(subvolume, tree, layers);
            subvolume
                .inodes
                .iter()
                .filter_map(move |inode| match files.node(inode.node).body {
                    Body::File(content) => Some(content),
                    _ => None,
                })
        })
    }
}
