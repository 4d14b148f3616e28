//! Encodes commands as bytes.

use super::command::Encoding;
use super::{
    AttributeKind as A, Command, CommandHeader, CommandKind, PATH_MAX, SourceStamp, StreamFault,
    Version,
};
use crate::bytes::Writer;
use crate::item::inode::Timespec;
use crate::{FileOffset, InodeNumber};

/// Encodes commands of one version, in the order of attributes that the
/// kernel writes.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    version: Version,
}

impl Encoder {
    /// An encoder of `version`.
    #[must_use]
    pub const fn new(version: Version) -> Self {
        Self { version }
    }

    /// Appends `command` to `out`.
    ///
    /// # Errors
    /// [`StreamFault::BadValue`] for a path that no receiver accepts and for an
    /// attribute that does not fit its 16-bit length, [`StreamFault::TooLong`] for a command that is larger than the
    /// version allows. After an error, nothing was appended.
    pub fn encode(&self, command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        let mut body = Body {
            command: command.kind(),
            version: self.version,
            bytes: Writer::with_capacity(256),
            too_long: None,
        };
        body.put(command);
        let too_long = body.too_long;
        let bytes = body.bytes.finish();
        let kind = command.kind();
        if let Some((attribute, reason)) = too_long {
            return Err(StreamFault::BadValue {
                command: kind,
                attribute,
                reason,
            });
        }
        let limit = self
            .version
            .command_max()
            .saturating_sub(CommandHeader::SIZE);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if bytes.len() > limit {
            return Err(StreamFault::TooLong {
                length: bytes.len(),
                limit,
            });
        }
        let checksum = CommandHeader::compute(length, kind, &bytes);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&kind.number().to_le_bytes());
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&bytes);
        Ok(())
    }
}

struct Body {
    command: CommandKind,
    version: Version,
    bytes: Writer,
    too_long: Option<(A, &'static str)>,
}

impl Body {
    fn value(&mut self, kind: A, value: &[u8]) -> &mut Self {
        self.bytes.u16(kind.number());
        if kind != A::Data || self.version == Version::One {
            match u16::try_from(value.len()) {
                Ok(length) => {
                    self.bytes.u16(length);
                }
                Err(_) => self.too_long = Some((kind, "it is longer than 65,535 bytes")),
            }
        }
        let is_path = matches!(kind, A::Path | A::PathTo | A::PathLink | A::ClonePath);
        if is_path && value.len() >= PATH_MAX {
            self.too_long = Some((kind, "it is longer than any path can be (4,095 bytes)"));
        }
        self.bytes.bytes(value);
        self
    }

    fn u64(&mut self, kind: A, value: u64) -> &mut Self {
        self.value(kind, &value.to_le_bytes())
    }

    fn u32(&mut self, kind: A, value: u32) -> &mut Self {
        self.value(kind, &value.to_le_bytes())
    }

    fn offset(&mut self, kind: A, value: FileOffset) -> &mut Self {
        self.u64(kind, value.get())
    }

    fn time(&mut self, kind: A, value: Timespec) -> &mut Self {
        let mut w = Writer::with_capacity(12);
        value.encode(&mut w);
        self.value(kind, &w.finish())
    }

    fn path(&mut self, path: &[u8]) -> &mut Self {
        self.value(A::Path, path)
    }

    fn inode(&mut self, inode: Option<InodeNumber>) -> &mut Self {
        if let Some(inode) = inode {
            self.u64(A::Inode, inode.get());
        }
        self
    }

    fn own_stamp(&mut self, stamp: SourceStamp) -> &mut Self {
        self.value(A::Uuid, &stamp.uuid)
            .u64(A::Ctransid, stamp.ctransid.get())
    }

    fn clone_stamp(&mut self, stamp: SourceStamp) -> &mut Self {
        self.value(A::CloneUuid, &stamp.uuid)
            .u64(A::CloneCtransid, stamp.ctransid.get())
    }

