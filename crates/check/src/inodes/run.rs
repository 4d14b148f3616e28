//! What a run of items says about inodes, and how two runs are joined.
//!
//! An inode's items may be spread over many leaves, and a leaf may belong to
//! many subvolumes. The summary of a part of a tree therefore holds what the
//! part says about its first and its last inode, and sums over those in between.
//! All items of the latter are known, so they are already checked.

use crate::budget::bytes_of;
use crate::code::FaultCode;
use crate::report::{Collector, Place};
use butterfs_format::item::inode::{InodeFlags, InodeItem, LINKS_MAX};
use butterfs_format::{InodeNumber, ItemType, Key, TreeId};

/// The first number after those of files. It and all greater ones are reserved.
pub(crate) const RESERVED: u64 = u64::MAX.wrapping_sub(254);

/// Whether an inode of a subvolume can have this number.
pub(crate) const fn is_inode(number: u64) -> bool {
    number >= InodeNumber::ROOT.get() && number < RESERVED
}

/// Type bits of a mode.
pub(crate) const fn kind_of(mode: u32) -> u32 {
    mode & 0o170_000
}

pub(crate) const REGULAR: u32 = 0o100_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const SYMLINK: u32 = 0o120_000;
/// Bytes that no path has, with its final NUL.
const PATH_MAX: u64 = 4096;

/// Returns the number that directory entries have for the type in a mode.
pub(crate) const fn entry_kind(mode: u32) -> Option<u8> {
    Some(match kind_of(mode) {
        REGULAR => 1,
        DIRECTORY => 2,
        0o020_000 => 3,
        0o060_000 => 4,
        0o010_000 => 5,
        0o140_000 => 6,
        SYMLINK => 7,
        _ => return None,
    })
}

/// The fields of an inode's item that are compared with other items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) size: u64,
    pub(crate) nbytes: u64,
    pub(crate) nlink: u32,
    pub(crate) mode: u32,
    pub(crate) flags: InodeFlags,
}

impl From<&InodeItem> for Facts {
    fn from(item: &InodeItem) -> Self {
        Self {
            size: item.size,
            nbytes: item.nbytes,
            nlink: item.nlink,
            mode: item.mode,
            flags: item.flags,
        }
    }
}

/// Where the file extents of a run begin and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    pub(crate) first: u64,
    pub(crate) end: u64,
}

/// What a run of items says about one inode.
#[derive(Clone, Debug, Default)]
pub(crate) struct InodeRun {
    pub(crate) number: u64,
    /// A part could not be read, so the inode cannot be checked.
    pub(crate) is_gap: bool,
    pub(crate) item: Option<Facts>,
    /// Number of names in its own records.
    pub(crate) names: u64,
    /// Bytes of its file extents.
    pub(crate) bytes: u64,
    /// Bytes of the names of its directory entries, hashed and indexed.
    pub(crate) entry_bytes: u64,
    pub(crate) has_entries: bool,
    pub(crate) extents: Option<Extents>,
    /// Offset of the first gap between its file extents.
    pub(crate) hole_at: Option<u64>,
    /// Logical address of the first data without checksums.
    pub(crate) bare_at: Option<u64>,
    /// Logical address of the first compressed data without checksums.
    pub(crate) bare_compressed_at: Option<u64>,
    /// Logical address of the first data with checksums.
    pub(crate) summed_at: Option<u64>,
    /// It has inline data.
    pub(crate) is_inline: bool,
    /// Its inline data are not compressed and end with a zero byte.
    pub(crate) ends_with_nul: bool,
}

impl InodeRun {
    pub(crate) fn of(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    pub(crate) fn gap() -> Self {
        Self {
            is_gap: true,
            ..Self::default()
        }
    }

    /// Adds a file extent.
    pub(crate) fn add_extent(&mut self, rules: &Rules<'_>, start: u64, end: u64) {
        let next = Extents { first: start, end };
        self.extents = Some(match self.extents {
            None => next,
            Some(before) => self.beside(rules, before, next),
        });
    }

    fn beside(&mut self, rules: &Rules<'_>, left: Extents, right: Extents) -> Extents {
        if right.first < left.end {
            let key = Key::new(self.number, ItemType::EXTENT_DATA, right.first);
            let text = format!("the file extent before it ends at {}", left.end);
            rules.fault(FaultCode::FileExtentOverlap, key, text);
        } else if right.first > left.end {
            self.hole_at = self.hole_at.or(Some(left.end));
        }
        Extents {
            first: left.first,
            end: right.end.max(left.end),
        }
    }

    /// Joins two parts of one inode.
    fn merge(mut self, rules: &Rules<'_>, right: Self) -> Self {
        if self.is_gap || right.is_gap {
            let number = if self.number == 0 {
                right.number
            } else {
                self.number
            };
            return Self {
                number,
                ..Self::gap()
            };
        }
        self.extents = match (self.extents, right.extents) {
            (Some(a), Some(b)) => Some(self.beside(rules, a, b)),
            (a, b) => a.or(b),
        };
        self.item = self.item.or(right.item);
        self.names = self.names.saturating_add(right.names);
        self.bytes = self.bytes.saturating_add(right.bytes);
        self.entry_bytes = self.entry_bytes.saturating_add(right.entry_bytes);
        self.has_entries |= right.has_entries;
        self.hole_at = self.hole_at.or(right.hole_at);
        self.bare_at = self.bare_at.or(right.bare_at);
        self.bare_compressed_at = self.bare_compressed_at.or(right.bare_compressed_at);
        self.summed_at = self.summed_at.or(right.summed_at);
        self.is_inline |= right.is_inline;
        self.ends_with_nul |= right.ends_with_nul;
        self
    }
}

/// What holds for the inodes of a tree, and the collector of faults.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'r> {
    pub(crate) tree: TreeId,
    pub(crate) faults: &'r Collector,
    pub(crate) hash: crate::hash::SumHash,
    /// Holes have no file extents.
    pub(crate) no_holes: bool,
    /// The checksum tree could be read, so a missing checksum is a fault.
    pub(crate) checksums: bool,
}

