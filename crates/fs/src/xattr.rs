//! Extended attributes.
//!
//! Owns their items, and what some of them mean for an inode when they are set
//! (ACLs, the compression property).

use crate::change::NODES_PER_PATH;
use crate::compression_feature::note_compression;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, check_alive, store_item};
use crate::mode::{S_IFDIR, S_IFMT, S_IFREG};
use crate::{Filesystem, acl, dir};
use butterfs_format::checksum::name_hash;
use butterfs_format::compression::Algorithm;
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, ItemType, Key};
use butterfs_store::{Engine, Purpose, now};
use butterfs_tree::{Cursor, Edit, ItemChange, Node, change_items, find, see_item};

/// Access ACL.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Default ACL of a directory.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// Compression property.
pub const COMPRESSION: &[u8] = b"btrfs.compression";
/// Flags of inodes whose data cannot be compressed.
pub(crate) const UNPACKED: InodeFlags =
    InodeFlags(InodeFlags::NODATACOW.0 | InodeFlags::NODATASUM.0);
/// File capabilities; they are removed when the file changes.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Whether an attribute must exist when it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetMode {
    /// Either way.
    #[default]
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

fn key(id: InodeId, name: &[u8]) -> Key {
    Key::new(id.number.get(), ItemType::XATTR_ITEM, name_hash(name))
}

/// Value of an attribute.
pub(crate) fn get(engine: &Engine, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
    let value = see_item(engine, id.tree, &key(id, name), |data| {
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(id, "attribute", &error))?;
            if entry.name == name {
                return Ok(Some(entry.data.to_vec()));
            }
        }
        Ok(None)
    })?;
    value.unwrap_or(Ok(None))
}

/// The change that sets an attribute that does not exist. Attributes whose names
/// have the same hash must leave room.
pub(crate) fn change(engine: &Engine, id: InodeId, name: &[u8], value: &[u8]) -> ItemChange {
    let entry = DirEntry {
        location: Key::MIN,
        generation: engine.generation(),
        name,
        data: value,
        kind: FileType::Xattr,
    }
    .encode();
    ItemChange::new(Edit::Append, key(id, name), entry)
}

/// Sets an attribute that does not exist.
pub(crate) fn put(
    engine: &mut Engine,
    id: InodeId,
    name: &[u8],
    value: &[u8],
) -> Result<(), FsError> {
    let change = change(engine, id, name, value);
    Ok(change_items(engine, id.tree, &[change])?)
}

/// Errors unless the value fits beside those of other names with the same hash,
/// after the name's own old value is removed.
pub(crate) fn check_room(
    engine: &Engine,
    id: InodeId,
    name: &[u8],
    value: &[u8],
) -> Result<(), FsError> {
    let mut bytes = DirEntry::HEADER + name.len() + value.len();
    if let Some((leaf, slot)) = find(engine, id.tree, &key(id, name))? {
        for entry in DirEntries::new(leaf.data(slot)) {
            let entry = entry.map_err(|error| FsError::bad_item(id, "attribute", &error))?;
            if entry.name != name {
                bytes += DirEntry::HEADER + entry.name.len() + entry.data.len();
            }
        }
    }
    check_size(engine, bytes)
}

/// Errors unless an item may have this many bytes.
fn check_size(engine: &Engine, bytes: usize) -> Result<(), FsError> {
    let most = Node::item_data_max(engine.node_size());
    if bytes > most {
        return Err(FsError::AttributeTooLarge {
            most: most - DirEntry::HEADER,
        });
    }
    Ok(())
}

/// Removes an attribute; false if it is not there.
pub(crate) fn delete(engine: &mut Engine, id: InodeId, name: &[u8]) -> Result<bool, FsError> {
    dir::remove_hashed(engine, id, &key(id, name), name)
}

/// Names of all attributes of an inode.
fn names_of(engine: &Engine, id: InodeId) -> Result<Vec<Vec<u8>>, FsError> {
    let first = Key::new(id.number.get(), ItemType::XATTR_ITEM, 0);
    let mut cursor = Cursor::seek_in(engine, id.tree, &first)?;
    let mut names = Vec::new();
    while let Some((found, data)) = cursor.item() {
        if found.objectid != id.number.get() || found.item_type != ItemType::XATTR_ITEM {
            break;
        }
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(id, "attribute", &error))?;
            names.push(entry.name.to_vec());
        }
        cursor.next()?;
    }
    Ok(names)
}

