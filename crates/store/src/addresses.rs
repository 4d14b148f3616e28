//! Operations that looked up where data lie and still use these addresses.
//!
//! Reading a file, sharing its extents and writing over them take several steps: a
//! look at the tree, then work without the engine. The inode's lock, or its right
//! to flush, keeps others from changing that part of the file meanwhile. But
//! relocation gives the file's data other addresses and locks no inode. So an
//! operation that works by addresses holds them here, and relocation names new
//! ones only when nobody holds any.
//!
//! Lock order: inodes, then these addresses, then the commit lock.

use crate::Store;
use crossbeam_utils::sync::{ShardedLockReadGuard, ShardedLockWriteGuard};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// While this lives, addresses of data stay as they are, for a reader.
#[derive(Debug)]
pub struct ReadHold<'s> {
    _held: ShardedLockReadGuard<'s, ()>,
}

/// Addresses of data stay as they are.
#[derive(Debug)]
pub struct AddressHold<'s> {
    _held: RwLockReadGuard<'s, ()>,
}

/// Nobody works by addresses of data.
#[derive(Debug)]
pub(crate) struct NobodyHolds<'s> {
    _others: RwLockWriteGuard<'s, ()>,
    _readers: ShardedLockWriteGuard<'s, ()>,
}

impl Store {
    /// Keeps data where they are while somebody reads. The thread must not hold
    /// them already.
    pub fn hold_to_read(&self) -> ReadHold<'_> {
        let held = self.addresses.readers.read();
        ReadHold {
            _held: held.unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Keeps data where they are while somebody works with their addresses; the
    /// thread may have done so already.
    pub fn hold_addresses(&self) -> AddressHold<'_> {
        AddressHold {
            _held: self.addresses.others.read_recursive(),
        }
    }

    /// How often data got new addresses. After each time, an address that
    /// somebody remembers may hold something else.
    pub fn data_moves(&self) -> u64 {
        self.addresses.moves.load(Ordering::Acquire)
    }

    /// Waits until nobody holds addresses; `None` when that takes longer than
    /// `patience`.
    pub(crate) fn wait_for_holders(&self, patience: Duration) -> Option<NobodyHolds<'_>> {
        let others = self.addresses.others.try_write_for(patience)?;
        let readers = self.addresses.readers.write();
        Some(NobodyHolds {
            _others: others,
            _readers: readers.unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Notes that data get new addresses.
    pub(crate) fn note_data_move(&self) {
        self.addresses.moves.fetch_add(1, Ordering::AcqRel);
    }
}
