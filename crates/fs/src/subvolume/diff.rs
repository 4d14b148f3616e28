//! What really changed between two subvolumes: which files were added, removed
//! or renamed, their content by range, their metadata.
//!
//! Owns the meaning of changed items, inode by inode. What is equal in both
//! trees is never read, and neither are file data. Two inodes are one file if
//! number, generation and time of birth agree; in a snapshot they do. Access
//! times, times of change and counters do not count as changes.

use super::content::{ContentDiff, Piece, Version};
use super::paths::Paths;
use crate::error::FsError;
use crate::inode_fault::{ExtentFault, InodeFault};
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::inode::{ExtrefEntries, InodeItem, RefEntries};
use butterfs_format::{FileOffset, InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Engine, bad_item};
use butterfs_tree::{Change, CompareCost, ComparedItem, Comparison, NodeSource, find};
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

/// Metadata that changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Type or permissions.
    Mode,
    /// Owner.
    Uid,
    /// Group.
    Gid,
    /// Number of a device.
    Device,
    /// Inode flags, as of chattr(1).
    Flags,
    /// Time of the last change of content.
    Modified,
    /// fs-verity.
    Verity,
    /// The extended attribute of this name: set, changed or removed.
    Xattr(Vec<u8>),
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Only the new subvolume has it.
    Added,
    /// Only the old subvolume has it.
    Removed,
    /// Both have it.
    Changed,
}

/// A file, directory or other inode that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDifference {
    /// Its inode.
    pub inode: InodeNumber,
    /// What happened to it.
    pub kind: DifferenceKind,
    /// Type and permissions: the new ones, or the old ones of what was removed.
    pub mode: u32,
    /// Size in the old subvolume.
    pub size_old: u64,
    /// Size in the new subvolume.
    pub size_new: u64,
    /// All current paths; for what was removed, the old ones. Sorted.
    pub paths: Vec<Vec<u8>>,
    /// Old paths that are no longer names of it (if it was changed).
    pub names_removed: Vec<Vec<u8>>,
    /// Paths that were not names of it before (if it was changed).
    pub names_added: Vec<Vec<u8>>,
    /// Ranges whose bytes may differ (if it was changed).
    pub content: Vec<Range<u64>>,
    /// Metadata that differ (if it was changed), sorted.
    pub fields: Vec<Field>,
}

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A file, directory or other inode.
    File(FileDifference),
    /// An entry of a nested subvolume.
    Subvolume {
        /// The entry was added or removed.
        kind: DifferenceKind,
        /// Path of the entry.
        path: Vec<u8>,
        /// The nested subvolume.
        id: TreeId,
    },
}

/// The two subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The earlier one.
    pub old: TreeId,
    /// The later one.
    pub new: TreeId,
}

/// Gives all differences to `visit`, by ascending inode.
///
/// # Errors
/// Damage, reading; what `visit` gives.
pub fn diff<E: From<FsError>>(
    engine: &Engine,
    compared: Compared,
    visit: &mut dyn FnMut(Difference) -> Result<(), E>,
) -> Result<CompareCost, E> {
    let first = Key::new(InodeNumber::ROOT.get(), ItemType::MIN, 0);
    let last = Key::new(TreeId::LAST_SUBVOLUME.get(), ItemType::MAX, u64::MAX);
    diff_within(engine, compared, first..=last, visit)
}

/// The difference of one inode, if any.
///
/// # Errors
/// Damage, reading.
pub fn diff_inode(
    engine: &Engine,
    compared: Compared,
    inode: InodeNumber,
) -> Result<Vec<FileDifference>, FsError> {
    let first = Key::new(inode.get(), ItemType::MIN, 0);
    let last = Key::new(inode.get(), ItemType::MAX, u64::MAX);
    let mut found = Vec::new();
    diff_within::<FsError>(engine, compared, first..=last, &mut |difference| {
        if let Difference::File(file) = difference {
            found.push(file);
        }
        Ok(())
    })?;
    Ok(found)
}

