//! Tuning a volume: features, UUIDs, checksums, and the trees that it keeps.
//!
//! Owns the order of the steps. If one commit can make a change, it does. Other
//! changes first mark the volume, so that it is not taken for a usable one, and
//! remove the mark last. If such a change is interrupted, it can be resumed:
//!
//! | Mark | Meaning |
//! |---|---|
//! | `CHANGING_FSID_V2` | the superblocks of several devices may differ in the UUID |
//! | `CHANGING_FSID` | the UUID in the superblock is the new one; nodes have the old or the new |
//! | `CHANGING_META_CSUM` | checksums of data and superblock are new; nodes have old or new ones |

use butterfs_device::{Access, BlockDevice};
use butterfs_format::features::Incompat;
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{ChecksumType, TreeId, UuidBytes};
use butterfs_store::{NodeHeaders, OpenOptions, PassEnd, States, Store, StoreError, TuneFault};
use std::ops::ControlFlow;
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;

/// One change of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets features that need only their bit in the superblock: extended
    /// references, skinny metadata, no-holes.
    Features(Incompat),
    /// Makes the volume a seed, which is never written, or not.
    Seeding(Seeding),
    /// Changes the UUID everywhere, to a random one if `None`.
    Fsid(Option<UuidBytes>),
    /// Changes the UUID in the superblock, to a random one if `None`. Nodes keep
    /// theirs.
    MetadataUuid(Option<UuidBytes>),
    /// Moves block group items to their own tree.
    ToBlockGroupTree,
    /// Moves block group items to the extent tree.
    FromBlockGroupTree,
    /// Makes a free-space tree, in place of free-space caches (v1) or nothing.
    ToFreeSpaceTree,
    /// Changes the checksum algorithm.
    Checksum(ChecksumType),
    /// Removes what simple quotas wrote into extents, and the feature. Quotas must
    /// be off.
    RemoveSimpleQuota,
}

/// Whether a volume is a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeding {
    /// It is a seed.
    On,
    /// It is no seed.
    Off,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The change is made and durable.
    Changed,
    /// There was nothing to change.
    Already,
    /// The caller stopped it in the middle. The volume is not usable until the
    /// same change is made again.
    Halfway,
}

/// A stage of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reads all nodes, and changes nothing.
    Verifying,
    /// Reads all data and computes checksums, and changes nothing.
    ReadingData,
    /// Rewrites nodes.
    Rewriting,
    /// Changes extents.
    Extents,
}

/// The progress of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Bytes that are done; for [`Stage::Extents`], extents.
    pub done: u64,
    /// About how many there are; never less than `done`.
    pub total: u64,
}

/// Why a volume cannot be tuned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// Another change was interrupted and must be finished first.
    #[error("another change was interrupted and comes first: {0}")]
    Unfinished(&'static str),
    /// The volume is a seed, which must not change.
    #[error("it is a seed, which volumes that grew from it rely on; -S 0 ends that first")]
    Seed,
    /// A volume whose nodes have another UUID cannot be a seed.
    #[error(
        "its UUID was changed by -m or -M, and a seed is known by the UUID in its nodes; change it \
         by -u or -U first"
    )]
    SeedWithMetadataUuid,
    /// Quotas are on.
    #[error("quotas are on; switch them off first (`butterfs quota disable`)")]
    QuotasOn,
    /// The wanted UUID is all zeros.
    #[error("a UUID of zeros is none")]
    NoUuid,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Called with the progress; may stop the change.
pub type Watch<'w> = &'w mut dyn FnMut(&Progress) -> ControlFlow<()>;

/// Returns the superblock of a device.
///
/// # Errors
/// A [`StoreError`] if the device has no good superblock or cannot be read.
pub fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock, StoreError> {
    Ok(butterfs_store::read_superblock(device)?.superblock)
}

