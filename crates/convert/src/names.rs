//! All names of the old file system, in two orders: by the inode that they
//! lead to, and, for one directory, by their hash.

use crate::error::ConvertError;
use crate::options::{Step, Watch};
use crate::sorter::{Sorted, SortedReader, Sorter};
use crate::source::Old;
use butterfs_ext4::{EntryKind, Inode, InodeNumber, Kind};
use butterfs_format::item::dir::FileType;

/// The number in the new volume: the root directory of both is moved onto each
/// other, and the others follow.
pub(crate) fn number_of(inode: InodeNumber) -> u64 {
    u64::from(inode.0).saturating_add(254)
}

/// The kind of a file in a directory entry of Btrfs.
pub(crate) const fn type_of(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::Regular,
        Kind::Directory => FileType::Directory,
        Kind::Link => FileType::Symlink,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}

/// The first index of a directory's entries.
const INDEX_MIN: u64 = 2;

/// Visits the names of a directory with their indexes.
///
/// # Errors
/// Reading, and what `visit` returns.
pub(crate) fn each_name(
    old: &Old,
    directory: &Inode,
    visit: &mut dyn FnMut(u64, Name<'_>) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let mut index = INDEX_MIN;
    old.entries(directory, &mut |entry| {
        let kind = match entry.kind {
            EntryKind::Known(kind) => kind,
            EntryKind::Unknown => old.inode(entry.inode)?.kind()?,
        };
        let name = Name {
            inode: entry.inode,
            kind: type_of(kind),
            name: entry.name,
        };
        visit(index, name)?;
        index = index.saturating_add(1);
        Ok(())
    })
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) inode: InodeNumber,
    pub(crate) kind: FileType,
    pub(crate) name: &'a [u8],
}

/// A name, as its inode knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameOf {
    pub(crate) parent: u64,
    pub(crate) index: u64,
    pub(crate) kind: u8,
    pub(crate) name: Vec<u8>,
}

/// Gathers all names, sorted by the inode that they lead to. Counts inodes.
///
/// # Errors
/// Reading; the temporary file; [`ConvertError::Stopped`].
pub(crate) fn gather(
    old: &Old,
    memory: usize,
    watch: &dyn Watch,
) -> Result<(Sorted, u64), ConvertError> {
    let mut sorter = Sorter::new(memory);
    let mut inodes = 0_u64;
    let superblock = old.superblock();
    let all = superblock.inodes.saturating_sub(superblock.free_inodes);
    for group in 0..superblock.groups() {
        old.inodes_of(group, &mut |inode| -> Result<(), ConvertError> {
            let inode = inode?;
            inodes = inodes.saturating_add(1);
            if is_hidden(old, &inode) || inode.kind().ok() != Some(Kind::Directory) {
                return Ok(());
            }
            let parent = number_of(inode.number).to_be_bytes();
            each_name(old, &inode, &mut |index, name| {
                sorter.push(&[
                    &name.inode.0.to_be_bytes(),
                    &parent,
                    &index.to_be_bytes(),
                    &[name.kind.number()],
                    name.name,
                ])
            })
        })?;
        watch.progress(Step::Reading, inodes, all.into());
        if watch.is_stopped() {
            return Err(ConvertError::Stopped);
        }
    }
    Ok((sorter.finish()?, inodes))
}

/// Whether an inode belongs to the file system itself: reserved ones, the
/// journal, quota files, values of attributes.
pub(crate) fn is_hidden(old: &Old, inode: &Inode) -> bool {
    let superblock = old.superblock();
    let number = inode.number;
    if number == InodeNumber::ROOT {
        return false;
    }
    let special = [superblock.journal, superblock.orphan_file];
    number < superblock.first_inode
        || special.contains(&number)
        || superblock.quota_files.contains(&number)
        || inode.flags.has(butterfs_ext4::InodeFlags::EA_INODE)
}

/// Gives the names of inodes that are asked for in ascending order.
pub(crate) struct NamesByInode<'s> {
    reader: SortedReader<'s>,
    next: Option<(InodeNumber, NameOf)>,
}

impl<'s> NamesByInode<'s> {
    pub(crate) fn new(sorted: &'s Sorted) -> Result<Self, ConvertError> {
        let mut names = Self {
            reader: sorted.read()?,
            next: None,
        };
        names.advance()?;
        Ok(names)
    }

    fn advance(&mut self) -> Result<(), ConvertError> {
        self.next = self.reader.next()?.and_then(parse);
        Ok(())
    }

    /// The names of an inode.
    ///
    /// # Errors
    /// A name leads to an inode before it that is not in use.
    pub(crate) fn of(&mut self, inode: InodeNumber) -> Result<Vec<NameOf>, ConvertError> {
        let mut names = Vec::new();
        while let Some((number, name)) = &self.next {
            if *number > inode {
                break;
            }
            if *number < inode {
                return Err(dangling(*number));
            }
            names.push(name.clone());
            self.advance()?;
        }
        Ok(names)
    }

    /// No more inodes come.
    ///
    /// # Errors
    /// A name leads to one.
    pub(crate) fn end(&self) -> Result<(), ConvertError> {
        match &self.next {
            Some((number, _)) => Err(dangling(*number)),
            None => Ok(()),
        }
    }
}

const fn dangling(inode: InodeNumber) -> ConvertError {
    ConvertError::Contradiction {
        inode,
        what: "a name leads to it, but it is no file that is in use",
    }
}

fn parse(record: &[u8]) -> Option<(InodeNumber, NameOf)> {
    let (inode, rest) = record.split_first_chunk()?;
    let (parent, rest) = rest.split_first_chunk()?;
    let (index, rest) = rest.split_first_chunk()?;
    let (kind, name) = rest.split_first()?;
    let name = NameOf {
        parent: u64::from_be_bytes(*parent),
        index: u64::from_be_bytes(*index),
        kind: *kind,
        name: name.to_vec(),
    };
    Some((InodeNumber(u32::from_be_bytes(*inode)), name))
}
