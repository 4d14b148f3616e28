//! All block groups, with running totals.
//!
//! Owns the totals and indexes that reservation and allocation ask for. They
//! follow each change, so that no operation sums or searches over groups. Ten
//! thousand groups cost the same as five.
//!
//! Invariant: each total equals the sum over all groups
//! ([`BlockGroups::verify`]). So a group is changed only through
//! [`BlockGroups::change`].

use super::block_group::{BlockGroup, Standing};
use crate::error::StoreError;
use crate::space::kind::SpaceKind;
use butterfs_format::Logical;
use butterfs_format::item::chunk::BlockGroupFlags;
use std::collections::{BTreeMap, BTreeSet};

const KINDS: [SpaceKind; 3] = [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System];

/// Bytes of groups that may hold one kind. Wide, because lengths come from
/// disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KindTotals {
    /// Can be allocated.
    available: u128,
    /// The part of them in groups that are loaded.
    loaded: u128,
    /// Used by extents, applied or promised.
    used: u128,
}

impl KindTotals {
    /// A total that is smaller than a part of it is a fault of ButterFS. The
    /// program stops then.
    const fn add(&mut self, group: &Self) {
        self.available += group.available;
        self.loaded += group.loaded;
        self.used += group.used;
    }

    const fn subtract(&mut self, group: &Self) {
        self.available -= group.available;
        self.loaded -= group.loaded;
        self.used -= group.used;
    }
}

/// What one group adds to totals and indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    flags: BlockGroupFlags,
    totals: KindTotals,
    /// Bytes of its item's `used`.
    applied: u64,
    /// Its greatest free range, if it is loaded and may be written to.
    greatest: Option<u64>,
    is_loaded: bool,
    is_new: bool,
    is_committed: bool,
    is_dirty: bool,
    is_idle: bool,
}

impl Share {
    fn of(group: &BlockGroup) -> Self {
        let available = group.available();
        let is_loaded = group.free.is_some();
        let free = group.free.as_ref().filter(|_| !group.read_only);
        Self {
            flags: group.flags,
            totals: KindTotals {
                available: available.into(),
                loaded: if is_loaded { available.into() } else { 0 },
                used: u128::from(group.used) + u128::from(group.promised),
            },
            applied: group.used,
            greatest: free.map(super::ranges::RangeSet::greatest),
            is_loaded,
            is_new: group.is_new(),
            is_committed: group.standing == Standing::Committed,
            is_dirty: group.dirty,
            is_idle: group.used == 0 && group.promised == 0 && group.pinned == 0,
        }
    }

    fn kinds(&self) -> impl Iterator<Item = usize> + use<> {
        let flags = self.flags;
        (0..KINDS.len()).filter(move |kind| flags.contains(KINDS[*kind].flag()))
    }
}

/// Block groups by their first byte.
#[derive(Clone, Debug, Default)]
pub struct BlockGroups {
    groups: BTreeMap<Logical, BlockGroup>,
    kinds: [KindTotals; 3],
    /// Bytes of all items' `used`.
    applied: u128,
    /// Greatest free range and first byte of loaded groups, of each kind.
    by_greatest: [BTreeSet<(u64, Logical)>; 3],
    /// Bytes that can be allocated and first byte of groups that are not
    /// loaded, of each kind.
    unloaded: [BTreeSet<(u64, Logical)>; 3],
    /// Groups of each kind.
    members: [BTreeSet<Logical>; 3],
    /// Flags of groups, and how many have them.
    flags: BTreeMap<u64, usize>,
    new: BTreeSet<Logical>,
    uncommitted: BTreeSet<Logical>,
    dirty: BTreeSet<Logical>,
    idle: BTreeSet<Logical>,
}

const fn slot(kind: SpaceKind) -> usize {
    match kind {
        SpaceKind::Data => 0,
        SpaceKind::Metadata => 1,
        SpaceKind::System => 2,
    }
}

fn narrow(total: u128) -> u64 {
    total.try_into().unwrap_or(u64::MAX)
}

