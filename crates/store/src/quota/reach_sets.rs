//! Sets of subvolumes that reach something, each kept once.

use butterfs_format::TreeId;
use rustc_hash::FxHashMap;

/// A set in [`ReachSets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SetId(usize);

impl SetId {
    /// The set without members.
    pub(super) const EMPTY: Self = Self(0);
}

/// All sets that occur in one commit.
#[derive(Debug)]
pub(super) struct ReachSets {
    /// Members ascend.
    sets: Vec<Box<[TreeId]>>,
    index: FxHashMap<Box<[TreeId]>, SetId>,
    unions: FxHashMap<(SetId, SetId), SetId>,
}

impl ReachSets {
    pub(super) fn new() -> Self {
        let mut new = Self {
            sets: Vec::new(),
            index: FxHashMap::default(),
            unions: FxHashMap::default(),
        };
        new.keep(Box::new([]));
        new
    }

    fn keep(&mut self, members: Box<[TreeId]>) -> SetId {
        if let Some(set) = self.index.get(&members) {
            return *set;
        }
        let set = SetId(self.sets.len());
        self.sets.push(members.clone());
        self.index.insert(members, set);
        set
    }

    /// The set of one subvolume.
    pub(super) fn single(&mut self, tree: TreeId) -> SetId {
        self.keep(Box::new([tree]))
    }

    /// Members, ascending.
    pub(super) fn members(&self, set: SetId) -> &[TreeId] {
        self.sets.get(set.0).map_or(&[], |members| members)
    }

    /// Members of both.
    pub(super) fn union(&mut self, one: SetId, other: SetId) -> SetId {
        if one == other || other == SetId::EMPTY {
            return one;
        }
        if one == SetId::EMPTY {
            return other;
        }
        let pair = if one.0 < other.0 {
            (one, other)
        } else {
            (other, one)
        };
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let mut members = [self.members(one), self.members(other)].concat();
        members.sort_unstable();
        members.dedup();
        let set = self.keep(members.into());
        self.unions.insert(pair, set);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_one() {
        let mut sets = ReachSets::new();
        let (a, b, c) = (
            sets.single(TreeId(5)),
            sets.single(TreeId(256)),
            sets.single(TreeId(257)),
        );
        let ab = sets.union(b, a);
        assert_eq!(sets.members(ab), [TreeId(5), TreeId(256)]);
        let abc = sets.union(ab, c);
        let bc = sets.union(c, b);
        assert_eq!(sets.union(a, bc), abc);
        assert_eq!(sets.union(abc, SetId::EMPTY), abc);
        assert_eq!(sets.union(SetId::EMPTY, a), a);
        assert_eq!(sets.members(SetId::EMPTY), []);
    }
}
