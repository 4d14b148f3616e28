//! What can be set for a subvolume: read-only, the default, where it was
//! received from.

use crate::Filesystem;
use crate::change::NODES_PER_PATH;
use crate::change::check_writable;
use crate::error::FsError;
use butterfs_format::checksum::name_hash;
use butterfs_format::features::Incompat;
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::item::inode::Timespec;
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::{Generation, InodeId, InodeNumber, ItemType, Key, TreeId, UuidBytes};
use butterfs_store::{Access, Engine, Purpose, TreeAccess, now};
use butterfs_tree::find;

const NO_UUID: UuidBytes = [0; 16];
const DEFAULT: &[u8] = b"default";

/// Where a received subvolume comes from, and when it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// UUID of what was sent.
    pub uuid: UuidBytes,
    /// Its generation.
    pub sent_generation: Generation,
    /// When it was sent.
    pub sent_time: Timespec,
}

const fn directory() -> InodeId {
    InodeId {
        tree: TreeId::ROOT,
        number: InodeNumber(TreeId::ROOT_TREE_DIR.get()),
    }
}

fn default_key() -> Key {
    let object = TreeId::ROOT_TREE_DIR.get();
    Key::new(object, ItemType::DIR_ITEM, name_hash(DEFAULT))
}

/// The subvolume that is mounted if none is named.
pub(crate) fn default_subvolume(engine: &Engine) -> Result<TreeId, FsError> {
    let Some((leaf, slot)) = find(engine, TreeId::ROOT, &default_key())? else {
        return Ok(TreeId::FS);
    };
    for entry in DirEntries::new(leaf.data(slot)) {
        let entry =
            entry.map_err(|error| FsError::bad_item(directory(), "directory entry", &error))?;
        if entry.name == DEFAULT {
            return Ok(TreeId(entry.location.objectid));
        }
    }
    Ok(TreeId::FS)
}

impl Filesystem {
    /// The subvolume that is mounted if none is named.
    ///
    /// # Errors
    /// A damaged entry; reading.
    pub fn default_subvolume(&self) -> Result<TreeId, FsError> {
        default_subvolume(&self.store.read())
    }

    /// Makes `tree` the subvolume that is mounted if none is named.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such subvolume; no space.
    pub fn set_default_subvolume(&self, tree: TreeId) -> Result<(), FsError> {
        if !tree.is_subvolume() {
            return Err(FsError::NotFound);
        }
        self.change_tree(tree, (2 * NODES_PER_PATH, Purpose::Shrink), |engine| {
            // As in the kernel, the key of the root item.
            let key = engine.tree_state(tree)?.item_key;
            let entry = DirEntry {
                location: key.ok_or(FsError::NotFound)?,
                generation: Generation(0),
                name: DEFAULT,
                data: &[],
                kind: FileType::Directory,
            };
            butterfs_tree::replace(engine, TreeId::ROOT, &default_key(), &entry.encode())?;
            engine.set_incompat(Incompat::DEFAULT_SUBVOL);
            Ok(())
        })
    }

    /// What may be done with a subvolume; [`FsError::NotFound`] if there is
    /// none.
    ///
    /// # Errors
    /// Reading.
    pub fn subvolume_access(&self, tree: TreeId) -> Result<Access, FsError> {
        match self.store.read().tree_access(tree)? {
            TreeAccess::ReadOnly => Ok(Access::ReadOnly),
            TreeAccess::ReadWrite => Ok(Access::ReadWrite),
            TreeAccess::Dead => Err(FsError::NotFound),
        }
    }

