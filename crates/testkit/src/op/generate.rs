//! Sequences of operations from a seed.
//!
//! The generator runs a model of its own along with the sequence, so that most
//! operations name what exists, and some name what does not.

use super::names::{NamePool, colliding};
use super::{Bytes, EndOfFile, NodeKind, Op, OpPath, RenameHow, Span, XattrHow};
use crate::tree_view::{FileKind, Time};
use crate::{Oracle, Random};
use butterfs_format::acl::{Entry, Tag};
use std::collections::BTreeMap;

/// With this many names in the tree, most operations remove.
const CROWDED: usize = 150;
/// Greatest offset of content.
const OFFSET_MAX: u64 = 3 << 20;
const SECTOR: u64 = 4096;
const BIG_XATTR: &[u8] = b"user.big";

/// Makes operations without end.
#[derive(Clone, Debug)]
pub struct Generator {
    pub(super) random: Random,
    pub(super) names: NamePool,
    xattr_names: Vec<Vec<u8>>,
    pub(super) model: Oracle,
    pub(super) paths: BTreeMap<Vec<u8>, FileKind>,
    /// What lies in read-only subvolumes, when subvolumes are made.
    pub(super) frozen: Option<Vec<OpPath>>,
    /// Names that were given to read-only subvolumes.
    pub(super) numbered: u64,
}

type Make = fn(&mut Generator) -> Op;

/// Kinds of operation with how often each comes, in a tree of usual size.
const WEIGHTS: [(Make, u64); 24] = [
    (Generator::create, 90),
    (Generator::mkdir, 45),
    (Generator::symlink, 20),
    (Generator::link, 35),
    (Generator::unlink, 60),
    (Generator::rmdir, 25),
    (Generator::rename, 90),
    (Generator::write, 140),
    (Generator::append, 60),
    (Generator::truncate, 45),
    (Generator::punch_hole, 25),
    (Generator::allocate, 25),
    (Generator::zero_range, 20),
    (Generator::clone_range, 40),
    (Generator::copy_range, 25),
    (Generator::set_xattr, 50),
    (Generator::set_acl, 15),
    (Generator::remove_xattr, 20),
    (Generator::chmod, 25),
    (Generator::chown, 20),
    (Generator::set_modified, 25),
    (Generator::mknod, 20),
    (Generator::link_tmpfile, 15),
    (Generator::sync, 25),
];

