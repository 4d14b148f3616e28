//! POSIX ACLs as extended attributes hold them.
//!
//! Owns the little-endian form (version 2) and the rules of acl(5) for
//! validity, inheritance and chmod.

use crate::ParseError;
use crate::bytes::{Reader, Writer};

const WHAT: &str = "POSIX ACL";
const VERSION: u32 = 2;
/// The most entries of an ACL. No attribute can hold this many.
const ENTRIES_MAX: usize = 8192;

/// Whom an entry applies to. ACLs are stored in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    UserObject,
    /// A user.
    User(u32),
    /// The owning group.
    GroupObject,
    /// A group.
    Group(u32),
    /// Greatest permissions of users, groups and the owning group.
    Mask,
    /// Everybody else.
    Other,
}

impl Tag {
    const fn number(self) -> (u16, u32) {
        const NONE: u32 = u32::MAX;
        match self {
            Self::UserObject => (0x01, NONE),
            Self::User(id) => (0x02, id),
            Self::GroupObject => (0x04, NONE),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NONE),
            Self::Other => (0x20, NONE),
        }
    }
}

/// One entry: whom it applies to and the permissions `rwx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whom it applies to.
    pub tag: Tag,
    /// Permissions, 0 to 7.
    pub permissions: u16,
}

/// A valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

/// What a new inode gets from a default ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Its permission bits.
    pub mode: u32,
    /// Its access ACL, if the mode alone cannot express it.
    pub access: Option<Acl>,
}

impl Acl {
    /// Parses an attribute's value.
    ///
    /// # Errors
    /// Cut short, unknown version or tag, or not valid by acl(5).
    pub fn parse(value: &[u8]) -> Result<Self, ParseError> {
        let bad = |field, value| ParseError::BadValue {
            what: WHAT,
            field,
            value,
        };
        let mut r = Reader::new(WHAT, value);
        let version = r.u32()?;
        if version != VERSION {
            return Err(bad("version", version.into()));
        }
        let mut entries = Vec::new();
        while r.remaining() > 0 {
            let number = r.u16()?;
            let permissions = r.u16()?;
            let id = r.u32()?;
            let tag = match number {
                0x01 => Tag::UserObject,
                0x02 => Tag::User(id),
                0x04 => Tag::GroupObject,
                0x08 => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                other => return Err(bad("tag", other.into())),
            };
            if permissions > 7 {
                return Err(bad("permissions", permissions.into()));
            }
            if entries.len() >= ENTRIES_MAX {
                return Err(bad("number of entries", 0));
            }
            entries.push(Entry { tag, permissions });
        }
        let acl = Self { entries };
        acl.verify()?;
        Ok(acl)
    }

    fn verify(&self) -> Result<(), ParseError> {
        let bad = |field| ParseError::BadValue {
            what: WHAT,
            field,
            value: 0,
        };
        // Named users may come in any order and more than once, and so may
        // named groups.
        let ascending = |(a, b): (&Entry, &Entry)| match (a.tag, b.tag) {
            (Tag::User(_), Tag::User(_)) | (Tag::Group(_), Tag::Group(_)) => true,
            (a, b) => a < b,
        };
        let next = self.entries.iter().skip(1);
        if !self.entries.iter().zip(next).all(ascending) {
            return Err(bad("order of entries"));
        }
        let has = |tag| self.entries.iter().any(|entry| entry.tag == tag);
        let named = self
            .entries
            .iter()
            .any(|entry| matches!(entry.tag, Tag::User(_) | Tag::Group(_)));
        if !has(Tag::UserObject) || !has(Tag::GroupObject) || !has(Tag::Other) {
            return Err(bad("missing entry"));
        }
        if named && !has(Tag::Mask) {
            return Err(bad("missing mask"));
        }
        Ok(())
    }

