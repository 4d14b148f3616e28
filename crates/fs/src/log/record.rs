//! Recording a file in the fsync log.
//!
//! A file is logged with its inode item, all extended attributes, the names
//! that the last commit does not have, and the file extents that changed since
//! they were logged. Where a replay could go wrong, a commit is made instead.
//! These cases are: files of the last commit whose names changed, names that
//! another inode had and that still exists (unless the log says that this inode
//! lost the name, see `fsync`), directories that the last commit does not have, subvolumes of which a snapshot was made, links and special
//! files.

use super::copy::{Items, forget_extents, items, write_items};
use super::names;
use crate::Filesystem;
use crate::dir;
use crate::error::FsError;
use crate::file::extents::{self, Body, Found};
use crate::inode::load_item;
use crate::names::{S_IFMT, S_IFREG};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{InodeId, ItemType, Key, Logical};
use butterfs_store::{Engine, LogTicket, Purpose, StoreError};
use std::ops::Range;

/// Nodes that logging a file touches at most, beside those of its extents.
const NODES: usize = 60;
/// With more file extents than this, a commit is cheaper.
const EXTENTS_MAX: usize = 2000;
/// Everything that the log is to say of a file. It is gathered before anything
/// is edited.
struct Record {
    item: InodeItem,
    /// Items of names and attributes, as the subvolume has them.
    names: Items,
    attributes: Items,
    /// Parts of the file whose extents changed.
    ranges: Vec<Range<u64>>,
}

/// A file extent for the log.
struct LoggedExtent {
    start: u64,
    bytes: Vec<u8>,
    disk: Option<Logical>,
    /// Data whose checksums belong to it.
    sums: Option<Range<u64>>,
}

/// What became of an attempt to log a file.
pub(super) enum Logged {
    /// The log has it.
    Yes(LogTicket),
    /// It needs a commit.
    No,
    /// The log has to say what happened to the names in this directory, where the
    /// file has its only name, or a commit is needed.
    AfterNames(InodeId),
}

impl Logged {
    fn of(ticket: Option<LogTicket>) -> Self {
        ticket.map_or(Self::No, Self::Yes)
    }
}

