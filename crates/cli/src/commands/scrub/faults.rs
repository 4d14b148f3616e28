//! What a scrub found, in words.
//!
//! Bad sectors that lie side by side in the same files are one line.

use butterfs::{InodeId, StoreError, Volume};
use butterfs_admin::scrub::{HolderAt, ScrubFault, ScrubOutcome, ScrubbedKind};
use butterfs_format::{Logical, Physical};

/// The most lines that are printed; all faults are counted.
const LINES_MAX: usize = 1000;
/// Files of a damaged sector that are named.
const HOLDERS_MAX: usize = 8;

/// Who holds the data extent of a sector.
struct Extent {
    /// The sector.
    sector: Logical,
    /// With the offsets of the sector, as [`HolderAt`] gives them.
    holders: Vec<HolderAt>,
    /// Where the extent ends.
    end: Logical,
}

impl Extent {
    fn at(volume: &Volume, sector: Logical) -> Self {
        let store = volume.files().store();
        let found = store.look(|engine| {
            let extent = engine.data_extent_at(sector)?;
            let holders = engine.holders_at(sector, HOLDERS_MAX)?;
            let end = extent.map_or(sector, |found| found.logical.saturating_add(found.length));
            Ok::<_, StoreError>((holders, end))
        });
        let (holders, end) = found.unwrap_or_else(|_| (Vec::new(), sector));
        Self {
            sector,
            holders,
            end,
        }
    }

    /// Whether the same files hold `next` right behind this sector.
    fn goes_on_in(&self, next: &Self) -> bool {
        let bytes = next.sector.get().saturating_sub(self.sector.get());
        let pairs = self.holders.iter().zip(&next.holders);
        let mut follow = pairs.map(|(before, now)| {
            let offset = before.offset.saturating_add(bytes);
            *now == HolderAt { offset, ..*before }
        });
        self.holders.len() == next.holders.len() && follow.all(|follows| follows)
    }
}

/// Faults side by side.
struct Stretch {
    first: ScrubFault,
    /// Of file data: who holds the first sector.
    holders: Vec<HolderAt>,
    /// The extent that was reached last.
    extent: Option<Extent>,
    bytes: u64,
    count: usize,
}

impl Stretch {
    fn new(volume: &Volume, fault: &ScrubFault) -> Self {
        let extent = match fault.kind {
            ScrubbedKind::Data => Some(Extent::at(volume, fault.logical)),
            ScrubbedKind::Node(_) | ScrubbedKind::Parity(_) => None,
        };
        let holders = extent.as_ref().map(|extent| extent.holders.clone());
        Self {
            first: *fault,
            holders: holders.unwrap_or_default(),
            extent,
            bytes: fault.length,
            count: 1,
        }
    }

    /// Takes a sector that goes on where this ends.
    fn joins(&mut self, volume: &Volume, fault: &ScrubFault) -> bool {
        let first = &self.first;
        let next = ScrubFault {
            logical: first.logical.saturating_add(self.bytes),
            place: Physical {
                offset: first.place.offset.saturating_add(self.bytes),
                ..first.place
            },
            ..*first
        };
        let Some(extent) = self.extent.as_mut().filter(|_| next == *fault) else {
            return false;
        };
        if fault.logical >= extent.end {
            let reached = Extent::at(volume, fault.logical);
            if !extent.goes_on_in(&reached) {
                return false;
            }
            *extent = reached;
        }
        self.bytes = self.bytes.saturating_add(fault.length);
        self.count += 1;
        true
    }

    fn line(&self, volume: &Volume) -> String {
        let fault = &self.first;
        let how = match (fault.unreadable, fault.outcome) {
            (true, ScrubOutcome::Corrected) => "unreadable, corrected",
            (true, ScrubOutcome::Repairable) => "unreadable, another copy is good",
            (true, ScrubOutcome::Uncorrectable) => "unreadable, no copy is good",
            (false, ScrubOutcome::Corrected) => "corrected",
            (false, ScrubOutcome::Repairable) => "another copy is good",
            (false, ScrubOutcome::Uncorrectable) => "no copy is good",
        };
        let made = match (fault.unreadable, fault.outcome) {
            (_, ScrubOutcome::Corrected) => "made anew from the data",
            (_, ScrubOutcome::Repairable) => "the data are good",
            (true, ScrubOutcome::Uncorrectable) => "unreadable, and so are some of the data",
            (false, ScrubOutcome::Uncorrectable) => "some of the data are bad",
        };
        let place = format!(
            "logical {} on device {} at {}",
            fault.logical, fault.place.device, fault.place.offset
        );
        let bytes = self.bytes;
        match fault.kind {
            ScrubbedKind::Parity(which) => {
                let name = if which == 0 { "P" } else { "Q" };
                format!("error: {place}: parity {name} of a row, {bytes} bytes: {made}")
            }
            ScrubbedKind::Node(level) => {
                format!("error: {place}: a tree node of level {level}: {how}")
            }
            ScrubbedKind::Data => {
                let files = self.files(volume);
                format!("error: {place}, {bytes} bytes: {files}: {how}")
            }
        }
    }

    /// Files that hold the first damaged sector.
    fn files(&self, volume: &Volume) -> String {
        let files = volume.files();
        let subvolumes = volume.subvolumes().ok();
        let named = self.holders.iter().map(|holder| {
            let inode = InodeId {
                tree: holder.tree,
                number: holder.inode,
            };
            let path = files.path_for_message(inode);
            let subvolume = subvolumes.as_ref().and_then(|all| all.get(holder.tree));
            let above = subvolume.and_then(|subvolume| subvolume.path.clone());
            let above = match above.unwrap_or_default() {
                top if top.is_empty() => String::new(),
                above => format!("/{}", String::from_utf8_lossy(&above)),
            };
            let offset = holder.offset;
            match holder.unpacked {
                None => format!("{above}{path} (offset {offset})"),
                Some(bytes) => {
                    format!("{above}{path} (offset {offset}, {bytes} bytes that are compressed)")
                }
            }
        });
        let named: Vec<String> = named.collect();
        match named.is_empty() {
            true => "data of no known file".to_owned(),
            false => named.join(", "),
        }
    }
}

/// What was told so far.
#[derive(Debug, Default)]
pub struct Told {
    lines: usize,
    /// Faults without a line, because there were too many.
    pub left_out: usize,
}

impl Told {
    /// Lines about more faults.
    pub fn lines(&mut self, volume: &Volume, faults: &[ScrubFault]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut waiting: Option<Stretch> = None;
        for fault in faults {
            if self.lines >= LINES_MAX {
                self.left_out += 1;
                continue;
            }
            if let Some(stretch) = &mut waiting {
                if stretch.joins(volume, fault) {
                    continue;
                }
                lines.push(stretch.line(volume));
                self.lines += 1;
            }
            waiting = Some(Stretch::new(volume, fault));
        }
        if let Some(stretch) = waiting {
            match self.lines < LINES_MAX {
                true => lines.push(stretch.line(volume)),
                false => self.left_out += stretch.count,
            }
            self.lines += 1;
        }
        lines
    }
}
