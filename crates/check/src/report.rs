//! What a check found.

use crate::code::{FaultCode, Severity};
use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{Key, Logical, TreeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;

/// Where a fault is; what is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Tree.
    pub tree: Option<TreeId>,
    /// Key in it.
    pub key: Option<Key>,
    /// Address of the node or extent.
    pub logical: Option<Logical>,
}

impl Place {
    /// An address.
    pub(crate) const fn at(logical: Logical) -> Self {
        Self {
            tree: None,
            key: None,
            logical: Some(logical),
        }
    }

    /// An item of a tree.
    pub(crate) const fn item(tree: TreeId, key: Key) -> Self {
        Self {
            tree: Some(tree),
            key: Some(key),
            logical: None,
        }
    }

    /// A tree.
    pub(crate) const fn tree(tree: TreeId) -> Self {
        Self {
            tree: Some(tree),
            key: None,
            logical: None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        if let Some(tree) = self.tree {
            write!(f, "tree {tree}")?;
            before = ", ";
        }
        if let Some(key) = self.key {
            write!(f, "{before}item {key}")?;
            before = ", ";
        }
        if let Some(logical) = self.logical {
            write!(f, "{before}logical {logical}")?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind.
    pub code: FaultCode,
    /// Where.
    pub place: Place,
    /// What is wrong, in a sentence.
    pub sentence: String,
    /// Path in its subvolume, where the fault names an inode that has one.
    pub path: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.code)?;
        if self.place != Place::default() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.sentence)?;
        match &self.path {
            Some(path) => write!(f, " ({path:?})"),
            None => Ok(()),
        }
    }
}

/// What the volume holds, as far as it could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes in extents.
    pub bytes_used: u64,
    /// Nodes.
    pub nodes: u64,
    /// Extents in the extent tree.
    pub extents: u64,
    /// Bytes of data that have checksums.
    pub checksummed_bytes: u64,
    /// Bytes of data that were read and compared, all copies.
    pub data_bytes_read: u64,
    /// Subvolumes and snapshots.
    pub subvolumes: u64,
    /// Inodes; what snapshots share is counted once for each.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Faults, at most a given number of each kind, sorted by kind and place.
    pub faults: Vec<Fault>,
    /// How many of each kind there are.
    pub counts: BTreeMap<FaultCode, u64>,
    /// What could not be checked, because of damage or unknown features.
    pub unchecked: Vec<String>,
    /// What the volume holds.
    pub figures: Figures,
    /// Numbers of the quota groups, where they can be compared: not while they are
    /// counted or known to be stale, and not those of simple quotas.
    pub quota_groups: Vec<QuotaGroup>,
}

/// What a quota group says that it uses, and what it uses. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaGroup {
    /// Which one.
    pub group: GroupId,
    /// Reachable from the group, as its item says.
    pub noted_referenced: u64,
    /// Of that what is reachable from nowhere else, as its item says.
    pub noted_exclusive: u64,
    /// Reachable from the group, as the trees say.
    pub referenced: u64,
    /// Of that what is reachable from nowhere else.
    pub exclusive: u64,
}

impl Report {
    /// Faults and warnings of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> u64 {
        let of = self.counts.iter().filter(|(c, _)| c.severity() == severity);
        of.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// True without faults; warnings do not count.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.count(Severity::Fault) == 0
    }

    /// True when a fault of this kind was found.
    #[must_use]
    pub fn has(&self, code: FaultCode) -> bool {
        self.counts.contains_key(&code)
    }
}

/// Lines that say what could not be checked, at most.
const UNCHECKED_MAX: usize = 1000;

/// Gathers faults from all threads.
#[derive(Debug)]
pub(crate) struct Collector {
    max: usize,
    found: Mutex<(Vec<Fault>, BTreeMap<FaultCode, u64>)>,
    unchecked: Mutex<Vec<String>>,
    quota_groups: Mutex<Vec<QuotaGroup>>,
    muted: bool,
}

impl Collector {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            max,
            found: Mutex::new((Vec::new(), BTreeMap::new())),
            unchecked: Mutex::new(Vec::new()),
            quota_groups: Mutex::new(Vec::new()),
            muted: false,
        }
    }

    /// One that forgets: for walks whose faults were reported before.
    pub(crate) const fn muted() -> Self {
        let mut collector = Self::new(0);
        collector.muted = true;
        collector
    }

    pub(crate) fn add(&self, code: FaultCode, place: Place, sentence: impl Into<String>) {
        if self.muted {
            return;
        }
        let mut found = self.found.lock();
        let (faults, counts) = &mut *found;
        let count = counts.entry(code).or_insert(0);
        *count = count.saturating_add(1);
        if usize::try_from(*count).is_ok_and(|count| count <= self.max) {
            faults.push(Fault {
                code,
                place,
                sentence: sentence.into(),
                path: None,
            });
        }
    }

    /// Faults so far.
    pub(crate) fn total(&self) -> u64 {
        let found = self.found.lock();
        let counts = found.1.values();
        counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Notes what could not be checked.
    pub(crate) fn unchecked(&self, what: impl Into<String>) {
        if !self.muted {
            let what = what.into();
            let mut all = self.unchecked.lock();
            if all.len() < UNCHECKED_MAX && !all.contains(&what) {
                all.push(what);
            }
        }
    }

    /// Notes the numbers of a quota group, right or not.
    pub(crate) fn quota_group(&self, numbers: QuotaGroup) {
        if !self.muted {
            self.quota_groups.lock().push(numbers);
        }
    }

    pub(crate) fn finish(self, figures: Figures) -> Report {
        let (mut faults, counts) = self.found.into_inner();
        faults.sort_by(|a, b| (a.code, a.place, &a.sentence).cmp(&(b.code, b.place, &b.sentence)));
        Report {
            faults,
            counts,
            unchecked: self.unchecked.into_inner(),
            figures,
            quota_groups: self.quota_groups.into_inner(),
        }
    }
}
