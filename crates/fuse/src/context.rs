//! Who asks, and how a method says that its answer will take long.
//!
//! Owns the caller's identity as the kernel reported it. Judges no permission.

use crate::RequestId;
use crate::protocol::layout::ExtHeader;
use crate::protocol::wire::{Malformed, Reader, Wire};
use crate::request_slot::RequestSlot;

/// Kind of the request extension that carries groups.
const EXT_GROUPS: u32 = 32;

/// The caller of a request.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The request's number. An interrupt names it.
    pub request: RequestId,
    /// The caller's file system user id.
    pub uid: u32,
    /// The caller's file system group id.
    pub gid: u32,
    /// The caller's process id in the mounter's namespace; zero when the
    /// kernel asks by itself.
    pub pid: u32,
    /// With CREATE_SUPP_GROUP, the parent's group if the caller is in it.
    pub groups: Groups<'a>,
    pub(crate) slot: Option<&'a RequestSlot>,
}

impl Context<'_> {
    /// Lets another thread serve requests while this one waits (for a device,
    /// a commit, memory). Calls after the first do nothing. fsync, fsyncdir,
    /// syncfs and ioctl have done so before the file system sees them.
    pub fn about_to_wait(&self) {
        if let Some(slot) = self.slot {
            slot.leave();
        }
    }
}

/// Group ids that came with a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a>(&'a [u8]);

impl<'a> Groups<'a> {
    /// Finds the groups among the extensions of a request.
    pub(crate) fn parse(extensions: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(extensions);
        let mut found = Self::default();
        while !reader.rest().is_empty() {
            let header: ExtHeader = reader.load()?;
            let size = (header.size as usize)
                .checked_sub(ExtHeader::SIZE)
                .ok_or(Malformed("an extension is shorter than its header"))?;
            let mut body = Reader::new(reader.take(size)?);
            if header.kind == EXT_GROUPS {
                let count: u32 = body.load()?;
                let bytes = (count as usize)
                    .checked_mul(4)
                    .ok_or(Malformed("it has too many groups"))?;
                found = Self(body.take(bytes)?);
            }
        }
        Ok(found)
    }

    /// The group ids.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.0
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Whether `gid` is among them.
    #[must_use]
    pub fn contains(self, gid: u32) -> bool {
        self.iter().any(|group| group == gid)
    }
}