impl Rules<'_> {
    pub(crate) fn fault(&self, code: FaultCode, key: Key, text: impl Into<String>) {
        self.faults.add(code, Place::item(self.tree, key), text);
    }
}

/// Summary of a part of a subvolume.
#[derive(Clone, Debug, Default)]
pub(crate) struct FsRun {
    /// The first inode.
    head: InodeRun,
    /// The last inode, if it is not the first.
    tail: Option<InodeRun>,
    /// Sum over names and inodes; zero for a whole subvolume if they agree.
    pub(crate) balance: u64,
    pub(crate) inodes: u64,
    pub(crate) directories: u64,
    /// Inodes whose link count is 0.
    pub(crate) unlinked: Vec<u64>,
    /// Inodes that have an orphan item.
    pub(crate) orphans: Vec<u64>,
    pub(crate) has_root: bool,
}

const _: () = assert!(size_of::<FsRun>() <= 448, "KEPT_BYTES covers it");

/// Bytes of memory for each inode in a list, while the list grows.
const LISTED_BYTES: u64 = 16;

impl FsRun {
    /// Bytes of memory for a run that is kept, without its lists.
    pub(crate) const KEPT_BYTES: u64 = 512;

    /// Returns the bytes of memory that its lists take.
    pub(crate) fn list_bytes(&self) -> u64 {
        let listed = self.unlinked.len().saturating_add(self.orphans.len());
        bytes_of(listed, LISTED_BYTES)
    }

    pub(crate) fn gap() -> Self {
        Self {
            head: InodeRun::gap(),
            tail: Some(InodeRun::gap()),
            ..Self::default()
        }
    }

    /// Returns the inode to which an item belongs. If that is not the last inode
    /// so far, begins a new one and checks the last one.
    pub(crate) fn inode(&mut self, rules: &Rules<'_>, number: u64) -> &mut InodeRun {
        let current = self.tail.as_ref().unwrap_or(&self.head);
        if current.number != number || current.is_gap {
            if self.tail.is_none() && self.head.number == 0 && !self.head.is_gap {
                self.head = InodeRun::of(number);
            } else if let Some(done) = self.tail.replace(InodeRun::of(number)) {
                self.finish(rules, &done);
            }
        }
        self.tail.as_mut().unwrap_or(&mut self.head)
    }

    pub(crate) fn join(mut self, rules: &Rules<'_>, right: Self) -> Self {
        self.balance = self.balance.wrapping_add(right.balance);
        self.inodes = self.inodes.saturating_add(right.inodes);
        self.directories = self.directories.saturating_add(right.directories);
        self.unlinked.extend(right.unlinked);
        self.orphans.extend(right.orphans);
        self.has_root |= right.has_root;
        let last = self.tail.take();
        let is_single = last.is_none();
        let last = last.unwrap_or_else(|| std::mem::take(&mut self.head));
        let next = right.head;
        let empty = |run: &InodeRun| run.number == 0 && !run.is_gap;
        let joins = last.is_gap
            || next.is_gap
            || last.number == next.number
            || empty(&last)
            || empty(&next);
        let middle = if empty(&last) {
            next
        } else if empty(&next) {
            last
        } else if joins {
            last.merge(rules, next)
        } else {
            // The two runs meet between two inodes.
            if is_single {
                self.head = last;
            } else {
                self.finish(rules, &last);
            }
            self.tail = Some(next);
            if let Some(tail) = right.tail
                && let Some(done) = self.tail.replace(tail)
            {
                self.finish(rules, &done);
            }
            return self;
        };
        match (is_single, right.tail) {
            (true, tail) => {
                self.head = middle;
                self.tail = tail;
            }
            (false, None) => self.tail = Some(middle),
            (false, Some(tail)) => {
                self.finish(rules, &middle);
                self.tail = Some(tail);
            }
        }
        self
    }

