//! Telling the kernel that what it cached is no longer true.
//!
//! Owns the sending of notifications. Holds the connection weakly: it neither
//! keeps a session alive nor outlives it.
//!
//! A notification may take locks that the kernel holds while it waits for a
//! reply about the same directory or inode. So send it from a thread that
//! serves no request on them; otherwise the two wait for each other.

use std::os::fd::OwnedFd;
use std::sync::Weak;

use crate::protocol::layout::{
    NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyPrune, NotifyStore,
};
use crate::protocol::notify::Notification;
use crate::{Errno, NodeId};

const EXPIRE_ONLY: u32 = 1;

/// Which cached data of an inode to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRange {
    /// None, only the attributes.
    AttributesOnly,
    /// All of it.
    Everything,
    /// Bytes from `offset`, `length` of them.
    Bytes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// What happens to a cached name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// It is dropped, and what is mounted below it unmounted.
    Drop,
    /// It is looked up again at the next use. Needs HAS_EXPIRE_ONLY.
    Expire,
}

/// Sends notifications. Cheap to clone.
///
/// Errors: ENOENT if the kernel has nothing of the kind cached, which is
/// harmless; ENODEV if the session has ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Weak<OwnedFd>,
}

impl Notifier {
    pub(crate) fn new(device: Weak<OwnedFd>) -> Self {
        Self { device }
    }

    /// Drops cached attributes and data of a node.
    pub fn invalidate_inode(&self, node: NodeId, range: InvalidRange) -> Result<(), Errno> {
        let (off, len) = match range {
            InvalidRange::AttributesOnly => (-1, 0),
            InvalidRange::Everything => (0, 0),
            InvalidRange::Bytes { offset, length } => (
                i64::try_from(offset).map_err(|_| Errno::EINVAL)?,
                i64::try_from(length).map_err(|_| Errno::EINVAL)?,
            ),
        };
        self.send(Notification::InvalInode(NotifyInvalInode {
            ino: node.0,
            off,
            len,
        }))
    }

    /// Drops or expires a cached name.
    pub fn invalidate_entry(
        &self,
        parent: NodeId,
        name: &[u8],
        change: EntryChange,
    ) -> Result<(), Errno> {
        let flags = match change {
            EntryChange::Drop => 0,
            EntryChange::Expire => EXPIRE_ONLY,
        };
        let fixed = NotifyInvalEntry {
            parent: parent.0,
            namelen: length(name)?,
            flags,
        };
        self.send(Notification::InvalEntry(fixed, name))
    }

    /// Reports that a name was removed, so that watchers learn of it. `child`
    /// is the node that it named.
    pub fn deleted(&self, parent: NodeId, child: NodeId, name: &[u8]) -> Result<(), Errno> {
        let fixed = NotifyDelete {
            parent: parent.0,
            child: child.0,
            namelen: length(name)?,
            padding: 0,
        };
        self.send(Notification::Delete(fixed, name))
    }

    /// Puts data into the page cache of a node, at most one write's worth.
    pub fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let fixed = NotifyStore {
            nodeid: node.0,
            offset,
            size: length(data)?,
            padding: 0,
        };
        self.send(Notification::Store(fixed, data))
    }

    /// Asks the kernel to forget those of the nodes that no program has open or is
    /// in. Since Linux 6.18; EINVAL before.
    pub fn prune(&self, nodes: &[NodeId]) -> Result<(), Errno> {
        let numbers: Vec<u8> = nodes.iter().flat_map(|node| node.0.to_ne_bytes()).collect();
        let fixed = NotifyPrune {
            count: u32::try_from(nodes.len()).map_err(|_| Errno::EINVAL)?,
            padding: 0,
            spare: 0,
        };
        self.send(Notification::Prune(fixed, &numbers))
    }

    fn send(&self, notification: Notification<'_>) -> Result<(), Errno> {
        let device = self.device.upgrade().ok_or(Errno::ENODEV)?;
        rustix::io::write(&*device, &notification.encode())?;
        Ok(())
    }
}

fn length(bytes: &[u8]) -> Result<u32, Errno> {
    u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)
}