/// Puts `at` into a set, or takes it out.
fn set<T: Ord>(set: &mut BTreeSet<T>, at: T, is_in: bool) {
    if is_in {
        set.insert(at);
    } else {
        set.remove(&at);
    }
}

impl BlockGroups {
    /// The group that begins at `start`.
    pub fn get(&self, start: Logical) -> Option<&BlockGroup> {
        self.groups.get(&start)
    }

    /// The group that `at` lies in.
    pub fn containing(&self, at: Logical) -> Option<&BlockGroup> {
        let (_, group) = self.groups.range(..=at).next_back()?;
        (at.get() < group.end()).then_some(group)
    }

    /// All, ascending.
    pub fn values(&self) -> impl Iterator<Item = &BlockGroup> {
        self.groups.values()
    }

    /// Number of groups.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Number of groups of `kind`.
    pub fn count(&self, kind: SpaceKind) -> usize {
        self.members[slot(kind)].len()
    }

    /// Adds a group, or replaces the one that begins at the same place.
    pub fn insert(&mut self, group: BlockGroup) {
        self.remove(group.start);
        self.enter(group.start, &Share::of(&group));
        for kind in Share::of(&group).kinds() {
            self.members[kind].insert(group.start);
        }
        *self.flags.entry(group.flags.0).or_insert(0) += 1;
        self.groups.insert(group.start, group);
    }

    /// Takes a group out.
    pub fn remove(&mut self, start: Logical) -> Option<BlockGroup> {
        let group = self.groups.remove(&start)?;
        self.leave(start, &Share::of(&group));
        for members in &mut self.members {
            members.remove(&start);
        }
        if let Some(count) = self.flags.get_mut(&group.flags.0) {
            *count -= 1;
            if *count == 0 {
                self.flags.remove(&group.flags.0);
            }
        }
        Some(group)
    }

    /// Changes the group that begins at `start`; `None` when there is none.
    pub fn change<R>(
        &mut self,
        start: Logical,
        change: impl FnOnce(&mut BlockGroup) -> R,
    ) -> Option<R> {
        let group = self.groups.get_mut(&start)?;
        let before = Share::of(group);
        let result = change(group);
        let after = Share::of(group);
        if before != after {
            self.replace(start, &before, &after);
        }
        Some(result)
    }

    fn replace(&mut self, start: Logical, before: &Share, after: &Share) {
        for kind in before.kinds() {
            self.kinds[kind].subtract(&before.totals);
            self.kinds[kind].add(&after.totals);
        }
        self.applied = self.applied - u128::from(before.applied) + u128::from(after.applied);
        if before.greatest != after.greatest {
            for kind in before.kinds() {
                if let Some(greatest) = before.greatest {
                    self.by_greatest[kind].remove(&(greatest, start));
                }
                if let Some(greatest) = after.greatest {
                    self.by_greatest[kind].insert((greatest, start));
                }
            }
        }
        if (before.is_loaded, after.is_loaded) != (true, true) {
            self.index_unloaded(start, before, false);
            self.index_unloaded(start, after, true);
        }
        self.index_standing(start, Some(before), Some(after));
    }

    fn enter(&mut self, start: Logical, share: &Share) {
        for kind in share.kinds() {
            self.kinds[kind].add(&share.totals);
            if let Some(greatest) = share.greatest {
                self.by_greatest[kind].insert((greatest, start));
            }
        }
        self.applied += u128::from(share.applied);
        self.index_unloaded(start, share, true);
        self.index_standing(start, None, Some(share));
    }

    fn leave(&mut self, start: Logical, share: &Share) {
        for kind in share.kinds() {
            self.kinds[kind].subtract(&share.totals);
            if let Some(greatest) = share.greatest {
                self.by_greatest[kind].remove(&(greatest, start));
            }
        }
        self.applied -= u128::from(share.applied);
        self.index_unloaded(start, share, false);
        self.index_standing(start, Some(share), None);
    }

    fn index_unloaded(&mut self, start: Logical, share: &Share, is_in: bool) {
        if share.is_loaded {
            return;
        }
        for kind in share.kinds() {
            let place = (narrow(share.totals.available), start);
            set(&mut self.unloaded[kind], place, is_in);
        }
    }

