//! Filters: which block groups a balance takes.
//!
//! Owns the words of filters (as in btrfs-balance(8)), their form in the balance
//! item, and what they mean for a block group.

use butterfs_format::Logical;
use butterfs_format::item::balance::{
    BalanceArgs, BalanceFilters, extended_profile, halves, joined, profile_of,
};
use butterfs_format::item::chunk::{BlockGroupFlags, Stripe};
use butterfs_store::SpaceKind;
use butterfs_volume::Profile;
use std::fmt;
use thiserror::Error;

/// A filter that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotAFilter(String);

/// Whether block groups that already have the wanted profile stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Soft {
    /// They are balanced too.
    #[default]
    No,
    /// They stay.
    Yes,
}

/// Filters for one kind of block groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter(BalanceArgs);

/// The facts about a block group that filters need.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) start: Logical,
    pub(super) flags: BlockGroupFlags,
    pub(super) length: u64,
    pub(super) used: u64,
    pub(super) stripes: Vec<Stripe>,
}

impl Candidate {
    /// Bytes that the block group takes of each device that holds a stripe.
    fn stripe_length(&self) -> u64 {
        let data = Profile::from_flags(self.flags)
            .map_or(1, |profile| profile.data_stripes(self.stripes.len()));
        self.length / (data.max(1) as u64)
    }
}

/// Filters for each kind of block groups. A kind with `None` is not balanced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Block groups of data.
    pub data: Option<Filter>,
    /// Block groups of metadata.
    pub metadata: Option<Filter>,
    /// Block groups of the system (chunk tree).
    pub system: Option<Filter>,
}

const PROFILES: [(&str, BlockGroupFlags); 9] = [
    ("single", BlockGroupFlags(0)),
    ("dup", BlockGroupFlags::DUP),
    ("raid0", BlockGroupFlags::RAID0),
    ("raid1", BlockGroupFlags::RAID1),
    ("raid1c3", BlockGroupFlags::RAID1C3),
    ("raid1c4", BlockGroupFlags::RAID1C4),
    ("raid10", BlockGroupFlags::RAID10),
    ("raid5", BlockGroupFlags::RAID5),
    ("raid6", BlockGroupFlags::RAID6),
];

fn not(text: impl fmt::Display, what: &str) -> NotAFilter {
    NotAFilter(format!("`{text}` {what}"))
}

fn profile(word: &str) -> Result<BlockGroupFlags, NotAFilter> {
    let word = word.to_ascii_lowercase();
    let found = PROFILES.iter().find(|(name, _)| *name == word);
    found
        .map(|(_, flags)| *flags)
        .ok_or_else(|| not(word, "is no profile"))
}

fn number<N: std::str::FromStr>(word: &str) -> Result<N, NotAFilter> {
    word.parse().map_err(|_| not(word, "is no number here"))
}

/// Parses `a..b`, `a..` or `..b`; `least` and `greatest` replace a missing end.
/// Returns `None` if the word is no range.
fn ends<N: std::str::FromStr + Copy>(
    word: &str,
    (least, greatest): (N, N),
) -> Result<Option<(N, N)>, NotAFilter> {
    let Some((from, to)) = word.split_once("..") else {
        return Ok(None);
    };
    let end = |word: &str, missing| match word {
        "" => Ok(missing),
        word => number(word),
    };
    Ok(Some((end(from, least)?, end(to, greatest)?)))
}

