//! Operations on subvolumes among the random ones.
//!
//! Subvolumes that can be changed have names like any other, and others move
//! them about. Read-only ones have names of their own, so that nothing is done
//! in them except a few attempts.

use super::generate::Generator;
use super::{Op, OpPath, SnapshotAccess};
use crate::oracle::SubvolumePath;
use crate::tree_view::FileKind;

/// First byte of the names of read-only subvolumes.
const MARK: u8 = b'@';
/// Subvolumes of each access.
const MAX: usize = 7;

impl Generator {
    /// Moves paths in read-only subvolumes out of the paths that operations
    /// change.
    pub(super) fn part_frozen(&mut self) {
        let Some(frozen) = &mut self.frozen else {
            return;
        };
        let marked = |path: &[u8]| path.first() == Some(&MARK);
        let files = self
            .paths
            .iter()
            .filter(|(path, kind)| marked(path) && **kind == FileKind::Regular);
        *frozen = files.map(|(path, _)| OpPath(path.clone())).collect();
        self.paths.retain(|path, _| !marked(path));
    }

    fn frozen_file(&mut self) -> Option<OpPath> {
        let frozen = self.frozen.as_deref().unwrap_or_default();
        (!frozen.is_empty()).then(|| self.random.pick(frozen).clone())
    }

    /// A file to take content from.
    pub(super) fn source(&mut self) -> OpPath {
        if self.frozen.is_some()
            && self.random.one_in(3)
            && let Some(path) = self.frozen_file()
        {
            return path;
        }
        self.file()
    }

    fn marked(&mut self, kind: &str) -> OpPath {
        self.numbered += 1;
        OpPath(format!("@{kind}-{}", self.numbered).into_bytes())
    }

    pub(super) fn subvolume_operation(&mut self) -> Op {
        let all = self.model.subvolumes();
        let (frozen, free): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|one| one.access == SnapshotAccess::ReadOnly);
        // If the choice is not possible now, a subvolume is made or deleted
        // instead.
        let choice = self.random.below(13);
        let op = match choice {
            0 | 1 if free.len() < MAX => Some(Op::Subvolume {
                path: OpPath(self.names.pick(&mut self.random)),
                mode: self.mode(),
            }),
            2 | 3 if free.len() < MAX => {
                let to = OpPath(self.names.pick(&mut self.random));
                let from = if self.random.one_in(2) {
                    &frozen
                } else {
                    &free
                };
                self.snapshot(from, to, SnapshotAccess::Writable)
            }
            4..=6 if frozen.len() < MAX => {
                let to = self.marked("ro");
                self.snapshot(&free, to, SnapshotAccess::ReadOnly)
            }
            7 | 8 if frozen.len() < MAX => self.send(&frozen),
            9 => self.attempt(&frozen),
            _ => None,
        };
        if let Some(op) = op {
            return op;
        }
        let from = if frozen.len() > 3 || free.is_empty() {
            &frozen
        } else {
            &free
        };
        if from.len() < 3 {
            return Op::Subvolume {
                path: OpPath(self.names.pick(&mut self.random)),
                mode: self.mode(),
            };
        }
        Op::DeleteSubvolume {
            path: self.random.pick(from).path.clone(),
        }
    }

    fn snapshot(
        &mut self,
        from: &[SubvolumePath],
        to: OpPath,
        access: SnapshotAccess,
    ) -> Option<Op> {
        let from: Vec<_> = from.iter().filter(|one| !one.is_nested).collect();
        if from.is_empty() {
            return None;
        }
        let from = self.random.pick(&from).path.clone();
        Some(Op::Snapshot { from, to, access })
    }

    /// Sends only subvolumes whose root has no default ACL: in the kernel's
    /// receive, new files inherit it.
    fn send(&mut self, frozen: &[SubvolumePath]) -> Option<Op> {
        let from: Vec<_> = frozen.iter().filter(|one| !one.hands_down_acl).collect();
        if from.is_empty() {
            return None;
        }
        let from = *self.random.pick(&from);
        let family = |one: &&SubvolumePath| {
            one.family == from.family && one.path != from.path && !one.hands_down_acl
        };
        let parents: Vec<_> = frozen.iter().filter(family).collect();
        let parent = (!parents.is_empty() && !self.random.one_in(3))
            .then(|| self.random.pick(&parents).path.clone());
        Some(Op::SendReceive {
            from: from.path.clone(),
            parent,
            into: self.marked("in"),
        })
    }

    /// Something that a read-only subvolume refuses.
    fn attempt(&mut self, frozen: &[SubvolumePath]) -> Option<Op> {
        if let Some(path) = self.frozen_file().filter(|_| self.random.one_in(2)) {
            let size = self.random.below(9000);
            return Some(Op::Truncate { path, size });
        }
        if frozen.is_empty() {
            return None;
        }
        let OpPath(mut path) = self.random.pick(frozen).path.clone();
        path.extend(b"/");
        path.extend(self.names.pick(&mut self.random));
        Some(Op::Mkdir {
            path: OpPath(path),
            mode: self.mode(),
        })
    }
}
