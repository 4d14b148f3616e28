//! Who uses the space of a volume: exact figures for every subvolume, and for
//! the deletion of any set of them, without quotas.
//!
//! Owns [`SpaceSharing`], a table of the sets of subvolumes that hold something
//! together, with the bytes that each set holds. Every question is answered
//! from this table.
//!
//! How the table is made: one sweep reads the nodes of all subvolumes, each
//! shared node once. A node is held by the trees that reach it. A data extent
//! is held by every tree that holds a leaf with a file extent of it. The extent
//! stays in memory while file extents of it may still come. The extent tree
//! says how many there are, so the extent leaves memory with the last of them.
//! Snapshots of one file are swept together, so few extents wait at a time.
//!
//! Bounds: extents that wait ([`Limits::extents`]). If there are more, the
//! addresses are divided into several ranges, with a sweep for each. Sets
//! ([`Limits::runs`]); more are an error.
//!
//! Not counted: trees that are not subvolumes (extents, checksums, and so on),
//! and the copies that profiles keep.

mod count;
mod terms;

pub use terms::{Limits, Progress, Space};

use super::member_sets::{Member, MemberSets, Run};
use crate::error::FsError;
use butterfs_format::TreeId;
use butterfs_store::Engine;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use terms::{Role, index};

/// What one subvolume holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolumeSpace {
    /// Its id.
    pub id: TreeId,
    /// All that it reaches.
    pub total: Space,
    /// What it alone reaches: freed when it is deleted.
    pub exclusive: Space,
}

impl SubvolumeSpace {
    /// What others reach too.
    #[must_use]
    pub const fn shared(&self) -> Space {
        self.total.without(self.exclusive)
    }
}

/// Who holds the space of a volume.
#[derive(Debug)]
pub struct SpaceSharing {
    roles: Vec<Role>,
    trees: BTreeMap<TreeId, Member>,
    /// The members of each set that holds something, and what the set holds.
    classes: Vec<(Box<[Run]>, Space)>,
}