    fn put(&mut self, command: &Command<'_>) {
        debug_assert_eq!(self.command, command.kind());
        match *command {
            Command::Subvolume { .. }
            | Command::Snapshot { .. }
            | Command::MakeFile { .. }
            | Command::MakeDirectory { .. }
            | Command::MakeSpecial { .. }
            | Command::Symlink { .. }
            | Command::Rename { .. }
            | Command::Link { .. }
            | Command::Unlink { .. }
            | Command::RemoveDirectory { .. }
            | Command::End => self.put_name(command),
            Command::SetXattr { path, name, value } => {
                self.path(path)
                    .value(A::XattrName, name)
                    .value(A::XattrData, value);
            }
            Command::RemoveXattr { path, name } => {
                self.path(path).value(A::XattrName, name);
            }
            Command::Chmod { path, mode } => {
                self.path(path).u64(A::Mode, mode);
            }
            Command::Chown { path, uid, gid } => {
                self.path(path).u64(A::Uid, uid).u64(A::Gid, gid);
            }
            Command::Times { path, times } => {
                self.path(path)
                    .time(A::Atime, times.atime)
                    .time(A::Mtime, times.mtime)
                    .time(A::Ctime, times.ctime);
                if let Some(otime) = times.otime
                    && self.version > Version::One
                {
                    self.time(A::Otime, otime);
                }
            }
            Command::FileFlags { path, flags } => {
                self.path(path).u64(A::FileFlags, flags);
            }
            Command::EnableVerity {
                path,
                algorithm,
                block_size,
                salt,
                signature,
            } => {
                self.path(path)
                    .value(A::VerityAlgorithm, &[algorithm])
                    .u32(A::VerityBlockSize, block_size)
                    .value(A::VeritySalt, salt)
                    .value(A::VeritySignature, signature);
            }
            Command::Write { .. }
            | Command::Clone(_)
            | Command::Truncate { .. }
            | Command::UpdateExtent { .. }
            | Command::Allocate { .. }
            | Command::EncodedWrite(_) => self.put_data(command),
        }
    }

    /// Commands about names.
    fn put_name(&mut self, command: &Command<'_>) {
        match *command {
            Command::Subvolume { path, stamp } => {
                self.path(path).own_stamp(stamp);
            }
            Command::Snapshot {
                path,
                stamp,
                parent,
            } => {
                self.path(path).own_stamp(stamp).clone_stamp(parent);
            }
            Command::MakeFile { path, inode } | Command::MakeDirectory { path, inode } => {
                self.path(path).inode(inode);
            }
            Command::MakeSpecial {
                path,
                inode,
                mode,
                rdev,
                ..
            } => {
                self.path(path)
                    .inode(inode)
                    .u64(A::Rdev, rdev)
                    .u64(A::Mode, mode);
            }
            Command::Symlink {
                path,
                inode,
                target,
            } => {
                self.path(path).inode(inode).value(A::PathLink, target);
            }
            Command::Rename { path, to } => {
                self.path(path).value(A::PathTo, to);
            }
            Command::Link { path, existing } => {
                self.path(path).value(A::PathLink, existing);
            }
            Command::Unlink { path } | Command::RemoveDirectory { path } => {
                self.path(path);
            }
            _ => {}
        }
    }

    /// Commands about content.
    fn put_data(&mut self, command: &Command<'_>) {
        match *command {
            Command::Write { path, offset, data } => {
                self.path(path)
                    .offset(A::FileOffset, offset)
                    .value(A::Data, data);
            }
            Command::Clone(clone) => {
                self.offset(A::FileOffset, clone.offset)
                    .u64(A::CloneLength, clone.length)
                    .path(clone.path)
                    .clone_stamp(clone.from)
                    .value(A::ClonePath, clone.from_path)
                    .offset(A::CloneOffset, clone.from_offset);
            }
            Command::Truncate { path, size } => {
                self.path(path).u64(A::Size, size);
            }
            Command::UpdateExtent {
                path,
                offset,
                length,
            } => {
                self.path(path)
                    .offset(A::FileOffset, offset)
                    .u64(A::Size, length);
            }
            Command::Allocate {
                path,
                mode,
                offset,
                length,
            } => {
                self.path(path)
                    .u32(A::AllocateMode, mode)
                    .offset(A::FileOffset, offset)
                    .u64(A::Size, length);
            }
            Command::EncodedWrite(write) => {
                self.path(write.path)
                    .offset(A::FileOffset, write.offset)
                    .u64(A::UnencodedFileLength, write.file_length)
                    .u64(A::UnencodedLength, write.length)
                    .u64(A::UnencodedOffset, write.skip)
                    .u32(
                        A::Compression,
                        write.compression.map_or(0, Encoding::number),
                    )
                    .u32(A::Encryption, 0)
                    .value(A::Data, write.data);
            }
            _ => {}
        }
    }
}
