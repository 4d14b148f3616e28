//! Receiving into a volume that is not mounted, through the library: no
//! kernel, no root.
//!
//! Owns the [`Target`] over [`Filesystem`]. An interrupted receive is noted in
//! an attribute of the subvolume's root, together with the moment ([`Moment`]). If
//! the content changed since, nobody can say how far the receive came, and it is
//! not continued.

use super::base::{BaseSearch, Candidate};
use super::error::TargetError;
use super::moment::{Moment, is_as_at};
use super::note::Note;
use super::reader::Position;
use super::target::{Begun, Left, NewSubvolume, Start, Target};
use super::volume_files::VolumeFiles;
use crate::dir::check_name;
use crate::names::{NewInode, Owner, S_IFDIR};
use crate::subvolume::Received;
use crate::xattr::SetMode;
use crate::{Filesystem, FsError};
use butterfs_format::item::inode::Timespec;
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::send_stream::{Command, SourceStamp};
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Access, StoreError, TreeAccess};
use butterfs_tree::Cursor;
use std::sync::Arc;

/// Attribute of the root of a subvolume that is not whole.
const NOTE: &[u8] = b"user.butterfs.receive";

/// A directory of a volume that streams are received into.
#[derive(Debug)]
pub struct VolumeTarget {
    files: Arc<Filesystem>,
    directory: InodeId,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    new: NewSubvolume,
    files: VolumeFiles,
    /// The subvolume has a note of how far the receive came.
    noted: bool,
}

impl VolumeTarget {
    /// Receives into `directory`.
    #[must_use]
    pub const fn new(files: Arc<Filesystem>, directory: InodeId) -> Self {
        Self {
            files,
            directory,
            current: None,
        }
    }

    /// Carries out commands that wait for the next one: a new inode waits for
    /// its name, attributes wait for more of them. Afterwards the volume shows
    /// everything that was applied.
    ///
    /// # Errors
    /// As [`Target::apply`].
    pub fn settle(&mut self) -> Result<(), TargetError> {
        match &mut self.current {
            Some(current) => current.files.settle(),
            None => Ok(()),
        }
    }

    /// The subvolume that was received with a stamp, or has it itself.
    fn get(&self, stamp: SourceStamp) -> Result<TreeId, TargetError> {
        let found = find_stamped(&self.files, stamp)?;
        found.ok_or_else(|| {
            TargetError::Other(format!(
                "the snapshot {} (generation {}) that this is based on is not in the volume; receive that one first",
                uuid::Uuid::from_bytes(stamp.uuid),
                stamp.ctransid
            ))
        })
    }

    /// An empty subvolume, without what its directory passes on.
    fn create(&self, name: &[u8]) -> Result<TreeId, FsError> {
        let root = NewInode::new(S_IFDIR | 0o700, Owner::default());
        let tree = self.files.create_subvolume(self.directory, name, &root)?;
        let root = self.files.inode(InodeId {
            tree,
            number: InodeNumber::ROOT,
        })?;
        for name in self.files.list_xattrs(root.id)? {
            self.files.remove_xattr(&root, &name)?;
        }
        Ok(tree)
    }

    fn start(&mut self, new: NewSubvolume, tree: TreeId) {
        self.current = Some(Current {
            new,
            files: VolumeFiles::new(Arc::clone(&self.files), tree),
            noted: false,
        });
    }

