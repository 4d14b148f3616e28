//! What a check found.

use crate::code::{FaultCode, Severity};
use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{Key, Logical, TreeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;

/// Where a fault is. A field that is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Tree.
    pub tree: Option<TreeId>,
    /// Key of the item in the tree.
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
    /// A sentence that says what is wrong.
    pub sentence: String,
    /// Path in the subvolume, if the fault names an inode that has a path.
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

/// What the volume holds, counted as far as it could be read.
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
    /// Bytes of data that were read and compared; each copy counts.
    pub data_bytes_read: u64,
    /// Subvolumes and snapshots.
    pub subvolumes: u64,
    /// Inodes. An inode that snapshots share is counted once for each.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Faults, sorted by kind and place. [`crate::Options::faults_max`] limits
    /// the number of each kind.
    pub faults: Vec<Fault>,
    /// Number of faults of each kind, also of those that are not in `faults`.
    pub counts: BTreeMap<FaultCode, u64>,
    /// What could not be checked, because of damage or unknown features.
    pub unchecked: Vec<String>,
    /// What the volume holds.
    pub figures: Figures,
    /// Numbers of the quota groups. Empty if they cannot be compared: while a
    /// rescan counts them, if they are known to be stale, and for simple quotas.
    pub quota_groups: Vec<QuotaGroup>,
}

/// The bytes that a quota group uses, by its item and by the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaGroup {
    /// The quota group.
    pub group: GroupId,
    /// Bytes reachable from the group, by its item.
    pub noted_referenced: u64,
    /// Those of them that are reachable from nowhere else, by its item.
    pub noted_exclusive: u64,
    /// Bytes reachable from the group, by the trees.
    pub referenced: u64,
    /// Those of them that are reachable from nowhere else, by the trees.
    pub exclusive: u64,
}

impl Report {
    /// Returns the number of faults of a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> u64 {
        let of = self.counts.iter().filter(|(c, _)| c.severity() == severity);
        of.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// True if there are no faults; warnings do not count.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.count(Severity::Fault) == 0
    }

    /// True if there are no faults, and the numbers are right that only warnings
    /// are about. A volume that ButterFS alone wrote is so.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.is_clean() && !self.has(FaultCode::RootBytes)
    }

    /// True if a fault of this kind was found.
    #[must_use]
    pub fn has(&self, code: FaultCode) -> bool {
        self.counts.contains_key(&code)
    }
}

/// The most lines that say what could not be checked.
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

    /// Makes a collector that ignores everything, for walks whose faults were
    /// reported before.
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

    /// The number of faults so far.
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
