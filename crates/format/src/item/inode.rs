//! Inodes: attributes and the names that an inode knows of itself.

use super::{expect_end, name};
use crate::bytes::{Reader, Writer};
use crate::{Generation, InodeNumber, ParseError, bit_flags};

/// The most names of an inode. Items could count more, but no file system driver
/// gives a file more, and none receives a stream of such a file.
pub const LINKS_MAX: u32 = 65_535;

/// A time: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timespec {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanoseconds: u32,
}

impl Timespec {
    /// Reads 12 bytes.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            seconds: i64::from_le_bytes(r.array()?),
            nanoseconds: r.u32()?,
        })
    }

    /// Writes 12 bytes.
    pub fn encode(self, w: &mut Writer) {
        w.bytes(&self.seconds.to_le_bytes()).u32(self.nanoseconds);
    }
}

bit_flags!(
    /// Flags of an inode.
    InodeFlags: u64 {
        /// Data have no checksums.
        NODATASUM = 1 << 0, "NODATASUM";
        /// Data are overwritten in place.
        NODATACOW = 1 << 1, "NODATACOW";
        /// Read only.
        READONLY = 1 << 2, "READONLY";
        /// Data are not compressed.
        NOCOMPRESS = 1 << 3, "NOCOMPRESS";
        /// Has preallocated extents.
        PREALLOC = 1 << 4, "PREALLOC";
        /// Writes are synchronous.
        SYNC = 1 << 5, "SYNC";
        /// Cannot be changed.
        IMMUTABLE = 1 << 6, "IMMUTABLE";
        /// Can only be appended to.
        APPEND = 1 << 7, "APPEND";
        /// Left out of dumps.
        NODUMP = 1 << 8, "NODUMP";
        /// Access times are not kept.
        NOATIME = 1 << 9, "NOATIME";
        /// Changes of names are synchronous.
        DIRSYNC = 1 << 10, "DIRSYNC";
        /// Data are compressed.
        COMPRESS = 1 << 11, "COMPRESS";
        /// A root item's inode was set up.
        ROOT_ITEM_INIT = 1 << 31, "ROOT_ITEM_INIT";
        /// fs-verity is on; the file cannot change.
        VERITY = 1 << 32, "VERITY";
    }
);

/// Attributes of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InodeItem {
    /// Generation that made it.
    pub generation: Generation,
    /// Generation that changed it last.
    pub transid: Generation,
    /// Bytes.
    pub size: u64,
    /// Bytes of its extents, before compression.
    pub nbytes: u64,
    /// Unused hint.
    pub block_group: u64,
    /// Names.
    pub nlink: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Device number.
    pub rdev: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// Grows with each change.
    pub sequence: u64,
    /// Reserved, kept as it is.
    pub reserved: [u64; 4],
    /// Last access.
    pub atime: Timespec,
    /// Last change of anything.
    pub ctime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Birth.
    pub otime: Timespec,
}

impl InodeItem {
    /// Bytes of an item.
    pub const SIZE: usize = 160;

    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("inode item", data);
        let item = Self::read(&mut r)?;
        expect_end("inode item", &r)?;
        Ok(item)
    }

    /// Reads an item that lies within another.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn read(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            generation: Generation(r.u64()?),
            transid: Generation(r.u64()?),
            size: r.u64()?,
            nbytes: r.u64()?,
            block_group: r.u64()?,
            nlink: r.u32()?,
            uid: r.u32()?,
            gid: r.u32()?,
            mode: r.u32()?,
            rdev: r.u64()?,
            flags: InodeFlags(r.u64()?),
            sequence: r.u64()?,
            reserved: [r.u64()?, r.u64()?, r.u64()?, r.u64()?],
            atime: Timespec::parse(r)?,
            ctime: Timespec::parse(r)?,
            mtime: Timespec::parse(r)?,
            otime: Timespec::parse(r)?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        self.write(&mut w);
        w.finish()
    }

    /// Writes it into another item.
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.generation.get())
            .u64(self.transid.get())
            .u64(self.size)
            .u64(self.nbytes)
            .u64(self.block_group)
            .u32(self.nlink)
            .u32(self.uid)
            .u32(self.gid)
            .u32(self.mode)
            .u64(self.rdev)
            .u64(self.flags.0)
            .u64(self.sequence);
        for word in self.reserved {
            w.u64(word);
        }
        for time in [self.atime, self.ctime, self.mtime, self.otime] {
            time.encode(w);
        }
    }
}

/// One name in an INODE_REF item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefEntry<'a> {
    /// Index in the directory.
    pub index: u64,
    /// Name.
    pub name: &'a [u8],
}

impl RefEntry<'_> {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(self.name.len().saturating_add(10));
        w.u64(self.index).u16(length(self.name)).bytes(self.name);
        w.finish()
    }
}

/// Length of a name, which callers keep within 16 bits.
pub(crate) fn length(name: &[u8]) -> u16 {
    u16::try_from(name.len()).unwrap_or(u16::MAX)
}

/// Names of an INODE_REF item.
#[derive(Clone, Debug)]
pub struct RefEntries<'a>(Reader<'a>);

impl<'a> RefEntries<'a> {
    /// Names in `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(Reader::new("inode reference", data))
    }

    fn entry(&mut self) -> Result<RefEntry<'a>, ParseError> {
        let index = self.0.u64()?;
        let length = self.0.u16()?;
        Ok(RefEntry {
            index,
            name: name("inode reference", &mut self.0, length)?,
        })
    }
}

impl<'a> Iterator for RefEntries<'a> {
    type Item = Result<RefEntry<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.remaining() == 0 {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0 = Reader::new("inode reference", &[]);
        }
        Some(entry)
    }
}

/// One name in an INODE_EXTREF item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtrefEntry<'a> {
    /// Directory.
    pub parent: InodeNumber,
    /// Index in the directory.
    pub index: u64,
    /// Name.
    pub name: &'a [u8],
}

impl ExtrefEntry<'_> {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(self.name.len().saturating_add(18));
        w.u64(self.parent.get())
            .u64(self.index)
            .u16(length(self.name))
            .bytes(self.name);
        w.finish()
    }
}

/// Names of an INODE_EXTREF item.
#[derive(Clone, Debug)]
pub struct ExtrefEntries<'a>(Reader<'a>);

impl<'a> ExtrefEntries<'a> {
    /// Names in `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(Reader::new("extended inode reference", data))
    }

    fn entry(&mut self) -> Result<ExtrefEntry<'a>, ParseError> {
        let parent = InodeNumber(self.0.u64()?);
        let index = self.0.u64()?;
        let length = self.0.u16()?;
        Ok(ExtrefEntry {
            parent,
            index,
            name: name("extended inode reference", &mut self.0, length)?,
        })
    }
}

impl<'a> Iterator for ExtrefEntries<'a> {
    type Item = Result<ExtrefEntry<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.remaining() == 0 {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0 = Reader::new("extended inode reference", &[]);
        }
        Some(entry)
    }
}