impl Filter {
    /// Parses filters such as `usage=50,limit=2..10`. An empty text means all
    /// block groups.
    ///
    /// # Errors
    /// [`NotAFilter`] if a word is not understood, or needs another one that is
    /// missing.
    pub fn parse(text: &str) -> Result<Self, NotAFilter> {
        let mut filter = Self::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            filter.add(name, value)?;
        }
        let flags = filter.0.filters;
        if flags.contains(BalanceFilters::SOFT) && !flags.contains(BalanceFilters::CONVERT) {
            return Err(not("soft", "goes with convert only"));
        }
        if flags.contains(BalanceFilters::DRANGE) && !flags.contains(BalanceFilters::DEVID) {
            return Err(not("drange", "goes with devid only"));
        }
        Ok(filter)
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), NotAFilter> {
        let args = &mut self.0;
        args.filters |= match name {
            "profiles" => {
                for word in value.split('|') {
                    args.profiles |= extended_profile(profile(word)?);
                }
                BalanceFilters::PROFILES
            }
            "usage" => match ends::<u32>(value, (0, 100))? {
                Some((least, most)) => {
                    if least > most || most > 100 {
                        return Err(not(value, "is no range of percents"));
                    }
                    args.usage = joined(least, most);
                    BalanceFilters::USAGE_RANGE
                }
                None => {
                    args.usage = number(value)?;
                    if args.usage > 100 {
                        return Err(not(value, "is more than 100 percent"));
                    }
                    BalanceFilters::USAGE
                }
            },
            "devid" => {
                args.device = number(value)?;
                BalanceFilters::DEVID
            }
            "drange" | "vrange" => {
                let range = ends::<u64>(value, (0, u64::MAX))?;
                let range = range.filter(|(from, to)| from < to);
                let range = range.ok_or_else(|| not(value, "is no range of bytes"))?;
                if name == "drange" {
                    args.physical = range;
                    BalanceFilters::DRANGE
                } else {
                    args.logical = range;
                    BalanceFilters::VRANGE
                }
            }
            "limit" => match ends::<u32>(value, (0, u32::MAX))? {
                Some((least, most)) => {
                    args.limit = joined(least, most);
                    BalanceFilters::LIMIT_RANGE
                }
                None => {
                    args.limit = number(value)?;
                    BalanceFilters::LIMIT
                }
            },
            "stripes" => {
                let range = ends::<u32>(value, (0, u32::MAX))?;
                args.stripes = match range {
                    Some(range) => range,
                    None => (number(value)?, number(value)?),
                };
                BalanceFilters::STRIPES_RANGE
            }
            "convert" => {
                args.target = extended_profile(profile(value)?);
                BalanceFilters::CONVERT
            }
            "soft" if value.is_empty() => BalanceFilters::SOFT,
            _ => {
                return Err(not(
                    name,
                    "is no filter: there are profiles, usage, devid, drange, vrange, convert, \
                     soft, limit and stripes",
                ));
            }
        };
        Ok(())
    }

    const fn has(&self, filter: BalanceFilters) -> bool {
        self.0.filters.contains(filter)
    }

    /// Returns the filters in the form of the balance item.
    #[must_use]
    pub const fn args(&self) -> BalanceArgs {
        self.0
    }

    /// Returns the profile to convert to, if there is one.
    #[must_use]
    pub fn target(&self) -> Option<BlockGroupFlags> {
        let converts = self.has(BalanceFilters::CONVERT);
        converts.then(|| profile_of(self.0.target))
    }

    /// Returns `percent` of `length`, in bytes.
    fn share(length: u64, percent: u64) -> u64 {
        let share = u128::from(length) * u128::from(percent.min(100)) / 100;
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    fn matches_usage(&self, group: &Candidate) -> bool {
        // 0 percent matches only empty block groups.
        let below = |percent: u64| match percent {
            0 => group.used == 0,
            percent => group.used < Self::share(group.length, percent),
        };
        if self.has(BalanceFilters::USAGE) && !below(self.0.usage) {
            return false;
        }
        if self.has(BalanceFilters::USAGE_RANGE) {
            let (least, most) = halves(self.0.usage);
            let from = Self::share(group.length, least.into());
            return group.used >= from && below(most.into());
        }
        true
    }

    /// True when a stripe of the block group lies where `devid` and `drange`
    /// say and the block group lies where `vrange` says.
    fn matches_place(&self, group: &Candidate) -> bool {
        let args = &self.0;
        let length = group.stripe_length();
        let on_device = |stripe: &&Stripe| {
            !self.has(BalanceFilters::DEVID) || stripe.device.get() == args.device
        };
        let in_range = |stripe: &Stripe| {
            let (from, to) = args.physical;
            let start = stripe.offset.get();
            !self.has(BalanceFilters::DRANGE) || (start < to && start.saturating_add(length) > from)
        };
        if !group.stripes.iter().filter(on_device).any(in_range) {
            return false;
        }
        let (from, to) = args.logical;
        let start = group.start.get();
        !self.has(BalanceFilters::VRANGE)
            || (start < to && start.saturating_add(group.length) > from)
    }

    /// Whether a block group of the right kind matches all filters but limits.
    fn matches(&self, group: &Candidate) -> bool {
        let args = &self.0;
        let profile = extended_profile(group.flags);
        if self.has(BalanceFilters::PROFILES) && args.profiles & profile == 0 {
            return false;
        }
        let count = u32::try_from(group.stripes.len()).unwrap_or(u32::MAX);
        let (least, most) = args.stripes;
        if self.has(BalanceFilters::STRIPES_RANGE) && !(least..=most).contains(&count) {
            return false;
        }
        if self.has(BalanceFilters::CONVERT)
            && self.has(BalanceFilters::SOFT)
            && profile == args.target
        {
            return false;
        }
        self.matches_usage(group) && self.matches_place(group)
    }

    /// Returns the least and the greatest number of block groups to take.
    fn limits(&self) -> (usize, usize) {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        if self.has(BalanceFilters::LIMIT) {
            return (0, size(self.0.limit));
        }
        if self.has(BalanceFilters::LIMIT_RANGE) {
            let (least, most) = halves(self.0.limit);
            return (size(least.into()), size(most.into()));
        }
        (0, usize::MAX)
    }
}

