//! Balancing: block groups that match filters are emptied, and removed.
//!
//! Owns which block groups a balance takes and in what order, and what of it
//! is kept in the volume: the kernel's balance item, so that either side goes
//! on with what the other began. Moving what lies in a block group is the
//! store's.

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

/// Bit of a balance item: redundancy may become less.
const FORCE: u64 = 1 << 3;
/// Where a balance goes on, groups fuller than this were written by it.
const RESUME_USAGE: u64 = 90;
const KINDS: [(SpaceKind, BlockGroupFlags); 3] = [
    (SpaceKind::Data, BlockGroupFlags::DATA),
    (SpaceKind::Metadata, BlockGroupFlags::METADATA),
    (SpaceKind::System, BlockGroupFlags::SYSTEM),
];

/// Why a balance did not begin or did not end.
#[derive(Debug, Error)]
pub enum BalanceError {
    /// Another one waits to go on.
    #[error("a balance was interrupted and waits: resume or cancel it first")]
    Waits,
    /// None waits.
    #[error("no balance waits to go on")]
    NoneWaits,
    /// A conversion that would leave fewer copies.
    #[error("from {from} to {to} leaves fewer copies of {kind}; -f does it all the same")]
    LessRedundancy {
        /// What is converted.
        kind: &'static str,
        /// Its profile.
        from: &'static str,
        /// The profile that was asked for.
        to: &'static str,
    },
    /// A profile that the volume cannot have.
    #[error("the profile {0} needs more devices than the volume has")]
    Profile(&'static str),
    /// The balance item is damaged.
    #[error("the balance that was interrupted cannot be read: {0}")]
    Item(ParseError),
    /// What the store met.
    #[error(transparent)]
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for BalanceError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

/// Whether a conversion may leave fewer copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// Of metadata there are as many as before.
    #[default]
    Kept,
    /// It may.
    MayShrink,
}

/// A block group that is to be balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Where it is.
    pub start: Logical,
    /// What it holds, and how.
    pub flags: BlockGroupFlags,
    /// Bytes.
    pub length: u64,
    /// Those that extents have.
    pub used: u64,
}

/// How far a balance is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Block groups that are to be balanced.
    pub expected: usize,
    /// Block groups that were looked at.
    pub considered: usize,
    /// Block groups that are gone.
    pub completed: usize,
    /// Block groups that stayed since there was no space for what is in them.
    pub without_space: usize,
    /// Bytes of data that moved.
    pub data_bytes: u64,
    /// Nodes that moved.
    pub nodes: u64,
    /// Bytes in block groups that are still to be balanced.
    pub bytes_left: u64,
}

/// What somebody wants of a balance that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// That it stops, and can go on.
    Pause,
    /// That it ends.
    Cancel,
}

/// How a balance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All that matched was balanced, as far as there was space.
    Done,
    /// It stopped as was wished.
    Stopped(Wish),
}

fn name_of(flags: BlockGroupFlags) -> &'static str {
    match flags.profile_name() {
        "DUP" => "dup",
        other => other,
    }
}

fn copies(profile: BlockGroupFlags) -> Option<usize> {
    // Parity stands for copies: the more devices may be lost, the better.
    Profile::from_flags(profile).map(|profile| profile.copies() + profile.parities())
}

/// A candidate for each block group, in the order in which the kernel takes
/// them: the newest first.
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

/// The block groups that a balance by `filters` would take.
#[must_use]
pub fn plan(store: &Store, filters: &Filters) -> Vec<Planned> {
    let candidates = candidates(store);
    let chosen = filters.choose(&candidates);
    let planned = chosen.into_iter().map(|group| Planned {
        start: group.start,
        flags: group.flags,
        length: group.length,
        used: group.used,
    });
    planned.collect()
}

/// What waits to go on, by its filters.
///
/// # Errors
/// Damage, reading.
pub fn waiting(store: &Store) -> Result<Option<Filters>, BalanceError> {
    let item = store.look(butterfs_store::Engine::balance_item)?;
    let Some(item) = item else { return Ok(None) };
    let args = item.filters().map_err(BalanceError::Item)?;
    Ok(Some(Filters::of_item(item.flags, &args)))
}

/// Forgets a balance that waits.
///
/// # Errors
/// [`BalanceError::NoneWaits`]; writing.
pub fn cancel(store: &Store) -> Result<(), BalanceError> {
    if waiting(store)?.is_none() {
        return Err(BalanceError::NoneWaits);
    }
    Ok(store.set_balance_item(None)?)
}

/// Balances what `filters` choose.
///
/// # Errors
/// Another balance waits; a profile that cannot be; damage, reading, writing.
/// A lack of space is no error: [`Progress::without_space`] counts it.
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

/// Goes on with a balance that waits.
///
/// # Errors
/// [`BalanceError::NoneWaits`]; as [`start`].
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
            group.flags.contains(flag) && has.is_some_and(|has| has > wanted)
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
    let planned = plan(store, filters);
    let mut progress = Progress {
        expected: planned.len(),
        bytes_left: planned.iter().map(|group| group.used).sum(),
        ..Progress::default()
    };
    let outcome = balance_all(store, &planned, &mut progress, watch);
    // A balance that failed does not begin again by itself; one that cannot
    // be written down as ended goes on at the next mount.
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
    for group in planned {
        let before = *progress;
        let mut wish = None;
        let ended = store.relocate_group(group.start, &mut |relocated: &Relocated| {
            progress.data_bytes = before.data_bytes + relocated.data_bytes;
            progress.nodes = before.nodes + relocated.nodes;
            let behind = before.bytes_left.saturating_sub(group.used);
            progress.bytes_left = behind + relocated.left;
            wish = watch(progress);
            match wish {
                None => ControlFlow::Continue(()),
                Some(_) => ControlFlow::Break(()),
            }
        });
        progress.considered += 1;
        progress.bytes_left = before.bytes_left.saturating_sub(group.used);
        match ended {
            Ok(RelocateEnd::Removed) => progress.completed += 1,
            Ok(RelocateEnd::Stopped) => {
                return Ok(End::Stopped(wish.unwrap_or(Wish::Pause)));
            }
            Err(StoreError::NoSpace) => progress.without_space += 1,
            Err(error) => return Err(error.into()),
        }
    }
    watch(progress);
    Ok(End::Done)
}
