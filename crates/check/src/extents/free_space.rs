//! Compares the free-space tree with the extents.

use super::scan::{GROUP_BYTES, Group};
use crate::budget::{Taken, bytes_of};
use crate::code::FaultCode;
use crate::context::Context;
use crate::ranges::Ranges;
use crate::report::Place;
use crate::walk::{Leaf, Visitor};
use butterfs_format::bytes::Reader;
use butterfs_format::superblock::{COPIES, COPY_SPAN};
use butterfs_format::{ItemType, Key, Logical, ParseError, TreeId};
use butterfs_volume::Profile;
use std::ops::Range;
use thiserror::Error;

/// Flag of a free-space info: the free space of its block group is in bitmaps.
const USING_BITMAPS: u32 = 1;

/// A free range.
#[derive(Clone, Copy, Debug)]
struct Free {
    start: u64,
    end: u64,
}

/// The free-space info of one block group.
#[derive(Clone, Copy, Debug)]
struct Info {
    key: Key,
    ranges: u32,
    uses_bitmaps: bool,
}

/// The form in which some free space is stored, and the block group in which it
/// lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    group: u64,
    key: Key,
    is_bitmap: bool,
}

/// What a part of the free-space tree says.
#[derive(Debug, Default)]
pub(crate) struct FreeRun {
    infos: Vec<Info>,
    /// The form at each item where the form or the block group changes.
    forms: Vec<Form>,
    free: Vec<Free>,
    /// The first item, and the end of the last one.
    first: Option<Key>,
    end: u64,
    orphans: Orphans,
}

/// Items that belong to no block group: how many, and between which
/// addresses.
#[derive(Clone, Copy, Debug, Default)]
struct Orphans {
    count: u64,
    start: u64,
    end: u64,
}

impl Orphans {
    /// Joins the orphans of two neighbouring parts.
    fn join(self, later: Self) -> Self {
        if self.count == 0 || later.count == 0 {
            return if self.count == 0 { later } else { self };
        }
        Self {
            count: self.count.saturating_add(later.count),
            start: self.start.min(later.start),
            end: self.end.max(later.end),
        }
    }

    fn add(&mut self, key: Key) {
        let one = Self {
            count: 1,
            start: key.objectid,
            end: key.objectid.saturating_add(key.offset),
        };
        *self = self.join(one);
    }
}

impl FreeRun {
    /// Bytes of memory that it takes.
    fn memory(&self) -> u64 {
        let groups = self.infos.len().saturating_add(self.forms.len());
        bytes_of(groups, GROUP_BYTES).saturating_add(bytes_of(self.free.len(), FREE_BYTES))
    }
}

/// Bytes of memory for each free range, while the lists of them grow.
const FREE_BYTES: u64 = 32;

/// Reads the free-space tree.
pub(crate) struct FreeScan<'s, 'a> {
    pub(crate) context: &'s Context<'a>,
    pub(crate) taken: &'s Taken,
    /// All block groups, sorted.
    pub(crate) groups: &'s [Group],
}

/// What is wrong with an item of the free-space tree.
#[derive(Debug, Error)]
enum FreeSpaceFault {
    /// It ends early.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Its key names an empty range, or one that is not of whole sectors.
    #[error("its range is not one of whole sectors")]
    Range,
    /// A free-space info is too long or has unknown flags.
    #[error("it has {bytes} bytes and flags {flags:#x}")]
    Info { bytes: usize, flags: u32 },
    /// An item of another type.
    #[error("the free-space tree holds no such item")]
    Type,
    /// A bitmap does not fit its range.
    #[error("{bytes} bytes are no bitmap of {bits} sectors")]
    Bitmap { bytes: u64, bits: u64 },
}

