//! Root items: where a tree begins, and what a subvolume is.

use super::expect_end;
use super::inode::{InodeFlags, InodeItem, Timespec};
use crate::bytes::{Reader, Writer};
use crate::{Generation, InodeNumber, Key, Logical, NodeRef, ParseError, UuidBytes, bit_flags};

bit_flags!(
    /// Flags of a subvolume.
    RootFlags: u64 {
        /// It cannot be changed.
        READONLY = 1 << 0, "RDONLY";
        /// It is being deleted.
        DEAD = 1 << 48, "DEAD";
    }
);

/// A root item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootItem {
    /// A leftover inode item; its flags and times are used by old tools.
    pub inode: InodeItem,
    /// Generation of the root node.
    pub generation: Generation,
    /// Root directory.
    pub root_dir: InodeNumber,
    /// Root node.
    pub logical: Logical,
    /// Unused limit.
    pub byte_limit: u64,
    /// Bytes of the tree's nodes.
    pub bytes_used: u64,
    /// Generation of the last snapshot of it: nodes up to then may be shared.
    pub last_snapshot: Generation,
    /// Flags.
    pub flags: RootFlags,
    /// References; 0 while it is being deleted.
    pub refs: u32,
    /// Where deleting continues.
    pub drop_progress: Option<Key>,
    /// Level of `drop_progress`.
    pub drop_level: u8,
    /// Level of the root node.
    pub level: u8,
    /// Equal to `generation` when the fields after it are valid.
    pub generation_v2: Generation,
    /// UUID of the subvolume.
    pub uuid: UuidBytes,
    /// UUID of what it is a snapshot of.
    pub parent_uuid: UuidBytes,
    /// UUID of what was sent.
    pub received_uuid: UuidBytes,
    /// Generation of its last change.
    pub ctransid: Generation,
    /// Generation that made it.
    pub otransid: Generation,
    /// Generation of what was sent.
    pub stransid: Generation,
    /// Generation that received it.
    pub rtransid: Generation,
    /// Last change.
    pub ctime: Timespec,
    /// Birth.
    pub otime: Timespec,
    /// When it was sent.
    pub stime: Timespec,
    /// When it was received.
    pub rtime: Timespec,
    /// Reserved, kept as it is.
    pub reserved: [u64; 8],
}

impl RootItem {
    /// Bytes of an item.
    pub const SIZE: usize = 439;
    /// Bytes of an item from before UUIDs.
    pub const LEGACY_SIZE: usize = 239;

    /// The item of a tree that is made as a whole, with this many nodes of
    /// `node_size` bytes, and that is no subvolume.
    #[must_use]
    pub fn of_new_tree(root: NodeRef, nodes: u64, node_size: u32) -> Self {
        let node_size = u64::from(node_size);
        Self {
            // What the kernel and mkfs.btrfs write there.
            inode: InodeItem {
                generation: Generation(1),
                size: 3,
                nbytes: node_size,
                nlink: 1,
                mode: 0o040_755,
                ..InodeItem::default()
            },
            generation: root.generation,
            logical: root.logical,
            bytes_used: nodes.saturating_mul(node_size),
            refs: 1,
            level: root.level,
            ..Self::default()
        }
    }

    /// The root node of the tree.
    #[must_use]
    pub const fn root(&self) -> NodeRef {
        NodeRef {
            logical: self.logical,
            generation: self.generation,
            level: self.level,
        }
    }

    /// Whether `flags` and `byte_limit` are valid. Kernels before 3.0 did not
    /// set them, so they hold whatever was in memory. Newer kernels mark items
    /// in which they are set and take both for 0 in other items. To them, a
    /// read-only subvolume without the mark is writable.
    #[must_use]
    pub fn has_flags(&self) -> bool {
        self.inode.flags.contains(InodeFlags::ROOT_ITEM_INIT)
    }

    /// Marks `flags` and `byte_limit` as valid.
    pub fn vouch_for_flags(&mut self) {
        self.inode.flags |= InodeFlags::ROOT_ITEM_INIT;
    }

    /// Reads an item, also one of the old size.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        if data.len() > Self::LEGACY_SIZE && data.len() < Self::SIZE {
            return Err(ParseError::BadValue {
                what: "root item",
                field: "size",
                value: u64::try_from(data.len()).unwrap_or(u64::MAX),
            });
        }
        let mut r = Reader::new("root item", data);
        let inode = InodeItem::read(&mut r)?;
        let generation = Generation(r.u64()?);
        let mut item = Self {
            inode,
            generation,
            root_dir: InodeNumber(r.u64()?),
            logical: Logical(r.u64()?),
            byte_limit: r.u64()?,
            bytes_used: r.u64()?,
            last_snapshot: Generation(r.u64()?),
            flags: RootFlags(r.u64()?),
            refs: r.u32()?,
            drop_progress: Some(Key::parse(&mut r)?).filter(|key| *key != Key::MIN),
            drop_level: r.u8()?,
            level: r.u8()?,
            ..Self::default()
        };
        if item.level > crate::node::LEVEL_MAX {
            return Err(ParseError::BadValue {
                what: "root item",
                field: "level",
                value: u64::from(item.level),
            });
        }
        if r.remaining() == 0 {
            return Ok(item);
        }
        item.generation_v2 = Generation(r.u64()?);
        if item.generation_v2 != generation {
            // A kernel that did not know the fields changed the item, so they
            // are out of date.
            r.bytes(
                Self::SIZE
                    .saturating_sub(Self::LEGACY_SIZE)
                    .saturating_sub(8),
            )?;
            expect_end("root item", &r)?;
            return Ok(item);
        }
        item.uuid = r.array()?;
        item.parent_uuid = r.array()?;
        item.received_uuid = r.array()?;
        item.ctransid = Generation(r.u64()?);
        item.otransid = Generation(r.u64()?);
        item.stransid = Generation(r.u64()?);
        item.rtransid = Generation(r.u64()?);
        item.ctime = Timespec::parse(&mut r)?;
        item.otime = Timespec::parse(&mut r)?;
        item.stime = Timespec::parse(&mut r)?;
        item.rtime = Timespec::parse(&mut r)?;
        for word in &mut item.reserved {
            *word = r.u64()?;
        }
        expect_end("root item", &r)?;
        Ok(item)
    }

    /// Its bytes; `generation_v2` is set so that all fields are valid.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        self.inode.write(&mut w);
        w.u64(self.generation.get())
            .u64(self.root_dir.get())
            .u64(self.logical.get())
            .u64(self.byte_limit)
            .u64(self.bytes_used)
            .u64(self.last_snapshot.get())
            .u64(self.flags.0)
            .u32(self.refs)
            .bytes(&self.drop_progress.unwrap_or(Key::MIN).to_bytes())
            .u8(self.drop_level)
            .u8(self.level)
            .u64(self.generation.get())
            .bytes(&self.uuid)
            .bytes(&self.parent_uuid)
            .bytes(&self.received_uuid)
            .u64(self.ctransid.get())
            .u64(self.otransid.get())
            .u64(self.stransid.get())
            .u64(self.rtransid.get());
        for time in [self.ctime, self.otime, self.stime, self.rtime] {
            time.encode(&mut w);
        }
        for word in self.reserved {
            w.u64(word);
        }
        w.finish()
    }
}
