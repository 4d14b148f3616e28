//! Moving names: rename with replacement, NOREPLACE, EXCHANGE, WHITEOUT.

use crate::change::{Locked, check_writable};
use crate::change::{NODES_OF_NEW, NODES_PER_PATH};
use crate::dir::{self, Link, Target, check_name};
use crate::error::FsError;
use crate::inode::{Inode, store_item};
use crate::inode_fault::InodeFault;
use crate::mode::kind_of;
use crate::names::{
    NewInode, Owner, S_IFCHR, check_directory, location, lock_all, missing_link, name_bytes,
    state_of, touch_directory,
};
use crate::subvolume::rename::{hang_again, take_subvolume};
use crate::{Filesystem, orphan};
use butterfs_format::item::dir::FileType;
use butterfs_format::{InodeId, InodeNumber};
use butterfs_store::{Engine, Purpose, now};
use std::sync::Arc;

/// What rename does when the new name exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    #[default]
    Replace,
    /// Fails.
    NoReplace,
    /// Both swap their names.
    Exchange,
}

/// What stays at the old name.
#[derive(Clone, Copy, Debug, Default)]
pub enum OldName {
    /// Nothing.
    #[default]
    Free,
    /// A whiteout of this owner: a character device 0:0, as overlay file
    /// systems use.
    Whiteout(Owner),
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Directory.
    pub dir: InodeId,
    /// Name in it.
    pub name: &'a [u8],
}