    /// Its attribute value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(VERSION);
        for entry in &self.entries {
            let (number, id) = entry.tag.number();
            w.u16(number).u16(entry.permissions).u32(id);
        }
        w.finish()
    }

    /// Its entries, in the order in which they are stored.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn permissions(&self, tag: Tag) -> Option<u32> {
        self.entries
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| u32::from(entry.permissions))
    }

    fn group_tag(&self) -> Tag {
        if self.permissions(Tag::Mask).is_some() {
            Tag::Mask
        } else {
            Tag::GroupObject
        }
    }

    /// The permission bits of the mode that it corresponds to.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let of = |tag| self.permissions(tag).unwrap_or(0);
        (of(Tag::UserObject) << 6) | (of(self.group_tag()) << 3) | of(Tag::Other)
    }

    /// True if a mode alone can express it.
    #[must_use]
    pub fn is_mode_only(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| matches!(entry.tag, Tag::UserObject | Tag::GroupObject | Tag::Other))
    }

    /// Changes its permissions to those of `mode`, as chmod does.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        let group = self.group_tag();
        self.edit(|tag, _| {
            let bits = match tag {
                Tag::UserObject => mode >> 6,
                Tag::Other => mode,
                tag if tag == group => mode >> 3,
                _ => return None,
            };
            u16::try_from(bits & 7).ok()
        });
        self
    }

    /// What a new inode with `mode` gets if this is the default ACL of its
    /// directory.
    #[must_use]
    pub fn inherit(mut self, mode: u32) -> Inherited {
        let group = self.group_tag();
        self.edit(|tag, old| {
            let bits = match tag {
                Tag::UserObject => mode >> 6,
                Tag::Other => mode,
                tag if tag == group => mode >> 3,
                _ => return None,
            };
            Some(old & u16::try_from(bits & 7).unwrap_or(7))
        });
        let mode = self.mode();
        Inherited {
            mode,
            access: (!self.is_mode_only()).then_some(self),
        }
    }

    fn edit(&mut self, change: impl Fn(Tag, u16) -> Option<u16>) {
        for entry in &mut self.entries {
            if let Some(permissions) = change(entry.tag, entry.permissions) {
                entry.permissions = permissions;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u16)]) -> Vec<u8> {
        Acl {
            entries: entries
                .iter()
                .map(|(tag, permissions)| Entry {
                    tag: *tag,
                    permissions: *permissions,
                })
                .collect(),
        }
        .encode()
    }

    #[test]
    fn parse_checks_and_round_trips() {
        let value = acl(&[
            (Tag::UserObject, 7),
            (Tag::User(1000), 6),
            (Tag::GroupObject, 5),
            (Tag::Mask, 4),
            (Tag::Other, 1),
        ]);
        // As `setfacl` writes it: version 2, then 8 bytes an entry.
        assert_eq!(value[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        let parsed = Acl::parse(&value).unwrap();
        assert_eq!(parsed.encode(), value);
        assert_eq!(parsed.mode(), 0o741);
        assert!(!parsed.is_mode_only());
        for cut in 1..value.len() {
            assert!(Acl::parse(&value[..cut]).is_err());
        }
        let no_mask = acl(&[
            (Tag::UserObject, 7),
            (Tag::User(1), 6),
            (Tag::GroupObject, 5),
            (Tag::Other, 1),
        ]);
        assert!(Acl::parse(&no_mask).is_err());
        // The kernel takes named entries in any order, and twice.
        let any_order = acl(&[
            (Tag::UserObject, 7),
            (Tag::User(5), 6),
            (Tag::User(1), 6),
            (Tag::User(1), 4),
            (Tag::GroupObject, 5),
            (Tag::Mask, 7),
            (Tag::Other, 1),
        ]);
        assert_eq!(Acl::parse(&any_order).unwrap().encode(), any_order);
    }

    #[test]
    fn chmod_and_inheritance_follow_the_mask() {
        let value = acl(&[
            (Tag::UserObject, 7),
            (Tag::Group(5), 7),
            (Tag::GroupObject, 7),
            (Tag::Mask, 7),
            (Tag::Other, 5),
        ]);
        // Order: GroupObject sorts before Group.
        assert!(Acl::parse(&value).is_err());
        let value = acl(&[
            (Tag::UserObject, 7),
            (Tag::GroupObject, 7),
            (Tag::Group(5), 7),
            (Tag::Mask, 7),
            (Tag::Other, 5),
        ]);
        let parsed = Acl::parse(&value).unwrap();
        let changed = parsed.clone().with_mode(0o640);
        assert_eq!(changed.mode(), 0o640);
        assert_eq!(changed.permissions(Tag::GroupObject), Some(7));
        let inherited = parsed.inherit(0o666);
        assert_eq!(inherited.mode, 0o664);
        assert!(inherited.access.is_some());
    }
}
