//! What a send knows while it is under way.

use super::clones::CloneSources;
use super::error::SendError;
use super::options::SendOptions;
use super::sink::CommandSink;
use super::snapshot::{Elsewhere, Nodes, Snapshot};
use crate::Filesystem;
use crate::names::S_IFMT;
use butterfs_format::InodeNumber;
use butterfs_format::item::inode::InodeItem;
use butterfs_format::send_stream::Command;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// What is known of names while they change. Its size grows with the number of
/// inodes that moved or are gone, not with the number of new or unchanged ones.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Inodes that keep none of their old names.
    pub moved: FxHashMap<InodeNumber, Elsewhere>,
    /// Inodes that were cleared.
    pub cleared: FxHashSet<InodeNumber>,
    /// Inodes in directories whose number now belongs to another directory.
    /// Their own items may be unchanged.
    pub forced: BTreeSet<InodeNumber>,
    /// Directories that are gone.
    pub gone: Vec<InodeNumber>,
    /// Directories that were made earlier than their order demands.
    pub made: FxHashSet<InodeNumber>,
}

/// A send under way.
pub(super) struct Sender<'a, 's> {
    pub files: &'a Filesystem,
    pub nodes: &'s Nodes<'s>,
    pub new: &'s Snapshot<'s>,
    pub old: Option<&'s Snapshot<'s>>,
    pub clones: CloneSources<'s>,
    pub options: &'a SendOptions,
    pub out: &'a mut dyn CommandSink,
    pub names: Names,
    /// Inodes before this one are in their final state.
    pub current: InodeNumber,
    /// Directories that get their times at the end.
    pub late: FxHashSet<InodeNumber>,
    /// Those of them from which inheritable attributes were removed for now.
    pub bare: FxHashSet<InodeNumber>,
}

/// An inode of the new snapshot, and its old state.
pub(super) struct Subject {
    pub number: InodeNumber,
    pub path: Vec<u8>,
    pub item: InodeItem,
    pub old: Option<InodeItem>,
}

impl Subject {
    pub const fn kind(&self) -> u32 {
        self.item.mode & S_IFMT
    }
}

impl<'a, 's> Sender<'a, 's> {
    /// Nothing was sent yet.
    pub fn new(
        files: &'a Filesystem,
        nodes: &'s Nodes<'s>,
        (old, new): (Option<&'s Snapshot<'s>>, &'s Snapshot<'s>),
        clones: CloneSources<'s>,
        options: &'a SendOptions,
        out: &'a mut dyn CommandSink,
    ) -> Self {
        Self {
            files,
            nodes,
            new,
            old,
            clones,
            options,
            out,
            names: Names::default(),
            current: InodeNumber(0),
            late: FxHashSet::default(),
            bare: FxHashSet::default(),
        }
    }

    /// Sends a command.
    pub fn put(&mut self, command: &Command<'_>) -> Result<(), SendError> {
        self.out.put(command)
    }
}
