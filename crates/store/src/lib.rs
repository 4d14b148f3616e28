//! An open volume: trees, space and commits.
//!
//! Owns opening (superblock, chunks, trees), the running generation, the
//! allocation of space, references to extents, and the order of writes at a
//! commit. Knows nothing of files.
//!
//! Invariants: all nodes of a generation are durable before a superblock names
//! it. Space that a generation frees is not given out before the generation's
//! superblock is durable. After a failed commit nothing more is written.

mod acknowledged;
mod add_device;
mod address_locks;
mod addresses;
mod balance_item;
mod cancelled_balance;
mod commit;
mod drop_tree;
mod engine;
mod error;
mod exclusive;
mod exclusive_kind;
mod fsync_log;
#[cfg(feature = "inject")]
pub mod inject;
#[cfg(not(feature = "inject"))]
mod inject;
mod item_fault;
mod membership_fault;
mod memory_shares;
mod nodes;
mod open;
mod parallel;
mod quota;
mod refs;
mod relocate;
mod remove_device;
mod replace;
mod rescue;
mod resize;
mod scrub;
mod space;
mod store;
mod subvolume;
mod time;
mod transaction;
mod trim;
mod tune;
mod tune_fault;

pub use acknowledged::Acknowledged;
pub use addresses::{AddressHold, ReadHold};
pub use balance_item::NewProfiles;
pub use butterfs_device::Access;
pub use butterfs_volume::{MemberState, Profile};
pub use commit::devices::DeviceFacts;
pub use commit::rounds::CommitRounds;
pub use commit::view::{Steady, View};
pub use drop_tree::DropProgress;
pub use engine::Engine;
pub use error::{StoreError, bad_item, corrupt_item};
pub use exclusive::Exclusive;
pub use exclusive_kind::ExclusiveKind;
pub use fsync_log::FsyncLog;
pub use fsync_log::GivenName;
pub use fsync_log::LogTicket;
pub use fsync_log::group::Arrival;
pub use fsync_log::trees::LogEditor;
pub use item_fault::ItemFault;
pub use membership_fault::MembershipFault;
pub use memory_shares::MemoryShares;
pub use nodes::node_loading::Tries;
pub use nodes::trees::TreeState;
pub use open::member_fault::MemberFault;
pub use open::older_copy::OlderCopy;
pub use open::options::{
    Barriers, Degraded, Discard, FreeSpace, LogPolicy, OnReplacement, OnShortDevice, OpenOptions,
    Roots, States,
};
pub use open::space_fault::SpaceFault;
pub use open::superblocks::{FoundSuperblock, read_superblock};
pub use quota::fault::QuotaError;
pub use quota::groups::QuotaGroup;
pub use quota::groups::Quotas;
pub use quota::{
    Assigned, Fits, GroupNumbers, LimitChange, QuotaItems, QuotaMode, QuotaScan, QuotaState,
    SharingProbe,
};
pub use refs::RefLedger;
pub use refs::checksums::SectorChecksums;
pub use refs::data::{DataExtent, DataHolder};
pub use refs::lost_refs::DataOwner;
pub use relocate::{RelocateEnd, Relocated};
pub use remove_device::RemovedDevice;
pub use replace::{GroupCopied, Replacement};
pub use rescue::{OnFault, Rescue};
pub use resize::DeviceEnd;
pub use scrub::{
    HolderAt, Repair, STEP_BYTES_MAX as SCRUB_STEP_MAX, ScrubCounts, ScrubFault, ScrubOutcome,
    ScrubStep, ScrubStretch, ScrubbedKind,
};
pub use space::SpaceMap;
pub use space::balance_estimate::BalanceEstimate;
pub use space::block_group::BlockGroup;
pub use space::chunks::excluded as superblock_ranges;
pub use space::kind::SpaceKind;
pub use space::reserve::{KindStanding, Promisable, Purpose, SpaceStanding};
pub use store::Store;
pub use subvolume::{KeptTree, TreeAccess};
pub use time::now;
pub use transaction::engine_lock::{LockWaits, Reading};
pub use transaction::{FailOnPanic, Transaction};
pub use trim::Trim;
pub use tune::{NodeHeaders, PassEnd};
pub use tune_fault::TuneFault;