impl FreeScan<'_, '_> {
    fn item(&self, run: &mut FreeRun, key: Key, data: &[u8]) -> Result<(), FreeSpaceFault> {
        let sector = self.context.sector();
        let end = key.objectid.checked_add(key.offset);
        let aligned = key.objectid.is_multiple_of(sector) && key.offset.is_multiple_of(sector);
        let Some(end) = end.filter(|_| aligned && key.offset > 0) else {
            return Err(FreeSpaceFault::Range);
        };
        let is_bitmap = key.item_type == ItemType::FREE_SPACE_BITMAP;
        match key.item_type {
            ItemType::FREE_SPACE_INFO => {
                let mut r = Reader::new("free space info", data);
                let ranges = r.u32()?;
                let flags = r.u32()?;
                if r.remaining() != 0 || flags & !USING_BITMAPS != 0 {
                    return Err(FreeSpaceFault::Info {
                        bytes: data.len(),
                        flags,
                    });
                }
                run.infos.push(Info {
                    key,
                    ranges,
                    uses_bitmaps: flags & USING_BITMAPS != 0,
                });
                return Ok(());
            }
            ItemType::FREE_SPACE_EXTENT if data.is_empty() => run.free.push(Free {
                start: key.objectid,
                end,
            }),
            ItemType::FREE_SPACE_BITMAP => bitmap(run, key, data, sector)?,
            _ => return Err(FreeSpaceFault::Type),
        }
        self.holder(run, key, is_bitmap);
        Ok(())
    }

    fn fault(&self, code: FaultCode, key: Key, text: String) {
        let place = Place::item(TreeId::FREE_SPACE, key);
        self.context.fault(code, place, text);
    }

    /// Checks where an item of free space lies: after the items before it, and
    /// within one block group.
    fn holder(&self, run: &mut FreeRun, key: Key, is_bitmap: bool) {
        if run.first.is_none() {
            run.first = Some(key);
        } else if key.objectid < run.end {
            self.overlap(key, run.end);
        }
        let end = key.objectid.saturating_add(key.offset);
        run.end = run.end.max(end);
        let Some(group) = group_at(self.groups, key.objectid) else {
            if let Some(text) = reaches_into(self.groups, key) {
                self.fault(FaultCode::FreeSpaceWrongGroup, key, text);
            }
            return run.orphans.add(key);
        };
        if end > group.end {
            let text = format!("it reaches out of the block group at {}", group.start);
            self.fault(FaultCode::FreeSpaceWrongGroup, key, text);
        }
        let form = Form {
            group: group.start,
            key,
            is_bitmap,
        };
        let last = run.forms.last();
        if last.is_none_or(|last| (last.group, last.is_bitmap) != (form.group, is_bitmap)) {
            run.forms.push(form);
        }
    }

    fn overlap(&self, key: Key, end: u64) {
        let text = format!("it overlaps the free range before it, which ends at {end}");
        self.fault(FaultCode::FreeSpaceInvalid, key, text);
    }
}

fn bitmap(run: &mut FreeRun, key: Key, data: &[u8], sector: u64) -> Result<(), FreeSpaceFault> {
    let bits = key.offset.checked_div(sector).unwrap_or(0);
    let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
    if bytes != bits.div_ceil(8) {
        return Err(FreeSpaceFault::Bitmap { bytes, bits });
    }
    let mut at = key.objectid;
    let mut left = bits;
    for byte in data {
        let mut byte = *byte;
        for _ in 0..left.min(8) {
            let next = at.saturating_add(sector);
            if byte & 1 == 1 {
                match run.free.last_mut() {
                    Some(last) if last.end == at && at > key.objectid => last.end = next,
                    _ => run.free.push(Free {
                        start: at,
                        end: next,
                    }),
                }
            }
            byte >>= 1;
            at = next;
        }
        left = left.saturating_sub(8);
    }
    Ok(())
}

impl Visitor for FreeScan<'_, '_> {
    type Summary = FreeRun;

    fn leaf(&self, leaf: &Leaf<'_>) -> FreeRun {
        let mut run = FreeRun::default();
        for (key, data) in leaf.items() {
            if let Err(fault) = self.item(&mut run, key, data) {
                let text = fault.to_string();
                self.context
                    .fault(FaultCode::FreeSpaceInvalid, leaf.item(key), text);
            }
        }
        self.taken.add(run.memory());
        run
    }