impl Filters {
    /// Filters that take all block groups.
    #[must_use]
    pub fn all() -> Self {
        Self {
            data: Some(Filter::default()),
            metadata: Some(Filter::default()),
            system: Some(Filter::default()),
        }
    }

    /// Returns the filter for a kind of block groups.
    #[must_use]
    pub const fn of(&self, kind: SpaceKind) -> Option<&Filter> {
        match kind {
            SpaceKind::Data => self.data.as_ref(),
            SpaceKind::Metadata => self.metadata.as_ref(),
            SpaceKind::System => self.system.as_ref(),
        }
    }

    /// Makes filters from those of a balance item.
    #[must_use]
    pub fn of_item(flags: BlockGroupFlags, args: &[BalanceArgs; 3]) -> Self {
        let [data, metadata, system] = args;
        let of = |flag, args: &BalanceArgs| flags.contains(flag).then_some(Filter(*args));
        Self {
            data: of(BlockGroupFlags::DATA, data),
            metadata: of(BlockGroupFlags::METADATA, metadata),
            system: of(BlockGroupFlags::SYSTEM, system),
        }
    }

    /// Returns the filters for a balance that resumes. They leave out block
    /// groups that it already converted, and those that are fuller than `usage`
    /// percent, since the balance probably wrote them.
    #[must_use]
    pub fn to_go_on(&self, usage: u64) -> Self {
        let of = |filter: &Option<Filter>| {
            filter.map(|Filter(mut args)| {
                let either = BalanceFilters::USAGE | BalanceFilters::USAGE_RANGE;
                if args.filters.contains(BalanceFilters::CONVERT) {
                    args.filters |= BalanceFilters::SOFT;
                } else if !args.filters.intersects(either) {
                    args.filters |= BalanceFilters::USAGE;
                    args.usage = usage;
                }
                Filter(args)
            })
        };
        Self {
            data: of(&self.data),
            metadata: of(&self.metadata),
            system: of(&self.system),
        }
    }

    /// Returns the block groups to balance, in the order in which they are taken.
    pub(super) fn choose<'c>(&self, candidates: &'c [Candidate]) -> Vec<&'c Candidate> {
        let kinds = [
            (BlockGroupFlags::DATA, &self.data),
            (BlockGroupFlags::SYSTEM, &self.system),
            (BlockGroupFlags::METADATA, &self.metadata),
        ];
        let mut taken: Vec<&Candidate> = Vec::new();
        for (flag, filter) in kinds {
            let Some(filter) = filter else { continue };
            // Mixed block groups belong to two kinds, and count for the first.
            let is_others = |group: &Candidate| {
                let data = BlockGroupFlags::DATA;
                flag != data && self.data.is_some() && group.flags.contains(data)
            };
            let matching = candidates.iter().filter(|group| {
                group.flags.contains(flag) && !is_others(group) && filter.matches(group)
            });
            let matching: Vec<_> = matching.collect();
            let (least, most) = filter.limits();
            if matching.len() >= least {
                taken.extend(matching.into_iter().take(most));
            }
        }
        taken
    }
}