impl Filesystem {
    /// Puts a file into the log as its tree has it. The inode is not locked, so
    /// others go on to write to it.
    pub(super) fn try_to_log(&self, id: InodeId) -> Result<Logged, FsError> {
        self.store.check_writable()?;
        if let Some(ticket) = self.store.read().ticket_of_logged(id) {
            return Ok(Logged::Yes(ticket));
        }
        let mut engine = match self.store.begin(NODES, Purpose::Grow) {
            Ok(engine) => engine,
            Err(StoreError::NoSpace) => return Ok(Logged::No),
            Err(error) => return Err(error.into()),
        };
        if engine.log().changes_of(id).is_none() {
            return Ok(Logged::Yes(engine.log_ticket()));
        }
        let item = match load_item(&engine, id) {
            Ok(item) => Some(item).filter(|item| item.nlink > 0),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        if item.is_none() {
            match names::known_by(&engine, id)? {
                names::Known::Nobody => return Ok(Logged::Yes(engine.log_ticket())),
                names::Known::Log => {}
                // A log cannot express that a file is gone.
                names::Known::Commit => return Ok(Logged::No),
            }
        }
        let is_file = |item: &InodeItem| item.mode & S_IFMT == S_IFREG;
        if !self.options.log_fsync || !engine.can_log() || !item.as_ref().is_none_or(is_file) {
            return Ok(Logged::No);
        }
        let said = names::bring_up_to_date(&mut engine, None);
        let up_to_date = ticket(&mut engine, said)?;
        let (Some(item), Some(_)) = (item, up_to_date) else {
            return Ok(Logged::of(up_to_date));
        };
        let links = item.nlink;
        let Some(record) = gather(&engine, id, item, None)? else {
            return Ok(match (links, &dir::links(&engine, id)?[..]) {
                (1, [link]) => Logged::AfterNames(InodeId {
                    tree: id.tree,
                    number: link.parent,
                }),
                _ => Logged::No,
            });
        };
        let said = write(&mut engine, id, &record);
        ticket(&mut engine, said).map(Logged::of)
    }
}

/// The ticket of what was written into the log. If not all of it could be, the
/// log is given up; `None` if a commit helps.
pub(super) fn ticket(
    engine: &mut Engine,
    said: Result<names::Said, FsError>,
) -> Result<Option<LogTicket>, FsError> {
    match said {
        Ok(names::Said::All) => Ok(Some(engine.log_ticket())),
        said => {
            engine.log_mut().give_up();
            match said {
                Ok(_) | Err(FsError::Store(StoreError::NoSpace)) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }
}

/// Puts a file into the log as its tree has it, together with the directory
/// `dir`. An error leaves the log half edited.
pub(super) fn log_file(
    engine: &mut Engine,
    id: InodeId,
    dir: InodeId,
) -> Result<names::Said, FsError> {
    let item = load_item(engine, id)?;
    match gather(engine, id, item, Some(dir))? {
        Some(record) => write(engine, id, &record),
        None => Ok(names::Said::NotAll),
    }
}

/// What the log is to say of a file whose item is `item`; `None` if it cannot
/// say that. The log says of `dir`, if there is one, which of its names are
/// gone.
fn gather(
    engine: &Engine,
    id: InodeId,
    item: InodeItem,
    dir: Option<InodeId>,
) -> Result<Option<Record>, FsError> {
    let tree = engine.tree_state(id.tree)?.item;
    let Some(root) = engine.committed_root(id.tree)? else {
        return Ok(None);
    };
    if tree.last_snapshot >= engine.generation() {
        return Ok(None);
    }
    let Some(names) = names::to_log(engine, id, &item, root, dir)? else {
        return Ok(None);
    };
    let mut ranges = engine.log().changes_of(id).unwrap_or_default();
    if item.flags.contains(InodeFlags::PREALLOC) {
        // A replay cuts the file at its size before it adds extents.
        let sector = engine.sector_size();
        ranges.push(item.size.next_multiple_of(sector)..u64::MAX / sector * sector);
    }
    Ok(Some(Record {
        item,
        names,
        attributes: attributes(engine, id)?,
        ranges,
    }))
}

/// Items of an inode's extended attributes.
pub(super) fn attributes(engine: &Engine, id: InodeId) -> Result<Items, FsError> {
    let object = id.number.get();
    let first = Key::new(object, ItemType::XATTR_ITEM, 0);
    let last = Key::new(object, ItemType::XATTR_ITEM, u64::MAX);
    items(engine, id, first, last)
}

/// Writes a record. If the log cannot express all of it, the log is left half
/// edited.
fn write(engine: &mut Engine, id: InodeId, record: &Record) -> Result<names::Said, FsError> {
    // Ranges that touch the same item must become one, because the kernel
    // treats overlapping items as damage.
    if record.ranges.len() > EXTENTS_MAX {
        return Ok(names::Said::NotAll);
    }
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for range in &record.ranges {
        ranges.push(whole_items(engine, id, range.clone())?);
    }
    let mut pieces = Vec::new();
    let mut count = 0;
    for range in joined(ranges) {
        let logged = extents_in(engine, id, &range, record.item.size)?;
        count += logged.len();
        if count > EXTENTS_MAX {
            return Ok(names::Said::NotAll);
        }
        let mut places = logged.iter().filter_map(|extent| extent.disk);
        if !places.all(|disk| engine.space_map().is_in_committed_group(disk)) {
            return Ok(names::Said::NotAll);
        }
        pieces.push((range, logged));
    }
    let sums = !record.item.flags.contains(InodeFlags::NODATASUM);
    let mut log = engine.log_of(id.tree)?;
    if names::write(&mut log, id, &record.names)? == names::Said::NotAll {
        return Ok(names::Said::NotAll);
    }
    log.replace(&crate::inode::item_key(id), &record.item.encode())?;
    write_items(&mut log, id, ItemType::XATTR_ITEM, &record.attributes)?;
    for (range, logged) in &pieces {
        forget_extents(&mut log, id, range)?;
        for extent in logged {
            log.replace(&extents::key(id, extent.start), &extent.bytes)?;
            if let Some(disk) = extent.disk {
                log.name_extent(disk);
            }
            if let Some(range) = extent.sums.clone().filter(|_| sums) {
                log.log_checksums(range)?;
            }
        }
    }
    engine.log_mut().note_logged(id);
    if let Some(root) = engine.committed_root(id.tree)? {
        names::note_replaced(engine, id, root)?;
    }
    Ok(names::Said::All)
}

/// `range`, grown so that no file extent of the file or of the log lies across
/// its ends.
fn whole_items(
    engine: &mut Engine,
    id: InodeId,
    mut range: Range<u64>,
) -> Result<Range<u64>, FsError> {
    let sector = engine.sector_size();
    loop {
        let before = range.clone();
        let spans = logged_spans(engine, id, &range)?;
        for extent in extents::overlapping(engine, id, range.start..range.start + 1, 1)?
            .into_iter()
            .chain(extents::overlapping(
                engine,
                id,
                range.end - 1..range.end,
                1,
            )?)
        {
            range.start = range.start.min(extent.start);
            range.end = range.end.max(extent.end().next_multiple_of(sector));
        }
        for span in &spans {
            if span.start < range.end && range.start < span.end {
                range.start = range.start.min(span.start);
                range.end = range.end.max(span.end);
            }
        }
        if range == before {
            return Ok(range);
        }
    }
}

/// What the log's file extents around `range` cover.
fn logged_spans(
    engine: &mut Engine,
    id: InodeId,
    range: &Range<u64>,
) -> Result<Vec<Range<u64>>, FsError> {
    let sector = engine.sector_size();
    let first = extents::key(id, 0);
    let last = extents::key(id, u64::MAX);
    let (from, to) = (extents::key(id, range.start), extents::key(id, range.end));
    let logged = engine.log_of(id.tree)?.nearby(first..=last, &from, &to)?;
    let mut spans = Vec::with_capacity(logged.len());
    for (key, data) in &logged {
        let extent = FileExtent::parse(data)
            .map_err(|error| FsError::bad_item(id, "logged file extent", &error))?;
        let length = match extent.body {
            FileExtentBody::Inline(_) => sector,
            FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => place.length,
        };
        spans.push(key.offset..key.offset + length);
    }
    Ok(spans)
}

/// Ranges ascending, those that overlap or touch as one.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// File extents in `range`, with explicit holes between them below `size`.
fn extents_in(
    engine: &Engine,
    id: InodeId,
    range: &Range<u64>,
    size: u64,
) -> Result<Vec<LoggedExtent>, FsError> {
    let sector = engine.sector_size();
    let holes_end = range.end.min(size.next_multiple_of(sector));
    let mut all = Vec::new();
    let mut at = range.start;
    let hole = |all: &mut Vec<LoggedExtent>, hole: Range<u64>| {
        let hole = hole.start..hole.end.min(holes_end);
        if !hole.is_empty() && engine.superblock().has_no_holes() {
            all.push(explicit_hole(engine, &hole));
        }
    };
    for extent in extents::overlapping(engine, id, range.clone(), EXTENTS_MAX + 1)? {
        hole(&mut all, at..extent.start);
        at = extent.end().next_multiple_of(sector);
        all.push(logged(&extent));
    }
    hole(&mut all, at..range.end);
    Ok(all)
}

fn logged(extent: &Found) -> LoggedExtent {
    let disk = |place: &ExtentPlace| (place.disk.get() != 0).then_some(place.disk);
    let (disk, sums) = match &extent.body {
        Body::Inline(_) => (None, None),
        Body::Prealloc(place) => (disk(place), None),
        Body::Regular(place) => {
            let start = place.disk.get();
            let sums = match extent.compression {
                Some(_) => start..start + place.disk_length,
                None => start + place.offset..start + place.offset + place.length,
            };
            (disk(place), disk(place).map(|_| sums))
        }
    };
    LoggedExtent {
        start: extent.start,
        bytes: extent.encode(),
        disk,
        sums,
    }
}

fn explicit_hole(engine: &Engine, range: &Range<u64>) -> LoggedExtent {
    let length = range.end - range.start;
    let item = FileExtent {
        generation: engine.generation(),
        ram_bytes: length,
        compression: None,
        encryption: 0,
        other_encoding: 0,
        body: FileExtentBody::Regular(ExtentPlace {
            disk: Logical(0),
            disk_length: 0,
            offset: 0,
            length,
        }),
    };
    LoggedExtent {
        start: range.start,
        bytes: item.encode(),
        disk: None,
        sums: None,
    }
}