/// Makes one change of the volume on `devices`. These must be all devices of the
/// volume, open for writing.
///
/// # Errors
/// A [`TuneError`] if the change is not possible, or if reading or writing fails.
/// If the change was half made then, the volume is marked, and the same change
/// resumes it.
pub fn tune(
    devices: &[Arc<dyn BlockDevice>],
    change: Change,
    watch: Watch<'_>,
) -> Result<Ended, TuneError> {
    let mut tuner = Tuner { devices, watch };
    match change {
        Change::Fsid(wanted) => tuner.fsid(wanted),
        Change::MetadataUuid(wanted) => tuner.metadata_uuid(wanted),
        Change::Checksum(to) => tuner.checksum(to),
        Change::RemoveSimpleQuota => tuner.remove_simple_quota(),
        Change::Features(features) => tuner.features(features),
        Change::Seeding(seeding) => tuner.seeding(seeding),
        Change::ToBlockGroupTree => tuner.group_items(TreeId::BLOCK_GROUP),
        Change::FromBlockGroupTree => tuner.group_items(TreeId::EXTENT),
        Change::ToFreeSpaceTree => tuner.free_space_tree(),
    }
}

struct Tuner<'t> {
    devices: &'t [Arc<dyn BlockDevice>],
    watch: Watch<'t>,
}

/// Fails if a change other than `own` was interrupted.
fn check_unfinished(superblock: &Superblock, own: SuperFlags) -> Result<(), TuneError> {
    let flags = superblock.flags - own;
    let waiting = [
        (SuperFlags::CHANGING_FSID, "tune -u"),
        (SuperFlags::CHANGING_FSID_V2, "tune -m"),
        (SuperFlags::CHANGING_META_CSUM, "tune --csum"),
    ];
    match waiting.iter().find(|(flag, _)| flags.contains(*flag)) {
        Some((_, how)) => Err(TuneError::Unfinished(how)),
        None => Ok(()),
    }
}

/// Returns the wanted UUID, or a random one.
fn uuid_of(wanted: Option<UuidBytes>) -> Result<UuidBytes, TuneError> {
    match wanted {
        Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => Err(TuneError::NoUuid),
        Some(uuid) => Ok(uuid),
        None => Ok(Uuid::new_v4().into_bytes()),
    }
}

