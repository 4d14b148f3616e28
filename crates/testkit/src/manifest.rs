//! A manifest: everything that a user can see of a tree, in one sorted list.
//!
//! Owns the walk and the comparison. Two trees with equal manifests hold the
//! same files. The places of extents and holes do not show.

use crate::tree_view::{FileKind, Stat, TreeView};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use xxhash_rust::xxh64::Xxh64;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Everything visible of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Attributes. The number of the inode is not compared.
    pub stat: Stat,
    /// Target, of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// XXH64 of the content, of a regular file.
    pub hash: Option<u64>,
    /// The first path, in order, of the same inode.
    pub first_name: Vec<u8>,
}

/// All names of a tree, by path from its root (which is the empty path).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Entries by path.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

/// Why there is no manifest.
#[derive(Debug)]
pub struct WalkError {
    /// Where.
    pub path: Vec<u8>,
    /// What the tree said.
    pub reason: String,
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}: {}", self.path.escape_ascii(), self.reason)
    }
}

impl std::error::Error for WalkError {}

impl Manifest {
    /// Walks a whole tree.
    ///
    /// # Errors
    /// The first thing that cannot be read; a name that a directory has twice;
    /// content whose length is not the size.
    pub fn of<V: TreeView>(view: &V) -> Result<Self, WalkError> {
        let mut manifest = Self::default();
        let fail = |path: &[u8]| {
            let path = path.to_vec();
            move |error: V::Error| WalkError {
                path,
                reason: error.to_string(),
            }
        };
        let root = view.root().map_err(fail(b""))?;
        let mut waiting = vec![(Vec::new(), root)];
        while let Some((path, node)) = waiting.pop() {
            let entry = read_entry(view, &path, &node)?;
            if entry.stat.kind == FileKind::Directory {
                for (name, child) in view.read_dir(&node).map_err(fail(&path))? {
                    let mut below = path.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(&name);
                    waiting.push((below, child));
                }
            }
            if manifest.entries.insert(path.clone(), entry).is_some() {
                return Err(WalkError {
                    path,
                    reason: "the directory has this name twice".to_owned(),
                });
            }
        }
        manifest.name_groups();
        Ok(manifest)
    }

    /// Fills in which names share an inode.
    fn name_groups(&mut self) {
        let mut first: HashMap<u64, Vec<u8>> = HashMap::new();
        for (path, entry) in &mut self.entries {
            // Each subvolume numbers its own inodes, and a directory has only
            // one name anyway.
            entry.first_name = if entry.stat.kind == FileKind::Directory {
                path.clone()
            } else {
                first
                    .entry(entry.stat.inode)
                    .or_insert_with(|| path.clone())
                    .clone()
            };
        }
    }

    /// What differs from `other`, one line each, at most `limit`; empty if the
    /// trees are equal. If one of them does not know a time, the time counts as
    /// equal.
    #[must_use]
    pub fn differences(&self, other: &Self, limit: usize) -> Vec<String> {
        let mut out = Vec::new();
        for (path, left) in &self.entries {
            match other.entries.get(path) {
                None => out.push(format!("/{}: only left", path.escape_ascii())),
                Some(right) => differences(path, left, right, &mut out),
            }
            if out.len() >= limit {
                break;
            }
        }
        for path in other.entries.keys() {
            if !self.entries.contains_key(path) {
                out.push(format!("/{}: only right", path.escape_ascii()));
            }
        }
        out.truncate(limit);
        out
    }

    /// Fails with the differences from `other`, which is the expected tree.
    ///
    /// # Panics
    /// When there are any.
    pub fn assert_same(&self, other: &Self, context: &str) {
        let differences = self.differences(other, 20);
        assert!(
            differences.is_empty(),
            "{context}: found (left) differs from expected (right):\n{}",
            differences.join("\n")
        );
    }
}

fn read_entry<V: TreeView>(view: &V, path: &[u8], node: &V::Node) -> Result<Entry, WalkError> {
    let fail = |error: V::Error| WalkError {
        path: path.to_vec(),
        reason: error.to_string(),
    };
    let stat = view.stat(node).map_err(fail)?;
    let target = match stat.kind {
        FileKind::Symlink => Some(view.read_link(node).map_err(fail)?),
        _ => None,
    };
    let hash = match stat.kind {
        FileKind::Regular => Some(hash_content(view, path, node, stat.size)?),
        _ => None,
    };
    Ok(Entry {
        xattrs: view.xattrs(node).map_err(fail)?.into_iter().collect(),
        stat,
        target,
        hash,
        first_name: Vec::new(),
    })
}

