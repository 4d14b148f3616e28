//! Balancing: moves the content of block groups elsewhere and removes the
//! groups.
//!
//! Owns which block groups a balance takes and in what order, and the state of a
//! balance in the volume. That is the kernel's balance item, so ButterFS can
//! resume a balance of the kernel and the reverse. The store moves the content of
//! a block group.

mod estimate;
mod filter;

pub use estimate::estimate;
pub use filter::{Filter, Filters, NotAFilter, Soft};

use butterfs_format::item::balance::BalanceArgs;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::state::BalanceItem;
use butterfs_format::{Logical, ParseError};
use butterfs_store::{ExclusiveKind, RelocateEnd, Relocated, SpaceKind, Store, StoreError};
use butterfs_volume::{MemberState, Profile};
use filter::Candidate;
use std::ops::ControlFlow;
use thiserror::Error;

/// Flag of a balance item: fewer copies are allowed.
const FORCE: u64 = 1 << 3;
/// A balance that resumes leaves out block groups that are fuller than this, in
/// percent, because it probably wrote them.
const RESUME_USAGE: u64 = 90;
const KINDS: [(SpaceKind, BlockGroupFlags); 3] = [
    (SpaceKind::Data, BlockGroupFlags::DATA),
    (SpaceKind::Metadata, BlockGroupFlags::METADATA),
    (SpaceKind::System, BlockGroupFlags::SYSTEM),
];

/// Why a balance did not begin or did not end.
#[derive(Debug, Error)]
pub enum BalanceError {
    /// Another balance was interrupted and waits.
    #[error("a balance was interrupted and waits: resume or cancel it first")]
    Waits,
    /// No balance was interrupted.
    #[error("no balance waits to go on")]
    NoneWaits,
    /// A conversion would leave a single copy.
    #[error("from {from} to {to} leaves fewer copies of {kind}; -f does it all the same")]
    LessRedundancy {
        /// The kind of block groups.
        kind: &'static str,
        /// The profile now.
        from: &'static str,
        /// The profile that was asked for.
        to: &'static str,
    },
    /// The volume has too few devices for a profile.
    #[error("the profile {0} needs more devices than the volume has")]
    Profile(&'static str),
    /// Data and metadata lie in the same block groups, and the filters differ.
    #[error(
        "data and metadata lie in the same block groups (mixed), so the filters of -d and -m must \
         be the same"
    )]
    Mixed,
    /// The balance item is damaged.
    #[error("the balance that was interrupted cannot be read: {0}")]
    Item(ParseError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for BalanceError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

/// Whether a conversion may leave a single copy, without parity, of what had
/// more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// Not of metadata and system chunks. They may lose some of their copies, as
    /// in the kernel.
    #[default]
    Kept,
    /// Of everything.
    MayShrink,
}

/// A block group that is to be balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its first address.
    pub start: Logical,
    /// Its kind and profile.
    pub flags: BlockGroupFlags,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes of extents in it.
    pub used: u64,
}

/// The progress of a balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Block groups that are to be balanced.
    pub expected: usize,
    /// Block groups that were looked at: those that were tried, and those that
    /// the filters leave out.
    pub considered: usize,
    /// Block groups that were removed.
    pub completed: usize,
    /// Block groups that stayed because there was no space for their content.
    pub without_space: usize,
    /// Bytes of data that moved.
    pub data_bytes: u64,
    /// Nodes that moved.
    pub nodes: u64,
    /// Bytes of extents that are still to be moved.
    pub bytes_left: u64,
}

/// A wish that stops a running balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Stops the balance so that it can resume.
    Pause,
    /// Ends the balance.
    Cancel,
}

/// How a balance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All matching block groups were balanced, except those for which there was
    /// no space.
    Done,
    /// A wish stopped it.
    Stopped(Wish),
}

fn name_of(flags: BlockGroupFlags) -> &'static str {
    match flags.profile_name() {
        "DUP" => "dup",
        other => other,
    }
}

fn copies(profile: BlockGroupFlags) -> Option<usize> {
    // A stripe of parity counts as a copy, since both allow one more device to be
    // lost.
    Profile::from_flags(profile).map(|profile| profile.copies() + profile.parities())
}

/// Returns a candidate for each block group. The newest comes first, as in the
/// kernel.
fn candidates(store: &Store) -> Vec<Candidate> {
    let engine = store.read();
    let chunks: std::collections::BTreeMap<_, _> = engine.chunks().collect();
    let groups = engine.groups().filter_map(|group| {
        let chunk = chunks.get(&group.start)?;
        Some(Candidate {
            start: group.start,
            flags: group.flags,
            length: group.length,
            used: group.used,
            stripes: chunk.stripes.clone(),
        })
    });
    let mut all: Vec<_> = groups.collect();
    all.reverse();
    all
}

