//! ACLs as values of extended attributes.

use butterfs_format::acl::{Acl, Entry, Tag};
use rustix::io::Errno;

/// Attribute with the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute with a directory's default ACL.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Value with `entries` as they are, valid or not.
#[must_use]
pub fn encode_acl(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for entry in entries {
        let (number, id) = match entry.tag {
            Tag::UserObject => (0x01_u16, u32::MAX),
            Tag::User(id) => (0x02, id),
            Tag::GroupObject => (0x04, u32::MAX),
            Tag::Group(id) => (0x08, id),
            Tag::Mask => (0x10, u32::MAX),
            Tag::Other => (0x20, u32::MAX),
        };
        out.extend(number.to_le_bytes());
        out.extend(entry.permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

pub fn parse(value: &[u8]) -> Result<Acl, Errno> {
    Acl::parse(value).map_err(|_| Errno::INVAL)
}

/// A valid value after a chmod.
pub fn with_mode(value: &[u8], mode: u32) -> Vec<u8> {
    match Acl::parse(value) {
        Ok(acl) => acl.with_mode(mode).encode(),
        Err(_) => value.to_vec(),
    }
}