    fn existing(&mut self, new: &NewSubvolume, start: Start) -> Result<Option<Begun>, TargetError> {
        let found = match self.files.lookup(self.directory, &new.name) {
            Ok(found) => found,
            Err(FsError::NotFound) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let name = new.name.escape_ascii();
        let is_root = found.subvolume && found.inode.number == InodeNumber::ROOT;
        if start == Start::New || !is_root {
            return Err(TargetError::Other(format!(
                "{name} is there already; go on with it (--resume) or remove it"
            )));
        }
        let tree = found.inode.tree;
        let state = self
            .files
            .store
            .read()
            .tree_state(tree)
            .map_err(FsError::from)?;
        if received_as(&state.item) == new.stamp {
            // All commands were applied. If it is not read-only yet, the
            // receive was interrupted while it finished.
            if !state.item.flags.contains(RootFlags::READONLY) {
                self.files.set_subvolume_access(tree, Access::ReadOnly)?;
                self.files.sync_all()?;
            }
            return Ok(Some(Begun::Whole));
        }
        let unclear = |reason: &str| {
            TargetError::Other(format!("{name} {reason}; remove it and receive again"))
        };
        let value = match self.files.get_xattr(found.inode, NOTE) {
            Ok(value) => value,
            Err(FsError::NoAttribute) => {
                return Err(unclear(
                    "is there already, and nothing says how much of it was received",
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let (moment, note) =
            parse_note(&new.name, &value).ok_or_else(|| unclear("has a note that is none"))?;
        if !self
            .files
            .store
            .look(|engine| is_as_at(engine, tree, moment))?
        {
            return Err(unclear("was changed after the receive was interrupted"));
        }
        let Note::Partly { of, at } = note else {
            return Err(unclear("has a note that is none"));
        };
        if of != *new {
            return Err(unclear("is the beginning of another stream"));
        }
        // From here on the note would no longer be true.
        let root = self.files.inode(found.inode)?;
        self.files.remove_xattr(&root, NOTE)?;
        self.start(new.clone(), tree);
        Ok(Some(Begun::Partly(at)))
    }

    /// Notes how far the receive came, durably.
    fn note(&self, current: &Current, at: Position) -> Result<(), TargetError> {
        let note = Note::Partly {
            of: current.new.clone(),
            at,
        };
        let root = self.files.inode(current.files.root())?;
        self.files.flush_all()?;
        // A commit or a long time between taking the moment and writing the
        // note makes the note wrong. That is rare, so it is tried again.
        for _ in 0..3 {
            let moment = Moment::soon(self.files.store.read().generation());
            let value = format!("{moment}{note}");
            self.files
                .set_xattr(&root, NOTE, value.as_bytes(), SetMode::Any)?;
            self.files.sync_all()?;
            let tree = current.files.root().tree;
            let state = self.files.store.read().tree_state(tree);
            let generation = state.map_err(FsError::from)?.root.generation;
            let changed = self.files.attributes_of(&root)?.ctime;
            if moment.includes(generation, changed) {
                return Ok(());
            }
        }
        Err(TargetError::Other("the volume changes all the time".into()))
    }

    /// Data come first. So the next commit that says that the subvolume is whole
    /// has all of its data.
    fn finish_subvolume(&self, current: &mut Current) -> Result<(), TargetError> {
        current.files.settle()?;
        self.files.flush_all()?;
        if current.noted {
            let root = self.files.inode(current.files.root())?;
            self.files.remove_xattr(&root, NOTE)?;
        }
        let tree = current.files.root().tree;
        let stamp = current.new.stamp;
        let received = Received {
            uuid: stamp.uuid,
            sent_generation: stamp.ctransid,
            sent_time: Timespec::default(),
        };
        self.files.set_received(tree, &received)?;
        self.files.set_subvolume_access(tree, Access::ReadOnly)?;
        self.files.sync_all()?;
        Ok(())
    }
}

/// A note in an attribute: when it was written, and itself.
fn parse_note(name: &[u8], value: &[u8]) -> Option<(Moment, Note)> {
    let (moment, rest) = Moment::parse(std::str::from_utf8(value).ok()?)?;
    Some((moment, Note::parse(name, rest)?))
}

fn received_as(item: &RootItem) -> SourceStamp {
    SourceStamp {
        uuid: item.received_uuid,
        ctransid: item.stransid,
    }
}

/// The read-only subvolume that has a stamp or was received with it.
fn find_stamped(files: &Filesystem, stamp: SourceStamp) -> Result<Option<TreeId>, FsError> {
    let engine = files.store.read();
    let first = Key::new(TreeId::FS.get(), ItemType::ROOT_ITEM, 0);
    let mut cursor = Cursor::seek_in(&*engine, TreeId::ROOT, &first)?;
    let mut search = BaseSearch::new(stamp);
    while let Some((key, data)) = cursor.item() {
        let tree = TreeId(key.objectid);
        if tree > TreeId::LAST_SUBVOLUME {
            break;
        }
        if key.item_type == ItemType::ROOT_ITEM && tree.is_subvolume() {
            let item = RootItem::parse(data)
                .map_err(|error| butterfs_store::bad_item(TreeId::ROOT, key, &error))?;
            // Its item does not yet show a deletion since the last commit.
            let usable = [item.uuid, item.received_uuid].contains(&stamp.uuid)
                && engine.tree_access(tree)? == TreeAccess::ReadOnly;
            let candidate = Candidate {
                own: SourceStamp {
                    uuid: item.uuid,
                    ctransid: item.ctransid,
                },
                made: item.otransid,
                received: received_as(&item),
            };
            if usable && let Some(found) = search.offer(&candidate, tree) {
                return Ok(Some(found));
            }
        }
        cursor.next()?;
    }
    Ok(search.by_uuid())
}

impl Target for VolumeTarget {
    fn begin(&mut self, new: &NewSubvolume, start: Start) -> Result<Begun, TargetError> {
        check_name(&new.name)?;
        if let Some(begun) = self.existing(new, start)? {
            return Ok(begun);
        }
        let tree = match new.parent {
            None => self.create(&new.name)?,
            Some(stamp) => {
                let parent = self.get(stamp)?;
                let access = Access::ReadWrite;
                self.files
                    .snapshot(parent, self.directory, &new.name, access)?
            }
        };
        self.start(new.clone(), tree);
        Ok(Begun::New)
    }

    fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        let Some(mut current) = self.current.take() else {
            return Err(TargetError::Other("no subvolume was begun".into()));
        };
        let result = match command {
            Command::Clone(clone) => {
                let source = if clone.from == current.new.stamp {
                    Ok(current.files.root().tree)
                } else if let Some(known) = current.files.source(clone.from) {
                    Ok(known)
                } else {
                    self.get(clone.from)
                        .inspect(|found| current.files.add_source(clone.from, *found))
                };
                source.and_then(|tree| current.files.clone_range(clone, tree))
            }
            _ => current.files.apply(command),
        };
        self.current = Some(current);
        result
    }

    fn apply_alone(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        let applied = self.apply(command).and_then(|()| self.settle());
        if applied.is_err()
            && let Some(current) = &mut self.current
        {
            current.files.drop_waiting();
        }
        applied
    }

    fn checkpoint(&mut self, applied: Position) -> Result<(), TargetError> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let result = current.files.settle().and_then(|()| {
            current.noted = true;
            self.note(&current, applied)
        });
        self.current = Some(current);
        result
    }

    fn finish(&mut self) -> Result<(), TargetError> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let finished = self.finish_subvolume(&mut current);
        if finished.is_err() {
            self.current = Some(current);
        }
        finished
    }

    fn interrupt(&mut self, applied: Option<Position>) -> Result<Left, TargetError> {
        let Some(mut current) = self.current.take() else {
            return Ok(Left {
                place: "the volume".into(),
                resumable: false,
            });
        };
        let place = current.new.name.escape_ascii().to_string();
        current.files.settle()?;
        match applied {
            Some(at) => self.note(&current, at)?,
            None => self.files.sync_all()?,
        }
        Ok(Left {
            place,
            resumable: applied.is_some(),
        })
    }
}

impl From<StoreError> for TargetError {
    fn from(error: StoreError) -> Self {
        Self::Fs(error.into())
    }
}
