//! POSIX ACLs of inodes: inheritance, chmod, and which ACLs may be stored.

use crate::error::FsError;
use crate::mode::{S_IFDIR, S_IFLNK, S_IFMT};
use crate::new_inode::{Inheritance, NewInode};
use crate::options::AclPolicy;
use butterfs_format::acl::Acl;

/// ACLs and permissions of a new inode.
#[derive(Debug, Default)]
pub(crate) struct NewAcls {
    /// Permission bits.
    pub mode: u32,
    /// Access ACL to store.
    pub access: Option<Vec<u8>>,
    /// Default ACL to store.
    pub default: Option<Vec<u8>>,
}

/// Whether an access ACL says more than a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It does not.
    ModeOnly,
    /// It does.
    Extended,
}

fn parse(value: &[u8]) -> Result<Acl, FsError> {
    Acl::parse(value).map_err(|_| FsError::Invalid("not a valid POSIX ACL"))
}

/// What a new inode gets: from its directory's default ACL, which
/// `default_of_parent` reads, or else from the umask.
pub(crate) fn for_new(
    new: &NewInode<'_>,
    policy: AclPolicy,
    default_of_parent: impl FnOnce() -> Result<Option<Vec<u8>>, FsError>,
) -> Result<NewAcls, FsError> {
    let plain = NewAcls {
        mode: new.mode & 0o777 & !new.umask,
        ..NewAcls::default()
    };
    if new.mode & S_IFMT == S_IFLNK {
        return Ok(NewAcls {
            mode: 0o777,
            ..plain
        });
    }
    if new.inheritance == Inheritance::Nothing || policy == AclPolicy::Off {
        return Ok(plain);
    }
    let Some(default) = default_of_parent()? else {
        return Ok(plain);
    };
    let inherited = parse(&default)?.inherit(new.mode & 0o777);
    Ok(NewAcls {
        mode: inherited.mode,
        access: inherited.access.map(|acl| acl.encode()),
        default: (new.mode & S_IFMT == S_IFDIR).then_some(default),
    })
}

/// Permission bits that an access ACL stands for.
pub(crate) fn check_access(value: &[u8]) -> Result<(u32, Meaning), FsError> {
    let acl = parse(value)?;
    let meaning = if acl.is_mode_only() {
        Meaning::ModeOnly
    } else {
        Meaning::Extended
    };
    Ok((acl.mode(), meaning))
}

/// Errors unless `value` can be the default ACL of an inode of `mode`.
pub(crate) fn check_default(value: &[u8], mode: u32) -> Result<(), FsError> {
    if mode & S_IFMT != S_IFDIR {
        return Err(FsError::AccessDenied);
    }
    parse(value).map(|_| ())
}

/// An access ACL after chmod.
pub(crate) fn after_chmod(value: &[u8], mode: u32) -> Result<Vec<u8>, FsError> {
    Ok(parse(value)?.with_mode(mode & 0o777).encode())
}
