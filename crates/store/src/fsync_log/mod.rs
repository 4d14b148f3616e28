//! The fsync log of the running generation, in memory.
//!
//! Owns the log's trees and blocks, the batches in which they are written, what
//! files changed since the last commit (`changed_inodes`), the data extents that
//! the log on the device names, and the callers of fsync who share a batch
//! (`group`). `trees` changes the log of a subvolume, `batch` writes it out,
//! and `replay` serves whoever brings a log of an earlier run into the files.
//!
//! Does not own the space of its blocks and extents, which the allocation gives
//! out and gets back, nor the superblock that names the log. The file layer
//! knows what the items mean.
//!
//! Invariants: a block or data extent that the durable log names is given out
//! again only when a newer log without it, or a commit, is durable. Nothing of
//! a log lies in a block group that the last commit does not have. A log that
//! is given up is not written any more, and each fsync is a commit then.

pub mod batch;
mod changed_inodes;
pub mod group;
mod replay;
pub mod trees;

use crate::commit::DeviceItems;
use crate::space::ranges::RangeSet;
use butterfs_format::superblock::Superblock;
use butterfs_format::{Generation, InodeId, InodeNumber, Logical, NodeRef, TreeId};
use butterfs_tree::Node;
use changed_inodes::ChangedInodes;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// When a logged change is durable: with the commit of its generation, or with
/// the log batch that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTicket {
    pub(crate) generation: Generation,
    pub(crate) batch: u64,
}

/// With more renamed inodes than this, nobody looks which they are.
pub(crate) const RENAMED_MAX: usize = 64;

/// How many times a commit's cost a log may write because it has grown.
const LASTING: usize = 8;
/// The moving average of a batch's cost counts in parts of a node.
const OVERHEAD_UNIT: usize = 1024;
/// A batch of the log that is complete in memory.
#[must_use = "a prepared batch must be published"]
#[derive(Debug)]
pub(crate) struct PreparedLog {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) superblock: Superblock,
    pub(crate) devices: DeviceItems,
    replaced: Vec<Logical>,
    held: Vec<Range<u64>>,
    /// Batches before this one are durable then.
    batch: u64,
}

/// Whether a log of an earlier run waits for its replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It does.
    Yes,
    /// There is none.
    No,
}

/// The log of the running generation.
#[derive(Debug)]
pub struct FsyncLog {
    /// Root of each subvolume's log tree. [`TreeId::LOG`] stands for the tree
    /// that holds the root items of these.
    roots: BTreeMap<TreeId, NodeRef>,
    /// How many nodes each of them has.
    nodes: FxHashMap<TreeId, u64>,
    /// Trees whose root items are out of date.
    moved: FxHashSet<TreeId>,
    /// Nodes changed since the last batch.
    dirty: FxHashMap<Logical, Arc<Node>>,
    /// The others.
    clean: FxHashMap<Logical, Arc<Node>>,
    /// Blocks that the durable log has and the next one does not.
    replaced: Vec<Logical>,
    /// Blocks that no log has.
    spare: Vec<Logical>,
    /// How many items name each data extent.
    named: FxHashMap<Logical, u32>,
    /// Data extents that only the durable log names.
    unnamed: FxHashSet<Logical>,
    /// The same, of the batch that is being written.
    unnamed_writing: FxHashSet<Logical>,
    /// Data extents without references that no item names any more. Their space
    /// is free after the next log.
    held: Vec<Range<u64>>,
    /// Data extents without references that items still name, with their ends.
    held_named: FxHashMap<Logical, u64>,
    /// Data whose checksums the log of a subvolume has.
    sums: FxHashMap<TreeId, RangeSet>,
    /// Inodes that changed.
    changed: ChangedInodes,
    /// Names that the log gives to inodes, ...
    names: FxHashMap<(InodeId, Vec<u8>), InodeNumber>,
    /// ... their indexes in their directories, ...
    indexes: FxHashMap<(InodeId, u64), InodeNumber>,
    /// ... and both by inode. Inodes that were logged without a name are here
    /// too.
    given: FxHashMap<InodeId, Vec<GivenName>>,
    /// Entries of directories in the last commit that a replay takes away: the
    /// directory, and the index in it.
    gone: FxHashSet<(InodeId, u64)>,
    /// Inodes in the log whose names changed since they were logged.
    stale: Mutex<FxHashSet<InodeId>>,
    /// Inodes of which the log knows nothing and that got another name or lost
    /// one, since the last commit or since the log said so. No more than
    /// [`RENAMED_MAX`] are counted.
    renamed: Mutex<FxHashSet<InodeId>>,
    /// Nodes that batches have written because the log has grown.
    overhead: usize,
    /// The same of one batch: a moving average, in parts of a node.
    recent_overhead: usize,
    /// Batches since the last commit.
    batches: usize,
    /// Number of the batch that is being gathered.
    batch: u64,
    /// A log cannot express something that happened, or an edit failed half
    /// way. The log must not be written.
    broken: bool,
    /// Space of the log of the generation that is being published.
    ended: LogSpace,
    /// A log of an earlier run waits for its replay.
    waits: Waiting,
}