fn diff_within<E: From<FsError>>(
    engine: &Engine,
    compared: Compared,
    keys: RangeInclusive<Key>,
    visit: &mut dyn FnMut(Difference) -> Result<(), E>,
) -> Result<CompareCost, E> {
    let root = |tree| engine.root(tree).map_err(FsError::from);
    let (old, new) = (root(compared.old)?, root(compared.new)?);
    let mut comparison = Comparison::within(engine, Some(old), new, keys).map_err(FsError::from)?;
    let mut sides = Sides {
        engine,
        compared,
        old: Paths::new(engine, compared.old, old),
        new: Paths::new(engine, compared.new, new),
    };
    let mut current: Option<InodeChange> = None;
    while let Some(change) = comparison.next().map_err(FsError::from)? {
        let number = InodeNumber(change.key.objectid);
        if current.as_ref().is_none_or(|inode| inode.number != number)
            && let Some(inode) = current.replace(InodeChange::new(number))
        {
            inode.finish(&mut sides, visit)?;
        }
        if let Some(inode) = &mut current {
            inode.add(&mut sides, &change, visit)?;
        }
    }
    if let Some(inode) = current {
        inode.finish(&mut sides, visit)?;
    }
    Ok(comparison.cost())
}

/// Both subvolumes, to look up what the changed items do not say.
struct Sides<'e> {
    engine: &'e Engine,
    compared: Compared,
    old: Paths<'e>,
    new: Paths<'e>,
}

impl<'e> Sides<'e> {
    const fn tree(&self, version: Version) -> TreeId {
        match version {
            Version::Old => self.compared.old,
            Version::New => self.compared.new,
        }
    }

    const fn paths(&mut self, version: Version) -> &mut Paths<'e> {
        match version {
            Version::Old => &mut self.old,
            Version::New => &mut self.new,
        }
    }

    fn inode(&self, version: Version, number: InodeNumber) -> Result<Option<InodeItem>, FsError> {
        inode_item(self.engine, self.tree(version), number)
    }
}

/// An inode's item in a tree.
pub(super) fn inode_item(
    engine: &Engine,
    tree: TreeId,
    number: InodeNumber,
) -> Result<Option<InodeItem>, FsError> {
    let key = Key::new(number.get(), ItemType::INODE_ITEM, 0);
    let Some((leaf, slot)) = find(engine, tree, &key)? else {
        return Ok(None);
    };
    let item = InodeItem::parse(leaf.data(slot)).map_err(|error| bad_item(tree, key, &error))?;
    Ok(Some(item))
}

/// A name in a directory.
type Name = (InodeNumber, Vec<u8>);

/// What changed of one inode so far.
struct InodeChange {
    number: InodeNumber,
    /// Both versions, after the item was seen to differ.
    items: Option<[Option<InodeItem>; 2]>,
    names_removed: BTreeSet<Name>,
    names_added: BTreeSet<Name>,
    fields: BTreeSet<Field>,
    content: Option<ContentDiff>,
}

const VERSIONS: [Version; 2] = [Version::Old, Version::New];

impl InodeChange {
    const fn new(number: InodeNumber) -> Self {
        Self {
            number,
            items: None,
            names_removed: BTreeSet::new(),
            names_added: BTreeSet::new(),
            fields: BTreeSet::new(),
            content: None,
        }
    }

    fn add<E: From<FsError>>(
        &mut self,
        sides: &mut Sides<'_>,
        change: &Change,
        visit: &mut dyn FnMut(Difference) -> Result<(), E>,
    ) -> Result<(), E> {
        match change.key.item_type {
            ItemType::INODE_ITEM => self.add_item(sides, change)?,
            ItemType::INODE_REF | ItemType::INODE_EXTREF => self.add_names(sides, change)?,
            ItemType::XATTR_ITEM => self.add_xattrs(sides, change)?,
            ItemType::VERITY_DESC | ItemType::VERITY_MERKLE => {
                self.fields.insert(Field::Verity);
            }
            ItemType::DIR_INDEX => self.subvolumes(sides, change, visit)?,
            ItemType::EXTENT_DATA => self.add_extent(sides, change)?,
            // The names that inodes themselves record say the same.
            _ => {}
        }
        Ok(())
    }

    fn damaged(&self, sides: &Sides<'_>, version: Version, fault: InodeFault) -> FsError {
        FsError::Damaged {
            inode: InodeId {
                tree: sides.tree(version),
                number: self.number,
            },
            at: None,
            fault: Box::new(fault),
        }
    }

