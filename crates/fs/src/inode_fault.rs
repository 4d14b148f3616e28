//! What is wrong with an inode, its data or its names.

use butterfs_format::ParseError;
use butterfs_store::StoreError;
use thiserror::Error;

/// What is wrong with an inode.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum InodeFault {
    /// One of its items cannot be parsed.
    #[error("its {item} is damaged: {error}")]
    Item {
        /// Which of its items.
        item: &'static str,
        /// What is wrong.
        error: ParseError,
    },
    /// A file extent is impossible.
    #[error("its file extent {0}; run a check of the volume")]
    Extent(ExtentFault),
    /// The fsync log says something impossible about it.
    #[error("the fsync log {0}")]
    Log(LogFault),
    /// Data cannot be read, or no copy of them has the right checksum.
    #[error(transparent)]
    Data(Unreadable),
    /// Data lack the checksum that would prove them.
    #[error("no checksum is known for logical {0}")]
    NoChecksum(butterfs_format::Logical),
    /// Compressed data do not decompress.
    #[error("{0}")]
    Compressed(ParseError),
    /// A file's size, or the sum of its extents, is more than a file can have.
    #[error("its size is impossible; run a check of the volume")]
    Size,
    /// A directory index has a position that no directory reaches.
    #[error("its directory index has an impossible position; run a check of the volume")]
    IndexPosition,
    /// Only one of a name's two entries is there.
    #[error("an entry lacks its index or hash item; run a check of the volume")]
    HalfEntry,
    /// A directory of the tree has two names.
    #[error("the directory has a second name; run a check of the volume")]
    SecondName,
    /// A directory is in no other directory, or lies below itself.
    #[error("the directory has no name, or lies below itself; run a check of the volume")]
    NoWayUp,
    /// The way from a directory to the root does not end.
    #[error("its parents form a loop; run a check of the volume")]
    Loop,
    /// An inode has no item that says what it is called.
    #[error("it does not know its own name; run a check of the volume")]
    NoOwnName,
    /// A subvolume has no item that says where it is.
    #[error("a subvolume lacks its reference; run a check of the volume")]
    NoSubvolumeRef,
    /// A deleted subvolume cannot be freed.
    #[error("it was deleted, and cannot be freed: {0}")]
    CannotBeFreed(StoreError),
}

/// Why data cannot be read.
#[derive(Clone, Debug, Error)]
#[error("{cause}{}", .sums.as_ref().map(|sums| format!(": {sums}")).unwrap_or_default())]
pub struct Unreadable {
    /// What reading met.
    pub cause: StoreError,
    /// The checksums that were compared last.
    pub sums: Option<WrongSum>,
}

/// A checksum as it should be and as it is, as the kernel prints them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected checksum {expected}, found {found}")]
pub struct WrongSum {
    /// In the checksum tree.
    pub expected: String,
    /// Of what was read.
    pub found: String,
}

/// Why a file extent is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExtentFault {
    /// More than 128 KiB in one compressed unit.
    #[error("is compressed but larger than 128 KiB")]
    PackedTooLarge,
    /// Inline data behind the beginning of the file.
    #[error("is inline but not at the start")]
    InlineNotFirst,
    /// Inline data of another length than the item says.
    #[error("has a wrong inline length")]
    InlineLength,
    /// Preallocated space cannot be compressed.
    #[error("is preallocated and compressed")]
    PackedPrealloc,
    /// Its end is no offset in a file.
    #[error("ends beyond all offsets")]
    BeyondOffsets,
    /// Offset or length in the file are not whole sectors.
    #[error("does not consist of whole sectors of the file")]
    PartOfSector,
    /// The place in the extent is not whole sectors.
    #[error("does not consist of whole sectors of its extent")]
    PartOfExtentSector,
    /// The end of its extent is no address.
    #[error("lies beyond all addresses")]
    BeyondAddresses,
    /// More compressed bytes than a unit has.
    #[error("is larger compressed than it can be")]
    PackedSize,
    /// It refers to more than the extent has.
    #[error("reaches beyond its extent")]
    BeyondExtent,
    /// It overlaps the file extent before it.
    #[error("overlaps the one before it")]
    Overlaps,
}

/// Something impossible that a fsync log says about an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LogFault {
    /// An inode number that no inode can have.
    #[error("has it, and no inode has this number")]
    NoSuchNumber,
    /// A name of the root, or a name in itself.
    #[error("gives it a name that it cannot have")]
    ImpossibleLink,
    /// An inode item whose key has an offset.
    #[error("has its item at an offset")]
    ItemOffset,
    /// A file type that does not exist.
    #[error("gives it a type that does not exist")]
    NoSuchType,
    /// Flags that do not exist.
    #[error("gives it flags that do not exist")]
    NoSuchFlags,
    /// Data whose length is not one of whole sectors.
    #[error("gives its data a length that is not one of whole sectors")]
    PartOfSector,
    /// A size beyond all files.
    #[error("gives it a size that no file has")]
    Size,
    /// An inode of a later generation.
    #[error("has it from a generation that is yet to come")]
    FutureInode,
    /// Another file type than in the last commit.
    #[error("gives it another type")]
    OtherType,
    /// A file with data gets or loses NODATASUM.
    #[error("changes whether its data have checksums")]
    OtherChecksumming,
    /// An extended attribute whose item contradicts itself.
    #[error("has an attribute of it that cannot be")]
    Attribute,
    /// An item of extended attributes without any.
    #[error("has an empty attribute of it")]
    EmptyAttribute,
    /// A directory entry that is impossible.
    #[error("has an entry in it that cannot be")]
    Entry,
    /// Entries of what is no directory.
    #[error("has entries in it, but it is no directory")]
    EntriesOfFile,
    /// A file extent of a later generation.
    #[error("has data of it from a generation that is yet to come")]
    FutureData,
    /// A file extent beyond all files.
    #[error("has data of it beyond all files")]
    DataBeyond,
    /// Data of what is no file.
    #[error("has data of it, but it is no file")]
    DataOfOther,
    /// An extent of no bytes.
    #[error("has an extent of it without length")]
    EmptyExtent,
    /// One address with extents of two lengths.
    #[error("has an extent of it with two lengths")]
    TwoLengths,
    /// A name that is empty, too long, or holds a slash.
    #[error("has a name that cannot be")]
    Name,
    /// An impossible directory index.
    #[error("has a name at a position that cannot be")]
    NamePosition,
    /// Data over other data of the log.
    #[error("has data of it over other data of the log")]
    DataOverData,
    /// Data outside of all block groups for data.
    #[error("has data of it where no data can be")]
    DataOutside,
    /// Data over nodes of the log.
    #[error("has data of it over its own nodes")]
    DataOverLog,
    /// Data over an extent of the last commit.
    #[error("has data of it over what the last commit has")]
    DataOverCommit,
    /// Data whose checksums the log lacks.
    #[error("has data of it without checksums")]
    NoChecksums,
    /// A name in what is no directory.
    #[error("has a name in it, but it is no directory")]
    NameInFile,
    /// A directory with two names.
    #[error("gives the directory more than one name")]
    SecondName,
    /// A directory below itself.
    #[error("puts the directory below itself")]
    Loop,
    /// Entries of a directory that does not exist.
    #[error("has entries of it, but it does not exist")]
    EntriesOfNothing,
}
