//! Parses bytes as commands.

use super::command::Encoding;
use super::{
    AttributeKind as A, CloneRange, Command, CommandKind, ENCODED_MAX, EncodedWrite, PATH_MAX,
    PathTimes, SourceStamp, Special, StreamFault, Version,
};
use crate::bytes::Reader;
use crate::checksum::crc32c_raw;
use crate::item::inode::Timespec;
use crate::{FileOffset, Generation, InodeNumber};

/// What stands before a command's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandHeader {
    /// Bytes after this header.
    pub length: usize,
    /// Kind.
    pub kind: CommandKind,
    /// CRC-32C of header and attributes with this field as zeros, from seed 0
    /// and not inverted.
    pub checksum: u32,
    version: Version,
}

impl CommandHeader {
    /// Bytes of a header.
    pub const SIZE: usize = 10;

    /// Reads a header.
    ///
    /// # Errors
    /// [`StreamFault::TooLong`], [`StreamFault::UnknownCommand`]
    pub fn parse(bytes: &[u8; Self::SIZE], version: Version) -> Result<Self, StreamFault> {
        let mut r = Reader::new("command header", bytes);
        let length = usize::try_from(r.u32()?).unwrap_or(usize::MAX);
        let number = r.u16()?;
        let checksum = r.u32()?;
        let limit = version.command_max().saturating_sub(Self::SIZE);
        if length > limit {
            return Err(StreamFault::TooLong { length, limit });
        }
        let kind = CommandKind::from_number(number).ok_or(StreamFault::UnknownCommand(number))?;
        Ok(Self {
            length,
            kind,
            checksum,
            version,
        })
    }

    /// The checksum that a command with this header should have.
    pub(super) fn compute(length: u32, kind: CommandKind, body: &[u8]) -> u32 {
        let seed = crc32c_raw(0, &length.to_le_bytes());
        let seed = crc32c_raw(seed, &kind.number().to_le_bytes());
        crc32c_raw(crc32c_raw(seed, &[0; 4]), body)
    }

    /// Errors unless `body` has this header's length and checksum.
    ///
    /// # Errors
    /// [`StreamFault::Checksum`]
    pub fn verify(&self, body: &[u8]) -> Result<(), StreamFault> {
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        let found = Self::compute(length, self.kind, body);
        if found != self.checksum || body.len() != self.length {
            return Err(StreamFault::Checksum {
                command: self.kind,
                stored: self.checksum,
                found,
            });
        }
        Ok(())
    }

    /// Parses the command. `body` is its attributes, all `length` bytes of
    /// them.
    ///
    /// # Errors
    /// [`StreamFault`]
    pub fn command<'a>(&self, body: &'a [u8]) -> Result<Command<'a>, StreamFault> {
        self.verify(body)?;
        self.verified_command(body)
    }

    /// [`CommandHeader::command`] of a body that was verified before.
    ///
    /// # Errors
    /// [`StreamFault`], except for a wrong checksum.
    pub fn verified_command<'a>(&self, body: &'a [u8]) -> Result<Command<'a>, StreamFault> {
        Attributes::parse(self.kind, self.version, body)?.command()
    }
}

/// Number of attribute kinds, and one for 0.
const KINDS: usize = 36;

/// Attributes of one command, by kind.
struct Attributes<'a> {
    command: CommandKind,
    values: [Option<&'a [u8]>; KINDS],
}

impl<'a> Attributes<'a> {
    fn parse(command: CommandKind, version: Version, body: &'a [u8]) -> Result<Self, StreamFault> {
        let mut values = [None; KINDS];
        let mut r = Reader::new("attribute", body);
        while r.remaining() > 0 {
            let number = r.u16()?;
            let kind = A::from_number(number);
            // From version 2 on data are the last attribute and go to the end
            // of the command: they have no length field, because a length has
            // only 16 bits.
            let value = if kind == Some(A::Data) && version > Version::One {
                let rest = r.rest();
                r.bytes(rest.len())?
            } else {
                let length = r.u16()?;
                r.bytes(usize::from(length))?
            };
            // The format allows unknown attributes to be ignored.
            let (Some(kind), Some(slot)) = (kind, values.get_mut(usize::from(number))) else {
                continue;
            };
            if slot.replace(value).is_some() {
                return Err(StreamFault::Twice {
                    command,
                    attribute: kind,
                });
            }
        }
        Ok(Self { command, values })
    }