    fn join(&self, mut left: FreeRun, right: FreeRun) -> FreeRun {
        left.infos.extend(right.infos);
        if let (Some(_), Some(key)) = (left.first, right.first)
            && key.objectid < left.end
        {
            self.overlap(key, left.end);
        }
        left.first = left.first.or(right.first);
        left.end = left.end.max(right.end);
        left.orphans = left.orphans.join(right.orphans);
        left.forms.extend(right.forms);
        left.free.extend(right.free);
        left
    }

    fn gap(&self) -> FreeRun {
        FreeRun::default()
    }
}

/// Returns the block group that covers `at`.
fn group_at(groups: &[Group], at: u64) -> Option<Range<u64>> {
    let next = groups.partition_point(|(key, _)| key.objectid <= at);
    let (key, _) = groups.get(next.checked_sub(1)?)?;
    let range = key.objectid..key.objectid.saturating_add(key.offset);
    range.contains(&at).then_some(range)
}

/// Returns what is wrong with an item whose start lies in no block group. An
/// orphan lies outside of block groups as a whole, so an item that reaches into
/// one is no orphan.
fn reaches_into(groups: &[Group], key: Key) -> Option<String> {
    let next = groups.partition_point(|(group, _)| group.objectid <= key.objectid);
    let (group, _) = groups.get(next)?;
    let end = key.objectid.saturating_add(key.offset);
    let at = group.objectid;
    (end > at).then(|| format!("it reaches into the block group at {at}"))
}

/// Returns the logical space that lies on superblocks, as whole rows of stripe
/// elements.
pub(crate) fn superblocks(context: &Context<'_>) -> Ranges {
    let mut all = Vec::new();
    for (start, chunk) in context.map.iter() {
        let Some(profile) = Profile::from_flags(chunk.flags) else {
            continue;
        };
        let columns = if profile.is_striped() {
            u64::try_from(profile.data_stripes(chunk.stripes.len())).unwrap_or(1)
        } else {
            1
        };
        for (stripe, copy) in chunk
            .stripes
            .iter()
            .flat_map(|s| COPIES.map(|copy| (s, copy)))
        {
            let Some(within) = copy.get().checked_sub(stripe.offset.get()) else {
                continue;
            };
            let rows = within / COPY_SPAN..within.saturating_add(COPY_SPAN).div_ceil(COPY_SPAN);
            let row = COPY_SPAN.saturating_mul(columns);
            let (from, to) = (rows.start.saturating_mul(row), rows.end.saturating_mul(row));
            if from < chunk.length {
                let to = to.min(chunk.length);
                all.push((
                    start.saturating_add(from).get(),
                    start.saturating_add(to).get(),
                ));
            }
        }
    }
    all.sort_unstable();
    let mut ranges = Ranges::default();
    for (from, to) in all {
        ranges.push(from, to);
    }
    ranges
}