impl fmt::Display for Filter {
    /// Writes the filters in the form that [`Self::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = &self.0;
        let mut words = Vec::new();
        let range = |name: &str, from: u64, to: u64| format!("{name}={from}..{to}");
        if self.has(BalanceFilters::PROFILES) {
            let names = PROFILES
                .iter()
                .filter(|(_, flags)| args.profiles & extended_profile(*flags) != 0);
            let names: Vec<&str> = names.map(|(name, _)| *name).collect();
            words.push(format!("profiles={}", names.join("|")));
        }
        if self.has(BalanceFilters::USAGE) {
            words.push(format!("usage={}", args.usage));
        }
        if self.has(BalanceFilters::USAGE_RANGE) {
            let (least, most) = halves(args.usage);
            words.push(range("usage", least.into(), most.into()));
        }
        if self.has(BalanceFilters::DEVID) {
            words.push(format!("devid={}", args.device));
        }
        if self.has(BalanceFilters::DRANGE) {
            words.push(range("drange", args.physical.0, args.physical.1));
        }
        if self.has(BalanceFilters::VRANGE) {
            words.push(range("vrange", args.logical.0, args.logical.1));
        }
        if let Some(target) = self.target() {
            let name = PROFILES.iter().find(|(_, flags)| *flags == target);
            words.push(format!(
                "convert={}",
                name.map_or("unknown", |(name, _)| *name)
            ));
        }
        if self.has(BalanceFilters::SOFT) {
            words.push("soft".to_owned());
        }
        if self.has(BalanceFilters::LIMIT) {
            words.push(format!("limit={}", args.limit));
        }
        if self.has(BalanceFilters::LIMIT_RANGE) {
            let (least, most) = halves(args.limit);
            words.push(range("limit", least.into(), most.into()));
        }
        if self.has(BalanceFilters::STRIPES_RANGE) {
            let (least, most) = args.stripes;
            words.push(range("stripes", least.into(), most.into()));
        }
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::{DeviceId, DeviceOffset};

    const GIB: u64 = 1 << 30;

    fn group(index: u64, flags: BlockGroupFlags, used: u64) -> Candidate {
        Candidate {
            start: Logical(index * GIB),
            flags,
            length: GIB,
            used,
            stripes: vec![Stripe {
                device: DeviceId(1),
                offset: DeviceOffset(index * GIB),
                device_uuid: [0; 16],
            }],
        }
    }

    fn chosen(text: &str, groups: &[Candidate]) -> Vec<u64> {
        let filters = Filters {
            data: Some(Filter::parse(text).unwrap()),
            ..Filters::default()
        };
        let chosen = filters.choose(groups);
        chosen.iter().map(|group| group.start.get() / GIB).collect()
    }

    #[test]
    fn mixed_groups_count_once() {
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        let mut groups: Vec<_> = (1..=6).map(|n| group(n, mixed, GIB)).collect();
        groups.push(group(7, BlockGroupFlags::SYSTEM, 0));
        for (text, count) in [
            ("limit=1", 1),
            ("limit=3..3", 3),
            ("", 6),
            ("limit=7..9", 0),
        ] {
            let filter = Some(Filter::parse(text).unwrap());
            let filters = Filters {
                data: filter,
                metadata: filter,
                system: None,
            };
            assert_eq!(filters.choose(&groups).len(), count, "{text}");
        }
    }