    fn find(&self, attribute: A) -> Option<&'a [u8]> {
        let index = usize::from(attribute.number());
        self.values.get(index).copied().flatten()
    }

    fn bad(&self, attribute: A, reason: &'static str) -> StreamFault {
        StreamFault::BadValue {
            command: self.command,
            attribute,
            reason,
        }
    }

    fn bytes(&self, attribute: A) -> Result<&'a [u8], StreamFault> {
        self.find(attribute).ok_or(StreamFault::Missing {
            command: self.command,
            attribute,
        })
    }

    fn array<const N: usize>(&self, attribute: A) -> Result<[u8; N], StreamFault> {
        <[u8; N]>::try_from(self.bytes(attribute)?)
            .map_err(|_| self.bad(attribute, "it has another length"))
    }

    fn u64(&self, attribute: A) -> Result<u64, StreamFault> {
        Ok(u64::from_le_bytes(self.array(attribute)?))
    }

    fn u32(&self, attribute: A) -> Result<u32, StreamFault> {
        Ok(u32::from_le_bytes(self.array(attribute)?))
    }

    fn offset(&self, attribute: A) -> Result<FileOffset, StreamFault> {
        Ok(FileOffset(self.u64(attribute)?))
    }

    /// Offset and length of a range that ends at a file offset.
    fn range(&self, offset: A, length: A) -> Result<(FileOffset, u64), StreamFault> {
        let (start, bytes) = (self.u64(offset)?, self.u64(length)?);
        let end = start.checked_add(bytes);
        if end.and_then(|end| i64::try_from(end).ok()).is_none() {
            return Err(self.bad(length, "the range ends beyond all files"));
        }
        Ok((FileOffset(start), bytes))
    }

    fn time(&self, attribute: A) -> Result<Timespec, StreamFault> {
        let bytes: [u8; 12] = self.array(attribute)?;
        let time = Timespec::parse(&mut Reader::new("time", &bytes))?;
        if time.nanoseconds >= 1_000_000_000 {
            return Err(self.bad(attribute, "it has more nanoseconds than a second"));
        }
        Ok(time)
    }

    fn inode(&self) -> Result<Option<InodeNumber>, StreamFault> {
        match self.find(A::Inode) {
            None => Ok(None),
            Some(_) => Ok(Some(InodeNumber(self.u64(A::Inode)?))),
        }
    }

    /// A path that stays below the subvolume.
    fn path(&self, attribute: A) -> Result<&'a [u8], StreamFault> {
        let path = self.bytes(attribute)?;
        if path.len() >= PATH_MAX {
            return Err(self.bad(attribute, "it is longer than any path can be"));
        }
        if path.contains(&0) {
            return Err(self.bad(attribute, "it has a NUL"));
        }
        let leaves = |name: &[u8]| name.is_empty() || name == b"." || name == b"..";
        if !path.is_empty() && path.split(|byte| *byte == b'/').any(leaves) {
            return Err(self.bad(attribute, "it leads out of the subvolume"));
        }
        Ok(path)
    }

    /// A path that is not the subvolume's own.
    fn name(&self, attribute: A) -> Result<&'a [u8], StreamFault> {
        let path = self.path(attribute)?;
        if path.is_empty() {
            return Err(self.bad(attribute, "it is empty"));
        }
        Ok(path)
    }

    fn stamp(&self, uuid: A, ctransid: A) -> Result<SourceStamp, StreamFault> {
        Ok(SourceStamp {
            uuid: self.array(uuid)?,
            ctransid: Generation(self.u64(ctransid)?),
        })
    }

    fn own_stamp(&self) -> Result<SourceStamp, StreamFault> {
        self.stamp(A::Uuid, A::Ctransid)
    }

    fn special(&self, kind: Special) -> Result<Command<'a>, StreamFault> {
        Ok(Command::MakeSpecial {
            path: self.name(A::Path)?,
            inode: self.inode()?,
            kind,
            mode: self.u64(A::Mode)?,
            rdev: self.u64(A::Rdev)?,
        })
    }

    fn xattr_name(&self) -> Result<&'a [u8], StreamFault> {
        let name = self.bytes(A::XattrName)?;
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return Err(self.bad(A::XattrName, "no attribute can have this name"));
        }
        Ok(name)
    }

    fn times(&self) -> Result<PathTimes, StreamFault> {
        let otime = self.find(A::Otime).map(|_| self.time(A::Otime));
        Ok(PathTimes {
            atime: self.time(A::Atime)?,
            mtime: self.time(A::Mtime)?,
            ctime: self.time(A::Ctime)?,
            otime: otime.transpose()?,
        })
    }

    fn clone_range(&self) -> Result<CloneRange<'a>, StreamFault> {
        let (offset, length) = self.range(A::FileOffset, A::CloneLength)?;
        let (from_offset, _) = self.range(A::CloneOffset, A::CloneLength)?;
        Ok(CloneRange {
            path: self.name(A::Path)?,
            offset,
            length,
            from: self.stamp(A::CloneUuid, A::CloneCtransid)?,
            from_path: self.name(A::ClonePath)?,
            from_offset,
        })
    }

    fn encoded_write(&self) -> Result<EncodedWrite<'a>, StreamFault> {
        let (offset, file_length) = self.range(A::FileOffset, A::UnencodedFileLength)?;
        let length = self.u64(A::UnencodedLength)?;
        let skip = self.u64(A::UnencodedOffset)?;
        if length > ENCODED_MAX {
            return Err(self.bad(A::UnencodedLength, "it is more than 128 KiB"));
        }
        if skip.checked_add(file_length).is_none_or(|end| end > length) {
            return Err(self.bad(A::UnencodedFileLength, "it ends beyond the decoded bytes"));
        }
        let number = self.find(A::Compression).map(|_| self.u32(A::Compression));
        let compression = match number.transpose()? {
            None | Some(0) => None,
            Some(number) => Some(
                Encoding::from_number(number)
                    .ok_or_else(|| self.bad(A::Compression, "it is not known"))?,
            ),
        };
        let encryption = self.find(A::Encryption).map(|_| self.u32(A::Encryption));
        if encryption.transpose()?.is_some_and(|kind| kind != 0) {
            return Err(self.bad(A::Encryption, "it is not known"));
        }
        Ok(EncodedWrite {
            path: self.name(A::Path)?,
            offset,
            file_length,
            length,
            skip,
            compression,
            data: self.bytes(A::Data)?,
        })
    }

    fn write(&self) -> Result<Command<'a>, StreamFault> {
        let offset = self.offset(A::FileOffset)?;
        let data = self.bytes(A::Data)?;
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(length);
        if end.and_then(|end| i64::try_from(end.get()).ok()).is_none() {
            return Err(self.bad(A::FileOffset, "the range ends beyond all files"));
        }
        Ok(Command::Write {
            path: self.name(A::Path)?,
            offset,
            data,
        })
    }

    fn command(&self) -> Result<Command<'a>, StreamFault> {
        Ok(match self.command {
            CommandKind::Subvolume => Command::Subvolume {
                path: self.name(A::Path)?,
                stamp: self.own_stamp()?,
            },
            CommandKind::Snapshot => Command::Snapshot {
                path: self.name(A::Path)?,
                stamp: self.own_stamp()?,
                parent: self.stamp(A::CloneUuid, A::CloneCtransid)?,
            },
            CommandKind::MakeFile => Command::MakeFile {
                path: self.name(A::Path)?,
                inode: self.inode()?,
            },
            CommandKind::MakeDirectory => Command::MakeDirectory {
                path: self.name(A::Path)?,
                inode: self.inode()?,
            },
            CommandKind::MakeNode => self.special(Special::Node)?,
            CommandKind::MakeFifo => self.special(Special::Fifo)?,
            CommandKind::MakeSocket => self.special(Special::Socket)?,
            CommandKind::Symlink => Command::Symlink {
                path: self.name(A::Path)?,
                inode: self.inode()?,
                target: self.target()?,
            },
            CommandKind::Rename => Command::Rename {
                path: self.name(A::Path)?,
                to: self.name(A::PathTo)?,
            },
            CommandKind::Link => Command::Link {
                path: self.name(A::Path)?,
                existing: self.name(A::PathLink)?,
            },
            CommandKind::Unlink => Command::Unlink {
                path: self.name(A::Path)?,
            },
            CommandKind::RemoveDirectory => Command::RemoveDirectory {
                path: self.name(A::Path)?,
            },
            CommandKind::SetXattr => Command::SetXattr {
                path: self.path(A::Path)?,
                name: self.xattr_name()?,
                value: self.bytes(A::XattrData)?,
            },
            CommandKind::RemoveXattr => Command::RemoveXattr {
                path: self.path(A::Path)?,
                name: self.xattr_name()?,
            },
            CommandKind::Write => self.write()?,
            CommandKind::Clone => Command::Clone(self.clone_range()?),
            CommandKind::Truncate => Command::Truncate {
                path: self.name(A::Path)?,
                size: self.size()?,
            },
            CommandKind::Chmod => Command::Chmod {
                path: self.path(A::Path)?,
                mode: self.u64(A::Mode)?,
            },
            CommandKind::Chown => Command::Chown {
                path: self.path(A::Path)?,
                uid: self.u64(A::Uid)?,
                gid: self.u64(A::Gid)?,
            },
            CommandKind::Times => Command::Times {
                path: self.path(A::Path)?,
                times: self.times()?,
            },
            CommandKind::End => Command::End,
            CommandKind::UpdateExtent => {
                let (offset, length) = self.range(A::FileOffset, A::Size)?;
                Command::UpdateExtent {
                    path: self.name(A::Path)?,
                    offset,
                    length,
                }
            }
            CommandKind::Allocate => {
                let (offset, length) = self.range(A::FileOffset, A::Size)?;
                Command::Allocate {
                    path: self.name(A::Path)?,
                    mode: self.u32(A::AllocateMode)?,
                    offset,
                    length,
                }
            }
            CommandKind::FileFlags => Command::FileFlags {
                path: self.path(A::Path)?,
                flags: self.u64(A::FileFlags)?,
            },
            CommandKind::EncodedWrite => Command::EncodedWrite(self.encoded_write()?),
            CommandKind::EnableVerity => {
                let [algorithm] = self.array(A::VerityAlgorithm)?;
                Command::EnableVerity {
                    path: self.name(A::Path)?,
                    algorithm,
                    block_size: self.u32(A::VerityBlockSize)?,
                    salt: self.bytes(A::VeritySalt)?,
                    signature: self.bytes(A::VeritySignature)?,
                }
            }
        })
    }

    fn size(&self) -> Result<u64, StreamFault> {
        let size = self.u64(A::Size)?;
        if i64::try_from(size).is_err() {
            return Err(self.bad(A::Size, "no file can be so large"));
        }
        Ok(size)
    }

    /// Target of a symbolic link: any bytes that a link can hold.
    fn target(&self) -> Result<&'a [u8], StreamFault> {
        let target = self.bytes(A::PathLink)?;
        if target.is_empty() || target.len() >= PATH_MAX || target.contains(&0) {
            return Err(self.bad(A::PathLink, "no link can have this target"));
        }
        Ok(target)
    }
}