    /// Makes a subvolume read-only or writable. A received subvolume that
    /// becomes writable no longer counts as received, so incremental streams do
    /// not apply to it.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::NotPermitted`] while it is sent; no
    /// space.
    pub fn set_subvolume_access(&self, tree: TreeId, access: Access) -> Result<(), FsError> {
        self.flush_tree(tree)?;
        let before = self.change_subvolume_access(tree, access)?;
        if access == Access::ReadWrite {
            return Ok(());
        }
        // An operation that still saw the subvolume as writable has its file
        // locked. Waits for that operation, then flushes its data. Nothing
        // changes after that.
        for inode in self.inodes.of_tree(tree) {
            drop(inode.state.write());
        }
        let flushed = self.flush_tree(tree);
        if flushed.is_err() && before == Access::ReadWrite {
            // Its content still changes, when a later flush succeeds.
            if let Err(error) = self.change_subvolume_access(tree, before) {
                tracing::error!(%tree, %error, "the subvolume stays read-only, without some data");
            }
        }
        flushed
    }

    /// Sets the property alone. Gives what it was before.
    fn change_subvolume_access(&self, tree: TreeId, access: Access) -> Result<Access, FsError> {
        let room = (4 * NODES_PER_PATH, Purpose::Shrink);
        let before = self.change_tree(tree, room, |engine| {
            if access == Access::ReadWrite {
                if engine.is_tree_kept(tree) {
                    return Err(FsError::NotPermitted("it is being sent"));
                }
                forget_received(engine, tree)?;
            }
            let before = engine.tree_state(tree)?.item.flags;
            engine.change_root_item(tree, |item| match access {
                Access::ReadOnly => item.flags |= RootFlags::READONLY,
                Access::ReadWrite => item.flags -= RootFlags::READONLY,
            })?;
            Ok(before)
        })?;
        self.write_rules.note_change();
        Ok(match before.contains(RootFlags::READONLY) {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        })
    }

    /// Notes that `tree` was received. Gives the generation and time that are
    /// noted with it.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::ReadOnlySubvolume`]; no space.
    pub fn set_received(
        &self,
        tree: TreeId,
        received: &Received,
    ) -> Result<(Generation, Timespec), FsError> {
        self.change_tree(tree, (6 * NODES_PER_PATH, Purpose::Grow), |engine| {
            check_writable(engine, tree)?;
            check_room(engine, &received.uuid)?;
            forget_received(engine, tree)?;
            let (generation, time) = (engine.generation(), now());
            engine.change_root_item(tree, |item| {
                item.received_uuid = received.uuid;
                item.stransid = received.sent_generation;
                item.stime = received.sent_time;
                item.rtransid = generation;
                item.rtime = time;
            })?;
            engine.add_uuid(&received.uuid, ItemType::UUID_RECEIVED_SUBVOL, tree)?;
            Ok((generation, time))
        })
    }

    /// The root item of a subvolume.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; reading.
    pub fn root_item(&self, tree: TreeId) -> Result<RootItem, FsError> {
        let engine = self.store.read();
        if engine.tree_access(tree)? == TreeAccess::Dead {
            return Err(FsError::NotFound);
        }
        Ok(engine.tree_state(tree)?.item)
    }
}

/// Errors if no further subvolume can be registered as received under `uuid`.
pub(super) fn check_room(engine: &Engine, uuid: &UuidBytes) -> Result<(), FsError> {
    if *uuid == NO_UUID || engine.has_room_for_uuid(uuid, ItemType::UUID_RECEIVED_SUBVOL)? {
        return Ok(());
    }
    Err(FsError::TooManyReceived)
}

fn forget_received(engine: &mut Engine, tree: TreeId) -> Result<(), FsError> {
    let old = engine.tree_state(tree)?.item.received_uuid;
    if old == NO_UUID {
        return Ok(());
    }
    engine.remove_uuid(&old, ItemType::UUID_RECEIVED_SUBVOL, tree)?;
    engine.change_root_item(tree, |item| {
        item.received_uuid = NO_UUID;
        item.stransid = Generation(0);
        item.rtransid = Generation(0);
        item.stime = Timespec::default();
        item.rtime = Timespec::default();
    })?;
    Ok(())
}