    #[test]
    fn filters_choose_as_the_manual_says() {
        const DATA: BlockGroupFlags = BlockGroupFlags::DATA;
        let groups = [
            group(5, DATA, GIB),
            group(4, DATA.union(BlockGroupFlags::DUP), GIB / 2),
            group(3, BlockGroupFlags::METADATA, 0),
            group(2, DATA, GIB / 10),
            group(1, DATA, 0),
        ];
        assert_eq!(chosen("", &groups), [5, 4, 2, 1]);
        assert_eq!(chosen("usage=0", &groups), [1]);
        assert_eq!(chosen("usage=11", &groups), [2, 1]);
        assert_eq!(chosen("usage=100", &groups), [4, 2, 1]);
        assert_eq!(chosen("usage=5..60", &groups), [4, 2]);
        assert_eq!(chosen("profiles=dup|raid1", &groups), [4]);
        assert_eq!(chosen("profiles=single,limit=2", &groups), [5, 2]);
        assert_eq!(chosen("limit=9..", &groups), [] as [u64; 0]);
        assert_eq!(chosen("limit=2..3", &groups), [5, 4, 2]);
        assert_eq!(chosen("convert=dup,soft", &groups), [5, 2, 1]);
        assert_eq!(chosen("convert=dup", &groups), [5, 4, 2, 1]);
        assert_eq!(chosen("devid=2", &groups), [] as [u64; 0]);
        let range = format!("devid=1,drange={}..{}", 2 * GIB, 2 * GIB + 1);
        assert_eq!(chosen(&range, &groups), [2]);
        let range = format!("vrange={}..{}", 4 * GIB + 5, u64::MAX);
        assert_eq!(chosen(&range, &groups), [5, 4]);
        assert_eq!(chosen("stripes=2..", &groups), [] as [u64; 0]);
        assert_eq!(chosen("stripes=1", &groups), [5, 4, 2, 1]);
    }

    #[test]
    fn a_range_of_a_device_meets_the_bytes_that_a_stripe_takes_there() {
        let on = |flags, count: u64| Candidate {
            stripes: (1..=count)
                .map(|device| Stripe {
                    device: DeviceId(device),
                    offset: DeviceOffset(GIB),
                    device_uuid: [0; 16],
                })
                .collect(),
            ..group(1, BlockGroupFlags::DATA.union(flags), 0)
        };
        // A block group of 1 GiB takes this many parts of 1 GiB of each device.
        for (flags, count, parts) in [
            (BlockGroupFlags(0), 1, 1),
            (BlockGroupFlags::DUP, 2, 1),
            (BlockGroupFlags::RAID1, 2, 1),
            (BlockGroupFlags::RAID1C3, 3, 1),
            (BlockGroupFlags::RAID0, 4, 4),
            (BlockGroupFlags::RAID10, 4, 2),
            (BlockGroupFlags::RAID5, 3, 2),
            (BlockGroupFlags::RAID6, 6, 4),
        ] {
            let groups = [on(flags, count)];
            let end = GIB + GIB / parts;
            let range = |from: u64| format!("devid=1,drange={from}..{}", from + 1);
            assert_eq!(chosen(&range(end - 1), &groups), [1], "{flags:?}");
            assert_eq!(chosen(&range(end), &groups), [] as [u64; 0], "{flags:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "",
            "usage=50",
            "usage=5..60",
            "profiles=single|raid1c3",
            "devid=3,drange=5..600,vrange=7..8,convert=single,soft,limit=4,stripes=1..2",
            "limit=1..9",
        ] {
            let filter = Filter::parse(text).unwrap();
            assert_eq!(filter.to_string(), text);
        }
        for bad in [
            "soft",
            "usage=101",
            "usage=9..3",
            "drange=1..2",
            "profiles=raid7",
            "vrange=5",
            "colour=red",
            "limit=x",
        ] {
            assert!(Filter::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_that_goes_on_leaves_alone_what_it_did() {
        let filters = Filters {
            data: Some(Filter::parse("convert=dup").unwrap()),
            metadata: Some(Filter::parse("").unwrap()),
            system: Some(Filter::parse("usage=5").unwrap()),
        };
        let on = filters.to_go_on(90);
        assert_eq!(on.data.unwrap().to_string(), "convert=dup,soft");
        assert_eq!(on.metadata.unwrap().to_string(), "usage=90");
        assert_eq!(on.system.unwrap().to_string(), "usage=5");
    }
}