    fn index_standing(&mut self, start: Logical, before: Option<&Share>, after: Option<&Share>) {
        let follow = |of: &mut BTreeSet<Logical>, is: fn(&Share) -> bool| {
            let (was, is) = (before.is_some_and(is), after.is_some_and(is));
            if was != is {
                set(of, start, is);
            }
        };
        follow(&mut self.new, |share| share.is_new);
        follow(&mut self.uncommitted, |share| !share.is_committed);
        follow(&mut self.dirty, |share| share.is_dirty);
        follow(&mut self.idle, |share| share.is_idle);
    }

    /// Bytes of groups of `kind` that can be allocated.
    pub fn available(&self, kind: SpaceKind) -> u64 {
        narrow(self.kinds[slot(kind)].available)
    }

    /// The part of [`BlockGroups::available`] in groups that are loaded.
    pub fn loaded(&self, kind: SpaceKind) -> u64 {
        narrow(self.kinds[slot(kind)].loaded)
    }

    /// Bytes of extents of `kind`, applied or promised.
    pub fn used(&self, kind: SpaceKind) -> u64 {
        narrow(self.kinds[slot(kind)].used)
    }

    /// Bytes that all groups' items call used.
    pub fn applied(&self) -> u64 {
        narrow(self.applied)
    }

    /// Flags of the newest group of `kind`.
    pub fn newest_flags(&self, kind: SpaceKind) -> Option<BlockGroupFlags> {
        let start = self.members[slot(kind)].last()?;
        self.groups.get(start).map(|group| group.flags)
    }

    /// The different flags of groups of `kind`.
    pub fn flags_of(&self, kind: SpaceKind) -> impl Iterator<Item = BlockGroupFlags> {
        let all = self.flags.keys().map(|flags| BlockGroupFlags(*flags));
        all.filter(move |flags| flags.contains(kind.flag()))
    }

    /// Of the loaded groups of `kind` whose greatest free range has `length`
    /// bytes or more, the one in which this range is the smallest. With
    /// `after`, the next one behind that in this order.
    pub fn next_fitting(
        &self,
        kind: SpaceKind,
        length: u64,
        after: Option<(u64, Logical)>,
    ) -> Option<(u64, Logical)> {
        let sets = &self.by_greatest[slot(kind)];
        match after {
            None => sets.range((length, Logical(0))..).next().copied(),
            Some(place) => sets
                .range((std::ops::Bound::Excluded(place), std::ops::Bound::Unbounded))
                .next()
                .copied(),
        }
    }

    /// The loaded group of `kind` with the greatest free range, and that range.
    pub fn roomiest(&self, kind: SpaceKind) -> Option<(u64, Logical)> {
        self.by_greatest[slot(kind)].last().copied()
    }

    /// The group of `kind` with the most space among those that are not loaded;
    /// `None` if none of them has space.
    pub fn roomiest_unloaded(&self, kind: SpaceKind) -> Option<Logical> {
        let (available, start) = self.unloaded[slot(kind)].last().copied()?;
        (available > 0).then_some(start)
    }

    /// The first group whose items are not in the trees.
    pub fn first_new(&self) -> Option<Logical> {
        self.new.first().copied()
    }

    /// Groups that the last commit does not have.
    pub fn uncommitted(&self) -> Vec<Logical> {
        self.uncommitted.iter().copied().collect()
    }

    /// Groups whose `used` changed since their items were written.
    pub fn dirty(&self) -> Vec<Logical> {
        self.dirty.iter().copied().collect()
    }

    /// True if `used` of some group changed since its item was written.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Groups of `kind` in which nothing is used, promised or pinned.
    pub fn idle(&self, kind: SpaceKind) -> Vec<Logical> {
        let idle = self.idle.intersection(&self.members[slot(kind)]);
        idle.copied().collect()
    }

