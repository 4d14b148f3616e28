//! Requests that look up, add, move and remove names.
//!
//! Owns only the structures. A name is one path component as bytes: not empty,
//! no slash, no NUL. The file system judges its length.

use super::{OFlags, RenameFlags, SetIdBits};
use crate::NodeId;

/// Finds a name. Success counts as one lookup of the node, which stays valid
/// until as many are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The name; "." and ".." only with EXPORT_SUPPORT.
    pub name: &'a [u8],
}

/// The kernel drops lookups of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The node.
    pub node: NodeId,
    /// How many lookups end.
    pub lookups: u64,
}

/// Makes a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symlink<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The link's name.
    pub name: &'a [u8],
    /// What it points to.
    pub target: &'a [u8],
}

/// Makes a file of any type but directory and symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mknod<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The new name.
    pub name: &'a [u8],
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// Device number, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// The caller's; already applied unless DONT_MASK was agreed.
    pub umask: u32,
}

/// Makes a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkdir<'a> {
    /// The directory it goes into.
    pub parent: NodeId,
    /// The new name.
    pub name: &'a [u8],
    /// Permissions; the type bits may be missing.
    pub mode: u32,
    /// The caller's; already applied unless DONT_MASK was agreed.
    pub umask: u32,
}

/// Removes the name of anything but a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlink<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The name that goes.
    pub name: &'a [u8],
}

/// Removes an empty directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rmdir<'a> {
    /// The directory that contains it.
    pub parent: NodeId,
    /// The name that goes.
    pub name: &'a [u8],
}

/// Moves a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The directory it leaves.
    pub parent: NodeId,
    /// The name it leaves.
    pub name: &'a [u8],
    /// The directory it enters.
    pub new_parent: NodeId,
    /// The name it gets.
    pub new_name: &'a [u8],
    /// As in renameat2(2).
    pub flags: RenameFlags,
}

/// Adds a name to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// What gets the name.
    pub node: NodeId,
    /// The directory.
    pub new_parent: NodeId,
    /// The new name.
    pub new_name: &'a [u8],
}

/// Makes a regular file and opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The directory.
    pub parent: NodeId,
    /// The new name.
    pub name: &'a [u8],
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// As given to open(2).
    pub flags: OFlags,
    /// The caller's; already applied unless DONT_MASK was agreed.
    pub umask: u32,
    /// What to do with set-id bits of a file that exists and is truncated.
    pub set_id: SetIdBits,
}

/// Makes a regular file without a name and opens it (O_TMPFILE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmpfile {
    /// The directory whose file system it goes to.
    pub parent: NodeId,
    /// Type and permissions as in `st_mode`.
    pub mode: u32,
    /// As given to open(2); O_EXCL means that it never gets a name.
    pub flags: OFlags,
    /// The caller's; already applied unless DONT_MASK was agreed.
    pub umask: u32,
}
