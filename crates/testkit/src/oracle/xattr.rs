//! Extended attributes.

use super::inode::Inode;
use super::resolve::Last;
use super::{Oracle, acl};
use crate::op::{OpPath, XattrHow};
use butterfs_format::checksum::name_hash;
use rustix::io::Errno;

/// Longest name, with its prefix.
const NAME_MAX: usize = 255;
/// Greatest value that the kernel passes on.
const VALUE_MAX: usize = 64 << 10;
/// Bytes before the name.
const HEADER: usize = 30;

impl Oracle {
    pub(super) fn set_xattr(
        &mut self,
        path: &OpPath,
        name: &[u8],
        value: &[u8],
        how: XattrHow,
    ) -> Result<(), Errno> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        let id = self.find(path, Last::Itself)?;
        let item_max = self.item_max;
        let inode = self.inode_mut(id);
        if is_acl(name) {
            return set_acl(inode, name, value);
        }
        check_namespace(inode, name)?;
        let bytes = |name: &[u8], value: &[u8]| HEADER + name.len() + value.len();
        if bytes(name, value) > item_max {
            return Err(Errno::NOSPC);
        }
        match (how, inode.xattrs.contains_key(name)) {
            (XattrHow::Create, true) => return Err(Errno::EXIST),
            (XattrHow::Replace, false) => return Err(Errno::NODATA),
            _ => {}
        }
        // Names with one hash share an item.
        let same_item = |other: &[u8]| other != name && name_hash(other) == name_hash(name);
        let others = inode.xattrs.iter().filter(|(other, _)| same_item(other));
        let shared: usize = others.map(|(other, value)| bytes(other, value)).sum();
        if shared + bytes(name, value) > item_max {
            return Err(Errno::NOSPC);
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, path: &OpPath, name: &[u8]) -> Result<(), Errno> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        let id = self.find(path, Last::Itself)?;
        let inode = self.inode_mut(id);
        if is_acl(name) {
            if inode.is_symlink() {
                return Err(Errno::OPNOTSUPP);
            }
            // Removing one that does not exist succeeds as well.
            inode.xattrs.remove(name);
            return Ok(());
        }
        check_namespace(inode, name)?;
        inode.xattrs.remove(name).map(drop).ok_or(Errno::NODATA)
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

fn check_namespace(inode: &Inode, name: &[u8]) -> Result<(), Errno> {
    if name.starts_with(b"user.") {
        // An inode without user content has no user attributes.
        let fits = inode.is_directory() || inode.content().is_ok();
        return if fits { Ok(()) } else { Err(Errno::PERM) };
    }
    if name.starts_with(b"trusted.") {
        return Ok(());
    }
    Err(Errno::OPNOTSUPP)
}

fn set_acl(inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    if inode.is_symlink() {
        return Err(Errno::OPNOTSUPP);
    }
    if name == acl::DEFAULT && !inode.is_directory() {
        return Err(Errno::ACCESS);
    }
    let parsed = acl::parse(value)?;
    if name == acl::ACCESS {
        inode.mode = inode.mode & !0o777 | parsed.mode();
        if parsed.is_mode_only() {
            inode.xattrs.remove(name);
            return Ok(());
        }
    }
    inode.xattrs.insert(name.to_vec(), parsed.encode());
    Ok(())
}