impl Filesystem {
    /// Moves `from` to `to`.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
        old_name: OldName,
    ) -> Result<(), FsError> {
        for name in [from.name, to.name] {
            if matches!(name, b"." | b"..") {
                return Err(FsError::Busy("the name . or .. cannot move"));
            }
            check_name(name)?;
        }
        dir::check_kept(from.dir)?;
        dir::check_kept(to.dir)?;
        if mode == RenameMode::Exchange && matches!(old_name, OldName::Whiteout(_)) {
            return Err(FsError::Invalid("an exchange leaves no whiteout"));
        }
        if mode == RenameMode::Replace {
            self.flush_replacement(from, to)?;
        }
        self.ensure_quota_of_names(to.dir.tree)?;
        // Directories move one at a time, so that no cycle can arise.
        let _one_at_a_time = self.renaming.lock();
        while !self.try_rename(from, to, mode, old_name)? {}
        Ok(())
    }

    /// Brings the data of a file that is about to replace another one to the
    /// device, so that no commit has the name without them. After a crash the
    /// name has the old content or the new. Programs that do not fsync first
    /// rely on that, and Btrfs promises it.
    fn flush_replacement(&self, from: Place<'_>, to: Place<'_>) -> Result<(), FsError> {
        match self.lookup(to.dir, to.name) {
            Ok(_) => {}
            Err(FsError::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        }
        let source = self.lookup(from.dir, from.name)?;
        if source.subvolume || source.kind != FileType::Regular {
            return Ok(());
        }
        self.flush_inode(&*self.inode(source.inode)?)
    }

    /// One attempt; false when a name changed meanwhile.
    fn try_rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
        old_name: OldName,
    ) -> Result<bool, FsError> {
        let source = self.lookup(from.dir, from.name)?;
        let target = match self.lookup(to.dir, to.name) {
            Ok(target) => Some(target),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        check_modes(source, target, mode)?;
        if target.is_some_and(|target| target.inode == source.inode) {
            // Both are names of one file, or the same name: nothing is to be
            // done.
            return Ok(true);
        }
        check_crossing((from, source), (to, target), mode)?;
        self.check_cycle(source, to.dir)?;
        if let Some(target) = target
            && mode == RenameMode::Exchange
        {
            self.check_cycle(target, from.dir)?;
        }
        // Names of subvolumes are not recorded in inodes.
        let inode_of = |target: Target| (!target.subvolume).then(|| self.inode(target.inode));
        let moved = inode_of(source).transpose()?;
        let replaced = target.and_then(inode_of).transpose()?;
        let (old_dir, new_dir) = (self.inode(from.dir)?, self.inode(to.dir)?);
        let mut inodes = vec![&old_dir, &new_dir];
        inodes.extend(&moved);
        inodes.extend(&replaced);
        let mut locked = lock_all(&inodes);
        check_directory(state_of(&mut locked, from.dir))?;
        check_directory(state_of(&mut locked, to.dir))?;
        let nodes = 16 * NODES_PER_PATH + NODES_OF_NEW + orphan::NODES;
        let room = (nodes, Purpose::Grow);
        let fate = self.change(&mut locked, from.dir.tree, room, |engine, locked| {
            check_writable(engine, to.dir.tree)?;
            let unchanged = dir::lookup(engine, from.dir, from.name)? == Some(source)
                && dir::lookup(engine, to.dir, to.name)? == target;
            if !unchanged {
                return Ok(None);
            }
            if target.is_none() {
                dir::check_free(engine, to.dir, to.name)?;
            }
            let directory = |target: Target| target.kind == FileType::Directory;
            if directory(source) || target.is_some_and(directory) {
                // Files below it were promised at the new paths.
                engine.log_mut().give_up();
            }
            let together = from.dir == to.dir;
            if !source.subvolume {
                let moved = source.inode;
                let leaving = together.then_some(from.name);
                dir::check_link_room(engine, moved, to.dir.number, to.name, leaving)?;
            }
            if let Some(target) = target.filter(|target| !target.subvolume)
                && mode == RenameMode::Exchange
            {
                let leaving = together.then_some(to.name);
                let dir = from.dir.number;
                dir::check_link_room(engine, target.inode, dir, from.name, leaving)?;
            }
            if let Some(target) = target {
                keep_logged_name(engine, source.inode, target.inode, mode);
            }
            let mut fate = orphan::Fate::Lives;
            match (target, &replaced) {
                (Some(target), _) if mode == RenameMode::Exchange => {
                    exchange(engine, locked, (from, source), (to, target))?;
                }
                (Some(target), Some(replaced)) => {
                    if target.kind == FileType::Directory && dir::has_entries(engine, target.inode)?
                    {
                        return Err(FsError::NotEmpty);
                    }
                    fate = replace(engine, locked, to, target, replaced)?;
                    shift(engine, locked, from, to, source)?;
                }
                _ => shift(engine, locked, from, to, source)?,
            }
            if let OldName::Whiteout(owner) = old_name {
                let new = NewInode::new(S_IFCHR, owner);
                let directory = (from.dir, state_of(locked, from.dir));
                self.add_new(engine, directory, Some(from.name), &new)?;
            }
            Ok(Some(fate))
        })?;
        let Some(fate) = fate else {
            return Ok(false);
        };
        drop(locked);
        if let Some(replaced) = replaced {
            match fate {
                orphan::Fate::Gone => self.inodes.remove(replaced.id),
                orphan::Fate::Waits => self.delete_or_leave(&replaced),
                orphan::Fate::Lives => {}
            }
        }
        Ok(true)
    }

    /// Errors when `moved` is a directory that is or holds `into`.
    fn check_cycle(&self, moved: Target, into: InodeId) -> Result<(), FsError> {
        if moved.kind != FileType::Directory {
            return Ok(());
        }
        let mut at = into;
        // If there is a loop, the walk returns to the marked directory as soon
        // as a round is long enough.
        let mut marked = None;
        for step in 1_u64.. {
            if marked == Some(at) {
                break;
            }
            if step.is_power_of_two() {
                marked = Some(at);
            }
            if at == moved.inode {
                return Err(FsError::Invalid("a directory cannot move into itself"));
            }
            // Only a subvolume can move to another subvolume.
            if at.number == InodeNumber::ROOT && !moved.subvolume {
                return Ok(());
            }
            let parent = self.parent(at)?;
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(FsError::Damaged {
            inode: into,
            at: None,
            fault: Box::new(InodeFault::Loop),
        })
    }
}

/// Gives up the log if a replay of it would find neither inode at the name. The
/// next fsync removes the inode that loses a name from the log. So the log must
/// have the current state of the inode that gets the name.
fn keep_logged_name(engine: &mut Engine, source: InodeId, target: InodeId, mode: RenameMode) {
    let (old, new) = (
        engine.log().has_inode(target),
        engine.log().has_inode(source),
    );
    let is_lost = match mode {
        RenameMode::Exchange => old != new,
        _ => old && !(new && engine.log().changes_of(source).is_none()),
    };
    if is_lost {
        engine.log_mut().give_up();
    }
}

fn check_modes(source: Target, target: Option<Target>, mode: RenameMode) -> Result<(), FsError> {
    let Some(target) = target else {
        return match mode {
            RenameMode::Exchange => Err(FsError::NotFound),
            _ => Ok(()),
        };
    };
    if mode == RenameMode::NoReplace {
        return Err(FsError::Exists);
    }
    if mode == RenameMode::Replace {
        let source_is_dir = source.kind == FileType::Directory;
        let target_is_dir = target.kind == FileType::Directory;
        if source_is_dir && !target_is_dir {
            return Err(FsError::NotADirectory);
        }
        if !source_is_dir && target_is_dir {
            return Err(FsError::IsADirectory);
        }
    }
    Ok(())
}

/// Errors if something other than a subvolume would move into another
/// subvolume, or if a subvolume would be replaced. Only deletion ends a
/// subvolume.
fn check_crossing(
    (from, source): (Place<'_>, Target),
    (to, target): (Place<'_>, Option<Target>),
    mode: RenameMode,
) -> Result<(), FsError> {
    let back = target.filter(|_| mode == RenameMode::Exchange);
    let only_subvolumes = source.subvolume && back.is_none_or(|back| back.subvolume);
    if from.dir.tree != to.dir.tree && !only_subvolumes {
        return Err(FsError::CrossesSubvolumes);
    }
    for moved in [Some(source), back].into_iter().flatten() {
        if moved.subvolume {
            dir::check_kept(moved.inode)?;
        }
    }
    if target.is_some_and(|target| target.subvolume) && back.is_none() {
        return Err(FsError::NotEmpty);
    }
    Ok(())
}

/// Takes the source's old name away; gives its kind.
fn take_name(
    engine: &mut Engine,
    locked: &mut Locked<'_>,
    place: Place<'_>,
    source: Target,
) -> Result<FileType, FsError> {
    if source.subvolume {
        take_subvolume(engine, place.dir, place.name, source.inode.tree)?;
        let dir_state = state_of(locked, place.dir);
        touch_directory(engine, place.dir, dir_state, -name_bytes(place.name))?;
        return Ok(FileType::Directory);
    }
    let link = dir::find_link(engine, source.inode, place.dir.number, place.name)?
        .ok_or_else(|| missing_link(source.inode))?;
    dir::remove_entry(engine, place.dir, &link)?;
    dir::remove_link(engine, source.inode, &link)?;
    let dir_state = state_of(locked, place.dir);
    touch_directory(engine, place.dir, dir_state, -name_bytes(place.name))?;
    kind_of(state_of(locked, source.inode).item.mode)
}

/// Gives the source a new name.
fn give_name(
    engine: &mut Engine,
    locked: &mut Locked<'_>,
    place: Place<'_>,
    source: Target,
    kind: FileType,
) -> Result<(), FsError> {
    let dir_state = state_of(locked, place.dir);
    if source.subvolume {
        return hang_again(
            engine,
            (place.dir, dir_state),
            place.name,
            source.inode.tree,
        );
    }
    let link = Link {
        parent: place.dir.number,
        index: dir::next_index(engine, place.dir, dir_state)?,
        name: place.name.to_vec(),
    };
    dir::add_link(engine, source.inode, &link)?;
    let place_key = location(source.inode.number);
    dir::add_entry(engine, place.dir, &link, place_key, kind)?;
    let dir_state = state_of(locked, place.dir);
    touch_directory(engine, place.dir, dir_state, name_bytes(place.name))?;
    let state = state_of(locked, source.inode);
    state.item.ctime = now();
    state.item.sequence = state.item.sequence.wrapping_add(1);
    store_item(engine, source.inode, state)
}

fn shift(
    engine: &mut Engine,
    locked: &mut Locked<'_>,
    from: Place<'_>,
    to: Place<'_>,
    source: Target,
) -> Result<(), FsError> {
    let kind = take_name(engine, locked, from, source)?;
    give_name(engine, locked, to, source, kind)
}

fn exchange(
    engine: &mut Engine,
    locked: &mut Locked<'_>,
    (from, source): (Place<'_>, Target),
    (to, target): (Place<'_>, Target),
) -> Result<(), FsError> {
    let source_kind = take_name(engine, locked, from, source)?;
    let target_kind = take_name(engine, locked, to, target)?;
    give_name(engine, locked, to, source, source_kind)?;
    give_name(engine, locked, from, target, target_kind)
}

fn replace(
    engine: &mut Engine,
    locked: &mut Locked<'_>,
    to: Place<'_>,
    target: Target,
    replaced: &Arc<Inode>,
) -> Result<orphan::Fate, FsError> {
    let link = dir::find_link(engine, target.inode, to.dir.number, to.name)?
        .ok_or_else(|| missing_link(target.inode))?;
    let plan = orphan::plan_last(engine, replaced, state_of(locked, target.inode))?;
    dir::remove_entry(engine, to.dir, &link)?;
    let dir_state = state_of(locked, to.dir);
    touch_directory(engine, to.dir, dir_state, -name_bytes(to.name))?;
    let state = state_of(locked, target.inode);
    orphan::drop_link(engine, replaced, state, (&link, plan))
}
