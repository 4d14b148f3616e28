//! Messages from the server to the kernel that answer no request.
//!
//! Owns their encoding alone.

use super::layout::{
    NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyPrune, NotifyRetrieve, NotifyStore,
    OutHeader,
};
use super::wire::{Wire, Writer};

/// A notification whose variable part, a name or data, is borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notification<'a> {
    InvalInode(NotifyInvalInode),
    InvalEntry(NotifyInvalEntry, &'a [u8]),
    Delete(NotifyDelete, &'a [u8]),
    Store(NotifyStore, &'a [u8]),
    /// The kernel answers with a request, NOTIFY_REPLY.
    Retrieve(NotifyRetrieve),
    /// Numbers of nodes follow, each in eight bytes.
    Prune(NotifyPrune, &'a [u8]),
}

impl Notification<'_> {
    const fn code(self) -> i32 {
        match self {
            Self::InvalInode(_) => 2,
            Self::InvalEntry(..) => 3,
            Self::Store(..) => 4,
            Self::Retrieve(_) => 5,
            Self::Delete(..) => 6,
            Self::Prune(..) => 9,
        }
    }

    /// The whole message.
    pub(crate) fn encode(self) -> Vec<u8> {
        let (fixed, tail, ends_with_nul) = match self {
            Self::InvalInode(_) => (NotifyInvalInode::SIZE, &[][..], false),
            Self::InvalEntry(_, name) => (NotifyInvalEntry::SIZE, name, true),
            Self::Delete(_, name) => (NotifyDelete::SIZE, name, true),
            Self::Store(_, data) => (NotifyStore::SIZE, data, false),
            Self::Retrieve(_) => (NotifyRetrieve::SIZE, &[][..], false),
            Self::Prune(_, nodes) => (NotifyPrune::SIZE, nodes, false),
        };
        let mut bytes = vec![0; OutHeader::SIZE + fixed + tail.len() + usize::from(ends_with_nul)];
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut writer = Writer::new(&mut bytes);
        writer.store(&OutHeader {
            len,
            error: self.code(),
            unique: 0,
        });
        match self {
            Self::InvalInode(fixed) => writer.store(&fixed),
            Self::InvalEntry(fixed, _) => writer.store(&fixed),
            Self::Delete(fixed, _) => writer.store(&fixed),
            Self::Store(fixed, _) => writer.store(&fixed),
            Self::Retrieve(fixed) => writer.store(&fixed),
            Self::Prune(fixed, _) => writer.store(&fixed),
        }
        writer.bytes(tail);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_nul_and_lengths_match() {
        let fixed = NotifyInvalEntry {
            parent: 1,
            namelen: 3,
            flags: 0,
        };
        let bytes = Notification::InvalEntry(fixed, b"abc").encode();
        assert_eq!(bytes.len(), 16 + 16 + 4);
        assert_eq!(&bytes[..4], &36u32.to_ne_bytes());
        assert_eq!(&bytes[32..], b"abc\0");
    }

    #[test]
    fn nodes_to_prune_follow_their_count() {
        let fixed = NotifyPrune {
            count: 2,
            padding: 0,
            spare: 0,
        };
        let nodes = [7u64.to_ne_bytes(), (300u64 << 40).to_ne_bytes()].concat();
        let bytes = Notification::Prune(fixed, &nodes).encode();
        assert_eq!(bytes.len(), 16 + 16 + 16);
        assert_eq!(
            &bytes[..8],
            [48u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat()
        );
        assert_eq!(&bytes[16..20], &2u32.to_ne_bytes());
        assert_eq!(&bytes[32..], nodes);
    }
}