    /// Errors unless the totals are the sums over all groups. It runs once for
    /// each commit, which makes it cheap.
    ///
    /// # Errors
    /// [`StoreError::Internal`]
    pub fn verify(&self) -> Result<(), StoreError> {
        let mut kinds = [KindTotals::default(); 3];
        let mut applied = 0_u128;
        for group in self.groups.values() {
            let share = Share::of(group);
            for kind in share.kinds() {
                kinds[kind].add(&share.totals);
            }
            applied += u128::from(share.applied);
        }
        if kinds != self.kinds || applied != self.applied {
            return Err(StoreError::Internal(
                "the totals of space are not the sums over block groups",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::ranges::RangeSet;

    const LENGTH: u64 = 1 << 20;

    fn group(start: u64, flags: BlockGroupFlags) -> BlockGroup {
        BlockGroup {
            start: Logical(start),
            length: LENGTH,
            flags,
            used: 0,
            promised: 0,
            pinned: 0,
            excluded: Vec::new(),
            free: None,
            cursor: start,
            dirty: false,
            standing: Standing::New,
            read_only: false,
            row: None,
            left_over: RangeSet::default(),
        }
    }

    /// Checks every index against the groups alone.
    fn verify_indexes(all: &BlockGroups) {
        all.verify().unwrap();
        let mut fresh = BlockGroups::default();
        for group in all.values() {
            let share = Share::of(group);
            fresh.enter(group.start, &share);
            for kind in share.kinds() {
                fresh.members[kind].insert(group.start);
            }
        }
        assert_eq!(fresh.kinds, all.kinds);
        assert_eq!(fresh.applied, all.applied);
        assert_eq!(fresh.by_greatest, all.by_greatest);
        assert_eq!(fresh.unloaded, all.unloaded);
        assert_eq!(fresh.members, all.members);
        assert_eq!(fresh.new, all.new);
        assert_eq!(fresh.uncommitted, all.uncommitted);
        assert_eq!(fresh.dirty, all.dirty);
        assert_eq!(fresh.idle, all.idle);
    }

    /// Random changes of groups of all kinds. Totals and indexes are compared
    /// with sums.
    #[test]
    fn totals_follow_random_changes() {
        let mut all = BlockGroups::default();
        let mut random = 1_u64;
        let mut next = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let flags = [
            BlockGroupFlags::DATA,
            BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
            BlockGroupFlags::SYSTEM,
            BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
        ];
        for step in 0..20_000 {
            let start = next(40) * LENGTH;
            let at = Logical(start);
            match next(12) {
                0 => all.insert(group(start, flags[next(4) as usize])),
                1 => drop(all.remove(at)),
                2 => drop(all.change(at, |group| {
                    let mut free = RangeSet::default();
                    free.insert(start..start + LENGTH);
                    group.free = Some(free);
                    (group.used, group.promised, group.pinned) = (0, 0, 0);
                })),
                3 => drop(all.change(at, |group| group.standing = Standing::Entered)),
                4 => drop(all.change(at, |group| group.standing = Standing::Committed)),
                5 => drop(all.change(at, |group| group.dirty = !group.dirty)),
                6 => drop(all.change(at, |group| group.read_only = !group.read_only)),
                7 => drop(all.change(at, |group| {
                    let moved = group.promised;
                    group.promised = 0;
                    group.used += moved;
                })),
                8 => drop(all.change(at, |group| {
                    let range = start + 4096 * next(64)..start + LENGTH;
                    if let Some(free) = &mut group.free {
                        free.insert(range);
                    }
                })),
                _ => drop(all.change(at, |group| group.take(4096 * (1 + next(16)), 4096))),
            }
            if step % 16 == 0 {
                verify_indexes(&all);
            }
        }
        assert!(all.len() > 10);
        let found = all.next_fitting(SpaceKind::Data, 4096, None);
        let (greatest, start) = found.expect("some group has room");
        let found = all.get(start).and_then(|group| group.free.as_ref());
        assert_eq!(found.map(RangeSet::greatest), Some(greatest));
    }

    /// A total that a fault changed is found.
    #[test]
    fn a_wrong_total_is_found() {
        let mut all = BlockGroups::default();
        all.insert(group(0, BlockGroupFlags::DATA));
        all.verify().unwrap();
        all.applied += 1;
        assert!(all.verify().is_err());
    }
}
