//! Names of a subvolume that is looked at again: first only which groups of
//! inodes do not agree, then the names of those.

use super::names::{Name, Side};
use crate::context::Context;
use butterfs_format::InodeNumber;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Groups of inodes.
pub(crate) const ROWS: usize = 1 << 12;
const ROW_MASK: u64 = 0xfff;

/// A name that was collected for a closer look.
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

/// Sums over groups of inodes, and the names of the groups that are wanted.
pub(crate) struct NameSink {
    wanted: Box<[bool]>,
    pub(crate) sums: Box<[AtomicU64]>,
    max: usize,
    pub(crate) found: Mutex<Vec<OwnedName>>,
    /// Inodes of wanted groups with their type numbers.
    pub(crate) inodes: Mutex<Vec<(u64, u8)>>,
}

fn row(context: &Context<'_>, number: u64) -> usize {
    usize::try_from(context.hash.words([14, number]) & ROW_MASK).unwrap_or(0)
}

impl NameSink {
    pub(crate) fn new(wanted: Box<[bool]>, max: usize) -> Self {
        Self {
            wanted,
            sums: (0..ROWS).map(|_| AtomicU64::new(0)).collect(),
            max,
            found: Mutex::default(),
            inodes: Mutex::default(),
        }
    }

    fn add(&self, row: usize, weight: u64) {
        if let Some(sum) = self.sums.get(row) {
            sum.fetch_add(weight, Ordering::Relaxed);
        }
    }

    fn wants(&self, row: usize) -> bool {
        self.wanted.get(row) == Some(&true)
    }

    pub(crate) fn inode(&self, context: &Context<'_>, number: u64, kind: u8, nlink: u32) {
        let row = row(context, number);
        if number != InodeNumber::ROOT.get() {
            let each = context.hash.words([13, number, u64::from(kind)]);
            self.add(row, each.wrapping_mul(u64::from(nlink)).wrapping_neg());
        }
        if self.wants(row) {
            self.inodes.lock().push((number, kind));
        }
    }

    pub(crate) fn name(&self, context: &Context<'_>, name: &Name<'_>) {
        let row = row(context, name.target);
        self.add(row, name.weight(context.hash));
        if self.wants(row) {
            let mut found = self.found.lock();
            if found.len() < self.max {
                found.push(OwnedName {
                    side: name.side,
                    directory: name.directory,
                    name: name.name.into(),
                    index: name.index,
                    target: name.target,
                    is_subvolume: name.is_subvolume,
                    kind: name.kind,
                });
            }
        }
    }
}
