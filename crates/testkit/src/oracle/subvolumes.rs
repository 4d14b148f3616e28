//! Subvolumes: trees of inodes that appear as directories in one another.
//!
//! The model does not know what a snapshot has in place of a subvolume that is
//! nested in its source. Callers must use sources without nested subvolumes.

use super::inode::{Body, Inode};
use super::{Id, Oracle, ROOT};
use crate::op::{OpPath, SnapshotAccess};
use crate::oracle::resolve::{Last, Place};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// What is known about a subvolume other than the top level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subvolume {
    access: SnapshotAccess,
    /// Snapshots have that of their source.
    family: u64,
}

/// A subvolume and where it is.
#[derive(Clone, Debug)]
pub struct SubvolumePath {
    /// Path of its root directory.
    pub path: OpPath,
    /// Whether it can be changed.
    pub access: SnapshotAccess,
    /// The same number for all snapshots of one another.
    pub family: u64,
    /// Other subvolumes are nested in it.
    pub is_nested: bool,
    /// What is created in its root directory inherits an ACL.
    pub hands_down_acl: bool,
}

impl Oracle {
    /// All subvolumes except the top level.
    #[must_use]
    pub fn subvolumes(&self) -> Vec<SubvolumePath> {
        let describe = |(id, subvolume): (&Id, &Subvolume)| SubvolumePath {
            path: self.path_of(*id),
            access: subvolume.access,
            family: subvolume.family,
            is_nested: self.has_nested(*id),
            hands_down_acl: self.inode(*id).xattrs.contains_key(super::acl::DEFAULT),
        };
        self.subvolumes.iter().map(describe).collect()
    }

    fn path_of(&self, directory: Id) -> OpPath {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = directory;
        while at != ROOT {
            let Body::Directory { parent, .. } = self.inode(at).body else {
                break;
            };
            if let Body::Directory { entries, .. } = &self.inode(parent).body
                && let Some((name, _)) = entries.iter().find(|(_, child)| **child == at)
            {
                names.push(name);
            }
            at = parent;
        }
        names.reverse();
        OpPath(names.join(&b'/'))
    }

    pub(super) fn is_subvolume(&self, id: Id) -> bool {
        self.subvolumes.contains_key(&id)
    }

    fn has_nested(&self, id: Id) -> bool {
        self.subvolumes
            .keys()
            .any(|other| match self.inode(*other).body {
                Body::Directory { parent, .. } => self.inode(parent).tree == id,
                _ => false,
            })
    }

    /// EROFS where nothing may be changed.
    pub(super) fn check_access(&self, id: Id) -> Result<(), Errno> {
        match self.subvolumes.get(&self.inode(id).tree) {
            Some(subvolume) if subvolume.access == SnapshotAccess::ReadOnly => Err(Errno::ROFS),
            _ => Ok(()),
        }
    }

    fn add_subvolume(&mut self, place: &Place, id: Id, subvolume: Subvolume) {
        self.inode_mut(id).tree = id;
        self.subvolumes.insert(id, subvolume);
        self.set_name(place, id);
    }

    pub(super) fn make_subvolume(&mut self, path: &OpPath, mode: u32) -> Result<(), Errno> {
        let place = self.free_place(path)?;
        let id = self.next;
        self.next += 1;
        self.inodes
            .insert(id, Inode::new(Body::directory(ROOT), mode));
        let subvolume = Subvolume {
            access: SnapshotAccess::Writable,
            family: id,
        };
        self.add_subvolume(&place, id, subvolume);
        Ok(())
    }

    fn find_subvolume(&self, path: &OpPath) -> Result<(Id, Subvolume), Errno> {
        let id = self.find(path, Last::Itself)?;
        let subvolume = self.subvolumes.get(&id).ok_or(Errno::INVAL)?;
        Ok((id, *subvolume))
    }

    pub(super) fn snapshot(
        &mut self,
        from: &OpPath,
        to: &OpPath,
        access: SnapshotAccess,
    ) -> Result<(), Errno> {
        let place = self.free_place(to)?;
        let (source, subvolume) = self.find_subvolume(from)?;
        let id = self.copy_tree(source);
        let subvolume = Subvolume {
            access,
            family: subvolume.family,
        };
        self.add_subvolume(&place, id, subvolume);
        Ok(())
    }

    /// Copies all inodes of a subvolume; gives the new root directory.
    fn copy_tree(&mut self, source: Id) -> Id {
        let members = self.inodes.iter().filter(|(_, inode)| inode.tree == source);
        let mut copies: Vec<(Id, Inode)> =
            members.map(|(id, inode)| (*id, inode.clone())).collect();
        let mut new = BTreeMap::new();
        for (id, _) in &copies {
            new.insert(*id, self.next);
            self.next += 1;
        }
        let root = new[&source];
        for (id, inode) in &mut copies {
            inode.tree = root;
            if let Body::Directory { entries, parent } = &mut inode.body {
                *parent = new.get(parent).copied().unwrap_or(ROOT);
                for child in entries.values_mut() {
                    *child = *new.get(child).expect("nothing hangs in the source");
                }
            }
            *id = new[id];
        }
        self.inodes.extend(copies);
        root
    }

    pub(super) fn delete_subvolume(&mut self, path: &OpPath) -> Result<(), Errno> {
        let place = self.place(path)?;
        let (id, _) = self.find_subvolume(path)?;
        if self.has_nested(id) {
            return Err(Errno::NOTEMPTY);
        }
        self.remove_name(&place);
        self.subvolumes.remove(&id);
        self.inodes.retain(|_, inode| inode.tree != id);
        Ok(())
    }

    pub(super) fn send_receive(
        &mut self,
        from: &OpPath,
        parent: Option<&OpPath>,
        into: &OpPath,
    ) -> Result<(), Errno> {
        let (source, subvolume) = self.find_subvolume(from)?;
        let family = match parent {
            Some(parent) => self.find_subvolume(parent)?.1.family,
            None => self.next,
        };
        self.make(into, Body::directory(ROOT), 0o777)?;
        let name = from.0.rsplit(|byte| *byte == b'/').next();
        let place = Place {
            directory: self.find(into, Last::Itself)?,
            name: name.unwrap_or_default().to_vec(),
        };
        let id = self.copy_tree(source);
        self.add_subvolume(
            &place,
            id,
            Subvolume {
                family,
                ..subvolume
            },
        );
        Ok(())
    }
}