impl SpaceSharing {
    /// Computes the table for the last commit. `progress` is called now and
    /// then, and may stop it.
    ///
    /// # Errors
    /// Damage, reading; [`FsError::NotSupported`] if there are too many sets;
    /// [`FsError::Busy`] if `progress` stopped it.
    pub fn compute(
        engine: &Engine,
        limits: &Limits,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Self, FsError> {
        let members = count::holders(engine)?;
        let mut sharing = Self {
            roles: members.iter().map(|member| member.role).collect(),
            trees: BTreeMap::new(),
            classes: Vec::new(),
        };
        for (place, member) in count::numbered(&members) {
            if let Some(tree) = member.tree {
                sharing.trees.insert(tree, place);
            }
        }
        let mut sets = MemberSets::default();
        let tally = count::count(engine, &members, &mut sets, limits, progress)?;
        for (set, runs) in sets.iter() {
            let space = tally.get(set.index()).copied().unwrap_or_default();
            if space != Space::default() {
                sharing.classes.push((runs.into(), space));
            }
        }
        Ok(sharing)
    }

    /// What each subvolume holds, by ascending id. Subvolumes that are being
    /// deleted are left out.
    #[must_use]
    pub fn subvolumes(&self) -> Vec<SubvolumeSpace> {
        // A class adds its space at the start of each run and takes it away
        // after it; sums from the left are the totals.
        let mut totals: Vec<[i128; 2]> = vec![[0; 2]; self.roles.len().saturating_add(1)];
        let mut add = |at: u32, data: i128, metadata: i128| {
            if let Some([d, m]) = totals.get_mut(index(at)) {
                *d += data;
                *m += metadata;
            }
        };
        for (runs, space) in &self.classes {
            let (data, metadata) = (i128::from(space.data), i128::from(space.metadata));
            for run in runs {
                add(run.first.0, data, metadata);
                add(run.last.0.saturating_add(1), -data, -metadata);
            }
        }
        let mut running = [0; 2];
        for total in &mut totals {
            running = [running[0] + total[0], running[1] + total[1]];
            *total = running;
        }
        let exclusive = self.exclusive();
        let clamp = |value: i128| u64::try_from(value).unwrap_or(u64::MAX);
        let living = self
            .trees
            .iter()
            .filter(|(_, member)| self.roles.get(index(member.0)) == Some(&Role::Subvolume));
        living
            .map(|(tree, member)| {
                let total = totals.get(index(member.0)).copied().unwrap_or_default();
                SubvolumeSpace {
                    id: *tree,
                    total: Space {
                        data: clamp(total[0]),
                        metadata: clamp(total[1]),
                    },
                    exclusive: exclusive.get(index(member.0)).copied().unwrap_or_default(),
                }
            })
            .collect()
    }

    /// What each member holds alone, apart from those that are being deleted.
    fn exclusive(&self) -> Vec<Space> {
        let mut exclusive = vec![Space::default(); self.roles.len()];
        let dying = self.counts(|role, _| role == Role::Dying);
        for (runs, space) in &self.classes {
            let living = |run: &Run| held(run).saturating_sub(held_of(&dying, run));
            let count = runs.iter().map(living).fold(0, u32::saturating_add);
            if count != 1 {
                continue;
            }
            let run = runs.iter().find(|run| living(run) == 1);
            let mut places = run.into_iter().flat_map(|run| run.first.0..=run.last.0);
            let only = places.find(|at| self.roles.get(index(*at)) != Some(&Role::Dying));
            if let Some(mine) = only.and_then(|only| exclusive.get_mut(index(only))) {
                *mine += *space;
            }
        }
        exclusive
    }

    /// For each place, the number of members before it that `counted` accepts.
    fn counts(&self, counted: impl Fn(Role, Member) -> bool) -> Vec<u32> {
        let mut counts = vec![0u32];
        let mut sum = 0u32;
        for (at, role) in (0..).zip(&self.roles) {
            if counted(*role, Member(at)) {
                sum = sum.saturating_add(1);
            }
            counts.push(sum);
        }
        counts
    }

    /// What is freed if all of `deleted` are deleted together; `None` if one of
    /// them is not a subvolume. What running deletions free anyway is not
    /// included.
    #[must_use]
    pub fn freed_by(&self, deleted: &BTreeSet<TreeId>) -> Option<Space> {
        let mut gone = BTreeSet::new();
        for tree in deleted {
            let member = self.trees.get(tree)?;
            gone.insert(*member);
        }
        let dying = self.counts(|role, _| role == Role::Dying);
        let leaving = self.counts(|role, member| role == Role::Dying || gone.contains(&member));
        let mut freed = Space::default();
        for (runs, space) in &self.classes {
            let all_of = |counts: &[u32]| runs.iter().all(|run| held_of(counts, run) == held(run));
            if all_of(&leaving) && !all_of(&dying) {
                freed += *space;
            }
        }
        Some(freed)
    }

    /// What `trees` hold together, and what nobody else holds. A subvolume that
    /// is being deleted counts like the others while it holds something.
    #[must_use]
    pub fn held_by(&self, trees: &BTreeSet<TreeId>) -> (Space, Space) {
        let members: BTreeSet<&Member> = trees
            .iter()
            .filter_map(|tree| self.trees.get(tree))
            .collect();
        let inside = self.counts(|_, member| members.contains(&member));
        let outside = self.counts(|role, member| role != Role::Kept && !members.contains(&member));
        let (mut held, mut alone) = (Space::default(), Space::default());
        for (runs, space) in &self.classes {
            if runs.iter().all(|run| held_of(&inside, run) == 0) {
                continue;
            }
            held += *space;
            if runs.iter().all(|run| held_of(&outside, run) == 0) {
                alone += *space;
            }
        }
        (held, alone)
    }

    /// What deletions under way will free.
    #[must_use]
    pub fn being_freed(&self) -> Space {
        let dying = self.counts(|role, _| role == Role::Dying);
        let mut freed = Space::default();
        for (runs, space) in &self.classes {
            if runs.iter().all(|run| held_of(&dying, run) == held(run)) {
                freed += *space;
            }
        }
        freed
    }

    /// All that subvolumes hold, each byte once.
    #[must_use]
    pub fn total(&self) -> Space {
        let mut total = Space::default();
        for (_, space) in &self.classes {
            total += *space;
        }
        total
    }
}

const fn held(run: &Run) -> u32 {
    run.last.0.saturating_sub(run.first.0).saturating_add(1)
}

/// How many of a run are counted.
fn held_of(counts: &[u32], run: &Run) -> u32 {
    let before = |at: u32| counts.get(index(at)).copied().unwrap_or_default();
    before(run.last.0.saturating_add(1)).saturating_sub(before(run.first.0))
}