impl Tuner<'_> {
    fn open(&self, access: Access) -> Result<(Store, Superblock), TuneError> {
        let options = OpenOptions {
            access,
            states: States::Tuned,
            ..OpenOptions::default()
        };
        let store = Store::open_all(self.devices.to_vec(), &options)?;
        let superblock = store.read().superblock().clone();
        Ok((store, superblock))
    }

    /// Opens the volume to change it. Fails if another change was interrupted.
    fn open_to_change(&self, own: SuperFlags) -> Result<(Store, Superblock), TuneError> {
        let (store, superblock) = self.open(Access::ReadWrite)?;
        check_unfinished(&superblock, own)?;
        if superblock.flags.contains(SuperFlags::SEEDING) && !own.contains(SuperFlags::SEEDING) {
            return Err(TuneError::Seed);
        }
        store.check_whole()?;
        Ok((store, superblock))
    }

    fn watched(&mut self, stage: Stage, total: u64) -> impl FnMut(u64) -> ControlFlow<()> {
        let watch = &mut *self.watch;
        move |done| {
            let total = total.max(done);
            watch(&Progress { stage, done, total })
        }
    }

    /// Reads all nodes, so that no change begins that damage would interrupt, or
    /// that would pass over a node.
    fn verify_nodes(&mut self, store: &Store) -> Result<(), TuneError> {
        store.check_rewritable()?;
        let total = store.node_bytes();
        match store.verify_all_nodes(&mut self.watched(Stage::Verifying, total))? {
            PassEnd::Complete => Ok(()),
            PassEnd::Stopped => Err(StoreError::from(TuneFault::Interrupted).into()),
        }
    }

    /// Rewrites the headers of all nodes, and removes the mark.
    fn rewrite(&mut self, to: NodeHeaders, mark: SuperFlags) -> Result<Ended, TuneError> {
        let (store, _) = self.open(Access::ReadOnly)?;
        let total = store.node_bytes();
        let end = store.rewrite_nodes(&to, &mut self.watched(Stage::Rewriting, total))?;
        drop(store);
        if end == PassEnd::Stopped {
            return Ok(Ended::Halfway);
        }
        let (store, _) = self.open(Access::ReadWrite)?;
        commit_superblock(&store, |superblock| {
            superblock.flags -= mark;
        })?;
        Ok(Ended::Changed)
    }

    fn fsid(&mut self, wanted: Option<UuidBytes>) -> Result<Ended, TuneError> {
        let uuid = uuid_of(wanted)?;
        let own = SuperFlags::CHANGING_FSID | SuperFlags::CHANGING_FSID_V2;
        let (store, superblock) = self.open_to_change(own)?;
        let is_half_done = superblock.flags.contains(SuperFlags::CHANGING_FSID);
        let uuid = match wanted {
            None if is_half_done => superblock.fsid,
            _ => uuid,
        };
        if !is_half_done {
            let has_one = !superblock.incompat.contains(Incompat::METADATA_UUID);
            if uuid == superblock.fsid && has_one && !superblock.flags.intersects(own) {
                return Ok(Ended::Already);
            }
            self.verify_nodes(&store)?;
            self.mark_superblocks(&store, &superblock)?;
        }
        store.begin_fsid(uuid)?;
        drop(store);
        let to = NodeHeaders {
            fsid: uuid,
            checksum: superblock.checksum_type,
        };
        self.rewrite(to, own)
    }

    /// If the volume has several devices, marks all superblocks as possibly
    /// different in their UUID. Otherwise a crash between the writes of two
    /// superblocks would leave two volumes.
    fn mark_superblocks(&self, store: &Store, superblock: &Superblock) -> Result<(), TuneError> {
        let mark = SuperFlags::CHANGING_FSID_V2;
        if superblock.num_devices > 1 && !superblock.flags.contains(mark) {
            commit_superblock(store, |superblock| superblock.flags |= mark)?;
        }
        Ok(())
    }

    fn metadata_uuid(&mut self, wanted: Option<UuidBytes>) -> Result<Ended, TuneError> {
        let mark = SuperFlags::CHANGING_FSID_V2;
        let uuid = uuid_of(wanted)?;
        let (store, superblock) = self.open_to_change(mark)?;
        let of_nodes = superblock.node_fsid();
        let is_half_done = superblock.flags.contains(mark);
        let uuid = match wanted {
            None if is_half_done && superblock.fsid != of_nodes => superblock.fsid,
            _ => uuid,
        };
        if uuid == superblock.fsid && !is_half_done {
            return Ok(Ended::Already);
        }
        self.mark_superblocks(&store, &superblock)?;
        commit_superblock(&store, |superblock| {
            superblock.fsid = uuid;
            if uuid == of_nodes {
                superblock.metadata_uuid = [0; 16];
                superblock.incompat -= Incompat::METADATA_UUID;
            } else {
                superblock.metadata_uuid = of_nodes;
                superblock.incompat |= Incompat::METADATA_UUID;
            }
        })?;
        if superblock.num_devices > 1 || is_half_done {
            commit_superblock(&store, |superblock| {
                superblock.flags -= mark;
            })?;
        }
        Ok(Ended::Changed)
    }

    fn checksum(&mut self, to: ChecksumType) -> Result<Ended, TuneError> {
        let mark = SuperFlags::CHANGING_META_CSUM;
        let (store, superblock) = self.open_to_change(mark)?;
        if superblock.flags.contains(mark) {
            if superblock.checksum_type != to {
                return Err(TuneError::Unfinished(match superblock.checksum_type {
                    ChecksumType::Crc32c => "tune --csum crc32c",
                    ChecksumType::Xxhash => "tune --csum xxhash",
                    ChecksumType::Sha256 => "tune --csum sha256",
                    ChecksumType::Blake2 => "tune --csum blake2",
                }));
            }
            // Makes sure that all superblock copies on all devices have the mark
            // before anything is rewritten.
            commit_superblock(&store, |_| {})?;
        } else if superblock.checksum_type == to {
            return Ok(Ended::Already);
        } else {
            self.verify_nodes(&store)?;
            let total = store.data_with_checksums()?;
            store.begin_checksum(to, &mut self.watched(Stage::ReadingData, total))?;
            store.flush_devices()?;
        }
        drop(store);
        let to = NodeHeaders {
            fsid: superblock.node_fsid(),
            checksum: to,
        };
        self.rewrite(to, mark)
    }

    fn remove_simple_quota(&mut self) -> Result<Ended, TuneError> {
        let (store, superblock) = self.open_to_change(SuperFlags::default())?;
        if store.read().quotas().is_some() {
            return Err(TuneError::QuotasOn);
        }
        if !superblock.incompat.contains(Incompat::SIMPLE_QUOTA) {
            return Ok(Ended::Already);
        }
        let end = store.remove_extent_owners(&mut self.watched(Stage::Extents, 0))?;
        store.flush_devices()?;
        match end {
            PassEnd::Complete => Ok(Ended::Changed),
            PassEnd::Stopped => Err(StoreError::from(TuneFault::Interrupted).into()),
        }
    }

    fn features(&mut self, features: Incompat) -> Result<Ended, TuneError> {
        let (store, superblock) = self.open_to_change(SuperFlags::default())?;
        if superblock.incompat.contains(features) {
            return Ok(Ended::Already);
        }
        commit_superblock(&store, |superblock| superblock.incompat |= features)?;
        Ok(Ended::Changed)
    }

    fn seeding(&mut self, seeding: Seeding) -> Result<Ended, TuneError> {
        let flag = SuperFlags::SEEDING;
        let (store, superblock) = self.open_to_change(flag)?;
        match (seeding, superblock.flags.contains(flag)) {
            (Seeding::On, true) | (Seeding::Off, false) => return Ok(Ended::Already),
            (Seeding::On, false) if superblock.incompat.contains(Incompat::METADATA_UUID) => {
                return Err(TuneError::SeedWithMetadataUuid);
            }
            _ => {}
        }
        commit_superblock(&store, |superblock| match seeding {
            Seeding::On => superblock.flags |= flag,
            Seeding::Off => superblock.flags -= flag,
        })?;
        Ok(Ended::Changed)
    }

    fn group_items(&mut self, to: TreeId) -> Result<Ended, TuneError> {
        let (store, superblock) = self.open_to_change(SuperFlags::default())?;
        if superblock.has_block_group_tree() == (to == TreeId::BLOCK_GROUP) {
            return Ok(Ended::Already);
        }
        store.move_group_items(to)?;
        store.flush_devices()?;
        Ok(Ended::Changed)
    }

    fn free_space_tree(&mut self) -> Result<Ended, TuneError> {
        let (store, superblock) = self.open_to_change(SuperFlags::default())?;
        // Opening makes a tree anew that is not valid.
        let is_remade = !store.read().is_clean();
        match (superblock.has_valid_free_space_tree(), is_remade) {
            (true, false) => return Ok(Ended::Already),
            (true, true) => store.commit_remade()?,
            (false, _) => store.make_free_space_tree()?,
        }
        store.flush_devices()?;
        Ok(Ended::Changed)
    }
}

/// Changes the superblock. When this returns, all copies on all devices are
/// durable.
fn commit_superblock(
    store: &Store,
    change: impl FnOnce(&mut Superblock),
) -> Result<(), StoreError> {
    store.change_superblock(change)?;
    store.flush_devices()
}
