//! An inode that is to be made.

use crate::mode::S_IFLNK;

/// Who makes an inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a new inode takes from its directory: group, flags, ACLs and the
/// property of compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inheritance {
    /// What the rules of POSIX and Btrfs say.
    #[default]
    FromDirectory,
    /// Nothing.
    Nothing,
}

/// An inode to make.
#[derive(Clone, Debug)]
pub struct NewInode<'a> {
    /// Type and permissions.
    pub mode: u32,
    /// Permissions to clear, unless the directory has a default ACL.
    pub umask: u32,
    /// Owner, unless the directory passes on its group.
    pub owner: Owner,
    /// Device number, for devices.
    pub rdev: u64,
    /// Target, for symbolic links.
    pub symlink: &'a [u8],
    /// What it takes from its directory.
    pub inheritance: Inheritance,
}

impl<'a> NewInode<'a> {
    /// An inode of `mode` that belongs to `owner`.
    #[must_use]
    pub const fn new(mode: u32, owner: Owner) -> Self {
        Self {
            mode,
            umask: 0,
            owner,
            rdev: 0,
            symlink: &[],
            inheritance: Inheritance::FromDirectory,
        }
    }

    /// A symbolic link to `target`.
    #[must_use]
    pub const fn symlink(target: &'a [u8], owner: Owner) -> Self {
        Self {
            mode: S_IFLNK | 0o777,
            umask: 0,
            owner,
            rdev: 0,
            symlink: target,
            inheritance: Inheritance::FromDirectory,
        }
    }

    pub(crate) fn inherits(&self) -> bool {
        self.inheritance == Inheritance::FromDirectory
    }
}
