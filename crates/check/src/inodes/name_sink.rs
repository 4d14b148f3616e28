//! Collects names of a subvolume that is walked again. The first walk only finds
//! which groups of inodes do not agree, the second collects the names of those.

use super::names::{Name, Side};
use crate::budget::{Taken, bytes_of};
use crate::context::Context;
use butterfs_format::InodeNumber;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of groups of inodes. The hash of an inode's number selects its group.
pub(crate) const ROWS: usize = 1 << 12;
const ROW_MASK: u64 = 0xfff;

/// A name that was collected. See [`Name`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedName {
    pub(crate) side: Side,
    pub(crate) directory: u64,
    pub(crate) name: Box<[u8]>,
    pub(crate) index: u64,
    pub(crate) target: u64,
    pub(crate) is_subvolume: bool,
    pub(crate) kind: u8,
}

/// Sums over groups of inodes, and the names and inodes of the wanted groups.
pub(crate) struct NameSink {
    wanted: Box<[bool]>,
    /// Only groups below this one are collected.
    below: AtomicUsize,
    taken: Taken,
    pub(crate) sums: Box<[AtomicU64]>,
    found: Mutex<Collected>,
}

/// Names and inodes of the wanted groups.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) names: Vec<OwnedName>,
    /// Inodes with their type numbers.
    pub(crate) inodes: Vec<(u64, u8)>,
    /// True if not all of them fit in memory. Whole groups were left out.
    pub(crate) overflowed: bool,
}

/// Bytes of memory for a name, without its letters, and for an inode. Both are
/// in lists that grow and in maps that are made from these.
const NAME_BYTES: u64 = 320;
const INODE_BYTES: u64 = 64;

impl Collected {
    /// Bytes of memory that it takes.
    fn bytes(&self) -> u64 {
        let each = |name: &OwnedName| NAME_BYTES.saturating_add(bytes_of(name.name.len(), 1));
        let names = self.names.iter().map(each);
        let inodes = bytes_of(self.inodes.len(), INODE_BYTES);
        names.fold(inodes, u64::saturating_add)
    }
}

fn row(context: &Context<'_>, number: u64) -> usize {
    usize::try_from(context.hash.words([14, number]) & ROW_MASK).unwrap_or(0)
}

impl NameSink {
    pub(crate) fn new(wanted: Box<[bool]>, taken: Taken) -> Self {
        Self {
            wanted,
            below: AtomicUsize::new(ROWS),
            taken,
            sums: (0..ROWS).map(|_| AtomicU64::new(0)).collect(),
            found: Mutex::default(),
        }
    }

    /// Returns what was collected.
    pub(crate) fn into_collected(self) -> Collected {
        self.found.into_inner()
    }

    fn add(&self, row: usize, weight: u64) {
        if let Some(sum) = self.sums.get(row) {
            sum.fetch_add(weight, Ordering::Relaxed);
        }
    }

    /// Calls `add` if the group is wanted and `bytes` of memory are left. If
    /// not, gives up half of the groups and tries again. All that was collected
    /// of the other groups is kept.
    fn collect(
        &self,
        context: &Context<'_>,
        row: usize,
        bytes: u64,
        add: impl FnOnce(&mut Collected),
    ) {
        if self.wanted.get(row) != Some(&true) {
            return;
        }
        let mut found = self.found.lock();
        while row < self.below.load(Ordering::Relaxed) {
            if self.taken.try_add(bytes) {
                return add(&mut found);
            }
            let half = self.below.load(Ordering::Relaxed) / 2;
            self.below.store(half, Ordering::Relaxed);
            found.overflowed = true;
            let before = found.bytes();
            let stays = |number| self::row(context, number) < half;
            found.names.retain(|name| stays(name.target));
            found.inodes.retain(|(number, _)| stays(*number));
            found.names.shrink_to_fit();
            found.inodes.shrink_to_fit();
            self.taken.give(before.saturating_sub(found.bytes()));
        }
    }

    pub(crate) fn inode(&self, context: &Context<'_>, number: u64, kind: u8, nlink: u32) {
        let row = row(context, number);
        if number != InodeNumber::ROOT.get() {
            let each = context.hash.words([13, number, u64::from(kind)]);
            self.add(row, each.wrapping_mul(u64::from(nlink)).wrapping_neg());
        }
        self.collect(context, row, INODE_BYTES, |found| {
            found.inodes.push((number, kind));
        });
    }

    pub(crate) fn name(&self, context: &Context<'_>, name: &Name<'_>) {
        let row = row(context, name.target);
        self.add(row, name.weight(context.hash));
        let bytes = NAME_BYTES.saturating_add(bytes_of(name.name.len(), 1));
        self.collect(context, row, bytes, |found| {
            found.names.push(OwnedName {
                side: name.side,
                directory: name.directory,
                name: name.name.into(),
                index: name.index,
                target: name.target,
                is_subvolume: name.is_subvolume,
                kind: name.kind,
            });
        });
    }
}