impl FsyncLog {
    /// An empty log. `waits` says whether the device has a log of an earlier
    /// run.
    pub(crate) fn new(waits: Waiting) -> Self {
        Self {
            roots: Default::default(),
            nodes: Default::default(),
            moved: Default::default(),
            dirty: Default::default(),
            clean: Default::default(),
            replaced: Default::default(),
            spare: Default::default(),
            named: Default::default(),
            unnamed: Default::default(),
            unnamed_writing: Default::default(),
            held: Default::default(),
            held_named: Default::default(),
            sums: Default::default(),
            changed: Default::default(),
            names: Default::default(),
            indexes: Default::default(),
            given: Default::default(),
            gone: Default::default(),
            stale: Default::default(),
            renamed: Default::default(),
            overhead: Default::default(),
            recent_overhead: Default::default(),
            batches: Default::default(),
            batch: Default::default(),
            broken: Default::default(),
            ended: Default::default(),
            waits,
        }
    }

    /// Whether a log of an earlier run waits for its replay.
    pub(crate) fn waits(&self) -> bool {
        self.waits == Waiting::Yes
    }

    /// Notes that no log of an earlier run waits any more.
    pub(crate) const fn stop_waiting(&mut self) {
        self.waits = Waiting::No;
    }

    /// Notes that an inode's item changed.
    pub fn note_inode(&self, id: InodeId) {
        self.changed.note(id, None);
    }

    /// Notes that an inode's file extents changed in `range`.
    pub fn note_extents(&self, id: InodeId, range: Range<u64>) {
        self.changed.note(id, Some(range));
    }

    /// Notes that a new inode gets its first name.
    pub fn note_first_name(&self, id: InodeId) {
        self.changed.note_names(id);
    }

    /// Notes that an inode's names changed.
    pub fn note_names(&self, id: InodeId) {
        self.changed.note_names(id);
        if self.given.contains_key(&id) {
            self.stale.lock().insert(id);
            return;
        }
        let mut renamed = self.renamed.lock();
        if renamed.len() <= RENAMED_MAX {
            renamed.insert(id);
        }
    }

    /// Inodes whose names changed and of which the log says nothing; `None` if
    /// there are many.
    #[must_use]
    pub fn renamed(&self) -> Option<Vec<InodeId>> {
        let renamed = self.renamed.lock();
        (renamed.len() <= RENAMED_MAX).then(|| renamed.iter().copied().collect())
    }

    /// Notes that the log says what happened to the names of all inodes.
    pub fn note_names_said(&mut self) {
        self.renamed.get_mut().clear();
    }

    /// Notes that the log says what happened to the names of this inode.
    pub fn note_names_said_of(&mut self, id: InodeId) {
        let renamed = self.renamed.get_mut();
        // If there are more, not all of them are here.
        if renamed.len() <= RENAMED_MAX {
            renamed.remove(&id);
        }
    }

    /// Inodes whose names changed since they were logged. The caller brings the
    /// log up to date.
    #[must_use]
    pub fn take_stale_names(&mut self) -> Vec<InodeId> {
        let mut stale: Vec<InodeId> = self.stale.get_mut().drain().collect();
        stale.sort_unstable();
        stale
    }

    /// Whether an inode's names changed since the last commit.
    #[must_use]
    pub fn names_changed(&self, id: InodeId) -> bool {
        self.changed.has_new_names(id)
    }

