//! Sets of subvolumes, each kept once.
//!
//! Owns their representation: ascending runs of member numbers. A snapshot
//! shares data with its neighbours in time, so most sets are one or two runs,
//! however many members they have.

use rustc_hash::FxHashMap;

/// A subvolume, by its place among the counted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u32);

/// Neighbouring members, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// First of them.
    pub first: Member,
    /// Last of them.
    pub last: Member,
}

/// A set in [`MemberSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(u32);

impl SetId {
    /// Its place in the order in which sets were made.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Unions that are remembered. When there are more, the memory is emptied.
const UNIONS_MAX: usize = 1 << 20;

/// All sets that occur.
#[derive(Debug, Default)]
pub struct MemberSets {
    sets: Vec<Box<[Run]>>,
    index: FxHashMap<Box<[Run]>, SetId>,
    unions: FxHashMap<(SetId, SetId), SetId>,
    runs: usize,
}

impl MemberSets {
    /// The set of one member.
    pub fn single(&mut self, member: Member) -> SetId {
        let run = Run {
            first: member,
            last: member,
        };
        self.keep(Box::new([run]))
    }

    /// Number of runs of all sets together. It bounds the memory that they
    /// take.
    #[must_use]
    pub const fn runs_total(&self) -> usize {
        self.runs
    }

    /// Runs of a set, ascending and apart.
    #[must_use]
    pub fn runs(&self, set: SetId) -> &[Run] {
        self.sets.get(set.index()).map_or(&[], |runs| runs)
    }

    /// Sets with their runs.
    pub fn iter(&self) -> impl Iterator<Item = (SetId, &[Run])> {
        (0..).map(SetId).zip(self.sets.iter().map(|runs| &**runs))
    }

    fn keep(&mut self, runs: Box<[Run]>) -> SetId {
        if let Some(set) = self.index.get(&runs) {
            return *set;
        }
        // Callers bound `runs_total` far below this.
        let set = SetId(u32::try_from(self.sets.len()).unwrap_or(u32::MAX));
        self.runs = self.runs.saturating_add(runs.len());
        self.sets.push(runs.clone());
        self.index.insert(runs, set);
        set
    }

    /// The set of all members of both.
    pub fn union(&mut self, one: SetId, other: SetId) -> SetId {
        if one == other {
            return one;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(set) = self.unions.get(&pair) {
            return *set;
        }
        let runs = merge(self.runs(one), self.runs(other));
        let set = self.keep(runs.into());
        if self.unions.len() >= UNIONS_MAX {
            self.unions.clear();
        }
        self.unions.insert(pair, set);
        set
    }
}

fn merge(one: &[Run], other: &[Run]) -> Vec<Run> {
    let mut merged: Vec<Run> = Vec::with_capacity(one.len().saturating_add(other.len()));
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    loop {
        let run = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if a.first <= b.first => one.next(),
            (_, Some(_)) => other.next(),
            (Some(_), None) => one.next(),
            (None, None) => return merged,
        };
        let Some(run) = run.copied() else {
            return merged;
        };
        match merged.last_mut() {
            Some(last) if run.first.0 <= last.last.0.saturating_add(1) => {
                last.last = last.last.max(run.last);
            }
            _ => merged.push(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn unions_are_those_of_sets() {
        let mut sets = MemberSets::default();
        let mut known: Vec<(SetId, BTreeSet<u32>)> = (0..40)
            .map(|n| (sets.single(Member(n)), BTreeSet::from([n])))
            .collect();
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let a = known[(state >> 33) as usize % known.len()].clone();
            let b = known[(state >> 45) as usize % known.len()].clone();
            let union = sets.union(a.0, b.0);
            let expected: BTreeSet<u32> = a.1.union(&b.1).copied().collect();
            let found: Vec<u32> = sets
                .runs(union)
                .iter()
                .flat_map(|run| run.first.0..=run.last.0)
                .collect();
            assert_eq!(found, expected.iter().copied().collect::<Vec<_>>());
            let runs = sets.runs(union);
            let apart = runs.windows(2).all(|p| p[0].last.0 + 1 < p[1].first.0);
            assert!(apart, "{runs:?}");
            known.push((union, expected));
        }
        // Equal sets are one.
        for (id, set) in &known {
            for (other, same) in &known {
                assert_eq!(id == other, set == same);
            }
        }
    }
}
