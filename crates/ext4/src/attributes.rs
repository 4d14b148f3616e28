//! Extended attributes, and small files, which lie among them.

use crate::bytes::{length, memory, u8, u16, u32};
use crate::checksum::crc32c;
use crate::error::{Error, Fault, Place};
use crate::inode::InodeFlags;
use crate::{FileSystem, Inode, InodeNumber, Mapping, Source, State};

/// An attribute as programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The whole name, as `user.note`.
    pub name: Vec<u8>,
    /// The value. Of an ACL it is [`Acl::attribute`].
    pub value: Vec<u8>,
}

const MAGIC: u32 = 0xea02_0000;
/// Bytes of a block's head, and of an entry before its name.
const BLOCK_HEAD: usize = 32;
const ENTRY_HEAD: usize = 16;
/// The kernel takes no longer value.
const VALUE_MAX: u32 = 1 << 24;
/// Attributes of one inode together.
const ALL_MAX: u64 = 64 << 20;
/// The index of `system.`, and the name there of the data of small files.
const SYSTEM: u8 = 7;
const DATA: &[u8] = b"data";

/// An attribute as it lies on the disk.
struct Stored {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// The beginning of a name.
fn prefix(index: u8) -> Option<&'static [u8]> {
    Some(match index {
        0 => b"",
        1 => b"user.",
        2 => b"system.posix_acl_access",
        3 => b"system.posix_acl_default",
        4 => b"trusted.",
        6 => b"security.",
        SYSTEM => b"system.",
        8 => b"system.richacl",
        // Of encryption, whose contexts programs do not see.
        9 => return None,
        10 => b"gnu.",
        _ => return None,
    })
}