/// Compares the free-space tree with block groups (sorted) and used space.
pub(crate) fn compare(context: &Context<'_>, run: &FreeRun, groups: &[Group], used: [&Ranges; 2]) {
    let fault = |code, key, text: String| {
        context.fault(code, Place::item(TreeId::FREE_SPACE, key), text);
    };
    forms(run, &fault);
    let superblocks = superblocks(context);
    let mut orphans = run.orphans;
    let mut free = run.free.iter().peekable();
    let mut infos = run.infos.iter().peekable();
    for (key, _) in groups {
        let group = key.objectid..key.objectid.saturating_add(key.offset);
        while let Some(info) = infos.next_if(|info| info.key.objectid < group.start) {
            if let Some(text) = reaches_into(groups, info.key) {
                fault(FaultCode::FreeSpaceWrongGroup, info.key, text);
            }
            orphans.add(info.key);
        }
        let info = infos.next_if(|info| info.key.objectid == group.start);
        while free.next_if(|range| range.start < group.start).is_some() {}
        let mut found = Ranges::default();
        let mut count: u32 = 0;
        let mut end = None;
        while let Some(range) = free.next_if(|range| range.start < group.end) {
            let touches = end == Some(range.start);
            let in_bitmaps = info.is_some_and(|info| info.uses_bitmaps);
            // A free range may continue in the next bitmap and counts once.
            // Outside of bitmaps, each item counts.
            if !touches || !in_bitmaps {
                count = count.saturating_add(1);
            }
            if touches && info.is_some() && !in_bitmaps {
                split(range, &fault);
            }
            end = Some(range.end);
            found.push(range.start, range.end.min(group.end));
        }
        let Some(info) = info else {
            let text = format!("the block group at {} has no free-space info", group.start);
            let place = Place {
                tree: Some(TreeId::FREE_SPACE),
                key: None,
                logical: Some(Logical(group.start)),
            };
            context.fault(FaultCode::FreeSpaceInfoMissing, place, text);
            continue;
        };
        if info.key.offset != key.offset {
            let text = format!("its block group has {} bytes", key.offset);
            fault(FaultCode::FreeSpaceWrongGroup, info.key, text);
        }
        if info.ranges != count {
            let text = format!(
                "it counts {} free ranges where there are {count}",
                info.ranges
            );
            fault(FaultCode::FreeSpaceCount, info.key, text);
        }
        let [data, nodes] = used;
        let used = data.part(group.clone()).union(&nodes.part(group.clone()));
        let real = used.gaps_within(group);
        if found != real {
            // No writer allocates space on a superblock, so it may be missing
            // in the free-space tree.
            let real_without = real.without(&superblocks);
            let found_without = found.without(&superblocks);
            differences(info, &found_without, &real_without, &fault);
        }
    }
    for info in infos {
        orphans.add(info.key);
    }
    if orphans.count > 0 {
        let text = format!(
            "{} items between logical {} and {} belong to no block group",
            orphans.count, orphans.start, orphans.end
        );
        context.fault(
            FaultCode::FreeSpaceOrphan,
            Place::tree(TreeId::FREE_SPACE),
            text,
        );
    }
}

/// Reports a free range that begins where the one before it ends. Writers keep
/// such a pair as one item, and look for it as one item.
fn split(range: &Free, fault: &impl Fn(FaultCode, Key, String)) {
    let length = range.end.saturating_sub(range.start);
    let key = Key::new(range.start, ItemType::FREE_SPACE_EXTENT, length);
    let text = "it touches the free range before it; both should be one item".to_owned();
    fault(FaultCode::FreeSpaceInvalid, key, text);
}

fn differences(
    info: &Info,
    found: &Ranges,
    real: &Ranges,
    fault: &impl Fn(FaultCode, Key, String),
) {
    for range in found.without(real).iter() {
        let bytes = range.end.saturating_sub(range.start);
        let text = format!(
            "{bytes} bytes at logical {} are called free but are in use",
            range.start
        );
        fault(FaultCode::FreeSpaceOverlapsExtent, info.key, text);
    }
    for range in real.without(found).iter() {
        let bytes = range.end.saturating_sub(range.start);
        let text = format!(
            "{bytes} bytes at logical {} are free but not called so",
            range.start
        );
        fault(FaultCode::FreeSpaceMissing, info.key, text);
    }
}

/// Checks that free space has the form that the info of its block group names.
fn forms(run: &FreeRun, fault: &impl Fn(FaultCode, Key, String)) {
    let uses_bitmaps: rustc_hash::FxHashMap<u64, bool> = run
        .infos
        .iter()
        .map(|info| (info.key.objectid, info.uses_bitmaps))
        .collect();
    for form in &run.forms {
        if uses_bitmaps.get(&form.group) == Some(&!form.is_bitmap) {
            let text = format!(
                "the block group at {} has its free space in the other form",
                form.group
            );
            fault(FaultCode::FreeSpaceInvalid, form.key, text);
        }
    }
}