/// Returns the block groups that a balance by `filters` would take.
#[must_use]
pub fn plan(store: &Store, filters: &Filters) -> Vec<Planned> {
    choose(filters, &candidates(store))
}

fn choose(filters: &Filters, candidates: &[Candidate]) -> Vec<Planned> {
    let chosen = filters.choose(candidates);
    let planned = chosen.into_iter().map(|group| Planned {
        start: group.start,
        flags: group.flags,
        length: group.length,
        used: group.used,
    });
    planned.collect()
}

/// Returns the filters of an interrupted balance that waits, if there is one.
///
/// # Errors
/// [`BalanceError::Item`] if the balance item is damaged, and
/// [`BalanceError::Store`] if it cannot be read.
pub fn waiting(store: &Store) -> Result<Option<Filters>, BalanceError> {
    let item = store.look(butterfs_store::Engine::balance_item)?;
    let Some(item) = item else { return Ok(None) };
    let args = item.filters().map_err(BalanceError::Item)?;
    Ok(Some(Filters::of_item(item.flags, &args)))
}

/// Removes an interrupted balance that waits.
///
/// # Errors
/// [`BalanceError::NoneWaits`] if no balance waits, [`BalanceError::Item`] if its
/// item is damaged, and [`BalanceError::Store`] if reading or writing fails.
pub fn cancel(store: &Store) -> Result<(), BalanceError> {
    if waiting(store)?.is_none() {
        return Err(BalanceError::NoneWaits);
    }
    Ok(store.set_balance_item(None)?)
}

/// Balances the block groups that `filters` choose. Calls `watch` with the
/// progress; a wish that it returns stops the balance.
///
/// # Errors
/// - [`BalanceError::Waits`] if an interrupted balance waits.
/// - [`BalanceError::Profile`] and [`BalanceError::LessRedundancy`] if a
///   conversion is not possible or not allowed.
/// - [`BalanceError::Store`] if another exclusive operation runs, if the volume
///   is damaged, or if reading or writing fails.
///
/// A lack of space is no error; [`Progress::without_space`] counts it.
pub fn start(
    store: &Store,
    filters: &Filters,
    redundancy: Redundancy,
    watch: &mut dyn FnMut(&Progress) -> Option<Wish>,
) -> Result<(Progress, End), BalanceError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Balance)?;
    if waiting(store)?.is_some() {
        return Err(BalanceError::Waits);
    }
    verify_targets(store, filters, redundancy)?;
    let mut flags = BlockGroupFlags(0);
    let mut args = [BalanceArgs::default(); 3];
    for ((kind, flag), args) in KINDS.into_iter().zip(&mut args) {
        if let Some(filter) = filters.of(kind) {
            flags |= flag;
            *args = filter.args();
        }
    }
    if redundancy == Redundancy::MayShrink {
        flags |= BlockGroupFlags(FORCE);
    }
    let item = BalanceItem::with_filters(flags, &args);
    store.set_balance_item(Some(&item))?;
    run(store, filters, watch)
}

/// Resumes an interrupted balance. `watch` is as in [`start`].
///
/// # Errors
/// [`BalanceError::NoneWaits`] if no balance waits, [`BalanceError::Item`] if its
/// item is damaged, and [`BalanceError::Store`] as in [`start`].
pub fn resume(
    store: &Store,
    watch: &mut dyn FnMut(&Progress) -> Option<Wish>,
) -> Result<(Progress, End), BalanceError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Balance)?;
    let Some(filters) = waiting(store)? else {
        return Err(BalanceError::NoneWaits);
    };
    run(store, &filters.to_go_on(RESUME_USAGE), watch)
}