    /// Names that the log gives to an inode.
    #[must_use]
    pub fn names_of(&self, id: InodeId) -> &[GivenName] {
        self.given.get(&id).map_or(&[], |given| given)
    }

    /// Whether the log gives a name in `dir` to some inode.
    #[must_use]
    pub fn has_name(&self, dir: InodeId, name: Vec<u8>) -> bool {
        self.names.contains_key(&(dir, name))
    }

    /// Whether a replay takes away the entry that the last commit has at `index`
    /// in `dir`.
    #[must_use]
    pub fn says_gone(&self, dir: InodeId, index: u64) -> bool {
        self.gone.contains(&(dir, index))
    }

    /// Whether the log has an inode.
    #[must_use]
    pub fn has_inode(&self, id: InodeId) -> bool {
        self.given.contains_key(&id)
    }

    /// What changed of an inode since it was logged or committed, as ranges of
    /// file extents; `None` if nothing did.
    #[must_use]
    pub fn changes_of(&self, id: InodeId) -> Option<Vec<Range<u64>>> {
        self.changed.since_log(id)
    }

    /// Notes that the log has all of an inode.
    pub fn note_logged(&mut self, id: InodeId) {
        self.changed.note_logged(id);
    }

    /// Gives up the log, because it cannot express what happened or does not
    /// agree with the files. Until the next commit, each fsync needs a commit.
    pub fn give_up(&mut self) {
        self.broken = true;
    }

    /// Nodes that the log has in memory.
    pub(crate) fn nodes_in_memory(&self) -> usize {
        self.dirty.len() + self.clean.len()
    }

    /// Whether the log cannot be written any more.
    pub(crate) const fn is_given_up(&self) -> bool {
        self.broken
    }

    /// Whether logging on costs more than a commit that writes `commit` nodes.
    /// The more a log holds, the more nodes each batch writes, and a commit
    /// empties it. A commit comes when two things are true: the nodes that were
    /// written because the log has grown cost more than the commit, and a batch
    /// costs more now than it did on average, the commit included. While the
    /// cost of a batch stays the same, a commit would save little; it comes when
    /// the first of the two is true [`LASTING`] times over.
    pub(crate) const fn has_outgrown(&self, commit: usize) -> bool {
        let is_growing =
            self.recent_overhead * self.batches > (self.overhead + commit) * OVERHEAD_UNIT;
        self.overhead > commit && (is_growing || self.overhead > LASTING * commit)
    }

    /// Notes that not all devices have the batch. The next commit makes its
    /// content durable, and callers who wait for the batch are told only then.
    /// Until then nothing of this log or of the previous one becomes free.
    pub(crate) fn unpublished(&mut self, prepared: PreparedLog) {
        self.broken = true;
        self.batch = self.batch.saturating_sub(1);
        self.replaced.extend(prepared.replaced);
        self.held.extend(prepared.held);
    }

    /// Ends the generation's log, because its commit replaces it. Its space is
    /// free when the commit is durable ([`FsyncLog::take_ended`]).
    pub(crate) fn end(&mut self) {
        let next = Self {
            batch: self.batch + 1,
            ..Self::new(self.waits)
        };
        let log = std::mem::replace(self, next);
        let mut blocks = log.replaced;
        blocks.extend(log.spare);
        blocks.extend(log.dirty.into_keys());
        blocks.extend(log.clean.into_keys());
        let mut held = log.held;
        let named = log.held_named.into_iter();
        held.extend(named.map(|(start, end)| start.get()..end));
        self.ended = LogSpace { blocks, held };
    }

    /// The space of the log that ended with the last commit.
    pub(crate) fn take_ended(&mut self) -> LogSpace {
        std::mem::take(&mut self.ended)
    }
}

/// A name that the log gives to an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenName {
    /// Directory.
    pub dir: InodeId,
    /// Index in it.
    pub index: u64,
    /// Name in it.
    pub name: Vec<u8>,
}

/// Space that a log had, free once the commit after it is durable.
#[derive(Debug, Default)]
pub(crate) struct LogSpace {
    pub(crate) blocks: Vec<Logical>,
    pub(crate) held: Vec<Range<u64>>,
}
