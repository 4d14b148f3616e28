//! Reading what is left of a damaged volume (`rescue=`).
//!
//! Owns which damage is passed over. It is only for reading: nothing here makes
//! anything good, and a volume that is opened so is never written.

use crate::error::StoreError;
use butterfs_format::Logical;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// What is done about damage of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// It is an error.
    #[default]
    Refuse,
    /// It is passed over, with a line in the log.
    PassOver,
}

/// Which damage is passed over when a volume is opened for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// Damage of the trees that reading files does not need, and of the
    /// checksum tree. Data whose checksums are lost are read unverified
    /// (`ignorebadroots`).
    pub roots: OnFault,
    /// Damage of data whose checksum no copy matches (`ignoredatacsums`).
    pub data: OnFault,
    /// Damage of nodes whose checksum no copy matches (`ignoremetacsums`).
    pub nodes: OnFault,
    /// Superblock flags that say that a change is half done, or that are not
    /// known (`ignoresuperflags`).
    pub flags: OnFault,
}

impl Rescue {
    /// Everything.
    pub const ALL: Self = Self {
        roots: OnFault::PassOver,
        data: OnFault::PassOver,
        nodes: OnFault::PassOver,
        flags: OnFault::PassOver,
    };

    /// Passes over damage of trees that reading files does not need.
    ///
    /// # Errors
    /// That of `result`, unless it is damage that is to be passed over. If it is
    /// damage, the error says how it can be passed over.
    pub(crate) fn pass_over(self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        match result {
            Err(error) if self.roots == OnFault::PassOver && error.is_damage() => {
                tracing::warn!(%error, "damage is passed over");
                Ok(())
            }
            Err(error @ StoreError::PassableDamage(_)) => Err(error),
            Err(error) if error.is_damage() => Err(StoreError::PassableDamage(Box::new(error))),
            other => other,
        }
    }

    /// Whether data are read that have no checksum and should have one.
    #[must_use]
    pub fn reads_unverified(self) -> bool {
        self.roots == OnFault::PassOver || self.data == OnFault::PassOver
    }
}

/// Opens the volume without something optional that is damaged, which no
/// file needs. `follows` says in the log what that means.
///
/// # Errors
/// That of `result`, unless it is damage.
pub(crate) fn go_without(result: Result<(), StoreError>, follows: &str) -> Result<(), StoreError> {
    match result {
        Err(error) if error.is_damage() => {
            tracing::warn!(%error, "{follows}");
            Ok(())
        }
        other => other,
    }
}

/// The most nodes that are told apart; more are all new.
const NODES_MAX: usize = 64 << 10;

/// Nodes that were read though their checksum is wrong, each once.
#[derive(Debug, Default)]
pub(crate) struct NodesPassedOver(Mutex<FxHashSet<Logical>>);

impl NodesPassedOver {
    /// Adds a node; false if it was there.
    pub(crate) fn add(&self, logical: Logical) -> bool {
        let mut nodes = self.0.lock();
        match nodes.len() < NODES_MAX {
            true => nodes.insert(logical),
            false => !nodes.contains(&logical),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