fn hash_content<V: TreeView>(
    view: &V,
    path: &[u8],
    node: &V::Node,
    size: u64,
) -> Result<u64, WalkError> {
    let mut hash = Xxh64::new(0);
    let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK)) + 1];
    let mut offset = 0;
    loop {
        let count = view
            .read(node, offset, &mut buffer)
            .map_err(|error| WalkError {
                path: path.to_vec(),
                reason: format!("at {offset}: {error}"),
            })?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        offset += count as u64;
    }
    if offset != size {
        return Err(WalkError {
            path: path.to_vec(),
            reason: format!("its size is {size}, its content ends at {offset}"),
        });
    }
    Ok(hash.digest())
}

fn differences(path: &[u8], left: &Entry, right: &Entry, out: &mut Vec<String>) {
    let mut line = String::new();
    let mut field = |name: &str, a: &dyn fmt::Debug, b: &dyn fmt::Debug, equal: bool| {
        if !equal {
            let _ = write!(line, " {name} {a:?} != {b:?};");
        }
    };
    let (a, b) = (&left.stat, &right.stat);
    field("kind", &a.kind, &b.kind, a.kind == b.kind);
    let octal = |mode: u32| format!("{mode:04o}");
    field("mode", &octal(a.mode), &octal(b.mode), a.mode == b.mode);
    field("uid", &a.uid, &b.uid, a.uid == b.uid);
    field("gid", &a.gid, &b.gid, a.gid == b.gid);
    field("device", &a.device, &b.device, a.device == b.device);
    field("links", &a.links, &b.links, a.links == b.links);
    field("size", &a.size, &b.size, a.size == b.size);
    let same_time = a.modified.is_none() || b.modified.is_none() || a.modified == b.modified;
    field("modified", &a.modified, &b.modified, same_time);
    field("hash", &left.hash, &right.hash, left.hash == right.hash);
    let text = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|b| b.escape_ascii().to_string());
    let (la, lb) = (text(&left.target), text(&right.target));
    field("target", &la, &lb, la == lb);
    let (ga, gb) = (
        left.first_name.escape_ascii(),
        right.first_name.escape_ascii(),
    );
    let same_group = left.first_name == right.first_name;
    field(
        "same inode as",
        &ga.to_string(),
        &gb.to_string(),
        same_group,
    );
    let names = left.xattrs.keys().chain(right.xattrs.keys());
    let mut last = None;
    for name in names.collect::<std::collections::BTreeSet<_>>() {
        if last == Some(name) {
            continue;
        }
        last = Some(name);
        let (va, vb) = (left.xattrs.get(name), right.xattrs.get(name));
        let (ta, tb) = (text(&va.cloned()), text(&vb.cloned()));
        field(
            &format!("xattr {}", name.escape_ascii()),
            &ta,
            &tb,
            va == vb,
        );
    }
    if !line.is_empty() {
        out.push(format!("/{}:{line}", path.escape_ascii()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted_tree::MountedTree;
    use std::fs;

    #[test]
    fn what_a_user_can_see_shows() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a"), b"content").unwrap();
        fs::hard_link(path("a"), path("b")).unwrap();
        fs::create_dir(path("d")).unwrap();
        std::os::unix::fs::symlink("a", path("d/link")).unwrap();
        let before = Manifest::of(&MountedTree::new(dir.path())).unwrap();
        assert_eq!(before.entries.len(), 5);
        assert_eq!(before.entries[&b"b"[..]].first_name, b"a");
        assert!(before.differences(&before, 9).is_empty());

        fs::write(path("a"), b"CONTENT").unwrap();
        let after = Manifest::of(&MountedTree::new(dir.path())).unwrap();
        let differences = before.differences(&after, 9);
        assert_eq!(differences.len(), 2, "both names of it: {differences:?}");
        assert!(differences[0].contains("hash"));

        fs::remove_file(path("b")).unwrap();
        fs::write(path("b"), b"CONTENT").unwrap();
        let split = Manifest::of(&MountedTree::new(dir.path())).unwrap();
        let differences = after.differences(&split, 9).join("\n");
        assert!(differences.contains("same inode as"), "{differences}");

        fs::remove_file(path("d/link")).unwrap();
        let less = Manifest::of(&MountedTree::new(dir.path())).unwrap();
        let differences = split.differences(&less, 9).join("\n");
        assert!(differences.contains("/d/link: only left"), "{differences}");
        let differences = less.differences(&split, 9).join("\n");
        assert!(differences.contains("/d/link: only right"), "{differences}");
    }
}