impl Generator {
    /// Starts from a seed, for a tree that is empty.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut xattr_names: Vec<Vec<u8>> = ["user.a", "user.b", "user.mime_type", "trusted.t"]
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        // A prefix of equal length keeps a collision.
        let same_hash = colliding(&mut random, 2);
        xattr_names.extend(same_hash.iter().map(|name| [b"user.", &name[..]].concat()));
        xattr_names.push([&b"user."[..], &[b'n'; 250]].concat());
        Self {
            names: NamePool::new(&mut random),
            random,
            xattr_names,
            model: Oracle::new(),
            paths: BTreeMap::new(),
            frozen: None,
            numbered: 0,
        }
    }

    /// As [`Generator::new`], with operations on subvolumes among the others.
    #[must_use]
    pub fn with_subvolumes(seed: u64) -> Self {
        Self {
            frozen: Some(Vec::new()),
            ..Self::new(seed)
        }
    }

    /// As [`Generator::new`] with a fixed seed, but `tape` decides until it
    /// ends.
    #[must_use]
    pub fn from_tape(tape: &[u8]) -> Self {
        let mut generator = Self::new(1);
        generator.random.play(tape);
        generator
    }

    /// True if there is no tape, or if it has ended.
    #[must_use]
    pub const fn tape_ended(&self) -> bool {
        self.random.tape_ended()
    }

    /// An existing path of a kind that `fits`; a random one if there is none.
    fn existing(&mut self, fits: impl Fn(FileKind) -> bool) -> OpPath {
        let count = self.paths.values().filter(|kind| fits(**kind)).count();
        // Now and then, any path.
        if count == 0 || self.random.one_in(15) {
            return self.any_path();
        }
        let which = self.random.below(count as u64) as usize;
        let mut fitting = self.paths.iter().filter(|(_, kind)| fits(**kind));
        OpPath(
            fitting
                .nth(which)
                .map(|(path, _)| path.clone())
                .unwrap_or_default(),
        )
    }

    pub(super) fn file(&mut self) -> OpPath {
        self.existing(|kind| matches!(kind, FileKind::Regular))
    }

    fn any(&mut self) -> OpPath {
        self.existing(|_| true)
    }

    fn any_path(&mut self) -> OpPath {
        let depth = 1 + self.random.below(3);
        let names: Vec<_> = (0..depth)
            .map(|_| self.names.pick(&mut self.random))
            .collect();
        OpPath(names.join(&b'/'))
    }

    /// A name in an existing directory. The name may exist as well.
    fn place(&mut self) -> OpPath {
        let name = self.names.pick(&mut self.random);
        if self.random.one_in(3) {
            return OpPath(name);
        }
        let OpPath(mut path) = self.existing(|kind| matches!(kind, FileKind::Directory));
        // This keeps paths shorter than the kernel's limit.
        if path.len() > 1500 {
            return OpPath(name);
        }
        path.push(b'/');
        path.extend(name);
        OpPath(path)
    }

    pub(super) fn mode(&mut self) -> u32 {
        // No sticky bit, because it changes the rights to follow links.
        *self
            .random
            .pick(&[0o644, 0o755, 0o600, 0o777, 0o4755, 0o2755, 0o6711, 0])
    }

    fn offset(&mut self) -> u64 {
        let limit = *self.random.pick(&[1, 4096, 70_000, 400_000, OFFSET_MAX]);
        let offset = self.random.below(limit);
        if self.random.one_in(2) {
            offset / SECTOR * SECTOR
        } else {
            offset
        }
    }

    fn length(&mut self) -> u64 {
        let limit = *self
            .random
            .pick(&[100, 2500, 5000, 20_000, 140_000, 300_000]);
        let length = self.random.below(limit);
        if self.random.one_in(3) {
            length.next_multiple_of(SECTOR)
        } else {
            length
        }
    }

    pub(super) fn span(&mut self) -> Span {
        Span {
            offset: self.offset(),
            length: self.length(),
        }
    }

    fn end(&mut self) -> EndOfFile {
        *self.random.pick(&[EndOfFile::Extend, EndOfFile::Keep])
    }

    fn create(&mut self) -> Op {
        Op::Create {
            path: self.place(),
            mode: self.mode(),
        }
    }

    fn mkdir(&mut self) -> Op {
        Op::Mkdir {
            path: self.place(),
            mode: self.mode(),
        }
    }

    fn symlink(&mut self) -> Op {
        let target = match self.random.below(6) {
            0 => self.place().0,
            1 => vec![b't'; self.random.below(4096) as usize],
            _ => self.names.pick(&mut self.random),
        };
        Op::Symlink {
            path: self.place(),
            target: Bytes(target),
        }
    }

    fn link(&mut self) -> Op {
        Op::Link {
            from: self.existing(|kind| !matches!(kind, FileKind::Directory)),
            to: self.place(),
        }
    }

    fn unlink(&mut self) -> Op {
        Op::Unlink {
            path: self.existing(|kind| !matches!(kind, FileKind::Directory)),
        }
    }

    fn rmdir(&mut self) -> Op {
        Op::Rmdir {
            path: self.existing(|kind| matches!(kind, FileKind::Directory)),
        }
    }

    fn rename(&mut self) -> Op {
        let how = match self.random.below(8) {
            0 => RenameHow::NoReplace,
            1 => RenameHow::Exchange,
            2 if self.random.one_in(3) => RenameHow::Whiteout,
            _ => RenameHow::Replace,
        };
        let to = if how == RenameHow::Exchange || self.random.one_in(3) {
            self.any()
        } else {
            self.place()
        };
        Op::Rename {
            from: self.any(),
            to,
            how,
        }
    }

    fn write(&mut self) -> Op {
        Op::Write {
            path: self.file(),
            span: self.span(),
            seed: self.random.bits(),
        }
    }

    fn append(&mut self) -> Op {
        Op::Append {
            path: self.file(),
            length: self.length(),
            seed: self.random.bits(),
        }
    }

    fn truncate(&mut self) -> Op {
        Op::Truncate {
            path: self.file(),
            size: self.offset(),
        }
    }

    fn punch_hole(&mut self) -> Op {
        Op::PunchHole {
            path: self.file(),
            span: self.span(),
        }
    }

    fn allocate(&mut self) -> Op {
        Op::Allocate {
            path: self.file(),
            span: self.span(),
            end: self.end(),
        }
    }

    fn zero_range(&mut self) -> Op {
        Op::ZeroRange {
            path: self.file(),
            span: self.span(),
            end: self.end(),
        }
    }

    /// A range of `from` that can be cloned, most of the time.
    fn clone_range(&mut self) -> Op {
        let from = self.source();
        let size = self.model.size_of(&from).unwrap_or(0);
        let offset = self.random.below(size + 1) / SECTOR * SECTOR;
        let rest = (size - offset).max(1);
        let length = match self.random.below(4) {
            0 => rest,
            1 => self.length().max(1),
            _ => (self.random.below(rest) / SECTOR * SECTOR).max(1),
        };
        let to = if self.random.one_in(4) {
            from.clone()
        } else {
            self.file()
        };
        let end = self.model.size_of(&to).unwrap_or(0);
        let to_offset = match self.random.below(3) {
            0 => end.next_multiple_of(SECTOR),
            1 => self.offset() / SECTOR * SECTOR,
            _ => self.offset(),
        };
        Op::Clone {
            from,
            span: Span { offset, length },
            to,
            to_offset,
        }
    }

    fn copy_range(&mut self) -> Op {
        Op::Copy {
            from: self.source(),
            span: self.span(),
            to: self.file(),
            to_offset: self.offset(),
        }
    }

    fn set_xattr(&mut self) -> Op {
        if self.random.one_in(20) {
            return self.set_big_xattr();
        }
        let length = match self.random.below(12) {
            0 => 17_000 + self.random.below(53_000),
            1 => self.random.below(4000),
            _ => self.random.below(60),
        };
        let name = match self.random.below(40) {
            0 => b"bogus.name".to_vec(),
            1 => [&b"user."[..], &[b'n'; 251]].concat(),
            _ => self.random.pick(&self.xattr_names).clone(),
        };
        Op::SetXattr {
            path: self.any(),
            name: Bytes(name),
            value: Bytes(crate::content::content(self.random.bits(), length as usize)),
            how: *self.random.pick(&[
                XattrHow::Any,
                XattrHow::Any,
                XattrHow::Create,
                XattrHow::Replace,
            ]),
        }
    }

    /// A value near the greatest that a leaf takes. It is only created, never
    /// replaced. Whether a greater value finds room beside the old one depends
    /// on what else the leaf holds, and also on names that collide.
    fn set_big_xattr(&mut self) -> Op {
        let length = 16_150 + self.random.below(100);
        Op::SetXattr {
            path: self.any(),
            name: Bytes(BIG_XATTR.to_vec()),
            value: Bytes(crate::content::content(self.random.bits(), length as usize)),
            how: XattrHow::Create,
        }
    }

    fn acl(&mut self) -> Vec<u8> {
        let mut permissions = || self.random.below(8) as u16;
        let mut entries = vec![
            (Tag::UserObject, permissions()),
            (Tag::User(1000), permissions()),
            (Tag::User(70_000), permissions()),
            (Tag::GroupObject, permissions()),
            (Tag::Group(5), permissions()),
            (Tag::Mask, permissions()),
            (Tag::Other, permissions()),
        ];
        match self.random.below(8) {
            0 => entries.retain(|(tag, _)| *tag != Tag::Mask),
            1 | 2 => entries
                .retain(|(tag, _)| matches!(tag, Tag::UserObject | Tag::GroupObject | Tag::Other)),
            3 => entries.swap(0, 3),
            // Users may come in any order, and twice.
            4 => entries.swap(1, 2),
            5 => entries[2] = entries[1],
            _ => {}
        }
        let entries = entries
            .into_iter()
            .map(|(tag, permissions)| Entry { tag, permissions });
        crate::oracle::encode_acl(entries)
    }

    fn set_acl(&mut self) -> Op {
        let (path, name) = if self.random.one_in(2) {
            (self.any(), &b"system.posix_acl_access"[..])
        } else {
            let path = self.existing(|kind| matches!(kind, FileKind::Directory));
            (path, &b"system.posix_acl_default"[..])
        };
        Op::SetXattr {
            path,
            name: Bytes(name.to_vec()),
            value: Bytes(self.acl()),
            how: XattrHow::Any,
        }
    }

    fn remove_xattr(&mut self) -> Op {
        let name = match self.random.below(8) {
            0 => b"system.posix_acl_access".to_vec(),
            1 => b"system.posix_acl_default".to_vec(),
            2 => BIG_XATTR.to_vec(),
            _ => self.random.pick(&self.xattr_names).clone(),
        };
        Op::RemoveXattr {
            path: self.any(),
            name: Bytes(name),
        }
    }

    fn chmod(&mut self) -> Op {
        Op::Chmod {
            path: self.any(),
            mode: self.mode(),
        }
    }

    fn chown(&mut self) -> Op {
        let mut id = || (!self.random.one_in(3)).then(|| self.random.below(5) as u32 * 1000);
        let (uid, gid) = (id(), id());
        Op::Chown {
            path: self.any(),
            uid,
            gid,
        }
    }

    fn set_modified(&mut self) -> Op {
        let seconds = *self.random.pick(&[0, 1, 1_700_000_000, -5, 1 << 33]);
        Op::SetModified {
            path: self.any(),
            time: Time {
                seconds: seconds + self.random.below(1000) as i64,
                nanoseconds: self.random.below(1_000_000_000) as u32,
            },
        }
    }

    fn mknod(&mut self) -> Op {
        // Numbers that no driver has, so that opening one fails.
        let minor = self.random.below(300) as u32;
        let kind = match self.random.below(5) {
            0 => NodeKind::Regular,
            1 => NodeKind::Fifo,
            2 => NodeKind::Socket,
            3 => NodeKind::CharDevice(60, minor),
            _ => NodeKind::BlockDevice(61, minor + (1 << 10)),
        };
        Op::Mknod {
            path: self.place(),
            kind,
            mode: self.mode(),
        }
    }

    fn link_tmpfile(&mut self) -> Op {
        Op::LinkTmpfile {
            directory: self.existing(|kind| matches!(kind, FileKind::Directory)),
            path: self.place(),
            mode: self.mode(),
            length: self.length(),
            seed: self.random.bits(),
        }
    }

    fn sync(&mut self) -> Op {
        match self.random.below(40) {
            0..=2 => Op::Sync,
            3 => Op::Remount,
            _ => Op::Fsync { path: self.any() },
        }
    }

    fn choose(&mut self) -> Op {
        if self.frozen.is_some() && self.random.one_in(18) {
            return self.subvolume_operation();
        }
        if self.paths.len() > CROWDED && self.random.one_in(2) {
            return if self.random.one_in(3) {
                self.rmdir()
            } else {
                self.unlink()
            };
        }
        let total = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.below(total);
        for (make, weight) in WEIGHTS {
            if at < weight {
                return make(self);
            }
            at -= weight;
        }
        Op::Sync
    }
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let op = self.choose();
        if self.model.apply(&op).is_ok() {
            self.paths = self.model.paths();
            self.part_frozen();
        }
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Every kind of operation must often succeed, and (except Sync) fail too.
    #[test]
    fn sequences_do_things() {
        let mut oracle = Oracle::new();
        let mut kinds: BTreeMap<String, (u64, BTreeMap<String, u64>)> = BTreeMap::new();
        let mut tree_size = 0;
        for op in Generator::new(7).take(20_000) {
            let text = format!("{op:?}");
            let kind = text.split([' ', '{']).next().unwrap().to_owned();
            let (good, bad) = kinds.entry(kind).or_default();
            match oracle.apply(&op) {
                Ok(()) => *good += 1,
                Err(error) => *bad.entry(format!("{error:?}")).or_default() += 1,
            }
            tree_size = tree_size.max(oracle.paths().len());
        }
        println!("{tree_size} names at most; {kinds:#?}");
        assert!(tree_size > CROWDED);
        for (kind, (good, bad)) in kinds {
            let bad: u64 = bad.values().sum();
            assert!(
                good > 5 && (good > bad / 3),
                "{kind}: {good} succeed, {bad} fail"
            );
        }
    }

    #[test]
    fn a_seed_is_a_sequence() {
        let first: Vec<Op> = Generator::new(3).take(500).collect();
        let second: Vec<Op> = Generator::new(3).take(500).collect();
        assert_eq!(first, second);
    }
}