    fn add_item(&mut self, sides: &Sides<'_>, change: &Change) -> Result<(), FsError> {
        let parse = |item: Option<&ComparedItem>, version| {
            let Some(item) = item else { return Ok(None) };
            InodeItem::parse(item.data())
                .map(Some)
                .map_err(|error| bad_item(sides.tree(version), change.key, &error))
        };
        self.items = Some([
            parse(change.old.as_ref(), Version::Old)?,
            parse(change.new.as_ref(), Version::New)?,
        ]);
        Ok(())
    }

    fn add_names(&mut self, sides: &Sides<'_>, change: &Change) -> Result<(), FsError> {
        let old = names(sides.compared.old, change.key, change.old.as_ref())?;
        let new = names(sides.compared.new, change.key, change.new.as_ref())?;
        // A name can move from one kind of item to the other.
        for name in old {
            if !self.names_added.remove(&name) {
                self.names_removed.insert(name);
            }
        }
        for name in new {
            if !self.names_removed.remove(&name) {
                self.names_added.insert(name);
            }
        }
        Ok(())
    }

    fn add_xattrs(&mut self, sides: &Sides<'_>, change: &Change) -> Result<(), FsError> {
        let mut values: [BTreeSet<(Vec<u8>, Vec<u8>)>; 2] = Default::default();
        let items = [change.old.as_ref(), change.new.as_ref()];
        for ((item, version), values) in items.into_iter().zip(VERSIONS).zip(&mut values) {
            for entry in DirEntries::new(item.map_or(&[], ComparedItem::data)) {
                let entry =
                    entry.map_err(|error| bad_item(sides.tree(version), change.key, &error))?;
                values.insert((entry.name.to_vec(), entry.data.to_vec()));
            }
        }
        let [old, new] = &values;
        for (name, _) in old.symmetric_difference(new) {
            self.fields.insert(Field::Xattr(name.clone()));
        }
        Ok(())
    }

    /// Gives entries of nested subvolumes, which have no inode here.
    fn subvolumes<E: From<FsError>>(
        &self,
        sides: &mut Sides<'_>,
        change: &Change,
        visit: &mut dyn FnMut(Difference) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut found: [Option<(TreeId, Vec<u8>)>; 2] = [None, None];
        let items = [change.old.as_ref(), change.new.as_ref()];
        for ((item, version), found) in items.into_iter().zip(VERSIONS).zip(&mut found) {
            for entry in DirEntries::new(item.map_or(&[], ComparedItem::data)) {
                let entry = entry
                    .map_err(|error| bad_item(sides.tree(version), change.key, &error))
                    .map_err(FsError::from)?;
                if entry.location.item_type == ItemType::ROOT_ITEM {
                    *found = Some((TreeId(entry.location.objectid), entry.name.to_vec()));
                }
            }
        }
        let [old, new] = found;
        if old == new {
            return Ok(());
        }
        let entries = [
            (old, Version::Old, DifferenceKind::Removed),
            (new, Version::New, DifferenceKind::Added),
        ];
        for (entry, version, kind) in entries {
            if let Some((id, name)) = entry {
                let path = sides.paths(version).below(self.number, &name)?;
                visit(Difference::Subvolume { kind, path, id })?;
            }
        }
        Ok(())
    }

    fn add_extent(&mut self, sides: &Sides<'_>, change: &Change) -> Result<(), FsError> {
        let items = [change.old.as_ref(), change.new.as_ref()];
        for (item, version) in items.into_iter().zip(VERSIONS) {
            let Some(item) = item else { continue };
            let extent = FileExtent::parse(item.data())
                .map_err(|error| bad_item(sides.tree(version), change.key, &error))?;
            let piece = Piece::new(FileOffset(change.key.offset), &extent);
            let content = self.content.get_or_insert_default();
            if !piece.is_some_and(|piece| content.add(version, piece)) {
                let fault = InodeFault::Extent(ExtentFault::Overlaps);
                return Err(self.damaged(sides, version, fault));
            }
        }
        Ok(())
    }