fn verify_targets(
    store: &Store,
    filters: &Filters,
    redundancy: Redundancy,
) -> Result<(), BalanceError> {
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    let has_mixed = store
        .read()
        .groups()
        .any(|group| group.flags.contains(mixed));
    if has_mixed && filters.data != filters.metadata {
        return Err(BalanceError::Mixed);
    }
    for (kind, flag) in KINDS {
        let Some(target) = filters.of(kind).and_then(Filter::target) else {
            continue;
        };
        let devices = store.read().devices().into_iter();
        let used = devices.filter(|device| device.state == MemberState::Present);
        let fits = |profile: &Profile| profile.devices_min() <= used.count();
        let fits = Profile::from_flags(target).filter(fits);
        let (Some(wanted), Some(_)) = (copies(target), fits) else {
            return Err(BalanceError::Profile(name_of(target)));
        };
        if kind == SpaceKind::Data || redundancy == Redundancy::MayShrink {
            continue;
        }
        let engine = store.read();
        let more = engine.groups().find(|group| {
            let has = copies(group.flags.profile());
            group.flags.contains(flag) && has.is_some_and(|has| has > 1 && wanted == 1)
        });
        if let Some(group) = more {
            return Err(BalanceError::LessRedundancy {
                kind: match kind {
                    SpaceKind::Data => "data",
                    SpaceKind::Metadata => "metadata",
                    SpaceKind::System => "system chunks",
                },
                from: name_of(group.flags),
                to: name_of(target),
            });
        }
    }
    Ok(())
}

fn run(
    store: &Store,
    filters: &Filters,
    watch: &mut dyn FnMut(&Progress) -> Option<Wish>,
) -> Result<(Progress, End), BalanceError> {
    let targets: Vec<_> = KINDS
        .into_iter()
        .filter_map(|(kind, _)| Some((kind, filters.of(kind)?.target()?)))
        .collect();
    let _profiles = store.convert_new(&targets)?;
    let all = candidates(store);
    let planned = choose(filters, &all);
    let mut progress = Progress {
        expected: planned.len(),
        considered: all.len() - planned.len(),
        bytes_left: planned.iter().map(|group| group.used).sum(),
        ..Progress::default()
    };
    let outcome = balance_all(store, &planned, &mut progress, watch);
    // After an error, the item is removed, so that the balance does not resume by
    // itself. If it cannot be removed, the balance resumes at the next mount.
    match outcome {
        Ok(End::Stopped(Wish::Pause)) => {}
        Ok(_) => store.set_balance_item(None)?,
        Err(_) => {
            let _ = store.set_balance_item(None);
        }
    }
    Ok((progress, outcome?))
}

fn balance_all(
    store: &Store,
    planned: &[Planned],
    progress: &mut Progress,
    watch: &mut dyn FnMut(&Progress) -> Option<Wish>,
) -> Result<End, BalanceError> {
    let mut without_space = Vec::new();
    for group in planned {
        match balance_one(store, group, progress, watch)? {
            GroupEnd::Removed => progress.completed += 1,
            GroupEnd::NoSpace => without_space.push(group),
            GroupEnd::Stopped(wish) => {
                progress.without_space = without_space.len();
                return Ok(End::Stopped(wish));
            }
        }
        progress.considered += 1;
        progress.without_space = without_space.len();
    }
    // The groups that were removed meanwhile left space, so those that found none
    // are tried once more, unless no group was removed.
    if progress.completed > 0 {
        for group in without_space {
            progress.bytes_left += group.used;
            match balance_one(store, group, progress, watch)? {
                GroupEnd::Removed => {
                    progress.completed += 1;
                    progress.without_space -= 1;
                }
                GroupEnd::NoSpace => {}
                GroupEnd::Stopped(wish) => return Ok(End::Stopped(wish)),
            }
        }
    }
    watch(progress);
    Ok(End::Done)
}

/// How the attempt to balance one block group ended.
enum GroupEnd {
    Removed,
    NoSpace,
    Stopped(Wish),
}

fn balance_one(
    store: &Store,
    group: &Planned,
    progress: &mut Progress,
    watch: &mut dyn FnMut(&Progress) -> Option<Wish>,
) -> Result<GroupEnd, BalanceError> {
    let before = *progress;
    let behind = before.bytes_left.saturating_sub(group.used);
    let mut wish = None;
    let ended = store.relocate_group(group.start, &mut |relocated: &Relocated| {
        progress.data_bytes = before.data_bytes + relocated.data_bytes;
        progress.nodes = before.nodes + relocated.nodes;
        progress.bytes_left = behind + relocated.left;
        wish = watch(progress);
        match wish {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    });
    progress.bytes_left = behind;
    match ended {
        Ok(RelocateEnd::Removed) => Ok(GroupEnd::Removed),
        Ok(RelocateEnd::Stopped) => Ok(GroupEnd::Stopped(wish.unwrap_or(Wish::Pause))),
        Err(StoreError::NoSpace) => Ok(GroupEnd::NoSpace),
        Err(error) => Err(error.into()),
    }
}