    /// Checks the first and the last inode, when `self` is the run of a whole
    /// tree.
    pub(crate) fn close(&mut self, rules: &Rules<'_>) {
        let head = std::mem::take(&mut self.head);
        self.finish(rules, &head);
        if let Some(tail) = self.tail.take() {
            self.finish(rules, &tail);
        }
    }

    /// Checks an inode of which all items are known.
    fn finish(&mut self, rules: &Rules<'_>, run: &InodeRun) {
        if run.is_gap || !is_inode(run.number) {
            return;
        }
        let key = Key::new(run.number, ItemType::INODE_ITEM, 0);
        let Some(facts) = run.item else {
            let text = "items belong to this inode, but it does not exist";
            return rules.fault(FaultCode::InodeMissing, key, text);
        };
        self.inodes = self.inodes.saturating_add(1);
        let is_root = run.number == InodeNumber::ROOT.get();
        self.has_root |= is_root && kind_of(facts.mode) == DIRECTORY;
        if kind_of(facts.mode) == DIRECTORY {
            self.directories = self.directories.saturating_add(1);
        }
        if u64::from(facts.nlink) != run.names {
            let text = format!(
                "it counts {} links and has {} names",
                facts.nlink, run.names
            );
            rules.fault(FaultCode::InodeLinks, key, text);
        }
        if facts.nlink > LINKS_MAX {
            let text = format!("it has {} links; {LINKS_MAX} is the most", facts.nlink);
            rules.fault(FaultCode::InodeLinksMax, key, text);
        }
        if let Some(kind) = entry_kind(facts.mode)
            && !is_root
        {
            let each = rules.hash.words([13, run.number, u64::from(kind)]);
            self.balance = self.balance.wrapping_sub(each.wrapping_mul(run.names));
        }
        if facts.nlink == 0 {
            self.unlinked.push(run.number);
        }
        content(rules, run, &facts, key);
    }
}

/// Checks an inode's content against its attributes.
fn content(rules: &Rules<'_>, run: &InodeRun, facts: &Facts, key: Key) {
    let kind = kind_of(facts.mode);
    if run.has_entries && kind != DIRECTORY {
        rules.fault(
            FaultCode::InodeKind,
            key,
            "it has entries but is no directory",
        );
    }
    if run.extents.is_some() && kind != REGULAR && kind != SYMLINK {
        rules.fault(
            FaultCode::InodeKind,
            key,
            "it has file extents but is neither file nor link",
        );
    }
    if rules.checksums && rules.tree.is_subvolume() {
        let bare = facts.flags.contains(InodeFlags::NODATASUM);
        if let (Some(at), false) = (run.bare_at, bare) {
            let text = format!("its data at logical {at} have no checksums");
            rules.fault(FaultCode::ChecksumMissing, key, text);
        }
        if let (Some(at), true) = (run.bare_compressed_at, bare) {
            let text = format!("its compressed data at logical {at} have no checksums");
            rules.fault(FaultCode::ChecksumMissing, key, text);
        }
        if let (Some(at), true) = (run.summed_at, bare) {
            let text = format!("it is NODATASUM, but its data at logical {at} have checksums");
            rules.fault(FaultCode::ChecksumUnexpected, key, text);
        }
    }
    if facts.nlink == 0 {
        // The inode is being deleted, and its item may still have old numbers.
        return;
    }
    if kind == DIRECTORY && facts.size != run.entry_bytes {
        let text = format!(
            "its size is {}; its names have {}",
            facts.size, run.entry_bytes
        );
        rules.fault(FaultCode::InodeSize, key, text);
    }
    // mkfs.btrfs and btrfs-convert end targets with a zero byte that the size
    // does not count.
    let target = run.bytes.saturating_sub(u64::from(run.ends_with_nul));
    // btrfs-convert stores long targets in extents of whole sectors.
    let fits = match run.is_inline {
        true => facts.size == run.bytes || facts.size == target,
        false => facts.size <= run.bytes,
    };
    if kind == SYMLINK && !fits {
        let text = format!("its size is {}; its target has {}", facts.size, run.bytes);
        rules.fault(FaultCode::InodeSize, key, text);
    }
    if kind == SYMLINK && facts.size >= PATH_MAX {
        let text = format!("its target has {} bytes; a path has fewer", facts.size);
        rules.fault(FaultCode::InodeSize, key, text);
    }
    if kind != DIRECTORY && facts.nbytes != run.bytes {
        let text = format!(
            "it counts {} bytes; its extents have {}",
            facts.nbytes, run.bytes
        );
        rules.fault(FaultCode::InodeBytes, key, text);
    }
    if kind == REGULAR && !rules.no_holes && facts.size > 0 {
        let (first, end) = run.extents.map_or((facts.size, 0), |e| (e.first, e.end));
        let at = match run.hole_at {
            _ if first != 0 => Some(0),
            Some(at) if at < facts.size => Some(at),
            _ => (end < facts.size).then_some(end),
        };
        if let Some(at) = at {
            let text = format!("no file extent covers offset {at}, and holes have extents here");
            rules.fault(FaultCode::FileExtentHole, key, text);
        }
    }
}