    fn finish<E: From<FsError>>(
        mut self,
        sides: &mut Sides<'_>,
        visit: &mut dyn FnMut(Difference) -> Result<(), E>,
    ) -> Result<(), E> {
        let items = match self.items.take() {
            Some(items) => items,
            None => {
                let item = sides.inode(Version::New, self.number)?;
                [item.clone(), item]
            }
        };
        // A file that was deleted while open has no name and is in no
        // directory.
        let [old, new] = items.map(|item| item.filter(|item| item.nlink > 0));
        let same = |old: &InodeItem, new: &InodeItem| {
            old.generation == new.generation && old.otime == new.otime
        };
        match (old, new) {
            (None, None) => Ok(()),
            (Some(old), Some(new)) if same(&old, &new) => match self.changed(sides, &old, &new)? {
                Some(changed) => visit(Difference::File(changed)),
                None => Ok(()),
            },
            (old, new) => {
                let whole = [
                    (old, Version::Old, DifferenceKind::Removed),
                    (new, Version::New, DifferenceKind::Added),
                ];
                for (item, version, kind) in whole {
                    if let Some(item) = item {
                        let whole = self.whole(sides, &item, version, kind)?;
                        visit(Difference::File(whole))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// A file that only one version has.
    fn whole(
        &self,
        sides: &mut Sides<'_>,
        item: &InodeItem,
        version: Version,
        kind: DifferenceKind,
    ) -> Result<FileDifference, FsError> {
        let (size_old, size_new) = match version {
            Version::Old => (item.size, 0),
            Version::New => (0, item.size),
        };
        Ok(FileDifference {
            inode: self.number,
            kind,
            mode: item.mode,
            size_old,
            size_new,
            paths: sides.paths(version).of(self.number)?,
            names_removed: Vec::new(),
            names_added: Vec::new(),
            content: Vec::new(),
            fields: Vec::new(),
        })
    }

    fn changed(
        mut self,
        sides: &mut Sides<'_>,
        old: &InodeItem,
        new: &InodeItem,
    ) -> Result<Option<FileDifference>, FsError> {
        let fields = [
            (Field::Mode, old.mode != new.mode),
            (Field::Uid, old.uid != new.uid),
            (Field::Gid, old.gid != new.gid),
            (Field::Device, old.rdev != new.rdev),
            (Field::Flags, old.flags != new.flags),
            (Field::Modified, old.mtime != new.mtime),
        ];
        let fields = fields.into_iter().filter(|(_, differs)| *differs);
        self.fields.extend(fields.map(|(field, _)| field));
        // The size of a directory follows from its names.
        let is_directory = new.mode & crate::names::S_IFMT == crate::names::S_IFDIR;
        let content = if is_directory {
            Vec::new()
        } else {
            self.content
                .take()
                .unwrap_or_default()
                .finish(old.size, new.size)
        };
        let unchanged = self.fields.is_empty()
            && content.is_empty()
            && self.names_removed.is_empty()
            && self.names_added.is_empty();
        if unchanged {
            return Ok(None);
        }
        let mut paths_of = |version, names: &BTreeSet<Name>| {
            let finder = sides.paths(version);
            let mut paths = names
                .iter()
                .map(|(parent, name)| finder.below(*parent, name))
                .collect::<Result<Vec<_>, _>>()?;
            paths.sort_unstable();
            Ok::<_, FsError>(paths)
        };
        Ok(Some(FileDifference {
            inode: self.number,
            kind: DifferenceKind::Changed,
            mode: new.mode,
            size_old: old.size,
            size_new: new.size,
            names_removed: paths_of(Version::Old, &self.names_removed)?,
            names_added: paths_of(Version::New, &self.names_added)?,
            paths: sides.paths(Version::New).of(self.number)?,
            content,
            fields: self.fields.into_iter().collect(),
        }))
    }
}

/// Names in an item of an inode's names; none without the item.
fn names(tree: TreeId, key: Key, item: Option<&ComparedItem>) -> Result<BTreeSet<Name>, FsError> {
    let data = item.map_or(&[][..], ComparedItem::data);
    let mut names = BTreeSet::new();
    if key.item_type == ItemType::INODE_REF {
        for entry in RefEntries::new(data) {
            let entry = entry.map_err(|error| bad_item(tree, key, &error))?;
            names.insert((InodeNumber(key.offset), entry.name.to_vec()));
        }
    } else {
        for entry in ExtrefEntries::new(data) {
            let entry = entry.map_err(|error| bad_item(tree, key, &error))?;
            names.insert((entry.parent, entry.name.to_vec()));
        }
    }
    Ok(names)
}