impl Filesystem {
    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`], [`FsError::NotSupported`] for unknown
    /// namespaces, damage, reading.
    pub fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>, FsError> {
        // The kernel asks for the ACLs of everything it looks at.
        if !matches!(name, ACL_ACCESS | ACL_DEFAULT) {
            check_has_attributes(id)?;
        }
        self.store.look(|engine| {
            check_alive(engine, id.tree)?;
            get(engine, id, name)?.ok_or_else(|| match check_name(name) {
                Err(error @ FsError::NotSupported(_)) => error,
                _ => FsError::NoAttribute,
            })
        })
    }

    /// Names of all extended attributes.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn list_xattrs(&self, id: InodeId) -> Result<Vec<Vec<u8>>, FsError> {
        self.store.look(|engine| {
            check_alive(engine, id.tree)?;
            names_of(engine, id)
        })
    }

    /// Sets an extended attribute. An access ACL changes the mode; the
    /// compression property changes how new data are kept.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NoAttribute`],
    /// [`FsError::NotSupported`] for unknown namespaces, [`FsError::Invalid`]
    /// values, [`FsError::AttributeTooLarge`], no space.
    pub fn set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<(), FsError> {
        check_name(name)?;
        check_has_attributes(inode.id)?;
        if name == COMPRESSION && value.is_empty() {
            return self.remove_property(inode, mode);
        }
        self.ensure_quota_of_names(inode.id.tree)?;
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        check_protection(&state, name)?;
        let id = inode.id;
        let effect = Effect::of(&state, name, value)?;
        if let Effect::AclEqualsMode(bits) = effect {
            // The mode says everything that the ACL says.
            let room = (4 * NODES_PER_PATH, Purpose::Grow);
            return self.change(&mut *state, id.tree, room, |engine, state| {
                delete(engine, id, name)?;
                state.item.mode = (state.item.mode & !0o777) | bits;
                state.item.ctime = now();
                store_item(engine, id, state)
            });
        }
        if name == COMPRESSION && !has_data(&state) {
            return Ok(());
        }
        // Done before the transaction, because what fails within it poisons the
        // volume. The inode's lock keeps other threads from its attributes
        // meanwhile.
        check_size(
            &self.store.read(),
            DirEntry::HEADER + name.len() + value.len(),
        )?;
        let exists = get(&self.store.read(), id, name)?.is_some();
        match mode {
            SetMode::Create if exists => return Err(FsError::Exists),
            SetMode::Replace if !exists => return Err(FsError::NoAttribute),
            _ => {}
        }
        check_room(&self.store.read(), id, name, value)?;
        let room = (4 * NODES_PER_PATH, Purpose::Grow);
        self.change(&mut *state, id.tree, room, |engine, state| {
            if exists {
                delete(engine, id, name)?;
            }
            put(engine, id, name, value)?;
            if name == COMPRESSION {
                note_compression(engine, compression_property(value).flatten());
            }
            effect.apply(state);
            state.item.ctime = now();
            state.item.sequence = state.item.sequence.wrapping_add(1);
            store_item(engine, id, state)
        })
    }

    /// Removes an extended attribute. Removing an ACL that is not there
    /// succeeds, because the mode then says everything.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`], damage.
    pub fn remove_xattr(&self, inode: &Inode, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        check_has_attributes(inode.id)?;
        if name == COMPRESSION {
            return self.remove_property(inode, SetMode::Replace);
        }
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        check_protection(&state, name)?;
        if get(&self.store.read(), inode.id, name)?.is_none() {
            return match name {
                ACL_ACCESS | ACL_DEFAULT => Ok(()),
                _ => Err(FsError::NoAttribute),
            };
        }
        let room = (4 * NODES_PER_PATH, Purpose::Shrink);
        self.change(&mut *state, inode.id.tree, room, |engine, state| {
            delete(engine, inode.id, name)?;
            state.item.ctime = now();
            state.item.sequence = state.item.sequence.wrapping_add(1);
            store_item(engine, inode.id, state)
        })
    }

    /// Removes the compression property and its flags. New data are then kept
    /// as the volume's options say.
    fn remove_property(&self, inode: &Inode, mode: SetMode) -> Result<(), FsError> {
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        check_protection(&state, COMPRESSION)?;
        if !has_data(&state) {
            return Ok(());
        }
        let exists = get(&self.store.read(), inode.id, COMPRESSION)?.is_some();
        if mode == SetMode::Replace && !exists {
            return Err(FsError::NoAttribute);
        }
        let room = (4 * NODES_PER_PATH, Purpose::Shrink);
        self.change(&mut *state, inode.id.tree, room, |engine, state| {
            delete(engine, inode.id, COMPRESSION)?;
            state.compression = None;
            state.item.flags -= InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
            state.item.ctime = now();
            state.item.sequence = state.item.sequence.wrapping_add(1);
            store_item(engine, inode.id, state)
        })
    }

    /// Loads what attributes say about how an inode is kept.
    pub(crate) fn load_properties(&self, engine: &Engine, inode: &Inode) -> Result<(), FsError> {
        let mut state = inode.state.write();
        let asks = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
        if state.item.flags.intersects(asks)
            && let Some(value) = get(engine, inode.id, COMPRESSION)?
        {
            state.compression = compression_property(&value);
        }
        Ok(())
    }
}

