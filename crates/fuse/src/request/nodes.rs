//! Requests on a node's attributes and extended attributes.
//!
//! Owns the structures alone.

use super::{Access, StatxFlags, XattrFlags};
use crate::reply::Timestamp;
use crate::{FileHandle, NodeId};

/// Asks for attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetAttr {
    /// The node.
    pub node: NodeId,
    /// The open file through which it is asked, if any.
    pub handle: Option<FileHandle>,
}

/// Asks for attributes by statx(2). It comes only if the caller wants more than
/// stat(2) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxRequest {
    /// The node.
    pub node: NodeId,
    /// The open file through which it is asked, if any.
    pub handle: Option<FileHandle>,
    /// What is wanted.
    pub wanted: StatxFlags,
}

/// Whether a change clears the set-user-id and set-group-id bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetIdBits {
    /// They stay.
    Keep,
    /// The set-user-id bit goes, and the set-group-id bit if the group may
    /// execute.
    Clear,
}

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The time of the change.
    Now,
    /// This time.
    At(Timestamp),
}

/// Changes attributes. What is `None` stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttr {
    /// The node.
    pub node: NodeId,
    /// The open file through which it is changed, if any.
    pub handle: Option<FileHandle>,
    /// Permissions and type as in `st_mode`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<TimeChange>,
    /// Time of the last change of the data.
    pub mtime: Option<TimeChange>,
    /// Time of the last change; sent with WRITEBACK_CACHE only.
    pub ctime: Option<Timestamp>,
    /// Set-id bits, by size or owner changing.
    pub set_id: SetIdBits,
}

/// Reads a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLink {
    /// The link.
    pub node: NodeId,
}

/// access(2) or chdir(2); not sent where the kernel checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessCheck {
    /// The node.
    pub node: NodeId,
    /// What the caller wants to do.
    pub wanted: Access,
}

/// Asks for an extended attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetXattr<'a> {
    /// The node.
    pub node: NodeId,
    /// The full name, such as `user.mime_type`.
    pub name: &'a [u8],
}

/// Asks for the names of all extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListXattr {
    /// The node.
    pub node: NodeId,
}

/// Sets an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// The node.
    pub node: NodeId,
    /// The full name.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether it must or must not exist.
    pub flags: XattrFlags,
    /// `Clear` when setting an ACL must drop the set-group-id bit.
    pub set_id: SetIdBits,
}

/// Removes an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveXattr<'a> {
    /// The node.
    pub node: NodeId,
    /// The full name.
    pub name: &'a [u8],
}