impl<S: Source> FileSystem<S> {
    /// The attributes of an inode that programs see. What the file system keeps
    /// for itself is not among them: data of small files, contexts of
    /// encryption.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub fn attributes(&self, inode: &Inode) -> Result<Vec<Attribute>, Error> {
        let mut all = Vec::new();
        for stored in self.stored(inode)? {
            if stored.index == SYSTEM && stored.name == DATA {
                continue;
            }
            let Some(prefix) = prefix(stored.index) else {
                continue;
            };
            let is_acl = stored.index == 2 || stored.index == 3;
            let value = match is_acl {
                true => Acl::parse(&stored.value)
                    .ok_or_else(|| {
                        let size = length(stored.value.len());
                        Place::Attributes(inode.number).number("the size of an ACL", size)
                    })?
                    .attribute(),
                false => stored.value,
            };
            all.push(Attribute {
                name: [prefix, &stored.name].concat(),
                value,
            });
        }
        Ok(all)
    }

    /// The data of a file or directory that lie in its inode; `None` for others.
    /// A file that was made longer without being written is longer than its
    /// data, and ends with a hole.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`].
    pub fn inline_data(&self, inode: &Inode) -> Result<Option<Vec<u8>>, Error> {
        if !inode.flags.has(InodeFlags::INLINE_DATA) {
            return Ok(None);
        }
        let mut data = inode.map.to_vec();
        let stored = self.stored(inode)?.into_iter();
        let more = stored.filter(|one| one.index == SYSTEM && one.name == DATA);
        data.extend(more.flat_map(|one| one.value));
        let size = memory(inode.size);
        data.truncate(size);
        Ok(Some(data))
    }

    fn stored(&self, inode: &Inode) -> Result<Vec<Stored>, Error> {
        let mut all = Vec::new();
        let place = Place::Attributes(inode.number);
        if u32(&inode.tail, 0) == MAGIC {
            let entries = inode.tail.get(4..).unwrap_or_default();
            self.parse(entries, entries, place, &mut all)?;
        }
        if inode.attribute_block == 0 {
            return Ok(all);
        }
        let block = inode.attribute_block;
        if !self.has_blocks(block, 1) {
            return Err(place.has(Fault::Outside(block)).into());
        }
        let mut bytes = Vec::new();
        self.read_block(block, &mut bytes)?;
        if u32(&bytes, 0) != MAGIC {
            return Err(place.has(Fault::Magic).into());
        }
        if self.superblock.has_checksums() {
            let seed = crc32c(self.superblock.checksum_seed, &block.to_le_bytes());
            let (before, behind) = (bytes.get(..16), bytes.get(20..));
            let parts = [
                before.unwrap_or_default(),
                &[0; 4],
                behind.unwrap_or_default(),
            ];
            if parts.into_iter().fold(seed, crc32c) != u32(&bytes, 16) {
                return Err(place.has(Fault::Checksum).into());
            }
        }
        let entries = bytes.get(BLOCK_HEAD..).unwrap_or_default();
        self.parse(entries, &bytes, place, &mut all)?;
        Ok(all)
    }

    /// Parses a list of entries, whose values are at offsets of `values`.
    fn parse(
        &self,
        entries: &[u8],
        values: &[u8],
        place: Place,
        all: &mut Vec<Stored>,
    ) -> Result<(), Error> {
        let mut left = entries;
        // Four zero bytes end the list.
        while u32(left, 0) != 0 {
            let name_length = usize::from(u8(left, 0));
            let whole = ENTRY_HEAD.saturating_add(name_length).next_multiple_of(4);
            let Some((entry, rest)) = left.split_at_checked(whole) else {
                return Err(place.number("the length of a name", length(name_length)));
            };
            let (offset, inode, size) = (u16(entry, 2), u32(entry, 4), u32(entry, 8));
            let known: u64 = all.iter().map(|one| length(one.value.len())).sum();
            if size > VALUE_MAX || known.saturating_add(size.into()) > ALL_MAX {
                return Err(place.number("the size of a value", size));
            }
            let value = if inode == 0 {
                let start = usize::from(offset);
                let end = start.saturating_add(memory(size.into()));
                let found = values.get(start..end);
                let wrong = || place.number("the offset of a value", offset);
                found.ok_or_else(wrong)?.to_vec()
            } else {
                self.value_of(InodeNumber(inode), size, place)?
            };
            let name = entry.get(ENTRY_HEAD..ENTRY_HEAD.saturating_add(name_length));
            all.push(Stored {
                index: u8(entry, 1),
                name: name.unwrap_or_default().to_vec(),
                value,
            });
            left = rest;
        }
        Ok(())
    }

    /// A value that lies in an inode of its own.
    fn value_of(&self, number: InodeNumber, size: u32, place: Place) -> Result<Vec<u8>, Error> {
        let inode = self.inode(number)?;
        if !inode.flags.has(InodeFlags::EA_INODE) || inode.size != u64::from(size) {
            return Err(place.number("the inode of a value", number.0));
        }
        let mut value = vec![0; memory(size.into())];
        let mut block = Vec::new();
        self.mappings(&inode, &mut |mapping: Mapping| -> Result<(), Error> {
            if mapping.state == State::Unwritten {
                return Ok(());
            }
            for at in 0..mapping.blocks {
                let file_block = mapping.file_block.saturating_add(at);
                let start = memory(file_block.saturating_mul(self.superblock.block_size()));
                let Some(target) = value.get_mut(start..) else {
                    break;
                };
                self.read_block(mapping.block.saturating_add(at), &mut block)?;
                for (to, from) in target.iter_mut().zip(&block) {
                    *to = *from;
                }
            }
            Ok(())
        })?;
        Ok(value)
    }
}

/// A POSIX ACL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl(pub Vec<AclEntry>);

/// An entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about: 1 the owner, 2 a user, 4 the group, 8 a group, 16 the
    /// mask, 32 others.
    pub tag: u16,
    /// Read, write and execute.
    pub permissions: u16,
    /// The user or group, where the tag is 2 or 8.
    pub id: Option<u32>,
}

impl Acl {
    /// Of the form on the disk, which has ids only where they mean something.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        const VERSION: u32 = 1;
        let (head, mut left) = bytes.split_at_checked(4)?;
        if u32(head, 0) != VERSION {
            return None;
        }
        let mut entries = Vec::new();
        while !left.is_empty() {
            let has_id = matches!(u16(left, 0), 2 | 8);
            let (entry, rest) = left.split_at_checked(if has_id { 8 } else { 4 })?;
            entries.push(AclEntry {
                tag: u16(entry, 0),
                permissions: u16(entry, 2),
                id: has_id.then(|| u32(entry, 4)),
            });
            left = rest;
        }
        Some(Self(entries))
    }

    /// The form of the attribute that programs see (version 2).
    #[must_use]
    pub fn attribute(&self) -> Vec<u8> {
        const VERSION: u32 = 2;
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes
    }
}