/// Whether an inode has data, or passes on how data are kept.
fn has_data(state: &InodeState) -> bool {
    matches!(state.item.mode & S_IFMT, S_IFREG | S_IFDIR)
}

/// Errors if attributes of this name are content that must stay: those of
/// users, and properties. The others belong to the system.
fn check_protection(state: &InodeState, name: &[u8]) -> Result<(), FsError> {
    let of_system: [&[u8]; 3] = [b"trusted.", b"security.", b"system."];
    if of_system.iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(());
    }
    state.check_unprotected()
}

/// Errors for the directory that stands for a subvolume which is elsewhere: it
/// is in no tree.
fn check_has_attributes(id: InodeId) -> Result<(), FsError> {
    if dir::is_absent_subvolume(id) {
        return Err(FsError::NotSupported(
            "attributes of a subvolume that is not part of this snapshot",
        ));
    }
    Ok(())
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > dir::NAME_MAX {
        return Err(FsError::DoesNotFit);
    }
    let namespaces: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];
    let known = namespaces
        .iter()
        .any(|namespace| name.len() > namespace.len() && name.starts_with(namespace));
    if name.starts_with(b"btrfs.") && name != COMPRESSION {
        return Err(FsError::Invalid("no such property"));
    }
    let system = name.starts_with(b"system.") && name != ACL_ACCESS && name != ACL_DEFAULT;
    if !known || system {
        return Err(FsError::NotSupported("this attribute's namespace"));
    }
    Ok(())
}

/// What setting an attribute changes beside the attribute.
enum Effect {
    Nothing,
    AclMode(u32),
    /// The ACL is the mode: no attribute is kept.
    AclEqualsMode(u32),
    Compression(
        InodeFlags,
        Option<Option<butterfs_format::compression::Algorithm>>,
    ),
}

impl Effect {
    fn of(state: &InodeState, name: &[u8], value: &[u8]) -> Result<Self, FsError> {
        if name == ACL_ACCESS {
            return Ok(match acl::check_access(value)? {
                (bits, acl::Meaning::ModeOnly) => Self::AclEqualsMode(bits),
                (bits, acl::Meaning::Extended) => Self::AclMode(bits),
            });
        }
        if name == ACL_DEFAULT {
            acl::check_default(value, state.item.mode)?;
        }
        if name == COMPRESSION {
            if state.item.flags.intersects(UNPACKED) {
                return Err(FsError::Invalid(match compression_property(value) {
                    Some(None) => {
                        "it has no copy-on-write or no checksums (chattr +C, nodatacow), so nothing \
                         of it is ever compressed, and as in the kernel the property cannot be set"
                    }
                    _ => {
                        "it has no copy-on-write or no checksums (chattr +C, nodatacow), and \
                         without them nothing is compressed"
                    }
                }));
            }
            let property = compression_property(value)
                .ok_or(FsError::Invalid("compression is zlib, lzo, zstd or none"))?;
            let flag = match property {
                Some(_) => InodeFlags::COMPRESS,
                None => InodeFlags::NOCOMPRESS,
            };
            return Ok(Self::Compression(flag, Some(property)));
        }
        Ok(Self::Nothing)
    }

    fn apply(&self, state: &mut InodeState) {
        match self {
            Self::Nothing => {}
            Self::AclMode(bits) | Self::AclEqualsMode(bits) => {
                state.item.mode = (state.item.mode & !0o777) | bits;
            }
            Self::Compression(flag, property) => {
                state.item.flags -= InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
                state.item.flags |= *flag;
                state.compression = *property;
            }
        }
    }
}

/// Compression that a property asks for: `Some(None)` is an explicit "none". As
/// in the kernel, what follows an algorithm's name (a level) is ignored.
pub(crate) fn compression_property(value: &[u8]) -> Option<Option<Algorithm>> {
    if matches!(value, b"no" | b"none") {
        return Some(None);
    }
    let named = |algorithm: &Algorithm| value.starts_with(algorithm.name().as_bytes());
    Algorithm::ALL.into_iter().find(named).map(Some)
}
